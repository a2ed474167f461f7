"""What may be asked of a workspace: settings and resources, chains, side effects, costs, rights before code."""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.campaign.coordinator import Coordinator
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.recorded import snapshot
from hpcagent.campaign.state import State
from hpcagent.catalog import find_app, list_apps
from hpcagent.errors import BadInput
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.model.contract import Contract
from hpcagent.model.records import Cost, Failure, Manifest, Result
from hpcagent.sites.profiles import shared_profile
from hpcagent.sites.site import usable_cores
from hpcagent.store.journal import read_events
from hpcagent.workspace import sites
from hpcagent.workspace.app_store import asked, packed, unpacked
from hpcagent.workspace.booking import _taught
from hpcagent.workspace.connection import at_most
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.references import is_ours, runtime_is_stated
from hpcagent.workspace.took import Took, lengths_of

PATIENCE_S = 120

MODULE = """
import time
from pathlib import Path

import hpcagent as ha

Path(__file__).with_suffix(".imported").write_text("yes")


@ha.app(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1"}, settings={"scale": 1.0})
def scaled(x, run):
    return {"y": x * run.settings["scale"]}


@ha.app(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1"}, version="1.2.0", deprecated="scaled is better")
def old(x):
    return {"y": x}


@ha.app(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1"}, side_effects="changes another system")
def outgoing(x):
    return {"y": x}


@ha.app(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1"}, inputs=("run",))
def twice(x, run):
    return {"y": 2 * run.upstream[0]["metrics"]["y"] + x}


@ha.app(name="synthetic", parameters={"x": ha.Float(0.0, 1.0)}, metrics={"value": "1"}, version="9.9.9")
def namesake(x):
    time.sleep(0.5)
    return {"value": x}


@ha.chain(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1"})
def pair(x):
    first = scaled(x=x)
    return {"y": twice(first, x=0.0)["y"]}


@ha.chain(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1"})
def pair_of_pairs(x):
    return {"y": twice(pair(x=x), x=x)["y"]}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "ws"
    Folder(folder).create()
    (folder / "workspace.toml").write_text('name = "ws"\ndefault_site = "threads"\n')
    (tmp_path / "own_apps_17.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    sys.modules.pop("own_apps_17", None)


@pytest.fixture
def core(root: Path) -> Iterator[Core]:
    one = Core(root)
    yield one
    one.close()


def rules(root: Path, text: str) -> None:
    with (root / "workspace.toml").open("a") as file:
        file.write(textwrap.dedent(text))


def me(core: Core) -> Caller:
    return core.caller(os.getuid())


def run(core: Core, who: Caller, app: str, params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As a client asks: what has no name of its own everywhere goes along."""
    whole = asked(app, more.pop("settings", None), more.pop("resources", None))
    return core.run(who, whole.pop("app"), params, **whole, **more)


def done(core: Core, who: Caller, app: str, params: dict[str, Any], **more: Any) -> dict[str, Any]:
    return core.wait(who, run(core, who, app, params, **more)["id"], PATIENCE_S)


def refused(core: Core, who: Caller, app: str, params: dict[str, Any], **more: Any) -> NotAllowed:
    with pytest.raises(NotAllowed) as caught:
        run(core, who, app, params, **more)
    return caught.value


@pytest.mark.parametrize(("app", "y"), [("pair", 0.6), ("pair_of_pairs", 1.5)])
def test_a_chain_runs_with_the_runs_that_it_is_made_of(core, app, y):
    """By hand: pair is 2 x; pair_of_pairs is 2 (2 x) + x."""
    status = done(core, me(core), f"own_apps_17:{app}", {"x": 0.3})
    assert status["failure"] is None
    assert status["metrics"]["y"] == pytest.approx(y)


def test_settings_and_resources_go_with_the_call(core):
    who = me(core)
    assert done(core, who, "own_apps_17:scaled", {"x": 0.5}, settings={"scale": 4.0})["metrics"]["y"] == 2.0
    assert done(core, who, "own_apps_17:scaled", {"x": 0.5})["metrics"]["y"] == 0.5
    bounded = run(core, who, "own_apps_17:scaled", {"x": 0.6}, resources={"walltime_s": 60.0})
    assert core.rows[bounded["id"]].request["node_hours"] == pytest.approx(60 / 3600)


def test_an_app_that_is_handed_over_takes_its_settings_and_resources_along(root):
    app = find_app("own_apps_17:scaled").with_settings(scale=3.0).with_resources(walltime_s=9.0)
    wanted = asked(app, {"scale": 2.0}, None)
    record = wanted["app"]
    assert record["app"]["settings"] == {"scale": 2.0} and record["path"] == [str(root.parent)]
    assert record["app"]["contract"]["resources"]["walltime_s"] == 9.0 and record["carried"] == ""
    energy = find_app("dft_energy").with_settings(keywords={"verbose": 4})
    assert asked(energy) == {"app": "dft_energy", "settings": {"keywords": {"verbose": 4}}, "resources": {}}
    assert asked("synthetic", None, None) == {"app": "synthetic", "settings": {}, "resources": {}}


def test_a_deprecated_app_is_run_by_its_version_only(core):
    who = me(core)
    with pytest.raises(BadInput, match=r"'own_apps_17:old@1\.2\.0'"):
        run(core, who, "own_apps_17:old", {"x": 0.5})
    assert done(core, who, "own_apps_17:old@1.2.0", {"x": 0.5})["metrics"] == {"y": 0.5}


def test_a_rule_by_side_effects_asks_for_what_an_app_says_it_does(root):
    rules(root, '[[approval]]\neffects = ["reads the network"]\n')
    core = Core(root)
    who = me(core)
    assert done(core, who, "own_apps_17:scaled", {"x": 0.5})["state"] == "completed"
    error = refused(core, who, "own_apps_17:outgoing", {"x": 0.5})
    assert error.check == "approval" and "reads the network" in error.why
    core.close()


def test_where_a_site_has_a_price_what_nothing_bounds_is_refused(root):
    rules(root, f"[sites.threads]\nusd_per_node_hour = {2.0 * len(usable_cores())}\n[quota]\nusd = 5.0\n")
    core = Core(root)
    who = me(core)
    assert refused(core, who, "synthetic", {"x": 0.3}).check == "quota"
    assert core.run(who, "synthetic", {"x": 0.3}, walltime_s=3600.0)["state"] in ("pending", "running")
    assert refused(core, who, "synthetic", {"x": 0.4}, walltime_s=2 * 3600.0).field == "usd"
    core.close()


def test_what_runs_cost_in_dollars_is_booked_by_the_price(root):
    rules(root, "[sites.threads]\nusd_per_node_hour = 7200.0\n")
    core = Core(root)
    done(core, me(core), "synthetic", {"x": 0.3, "run_time_s": 0.2})
    spent = core.costs(me(core))["workspace"]
    assert spent["usd"] == pytest.approx(7200.0 * spent["node_hours"]) and spent["node_hours"] > 0
    core.close()


def test_the_service_imports_no_code(core, tmp_path):
    for call in (core.run, core.estimate):
        with pytest.raises(NotAllowed, match="the service imports no code"):
            call(me(core), "own_apps_17:scaled", {"x": 0.5})
    viewer = Caller(name="vera", role="viewer")
    assert core.estimate(viewer, "synthetic", {"x": 0.5})["refused"]["check"] == "caller"
    assert not (tmp_path / "own_apps_17.imported").exists() and "own_apps_17" not in sys.modules
    assert any(e["event"] == "refused" for e in read_events(core.folder.journal))


