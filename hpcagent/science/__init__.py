"""The sciences: LAMMPS, engines of electronic structure and of potentials, structures, analyses, their chains."""
