"""A real endpoint with the packaged template, as a user sets it up: the doctor, and a campaign with errands apart."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcagent.sites.endpoint_templates import TEMPLATE_FILES, templates

COMMAND = [sys.executable, "-m", "hpcagent.cli"]


def test_the_doctor_finds_the_template_for_one_machine_to_work_and_a_campaign_runs(
    rig: Any, tmp_path: Path
) -> None:
    if not (Path(sys.prefix) / "bin/activate").is_file():
        pytest.skip("not in a virtual environment, which the template's workers activate")
    template, schema = ((templates()["machine"] / name).read_text() for name in TEMPLATE_FILES)
    endpoint = rig.new_endpoint("packaged", template=template, schema=json.loads(schema))
    profile = rig.profile(
        endpoint,
        runs_at_once=2,
        user_endpoint_config={"venv": sys.prefix, "workers_per_node": 2},
        control={"user_endpoint_config": {"role": "control"}},
    )
    done = rig.run([*COMMAND, "doctor", "--site", str(profile), "--json"], cwd=tmp_path, timeout_s=600)
    checks = {line["what"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert not [check for check in checks.values() if check["status"] == "FAIL"], done.stdout
    assert checks["errands"]["status"] == checks["executor workers"]["status"] == "ok", done.stdout
    assert not list(Path(endpoint.work_dir).glob("doctor-*"))
    ran = rig.run(
        [*COMMAND, "run", "synthetic", "--site", str(profile), "--no-plots", "--set", "until.max_runs=4"],
        cwd=tmp_path,
    )
    assert "4 runs, 4 completed" in ran.stdout + ran.stderr
    # What the schema refuses is said by the doctor, with what to do.
    wrong = rig.profile(endpoint, runs_at_once=1, user_endpoint_config={"worker_init": "module load lammps"})
    refused = rig.run([*COMMAND, "doctor", "--site", str(wrong), "--json"], cwd=tmp_path, check=False)
    told = [json.loads(line) for line in refused.stdout.splitlines()]
    (failed,) = [line for line in told if line["status"] == "FAIL" and line["what"] == "round trip"]
    assert refused.returncode == 1
    assert "user_endpoint_config" in failed["found"] and "[user_endpoint_config]" in failed["todo"]
    assert len(told) == 7, "no probe is sent where an errand was refused: it would wait"
