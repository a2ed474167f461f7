"""The package's modules as syntax trees, parsed once in a process; `the_trees` in `tests/conftest.py` makes it one process."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path

import hpcagent

__all__ = ["parsed"]


@functools.cache
def _all() -> dict[Path, ast.Module]:
    # A million nodes that only grow in number: the collector would walk through them again and again.
    gc.disable()
    try:
        return {path: ast.parse(path.read_text()) for path in Path(hpcagent.__file__).parent.rglob("*.py")}
    finally:
        gc.freeze()
        gc.enable()


def parsed(path: Path) -> ast.Module:
    """The tree of a module of the package."""
    return _all()[path]
