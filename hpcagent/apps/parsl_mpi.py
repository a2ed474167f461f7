"""Where Parsl's MPI mode has put a task, as its worker's environment says: the MPI engine of an endpoint is one.

The engine gives a task whole nodes (`PARSL_MPI_NODELIST`) and writes down a launcher's words (`PARSL_MPI_PREFIX`).
Of the prefix only the program counts here: its numbers are those that the task was sent with, `-ppn 3.0` where
nobody had said how many ranks a node gets. The run knows its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

__all__ = ["launcher_words", "nodes"]

_NODES, _PREFIX, _OPTIONS = "PARSL_MPI_NODELIST", "PARSL_MPI_PREFIX", "PARSL_LAUNCHER_OPTIONS"

_WORDS = {
    # Whole nodes, so there is no mask to say; --overlap: the workers are a step of the same job.
    "srun": (
        "srun", "--overlap", "--nodes={nodes}", "--nodelist={hosts}", "--ntasks={ranks}",
        "--ntasks-per-node={ranks_per_node}", "--cpus-per-task={threads}", "--mem=0", "--kill-on-bad-exit=1",
    ),
    "aprun": ("aprun", "-n", "{ranks}", "-N", "{ranks_per_node}", "-d", "{threads}", "-node-list", "{hosts}"),
    "mpiexec": ("mpiexec", "-n", "{ranks}", "-ppn", "{ranks_per_node}", "-hosts", "{hosts}"),
}  # fmt: skip


def nodes(environ: Mapping[str, str], own: str) -> tuple[tuple[str, ...], str] | None:
    """The nodes of the task and the name that the worker's own has among them; None outside of Parsl's MPI mode.

    Args:
        environ: Of the worker.
        own: Name of the worker's node; nodelists have the short one, or the long one.

    Example:
        >>> nodes({"PARSL_MPI_NODELIST": "n1,n2"}, own="n2.cluster.org")
        (('n1', 'n2'), 'n2')
    """
    names = tuple(name.strip() for name in environ.get(_NODES, "").split(",") if name.strip())
    if not names:
        return None
    short = own.partition(".")[0]
    mine = (name for name in names if name.partition(".")[0] == short or name == "localhost")
    return names, next(mine, own)


def launcher_words(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The launcher that the engine was set up with, as a template of words; see `launch.FIELDS`.

    Example:
        >>> launcher_words({"PARSL_MPI_PREFIX": "aprun -n 4 -N 2.0 -node-list n1,n2"})[:3]
        ('aprun', '-n', '{ranks}')
    """
    prefix = environ.get(_PREFIX, "").split()
    kind = Path(prefix[0]).name if prefix else "mpiexec"
    options = shlex.split(environ.get(_OPTIONS, ""))
    return (
        *_WORDS.get(kind, _WORDS["mpiexec"]),
        *(word.replace("{", "{{").replace("}", "}}") for word in options),
    )
