"""What is read in an input script, written as LAMMPS allows it (https://docs.lammps.org/Commands_parse.html)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcagent.errors import BadInput
from hpcagent.science.lammps.script import Script, read_script


def script(folder: Path, text: str, **files: str) -> Script:
    """Read this text, with files (`sub__data_txt` for sub/data.txt) beside it."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "in.md").write_text(text)
    return read_script(folder / "in.md")


# --- variables


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("timestep ${timestep}", {"timestep"}),
        ("run $n", {"n"}),
        ("print $xy", {"x"}),  # a single letter, then the text y
        ("print ${xy}", {"xy"}),
        ("print a$x/b${yy}c", {"x", "yy"}),
        ("fix 1 all addforce v_fx 0.0 v_fy", {"fx", "fy"}),
        ("print $(v_dt*2.0:%g)", {"dt"}),
        ("variable e equal c_pe/v_n+vel_v_x", {"n"}),  # vel_v_x is one word
        ("run 10 # with ${comment}", set()),
        ("# ${comment} $x v_y", set()),
        ('print "not # a comment ${a}" # ${b}', {"a"}),
        ("print 'the 1st # of $b' # $c", {"b"}),
        ('print """triple # quoted ${t}"""', {"t"}),
        ('if "${a} > 1" then "run $b" elif "$c == x" "print v_d" else quit', {"a", "b", "c", "d"}),
        ("next i j", {"i", "j"}),
    ],
)
def test_references_are_found_where_lammps_finds_them(tmp_path: Path, line: str, used: set[str]) -> None:
    assert script(tmp_path, line + "\n").used == used


def test_continued_lines_are_one_line_even_inside_a_word(tmp_path: Path) -> None:
    found = script(tmp_path, "variable a &\n  index &  \n 3 4\nvaria&\nble bb string x\nprint & \n ${a}")
    assert found.defined == {"a": ("index", "3"), "bb": ("string", "x")}
    assert found.used == {"a"}


def test_a_comment_that_is_continued_hides_the_next_line(tmp_path: Path) -> None:
    assert script(tmp_path, "# off: &\nvariable a index 1\nvariable b index 1\n").defined == {"b": ("index", "1")}


def test_text_over_several_lines_is_no_command(tmp_path: Path) -> None:
    found = script(tmp_path, 'print """\nvariable a index 1\nunits real\n"""\nvariable b index 2\n')
    assert (found.defined, found.units) == ({"b": ("index", "2")}, "lj")


def test_definitions_keep_style_and_first_value(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        "variable t index 0.002 0.004\nvariable t index 9\nvariable i loop 10\nvariable e equal v_t*2\n"
        'variable s string "two words"\nvariable i delete\n',
    )
    assert found.defined == {
        "t": ("index", "0.002"),  # the first stands, as in LAMMPS
        "i": ("loop", "10"),
        "e": ("equal", "v_t*2"),
        "s": ("string", "two words"),
    }


def test_definitions_that_depend_are_known_as_such(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        'if "${a} > 1" then "variable b equal 2" "variable c index 3" else "print x"\n'
        'run 100 every 10 "variable d equal temp" "print $d"\nvariable a index 1\n',
    )
    assert found.conditional == {"b", "c", "d"}
    assert set(found.defined) == {"a"}


# --- units and logs


def test_units_are_those_of_the_script_and_lj_where_it_does_not_say(tmp_path: Path) -> None:
    assert script(tmp_path, "run 0\n").units == "lj"
    assert script(tmp_path, "#units real\n  units \t metal # really\n").units == "metal"
    assert script(tmp_path, "include more.in\n", more_in="units real\n").units == "real"


def test_logs_are_those_that_can_be_known(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        'log a.log\nlog none\nlog b.log append\nlog $x.log\nlog a.log\nif "$x == 1" then "log c.log"\n',
    )
    assert found.logs == ("a.log", "b.log", "c.log")


# --- files


def test_files_beside_the_script_are_found_in_any_command(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        "read_data sub/data.md extra/atom/types 1\n"
        "molecule water 'h2o.mol'\n"
        "pair_coeff * * pots/Cu.eam Cu\n"
        "variable f file list.txt\n"
        'if "1 == 1" then "read_dump start.dump 0 x y z"\n',
        sub__data_md="", h2o_mol="", pots__Cu_eam="", list_txt="", start_dump="", unused_txt="",
    )  # fmt: skip
    assert found.files == ("sub/data.md", "h2o.mol", "pots/Cu.eam", "list.txt", "start.dump")


