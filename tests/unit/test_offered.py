"""What a package offers by entry points is found by its name, wherever one of hpcagent's own is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcagent.campaign.loading import load_run
from hpcagent.catalog import find_app, list_apps
from hpcagent.errors import BadInput
from hpcagent.model.base import build
from hpcagent.offered import load, offers, path_of
from hpcagent.policies.base import policy_names
from hpcagent.policies.stop import Progress
from hpcagent.policies.stop_combined import read_stop
from hpcagent.sites.doctor import examine
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile, identify_site, list_profiles
from hpcagent.sites.schedulers.present import schedulers_here, who_answers
from hpcagent.sites.schedulers.registry import scheduler, scheduler_kinds

MODULE = """
from typing import Literal
import hpcagent as ha
from hpcagent.policies.stop import Stop
from hpcagent.sites.schedulers import Scheduler

@ha.app(metrics={"y": "m"}, parameters={"x": ha.Float(0.0, 1.0, unit="m")})
def doubled(x):
    return {"y": 2 * x}

class Middle:
    def __init__(self, space, objective, *, seed=0):
        self.space = space
    def suggest(self, history, n, pending=()):
        return [self.space.from_unit([0.5])] * n

class Enough(Stop):
    kind: Literal["enough"] = "enough"
    at: int = 2
    def check(self, progress):
        return f"{progress.runs} runs are enough." if progress.runs >= self.at else None

class Dotted(Stop):
    kind: Literal["mygroup.parts:Dotted"] = "mygroup.parts:Dotted"
    def check(self, progress):
        return None

class Nameless(Stop):
    def check(self, progress):
        return None

class Cobalt(Scheduler):
    name, title, commands, ends_by, begins_by = "cobalt", "Cobalt", ("no-such-command",), "qdel", "qsub"
    host_lines = "sort -u $COBALT_NODEFILE"
    def jobs(self, job_ids): return {}
    def named(self, name): return []
    def submit(self, script, *, after=None): return "1"
    def cancel(self, job_ids): pass
    def allocation(self, environ): return None
    def queues(self): return []
    def keeps_finished_jobs(self): return True, "kept"
    def version(self): return "Cobalt 1"
    def directives(self, block, *, name, account, out, err): return [f"#COBALT -n {block.nodes_per_block}"]

class Morse:
    name, kind, isolated, takes = "morse", "classical", False, ()
    def calculator(self, atoms, level, run):
        from ase.calculators.morse import MorsePotential
        return MorsePotential()
    def iterations(self, calculator): return ()
    def repairs(self, level): return ()
    def files(self, level, site): return ()
    def versions(self, calculator): return {"morse": "1"}
    def bands(self, *_): raise NotImplementedError

