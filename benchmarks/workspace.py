"""What a workspace costs: the gate for each run, a request's way to the service and back, a workspace of many runs.

python benchmarks/workspace.py [--runs 10000]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hpcagent as ha
from hpcagent.gate.accounts import Accounts
from hpcagent.gate.approvals import Approvals
from hpcagent.gate.gate import Gate
from hpcagent.gate.request import Request
from hpcagent.gate.rules import Caller, Rules
from hpcagent.store.journal import Journal
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder


def each_ms(work: Callable[[int], Any], times: int) -> tuple[float, float]:
    """Median and 95th percentile of a call, in ms."""
    took = []
    for i in range(times):
        began = time.perf_counter()
        work(i)
        took.append(1e3 * (time.perf_counter() - began))
    return statistics.median(took), sorted(took)[int(0.95 * len(took))]


def said(what: str, found: tuple[float, float]) -> None:
    print(f"{what:58s} {found[0]:8.3f} ms   95 %: {found[1]:8.3f} ms", flush=True)


def gate_alone(folder: Path) -> None:
    """Every check, with rules that look at each request, and the journal's line."""
    rules = Rules.model_validate(
        {
            "people": {"ada": {"role": "planner", "quota": {"node_hours": 1e9, "per_minute": 10**9}}},
            "quota": {"node_hours": 1e9, "runs_at_once": 10**9},
            "approval": [{"nodes_times_hours": 10.0}, {"app": "lj_*"}, {"effects": ["reads the network"]}],
        }
    )
    journal = Journal.open(folder / "journal.jsonl")
    accounts = Accounts()
    approvals = Approvals(lambda event: journal.append([event]), clock=time.time, expires_s=60.0)
    gate = Gate(
        rules, approvals, accounts, clock=time.time, record=lambda event: journal.append([event]), tiers=dict
    )
    ada = Caller(name="ada", role="planner")

    def admit(i: int) -> None:
        asked = Request(app="synthetic", version="1.0.0", work=f"w{i}", site="laptop", node_hours=0.1)
        gate.admit(asked, ada)
        journal.append([{"event": "asked", "id": f"r-{i}", "request": asked.model_dump(mode="json")}])
        accounts.commit("ada", f"r-{i}", 0.1, 0.0, time.time())

    said("gate: checks, digest, journal, account", each_ms(admit, 5000))
    journal.close()


def service(folder: Path) -> None:
    """A client and the service, each a process."""
    with ha.Workspace(folder / "ws", create=True) as there:
        began = time.perf_counter()
        there.about()
        print(f"{'first answer of a service that is started for it':58s} {time.perf_counter() - began:8.3f} s")
        there.wait(there.run("synthetic", {"x": 0.3}, site="threads")["id"])
        run = there.run("synthetic", {"x": 0.3}, site="threads")["id"]
        said("round trip: status", each_ms(lambda i: there.status(run, lines=0), 2000))
        said("round trip: about", each_ms(lambda i: there.about(), 2000))
        asked = each_ms(lambda i: there.run("synthetic", {"x": 0.1 + i / 2000}, site="threads"), 1000)
        said("round trip: a new run, while others run and end", asked)
        for i in range(6):  # the site is busy, and what is asked for waits
            there.run("synthetic", {"x": 0.7 + i / 100, "run_time_s": 20.0}, site="threads")
        time.sleep(5.0)
        asked = each_ms(lambda i: there.run("synthetic", {"x": 0.8 + i / 5000}, site="threads"), 500)
        said("round trip: a new run that waits for the site", asked)
        there.end(runs=True)


def many(folder: Path, runs: int) -> None:
    """A workspace of many runs that have ended."""
    Folder(folder / "many").create()
    core = Core(folder / "many")
    me = core.caller((folder / "many").stat().st_uid)
    began = time.perf_counter()
    ids = [core.run(me, "synthetic", {"x": 0.1 + i / (2 * runs)}, site="threads")["id"] for i in range(runs)]
    asked_s = time.perf_counter() - began
    for identity in ids:
        core.wait(me, identity, 600.0)
    print(f"{f'{runs} runs asked for':58s} {1e3 * asked_s / runs:8.3f} ms each")
    said(f"status of one of {runs}", each_ms(lambda i: core.status(me, ids[i % runs], lines=0), 2000))
    said(f"list of 100 of {runs}", each_ms(lambda i: core.listed(me), 200))
    said(f"list of 1000 of {runs}", each_ms(lambda i: core.listed(me, most=1000), 50))
    said(f"list of {runs} by a state that none has", each_ms(lambda i: core.listed(me, state="failed"), 50))
    core.close()
    began = time.perf_counter()
    core = Core(folder / "many")
    print(f"{f'taken up by a new service: {runs} runs':58s} {time.perf_counter() - began:8.3f} s")
    core.close()
    print(
        f"{'memory at most, of all of this':58s} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:8.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    with tempfile.TemporaryDirectory() as folder:
        gate_alone(Path(folder))
        service(Path(folder))
        many(Path(folder), parser.parse_args().runs)


if __name__ == "__main__":
    main()