def test_an_edited_app_is_another_one(core, tmp_path):
    who, module = me(core), tmp_path / "own_apps_17.py"
    assert done(core, who, "own_apps_17:scaled", {"x": 0.5})["metrics"]["y"] == 0.5
    sys.modules.pop("own_apps_17")
    module.write_text(MODULE.replace('x * run.settings["scale"]', "7.0 + 0 * x") + "\n# of another length\n")
    again = run(core, who, "own_apps_17:scaled", {"x": 0.5})
    assert not again["found"]


def test_a_role_for_an_app_of_the_library_does_not_run_another_of_its_name(root, tmp_path):
    rules(root, '[roles.guest]\nmay = ["run"]\napps = ["scaled", "synthetic"]\n')
    core = Core(root)
    guest = Caller(name="gus", role="guest")
    error = refused(core, guest, "own_apps_17:scaled", {"x": 0.5})
    assert (error.check, error.field) == ("caller", "app") and "own:scaled" in error.do
    assert run(core, guest, "synthetic", {"x": 0.5})["state"] in ("pending", "running")
    core.close()


def test_what_has_failed_is_done_again_where_that_is_asked_for(core):
    who = me(core)
    failing = {"x": 0.9, "fail_above": 0.1}
    first = run(core, who, "synthetic", failing)["id"]
    assert core.wait(who, first, PATIENCE_S)["state"] == "failed"
    assert run(core, who, "synthetic", failing)["id"] == first
    second = run(core, who, "synthetic", failing, again=True)
    assert second["id"] != first and core.wait(who, second["id"], PATIENCE_S)["state"] == "failed"


def test_what_has_ended_well_is_done_again_where_that_is_asked_for(core):
    who = me(core)
    first = run(core, who, "synthetic", {"x": 0.3})
    core.wait(who, first["id"], PATIENCE_S)
    found = run(core, who, "synthetic", {"x": 0.3}, resources={"threads_per_rank": 2})
    assert found["found"] and found["id"] == first["id"]  # the same numbers, wherever
    assert "nothing runs anew" in found["note"] and found["resources"]["threads_per_rank"] == 1
    assert found["site"] == "threads" and found["ended_at"] is not None
    second = run(core, who, "synthetic", {"x": 0.3}, again=True)
    assert (second["found"], second["replicate"], second["note"]) == (False, 1, "")


def test_speeds_are_of_a_site_and_of_nodes_and_ranks(core, monkeypatch):
    who = me(core)
    monkeypatch.setattr(core, "_send", lambda *a: None)
    first = run(core, who, "lj_argon", {})
    for more in ({}, {"site": "threads"}, {"walltime_s": 60}, {"resources": {"threads_per_rank": 1}}):
        assert run(core, who, "lj_argon", {}, **more)["id"] == first["id"]
    other = run(core, who, "lj_argon", {}, resources={"threads_per_rank": 2})
    assert (other["found"], other["replicate"]) == (False, 1) and other["resources"]["threads_per_rank"] == 2
    assert run(core, who, "lj_argon", {}, resources={"threads_per_rank": 2})["id"] == other["id"]
    assert core.estimate(who, "lj_argon", {}, resources={"threads_per_rank": 2})["known"] == other["id"]
    assert run(core, who, "lj_argon", {}, site="laptop")["replicate"] == 2
    assert run(core, who, "lj_argon", {}, site="laptop", anywhere=True)["id"] == first["id"]


def test_what_a_site_can_never_hold_is_refused_at_once(core):
    who = me(core)
    for more in ({"resources": {"nodes": 2}}, {"resources": {"nodes": 2}, "site": "laptop"}):
        error = refused(core, who, "synthetic", {"x": 0.1}, **more)
        assert (error.check, error.field) == ("contract", "resources") and "never run there" in error.why
    assert not core.rows


@pytest.mark.parametrize(
    ("app", "ours"),
    [("synthetic", True), ("lj_argon", True), ("eos", True), ("own_apps_17:scaled", False)],
)
def test_what_the_library_brings_is_known_by_where_it_comes_from(root, app, ours):
    assert is_ours(find_app(app)) is ours


@pytest.mark.parametrize(
    ("app", "settings", "ours"),
    [
        ("lj_argon", {"mode": "executable"}, True),
        ("dft_energy", {"keywords": {"verbose": 4}}, True),
        ("dft_energy", {"pseudo_dir": "/usr/share/espresso/pseudo"}, True),
        ("dft_energy", {"calculator": "ase.calculators.morse:MorsePotential"}, False),
        ("dft_energy", {"command": "sh -c 'touch X'"}, False),  # a program in place of the site's
        ("mlip_md", {"checkpoint": __file__}, False),  # a pickle
        ("dft_energy", {"keywords": {"init_guess": "chkfile", "chkfile": "/x.chk"}}, False),  # PySCF evaluates it
    ],
)
def test_settings_that_are_code_make_an_app_somebodys_own(app, settings, ours):
    assert is_ours(find_app(app).with_settings(**settings)) is ours


def test_every_app_of_the_library_is_the_librarys_also_as_a_record_and_with_other_resources():
    for app in list_apps():
        record = json.loads(json.dumps(packed(app)))
        assert is_ours(unpacked(record)), app.name
    assert is_ours(find_app("synthetic").with_resources(walltime_s=60.0))


@pytest.mark.parametrize(
    "changed",
    [
        {"chain": True},  # its function would be called in the process that keeps the site
        {"settings": {"plugin": "x.so"}},
        {"contract": {"side_effects": "reads the network"}},
    ],
)
def test_a_record_that_is_not_the_librarys_app_is_somebodys_own(changed):
    record = json.loads(json.dumps(packed(find_app("synthetic"))))
    contract = record["app"]["contract"] | changed.get("contract", {})
    record["app"] |= changed | {"contract": contract}
    assert not is_ours(unpacked(record))


def test_another_script_under_a_packaged_name_is_somebodys_own(root):
    rules(root, "[[approval]]\nown = true\n")
    core = Core(root)
    script = find_app("lj_argon").settings["script"]
    error = refused(core, me(core), "lj_argon", {"steps": 100}, settings={"script": f"shell touch X\n{script}"})
    assert error.check == "approval" and "code of somebody's own" in error.why
    core.close()


def test_a_packaged_app_with_folders_of_modules_is_somebodys_own(root, tmp_path):
    rules(root, "[[approval]]\nown = true\n")
    core = Core(root)
    record = {**packed(find_app("synthetic")), "path": [str(tmp_path)]}
    with pytest.raises(NotAllowed) as caught:
        core.run(me(core), record, {"x": 0.3})
    assert caught.value.check == "approval"
    core.close()


def sweep_of_synthetic(runs: int = 2, **more: Any) -> str:
    until = {"max_runs": runs} | more.pop("until", {})
    policy = more.pop("policy", "sobol")
    return ha.Campaign(
        find_app("synthetic"), ha.maximize("value"), policy=policy, space={"x": {}}, until=until, **more
    ).toml()


