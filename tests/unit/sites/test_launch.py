"""How processes of a site begin: what they load of Parsl, and that the rest is still there."""

from __future__ import annotations

import subprocess
import sys

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
heavy = {{"globus_compute_sdk", "sqlalchemy", "parsl.executors.workqueue", "flux"}} & set(sys.modules)
assert not heavy, heavy
import parsl
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
        words = words.replace("assert not heavy, heavy", "")
        words = words.replace(" and not heavy & set(sys.modules)", "")
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert done.stdout == "all there\n", done.stderr


PROCESS = """
import sys
from hpcagent.sites.launch import UNNEEDED, defer
defer(*UNNEEDED)
import {module}
print(sorted({{"globus_compute_sdk", "sqlalchemy", "parsl.dataflow.dflow", "parsl.monitoring.monitoring"}} & set(sys.modules)))
"""


@pytest.mark.parametrize("module", ["hpcagent.sites.workers.interchange", "hpcagent.sites.workers.worker_pool"])
def test_a_process_of_a_site_loads_neither_the_kernel_nor_the_monitoring_of_parsl(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS.format(module=module)], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr
