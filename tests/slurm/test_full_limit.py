"""A limit of submitted jobs that is full, by a real slurmdbd: the campaign waits until there is room."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcagent.sites.ledger import read_ledger
from tests.warm import Command

pytestmark = pytest.mark.slow

CAMPAIGN = """
app = "synthetic"
[space]
x = {}
y = {}
[objective]
maximize = "value"
[until]
max_runs = 4
[policy]
name = "sobol"
"""
SITE = """
kind = "slurm"
submit_retries = 1
address = "127.0.0.1"
poll_s = 0.5
margin_s = 10
[block]
walltime = "00:05:00"
cores_per_node = 1
exclusive = false
[executors.workers]
"""
OLD_PATIENCE_S = 3.0  # of one try more, which is all that submit_retries = 1 allows where words are unclear
"""After so long a campaign used to be given up."""


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A cluster on which this user may have one job, and has it."""
    conftest = sys.modules["tests_slurm_cluster"]
    if missing := conftest.missing_packages(accounting=True):
        pytest.skip(f"no Slurm with accounting to test with: {missing}")
    with conftest.Cluster(nodes=1, accounting=True, submit_limit=1) as cluster:
        for name, value in cluster.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        Path("my.toml").write_text(CAMPAIGN)
        Path("here.toml").write_text(SITE)
        cluster.run("sbatch --parsable -J other -o /dev/null --hold --wrap true")
        yield cluster
        cluster.cancel_all()


def test_a_campaign_waits_for_room_longer_than_it_used_to_and_then_runs(full: Any) -> None:
    words = [
        "run",
        "my.toml",
        "--site",
        "here.toml",
        "--run-dir",
        "r",
        "--no-plots",
    ]
    with Path("out").open("wb") as out:
        process = Command(words, stdout=out, stderr=out)
    deadline = time.monotonic() + 60
    while not Path("r/jobs.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(OLD_PATIENCE_S + 5)
    assert process.poll() is None, Path("out").read_text()
    full.run("scancel -n other")
    assert process.wait(timeout=150) == 0, Path("out").read_text()
    entries = read_ledger(Path("r/jobs.jsonl"))
    assert {e.ended for e in entries} <= {"refused", "cancelled", "completed"} and entries[-1].job_id
    assert all("AssocMaxSubmitJobLimit" in e.reason for e in entries if e.ended == "refused")
    assert len([e for e in entries if e.ended == "refused"]) in (3, 4, 5, 6)
    stops = [json.loads(line) for line in Path("r/events.jsonl").read_text().splitlines()]
    assert stops[-1]["reason"] == "All 4 runs have ended."
