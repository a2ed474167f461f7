"""The page of a workspace: what runs, what it costs, what waits for a yes; and forms to start more."""
