"""A Globus Compute on this machine, held up for a command: python tests/globus/rig.py --run hpcagent run ... --site '$RIG_PROFILE'."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from loopback import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
