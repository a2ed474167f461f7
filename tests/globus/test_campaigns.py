"""A campaign on a real endpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HPCAGENT = str(Path(sys.executable).with_name("hpcagent"))


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def results(folder: Path) -> list[dict[str, Any]]:
    return [result for event in events(folder, "results") for result in event["results"]]


def test_the_demo_campaign_and_its_files(rig: Any, tmp_path: Path) -> None:
    profile = rig.profile()
    done = rig.run(
        [
            HPCAGENT,
            "run",
            "lj_tuning",
            "--site",
            str(profile),
            "--run-dir",
            "lj",
            "--no-plots",
            "--set",
            "until.max_runs=6",
        ],
        cwd=tmp_path,
    )
    assert "6 runs, 6 completed" in done.stdout and (tmp_path / "lj" / "report" / "report.md").is_file()
    found = results(tmp_path / "lj")
    assert len({r["execution_id"] for r in found}) == len(found) == 6
    first = found[0]
    assert first["remote"]["endpoint_id"] == rig.endpoint.id
    assert "log.lammps" in first["remote"]["files"]
    rig.run([HPCAGENT, "fetch", "lj", "0", "log.lammps"], cwd=tmp_path)
    [here] = (tmp_path / "lj" / "work").glob("*/log.lammps")
    [run] = [r for r in found if r["execution_id"] == here.parent.name]
    assert here.read_bytes() == Path(run["remote"]["workdir"], "log.lammps").read_bytes()
