"""Each contract suite fails where the contract is broken."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Literal

import pytest

import hpcagent as ha
from hpcagent.model.base import build
from hpcagent.model.records import Result
from hpcagent.policies.stop import Stop
from hpcagent.science.engines.classical import EMT
from hpcagent.sites.profile import Profile
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.flux import Flux
from hpcagent.testing import AppContract, EngineContract, SchedulerContract, SiteContract, StopContract
from hpcagent.testing.writes import Writes


class Chatty(Stop):
    kind: Literal["tests.unit.testing.test_broken:Chatty"] = "tests.unit.testing.test_broken:Chatty"
    at: int = 3

    def check(self, progress):
        return "enough" if progress.runs >= self.at else None

    def toml(self):
        return {self.kind: {}}  # loses `at`


class Stops(StopContract):
    condition = Chatty(at=5)
    stops_after = 4


@ha.app(metrics={"y": ha.Metric(name="y", unit="1")}, parameters={"x": ha.Float(0.0, 1.0, default=0.5)})
def thrown(x):
    return {"y": random.random()}


class Apps(AppContract):
    app = thrown


@ha.app(
    metrics={"y": ha.Metric(name="y", unit="1", description="twice x")},
    parameters={"x": ha.Float(0.0, 1.0, default=0.5, description="halved")},
)
def leaves_a_file(x):
    Path(os.environ["ELSEWHERE"], "cache.txt").write_text(str(x))
    Path("left here.txt").write_text(str(x))
    return {"y": 2 * x}


class Leaving(AppContract):
    app = leaves_a_file


class Wrong:
    """Its forces are 10 % too large."""

    def __getattr__(self, name):
        return getattr(EMT, name)

    def calculator(self, atoms, level, run):
        made = EMT.calculator(atoms, level, run)
        whole = made.get_forces
        made.get_forces = lambda *given: 1.1 * whole(*given)
        return made


class Engines(EngineContract):
    name = "emt"


class Schedulers(SchedulerContract):
    kind = "flux"


class Sites(SiteContract):
    profile = "threads"


def fails(method, *arguments):
    with pytest.raises(AssertionError):
        method(*arguments)


def test_a_stop_condition_that_loses_a_field_or_its_sentence():
    fails(Stops().test_it_is_read_back_from_toml_and_from_json)
    fails(Stops().test_it_says_why_in_a_sentence_or_nothing, "completed")
    fails(Stops().test_it_stops_when_it_should)


def test_an_app_without_descriptions_that_throws_dice(tmp_path_factory):
    fails(Apps().test_its_contract_says_what_it_takes_and_gives)
    two = []
    for _ in range(2):
        with ha.open_site("threads", workers=1, run_dir=tmp_path_factory.mktemp("app")):
            two.append(thrown().result())
    first, again = two
    fails(Apps().test_the_same_manifest_gives_the_same_numbers, [first], (again, None))


def test_an_app_that_writes_elsewhere(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ELSEWHERE", str(tmp_path))
    folder, here = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    with ha.open_site("threads", workers=1, run_dir=folder), Writes(outside=folder, watched=here) as writes:
        result = leaves_a_file().result()
    assert writes.found == tuple(sorted([f"{here}/left here.txt", f"{tmp_path}/cache.txt"]))
    fails(Leaving().test_a_run_writes_nothing_outside_of_its_folder, (result, writes))

    class Declared(AppContract):
        app = leaves_a_file._changed(
            contract=leaves_a_file.contract.model_copy(update={"side_effects": "writes outside its folder"})
        )

    with pytest.raises(pytest.skip.Exception):
        Declared().test_a_run_writes_nothing_outside_of_its_folder((result, writes))


def test_what_is_gone_again_was_temporary_and_what_is_removed_was_not(tmp_path):
    (tmp_path / "kept.txt").write_text("before")
    with Writes(outside=tmp_path / "run") as writes:
        (tmp_path / "scratch.txt").write_text("for a moment")
        (tmp_path / "scratch.txt").unlink()
        (tmp_path / "kept.txt").unlink()
        (tmp_path / "kept.txt").exists()
    assert writes.found == (f"{tmp_path}/kept.txt",)


def test_an_app_that_makes_up_what_it_did_not_measure(tmp_path, tmp_path_factory):
    result = Result(manifest=thrown.manifest({}), status="COMPLETED", metrics={"y": 0.5, "no_such_metric": 0.0})

    class Generous(AppContract):
        app = thrown

        @classmethod
        def _run(cls, app, point, **given):
            return result

    fails(Generous().test_a_metric_that_is_missing_is_a_failure, [], tmp_path)
    fails(Generous().test_every_run_completes_with_the_metrics_it_promises, [result])
    pytest.importorskip("jsonschema")
    with pytest.raises(Exception, match="no_such_metric"):
        Generous().test_what_it_takes_and_gives_fits_its_schemas([result])


def test_an_engine_whose_forces_are_not_the_slope(tmp_path):
    fails(Engines().test_forces_are_the_slope_of_the_energy, Wrong(), tmp_path)
    Engines().test_forces_are_the_slope_of_the_energy(EMT, tmp_path)


def test_a_scheduler_that_knows_jobs_that_never_were(tmp_path, monkeypatch):
    class Liar(Flux):
        def jobs(self, job_ids):
            return {job_id: Job(job_id, "running") for job_id in job_ids}

    suite = Schedulers()
    monkeypatch.setattr(suite, "start", lambda *_, **__: ("f1", "name"))
    fails(suite.test_an_unknown_job_is_missing_beside_one_that_is_known, Liar(), tmp_path)


def test_a_profile_that_names_an_account():
    profile = build(Profile, {"name": "x", "kind": "slurm", "account": "a"}, where="x")
    fails(Sites().test_no_account_is_written_down, profile)
