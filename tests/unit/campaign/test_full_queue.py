"""A campaign for which the queue has no room waits for as long as it may live, and says so. Slurm is three scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.sites.ledger import read_ledger

SITE = """
kind = "slurm"
address = "127.0.0.1"
poll_s = 0.5
[block]
walltime = "01:00:00"
cores_per_node = 2
[executors.workers]
"""
FULL = (
    "sbatch: error: AssocMaxSubmitJobLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"sbatch": f'echo "{FULL}" >&2; exit 1', "squeue": "exit 0", "sacct": "exit 0"}.items():
        (folder / name).write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo slurm 22.05.8 && exit 0\n{text}\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    Path("here.toml").write_text(SITE)
    return tmp_path


def test_a_campaign_without_room_lives_as_long_as_its_wall_time(full: Path) -> None:
    campaign = ha.load_campaign("synthetic", changes={"until.max_runs": 4, "until.wall_time_s": 4.0})
    told: list[str] = []
    with pytest.raises(ha.errors.HpcAgentError, match=r"No job was taken for \d s.*until.wall_time_s=SECONDS"):
        ha.run(campaign, site="here.toml", run_dir="r", watch=lambda event: told.append(event.reason))
    entries = read_ledger(Path("r/jobs.jsonl"))
    assert 1 <= len(entries) <= 3 and {entry.ended for entry in entries} == {"refused"}  # after 0, 1 and 3 s
    assert not any("AssocMaxSubmitJobLimit" in text for text in told)  # nobody is bothered in the first minute
