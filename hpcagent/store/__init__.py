"""The run directory: what was asked, what came back, and who may write."""
