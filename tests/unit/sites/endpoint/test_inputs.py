"""Inputs on the way to an endpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from hpcagent.sites.endpoint import inputs
from hpcagent.sites.endpoint.inputs import Inputs


def test_of_a_large_input_only_a_part_is_in_memory_and_all_of_it_arrives(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "big"
    path.write_bytes(bytes(range(256)) * 2**17)  # eight chunks, small when packed
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(inputs, "MOST_UNDER_WAY", 1)
    there = Inputs("/scratch/a/b", sent.append)
    assert not there.bring("t", {sha256: path})
    assert not there.bring("u", {sha256: path})
    assert len(sent) == 1
    ready: list[str] = []
    for at in range(8):
        assert len(sent) == at + 1
        ready, failed = there.answered(sent[at]["key"], None)
        assert not failed
    assert ready == ["t", "u"]
    assert [request["offset"] for request in sent] == [at * 2**22 for at in range(8)]
    assert there.bring("v", {sha256: path})


def test_an_input_that_is_gone_while_it_is_sent_fails_its_tasks(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(inputs, "MOST_UNDER_WAY", 1)
    path = tmp_path / "big"
    path.write_bytes(b"x" * (2**22 + 1))
    sent: list[dict[str, Any]] = []
    there = Inputs("/scratch/a/b", sent.append)
    there.bring("t", {"0" * 64: path})
    path.unlink()
    ready, failed = there.answered(sent[0]["key"], None)
    assert ready == []
    assert isinstance(failed["t"], FileNotFoundError)
