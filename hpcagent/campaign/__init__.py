"""The loop: a campaign written down, the coordinator that runs it, the report that tells."""
