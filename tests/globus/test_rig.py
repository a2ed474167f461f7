"""The rig itself, with the SDK and with Parsl's stock executor: what is said of hpcagent on it stands on this."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

PROLOGUE = """
import os, uuid
from globus_compute_sdk import Client, Executor

def executor(**options):
    options = {"task_group_id": uuid.uuid4(), "api_burst_limit": 8, "api_burst_window_s": 1, **options}
    return Executor(endpoint_id=os.environ["RIG_ENDPOINT"], client=Client(), **options)
"""


def script(rig: Any, where: Path, text: str, **env: str) -> list[str]:
    """Run a user's script as a client of the rig; its lines."""
    file = where / "mine.py"
    file.write_text(PROLOGUE + textwrap.dedent(text))
    command = ["env", f"RIG_ENDPOINT={rig.endpoint.id}", *(f"{k}={v}" for k, v in env.items()), sys.executable]
    return str(rig.run([*command, str(file)], cwd=where).stdout).splitlines()


def test_the_sdk_runs_functions_and_says_what_failed(rig: Any, tmp_path: Path) -> None:
    lines = script(
        rig,
        tmp_path,
        """
        def add(a, b): return a + b
        def broken(): raise ValueError("no such crystal")
        with executor() as there:
            print(there.submit(add, 1, 2).result(120))
            print(type(there.submit(broken).exception(60)).__name__)
            print(sum(f.result(60) for f in [there.submit(add, 1, n) for n in range(200)]))
            there.user_endpoint_config = {"workers": "many"}
            print(there.submit(add, 1, 2).exception(60))
        """,
    )
    assert lines[:3] == ["3", "TaskExecutionFailed", "20100"]
    assert any("'many' is not of type 'integer'" in line for line in lines[3:])
    assert rig.service.counts.submitted == rig.service.counts.results == 203


def test_the_services_errors_and_limits_are_the_real_ones(rig: Any, tmp_path: Path) -> None:
    with rig.service.fail(503, times=1) as down:
        lines = script(
            rig,
            tmp_path,
            """
            def length(text): return len(text)
            with executor() as there:
                print(there.submit(length, "abc").result(120))       # the SDK tries again by itself
                print(there.submit(length, "x" * 8_000_000).exception(60).http_status)
                try:
                    there.submit(length, "abc")
                except RuntimeError as error:
                    print("is shutdown" in str(error))                # why hpcagent makes a new one
            """,
        )
    assert lines == ["3", "413", "True"]
    assert down.seen == 1


def test_a_users_own_parsl_apps_run_through_parsls_executor(rig: Any, tmp_path: Path) -> None:
    lines = script(
        rig,
        tmp_path,
        """
        import parsl
        from parsl import python_app, bash_app
        from parsl.executors import GlobusComputeExecutor

        @python_app(executors=["there"])
        def square(x): return x * x

        @python_app(executors=["there"])
        def broken(): raise ValueError("no such crystal")

        @bash_app(executors=["there"])
        def touch(name): return f"echo hello > {name}"

        config = parsl.Config(executors=[GlobusComputeExecutor(executor=executor(), label="there")])
        with parsl.load(config):
            print(square(square(3)).result(120))
            print(repr(broken().exception()))
            print(touch(os.environ["MADE"]).result())
        """,
        MADE=str(rig.endpoint.home / "made.txt"),
    )
    assert lines == ["81", "ValueError('no such crystal')", "0"]
    assert (rig.endpoint.home / "made.txt").read_text() == "hello\n"


def test_a_restarted_broker_and_a_killed_endpoint_take_tasks_again(rig: Any, tmp_path: Path) -> None:
    text = """
    def add(a, b): return a + b
    with executor() as there:
        print(there.submit(add, 1, 2).result(120))
    """
    assert script(rig, tmp_path, text) == ["3"]
    rig.broker.stop()
    rig.broker.start()
    # It gives itself a title once it has begun.
    names = ("_start-user-endpoint", "launch_endpoint", "Globus Compute Endpoint")
    assert any(name in words for words in rig.endpoint.kill() for name in names)
    assert not rig.endpoint.online and not rig.endpoint.processes()
    rig.endpoint.start(wake=False)
    assert script(rig, tmp_path, text) == ["3"]