def test_a_campaign_with_folders_of_modules_is_somebodys_own_whoever_brings_its_app(root, tmp_path):
    core = Core(root)
    record = {**packed(find_app("synthetic")), "path": [str(tmp_path)]}
    whole = {"toml": sweep_of_synthetic(), "app": record}
    begun = core.start(me(core), whole)
    until = time.monotonic() + PATIENCE_S
    while not core.rows[begun["id"]].over and time.monotonic() < until:
        time.sleep(0.1)
        core._look_at_campaigns()
    rules(root, "[[approval]]\nown = true\n")
    who = me(core)  # who reads the rules again
    assert core.estimate_campaign(who, {"toml": sweep_of_synthetic(3), "app": "synthetic"})["approval"] == ""
    assert "somebody's own" in core.estimate_campaign(who, {**whole, "toml": sweep_of_synthetic(3)})["approval"]
    with pytest.raises(NotAllowed, match="code of somebody's own") as caught:
        core.start(who, {**whole, "toml": sweep_of_synthetic(3)})
    assert caught.value.check == "approval"
    assert "somebody's own" in core.estimate_extension(who, begun["id"], changes={"until.max_runs": 3})["approval"]
    with pytest.raises(NotAllowed, match="code of somebody's own"):
        core.extend(who, begun["id"], changes={"until.max_runs": 3})
    assert [row.state for row in core.rows.values()] == ["completed"]
    core.close()


OWN_END = """
from typing import Literal

from hpcagent.policies.stop import Stop


class Never(Stop):
    kind: Literal["own_end_17:Never"] = "own_end_17:Never"

    def check(self, progress):
        return None


class Nothing:
    def __init__(self, space, objective, *, seed=0):
        pass

    def suggest(self, history, n):
        return []
"""


@pytest.mark.parametrize(
    "more",
    [
        {"until": {"own_end_17:Never": {}}},
        {"policy": {"name": "portfolio", "ladder": ["sobol", "own_end_17:Nothing"]}},
    ],
)
def test_code_that_a_campaigns_policy_or_end_names_is_somebodys_own(root, tmp_path, more):
    (tmp_path / "own_end_17.py").write_text(OWN_END)
    rules(root, "[[approval]]\nown = true\n")
    core = Core(root)
    assert core.estimate_campaign(me(core), {"toml": sweep_of_synthetic(), "app": "synthetic"})["approval"] == ""
    with pytest.raises(NotAllowed, match="code of somebody's own"):
        core.start(me(core), {"toml": sweep_of_synthetic(**more), "app": "synthetic"})
    core.close()


def test_the_service_imports_no_class_that_a_campaign_names_whoever_lets_it_through(root, tmp_path, monkeypatch):
    (tmp_path / "own_end_17.py").write_text(OWN_END)
    noting = "import os, pathlib; pathlib.Path(__file__ + str(os.getpid())).touch()\n"
    (tmp_path / "own_end_18.py").write_text(noting + OWN_END.replace("own_end_17", "own_end_18"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ha.Workspace(root) as there:
        service = there.about()["pid"]
        for more in (
            {"until": {"own_end_17:Never": {}}},
            {"policy": {"name": "portfolio", "ladder": ["sobol", "own_end_17:Nothing"]}},
        ):
            whole = {"toml": sweep_of_synthetic(**more).replace("own_end_17", "own_end_18"), "app": "synthetic"}
            if "until" in more:
                with pytest.raises(BadInput, match=r"'own_end_18:Never' is code of somebody's own"):
                    there._call("start", campaign=whole)
            else:
                there._call("start", campaign=whole)  # what runs it imports it
            assert not (tmp_path / f"own_end_18.py{service}").exists()
        there.end(runs=True)
    assert list(tmp_path.glob("own_end_18.py?*"))


def test_a_service_in_the_foreground_imports_no_class_either(root, tmp_path, monkeypatch):
    (tmp_path / "own_end_17.py").write_text(OWN_END)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with subprocess.Popen([sys.executable, "-m", "hpcagent.cli", "serve", "--workspace", root]) as served:
        try:
            there = ha.Workspace(root)
            until = time.monotonic() + PATIENCE_S
            while not (root / "service.json").exists() and time.monotonic() < until:
                time.sleep(0.05)
            assert there.about()["pid"] == served.pid
            whole = {"toml": sweep_of_synthetic(until={"own_end_17:Never": {}}), "app": "synthetic"}
            with pytest.raises(BadInput, match=r"'own_end_17:Never' is code of somebody's own"):
                there._call("start", campaign=whole)
        finally:
            served.terminate()


def test_a_damaged_record_of_an_app_is_written_anew_when_it_comes_along_again(core):
    who = me(core)
    done(core, who, "own_apps_17:scaled", {"x": 0.5})
    [kept] = core.folder.apps.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:100])
    core.store._known.clear()  # as after a restart
    assert done(core, who, "own_apps_17:scaled", {"x": 0.6})["metrics"]["y"] == 0.6
    assert kept.read_bytes() == whole


def test_a_program_with_a_short_name_is_not_the_librarys_own():
    read = {"y": ha.output.from_regex("y=(.*)", unit="1")}
    program = ha.executable("true {x}", name="true", parameters={"x": ha.Float(0, 1)}, metrics=read)
    assert not is_ours(program)


def test_what_an_estimate_says_is_from_runs_that_ended_here(core):
    who = me(core)
    before = core.estimate(who, "synthetic", {"x": 0.9})
    assert before["from"] == "the contract's estimate" and before["refused"] is None
    for x in (0.1, 0.2, 0.3):
        done(core, who, "synthetic", {"x": x})
    walls = sorted(core.status(who, identity)["cost"]["wall_s"] for identity in core.rows)
    after = core.estimate(who, "synthetic", {"x": 0.9})
    assert after["from"] == "3 runs here; outside of what they had: x = 0.9 (0.1 to 0.3)"
    assert after["wall_s"] == walls[1]
    accuracy = core.costs(who)["accuracy"]["synthetic"]
    assert accuracy["runs"] == 3 and accuracy["actual_s"] == pytest.approx(sum(walls) / 3)


def test_an_estimate_says_what_the_gate_would_refuse(root):
    rules(root, "[quota]\nruns_at_once = 0\n")
    core = Core(root)
    assert core.estimate(me(core), "synthetic", {"x": 0.3})["refused"]["check"] == "quota"
    assert not any(e["event"] == "refused" for e in read_events(root / "journal.jsonl"))
    core.close()


def test_the_accuracy_of_estimates_is_a_median_and_a_share():
    took = Took()
    for estimated_s, actual_s in ((1.0, 1.0), (1.0, 1.9), (1.0, 5.0), (0.0, 3.0)):
        took.add(estimated_s, actual_s)
    said = took.accuracy()
    assert said["actual_over_estimated"] == 1.9 and said["within_factor_2"] == pytest.approx(2 / 3)
    assert took.median_s == 3.0


def looked_until_over(core, identity):
    until = time.monotonic() + PATIENCE_S
    while not core.rows[identity].over and time.monotonic() < until:
        core._looked_at = 0.0
        core.look()
        time.sleep(0.05)
    assert core.rows[identity].state == "completed"


def test_runs_of_a_campaign_teach_estimates_each_once(root):
    def estimate():
        return core.estimate(me(core), "synthetic", {"x": 0.3, "y": 0.2})

    core = Core(root)
    toml = 'app = "synthetic"\nobjective = {minimize = "value"}\npolicy = "random"\nuntil = {max_runs = 6}\n'
    identity = core.start(me(core), {"data": toml})["id"]
    looked_until_over(core, identity)
    completed = states(core, identity).count("completed")
    found = estimate()
    assert found["from"].startswith(f"{completed} runs here") and found["wall_s"] > 0
    core.extend(me(core), identity, changes={"until.max_runs": 8})
    looked_until_over(core, identity)
    completed = states(core, identity).count("completed")
    assert estimate()["from"].startswith(f"{completed} runs here")
    said = core.costs(me(core))["accuracy"]["synthetic"]
    assert (said["runs"], said["estimated_s"], said["within_factor_2"]) == (completed, None, None)
    found = estimate()
    core.close()
    core = Core(root)  # from the journal
    assert estimate() == found
    core.close()


