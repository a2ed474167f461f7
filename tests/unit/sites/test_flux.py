"""Flux, against a stand-in that speaks the formats of its manual pages (there is no package of it to install)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.errors import BadInput, SiteFailed
from hpcagent.model.base import build
from hpcagent.sites.block import block_of
from hpcagent.sites.doctor import examine
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import identify_site
from hpcagent.sites.reap import end_leftovers
from hpcagent.sites.schedulers.flux import Flux
from hpcagent.sites.schedulers.present import own_job, schedulers_here
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.testing import SchedulerContract

FAKE = Path(__file__).parent / "fake_flux" / "flux.py"


@pytest.fixture(autouse=True)
def flux(tmp_path, monkeypatch):
    """A flux on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "flux"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_FLUX", str(tmp_path / "flux-state"))
    return program


class TestFlux(SchedulerContract):
    kind = "flux"
    unknown_id = "f9zzzzzz"


def profile(**changes):
    given = {"name": "tuolumne", "kind": "flux", "address": "127.0.0.1", "poll_s": 0.1, "block": {}}
    return build(Profile, given | changes, where="tuolumne")


def test_what_a_block_asks_for():
    mine = profile(block={"queue": "pbatch", "nodes_per_block": 2, "constraint": "mi300", "walltime": "00:10:30"})
    words = Flux().directives(block_of(mine, "workers"), name="a", account="guests", out="o", err="e")
    assert words == [
        "# flux: --job-name=a",
        "# flux: --nodes=2",
        "# flux: --time-limit=630s",
        "# flux: --exclusive",
        "# flux: --queue=pbatch",
        "# flux: --bank=guests",
        "# flux: --requires=mi300",
        "# flux: --output=o",
        "# flux: --error=e",
    ]
    shared = profile(block={"cores_per_node": 8, "directives": ["--gpus-per-slot=1"]})
    words = Flux().directives(block_of(shared, "workers"), name="a", account=None, out="o", err="e")
    assert {"# flux: --nslots=1", "# flux: --cores-per-slot=8", "# flux: --gpus-per-slot=1"} <= set(words)
    assert "# flux: --exclusive" not in words


def test_words_of_ours_are_words_of_a_directive(tmp_path):
    block = block_of(profile(), "workers")
    name = "a b # 'c'"
    script = tmp_path / "j.sh"
    lines = Flux().directives(block, name=name, account=None, out=f"{tmp_path}/o", err=f"{tmp_path}/e")
    script.write_text("\n".join(["#!/bin/bash", *lines, "true", ""]))
    assert Flux().jobs([job_id := Flux().submit(script)])[job_id].name == name


def test_keys_of_others_are_refused():
    with pytest.raises(BadInput, match=r'block\.qos has no meaning for kind = "flux"; Flux has queues only'):
        profile(block={"qos": "high"})
    with pytest.raises(BadInput, match="filesystems has no meaning"):
        profile(filesystems=["home"])
    with pytest.raises(BadInput, match="worker_launcher = 'srun' is not one of Flux"):
        profile(block={"worker_launcher": "srun"})


def test_this_machine_is_known_by_the_scheduler_that_answers():
    assert [(seen.kind, seen.answers) for seen in schedulers_here(os.environ) if seen.kind == "flux"] == [
        ("flux", True)
    ]
    alone = {"PATH": os.environ["PATH"].split(os.pathsep)[0], "FAKE_FLUX": os.environ["FAKE_FLUX"]}
    assert identify_site(alone, "login1").kind == "flux"


def test_another_program_called_flux_is_none(flux):
    flux.write_text('#!/bin/sh\necho \'unknown command "uptime" for "flux"\' >&2\nexit 1\n')
    assert [seen.answers for seen in schedulers_here(os.environ) if seen.kind == "flux"] == [False]
    with pytest.raises(SiteFailed, match="not the scheduler's"):
        scheduler("flux").version()


def test_queues_are_read():
    assert [(q.name, q.default, q.max_walltime_s, q.min_nodes, q.max_nodes, q.cores, q.nodes) for q in Flux().queues()] == [
        ("pbatch", True, 86400.0, 0, 4, 2, 4),
        ("pdebug", False, 3600.0, 1, 1, 2, 4),
    ]  # fmt: skip


