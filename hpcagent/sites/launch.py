"""How a process of a site is started, and what it does first.

Parsl starts `interchange.py` and `process_worker_pool.py` by bare name, which fails from an environment that
is not activated and from most Jupyter kernels; here both are modules of ours run by `sys.executable`.

A process of a site needs little of Parsl, but `import parsl` loads all of it, and its monitoring SQLAlchemy
where that is installed: 0.5 s for 0.13 s of need. `defer` puts that off until somebody asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcagent import later
from hpcagent.beside import told
from hpcagent.sites.typechecks import checked_later, put_off

__all__ = ["UNNEEDED", "begin", "defer", "detach", "load_parsl", "python_command"]

# What Parsl takes of modules that take long to load, and calls seldom. The second needs asyncio.
_DATABASE = ("parsl.monitoring.db_manager", "dbm_starter")
_AUTHENTICATOR = ("zmq.auth.thread", "ThreadAuthenticator")

UNNEEDED = ("parsl", "parsl.executors", "parsl.monitoring")
"""Packages of which an interchange and a pool of workers do not need what their `__init__` loads."""

# What Parsl's own modules take from its packages: had from where it is, the rest of the package is not loaded.
_WHERE = {
    "parsl.__version__": ("parsl.version", "VERSION"),
    "parsl.executors.HighThroughputExecutor": (
        "parsl.executors.high_throughput.executor",
        "HighThroughputExecutor",
    ),
    "parsl.executors.ThreadPoolExecutor": ("parsl.executors.threads", "ThreadPoolExecutor"),
    "parsl.clear": ("parsl.dataflow.dflow", "DataFlowKernelLoader.clear"),  # called where a kernel is closed
}

# Of Parsl, what a site needs. Its modules import each other; the first is where Parsl begins.
_NEEDED = (
    "parsl.app.app",
    "parsl.executors.high_throughput.executor",
    "parsl.executors.threads",
    "parsl.launchers",
    "parsl.providers",
)

# What Parsl imports for functions that a process of a site seldom calls: to ask the internet for this machine's
# address, to pickle what pickle cannot.
_SELDOM = ("requests", "dill")

_LOADING = threading.Lock()

# One line, because it travels through shell scripts. The paths come first, so that the process finds what
# the opener found: hpcagent in a checkout, modules beside the user's script, a notebook's folder.
# main() is imported, not run as __main__: what a user's notebook defines is unpickled into __main__ there.
_BOOT = (
    "import json, sys; paths, told = json.loads(sys.argv.pop(1)); sys.path[:0] = paths; "
    "from hpcagent.beside import as_told; as_told(told); "
    "from hpcagent.sites.launch import begin; begin('{}')"
)


def python_command(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """Return the command that runs `module` in the Python and with the import path of this process.

    Args:
        module: A module with a function `main()`, which is called.
        arguments: Its arguments.
        python: Another interpreter, e.g. one that `worker_init` puts on the PATH. It keeps its own import
            path and must have hpcagent and Parsl installed.
    """
    paths = [path or str(Path.cwd()) for path in sys.path] if python is None else []
    # -P: `import json` must not find a json.py of the folder one happens to stand in.
    words = json.dumps([paths, told()])
    return [python or sys.executable, "-P", "-c", _BOOT.format(module), words, *arguments]


def defer(*packages: str) -> None:
    """Make packages importable without running their `__init__` until it is needed; `hpcagent.later.defer`.

    Args:
        packages: Names, parents first. One that is imported already is left alone.
    """
    later.defer(*packages, where=_WHERE)


def begin(module: str) -> None:
    """Run `main()` of a module, in a process that is there for it."""
    defer(*UNNEEDED)
    later.defer_when_imported(*later.HEAVY)
    with contextlib.ExitStack() as put:
        put.enter_context(checked_later())
        put.enter_context(called_later(*_AUTHENTICATOR))
        for name in _SELDOM:
            put.enter_context(put_off(name))
        made = importlib.import_module(module)
    made.main()


def load_parsl() -> None:
    """Import what a site needs of Parsl; the rest comes when somebody asks for it.

    Other executors load the SDK of Globus Compute, and the database of Parsl's monitoring SQLAlchemy, which takes
    longer than all else.
    """
    with _LOADING:
        if all(name in sys.modules for name in _NEEDED):
            return
        defer("parsl", "parsl.executors")  # in a process of a site they are
        with checked_later(), called_later(*_DATABASE), called_later(*_AUTHENTICATOR):
            for name in _NEEDED:
                importlib.import_module(name)


@contextlib.contextmanager
def called_later(module: str, name: str) -> Iterator[None]:
    """Within, `from module import name` gives a function that imports the module when it is called."""
    stand_in = ModuleType(module)
    setattr(stand_in, name, functools.partial(_call, module, name))
    found = sys.modules.setdefault(module, stand_in)
    try:
        yield
    finally:
        if found is stand_in:
            sys.modules.pop(module, None)


def _call(module: str, name: str, *arguments: Any, **options: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*arguments, **options)


def detach(log: str | None) -> None:
    """Leave the opener's session, so that Ctrl-C at its terminal does not end this process.

    Args:
        log: File that takes what is printed from here on; None leaves the streams alone.
    """
    if os.getpid() != os.getsid(0):
        os.setsid()
    if log is not None:
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        os.close(stream)
