"""Runs on a Globus Compute endpoint: the client's side and, in `there`, what the endpoint's workers do."""
