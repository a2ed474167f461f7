"""LAMMPS as an app: an input script with `${variables}` and a contract beside it."""
