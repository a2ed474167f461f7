"""LAMMPS inputs that come with hpcagent, each with its contract."""
