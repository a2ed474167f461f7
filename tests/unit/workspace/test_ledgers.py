"""The jobs of a site, of all that lie beside each other: by site, and by the time of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcagent.gate.rules import Caller
from hpcagent.sites.ledger import Ledger
from hpcagent.workspace.core import Core
from hpcagent.workspace.counters import counters_of
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.rows import Row

RULES = 'name = "ws"\ndefault_site = "threads"\n[sites.threads]\n[sites.threads2]\nprofile = "threads"\n'
BEGAN, ENDED = 1000.0, 2000.0


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    Folder(tmp_path / "ws").create()
    (tmp_path / "ws" / "workspace.toml").write_text(RULES)
    one = Core(tmp_path / "ws")
    yield one
    one.close()


def me(core: Core) -> Caller:
    return core.caller(os.getuid())


def job(folder: Path, job_id: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder / "jobs.jsonl")
    ledger.submitting(f"j{job_id}", "slurm", nodes=1)
    ledger.submitted(f"j{job_id}", job_id)


def test_a_job_is_of_its_own_site_only(core: Core):
    job(core.folder.of_site("threads"), "1")
    job(core.folder.of_site("threads", "abc123"), "2")  # of code that came along with a call
    job(core.folder.of_site("threads2"), "4242")
    of = {(one["site"], one["job_id"]) for one in core.jobs(me(core))}
    assert of == {("threads", "1"), ("threads", "2"), ("threads2", "4242")}
    run = core.run(me(core), "synthetic", {"x": 0.3})["id"]
    assert {one["job_id"] for one in core.counters(me(core), run)["jobs"]} == {"1", "2"}


@pytest.mark.parametrize(
    ("submitted_at", "ended_at", "shown"),
    [
        (500.0, 999.0, False),  # it had ended before
        (500.0, 1001.0, True),
        (500.0, None, True),
        (1999.0, None, True),
        (2001.0, None, False),  # it came after
    ],
)
def test_the_jobs_of_a_run_are_those_that_the_site_had_meanwhile(tmp_path, submitted_at, ended_at, shown):
    lines = [{"event": "submitting", "name": "j", "scheduler": "slurm", "at": submitted_at}]
    if ended_at is not None:
        lines.append({"event": "ended", "name": "j", "state": "completed", "ended_at": ended_at, "at": ended_at})
    ledger = tmp_path / "jobs.jsonl"
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = Row("r-1", "run", "ada", "synthetic", "hpc", "completed", BEGAN, "e1", ended_at=ENDED)
    found = counters_of(row, tmp_path, ledgers=[ledger], now=5000.0)
    assert bool(found["jobs"]) is shown
