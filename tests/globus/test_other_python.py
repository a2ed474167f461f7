"""A worker of another version of Python than the client: what travels is source and JSON. Run by `make pythons`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

PYTHON = "HPCAGENT_TEST_WORKER_PYTHON"
pytestmark = [
    pytest.mark.globus,
    pytest.mark.skipif(
        PYTHON not in os.environ, reason="run by `make pythons`, with another Python that it has found"
    ),
]

SCRIPT = """
import json, sys
from dataclasses import dataclass
import numpy as np
import hpcagent as ha

WEIGHTS = np.array([0.5, 0.25, 0.125])

@dataclass
class Term:
    power: int
    def of(self, x): return x ** self.power

def helper(x):
    return float(WEIGHTS @ [Term(n).of(x) for n in (1, 2, 3)])

@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1", "minor": "1"})
def polynomial(x):
    import sys
    return {"y": helper(x), "minor": sys.version_info.minor}

if __name__ == "__main__":
    told = {}
    for name, site in (("here", "threads"), ("there", sys.argv[1])):
        campaign = ha.Campaign(polynomial, ha.maximize("y"), policy="sobol", until=ha.until.max_runs(6), batch_size=3)
        result = ha.run(campaign, site=site, run_dir=name, progress=False)
        told[name] = [[r.manifest.execution_id, r.ok, r.metrics, str(r.failure)] for r in result.results]
    print(json.dumps(told))
"""


def test_a_campaign_of_a_script_gives_the_same_runs_and_numbers_there(rig: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    python = Path(os.environ[PYTHON])
    endpoint = rig.new_endpoint("other", python=python)
    done = rig.run([sys.executable, "mine.py", str(rig.profile(endpoint))], cwd=tmp_path, timeout_s=600)
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told["there"]) == 6 and all(ok for _, ok, _, _ in told["there"]), told["there"]
    assert {m["minor"] for _, _, m, _ in told["there"]} != {sys.version_info.minor}
    here = {identity: m["y"] for identity, _, m, _ in told["here"]}
    assert {identity: m["y"] for identity, _, m, _ in told["there"]} == here