def test_with_few_runs_an_estimate_is_in_proportion_to_the_length():
    took = Took()
    took.add(90.0, 2.0, {"steps": 800, "equil_steps": 200, "cells": 6, "every": 100})
    lengths = lengths_of(["steps", "equil_steps", "cells", "every"])
    asked = {"steps": 99_000, "equil_steps": 1000, "cells": 6, "every": 100}
    seconds, words = took.expected(asked, contract_s=90.0, lengths=lengths)
    assert seconds == pytest.approx(200.0) and "in proportion to steps + equil_steps" in words
    # Nobody knows what more cells take: it is not below what the contract says.
    larger, words = took.expected({**asked, "steps": 800, "cells": 12}, contract_s=90.0, lengths=lengths)
    assert larger == 90.0 and "the contract's estimate" in words and "cells = 12 (6 in all)" in words
    for seed in range(5):
        took.add(90.0, 2.0, {"steps": 800, "equil_steps": 200, "cells": 6, "every": 100, "seed": seed})
    assert took.expected(asked, lengths=lengths)[0] == pytest.approx(200.0)


def test_an_estimate_that_nobody_has_stated_does_not_go_before_runs(tmp_path):
    took = Took()
    for _ in range(4):
        took.add(60.0, 1.9, {"dt": 2.0, "cells": 6})
    asked = {"dt": 5.0, "cells": 12}
    assert took.expected(asked, contract_s=60.0)[0] == 60.0
    seconds, words = took.expected(asked, contract_s=60.0, stated=False)
    assert seconds == 1.9 and words.startswith("4 runs here; outside of what they had")
    script = tmp_path / "in.gas"
    script.write_text("units lj\nvariable t index 1.0\nvelocity all create ${t} 1\nrun 10\n")
    contract = tmp_path / "in.gas.toml"
    stated = []
    for line in ("", "estimated_runtime_s = 20\n"):
        contract.write_text(line)
        made = ha.lammps(script, variables={"t": ha.Float(0.5, 2.0)})
        stated.append(runtime_is_stated(made))
        app = made.model_copy(update={"contract": Contract.model_validate(made.contract.model_dump())})
        assert runtime_is_stated(app) == stated[-1]  # also as it was kept
    assert stated == [False, True]


def test_what_a_run_is_expected_to_take_is_what_it_is_charged_and_within_its_limit(root):
    rules(root, "[quota]\nnode_hours = 10\n[sites.threads]\nusd_per_node_hour = 2.0\n")
    core = Core(root)
    who, params, cores = me(core), {"x": 0.3, "run_time_s": 0.01}, len(usable_cores())
    expected_s = find_app("synthetic").contract.estimated_runtime_s
    asked = core.request(who, "synthetic", params, walltime_s=3600.0)[2]
    found = core.estimate(who, "synthetic", params, walltime_s=3600.0)
    assert found["node_hours"] == pytest.approx(expected_s / 3600 / cores) and found["wall_s"] == expected_s
    assert found["node_hours_at_most"] == asked.charged_node_hours == pytest.approx(1 / cores)
    assert found["usd_at_most"] == pytest.approx(2 / cores)
    assert asked.node_hours == 1.0  # rules of approval are of nodes x walltime
    short = core.estimate(who, "synthetic", params, walltime_s=expected_s / 2)
    assert short["wall_s"] == expected_s / 2 and short["from"].startswith("its walltime; the contract's estimate")
    assert short["node_hours"] == short["node_hours_at_most"]
    held = core.run(who, "synthetic", {"x": 0.4, "run_time_s": 2.0}, walltime_s=3600.0)["id"]
    assert core.accounts.whole.in_flight == (pytest.approx(1 / cores), pytest.approx(2 / cores))
    core.close()
    core = Core(root)  # from the journal
    assert core.accounts.whole.in_flight == (pytest.approx(1 / cores), pytest.approx(2 / cores))
    assert core.wait(who, held, PATIENCE_S)["state"] == "completed"
    core.close()


def test_an_estimate_is_of_the_site_that_is_asked_for(core):
    who = me(core)
    done(core, who, "synthetic", {"x": 0.3})
    other = core.estimate(who, "synthetic", {"x": 0.9}, site="laptop")
    assert other["from"] == "the contract's estimate: none of its 1 runs here was on laptop"
    assert other["wall_s"] == find_app("synthetic").contract.estimated_runtime_s


def test_what_is_to_be_known_of_a_number_goes_with_it(core):
    who = me(core)
    run = done(core, who, "synthetic", {"x": 0.3})["id"]
    assert core.status(who, run)["distrusted"] is None
    row = core.rows[run]
    row.result = {**row.result, "distrusted": "it had 17 % of its core"}
    assert core.status(who, run)["distrusted"] == "it had 17 % of its core"
    assert core.listed(who)["runs"][0]["distrusted"] == "it had 17 % of its core"


def test_what_a_cancelled_run_took_is_its_cost(root):
    core = Core(root)
    who = me(core)
    run = core.run(who, "synthetic", {"x": 0.3, "run_time_s": 0.5})["id"]
    while core.rows[run].state == "pending":
        time.sleep(0.01)
    core.cancel(who, run)
    end = time.monotonic() + PATIENCE_S
    while not core.accounts.of(who.name).node_hours and time.monotonic() < end:
        time.sleep(0.02)
    cost = core.status(who, run)["cost"]
    assert cost["node_hours"] == core.accounts.of(who.name).node_hours > 0 and cost["wall_s"] > 0
    core.close()
    again = Core(root)
    assert again.status(who, run)["cost"] == cost
    again.close()


def test_an_estimate_follows_the_parameter_that_decides_the_time():
    """Times that go with n^2 and do not depend on seed: at n = 50 it is 25 s."""
    took = Took()
    for n in (10, 20, 30, 40):
        for seed in (1, 2):
            took.add(0.0, n**2 / 100, {"n": n, "seed": seed, "method": "fast", "again": True})
    inside, words = took.expected({"n": 25, "seed": 1})
    assert inside == pytest.approx(6.25, rel=0.05) and words == "8 runs here"
    outside, words = took.expected({"n": 50, "seed": 7})
    assert outside == pytest.approx(25.0, rel=0.1)
    assert "n = 50 (10 to 40), seed = 7 (1 to 2)" in words


def test_an_estimate_is_of_the_last_runs_also_when_it_was_asked_for_between_them():
    """Steps of 1 ms: those of the first 500 runs, and a parameter that only they had, are forgotten."""
    took = Took()
    for n in range(1, 501):
        took.add(0.0, 1.0, {"n": n, "old": n})
        if n % 100 == 0:
            took.expected({"n": 1})
    for n in range(1000, 1500):
        took.add(0.0, n / 1000, {"n": n})
    seconds, words = took.expected({"n": 1600, "old": 3})
    assert seconds == pytest.approx(1.6, rel=0.01)
    assert words == "1000 runs here; outside of what they had: n = 1600 (1000 to 1499)"


@pytest.mark.parametrize("values", [(0.05, math.nextafter(0.05, 1)), (1e308, -1e308), (10**400, 2)])
def test_parameters_that_tell_nothing_leave_an_estimate_a_number(values):
    took = Took()
    assert took.expected({"x": 1.0}, contract_s=7.0)[0] == 7.0
    for number in range(6):
        took.add(0.0, 2.0 + number % 2, {"x": values[number % 2]})
    for value in (*values, 3.0):
        assert 1.5 < took.expected({"x": value})[0] < 5