MORSE = Morse()
"""
POINTS = """
[hpcagent.apps]
doubled = mygroup.parts:doubled
[hpcagent.policies]
middle = mygroup.parts:Middle
[hpcagent.stops]
enough = mygroup.parts:Enough
nameless = mygroup.parts:Nameless
gone = mygroup.parts:Gone
[hpcagent.sites]
mygroup = mygroup.sites
[hpcagent.schedulers]
cobalt = mygroup.parts:Cobalt
[hpcagent.engines]
morse = mygroup.parts:MORSE
"""


TAKEN = (
    "[hpcagent.apps]\nsynthetic = elsewhere:it\nlj_argon = elsewhere:it\n[hpcagent.engines]\nemt = elsewhere:it\n"
)


def install(folder: Path, package: str = "mygroup", points: str = POINTS) -> None:
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)


@pytest.fixture
def offered_package(tmp_path, monkeypatch):
    """A package of a group, as pip would install it."""
    folder = tmp_path / "packages"
    install(folder)
    (folder / "mygroup" / "sites").mkdir(parents=True)
    (folder / "mygroup" / "parts.py").write_text(MODULE)
    (folder / "mygroup" / "__init__.py").touch()
    (folder / "mygroup" / "sites" / "__init__.py").touch()
    (folder / "mygroup" / "sites" / "our_cluster.toml").write_text(
        'description = "ours"\nkind = "cobalt"\n[block]\nnodes_per_block = 3\n'
    )
    (folder / "mygroup" / "sites" / "our_box.toml").write_text('description = "a box"\nkind = "threads"\n')
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "mygroup"]:
        monkeypatch.delitem(sys.modules, name)


def test_each_group_is_found_by_name(offered_package, tmp_path):
    assert find_app("doubled").contract.metric("y").unit == "m"
    assert "doubled" in {app.name for app in list_apps()}
    assert "middle" in policy_names()
    assert read_stop({"enough": {"at": 3}}).at == 3
    assert find_profile("our_cluster").block.nodes_per_block == 3
    assert "our_box" in {entry.name for entry in list_profiles()}
    assert "cobalt" in scheduler_kinds() and scheduler("cobalt").version() == "Cobalt 1"


def test_a_job_script_of_an_offered_scheduler(offered_package, tmp_path):
    from hpcagent.sites.workers.job_scripts import job_script

    lines = job_script(find_profile("our_cluster"), "workers", run_dir=tmp_path).splitlines()
    assert lines[:2] == ["#!/bin/bash", "#COBALT -n 3"]
    assert any("mpiexec -n 3" in line for line in lines)


def test_a_campaign_of_offered_parts_alone_runs_and_is_read_back(offered_package, tmp_path):
    (tmp_path / "c.toml").write_text(
        'name = "c"\napp = "doubled"\nsite = "our_box"\nbatch_size = 2\n[space]\nx = {}\n[objective]\n'
        'maximize = "y"\n[policy]\nname = "middle"\n[until]\nenough = { at = 4 }\n"mygroup.parts:Dotted" = {}\n'
    )
    command = [sys.executable, "-m", "hpcagent.cli"]
    run = [*command, "run", "c.toml", "--run-dir", "r", "--no-plots"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 runs are enough." in done.stdout + done.stderr
    again = subprocess.run([*command, "resume", "r"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    kinds = [condition.kind for condition in load_run(tmp_path / "r").until.conditions]
    assert kinds == ["enough", "mygroup.parts:Dotted"]


def test_an_offered_engine_computes(offered_package, tmp_path):
    script = (
        "import hpcagent as ha\n"
        "from ase.build import molecule\n"
        f"with ha.open_site('threads', run_dir={str(tmp_path / 'r')!r}):\n"
        "    result = ha.apps.dft_energy(molecule('N2'), engine='morse').result()\n"
        "print(result.status, result.versions['morse'])\n"
        "try:\n"
        "    ha.apps.dft_energy.contract.space.validated({'engine': 'morze'})\n"
        "except ha.BadInput as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("COMPLETED 1\n"), done.stdout + done.stderr
    assert "morse" in done.stdout.splitlines()[1]


def test_what_is_wrong_is_said_with_the_name(offered_package):
    with pytest.raises(BadInput, match=r"'gone' cannot be loaded from 'mygroup\.parts:Gone'"):
        read_stop({"gone": {}})
    with pytest.raises(BadInput, match='Nameless needs the field kind: Literal\\["nameless"\\]'):
        read_stop({"nameless": {}})
    with pytest.raises(BadInput, match=r"unknown key 'enuogh'.*enough"):
        read_stop({"enuogh": {}})
    with pytest.raises(BadInput, match="is no subclass of"):
        read_stop({"mygroup.parts:MORSE": {}})
    with pytest.raises(BadInput, match=r"kind = 'cobald' is not known.*cobalt"):
        build(Profile, {"name": "x", "kind": "cobald"}, where="x.toml")
    assert read_stop({"enough": {}}).check(Progress([], None, None, runs=1)) is None


def test_two_packages_with_one_name_are_refused(offered_package):
    install(
        offered_package,
        "other",
        "[hpcagent.policies]\nmiddle = elsewhere:Middle\nbayes = elsewhere:Bayes\n" + TAKEN,
    )
    sys.path.append(str(offered_package / "."))  # another sys.path: the packages are looked at again
    try:
        with pytest.raises(BadInput, match=r"2 packages offer a policy 'middle': other 1\.0 .*mygroup 1\.0 "):
            path_of("policies", "middle")
        assert (
            load("policies", "bayes", {"bayes": "hpcagent.policies.bayes:Bayes"}).__module__
            == "hpcagent.policies.bayes"
        )
        told = {check.found: check.status for check in examine(find_profile("threads"), submit=False)}
        assert told["policy bayes (other 1.0, elsewhere:Bayes): not reached, the name is hpcagent's own"] == "warn"
        for name in ("app synthetic", "app lj_argon", "engine emt"):
            assert told[f"{name} (other 1.0, elsewhere:it): not reached, the name is hpcagent's own"] == "warn"
        assert told["app doubled (mygroup 1.0, mygroup.parts:doubled)"] == "ok"
        assert {offer.package for offer in offers("policies")} == {"mygroup 1.0", "other 1.0"}
    finally:
        sys.path.pop()


def test_a_package_that_cannot_be_imported_costs_those_who_name_it_only(offered_package):
    (offered_package / "broken.py").write_text("raise KeyError('no such licence')\n")
    install(
        offered_package,
        "broken",
        "[hpcagent.schedulers]\nbad = broken:Bad\n[hpcagent.stops]\nbad = broken:Bad\n[hpcagent.apps]\nbad = broken:bad\n",
    )
    sys.path.append(str(offered_package / "."))
    try:
        with pytest.raises(BadInput, match=r"stop condition 'bad' cannot be loaded from 'broken:Bad': KeyError"):
            read_stop({"bad": {}})
        with pytest.raises(BadInput, match="scheduler 'bad' cannot be loaded"):
            find_profile("our_cluster").model_copy(update={"kind": "bad"}).scheduler.title
        with pytest.raises(BadInput, match="app 'bad' cannot be loaded"):
            find_app("bad")
        assert {"doubled", "synthetic"} <= {app.name for app in list_apps()}
        told = [str(check) for check in examine(find_profile("threads"), submit=False) if check.status == "warn"]
        assert any("app bad" in line and "KeyError: 'no such licence'" in line for line in told)
        assert [seen.answers for seen in schedulers_here({"PATH": ""}) if seen.kind == "bad"] == [False]
        assert who_answers({"PATH": "", "SLURM_JOB_ID": "1"}) == "slurm"
        assert identify_site({"PATH": ""}, "nowhere").name == "laptop"
    finally:
        sys.path.pop()


def test_nothing_is_read_for_names_of_hpcagents_own(monkeypatch):
    monkeypatch.setattr("hpcagent.offered._offers", lambda *_: pytest.fail("read the packages"))
    find_app("synthetic")
    find_profile("threads")
    read_stop({"max_runs": 3})
    assert scheduler("slurm").name == "slurm"
