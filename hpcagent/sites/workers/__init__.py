"""Parsl's HighThroughputExecutor as it is used here: executor, interchange, manager and workers, blocks."""
