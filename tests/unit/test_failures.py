"""What each failure means stands in one table; nobody else decides by kinds and names."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcagent
from hpcagent.apps import BUILT_IN
from hpcagent.apps.finished import final_result, read_result
from hpcagent.apps.worker import execute
from hpcagent.campaign.state import State
from hpcagent.catalog import list_apps
from hpcagent.errors import AppFailed, BadInput, BlockLost, SiteFailed
from hpcagent.model.failures import CONTINUES, KINDS, MODES, kind_of_error, meaning, mode, name_of_end
from hpcagent.model.records import Cost, Failure, InnerRun, Result
from hpcagent.sites.ended import failure_of
from hpcagent.sites.schedulers.answers import FINAL
from tests.trees import parsed

pytestmark = pytest.mark.usefixtures("the_trees")

ROOT = Path(hpcagent.__file__).parent
TABLE = ROOT / "model" / "failures.py"
MODULES = [p for p in sorted(ROOT.rglob("*.py")) if p != TABLE]
NAMED = {name for row in MODES for name in row.names}
# What makes a failure with a name: the function called, and where in the call the name and the kind stand.
MAKERS = {"AppFailed", "BlockLost", "Failure", "NotConverged", "failed", "_failed", "_refused"}


def texts(node: ast.AST | None) -> set[str]:
    """The texts that an expression may be: of a conditional its branches, of a lookup its default."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return texts(node.body) | texts(node.orelse)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return texts(node.args[1]) if len(node.args) > 1 else set()
    return set()


