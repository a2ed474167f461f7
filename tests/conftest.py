"""Markers by folder, slow tests last, one line for what is not installed, and the tests' part of several processes.

What breaks often breaks early: slow tests run last. In `tests/slurm`, `tests/pbs` and `tests/globus` all are slow, because
they start daemons, and have the marker of their folder.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcagent import beside
from hpcagent.apps import as_found
from tests.sharing import register, together
from tests.timing import LIST, Times, function_of
from tests.warm import Warm

HERE = Path(__file__).resolve().parent

WARM = Warm()  # before anybody takes the name that it stands for

# Folders whose tests need a cluster.
CLUSTERS = ("slurm", "pbs", "globus")

# Fixtures that need something, and its marker.
FIXTURES = {
    "cluster": "slurm",
    "accounting_cluster": "slurm",
    "lammps": "lammps",
    "killed_log": "lammps",
    "quad": "compiler",
    "node": "node",
    "gpaw": "dft",
    "pwx": "dft",
}

# Words of a `skipif` that say what is not there, and the marker of what needs it.
REASONS = {
    re.compile(r"lammps", re.I): "lammps",
    re.compile(r"mpich|open mpi|mpi4py|mpiexec", re.I): "mpi",
    re.compile(r"pw\.x|mace", re.I): "dft",
    re.compile(r"gcc|compiler", re.I): "compiler",
}

# Packages of an `importorskip`, in the test or at the top of its module.
PACKAGES = {"lammps": "lammps", "mpi4py": "mpi", "pyscf": "dft", "tblite": "dft", "gpaw": "dft", "torch": "dft"}
AT_THE_TOP = re.compile(r"^(?:\w+ = )?pytest\.importorskip\(\"(\w+)", re.MULTILINE)

# Reasons of a skip that say that something is not installed; CI has everything but what is very large.
MISSING = re.compile(
    r"not installed|could not import|to test with|pip install|apt-get|apt\.txt|pw\.x|pseudopotentials|mpirun|mpi4py|Open MPI|h5py"
    r"|LAMMPS|lammps|needs ase"
)
NOT_IN_CI = re.compile(r"PyTorch|mace-torch|magnumnp|matminer|dscribe")


def pytest_configure(config: pytest.Config) -> None:
    # Started in the background by a script, this process and its children would ignore Ctrl-C, which is tested.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Skipped(ci=os.environ.get("CI") == "true"))
    register(config)
    times = os.environ.pop("HPCAGENT_TESTS_TIMES", "")
    if times:
        config.pluginmanager.register(Times(Path(times), WARM.took_s))


def pytest_sessionstart() -> None:
    gc.disable()  # a quarter of the time in which fifteen thousand tests are collected is the search for garbage among them


def pytest_collection_finish() -> None:
    gc.freeze()  # they stay: no later search looks at them
    gc.enable()


def pytest_unconfigure() -> None:
    WARM.end()


@pytest.fixture(scope="session")
def the_trees() -> None:
    """For tests that look through `tests.trees`: they run in one process, which parses the package once."""


@functools.cache
def at_the_top(module: Path) -> frozenset[str]:
    """Packages without which none of a module's tests run."""
    return frozenset(AT_THE_TOP.findall(module.read_text()))


def needs(item: pytest.Item) -> set[str]:
    """Markers of what a test's fixtures, `skipif`s and `importorskip`s say that it needs."""
    found = {FIXTURES[one] for one in getattr(item, "fixturenames", ()) if one in FIXTURES}
    said = [str(mark.kwargs.get("reason", "")) for mark in item.iter_markers("skipif")]
    found |= {marker for words, marker in REASONS.items() if any(words.search(one) for one in said)}
    code = getattr(getattr(item, "function", None), "__code__", None)
    packages = set(at_the_top(item.path))
    if code is not None and "importorskip" in code.co_names:
        packages |= {str(constant).partition(".")[0] for constant in code.co_consts}
    return found | {PACKAGES[name] for name in packages & set(PACKAGES)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    takes_long = frozenset(LIST.read_text().splitlines())
    for item in items:
        folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
        if folder in CLUSTERS:
            item.add_marker(folder)
            item.add_marker("slow")
        for name in needs(item):
            item.add_marker(name)
        if function_of(item.nodeid) in takes_long:
            item.add_marker("long")
    items.sort(key=order(items))


def order(items: list[pytest.Item]) -> Callable[[pytest.Item], tuple[bool, bool, int]]:
    """Slow tests last, of them those that take long first: so that at the end no process waits for another's.

    Tests that share a fixture stay together, else it would be made twice.
    """
    slow = {together(item) for item in items if item.get_closest_marker("slow")}
    long = {together(item) for item in items if item.get_closest_marker("long")}
    first = {together(item): -number for number, item in enumerate(reversed(items))}

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        group = together(item)
        return group in slow, group in slow and group not in long, first[group]

    return place


class Skipped:
    """What is skipped because something is not installed: one line at the end, or in CI a failure."""

    def __init__(self, *, ci: bool) -> None:
        self.ci = ci
        self.reasons: Counter[str] = Counter()

    def looked_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Count such a skip, or make it a failure."""
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = why.removeprefix("Skipped: ").splitlines()[0]
        if self.ci and MISSING.search(reason) and not NOT_IN_CI.search(reason):
            report.outcome = "failed"
            report.longrepr = (
                f"{report.nodeid} is skipped, but CI has all of tests/apt.txt and of the extra test: {reason}"
            )
        elif MISSING.search(reason):
            self.reasons[reason] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        self.looked_at(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        report = yield
        self.looked_at(report)
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.reasons:
            told = "; ".join(f"{reason} ({number})" for reason, number in self.reasons.most_common())
            terminalreporter.write_line(f"skipped, not installed: {told}")


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    """What runs of one test have left in this process is nothing that those of the next are told of.

    ASE takes a process in which mpi4py was imported for a rank, also where no MPI was started.
    """
    if "mpi4py.MPI" not in sys.modules:
        sys.modules.pop("mpi4py", None)
    yield
    known = as_found._Process
    if known.begun is not None:
        known.begun.let_go()
    known.begun, known.left, known.ours = None, (), False


@pytest.fixture(autouse=True)
def _path() -> Iterator[None]:
    """The shell's commands put the working directory last, here and for workers: another `tests` would go before ours."""
    folder, lists = beside._Folder, (sys.path, sys.path_hooks, sys.meta_path)
    before = [one.copy() for one in lists]
    state = folder.path, folder.guarded, folder.problem
    yield
    for one, was in zip(lists, before, strict=True):
        one[:] = was
    folder.path, folder.guarded, folder.problem = state
