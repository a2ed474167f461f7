"""Starting campaigns that `hpcagent init` copies, one folder for each kind."""
