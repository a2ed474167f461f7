"""Globus Transfer against its documented HTTP surface: submission id, submission, task, cancellation, refusals."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import globus_sdk
import pytest
import responses

from hpcagent.errors import BadInput, FetchFailed
from hpcagent.model.remote import Remote
from hpcagent.sites.endpoint.fetching import Wanted
from hpcagent.sites.endpoint.transfer import Record, transfer
from hpcagent.sites.endpoint_settings import TransferSettings
from hpcagent.store.arriving import Place

API = "https://transfer.api.globus.org/v0.10"
HERE, THERE = "4b116d3c-1703-4f8f-9f6f-39921e5864df", "8f0c24c8-1111-4222-8333-444455556666"
TASK, SUBMISSION = "7a1b0f6e-0000-4111-8222-333344445555", "11111111-2222-4333-8444-555566667777"
DUMP = b"x" * 5000
WORK = "/scratch/me/hpcagent/c-1/work/abc"
WANTED = Wanted("dump/run.lammpstrj", len(DUMP), hashlib.sha256(DUMP).hexdigest())


class Fetch:
    """One fetch, with a service that is told what to answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, Place(folder / "work" / "abc")
        self.record = Record(folder / "transfers.jsonl")
        self.said: list[str] = []
        self.seen: list[int] = []
        self.there_path = ""

    def __call__(self, *wanted: Wanted, pause: Any = lambda s: None) -> Any:
        remote = Remote(site="far", endpoint_id=THERE, workdir=WORK)
        settings = TransferSettings(here=HERE, there=THERE, here_path=str(self.folder), there_path=self.there_path)
        return transfer(
            wanted or (WANTED,),
            self.place,
            remote,
            settings,
            self.record,
            connect=lambda: globus_sdk.TransferClient(
                authorizer=globus_sdk.AccessTokenAuthorizer("canary"),
                retry_config=globus_sdk.transport.RetryConfig(max_retries=0),
            ),
            watch=lambda name, have, size: self.seen.append(have),
            say=self.said.append,
            pause=pause,
        )

    def arrives(self, data: bytes = DUMP) -> None:
        part = self.folder / "work/abc/dump/run.lammpstrj.part"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "transfers.jsonl").read_text().splitlines()]


@pytest.fixture
def fetch(tmp_path: Path) -> Fetch:
    return Fetch(tmp_path)


@pytest.fixture
def api() -> Any:
    with responses.RequestsMock(assert_all_requests_are_fired=False) as mock:
        mock.get(f"{API}/submission_id", json={"DATA_TYPE": "submission_id", "value": SUBMISSION})
        mock.post(f"{API}/transfer", status=202, json={"code": "Accepted", "task_id": TASK, "message": "accepted"})
        mock.post(f"{API}/task/{TASK}/cancel", json={"code": "Canceled", "message": "The task has been cancelled"})
        yield mock


def status(api: Any, *of: dict[str, Any]) -> None:
    for one in of:
        api.get(f"{API}/task/{TASK}", json={"DATA_TYPE": "task", "task_id": TASK, **one})


def calls(api: Any, path: str) -> list[Any]:
    return [call.request for call in api.calls if path in call.request.url]


def test_a_file_comes_by_a_transfer_and_is_taken_when_it_is_the_one(fetch, api):
    status(
        api,
        {"status": "ACTIVE", "nice_status": "OK", "bytes_transferred": 2500},
        {"status": "ACTIVE", "nice_status": "PERMISSION_DENIED", "nice_status_details": "on\x1b[2J the disk"},
        {"status": "SUCCEEDED", "bytes_transferred": 5000},
    )
    (come,) = fetch(pause=lambda s: fetch.arrives())
    assert come.here.read_bytes() == DUMP and not come.already and 2500 in fetch.seen
    assert any("PERMISSION_DENIED" in text and "\x1b" not in text for text in fetch.said)
    (sent,) = [json.loads(request.body) for request in calls(api, "/transfer") if request.method == "POST"]
    assert (sent["source_endpoint"], sent["destination_endpoint"]) == (THERE, HERE)
    assert sent["submission_id"] == SUBMISSION and sent["verify_checksum"] is True and sent["sync_level"] == 3
    (item,) = sent["DATA"]
    assert item["source_path"] == f"{WORK}/dump/run.lammpstrj"
    assert item["destination_path"] == "/work/abc/dump/run.lammpstrj.part"
    assert [line["event"] for line in fetch.lines] == ["submitting", "submitted", "ended"]
    assert "canary" not in (fetch.folder / "transfers.jsonl").read_text()
    before = len(api.calls)
    (again,) = fetch()
    assert again.already and len(api.calls) == before


