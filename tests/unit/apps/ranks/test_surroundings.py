"""What a rank process looks at of itself."""

from __future__ import annotations

import pytest

from hpcagent.apps.ranks import surroundings
from hpcagent.apps.ranks.surroundings import Memory


def test_memory_is_given_back_where_it_has_grown_and_not_after_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """To trim the heap after each run costs kB after kB: each then begins on other pages."""
    held = iter([60.0, 58.0, 58.5, 89.0, 400.0, 59.0, 70.0])
    trimmed: list[str] = []

    def function(name: str) -> object:
        trimmed.append(name)
        return lambda _: 0

    monkeypatch.setattr(surroundings, "_resident_mb", lambda: next(held))
    monkeypatch.setattr(surroundings, "_function", function)
    memory = Memory()
    assert [memory.mb() for _ in range(5)] == [58.0, 58.5, 89.0, 59.0, 70.0]
    assert trimmed == ["malloc_trim"] * 2


def test_a_process_knows_what_it_holds() -> None:
    before = Memory().mb()
    block = bytearray(200_000_000)
    block[::4096] = b"x" * len(block[::4096])
    assert Memory().mb() > before + 150
