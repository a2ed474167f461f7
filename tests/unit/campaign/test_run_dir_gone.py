"""A run directory that is deleted, moved or written by somebody else while its campaign runs."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.errors import Interrupted, RunDirGone, StoreError, StoreFull
from hpcagent.store.journal import Journal, read_events


def campaign(runs: int = 12, **more: Any) -> ha.Campaign:
    return ha.Campaign(
        ha.apps.synthetic,
        ha.maximize("value"),
        space={"x": {}},
        policy="sobol",
        until={"max_runs": runs},
        batch_size=4,
        fixed={"run_time_s": 0.02},
        name="gone",
        **more,
    )


def delete(folder: Path) -> None:
    remove(folder)


def remove(folder: Path) -> None:
    """Delete a folder that runs write into meanwhile."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
            return
    raise AssertionError(f"{folder} is filled faster than it is deleted")


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replace(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    shutil.copytree(folder.with_name("elsewhere"), folder)


def delete_journal(folder: Path) -> None:
    (folder / "events.jsonl").unlink()


def cut_journal(folder: Path) -> None:
    os.truncate(folder / "events.jsonl", 100)


def edit_journal(folder: Path) -> None:
    path = folder / "events.jsonl"
    path.with_name("new").write_bytes(path.read_bytes())
    path.with_name("new").replace(path)


def append_to_journal(folder: Path) -> None:
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"event":"late"}\n')


def delete_work(folder: Path) -> None:
    remove(folder / "work")


DISTURBANCES: dict[Callable[[Path], None], str] = {
    delete: "is gone while the campaign ran \\(it was deleted or moved\\)",
    rename: "it is now .*elsewhere.*hpcagent resume .*elsewhere",
    replace: "was replaced by another while the campaign ran \\(it is now .*elsewhere",
    delete_journal: "is gone while",
    cut_journal: "was cut while",
    edit_journal: "was replaced by another",
    append_to_journal: "written by another process",
    # A run that begins meanwhile makes it again.
    delete_work: "work (is gone|was replaced by another)",
}


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_a_folder_that_is_disturbed_stops_the_campaign_at_the_next_record(tmp_path, disturb, mode, monkeypatch):
    monkeypatch.setattr("hpcagent.store.journal.SYNC_EVERY_S", 0.0)
    monkeypatch.setattr("hpcagent.store.journal.CHECK_EVERY_S", 0.0)
    folder, told = tmp_path / "gone", []

    def watch(event: Any) -> None:
        if event.kind == "finished" and not any(kind == "finished" for kind, _ in told):
            disturb(folder)
        told.append((event.kind, event.runs))

    with pytest.raises(RunDirGone, match=DISTURBANCES[disturb]) as caught:
        ha.run(campaign(mode=mode), site="threads", run_dir=folder, watch=watch)
    assert isinstance(caught.value, StoreError) and caught.value.exit_code == 1
    # Nothing that ended after that is claimed as done, by no event.
    assert max(runs for _, runs in told) < 12 and told[-1][0] != "stopped"


def test_a_renamed_folder_goes_on_where_it_is(tmp_path):
    folder, moved = tmp_path / "gone", tmp_path / "elsewhere"

    def watch(event: Any) -> None:
        if event.kind == "batch" and event.runs == 4:
            rename(folder)

    with pytest.raises(RunDirGone):
        ha.run(campaign(), site="threads", run_dir=folder, watch=watch)
    result = ha.run(campaign(), site="threads", run_dir=moved)
    assert [r.manifest.index for r in result.results] == list(range(12))


def test_an_interrupted_campaign_does_not_say_that_runs_are_kept_in_a_folder_that_is_gone(tmp_path):
    folder = tmp_path / "gone"

    def watch(event: Any) -> None:
        if event.kind == "batch" and event.runs == 4:
            delete(folder)
            raise KeyboardInterrupt

    with pytest.raises(RunDirGone):
        ha.run(campaign(), site="threads", run_dir=folder, watch=watch)

    def interrupt(event: Any) -> None:
        if event.kind == "batch":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="4 finished run"):
        ha.run(campaign(), site="threads", run_dir=tmp_path / "kept", watch=interrupt)


def test_a_campaign_that_has_nothing_to_write_looks_after_its_folder_now_and_then(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    journal = Journal.open(tmp_path / "events.jsonl", beside=work)
    journal.append([{"event": "a"}])
    shutil.rmtree(work)
    journal.look()  # too early
    monkeypatch.setattr("hpcagent.store.journal.LOOK_EVERY_S", 0.0)
    with pytest.raises(RunDirGone, match="work is gone"):
        journal.look()
    journal.close()


def test_a_disk_that_becomes_read_only_is_one_clear_error(tmp_path, monkeypatch):
    folder = tmp_path / "gone"

    def refuse(*_: Any) -> int:
        raise OSError(30, "Read-only file system")

    def watch(event: Any) -> None:
        if event.kind == "batch" and event.runs == 4:
            monkeypatch.setattr("hpcagent.store.journal.os.write", refuse)

    with pytest.raises(StoreFull, match=r"Read-only file system.*hpcagent resume"):
        ha.run(campaign(), site="threads", run_dir=folder, watch=watch)
    monkeypatch.undo()
    assert sum(len(e["results"]) for e in read_events(folder / "events.jsonl") if e["event"] == "results") == 4


@pytest.mark.parametrize("every_s", [0.0, 1000.0])
def test_a_record_costs_one_stat_at_most_and_seldom_any(tmp_path, monkeypatch, every_s):
    monkeypatch.setattr("hpcagent.store.journal.CHECK_EVERY_S", every_s)
    work = tmp_path / "work"
    work.mkdir()
    journal = Journal.open(tmp_path / "events.jsonl", beside=work)
    journal.append([{"event": "a"}])
    calls: Counter[str] = Counter()
    real = os.stat

    def counted(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        calls[Path(path).name] += 1
        return real(path, *args, **kwargs)

    monkeypatch.setattr("os.stat", counted)
    for n in range(20):
        journal.append({"event": "a", "n": n, "m": m} for m in range(50))
    monkeypatch.undo()
    journal.close()
    # The folder beside it is looked at once a second at most.
    assert calls["events.jsonl"] == (0 if every_s else 20) and calls["work"] <= 1


def test_the_end_of_a_campaign_is_not_written_into_a_folder_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcagent.store.journal.CHECK_EVERY_S", 1000.0)
    folder, told = tmp_path / "gone", []

    def watch(event: Any) -> None:
        if event.kind == "batch" and event.runs == 12:
            delete(folder)
        told.append(event.kind)

    with pytest.raises(RunDirGone, match="is gone while"):
        ha.run(campaign(), site="threads", run_dir=folder, watch=watch)
    assert "stopped" not in told


def test_a_folder_with_runs_but_without_its_journal_is_no_new_campaign(tmp_path: Path) -> None:
    done = ha.run(campaign(), site="threads", run_dir=tmp_path / "run", progress=False)
    assert len(done.results) == 12
    delete_journal(tmp_path / "run")
    with pytest.raises(ha.BadInput, match=r"no events\.jsonl: it was lost.*Put it back from a backup"):
        ha.run(campaign(), site="threads", run_dir=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "events.jsonl").exists()
    assert any((tmp_path / "run" / "work").iterdir())
