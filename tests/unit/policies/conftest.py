"""The contract of a policy is tried in every space after every history: a tenth of that is quick, and has all of both."""

from __future__ import annotations

import pytest

from hpcagent.testing.policy_suite import HISTORIES, SPACES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    spaces, histories = list(SPACES), list(HISTORIES)
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        space, kind = given.get("space"), given.get("kind")
        if space not in spaces or kind not in histories:
            continue
        if (spaces.index(space) - histories.index(kind)) % len(histories):
            item.add_marker("slow")