def test_a_walltime_that_is_over_ends_a_job(tmp_path):
    script = tmp_path / "j.sh"
    script.write_text("#!/bin/bash\n# flux: --time-limit=1s\nsleep 60\n")
    there = Flux()
    job_id = there.submit(script)
    contract = TestFlux()
    ended = contract.until(there, job_id, lambda job: job.over)
    assert ended.state == "timeout" and ended.reason == "timeout: resource allocation expired"


def test_a_campaign_runs_in_jobs_of_flux(tmp_path):
    campaign = ha.Campaign(
        name="on-flux",
        app=ha.find_app("synthetic"),
        space={"x": {}},
        objective=ha.minimize("value"),
        policy="sobol",
        batch_size=2,
        until={"max_runs": 4},
    )
    here = profile(executors={"workers": {"max_workers_per_node": 2}})
    result = ha.run(campaign, site=here, run_dir=tmp_path / "run")
    assert [result.state(run) for run in result.results] == ["completed"] * 4
    scripts = [p for p in (tmp_path / "run" / "parsl").rglob("submit_scripts/*.block-0*") if "std" not in p.suffix]
    assert "flux run --nodes=1 --ntasks=1 --exclusive" in scripts[0].read_text()
    assert not Flux().named("block-0")  # ended with the campaign


def test_the_doctor_runs_a_job(tmp_path):
    here = profile(executors={"workers": {"max_workers_per_node": 1}})
    checks = list(examine(here, run_dir=tmp_path / "runs", within_s=60))
    assert not [check for check in checks if check.status == "FAIL"], checks
    assert any("Flux 0.61.2" in str(check) for check in checks)


def coordinators_job(tmp_path, monkeypatch, variable):
    """A job of Flux that this process is in from now on; its id."""
    script = tmp_path / "j.sh"
    script.write_text("#!/bin/bash\n# flux: --time-limit=60s\nsleep 60\n")
    job_id = Flux().submit(script)
    TestFlux().until(Flux(), job_id, lambda job: job.state == "running")
    monkeypatch.setenv("FLUX_URI", f"fake:{job_id}")
    if variable:
        monkeypatch.setenv("FLUX_ENCLOSING_ID", f"ƒ{job_id[1:]}")
    return job_id


@pytest.mark.parametrize("variable", [True, False], ids=["flux-core 0.71", "before"])
def test_a_coordinator_in_a_job_of_flux_knows_that_it_is_in_one(tmp_path, monkeypatch, variable):
    job_id = coordinators_job(tmp_path, monkeypatch, variable)
    try:
        assert own_job(os.environ) == job_id
        here = profile(coordinator={"where": ["job"]}, executors={"workers": {"max_workers_per_node": 1}})
        with open_site(here, private=True, run_dir=tmp_path / "r"):
            pass
        assert not [
            c
            for c in examine(here, run_dir=tmp_path / "d", within_s=60)
            if c.what == "coordinator" and c.status != "ok"
        ]
        ledger = Ledger(tmp_path / "jobs.jsonl")
        ledger.submitting("j.sh", "flux", role="coordinator")
        ledger.submitted("j.sh", job_id)
        assert end_leftovers(tmp_path / "jobs.jsonl", coordinators=True) == []
        assert Flux().jobs([job_id])[job_id].state == "running"
    finally:
        Flux().cancel([job_id])


def test_which_job_a_process_is_in_by_the_variables_of_flux(monkeypatch):
    environ = dict(os.environ)
    assert Flux().inside(environ) == ""
    # A task that the system's instance runs, and one of `flux run` in a batch job.
    assert (
        Flux().inside(environ | {"FLUX_URI": "local:///run/flux/local", "FLUX_JOB_ID": "ƒAra6jq1"}) == "fAra6jq1"
    )
    task = {"FLUX_URI": "fake:f7", "FLUX_JOB_ID": "ƒ2", "FLUX_ENCLOSING_ID": "ƒ7"}
    assert Flux().inside(environ | task) == "f7"
    assert Flux().inside(environ | {"FLUX_URI": "fake:f7", "FLUX_JOB_ID": "ƒ2"}) == "f7"
    with pytest.raises(SiteFailed, match="flux"):  # an instance that does not answer
        Flux().inside({"PATH": "", "FLUX_URI": "local:///gone"})
