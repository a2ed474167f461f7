"""Any program as an app: its command, its input files, and how its numbers are read."""
