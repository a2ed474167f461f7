"""A package, or the one of this name that globus-compute-endpoint installs would be found in its place."""