def test_every_label_of_the_same_work_is_found_again(core):
    who = me(core)
    first = core.run(who, "synthetic", {"x": 0.3})["id"]
    second = core.run(who, "synthetic", {"x": 0.3}, label="second")["id"]
    assert first != second
    assert core.run(who, "synthetic", {"x": 0.3}, label="second")["id"] == second
    assert core.run(who, "synthetic", {"x": 0.3})["id"] == first


def test_no_two_sites_share_a_folder():
    names = ["gpu node", "gpu-node", "gpu.node", "laptop", "/a/laptop.toml", "/b/laptop.toml"]
    folder = Folder(Path("ws"))
    assert len({folder.of_site(name) for name in names}) == len(names)
    assert folder.of_site("laptop") == Path("ws/sites/laptop")


def test_a_page_after_a_run_that_is_not_there_is_refused(core):
    with pytest.raises(BadInput, match="there is no run 'r-none'"):
        core.listed(me(core), after="r-none")


def test_a_text_that_no_event_may_have_costs_the_event_and_not_the_run(core, monkeypatch):
    who = me(core)

    def refuse(*_: Any, **__: Any) -> None:
        raise BadInput("no event has this.")

    monkeypatch.setattr(core.events, "tell", refuse)
    assert done(core, who, "synthetic", {"x": 0.3})["state"] == "completed"
    assert done(core, who, "synthetic", {"x": 0.4})["state"] == "completed"
    assert any("was not told: no event has this." in news for news in core.about()["news"])


def test_a_run_that_cannot_be_sent_costs_no_other(core, monkeypatch):
    from hpcagent.workspace.desk import Desk

    who, sent = me(core), Desk._sent

    def broken(self: Any, site: Any, app: Any, manifest: Any, *more: Any) -> Any:
        if manifest.params["x"] == 0.3:
            raise RuntimeError("a bug")
        return sent(self, site, app, manifest, *more)

    monkeypatch.setattr(Desk, "_sent", broken)
    assert done(core, who, "synthetic", {"x": 0.3})["failure"]["name"] == "RuntimeError"
    assert done(core, who, "synthetic", {"x": 0.4})["state"] == "completed"


def test_what_failed_with_a_credential_in_its_message_is_told_without_it(core):
    who = me(core)
    made = core.subscribe(who, events=["on_job_failed"])
    row = core.rows[core.run(who, "synthetic", {"x": 0.3, "fail_above": 0.1})["id"]]
    core.wait(who, row.id, PATIENCE_S)
    core.outbox.tell(
        "on_job_failed", who.name, {"job_id": row.id, "job_type": "synthetic", "reason": "Bearer " + "q" * 24}
    )
    told = core.notifications(who, subscription_id=made["subscription_id"], timeout_s=10.0)
    assert len(told) == 2 and "q" * 24 not in json.dumps(told)


def test_a_subscriber_that_waits_hears_of_a_run_when_it_ends(core):
    who = me(core)
    made = core.subscribe(who, events=["on_job_complete"])
    run = core.run(who, "synthetic", {"x": 0.3, "run_time_s": 0.3})["id"]
    began = time.monotonic()
    [told] = core.notifications(who, subscription_id=made["subscription_id"], timeout_s=PATIENCE_S)
    assert told["payload"]["job_id"] == run and time.monotonic() - began < PATIENCE_S / 2


