"""The contract of a policy is tried in every space after every history: a tenth of that is quick, and has all of both."""

from __future__ import annotations

import subprocess

import pytest

from hpcagent.testing.policy_suite import HISTORIES, IN_ANOTHER_PROCESS, SPACES, PolicyContract
from tests.warm import Script


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process of the contract is a fork of one that has its imports: with other hashes than this one."""

    def elsewhere(task: bytes) -> str:
        folder = tmp_path_factory.mktemp("elsewhere")
        script, given = folder / "script.py", folder / "task"
        script.write_text(IN_ANOTHER_PROCESS)
        given.write_bytes(task)
        with given.open("rb") as stdin, Script([script], stdin=stdin, stdout=subprocess.PIPE) as process:
            said, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        return said

    monkeypatch.setattr(PolicyContract, "elsewhere", staticmethod(elsewhere))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    spaces, histories = list(SPACES), list(HISTORIES)
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        space, kind = given.get("space"), given.get("kind")
        if space not in spaces or kind not in histories:
            continue
        if (spaces.index(space) - histories.index(kind)) % len(histories):
            item.add_marker("slow")
