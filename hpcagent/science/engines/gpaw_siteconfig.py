"""Build settings of GPAW for a machine with a C++ compiler and nothing else; see docs/howto/gpaw_build.md.

GPAW_CONFIG=<absolute path of this file> pip install gpaw
"""

mpi = False
compiler = "g++"
noblas = True
nolibxc = True