def test_a_transfer_that_goes_on_is_taken_up_and_a_lost_answer_begins_no_second(fetch, api):
    class Killed(Exception):
        pass

    def killed(seconds: float) -> None:
        raise Killed

    status(api, {"status": "ACTIVE"})
    with pytest.raises(Killed):
        fetch(pause=killed)
    fetch.arrives()
    api.remove("GET", f"{API}/task/{TASK}")
    status(api, {"status": "SUCCEEDED"})
    fetch()
    assert len(calls(api, f"{API}/transfer")) == 1 and "under way already" in fetch.said[-1]
    # Of a submission whose answer was lost the id is known: the service answers with the transfer that there is.
    other = Fetch(fetch.folder / "other")
    other.folder.mkdir()
    api.remove("POST", f"{API}/transfer")
    api.post(f"{API}/transfer", body=ConnectionError("reset"))
    with pytest.raises((FetchFailed, ConnectionError)):
        other()
    api.remove("POST", f"{API}/transfer")
    api.post(f"{API}/transfer", status=202, json={"code": "Duplicate", "task_id": TASK, "message": "duplicate"})
    other.arrives()
    other()
    assert len(calls(api, "/submission_id")) == 2  # one for each file's transfer
    assert {line.get("submission_id") for line in other.lines if line["event"] == "submitting"} == {SUBMISSION}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {
                "status": 403,
                "json": {
                    "code": "ConsentRequired",
                    "message": "Missing required data_access consent",
                    "required_scopes": ["urn:globus:auth:scope:transfer.api.globus.org:all[*x]"],
                },
            },
            "hpcagent globus login --transfer --collection",
        ),
        ({"status": 403, "json": {"code": "PermissionDenied", "message": "no write"}}, r"no write\. You may not"),
        ({"status": 404, "json": {"code": "EndpointNotFound", "message": "none"}}, "ids of the collections"),
        ({"status": 503, "json": {"code": "ServiceUnavailable", "message": "later"}}, "ServiceUnavailable"),
    ],
)
def test_a_refusal_says_what_to_do(fetch, api, answer, words):
    api.remove("POST", f"{API}/transfer")
    api.post(f"{API}/transfer", **answer)
    with pytest.raises(FetchFailed, match=words):
        fetch()
    assert not list((fetch.folder / "work").rglob("*.lammpstrj"))


def test_a_transfer_that_fails_or_brings_something_else_is_not_taken(fetch, api):
    fatal = {"code": "PERMISSION_DENIED", "description": "the disk is full"}
    status(api, {"status": "FAILED", "fatal_error": fatal})
    with pytest.raises(FetchFailed, match="the disk is full"):
        fetch()
    assert fetch.lines[-1]["status"] == "FAILED"
    api.remove("GET", f"{API}/task/{TASK}")
    status(api, {"status": "SUCCEEDED"})
    fetch.arrives(b"y" * 5000)
    with pytest.raises(FetchFailed, match="another content"):
        fetch()
    assert not (fetch.folder / "work/abc/dump/run.lammpstrj").exists()
    (fetch.folder / "work/abc/dump/run.lammpstrj").write_bytes(b"mine")
    with pytest.raises(BadInput, match="with another content, and stays"):
        fetch()


def test_ctrl_c_cancels_it_and_what_no_collection_shows_is_refused(fetch, api):
    def stopped(seconds: float) -> None:
        raise KeyboardInterrupt

    status(api, {"status": "ACTIVE"})
    with pytest.raises(KeyboardInterrupt):
        fetch(pause=stopped)
    assert len(calls(api, f"/task/{TASK}/cancel")) == 1 and fetch.lines[-1]["status"] == "cancelled"
    # A refused cancellation is said, and the transfer taken up the next time.
    api.remove("POST", f"{API}/task/{TASK}/cancel")
    api.post(f"{API}/task/{TASK}/cancel", status=503, json={"code": "ServiceUnavailable", "message": "later"})
    with pytest.raises(KeyboardInterrupt):
        fetch(pause=stopped)
    assert "could not be cancelled" in fetch.said[-1] and fetch.lines[-1]["event"] == "submitted"
    # One that the service has forgotten is begun anew.
    api.remove("GET", f"{API}/task/{TASK}")
    api.get(f"{API}/task/{TASK}", status=404, json={"code": "TaskNotFound", "message": "no such task"})
    with pytest.raises(FetchFailed, match="begun anew"):
        fetch()
    assert fetch.lines[-1]["event"] == "ended"
    fetch.there_path = "/projects"
    before = len(api.calls)
    with pytest.raises(BadInput, match="does not lie below /projects"):
        fetch()
    assert len(api.calls) == before
