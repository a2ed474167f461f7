"""A command of the PBS of `pbs.py`, which is compiled once for all commands: `python -IS command.py NAME ARGS...`."""

import sys

sys.path.insert(0, sys.argv[0].rpartition("/")[0])

import pbs

sys.exit(pbs.main())
