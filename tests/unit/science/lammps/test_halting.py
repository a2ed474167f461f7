"""Which scripts can be watched, and which can be asked to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcagent.science.lammps.growing import MARK
from hpcagent.science.lammps.halting import watchable

HEAD = "units lj\nfix 1 all nve\n"


@pytest.mark.parametrize(
    ("script", "known", "halts"),
    [
        ("run 10\nrun 100\n", True, True),
        ('if "${n} > 0" then "run 10"\nrun ${steps} upto\nrun 0\nwrite_data x\n', True, True),
        ("label a\nrun 10\nnext i\njump SELF a\nrun &\n  100 # last\n", True, True),
        ('run 100 every 10 "print x"\nprint """\nrun 7\n"""\n', True, True),
        ('run 10\nif "${n} > 0" then "run 100" else "run 200"\n', True, False),
        ("include of_one\n", True, False),
        ('if "1" then "run 10" "run 20"\n', False, False),
        ("include of_two\n", False, False),
        ("include not_there\n", False, False),
        ("label a\nrun 100\nnext i\njump SELF a\n", False, False),
        ("jump in.other\nrun 100\n", False, False),
        ("run 10\nrun 100 pre no\n", False, False),
        ("minimize 0 1e-4 100 100\n", False, False),
        ("variable hpcagent_stop equal 1\nrun 100\n", False, False),
    ],
)
def test_what_is_known_of_a_script(tmp_path: Path, script: str, known: bool, halts: bool) -> None:
    (tmp_path / "of_one").write_text("timestep 1\nrun 100\n")
    (tmp_path / "of_two").write_text("run 100\nrun 100\n")
    found = watchable(HEAD + script, production=-1, ranks=1, folder=tmp_path)
    assert (found.known, found.halts) == (known, halts), found.why
    assert found.text.count(MARK) == known
    assert ("fix hpcagent_stop" in found.text) == halts
    assert bool(found.why) == (not halts)
    if not known:
        assert found.text == HEAD + script


def test_nothing_but_lines_before_the_last_run_is_added() -> None:
    script = HEAD + "run 10\nrun &\n 100\nwrite_data x\n"
    added = watchable(script, production=-1, ranks=1).text.splitlines()
    own = [line for line in added if "hpcagent" in line or "flush" in line]
    assert [line for line in added if line not in own] == script.splitlines()
    assert added[added.index(MARK) + 1] == "run &"


def test_where_another_run_is_measured_nothing_is_added() -> None:
    found = watchable(HEAD + "run 10\nrun 100\n", production=0, ranks=1)
    assert not found.known and "production = 0" in found.why


def test_several_ranks_see_the_file_at_the_same_step() -> None:
    assert "reduce max" in watchable("run 10\n", production=-1, ranks=2).text
    assert "reduce" not in watchable("run 10\n", production=-1, ranks=1).text
