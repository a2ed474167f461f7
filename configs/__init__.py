"""Campaigns that come with hpcagent."""