def test_a_call_that_is_written_down_is_run_as_it_is_written(core):
    who = me(core)
    app = find_app("synthetic")
    call = ha.types.Invocation.make(app, {"x": 0.3}, requested_by="planner", random_seed=7, budget=0.5)
    begun = core.invoke(who, invocation=call.model_dump(mode="json"))
    assert core.wait(who, begun["id"], PATIENCE_S)["metrics"]["value"] == pytest.approx(25.2)
    row = core.rows[begun["id"]]
    assert row.request["node_hours"] == pytest.approx(0.5) and row.manifest["seed"] == 7
    back = ha.types.Invocation.model_validate(core.invocation(who, begun["id"]))
    assert (back.execution_id, back.inputs["x"], back.random_seed) == (call.execution_id, 0.3, 7)
    assert core.invoke(who, invocation=back.model_dump(mode="json"))["found"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": {"x": 0.9}}, "it was changed after it was written"),
        ({"tool_version": "9.0.0"}, "it was changed after it was written"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_call_that_was_changed_is_refused(core, change, words):
    call = ha.types.Invocation.make(find_app("synthetic"), {"x": 0.3}, requested_by="p", random_seed=7)
    with pytest.raises(NotAllowed, match=words):
        core.invoke(me(core), invocation=call.model_dump(mode="json") | change)


def test_an_approval_of_another_request_does_not_let_a_call_through(root):
    rules(root, '[[approval]]\napp = "synthetic"\n')
    core = Core(root)
    who = me(core)
    other = refused(core, who, "synthetic", {"x": 0.1}).approval
    core.decide(who, other, grant=True)
    call = ha.types.Invocation.make(
        find_app("synthetic"), {"x": 0.3}, requested_by="p", random_seed=7, approval=other
    )
    with pytest.raises(NotAllowed, match="is of another request"):
        core.invoke(who, invocation=call.model_dump(mode="json"))
    core.close()


def test_a_database_of_materials_is_asked_by_an_app(core, tmp_path):
    from ase.build import bulk
    from ase.db import connect

    path = tmp_path / "bulk.db"
    with connect(path) as file:
        for name, gap in (("Si", 1.1), ("C", 5.5), ("Cu", 0.0)):
            file.write(bulk(name), gap=gap)
    asked_for = {"source": str(path), "filters": '{"ranges": {"gap": {"min": 1.0}}}'}
    status = done(core, me(core), "query_materials_database", asked_for)
    assert status["metrics"] == {"n_records": 2.0, "n_total": 2.0}
    answer = json.loads((Path(core.folder.work) / status["execution_id"] / "answer.json").read_text())
    assert sorted(record["formula"] for record in answer["records"]) == ["C", "Si"]
    wrong = done(core, me(core), "query_materials_database", asked_for | {"filters": "DROP TABLE"})
    assert wrong["failure"]["name"] == "BadQuery"


# -- replay ---------------------------------------------------------------------------------------


def stand(core: Core) -> dict[str, Any]:
    """What is known of everybody's runs, and who pays for them."""
    rows = {r.id: (r.owner, r.state if r.over else "open", r.shares, r.note) for r in core.rows.values()}
    people = {name: (a.node_hours, sorted(a.committed)) for name, a in core.accounts.people().items()}
    return {"rows": rows, "people": people}


def test_work_that_its_first_owner_cancels_goes_on_for_the_next_and_on_their_account(root):
    rules(root, '[people.ada]\nrole = "planner"\n[people.bob]\nrole = "planner"\n')
    core = Core(root)
    ada, bob = Caller(name="ada", role="planner"), Caller(name="bob", role="planner")
    params = {"x": 0.3, "run_time_s": 1.0}
    first = core.run(ada, "synthetic", params)["id"]
    second = core.run(bob, "synthetic", params)["id"]
    assert core.rows[second].shares == first
    assert core.cancel(ada, first)["how"] == "it goes on for others who have asked for the same work"
    assert core.rows[second].shares == "" and core.accounts.of("bob").committed
    assert core.wait(bob, second, PATIENCE_S)["state"] == "completed"
    assert core.accounts.of("ada").node_hours == 0.0
    took = core.accounts.of("bob").node_hours
    assert took == pytest.approx(core.status(bob, second)["cost"]["node_hours"]) and took > 0
    live = stand(core)
    core.close()
    again = Core(root)
    assert stand(again) == live
    again.close()


def test_hours_of_attempts_that_the_machine_lost_are_booked_with_the_last(core):
    who = me(core)
    row = core.rows[core.run(who, "synthetic", {"x": 0.3, "run_time_s": 5.0})["id"]]
    manifest = {**row.manifest}
    result = Result.model_validate(
        {
            "manifest": manifest,
            "status": "COMPLETED",
            "metrics": {"value": 1.0},
            "started_at": 1.0,
            "ended_at": 2.0,
        }
    ).model_copy(update={"cost": Cost(wall_s=1.0, node_hours=0.25)})
    with core._turn:
        core._result(row, result, 0.5)
    assert core.accounts.of(who.name).node_hours == pytest.approx(0.75)
    assert "0.5 node-hours went into attempts that the machine has lost" in core.status(who, row.id)["notes"]


def test_a_run_of_another_version_of_a_packaged_app_is_not_taken_up(root, monkeypatch):
    core = Core(root)
    who = me(core)
    core._send = lambda *_: None  # type: ignore[method-assign]  # killed before the site has them
    runs = [core.run(who, "synthetic", {"x": x})["id"] for x in (0.1, 0.2)]
    core.close()
    app = find_app("synthetic")
    newer = app._changed(contract=app.contract.model_copy(update={"version": "9.0.0"}))
    monkeypatch.setattr("hpcagent.workspace.references.find_app", lambda _: newer)
    core = Core(root)
    for one in runs:
        status = core.status(who, one)
        assert (
            status["state"] == "failed" and "was 1.0.0 when it was asked for, and is 9.0.0" in status["notes"][-1]
        )
    core.close()


# -- campaigns ------------------------------------------------------------------------------------


def test_a_campaign_goes_on_beyond_its_cap_only_through_the_gate(root, tmp_path):
    rules(root, "[quota]\nnode_hours = 1.0\n[[approval]]\nnodes_times_hours = 0.4\n")
    core = Core(root)
    who = me(core)
    begun = core.start(who, "synthetic", changes={"until.max_runs": 4, "until.node_hours": 0.3})
    folder = Path(begun["workdir"])
    looked_until_over(core, begun["id"])
    took_s = core.rows[begun["id"]].elapsed_s(time.time())
    more = {"until.max_runs": 8, "until.node_hours": 0.9}
    with pytest.raises(NotAllowed, match=r"let it through with 0\.3 node-hours at most"):
        ha.run(load_run(folder, changes=more), site="threads", run_dir=folder)
    with pytest.raises(NotAllowed) as asked:
        core.extend(who, begun["id"], changes=more)
    assert asked.value.check == "approval"
    time.sleep(1.0)  # a pause, which is no part of what it takes
    core.decide(who, asked.value.approval, grant=True)
    assert core.decide(who, asked.value.approval, grant=True)["state"] == "granted"  # said again
    core.extend(who, begun["id"], changes=more)
    assert core.extend(who, begun["id"], changes=more)["found"]  # as after a lost answer
    assert len(core.approval_list(who)) == 1
    looked_until_over(core, begun["id"])
    assert sum(core.answer(who, begun["id"])["runs"].values()) == 8
    with pytest.raises(NotAllowed, match="for another site"):
        ha.run(load_run(folder, changes=more), site="laptop", run_dir=folder)
    live, row = core.accounts.whole.node_hours, core.rows[begun["id"]]
    assert core.campaign(who, begun["id"])["node_hours_at_most"] == pytest.approx(0.9)
    whole_s = row.ended_at - row.asked_at
    assert took_s < row.elapsed_s(0.0) < whole_s - 0.9
    core.close()
    core = Core(root)
    assert core.accounts.whole.node_hours == pytest.approx(live) and not core.accounts.whole.committed
    again = core.rows[begun["id"]]
    assert (again.elapsed_s(0.0), again.node_hours_at_most) == (row.elapsed_s(0.0), row.node_hours_at_most)
    core.close()


def test_a_campaign_that_was_stopped_and_gone_on_with_by_hand_is_booked(root):
    core = Core(root)
    identity, folder = stopped_half_way(core)
    before = core.accounts.whole.node_hours
    ha.run(load_run(folder), site="threads", run_dir=folder)
    core._look_at_campaigns()
    assert core.rows[identity].state == "completed" and core.accounts.whole.node_hours > before
    assert known_runs(core) == states(core, identity).count("completed") == 30
    core.close()


def stopped_half_way(core):
    """A campaign that was stopped when some of its runs had ended, and its folder."""
    changes = {"until.max_runs": 30, "fixed.run_time_s": 0.3, "fixed.fail_above": 2.0}
    begun = core.start(me(core), "synthetic", changes=changes)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and "completed" not in states(core, begun["id"]):
        time.sleep(0.05)
    core.stop(me(core), begun["id"])
    while not core.rows[begun["id"]].over and time.monotonic() < until:
        core._look_at_campaigns()
        time.sleep(0.05)
    assert core.rows[begun["id"]].state == "stopped"
    return begun["id"], Path(begun["workdir"])


def known_runs(core):
    return core.costs(me(core))["accuracy"]["synthetic"]["runs"]


def states(core, identity):
    return core.campaign_runs(me(core), identity)["runs"]["state"]


def test_a_journal_that_is_written_ahead_of_the_clock_is_booked_once(root):
    core = Core(root)
    _, folder = stopped_half_way(core)
    ahead = time.time() + 60
    os.utime(folder / "events.jsonl", (ahead, ahead))
    took, lines = known_runs(core), core.folder.journal.read_bytes()
    for _ in range(5):
        core._look_at_campaigns()
    assert known_runs(core) == took > 0 and core.folder.journal.read_bytes() == lines
    core.close()


def test_runs_whose_speed_is_not_believed_teach_what_they_took(root):
    """On a busy machine all are such, and a run of the same app would take as long."""
    core = Core(root)
    _, folder = stopped_half_way(core)
    there = snapshot(folder)
    runs = [one.model_copy(update={"distrusted": "it had 30 % of its core"}) for one in there.state.in_arrival()]
    busy = SimpleNamespace(state=SimpleNamespace(rows=runs))
    assert _taught(busy, 0) == _taught(there, 0) and len(_taught(busy, 0)["times"]) > 0
    core.close()


def test_a_run_that_was_given_up_teaches_once_it_has_completed():
    run = Manifest(execution_id="", app="a", app_version="1", params={"x": 1.0})
    run = run.model_copy(update={"execution_id": run.identity})
    lost = Failure(kind="infrastructure", name="WorkerLost", message="m")
    state = State()
    state.add_manifest(run)
    state.add_result(Result(manifest=run, status="FAILED", failure=lost))
    first = _taught(SimpleNamespace(state=state), 0)
    assert first == {"results": 1, "failed": 0, "times": []}
    state.add_result(Result(manifest=run, status="COMPLETED", cost=Cost(wall_s=5.0, node_hours=0.1)))
    assert _taught(SimpleNamespace(state=state), 1) == {"results": 2, "failed": 0, "times": [(5.0, {"x": 1.0})]}
    assert _taught(SimpleNamespace(state=state), 2) is None


@pytest.mark.parametrize("changes", [{}, {"until.max_runs": 3}, {"until.max_runs": 4}])
def test_an_extension_that_adds_nothing_is_refused_before_anything_is_written(root, changes):
    core = Core(root)
    begun = core.start(me(core), "synthetic", changes={"until.max_runs": 4})
    looked_until_over(core, begun["id"])
    for ask in (core.extend, core.estimate_extension):
        with pytest.raises(NotAllowed) as refused:
            ask(me(core), begun["id"], changes=changes)
        assert refused.value.check == "contract" and refused.value.allowed == "more than 4"
        assert "4 runs have ended already" in refused.value.message and "max_runs to 8" in refused.value.message
    assert core.rows[begun["id"]].state == "completed"
    assert b'"extended"' not in core.folder.journal.read_bytes()
    core.close()


def test_a_campaign_that_has_come_to_its_end_goes_on_only_with_another_end(root):
    core = Core(root)
    toml = 'app = "synthetic"\nobjective = {maximize = "value"}\npolicy = "random"\n'
    begun = core.start(me(core), {"data": toml + "until = {max_batches = 1}\nbatch_size = 3\n"})
    looked_until_over(core, begun["id"])
    with pytest.raises(NotAllowed, match=r"come to its end \(The only batch has ended\), and nothing is changed"):
        core.extend(me(core), begun["id"])
    core.extend(me(core), begun["id"], changes={"until.max_batches": 2})
    looked_until_over(core, begun["id"])
    assert sum(core.answer(me(core), begun["id"])["runs"].values()) == 6
    core.close()


def test_results_that_were_told_teach_no_estimate(root):
    core = Core(root)
    identity, folder = stopped_half_way(core)
    took, taught = known_runs(core), core.rows[identity].taught
    with Coordinator(load_run(folder), run_dir=folder, site="threads") as steering:
        for n in range(5):
            point = {"x": 0.1 + n / 10, "y": 0.5, "style": "plain"}
            steering.tell(point, {"value": 1.0 * n, "error": 0.5}, origin="a notebook")
    core._look_at_campaigns()
    assert known_runs(core) == took > 0 and core.rows[identity].taught == taught + 5
    assert states(core, identity).count("completed") == took + 5  # as the page shows them
    core.close()


@pytest.mark.parametrize(
    "taught", [5, {}, {"results": 4, "failed": 0, "times": [[0.5, {}], [math.nan, {}]]}, {"results": "x"}, [1]]
)
def test_damaged_times_of_a_campaign_cost_estimates_and_no_booking(root, taught):
    core = Core(root)
    identity = core.start(me(core), "synthetic", changes={"until.max_runs": 4, "until.node_hours": 0.5})["id"]
    looked_until_over(core, identity)
    hours = core.accounts.whole.node_hours
    core.close()
    lines = [json.loads(line) for line in (root / "journal.jsonl").read_text().splitlines()]
    text = "".join(
        json.dumps(line | ({"taught": taught} if "taught" in line else {}), separators=(",", ":")) + "\n"
        for line in lines
    )
    (root / "journal.jsonl").write_text(text)
    core = Core(root)
    assert core.damaged == 1 and core.costs(me(core))["accuracy"] == {}
    assert core.accounts.whole.node_hours == pytest.approx(hours) and not core.accounts.whole.committed
    core.close()


def test_what_others_runs_had_is_told_to_those_who_see_them(root):
    rules(root, '[people.pat]\nrole = "executor"\n')
    core = Core(root)
    run = core.run(me(core), "synthetic", {"x": 0.3, "run_time_s": 0.01})["id"]
    core.wait(me(core), run, PATIENCE_S)
    asked = {"x": 0.3, "run_time_s": 5.0}
    pat = core.caller(os.getuid(), "pat")
    assert "run_time_s = 5 (0.01 in all)" in core.estimate(me(core), "synthetic", asked)["from"]
    assert core.estimate(pat, "synthetic", asked)["from"] == "1 run here"
    core.close()


@pytest.mark.parametrize("steps", [(100, 300), (200, 200), (100, 200, 300, 400)])
def test_words_for_those_who_do_not_see_runs_are_the_same_wherever_they_ask(steps):
    """Else where the words change is where the runs of others were."""
    took = Took()
    for n in steps:
        took.add(1.0, n / 100, {"steps": n, "cells": 8})
    asked = [{"steps": n, "cells": cells} for n in (1, 150, 200, 5000) for cells in (1, 8, 9)]
    lengths = lengths_of(["steps"])
    assert len({took.expected(one, lengths=lengths, ranges_said=False)[1] for one in asked}) == 1
    assert len({took.expected(one, lengths=lengths)[1] for one in asked}) > 1


def own_campaign(core, app, runs):
    """A campaign of one's own app, until it has ended."""
    toml = (
        f'app = "synthetic"\nobjective = {{maximize = "value"}}\npolicy = "sobol"\nuntil = {{max_runs = {runs}}}\n'
    )
    whole = asked(app)
    looked_until_over(core, core.start(me(core), {"toml": toml, "app": whole["app"]})["id"])


def test_an_own_app_teaches_nothing_about_the_packaged_one_of_its_name(root):
    def said(app):
        whole = asked(app)
        return core.estimate(me(core), whole.pop("app"), {"x": 0.9}, **whole)

    core = Core(root)
    before = said("synthetic")
    assert done(core, me(core), "own_apps_17:namesake", {"x": 0.3})["state"] == "completed"
    own_campaign(core, "own_apps_17:namesake", 2)
    for _ in range(2):
        assert (said("synthetic")["from"], said("synthetic")["wall_s"]) == (before["from"], before["wall_s"])
        own = said("own_apps_17:namesake")
        assert own["from"].startswith("3 runs here") and own["wall_s"] >= 0.5
        [label] = core.costs(me(core))["accuracy"]
        assert label.startswith("synthetic 9.9.9 (own code ")
        core.close()
        core = Core(root)  # from the journal
    own_campaign(core, "synthetic", 3)
    assert done(core, me(core), "synthetic", {"x": 0.3})["state"] == "completed"
    assert said("synthetic")["from"].startswith("4 runs here")
    assert said("own_apps_17:namesake")["from"].startswith("3 runs here")
    assert {n: a["runs"] for n, a in core.costs(me(core))["accuracy"].items()} == {"synthetic": 4, label: 3}
    core.close()


def without(line: dict[str, Any], *names: str) -> dict[str, Any]:
    """A line of a journal as it was before it had these fields."""
    inner = {n: without(v, *names) for n, v in line.items() if n in ("request", "taught") and isinstance(v, dict)}
    return {n: v for n, v in (line | inner).items() if n not in names}


def test_a_journal_from_before_versions_were_kept_apart_teaches_as_well(root):
    core = Core(root)
    for app in ("synthetic", "own_apps_17:namesake"):
        assert done(core, me(core), app, {"x": 0.3})["state"] == "completed"
        own_campaign(core, app, 3)
    core.close()
    lines = [json.loads(line) for line in (root / "journal.jsonl").read_text().splitlines()]
    (root / "journal.jsonl").write_text("".join(json.dumps(without(n, "code", "own")) + "\n" for n in lines))
    core = Core(root)
    assert core.damaged == 0 and core.estimate(me(core), "synthetic", {"x": 0.3})["from"].startswith("4 runs here")
    core.close()
    lines = [without(n, "code", "own", "version") for n in lines]
    (root / "journal.jsonl").write_text("".join(json.dumps(n) + "\n" for n in lines))
    core = Core(root)
    assert core.damaged == 0 and core.estimate(me(core), "synthetic", {"x": 0.3})["from"].startswith("1 run here")
    assert sum(one["runs"] for one in core.costs(me(core))["accuracy"].values()) == 8
    core.close()


def test_runs_of_another_version_are_named_and_teach_nothing(root):
    core = Core(root)
    before = core.estimate(me(core), "synthetic", {"x": 0.3})["wall_s"]
    for x in (0.1, 0.2):
        done(core, me(core), "synthetic", {"x": x, "run_time_s": 0.2})
    own_campaign(core, "synthetic", 3)
    core.close()
    journal = root / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"version":"1.0.0"', '"version":"0.9.0"'))
    core = Core(root)
    found = core.estimate(me(core), "synthetic", {"x": 0.3})
    assert found["wall_s"] == before
    assert found["from"] == "the contract's estimate: its 5 runs here were of version 0.9.0"
    done(core, me(core), "synthetic", {"x": 0.4})
    assert core.estimate(me(core), "synthetic", {"x": 0.4})["from"] == "1 run here"
    assert {n: a["runs"] for n, a in core.costs(me(core))["accuracy"].items()} == {
        "synthetic": 1,
        "synthetic 0.9.0": 5,
    }
    core.close()


def test_costs_tell_nobody_of_other_peoples_own_apps(root):
    rules(root, '[people.pat]\nrole = "executor"\n[people.kim]\nrole = "few"\n')
    rules(root, '[roles.few]\nmay = ["run", "read"]\napps = ["own:*"]\n')
    core = Core(root)
    pat, kim = core.caller(os.getuid(), "pat"), core.caller(os.getuid(), "kim")
    for who, app in ((me(core), "own_apps_17:scaled"), (me(core), "synthetic"), (pat, "own_apps_17:outgoing")):
        assert done(core, who, app, {"x": 0.3})["state"] == "completed"
    for _ in range(2):
        told = [list(core.costs(who)["accuracy"]) for who in (me(core), pat, kim)]
        assert told == [["outgoing", "scaled", "synthetic"], ["outgoing", "synthetic"], []]
        core.close()
        core = Core(root)
    core.close()


def test_a_call_begins_no_more_than_it_was_said_to(root):
    with ha.Workspace(root) as there:
        asked = {"x": 0.3, "run_time_s": 0.01}
        price = there.estimate("synthetic", asked, walltime_s=36)["node_hours_at_most"]
        with (
            at_most(0.9 * price),
            pytest.raises(NotAllowed, match=rf"{0.9 * price:.4g} node-hours at most, and it would take up to"),
        ):
            there.run("synthetic", asked, walltime_s=36)
        with at_most(price), pytest.raises(NotAllowed, match="nothing bounds it"):
            there.run("synthetic", asked)
        with at_most(0.0), pytest.raises(NotAllowed, match="nothing bounds it"):
            there.start("synthetic", changes={"until.max_runs": 3})
        assert there.list()["runs"] == []
        with at_most(price):
            run = there.run("synthetic", asked, walltime_s=36)
        with at_most(0.0):  # what is known takes nothing
            assert there.run("synthetic", asked, walltime_s=36)["id"] == run["id"]
            assert there.wait(run["id"], PATIENCE_S)["state"] == "completed"
        for wrong in (-1.0, True, "1", math.nan):
            with at_most(wrong), pytest.raises(BadInput, match="at_most is a number"):
                there.run("synthetic", asked)
        there.end(runs=True)


def test_a_campaign_with_code_of_somebodys_own_says_so(root, tmp_path):
    rules(root, "[[approval]]\nown = true\n")
    (tmp_path / "own.toml").write_text(
        'name = "own"\napp = "own_apps_17:scaled"\nobjective = {maximize = "y"}\npolicy = "sobol"\n'
        "[until]\nmax_runs = 2\n"
    )
    core = Core(root)
    with pytest.raises(NotAllowed, match="the service imports no code"):
        core.start(me(core), str(tmp_path / "own.toml"))
    assert not (tmp_path / "own_apps_17.imported").exists()
    script = find_app("lj_argon").with_settings(script="shell touch X\n" + find_app("lj_argon").settings["script"])
    whole = ha.Campaign(
        name="theirs", app=script, objective=ha.minimize("loop_time_s"), policy="sobol", until=ha.until.max_runs(2)
    )
    with pytest.raises(NotAllowed, match="code of somebody's own"):
        core.start(me(core), {"toml": whole.toml(), "app": packed(whole.app)})
    core.close()


class Runs:
    """What a pickle runs where it is loaded."""

    def __reduce__(self):
        return os.system, ("exit 0",)


def test_code_of_ones_own_does_not_pass_for_the_librarys(core):
    record = packed(find_app("synthetic"))
    record["carried"] = base64.b64encode(pickle.dumps(Runs())).decode()
    with pytest.raises(NotAllowed, match="carries one of a script"):
        core.run(me(core), record, {"x": 0.3})
    record["app"] |= {"function": "", "source": "__main__:synthetic"}
    reference = core.store.put(record)
    with pytest.raises(BadInput, match=r"carries \w+\.system in place of a function"):
        core.store.runnable(reference)


def test_who_may_not_run_leaves_nothing_behind_by_asking_what_it_would_take(root):
    rules(root, '[people.eve]\nuid = 4242\nrole = "viewer"\n')
    core = Core(root)
    eve = core.caller(4242)
    text = 'name = "x"\napp = "synthetic"\nobjective = { maximize = "value" }\nuntil = { max_runs = 3 }\n'
    for n in range(3):
        assert core.estimate_campaign(eve, {"data": text.replace('"x"', f'"x{n}"')})["runs"] == 3
    assert not any(path.is_file() for path in (root / "asked").rglob("*"))
    for call in (core.estimate, core.run):
        with pytest.raises(NotAllowed, match="viewer"):
            call(eve, packed(find_app("synthetic")), {"x": 0.3})
    core.close()


def test_what_is_no_name_is_refused_and_a_campaigns_name_holds_no_credential(core):
    who = me(core)
    text = 'name = "password=hunter22secret"\napp = "synthetic"\nobjective = { maximize = "value" }\n'
    with pytest.raises(NotAllowed, match="no credential"):
        core.start(who, {"data": text + "until = { max_runs = 3 }\n"})
    assert "hunter22secret" not in (core.folder.root / "journal.jsonl").read_text()
    with pytest.raises(NotAllowed, match="at most 200"):
        core.run(who, "synthetic", {"x": 0.3}, site="a" * 5000)
    with pytest.raises(NotAllowed, match="an app is a name"):
        core.run(who, [1], {"x": 0.3})


def test_a_run_asks_for_the_profile_of_its_site_once(core, monkeypatch):
    core.run(me(core), "synthetic", {"x": 0.1})
    asked_for: list[str] = []
    monkeypatch.setattr(sites, "shared_profile", lambda name: asked_for.append(name) or shared_profile(name))
    core.run(me(core), "synthetic", {"x": 0.2})
    core.run(me(core), "synthetic", {"x": 0.2})  # which is found
    assert asked_for == ["threads"] * 2


def test_whether_a_packaged_app_is_a_tool_no_file_says(root, monkeypatch):
    workspace = ha.Workspace(root)
    monkeypatch.setattr(Path, "is_file", lambda self: pytest.fail("it was looked for"))
    assert not workspace.is_tool("synthetic") and not workspace.is_tool("synthetic@1.0.0")
