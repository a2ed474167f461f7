"""In front of PYTHONPATH: a process that imports the Globus Compute SDK finds the web service of the rig.

The SDK takes the service's address from a table in its own code; no argument, variable or file changes it. What
is replaced is the one function that reads that table, when its module is imported. Everything else, credentials
included, goes the SDK's own ways. Product code knows nothing of this.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

URL = "HPCAGENT_RIG_URL"
_TABLE = "globus_compute_sdk.sdk._environments"
_READER = "get_web_service_url"
_DONE = "of_the_rig"


class _Redirect:
    """Finds the module with the table, and changes it after it was executed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own spec, with one more step at its end."""
        if name != _TABLE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            _change(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Let this process find the rig's service, whether it has imported the SDK or not."""
    if not any(isinstance(finder, type) and finder.__name__ == "_Redirect" for finder in sys.meta_path):
        sys.meta_path.insert(0, _Redirect)
    if _TABLE in sys.modules and not hasattr(sys.modules[_TABLE], _DONE):
        _change(sys.modules[_TABLE])
        for user in ("globus_compute_sdk.sdk.client",):
            if user in sys.modules:
                setattr(sys.modules[user], _READER, getattr(sys.modules[_TABLE], _READER))


def _change(module: ModuleType) -> None:
    own = getattr(module, _READER)
    setattr(module, _READER, lambda envname=None: os.environ.get(URL) or own(envname))
    setattr(module, _DONE, True)


def _next() -> None:
    """The sitecustomize that this file stands in front of, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (before site is complete)
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(ModuleType("sitecustomize"))


if __name__ == "sitecustomize" and os.environ.get(URL):
    install()
    _next()
