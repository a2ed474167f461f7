"""A campaign's answer as plain data: each number with what is to be known of it."""

from __future__ import annotations

import hpcagent as ha
from hpcagent.campaign.answer import answer
from hpcagent.model.records import Result
from hpcagent.workspace.answers import answer_data

METRICS = {
    "speed": ha.Metric(name="speed", unit="ns/day", noise=0.01, undisturbed="speed_cpu"),
    "speed_cpu": ha.Metric(name="speed_cpu", unit="ns/day", noise=0.01),
}
STEPS = ha.app(name="steps", parameters={"x": ha.Float(0.0, 10.0)}, metrics=METRICS)(
    lambda x: ha.Outcome(metrics={})
)
CAMPAIGN = ha.Campaign(STEPS, ha.maximize("speed"), until={"max_runs": 40}, policy="sobol")


def _ran(x: float, speed: float, index: int, cpu: float | None = None) -> Result:
    manifest = STEPS.manifest({"x": x}, seed=0, replicate=index, role="suggested", batch=0, index=index)
    metrics = {"speed": speed, "speed_cpu": speed if cpu is None else cpu}
    why = None if cpu is None else "CPU use 17 %"
    return Result(manifest=manifest, status="COMPLETED", metrics=metrics, distrusted=why)


def test_an_estimate_is_said_to_be_one_and_what_disturbed_the_runs_goes_along(tmp_path):
    found = answer(CAMPAIGN, [_ran(2.0, 20.0, 0), _ran(7.0, 12.0, 1, cpu=70.0)], run_dir=tmp_path)
    said = answer_data(found)
    assert said["best"]["params"] == {"x": 7.0} and said["best"]["metrics"]["speed"] > 60
    assert said["best"]["estimated"] == ["speed"]
    assert any("1 run(s) did not have their core" in one for one in said["remarks"])
    assert any("estimates from CPU time" in one for one in said["best"]["about"])
    assert all(line in str(found) for line in said["best"]["about"])


def test_of_what_was_measured_nothing_is_an_estimate(tmp_path):
    measured = [_ran(x, 10 * x, i) for i, x in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, 6.0))]
    said = answer_data(answer(CAMPAIGN, measured, run_dir=tmp_path))
    assert said["best"]["estimated"] == [] and said["remarks"] == []
    regret = said["expected_regret"]
    assert regret is not None and regret["unit"] == "ns/day"
    assert f"better by more than {regret['at_most_95']:.2g} ns/day" in regret["text"]
    assert regret["text"] in said["best"]["about"]
