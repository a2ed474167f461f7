"""Campaigns, chains and calls on an endpoint, with a link that is no network and an endpoint that is a folder."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.apps.worker import execute
from hpcagent.cli import cli
from hpcagent.errors import BadInput, HpcAgentError, SiteFailed
from hpcagent.sites.endpoint import executor, linking
from hpcagent.sites.endpoint.cancelling import Cancelling
from hpcagent.sites.endpoint.sent import Sent
from hpcagent.sites.endpoint.tasks import Book, open_tasks, read_tasks
from hpcagent.sites.ledger import read_ledger
from hpcagent.sites.reap import reap
from hpcagent.sites.schedulers.base import Unverified
from tests.unit.sites.endpoint.endpoint_here import Endpoint, profile

OTHER = "4b116d3c-1703-4f8f-9f6f-39921e5864df"

POINTS = [{"x": 0.1 * i, "y": 0.5, "style": "plain"} for i in range(1, 7)]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    endpoint = Endpoint()
    monkeypatch.setattr(linking, "link_to", endpoint.link)
    monkeypatch.setattr(executor, "LOOK_S", 0.05)
    yield endpoint
    endpoint.gate.set()


def campaign(**changes: Any) -> ha.Campaign:
    return ha.load_campaign("synthetic", changes={"until": {"max_runs": 12}, **changes})


def numbers(result: ha.types.CampaignResult) -> dict[str, Any]:
    return {r.manifest.execution_id: (r.status, dict(r.metrics)) for r in result.results}


def test_a_campaign_gives_the_same_runs_and_numbers_as_here_and_says_where_their_files_are(far, tmp_path):
    there = ha.run(campaign(batch_size=6), site=profile(tmp_path), run_dir=tmp_path / "there")
    here = ha.run(campaign(batch_size=6), site="threads", run_dir=tmp_path / "here")
    assert numbers(there) == numbers(here)
    assert set(far.computed.values()) == {1}
    ran = [r for r in there.results if r.remote is not None]
    assert len(ran) == len(there.results) == 12
    for result in ran:
        assert Path(result.remote.workdir).parent.parent.parent == tmp_path / "scratch"
        assert "result.json" in result.remote.files
        assert result.workdir == str(tmp_path / "there" / "work" / result.manifest.execution_id)
        assert not Path(result.workdir).exists()
        assert result.site == "far"
    ledger = tmp_path / "there" / "jobs.jsonl"
    assert {task.ended for task in read_tasks(ledger).values()} == {"finished"}
    assert read_ledger(ledger) == []  # tasks are no jobs
    assert far.asked["put"] == 1  # what runs share is sent once, by content


def test_a_session_that_was_cut_off_is_taken_up_and_nothing_runs_twice(far, tmp_path):
    where = profile(tmp_path, at_close="leave")
    far.faults.lose, far.faults.lose_answers = 2, 6
    with ha.Coordinator(campaign(), site=where, run_dir=tmp_path / "run") as before:
        # One input goes first, whose answer must come: it is put there by another session.
        far.faults.lose = far.faults.lose_answers = 0
        before.submit(POINTS[:1])[0].result()
        far.faults.lose, far.faults.lose_answers = 2, 5
        before.submit(POINTS[1:])
        for _ in range(1 + 3):
            assert far.done.acquire(timeout=20)
    left = open_tasks(tmp_path / "run" / "jobs.jsonl")
    assert len(left) == 5
    assert len(far.computed) == 1 + 3
    with ha.Coordinator(campaign(), site=where, run_dir=tmp_path / "run") as after:
        results = after.run_points(POINTS)
    assert [r.ok for r in results] == [True] * 6
    assert [r.attempt for r in results] == [1] * 6  # lost tasks are nobody's fault
    assert set(far.computed.values()) == {1}
    assert open_tasks(tmp_path / "run" / "jobs.jsonl") == []


def test_closing_cancels_what_runs_there_and_the_ledger_has_its_end(far, tmp_path):
    far.gate.clear()
    release(far)
    with ha.Coordinator(campaign(), site=profile(tmp_path), run_dir=tmp_path / "run") as one:
        one.submit(POINTS[:3])  # of the four places there one stays free, for the errand
        assert far.taken.acquire(timeout=20)
    assert {task.ended for task in read_tasks(tmp_path / "run" / "jobs.jsonl").values()} == {"cancelled"}
    assert far.computed == {}


def release(far: Endpoint) -> None:
    """Open the gate when a cancellation has come: the worker there ends its run then."""
    before = far._cancel

    def cancel(request: dict[str, Any]) -> dict[str, Any]:
        said = before(request)
        far.gate.set()
        return said

    far._cancel = cancel  # type: ignore[method-assign]


def test_what_is_not_seen_to_have_ended_is_said_and_reap_looks_again(far, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "CLOSE_S", 0.0)
    far.gate.clear()
    release(far)
    far.cancel_says = "requested"
    one = ha.Coordinator(campaign(), site=profile(tmp_path), run_dir=tmp_path / "run")
    one.open()
    one.submit(POINTS[:3])
    assert far.taken.acquire(timeout=20)
    with pytest.raises(Unverified, match="not seen"):
        one.close()
    ledger = tmp_path / "run" / "jobs.jsonl"
    left = open_tasks(ledger)
    assert left
    assert all(task.cancelling for task in left)
    far.cancel_says = None
    told = reap(tmp_path / "run")
    assert sorted(one.name for one in told) == sorted(task.key for task in left)
    assert {one.done for one in told} <= {"cancelled", "ended"}
    assert open_tasks(ledger) == []
    assert reap(tmp_path / "run") == []


def test_closed_for_another_error_it_still_says_what_was_not_seen_to_have_ended(far, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "CLOSE_S", 0.0)
    far.gate.clear()
    release(far)
    far.cancel_says = "requested"
    told: list[str] = []
    with (
        pytest.raises(KeyboardInterrupt),
        ha.Coordinator(campaign(), site=profile(tmp_path), run_dir=tmp_path / "run") as one,
    ):
        one.submit(POINTS[:3])
        assert far.taken.acquire(timeout=20)
        for each in one._session.site._executors.values():
            each.tell = told.append
        raise KeyboardInterrupt
    assert "not seen to have ended; `hpcagent reap RUN_DIR`" in told[-1]


def test_a_cancellation_goes_before_what_waits_there_and_in_its_turn_where_that_is_refused(far, tmp_path):
    asked: list[Any] = []

    class Refusing:
        """An engine that takes no resource specification."""

        def submit(self, request: dict[str, Any], *, resources: Any, control: bool) -> Sent:
            asked.append(resources)
            sent = Sent(request["key"])
            if resources:
                sent.future.set_exception(ha.AppFailed("not supported.", kind="infrastructure", name="Refused"))
            else:
                sent.future.set_result({"states": dict.fromkeys(request["keys"], "ended")})
            return sent

    book = Book(tmp_path / "jobs.jsonl", site="far", executor="w", endpoint_id=OTHER, root="/r")
    assert Cancelling(Refusing(), book, "/r").end(["0" * 32], within_s=5.0) == []
    assert asked == [{"priority": 0}, None]
    Cancelling(Refusing(), book, "/r").ask(["0" * 32])
    assert asked[2:] == [{"priority": 0}, None]


def test_the_ids_of_a_task_are_on_the_disk_at_once(far, tmp_path, monkeypatch):
    """Else a process that is killed then could not take up its task."""
    for name in ("_ANSWER_S", "LOOK_S"):  # nothing else would write them before
        monkeypatch.setattr(executor, name, 15.0)

    def link(profile: Any, label: str, *, on_sent: Any, tell: Any) -> Any:
        """As the real one: they are known when the service has answered."""

        def later(*ids: str) -> None:
            threading.Timer(0.3, on_sent, ids).start()

        return far.link(profile, label, on_sent=later, tell=tell)

    monkeypatch.setattr(linking, "link_to", link)
    far.gate.clear()
    ledger = tmp_path / "run" / "jobs.jsonl"
    with ha.Coordinator(campaign(), site=profile(tmp_path), run_dir=tmp_path / "run") as one:
        began = time.monotonic()
        one.submit(POINTS[:1])
        while not any(task.task_id for task in open_tasks(ledger)):
            assert time.monotonic() - began < 60
            time.sleep(0.005)
        far.gate.set()


def test_reap_of_an_endpoint_that_is_offline_leaves_the_tasks_and_says_so(far, tmp_path):
    far.faults.lose = 1
    with ha.Coordinator(campaign(), site=profile(tmp_path, at_close="leave"), run_dir=tmp_path / "run") as one:
        far.faults.lose = 0
        one.submit(POINTS[:1])[0].result()
        far.faults.lose = 1
        one.submit(POINTS[1:2])
        while not open_tasks(tmp_path / "run" / "jobs.jsonl"):
            one._session.step()
    far.faults.offline = True
    outcome = CliRunner().invoke(cli, ["reap", str(tmp_path / "run")])
    assert outcome.exit_code == 1
    assert "offline" in outcome.output
    shown = CliRunner().invoke(cli, ["status", str(tmp_path / "run")])
    assert "1 task" in shown.output
    refused = CliRunner().invoke(cli, ["rm", "--yes", str(tmp_path / "run")])
    assert isinstance(refused.exception, BadInput)
    assert "reap" in str(refused.exception)


def test_an_endpoint_that_goes_offline_ends_the_campaign_and_resuming_goes_on(far, tmp_path):
    where = profile(tmp_path, offline_wait_s=0)
    told: list[str] = []
    far.gate.clear()

    def watch(event: Any) -> None:
        if event.kind == "site":
            told.append(event.reason)
        if event.kind == "submitted":
            far.faults.offline = True
            far.gate.set()

    with pytest.raises(SiteFailed, match="offline") as raised:
        ha.run(campaign(batch_size=6), site=where, run_dir=tmp_path / "run", watch=watch, progress=False)
    assert "hpcagent resume" in str(raised.value)
    assert any("is offline" in words for words in told)
    far.links[0].set_offline(False)
    result = ha.run(campaign(batch_size=6), site=where, run_dir=tmp_path / "run", progress=False)
    assert len(result.results) == 12
    assert set(far.computed.values()) == {1}


def test_a_copy_of_a_run_directory_has_its_own_folder_there_and_leaves_the_tasks_alone(far, tmp_path):
    where = profile(tmp_path)
    ha.run(campaign(until={"max_runs": 4}), site=where, run_dir=tmp_path / "run", progress=False)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    (tmp_path / "other").rename(tmp_path / "moved")
    first = {Path(r.remote.workdir).parent for r in ha.open_run(tmp_path / "run").results}
    more = ha.run(campaign(until={"max_runs": 6}), site=where, run_dir=tmp_path / "copy", progress=False)
    roots = {Path(r.remote.workdir).parent for r in more.results}
    assert len(roots) == 2  # those of before, and its own
    assert roots > first
    shutil.rmtree(tmp_path / "run")
    shutil.rmtree(tmp_path / "copy")
    moved = ha.run(campaign(until={"max_runs": 6}), site=where, run_dir=tmp_path / "moved", progress=False)
    assert {Path(r.remote.workdir).parent for r in moved.results} == first


def test_apps_are_called_by_hand_and_a_result_there_is_an_input_there(far, tmp_path):
    with ha.open_site(profile(tmp_path), run_dir=tmp_path / "hand"):
        crystal = ha.apps.build_crystal(name="Al")
        energy = ha.apps.dft_energy(crystal, engine="emt")
        found, built = energy.result(60), crystal.result(60)
    assert found.ok, found.failure
    assert {found.site, built.site} == {"far"}
    assert set(far.computed.values()) == {1}
    with ha.open_site(profile(tmp_path, name="elsewhere", endpoint_id=OTHER), run_dir=tmp_path / "other"):
        with pytest.raises(BadInput, match="hpcagent fetch"):
            ha.apps.dft_energy(built, engine="emt").result(60)


def test_what_was_run_here_is_an_input_there_by_its_artifacts(far, tmp_path):
    with ha.open_site("threads", run_dir=tmp_path / "here"):
        crystal = ha.apps.build_crystal(name="Al").result(60)
    with ha.open_site(profile(tmp_path), run_dir=tmp_path / "hand"):
        found = ha.apps.dft_energy(crystal, engine="emt").result(60)
    assert found.ok, found.failure


def test_the_inner_runs_of_a_chain_go_there_and_its_function_stays_here(far, tmp_path):
    with ha.open_site(profile(tmp_path), run_dir=tmp_path / "hand"):
        found = ha.apps.dft_eos(ha.apps.build_crystal(name="Al"), engine="emt").result(120)
    assert found.ok, found.failure
    assert len(far.computed) == len(found.parts) + 1  # and the crystal that it begins with


def test_a_function_that_is_no_app_is_refused_with_the_way_that_there_is(far, tmp_path):
    with ha.open_site(profile(tmp_path), run_dir=tmp_path / "hand", private=True) as site:
        with pytest.raises(BadInput, match="GlobusComputeExecutor"):
            site.submit(max, 2, 3)
        assert site.about["node_cores"] is None
        assert site.workers == 4


def test_two_hundred_short_runs_are_few_tasks(far, tmp_path):
    app = ha.load_campaign("synthetic").app
    with ha.open_site(profile(tmp_path), run_dir=tmp_path / "hand", private=True) as site:
        futures = []
        far.gate.clear()  # however slowly they are handed in here
        for index in range(200):
            manifest = app.manifest({"x": 0.5, "y": index / 200, "style": "plain"}, seed=index)
            order = app.order(manifest, work=site.work_dir, site=site.about)
            order["manifest"]["estimated_runtime_s"] = 0.01
            futures.append(site.submit(execute, order))
        far.gate.set()
        answers = [future.result(60) for future in futures]
    assert len({a["workdir"] for a in answers}) == 200
    assert far.asked["run"] <= 60  # more of them the busier the machine


def test_a_dry_run_sends_nothing_and_says_where_the_runs_would_go(far, tmp_path):
    file = tmp_path / "far.toml"
    file.write_text(tomli_w.dumps(profile(tmp_path).model_dump(mode="json", exclude_unset=True)))
    shown = CliRunner().invoke(cli, ["run", "synthetic", "--site", str(file), "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert str(tmp_path / "scratch") in shown.output
    assert far.links == []


def test_an_endpoint_given_up_as_offline_keeps_its_tasks_whatever_at_close_says(far, tmp_path):
    where = profile(tmp_path, offline_wait_s=0, at_close="cancel")
    far.gate.clear()

    def offline(event):
        if event.kind == "submitted":
            assert far.taken.acquire(timeout=20)
            far.faults.offline = True

    with pytest.raises(SiteFailed, match="offline"):
        ha.run(campaign(batch_size=6), site=where, run_dir=tmp_path / "run", watch=offline, progress=False)
    left = open_tasks(tmp_path / "run" / "jobs.jsonl")
    assert left
    assert not any(task.cancelling for task in left)
    far.gate.set()
    far.faults.offline = False
    assert len(ha.run(campaign(batch_size=6), site=where, run_dir=tmp_path / "run").results) == 12
    assert set(far.computed.values()) == {1}


def test_what_breaks_the_thread_that_drives_leaves_no_future_open(far, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("nobody thought of it")

    monkeypatch.setattr("hpcagent.sites.endpoint.traffic.Traffic.add", broken)
    with (
        ha.Coordinator(campaign(), site=profile(tmp_path), run_dir=tmp_path / "run") as coordinator,
        pytest.raises(HpcAgentError, match="nobody thought of it"),
    ):
        coordinator.submit(POINTS[:1])[0].result()