def test_only_what_is_surely_read_may_be_linked(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        "read_data a.dat\nread_restart b.dat\nfix 1 all tmd 0.0 c.dat 0\nwrite_restart b.dat\nshell cat d.dat\n",
        a_dat="", b_dat="", c_dat="", d_dat="",
    )  # fmt: skip
    assert found.files == ("a.dat", "b.dat", "c.dat", "d.dat")
    assert found.only_read == ("a.dat",)


@pytest.mark.parametrize(
    "line",
    [
        "log out.txt",
        "dump 1 all custom 10 out.txt id x y z",
        "restart 100 out.txt other.txt",
        "write_data out.txt",
        "write_restart out.txt",
        "write_dump all atom out.txt",
        "fix 1 all ave/time 1 1 1 c_t file out.txt mode scalar",
        'fix 1 all print 10 "x" append out.txt screen no',
        'print "x" file out.txt',
        "write_data out.txt\nread_data out.txt",
    ],
)
def test_what_an_earlier_run_by_hand_wrote_is_no_input(tmp_path: Path, line: str) -> None:
    assert script(tmp_path, line + "\n", out_txt="").files == ()


def test_absolute_and_outer_paths_are_left_where_they_are(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    outer = tmp_path / "outer.txt"
    outer.write_text("")
    assert script(inside, f"read_data {outer}\nread_data ../outer.txt\nread_data in/../../outer.txt\n").files == ()


def test_folders_to_write_into_are_known(tmp_path: Path) -> None:
    found = script(
        tmp_path, "log logs/a.log\ndump 1 all atom 10 out/deep/x.dump\nwrite_data /tmp/x\nwrite_data ../up/x\n"
    )
    assert found.folders == ("logs", "out/deep")


# --- includes


def test_includes_are_followed_and_named_from_the_scripts_folder(tmp_path: Path) -> None:
    # As LAMMPS does, which opens every name in the directory it runs in.
    found = script(
        tmp_path,
        "include sub/a.in\n",
        sub__a_in="variable a index 1\ninclude sub/b.in\ninclude c.in\n",
        sub__b_in="print ${b}\nread_data data.md\n",
        sub__c_in="print ${wrong}\n",
        data_md="",
    )
    assert found.files == ("sub/a.in", "sub/b.in", "data.md")
    assert found.used == {"b"}
    assert "a" in found.defined


def test_includes_that_go_round_end(tmp_path: Path) -> None:
    found = script(tmp_path, "include a.in\n", a_in="include ./b.in\nprint $x", b_in="include a.in\njump in.md")
    assert found.used == {"x"}
    assert found.files == ("a.in", "b.in", "in.md")


def test_a_script_that_is_jumped_to_counts(tmp_path: Path) -> None:
    assert script(tmp_path, "jump SELF loop\njump more.in\n", more_in="print ${x}\n").used == {"x"}


# --- what can't be read


def test_what_is_no_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such LAMMPS input script"):
        read_script(tmp_path / "in.none")
    with pytest.raises(BadInput, match=r"is a folder; name the input script in it\."):
        read_script(tmp_path)
    (tmp_path / "restart.bin").write_bytes(b"\xff\xfe\x00LammpS RestartT")
    with pytest.raises(BadInput, match=r"restart\.bin: cannot be read as text"):
        read_script(tmp_path / "restart.bin")


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# nothing\n", "print 'open quote ${x}\n", 'print """\nopen\n', "&\n"]
)
def test_nothing_and_half_a_line_are_read_too(tmp_path: Path, text: str) -> None:
    assert script(tmp_path, text).units == "lj"


def test_windows_line_ends_are_line_ends(tmp_path: Path) -> None:
    (tmp_path / "in.md").write_bytes(b"units &\r\n metal\r\nvariable x index 1\r\nprint ${x}\r\n")
    found = read_script(tmp_path / "in.md")
    assert (found.units, found.defined, found.used) == ("metal", {"x": ("index", "1")}, {"x"})
