"""Processes of MPI ranks that are started once and run many things: LAMMPS in process, ensembles, functions."""
