"""How processes of a site begin: what they load of Parsl, and that the rest is still there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPENED = """
import sys
from hpcagent.sites.launch import UNNEEDED, defer, load_parsl
{first}
load_parsl()
from parsl.config import Config
from parsl.dataflow.dflow import DataFlowKernel
from parsl.executors.high_throughput.executor import HighThroughputExecutor
import hpcagent.sites.workers.local, hpcagent.sites.workers.batch
heavy = {{"globus_compute_sdk", "sqlalchemy", "parsl.executors.workqueue", "flux"}}
assert not heavy & set(sys.modules)
import parsl
parsl.clear()  # as the end of a kernel calls it
assert parsl.__version__ and not heavy & set(sys.modules)
from parsl import python_app
from parsl.executors import HighThroughputExecutor as again, WorkQueueExecutor
from parsl.monitoring import MonitoringHub
assert again is HighThroughputExecutor is parsl.HighThroughputExecutor and parsl.Config is Config
assert parsl.dfk.__self__ is parsl.DataFlowKernelLoader
import parsl.monitoring.db_manager as database
assert database.__file__ and database.dbm_starter.__module__ == database.__name__
print("all there")
"""


@pytest.mark.parametrize(
    "first", ["", "defer('parsl', 'parsl.executors')", "defer(*UNNEEDED)", "import parsl.version", "import parsl"]
)
def test_a_site_loads_of_parsl_what_it_needs_and_a_user_finds_the_rest(first: str) -> None:
    words = OPENED.format(first=first)
    if first.startswith("import"):  # then all of it is there before us
        words = words.replace("assert not heavy & set(sys.modules)", "")
        words = words.replace(" and not heavy & set(sys.modules)", "")
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert done.stdout == "all there\n", done.stderr


def test_a_package_that_is_put_off_is_whole_for_every_thread_that_asks(tmp_path: Path) -> None:
    (tmp_path / "put_off_here").mkdir()
    text = (
        "import time\nimport put_off_here\nearly = hasattr(put_off_here, 'answer')\ntime.sleep(0.5)\nanswer = 42\n"
    )
    (tmp_path / "put_off_here" / "__init__.py").write_text(text)
    words = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from hpcagent.sites.launch import defer\n"
        "defer('put_off_here')\n"
        "import put_off_here\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    print(list(pool.map(lambda _: put_off_here.answer, range(4))), put_off_here.early)\n"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[42, 42, 42, 42] False\n", done.stderr


BEGUN = """
import sys
import {module}
heavy = {{"globus_compute_sdk", "sqlalchemy", "parsl.dataflow.dflow", "parsl.monitoring.monitoring"}}
def main():
    print(sorted((heavy | {{"typeguard", "unittest.mock", "requests.sessions", "asyncio", "dill._dill"}}) & set(sys.modules)))
    import requests, typeguard
    print(requests.Session.__name__, typeguard.__file__ is not None, typeguard.typechecked.__module__)
"""


@pytest.mark.parametrize("module", ["hpcagent.sites.workers.interchange", "hpcagent.sites.workers.worker_pool"])
def test_a_process_of_a_site_loads_little_of_parsl_and_a_run_in_it_finds_the_rest(
    module: str, tmp_path: Path
) -> None:
    (tmp_path / "begun.py").write_text(BEGUN.format(module=module))
    words = "from hpcagent.sites.launch import begin; begin('begun')"
    done = subprocess.run([sys.executable, "-c", words], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[]\nSession True typeguard\n", done.stdout + done.stderr


CHECKED = """
import inspect, sys
from hpcagent.sites.launch import load_parsl
load_parsl()
assert "typeguard" not in sys.modules
from parsl.config import Config
from parsl.executors.threads import ThreadPoolExecutor
made = Config(executors=[ThreadPoolExecutor(label="mine", max_threads=1)])
assert "max_threads=1" in repr(made) and "executors=(" in repr(made), repr(made)
assert list(inspect.signature(Config).parameters)[0] == "executors"
for wrong in (lambda: Config(executors=3), lambda: ThreadPoolExecutor(max_threads="two")):
    try:
        wrong()
    except __import__("typeguard").TypeCheckError as error:
        print(*str(error).split())
exec("made(max_threads='two')", {"__name__": "hpcagent.mine", "made": ThreadPoolExecutor})
"""


MEANWHILE = """
import _thread, inspect, sys, threading
import hpcagent.sites.launch as launch
with launch.checked_later():
    import typeguard
    @typeguard.typechecked
    def numbers(n: int):
        yield n
    import typeguard._checkers
    from parsl.utils import get_last_checkpoint
assert inspect.isgeneratorfunction(numbers) and sys.modules["typeguard"].__file__
_thread.start_new_thread(get_last_checkpoint, ())  # called by nobody
several = [threading.Thread(target=launch.load_parsl) for _ in range(4)]
[one.start() for one in several], [one.join() for one in several]
import requests
print(requests.Session.__name__, getattr(sys.modules.get(launch._DATABASE[0]), "__file__", "") is None)
"""


def test_other_threads_that_import_meanwhile_find_what_there_is(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MEANWHILE)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("Session False\n", "")


def test_what_a_user_gives_to_parsl_is_checked_and_what_hpcagent_gives_costs_no_check() -> None:
    done = subprocess.run([sys.executable, "-c", CHECKED], capture_output=True, text=True)
    first, second = done.stdout.splitlines()
    assert "executors" in first and "int" in first
    assert "max_threads" in second and "int" in second
    assert done.returncode == 0, done.stderr


def test_two_threads_that_wait_for_each_others_packages_do_not_hang(tmp_path: Path) -> None:
    """One imports a module that asks for the package; the other asks for the package, which imports the module."""
    package = tmp_path / "asks_each_other"
    package.mkdir()
    (package / "__init__.py").write_text("import time\ntime.sleep(0.5)\nfrom asks_each_other.inner import found\n")
    (package / "inner.py").write_text(
        "import time, asks_each_other\ntime.sleep(1.0)\nasked = hasattr(asks_each_other, 'found')\nfound = 42\n"
    )
    words = (
        "import importlib, threading, time\n"
        "from hpcagent.sites.launch import defer\n"
        "defer('asks_each_other')\n"
        "import asks_each_other\n"
        "one = threading.Thread(target=importlib.import_module, args=['asks_each_other.inner'])\n"
        "one.start(); time.sleep(0.2)\n"
        "two = threading.Thread(target=lambda: asks_each_other.found)\n"
        "two.start(); one.join(); two.join()\n"
        "print(asks_each_other.found)\n"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout == "42\n", done.stderr


LIGHT = """
import inspect, pickle, sys
from hpcagent.later import HEAVY, defer_when_imported
defer_when_imported(*HEAVY)
assert "ase" not in sys.modules
import ase.io
from ase.md.langevin import Langevin
assert not {"scipy", "ase.optimize.bfgs"} & set(sys.modules)
import ase.dft
from ase.optimize import BFGS, QuasiNewton
from ase.dft import DOS, monkhorst_pack
from ase.spacegroup import crystal
assert ase.dft.DOS is DOS and ase.dft is sys.modules["ase.dft"] and ase.optimize.BFGS is BFGS
assert pickle.loads(pickle.dumps(BFGS)) is BFGS and callable(crystal) and "DOS" in inspect.getsource(ase.dft)
from ase.md import *
print(VelocityVerlet.__name__, len(monkhorst_pack((2, 1, 1))))
"""


def test_ase_without_scipy_is_whole_for_whoever_asks() -> None:
    pytest.importorskip("ase")
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("VelocityVerlet 2\n", "")
