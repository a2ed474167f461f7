"""A folder of what a person or group has: runs, campaigns, approvals; and the one process that serves it."""
