"""Names of tools, agents and added apps are of one kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcagent.registry.names import LONGEST_TOOL_NAME, is_name
from hpcagent.registry.store import Tools


def test_a_name_is_what_a_client_can_write_and_a_longer_one_is_none() -> None:
    longest = "a" * LONGEST_TOOL_NAME
    assert all(map(is_name, ("a", "run_dft2", longest)))
    assert not any(map(is_name, ("", "2nd", "_x", "a-b", "../a", "a\n", "dépôt", longest + "a")))


@pytest.mark.parametrize("name", ["a" * (LONGEST_TOOL_NAME + 1), "../secret", ""])
def test_of_what_is_no_name_there_is_no_tool(tmp_path: Path, name: str) -> None:
    assert not Tools(tmp_path / "tools", taken=lambda: (), owner="ada").has(name)
