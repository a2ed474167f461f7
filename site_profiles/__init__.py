"""Site profiles that come with hpcagent, as package data."""
