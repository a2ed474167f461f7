"""Analysis of what a simulation wrote."""
