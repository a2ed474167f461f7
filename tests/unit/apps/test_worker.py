"""One order on a worker: finished work is not repeated, failures are data, nothing is lost."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import threading
import time

import pytest

from hpcagent.apps import run_folder, worker
from hpcagent.apps.decorator import app
from hpcagent.apps.landscape import synthetic
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.contract import Metric, Resources
from hpcagent.model.parameter import Float
from hpcagent.model.records import Result

CALLS: list[float] = []


@app(parameters={"x": Float(-2, 2)}, metrics={"y": "eV"})
def parabola(x):
    CALLS.append(x)
    return {"y": x**2}


def execute(made, params, folder, *upstream, **options):
    manifest = made.manifest(params, **options)
    order = made.order(manifest, work=folder, site={"node_cores": 2})
    return Result.model_validate({"manifest": manifest, **worker.execute(order, *upstream)})


def failing(error):
    @app(parameters={"x": Float(0, 1)}, metrics={"y": "1"}, name="failing")
    def function(x):
        raise error

    return function


def returning(value, **metric):
    @app(parameters={"x": Float(0, 1)}, metrics={"y": Metric(name="y", unit="1", **metric)}, name="returning")
    def function(x):
        return value

    return function


def test_a_run_leaves_manifest_and_result_in_its_own_directory(tmp_path):
    result = execute(parabola, {"x": 1.5}, tmp_path)
    assert result.metrics == {"y": 2.25} and result.units == {"y": "eV"} and result.ok
    folder = tmp_path / result.manifest.execution_id
    assert json.loads((folder / "manifest.json").read_text())["params"] == {"x": 1.5}
    assert json.loads((folder / "result.json").read_text())["metrics"] == {"y": 2.25}
    assert not list(folder.glob("*.part"))


def test_finished_work_is_not_run_twice_and_a_replicate_is(tmp_path):
    CALLS.clear()
    first = execute(parabola, {"x": 0.5}, tmp_path)
    assert execute(parabola, {"x": 0.5}, tmp_path).started_at == first.started_at
    execute(parabola, {"x": 0.5}, tmp_path, replicate=1)
    assert CALLS == [0.5, 0.5]


def test_a_result_of_other_resources_is_used_again_without_its_speeds(tmp_path):
    def made(ranks):
        speed = Metric(name="speed", unit="ns/day", undisturbed="cpu_speed")
        metrics = {"y": "eV", "speed": speed, "cpu_speed": "ns/day", "took": "s"}
        resources = Resources(ranks_per_node=ranks)

        @app(parameters={"x": Float(0, 1)}, metrics=metrics, name="timed", resources=resources)
        def function(x):
            CALLS.append(x)
            return Outcome(
                {"y": x, "speed": 2.0, "cpu_speed": 2.5, "took": 1.0}, uncertainty={"y": 0.1, "speed": 0.1}
            )

        return function

    before = len(CALLS)
    one, two, again = (execute(made(n), {"x": 0.5}, tmp_path, role="direct") for n in (1, 2, 1))
    assert len(CALLS) == before + 1 and one == again.model_copy(update={"manifest": one.manifest})
    assert (two.metrics, two.uncertainty) == ({"y": 0.5}, {"y": 0.1})
    assert "computed with ranks_per_node = 1 (asked for: 2); so it has no cpu_speed, speed, took" in two.notes[-1]
    with pytest.raises(KeyError, match="asked for: 2"):
        two["speed"]


def test_a_simulation_failure_is_final_and_an_infrastructure_failure_is_not(tmp_path):
    for kind, again in (("simulation", False), ("infrastructure", True)):
        made = failing(AppFailed("it broke.", kind=kind, name="Broke", repair="mend it"))
        first = execute(made, {"x": 0.1 if again else 0.2}, tmp_path)
        second = execute(made, {"x": 0.1 if again else 0.2}, tmp_path)
        assert first.failure.kind == kind and first.failure.repair == "mend it"
        assert (second.started_at != first.started_at) is again


def test_what_an_interrupted_attempt_left_is_set_aside(tmp_path):
    made = parabola.manifest({"x": 1.0})
    folder = tmp_path / made.execution_id
    folder.mkdir()
    (folder / "log.lammps").write_text("half a log")
    (folder / "result.json.part").write_text("{")
    assert execute(parabola, {"x": 1.0}, tmp_path).ok
    assert (folder / "attempt-1" / "log.lammps").read_text() == "half a log"


def test_a_result_that_is_half_written_is_run_again(tmp_path):
    folder = tmp_path / parabola.manifest({"x": 1.0}).execution_id
    folder.mkdir()
    (folder / "result.json").write_text('{"status": "COMPL')
    assert execute(parabola, {"x": 1.0}, tmp_path).metrics == {"y": 1.0}


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "infrastructure", "DiskFull"),
        (OSError(errno.EROFS, "Read-only file system"), "infrastructure", "ReadOnly"),
        (MemoryError(), "infrastructure", "OutOfMemory"),
        (ZeroDivisionError("division by zero"), "contract", "ZeroDivisionError"),
        (SystemExit(3), "contract", "SystemExit"),
    ],
)
def test_an_exception_in_the_function_becomes_a_typed_failure(tmp_path, error, kind, name):
    failure = execute(failing(error), {"x": 0.5}, tmp_path).failure
    assert (failure.kind, failure.name) == (kind, name)
    assert name == "OutOfMemory" or "Traceback" in failure.log_tail


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({}, "MissingMetric"),
        ({"y": None}, "MissingMetric"),
        ({"y": math.nan}, "NotFinite"),
        ({"y": math.inf}, "NotFinite"),
        (3.0, "BadReturn"),
    ],
)
def test_a_metric_that_is_missing_or_not_finite_is_a_failure_and_never_zero(tmp_path, value, name):
    result = execute(returning(value), {"x": 0.5}, tmp_path)
    assert result.failure.name == name and "y" not in result.metrics


@pytest.mark.parametrize("value", [object(), 1j, "3.0", [1.0, 2.0], 10**400])
def test_a_metric_that_is_no_number_is_the_functions_failure_and_is_named(tmp_path, value):
    for returned in ({"y": value}, Outcome(metrics={"y": 1.0}, uncertainty={"y": value})):
        failure = execute(returning(returned), {"x": 0.5}, tmp_path).failure
        assert (failure.kind, failure.name) == ("contract", "BadReturn")
        assert "metric 'y' is " in failure.message and type(value).__name__ in failure.message


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_an_uncertainty_that_is_none_is_left_out_and_said(tmp_path, wrong):
    result = execute(returning(Outcome(metrics={"y": 2.0}, uncertainty={"y": wrong})), {"x": 0.5}, tmp_path)
    assert result.ok and result.metrics == {"y": 2.0} and result.uncertainty == {}
    assert f"the uncertainty of 'y' is {wrong} and left out" in result.notes[0]


def test_a_metric_that_is_not_required_may_be_missing(tmp_path):
    result = execute(returning({"y": math.nan}, required=False), {"x": 0.5}, tmp_path)
    assert result.ok and result.metrics == {}


def test_a_directory_that_cannot_be_made_is_an_infrastructure_failure(tmp_path):
    (tmp_path / "work").write_text("a file in the way")
    failure = execute(parabola, {"x": 0.3}, tmp_path / "work").failure
    assert failure.kind == "infrastructure" and "work" in failure.message


def test_two_workers_on_one_directory_take_turns(tmp_path):
    running, most = [], []

    @app(parameters={"x": Float(0, 1)}, metrics={"y": "1"})
    def slow(x):
        running.append(1)
        most.append(len(running))
        time.sleep(0.1)
        running.pop()
        return {"y": x}

    results = []
    threads = [
        threading.Thread(target=lambda: results.append(execute(slow, {"x": 0.5}, tmp_path))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and len(most) == 1
    assert len({r.started_at for r in results}) == 1


@pytest.mark.parametrize("name", ["manifest.json.part", "result.json.part"])
def test_a_link_in_place_of_a_file_that_is_written_is_not_followed(name, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    workdir = tmp_path / parabola.manifest({"x": 1.0}).execution_id
    workdir.mkdir()
    (workdir / name).symlink_to(victim)
    result = execute(parabola, {"x": 1.0}, tmp_path)
    # What was there of an earlier attempt is set aside, so the run itself may go on; the file stays as it was.
    assert victim.read_text() == "precious"
    assert result.status == "COMPLETED" and result.metrics["y"] == 1.0


def test_a_link_that_appears_during_a_run_is_not_followed_either(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")

    @app(parameters={"x": Float(0, 1)}, metrics={"y": "1"}, name="attacked")
    def function(x, run):
        (run.workdir / "result.json.part").symlink_to(victim)
        return {"y": x}

    result = execute(function, {"x": 0.5}, tmp_path)
    assert victim.read_text() == "precious"
    assert result.status == "FAILED" or result.notes
    assert not list(tmp_path.glob("*/result.json"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
def test_a_link_of_another_user_in_place_of_a_runs_directory_is_not_followed(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / parabola.manifest({"x": 1.0}).execution_id
    link.symlink_to(elsewhere)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    result = execute(parabola, {"x": 1.0}, tmp_path)
    assert result.failure is not None and result.failure.kind == "infrastructure"
    assert list(elsewhere.iterdir()) == []
    monkeypatch.setenv("HPCAGENT_TRUST", "nobody")
    assert execute(parabola, {"x": 1.0}, tmp_path).status == "COMPLETED"
    assert (elsewhere / "result.json").is_file()


def test_ones_own_link_in_place_of_a_runs_directory_is_followed(tmp_path):
    (tmp_path / "archive").mkdir()
    (tmp_path / parabola.manifest({"x": 1.0}).execution_id).symlink_to(tmp_path / "archive")
    assert execute(parabola, {"x": 1.0}, tmp_path).status == "COMPLETED"
    assert (tmp_path / "archive" / "result.json").is_file()


def test_an_analysis_of_a_failed_run_fails_with_its_reason(tmp_path):
    @app(parameters={}, metrics={"y": "1"}, inputs=("run",))
    def analysis(run: Run):
        return {"y": run.upstream[0]["metrics"]["y"]}

    good = execute(parabola, {"x": 1.0}, tmp_path)
    assert execute(analysis, {}, tmp_path, good, upstream=(good.manifest.execution_id,)).metrics == {"y": 1.0}
    bad = execute(failing(AppFailed("lost 3 atoms.", name="LostAtoms")), {"x": 0.5}, tmp_path)
    failure = execute(analysis, {}, tmp_path, bad, upstream=(bad.manifest.execution_id,)).failure
    assert failure.name == "UpstreamFailed" and "lost 3 atoms" in failure.message


def test_cost_is_the_share_of_the_node(tmp_path):
    cost = execute(synthetic, {"run_time_s": 0.05}, tmp_path).cost
    assert cost.wall_s >= 0.05
    assert cost.core_hours == pytest.approx(cost.wall_s / 3600)
    assert cost.node_hours == pytest.approx(cost.wall_s / 3600 / 2)


def test_the_synthetic_app_has_its_known_optimum_noise_and_failures(tmp_path):
    best = execute(synthetic, {"x": 0.6, "y": 0.4, "style": "tuned"}, tmp_path)
    assert best.metrics == {"value": pytest.approx(75.0), "error": pytest.approx(1.0)}
    noisy = [execute(synthetic, {"x": 0.6, "noise": 0.1}, tmp_path, replicate=i)["value"] for i in range(40)]
    again = execute(synthetic, {"x": 0.6, "noise": 0.1}, tmp_path / "other", replicate=0)["value"]
    assert again == noisy[0]
    mean = sum(noisy) / 40
    spread = math.sqrt(sum((v - mean) ** 2 for v in noisy) / 39) / mean
    assert 0.06 < spread < 0.15
    crashed = execute(synthetic, {"x": 0.95, "fail_above": 0.9}, tmp_path)
    assert crashed.failure.name == "SyntheticCrash" and crashed.failure.kind == "simulation"


def test_a_function_and_its_parameters_must_agree():
    with pytest.raises(BadInput, match="no argument 'z'"):
        app(parameters={"z": Float(0, 1)}, metrics={"y": "1"})(lambda x: {"y": x})
    with pytest.raises(BadInput, match="argument 'x'"):
        app(parameters={}, metrics={"y": "1"})(lambda x: {"y": x})


def test_notes_uncertainty_and_artifacts_travel_along(tmp_path):
    outcome = Outcome(
        metrics={"y": 1.0}, uncertainty={"y": 0.1, "other": 1.0}, artifacts={"log": "log.txt"}, notes=("odd",)
    )
    result = execute(returning(outcome), {"x": 0.5}, tmp_path)
    assert result.uncertainty == {"y": 0.1} and result.artifacts == {"log": "log.txt"} and result.notes == ("odd",)


@pytest.mark.parametrize(("held_s", "written"), [(0.3, True), (5.0, False)])
def test_a_run_that_was_broken_off_has_its_result_once_the_ended_process_lets_go(
    tmp_path, monkeypatch, held_s, written
):
    monkeypatch.setattr(run_folder, "_ENDING_S", 2.0)
    manifest = parabola.manifest({"x": 0.5})
    order = parabola.order(manifest, work=tmp_path, site={"node_cores": 2})
    folder = tmp_path / manifest.execution_id
    folder.mkdir()
    holds = (
        "import fcntl, os, sys, time; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); "
        "print(flush=True); time.sleep(float(sys.argv[2]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(folder), str(held_s)], stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        failure = {"kind": "walltime", "name": "WalltimeExceeded", "message": "over"}
        fields = worker.broken_off(order, 1.0, failure)
        holder.kill()
    assert fields["failure"]["name"] == "WalltimeExceeded"
    assert (folder / "result.json").exists() == written


def test_a_byte_of_a_name_that_is_no_utf8_is_escaped_in_the_answer(tmp_path):
    made = returning(Outcome({"y": 1.0}, artifacts={"data": "a.d\udcff"}, notes=("wrote a.d\udcff",)))
    result = execute(made, {"x": 0.5}, tmp_path)
    assert result.ok and result.artifacts["data"].endswith("a.d\\udcff") and result.notes == ("wrote a.d\\udcff",)
    assert json.loads(result.model_dump_json())["artifacts"] == dict(result.artifacts)
    path = next(tmp_path.glob("*/result.json"))
    path.write_text(path.read_text().replace("\\\\udcff", "\\udcff"))  # as a version before has written it
    assert "\\udcff" in path.read_text()
    assert execute(made, {"x": 0.5}, tmp_path).artifacts == result.artifacts
