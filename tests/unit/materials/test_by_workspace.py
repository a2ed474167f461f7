"""A catalyst computed by a workspace: each computation behind its gate, and its event reaches triggers and people."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.contexts import Events
from hpcagent.errors import AppFailed, BadInput, NotPermitted
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.materials import catalyst as catalyst_module
from hpcagent.materials import run_catalyst
from hpcagent.resources import Resources
from hpcagent.workspace.client import Workspace
from hpcagent.workspace.folder import Folder

pytest.importorskip("ase")

HOW: dict[str, Any] = {"share": 1.0, "engine": "emt", "relax": "none", "layers": 2, "site": "fcc"}
RULES = """
name = "ws"
default_site = "threads"
[people]
pia = { role = "planner" }
exe = { role = "executor" }
eve = { role = "viewer" }
"""
TRIGGERS = """
[[triggers]]
name = "closer"
when = "new_promising_catalyst"
where = {adsorption_energy = {below = -1.2}}
then = {tool = "oscillator", arguments = {max_steps = 20}}
"""
PARTS = {"build_slab", "build_molecule", "add_adsorbate", "dft_energy", "adsorption_energy_of"}
PATIENCE_S = 120


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    Folder(folder).create()
    (folder / "workspace.toml").write_text(RULES)
    return folder


@pytest.fixture
def admin(root: Path) -> Iterator[Workspace]:
    one = Workspace(root)
    yield one
    one.end(runs=True)


def apps(workspace: Workspace) -> list[tuple[str, str]]:
    return [(run["app"], run["owner"]) for run in workspace.list()["runs"]]


@pytest.mark.slow
def test_a_promising_catalyst_starts_what_a_trigger_says_exactly_once(root, admin, tmp_path):
    """From Python, end to end: computed by the workspace, told through it, started by its trigger."""
    (root / "triggers.toml").write_text(TRIGGERS)
    pia = Workspace(root, as_="pia")
    ear = Workspace(root, as_="eve").subscribe("new_promising_catalyst")["subscription_id"]
    strong = run_catalyst(pia.resources(), "Pt", "O", workspace=pia, events=pia, **HOW)
    assert strong.adsorption_energy < -1.2 and strong.event is not None
    found = run_catalyst(pia.resources(), "Pt", "O", workspace=pia, events=pia, **HOW)
    assert found.found and found.adsorption_energy == strong.adsorption_energy
    until = time.monotonic() + PATIENCE_S
    while not any(app == "oscillator" for app, _ in apps(admin)) and time.monotonic() < until:
        time.sleep(0.1)
    again = run_catalyst(pia.resources(), "Pt", "O", workspace=pia, events=pia, **HOW)
    assert again.found
    admin.end()  # the next service replays what was told and started
    ran = apps(admin)
    assert [owner for app, owner in ran if app == "oscillator"] == [admin.whoami()["name"]]
    assert {app for app, owner in ran if owner == "pia"} == PARTS
    assert sum(app == "dft_energy" for app, _ in ran) == 3  # both, the slab, the molecule
    told = Workspace(root, as_="eve").notifications(ear)
    assert [(n["payload"]["catalyst"], n["payload"]["by"]) for n in told] == [("Pt", "pia")]
    assert told[0]["payload"]["adsorption_energy"] == strong.adsorption_energy

    stored = pia.resources().objects().get(strong.result_uri.removeprefix("dft_results/"))
    assert set(stored["runs"].values()) == {run["id"] for run in pia.list()["runs"]}
    assert "workdir" not in stored and stored["versions"]["ase"]
    # The same work on an open site is the same run with the same number.
    with ha.open_site("threads", run_dir=tmp_path / "runs"):
        shared = Resources.open(tmp_path / "shared", caller="bot", role="executor")
        here = run_catalyst(shared, "Pt", "O", **HOW)
    assert here.adsorption_energy == pytest.approx(strong.adsorption_energy, abs=1e-9)
    assert here.result_uri == strong.result_uri
    left = weakref.ref(pia)
    del pia
    gc.collect()
    assert left() is None, "nothing keeps its connection open"


@pytest.mark.slow
def test_each_computation_waits_for_its_approval_and_those_that_ran_are_found(root, admin):
    with (root / "workspace.toml").open("a") as file:
        file.write('[[approval]]\napp = "adsorption_energy_of"\n')
    exe = Workspace(root, as_="exe")
    with pytest.raises(NotAllowed, match="approval") as waits:
        run_catalyst(exe.resources(), "Pt", "O", workspace=exe, **HOW)
    ran = apps(exe)
    assert {app for app, _ in ran} == PARTS - {"adsorption_energy_of"}
    resources = exe.resources()
    assert resources.objects().listed().total == 0 and resources.notebook().verify() == 0
    admin.grant(waits.value.approval)
    done = run_catalyst(exe.resources(), "Pt", "O", workspace=exe, **HOW)
    assert not done.found and done.row.run_id and len(apps(exe)) == len(ran) + 1


@pytest.mark.slow
def test_a_quota_and_a_run_that_fails_are_those_of_the_workspace(root, admin):
    with pytest.raises(AppFailed, match="EMT has no parameters for Fe") as failed:
        run_catalyst(admin.resources(), "Fe", "O", workspace=admin, **{**HOW, "facet": "bcc110", "site": "ontop"})
    assert failed.value.name == "BadSettings"
    (entry,) = admin.resources().notebook().entries()
    assert entry["output_uri"] is None and entry["failure"]["name"] == "BadSettings"
    with (root / "workspace.toml").open("a") as file:
        file.write("[quota]\nnode_hours = 1.0\n")
    with pytest.raises(NotAllowed, match="give the run a walltime_s"):
        run_catalyst(admin.resources(), "Cu", "O", workspace=admin, **HOW)
    options = {"walltime_s": 120.0, "label": "cu"}
    emt = run_catalyst(admin.resources(), "Cu", "O", workspace=admin, run_options=options, **HOW)
    assert admin.costs()["workspace"]["node_hours"] > 0
    # Settings go along: the same potential, named by a setting of another engine.
    by_name = {"engine": "ase", "settings": {"calculator": "ase.calculators.emt:EMT"}}
    named = run_catalyst(admin.resources(), "Cu", "O", workspace=admin, run_options=options, **{**HOW, **by_name})
    assert not named.found and named.adsorption_energy == pytest.approx(emt.adsorption_energy, abs=1e-9)


@pytest.mark.slow
def test_who_may_not_store_computes_nothing(root, admin):
    eve = Workspace(root, as_="eve")
    admin.resources().provision("catalyst_db")
    with pytest.raises(NotPermitted, match="needs the right 'write'"):
        run_catalyst(eve.resources(), "Cu", "O", workspace=eve, **HOW)
    assert apps(admin) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"run_options": {"site": "threads"}}, "without workspace="),
        ({"run_options": {"seed": 3}, "workspace": 1}, "run_options has 'seed'"),
        ({"run_options": {"walltime": 3}, "workspace": 1}, "did you mean 'walltime_s'"),
    ],
)
def test_what_a_workspace_cannot_be_told_is_refused_before_anything_is_done(more, said, tmp_path):
    resources = Resources.open(tmp_path / "shared", caller="bot", role="executor")
    with pytest.raises(BadInput, match=said):
        run_catalyst(resources, "Cu", "O", **HOW, **more)
    assert not (tmp_path / "shared").exists()


class Fake:
    """What a workspace answers, without one: every run is begun, and none ends before it is told to."""

    def __init__(self, execution_id: str = "", refuses: str = "") -> None:
        self.asked: list[str] = []
        self.over = threading.Event()
        self._execution_id, self._refuses = execution_id, refuses

    def run(self, app: ha.App, params: Any, **options: Any) -> dict[str, Any]:
        if app.name == self._refuses:
            raise NotAllowed("quota", "enough runs are going", field="runs_at_once", value=3)
        self.asked.append(app.name)
        return {"id": f"r-{len(self.asked)}", "found": False}

    def wait(self, identity: str) -> dict[str, Any]:
        assert self.over.wait(PATIENCE_S)
        return {
            "state": "cancelled",
            "execution_id": self._execution_id,
            "failure": None,
            "notes": ["cancelled by ada"],
            "ended_at": 1.0,
        }

    def fetch(self, identity: str, path: str) -> bytes:
        raise AssertionError("nothing has completed")

    def close(self) -> None:
        """Nothing is open."""


def test_who_is_interrupted_does_not_wait_for_what_goes_on_in_the_workspace(tmp_path):
    resources, fake = Resources.open(tmp_path / "shared", caller="bot", role="executor"), Fake()

    def interrupt() -> None:
        while not fake.asked:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_catalyst(resources, "Pt", "O", workspace=fake, **HOW)
    finally:
        fake.over.set()
    assert resources.objects().listed().total == 0


def test_a_workspace_that_computes_something_else_or_refuses_leaves_nothing_behind(tmp_path):
    resources = Resources.open(tmp_path / "shared", caller="bot", role="executor")
    other, refusing = Fake(execution_id="another"), Fake(refuses="build_slab")
    other.over.set()
    refusing.over.set()
    with pytest.raises(BadInput, match="its service has other code than this program"):
        run_catalyst(resources, "Pt", "O", workspace=other, **HOW)
    with pytest.raises(NotAllowed, match="enough runs are going"):
        run_catalyst(resources, "Pt", "O", workspace=refusing, **HOW)
    assert resources.objects().listed().total == resources.notebook().verify() == 0


def test_a_slab_of_ones_own_is_computed_on_an_open_site_only(tmp_path):
    from ase.build import fcc111

    resources = Resources.open(tmp_path / "shared", caller="bot", role="executor")
    with pytest.raises(BadInput, match=r"a slab of your own cannot be handed to it"):
        run_catalyst(
            resources,
            fcc111("Pt", (1, 1, 2), vacuum=6.0),
            "O",
            workspace=1,  # type: ignore[arg-type]  # it is not asked
            engine="emt",
        )


def test_events_of_a_folder_are_told_once_for_a_new_result_and_again_by_key_after_a_crash(tmp_path, monkeypatch):
    events = Events(tmp_path / "events")
    mine = events.subscribe("new_promising_catalyst", owner="ada").subscription_id
    with ha.open_site("threads", run_dir=tmp_path / "runs"):
        resources = Resources.open(tmp_path / "shared", caller="bot", role="executor")
        with monkeypatch.context() as patched:

            def killed(*args):
                raise KeyboardInterrupt

            patched.setattr(catalyst_module, "added", killed)
            with pytest.raises(KeyboardInterrupt):
                run_catalyst(resources, "Pt", "O", events=events, **HOW)
        run_catalyst(resources, "Pt", "O", events=events, **HOW)
        run_catalyst(resources, "Pt", "O", events=events, **HOW)
        run_catalyst(resources, "Cu", "O", events=events, threshold_ev=-100.0, **HOW)
    lines, _ = events.log.read(0, 100)
    assert len(lines) == 2 and len({line.data["key"] for line in lines}) == 1
    told = events.look(mine, owner="ada").notifications
    assert {n.payload["catalyst"] for n in told} == {"Pt"}