def raised(path: Path) -> Iterator[tuple[int, set[str], set[str]]]:
    """(line, names, kinds) of every failure that a module makes; no kinds: what the maker's default is."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            given = {k.arg: k.value for k in node.keywords}
            if called in MAKERS:
                default = {"AppFailed": {"simulation"}, "NotConverged": {"simulation"}}.get(called, set())
                yield node.lineno, texts(given.get("name")), texts(given["kind"]) if "kind" in given else default
            elif called == "_failure" and len(node.args) >= 2:
                yield node.lineno, texts(node.args[1]), texts(node.args[0])
            elif called == "_Known":
                yield node.lineno, texts(node.args[1]), texts(node.args[2])
        elif isinstance(node, ast.Tuple) and len(node.elts) == 4:  # (pattern, name, kind, repair) of an engine
            _, name, kind, _ = node.elts
            if texts(kind) & KINDS.keys():
                yield node.lineno, texts(name), texts(kind)
        elif isinstance(node, ast.FunctionDef) and node.name == "_os_name":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Dict):
                    for value in inner.values:
                        yield value.lineno, texts(value), {"infrastructure"}


@functools.cache
def found() -> list[tuple[Path, int, set[str], set[str]]]:
    """Every failure with a name that the package makes."""
    return [(path, *one) for path in MODULES for one in raised(path) if one[1]]


def test_every_name_that_is_raised_has_its_row_with_its_kind():
    assert len({name for _, _, names, _ in found() for name in names}) > 100  # the walk does find them
    missing = [
        f"{path.relative_to(ROOT)}:{line}: {name} ({', '.join(kinds)})"
        for path, line, names, kinds in found()
        for name in names
        if name not in NAMED or not kinds <= {k for row in MODES if name in row.names for k in row.kinds}
    ]
    assert missing == []


def test_every_failure_mode_that_an_app_declares_has_its_row():
    declared = {name for app in list_apps() for name in app.contract.failure_modes}
    declared |= {name for app in BUILT_IN if hasattr(app, "contract") for name in app.contract.failure_modes}
    assert {"LostAtoms", "NotConverged", "BlockEnded"} <= declared
    assert declared - NAMED == set()


def test_every_row_is_of_something_that_can_happen():
    names = {name for _, _, names, _ in found() for name in names} | {
        name for row in MODES if row.end for name in row.names
    }
    classes = {row for mode in MODES if mode.raised for row in mode.names}
    assert NAMED - names - classes - {"AppFailed", "BadInput", "CapReached"} == set()


def test_a_name_means_the_same_under_every_heading():
    words = ("names", "kinds", "which", "do", "heading")
    for name in NAMED:
        rows = [row for row in MODES if name in row.names]
        traits = {tuple(v for k, v in dataclasses.asdict(row).items() if k not in words) for row in rows}
        assert len(traits) == 1, name


def compared(path: Path) -> Iterator[tuple[ast.AST, set[str], str]]:
    """Every comparison with texts: what it is, the texts, and what is compared with them."""
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        parts = [
            part for side in sides for part in (side.elts if isinstance(side, (ast.Tuple, ast.Set)) else [side])
        ]
        found = {p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)}
        if found:
            yield node, found, " ".join(ast.unparse(p) for p in parts if not isinstance(p, ast.Constant))


def test_nobody_else_decides_by_kinds_or_names():
    """As in `failure.kind == "simulation"` or `name in ("Walltime", ...)`; ask `meaning` instead."""
    # The other two kinds are words of schedulers and of code, too.
    kinds = {"infrastructure", "simulation"}
    own = {
        "science/lammps/dump.py",
        "science/engines/task.py",
    }  # know errors of their own by name, and go on
    deciding = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in MODULES
        for node, found, other in compared(path)
        if path.relative_to(ROOT).as_posix() not in own
        if found & (kinds | NAMED) or re.search(r"^\w*failure\w*(\.|\[')(kind|name)", other)
    ]
    assert deciding == []


@pytest.mark.parametrize(
    ("kind", "name", "final", "shown", "again", "charged"),
    [
        ("simulation", "LostAtoms", True, True, False, "yes"),
        ("contract", "BadScript", True, True, False, "yes"),
        ("infrastructure", "Killed", False, False, True, "yes"),
        ("infrastructure", "Walltime", False, False, False, "yes"),
        ("infrastructure", "BlockTimeout", False, False, True, "no"),
        ("infrastructure", "NodeFailed", False, False, True, "no"),
        ("infrastructure", "BlockPreempted", False, False, True, "no"),
        ("infrastructure", "BlockOutOfMemory", False, False, True, "culprit"),
        ("infrastructure", "ManagerLost", False, False, True, "yes"),
        ("cancelled", "CapReached", False, False, False, "yes"),
        ("simulation", "OfMyOwn", True, True, False, "yes"),
        ("of_a_newer_version", "Whatever", False, False, False, "yes"),
    ],
)
def test_what_a_failure_means(kind, name, final, shown, again, charged):
    found = meaning(kind, name)
    assert (found.final, found.shown, found.again, found.charged) == (final, shown, again, charged)


def test_a_run_that_goes_on_from_its_restart_file_is_not_charged_and_started_again():
    found = meaning("infrastructure", "Walltime", f"{CONTINUES} at step 4000 when it is started again")
    assert found.again and found.charged == "no" and found.goes_on


def test_only_simulation_failures_and_the_cap_do_not_end_a_campaign_in_which_all_fail_alike():
    assert [k for k in KINDS if not meaning(k, "OfMyOwn").hopeless] == ["simulation"]
    assert not meaning("cancelled", "CapReached").hopeless and meaning("cancelled", "Interrupted").hopeless


def test_every_end_of_a_job_has_a_name():
    ends = {name_of_end(state) for state in FINAL}
    assert ends == {
        "BlockTimeout",
        "BlockOutOfMemory",
        "NodeFailed",
        "BlockCancelled",
        "BlockPreempted",
        "BlockFailed",
    }


def test_errors_of_futures_have_their_kind_by_their_class():
    class OfTheSite(SiteFailed):
        pass

    assert failure_of(OfTheSite("gone")) == ("infrastructure", "OfTheSite", "gone")
    assert failure_of(BlockLost("lost", name="NodeFailed")) == ("infrastructure", "NodeFailed", "lost")
    assert failure_of(AppFailed("x", kind="contract", name="BadFit")) == ("contract", "BadFit", "x")
    assert failure_of(AppFailed("x", kind="physics", name="Odd")) == ("contract", "Odd", "x")
    assert kind_of_error(ValueError()) is None and mode("ValueError") is None


def odd_kind(run):
    raise AppFailed("it went wrong.", kind="physics", name="Odd")


def test_an_app_that_fails_with_a_kind_that_does_not_exist_is_told_so(tmp_path):
    order = {
        "manifest": {
            "execution_id": "one",
            "params": {},
            "seed": 0,
            "replicate": 0,
            "resources": {"nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1},
        },
        "function": odd_kind,
        "settings": {},
        "workdir": str(tmp_path / "one"),
        "promises": {},
        "site": {},
    }
    failure = execute(order)["failure"]
    assert failure["kind"] == "contract" and failure["name"] == "Odd"
    assert "'physics' is none of simulation, contract, infrastructure, cancelled" in failure["message"]
    assert read_result(tmp_path / "one")["failure"] == failure  # final, like every contract failure


@pytest.mark.parametrize("hours", [-1e6, float("nan"), float("inf"), None, "1", True])
def test_a_cost_that_is_none_is_no_result(hours, tmp_path):
    fields = {"status": "COMPLETED", "metrics": {}, "cost": {"wall_s": 1.0, "cpu_s": None, "node_hours": 0.5}}
    (tmp_path / "result.json").write_text(json.dumps(fields))
    assert read_result(tmp_path) == fields
    (tmp_path / "result.json").write_text(json.dumps(fields | {"cost": {"wall_s": 1.0, "node_hours": hours}}))
    assert final_result(tmp_path)[0] is None and "cost.node_hours is" in final_result(tmp_path)[1]


@pytest.mark.parametrize("taken", [-1e6, float("nan"), float("inf")])
def test_what_a_run_took_is_finite_and_not_below_zero(taken):
    for name in ("wall_s", "cpu_s", "core_hours", "node_hours"):
        with pytest.raises(BadInput, match=name):
            Cost(**{name: taken})
    with pytest.raises(BadInput, match="node_hours"):
        InnerRun(execution_id="e", app="a", status="COMPLETED", node_hours=taken)


def test_retries_of_journals_without_charged_are_read():
    """As the first versions wrote them; what they did not say follows from the name."""
    state = State()
    for name in ("NodeFailed", "ManagerLost", "BlockTimeout", "BlockOutOfMemory"):
        failure = {"kind": "infrastructure", "name": name, "message": "", "log_tail": "", "repair": None}
        state.apply({"event": "retry", "execution_id": name, "attempt": 2, "failure": failure, "at": 1.0})
    assert state.uncharged_attempts == {"NodeFailed": 1, "BlockTimeout": 1}


def test_a_result_is_final_and_shown_by_its_failure():
    manifest = {"execution_id": "one", "app": "x", "app_version": "1.0.0"}
    done = Result(manifest=manifest, status="COMPLETED")
    lost = done.model_copy(
        update={"status": "FAILED", "failure": Failure(kind="infrastructure", name="Killed", message="")}
    )
    wrong = lost.model_copy(update={"failure": Failure(kind="simulation", name="LostAtoms", message="")})
    assert [(r.final, r.shown) for r in (done, lost, wrong)] == [(True, True), (False, False), (True, True)]
