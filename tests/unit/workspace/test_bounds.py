"""What callers may ask for and have written down: bounds of numbers, texts, approvals and refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcagent.errors import BadInput, StoreFull
from hpcagent.gate import approvals
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.workspace import connection, records
from hpcagent.workspace.artifacts import opened, tail_of
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.plain_campaigns import check_changes


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    Folder(tmp_path / "ws").create()
    (tmp_path / "ws" / "workspace.toml").write_text('name = "ws"\ndefault_site = "threads"\n')
    one = Core(tmp_path / "ws")
    yield one
    one.close()


def me(core: Core) -> Caller:
    return core.caller(os.getuid())


def written(core: Core) -> str:
    return core.folder.journal.read_text()


@pytest.mark.parametrize(
    "more",
    [
        {"resources": {"nodes": 10**30}},
        {"resources": {"nodes": True}},
        {"resources": {"nodes": "2"}},
        {"resources": {"ranks_per_node": 10**12}},
        {"resources": {"memory_gb": float("inf")}},
        {"walltime_s": float("inf")},
        {"walltime_s": float("nan")},
        {"walltime_s": 1e300},
        {"walltime_s": True},
        {"seed": True},
        {"seed": 10**30},
    ],
)
def test_numbers_that_no_machine_has_are_refused(core, more):
    with pytest.raises(NotAllowed, match=r"refused \(contract\)"):
        core.run(me(core), "synthetic", {"x": 0.3}, **more)
    assert not core.rows


def test_a_secret_stands_in_no_reason_label_or_note(core):
    for more in ({"why": "password=hunter2-x"}, {"label": "password=hunter2-x"}):
        with pytest.raises(NotAllowed, match=r"any record|no credential"):
            core.run(me(core), "synthetic", {"x": 0.3}, **more)
    with pytest.raises(NotAllowed, match="any record"):
        core.decide(me(core), "a-0", grant=True, note="password=hunter2-x")
    with pytest.raises(NotAllowed):
        core.run(me(core), "synthetic", {"x": "password=hunter2-x"})
    assert not core.rows and "hunter2" not in written(core)
    assert written(core).count('"refused"') == 4


def test_a_refusal_is_written_in_brief_and_an_estimate_not_at_all(core):
    with pytest.raises(NotAllowed):
        core.estimate(me(core), "synthetic", {"x": "a" * 100_000})
    assert written(core) == ""
    with pytest.raises(NotAllowed) as refused:
        core.run(me(core), "synthetic", {"x": "a" * 100_000})
    assert len(json.dumps(refused.value.plain())) < 2000
    with pytest.raises(NotAllowed):
        core.run(me(core), "synthetic", {"x": 10**5000})
    assert len(written(core)) < 4000


def test_beyond_so_many_an_hour_refusals_are_counted(core, monkeypatch):
    monkeypatch.setattr(records, "MOST_REFUSALS", 3)
    now = [0.0]
    core._clock = lambda: now[0]
    for hour in (0, 0, 0, 0, 0, 3600):
        now[0] = hour
        with pytest.raises(NotAllowed):
            core.run(me(core), "synthetic", {"x": 7})
    lines = [json.loads(line) for line in written(core).splitlines()]
    assert len([one for one in lines if one.get("event") == "refused"]) == 4
    assert lines[-1]["not_written"] == 2


def test_one_person_has_so_many_approvals_pending(core, monkeypatch):
    monkeypatch.setattr(approvals, "MOST_PENDING", 2)
    made = core.approvals
    request = core.request(me(core), "synthetic", {"x": 0.3})[2]
    asked = [request.model_copy(update={"params": {"x": n}, "work": str(n)}) for n in range(3)]
    first = made.ask(asked[0], "why", "ada")
    made.ask(asked[1], "why", "ada")
    with pytest.raises(NotAllowed, match="2 requests of ada wait"):
        made.ask(asked[2], "why", "ada")
    assert made.ask(asked[0], "why", "ada") == first  # what waits already is found
    assert made.ask(asked[2], "why", "bob").state == "pending"
    made.decide(first.id, grant=False, by="eve")
    assert made.ask(asked[2], "why", "ada").state == "pending"


@pytest.mark.parametrize("key", ["a" + ".a" * 3000, "until"])
def test_changes_that_are_nested_without_end_are_refused_in_words(key):
    value: Any = 1
    for _ in range(3000):
        value = [value] if key == "until" else 1
    with pytest.raises(NotAllowed, match="nested at most"):
        check_changes({key: value})


def test_a_text_of_a_packaged_app_is_no_file_of_a_run(core):
    with pytest.raises(NotAllowed, match="takes no file"):
        core.run(me(core), "dft_energy", {"basis": "artifact:r-1/x.nw"}, data_only=True)


def test_another_users_file_with_several_names_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").write_text("x")
    (tmp_path / "run" / "link").hardlink_to(tmp_path / "outside")
    os.close(opened(tmp_path / "run", "link"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadInput, match="another user's"):
        opened(tmp_path / "run", "link")


def test_the_tail_of_a_log_begins_with_a_whole_line(tmp_path):
    (tmp_path / "output.txt").write_text("password=" + "h" * (1 << 16) + "\nend\n")
    assert tail_of(tmp_path, 10) == ["end"]


def test_a_full_disk_keeps_no_progress_back(core, monkeypatch):
    row = type("Row", (), {"id": "c-1", "kind": "campaign", "over": False, "reference": "synthetic"})()
    standing = {"id": "c-1", "runs": {"done": 3}}
    monkeypatch.setattr(core, "_campaign", lambda caller, identity: row)
    monkeypatch.setattr(core, "_standing", lambda row: standing)
    monkeypatch.setattr(core, "_snapshot", lambda row: SimpleNamespace(state=SimpleNamespace(finished=3)))

    def full(*args: Any, **more: Any) -> str:
        raise StoreFull("no space left")

    monkeypatch.setattr(core, "_asked_of", full)
    found = core.campaign(me(core), "c-1")
    assert found["runs"] == {"done": 3} and found["answer"] is None
    assert (found["answer_state"], found["answer_error"]["kind"]) == ("failed", "StoreFull")


def test_a_service_that_cannot_begin_on_a_full_disk_says_so(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    assert connection._why_ended(folder) == ""
    monkeypatch.setattr(connection, "LEAST_FREE", 1 << 62)
    assert "its disk is full" in connection._why_ended(folder)
