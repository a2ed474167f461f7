"""`python PAGE.py`, where the process is a fork of that of tests/warm.py: see tests/forked_command.py."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import ModuleType

__all__ = ["main"]


def main() -> None:
    """Run the script that the first argument names, with the others as its own."""
    del sys.argv[0]
    path = Path(sys.argv[0]).absolute()
    warnings.filterwarnings("error", category=DeprecationWarning, module="__main__$")
    module = ModuleType("__main__")
    module.__file__ = str(path)
    sys.path.insert(0, str(path.parent))
    sys.modules["__main__"] = module
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
