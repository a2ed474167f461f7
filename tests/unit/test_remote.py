"""Where a run's files lie that an endpoint computed: what is taken from its answer, and how it stands in records."""

from __future__ import annotations

import json

import pytest

from hpcagent.campaign.state import State, result_event
from hpcagent.errors import BadInput
from hpcagent.model.records import Manifest, Remote, Result
from hpcagent.model.remote import MOST_LISTED, far_path

SHA = "ab" * 32
ENDPOINT = "8f0c24c8-1111-4222-8333-444455556666"
HOSTILE = [
    "../x",
    "/etc/passwd",
    "a/../../b",
    "a//b",
    "",
    ".",
    "a\0b",
    "a\nb",
    "a/./b",
    "x" * 300,
    "\u202egnp.exe",
]


def manifest() -> Manifest:
    deciding = {"app": "a", "app_version": "1.0.0", "input_digest": "", "params": {}, "seed": 0, "replicate": 0}
    return Manifest(execution_id=Manifest.identify(**deciding), **deciding)


def said(files: object, **others: object) -> tuple[Remote, tuple[str, ...]]:
    return Remote.of({"workdir": "/there/work/x", "files": files, **others}, site="far", endpoint_id=ENDPOINT)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_path_of_another_machine_leads_nowhere_else(name):
    with pytest.raises(BadInput, match="below the run's directory"):
        far_path(name)
    remote, notes = said({name: [1, None], "log.lammps": [5, SHA]})
    assert dict(remote.files) == {"log.lammps": (5, SHA)} and remote.unlisted == 1
    assert "1 file(s) on the endpoint far" in notes[0]


@pytest.mark.parametrize("about", [None, 5, [1], [-1, None], [True, None], ["1", None], [1, "ff"], [2**70, None]])
def test_what_is_no_size_and_no_checksum_is_not_recorded(about):
    remote, notes = said({"x": about})
    assert not remote.files and remote.unlisted == 1 and notes


def test_a_record_lists_some_files_and_always_the_artifacts():
    files = {f"frame{i:04}": [10, None] for i in range(1000)}
    remote, notes = Remote.of(
        {"workdir": "/there", "files": files, "left_out": 7},
        site="far",
        endpoint_id=ENDPOINT,
        named=["frame0999", "absent"],
    )
    assert len(remote.files) == MOST_LISTED and "frame0999" in remote.files
    assert remote.unlisted == 1000 - MOST_LISTED + 7
    assert f"{remote.unlisted} more file(s)" in notes[0] and "hpcagent fetch" in notes[0]


@pytest.mark.parametrize("workdir", [None, "work", "/a\nb", 3])
def test_a_directory_that_cannot_be_is_said(workdir):
    remote, notes = Remote.of({"workdir": workdir, "files": {}}, site="far", endpoint_id=ENDPOINT)
    assert remote.workdir == "" and "no path" in notes[0]


def test_a_result_with_remote_files_survives_the_journal_and_shows_where_they_are():
    remote, _ = said({"log.lammps": [2048, SHA]})
    result = Result(manifest=manifest(), status="COMPLETED", metrics={"x": 1.0}, workdir="/here/w", remote=remote)
    event = json.loads(json.dumps(result_event(result)))
    assert event["remote"]["files"] == {"log.lammps": [2048, SHA]}
    state = State(app=("a", "1.0.0"))
    state.apply({"event": "manifests", "manifests": [manifest().model_dump(mode="json")]})
    state.apply({"event": "results", "results": [event]})
    assert state.in_order()[0].remote == remote
    assert f"/there/work/x on the endpoint far ({ENDPOINT})" in result._repr_html_()


def test_a_result_of_this_machine_has_no_word_of_endpoints():
    result = Result(manifest=manifest(), status="COMPLETED", workdir="/here/w")
    assert result.remote is None and "remote" not in result_event(result)
    assert "endpoint" not in result._repr_html_()
