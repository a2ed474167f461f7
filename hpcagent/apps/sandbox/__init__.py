"""Runs what is not the library's own so that it can do little harm: limits, namespaces, declared outputs only."""
