"""A file as a parameter: by content in the id, kept in the folder, refused where it was edited."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.errors import BadInput, InputsChanged
from hpcagent.model.space import Space
from tests.warm import command

CONTENTS = {"a.txt": "x", "b.txt": "xx", "c.txt": "xxx"}


def files(folder: Path, **other: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (CONTENTS | other).items():
        (folder / name).write_text(text)
    return [folder / name for name in CONTENTS]


def made(*paths: Path) -> ha.App:
    @ha.app(
        name="size", parameters={"structure": ha.File(*paths), "k": ha.Float(0, 1, unit="ps")}, metrics={"y": "1"}
    )
    def size(structure: Path, k: float) -> dict[str, float]:
        return {"y": len(Path(structure).read_text()) - (k - 0.3) ** 2}

    return size


def campaign(app: ha.App, runs: int = 6, **more: object) -> ha.Campaign:
    return ha.Campaign(app, ha.maximize("y"), until=ha.until.max_runs(runs), policy="sobol", batch_size=3, **more)


def ids(result: ha.types.CampaignResult) -> list[str]:
    return [r.manifest.execution_id for r in result.results]


def test_the_id_follows_the_content_and_not_the_place(tmp_path):
    here, there = made(*files(tmp_path / "x")), made(*files(tmp_path / "y"))
    edited = made(*files(tmp_path / "z", **{"b.txt": "other"}))
    of = [
        {p: app.manifest({"structure": p, "k": 0.5}).execution_id for p in CONTENTS}
        for app in (here, there, edited)
    ]
    assert of[0] == of[1] and len(set(of[0].values())) == 3
    assert of[2]["a.txt"] == of[0]["a.txt"] and of[2]["b.txt"] != of[0]["b.txt"]


def test_a_campaign_over_files_shows_names_and_gives_each_run_its_own_copy(tmp_path):
    paths = files(tmp_path / "in")
    result = ha.run(campaign(made(*paths), 9), site="threads", run_dir=tmp_path / "r")
    assert all(r.ok and round(r["y"]) == len(CONTENTS[r.manifest.params["structure"]]) for r in result.results)
    assert result.best.params["structure"] == "c.txt" and "structure = c.txt" in str(result)
    assert set(result.to_pandas()["params/structure"]) == set(CONTENTS)
    run = result.results[0]
    name = run.manifest.params["structure"]
    assert (Path(run.workdir) / name).read_text() == CONTENTS[name]
    kept = sorted(p.relative_to(tmp_path / "r" / "files") for p in (tmp_path / "r" / "files").rglob("*.txt"))
    assert [p.name for p in kept] == sorted(CONTENTS, key=lambda n: [p.name for p in kept].index(n)) and len(
        kept
    ) == 3
    assert all(len(p.parent.name) == 64 for p in kept)


def test_an_edited_file_is_refused_and_one_that_was_moved_or_is_gone_goes_on(tmp_path):
    paths = files(tmp_path / "in")
    first = ha.run(campaign(made(*paths), 6), site="threads", run_dir=tmp_path / "r")
    paths[1].write_text("edited")
    with pytest.raises(InputsChanged, match=r"in/b.txt: SHA-256 \w+ recorded, \w+ now.*6 finished run"):
        ha.run(campaign(made(*paths), 9), site="threads", run_dir=tmp_path / "r")
    shutil.rmtree(tmp_path / "in")
    moved = made(*files(tmp_path / "elsewhere"))
    more = ha.run(campaign(moved, 9), site="threads", run_dir=tmp_path / "r")
    assert ids(more)[:6] == ids(first) and len(more.results) == 9 and all(r.ok for r in more.results)


@pytest.mark.slow
def test_a_folder_that_was_moved_away_from_its_files_is_resumed_from_its_own_copies(tmp_path):
    files(tmp_path / "in")
    (tmp_path / "sized.py").write_text(
        "import hpcagent as ha\n"
        "@ha.app(parameters={'structure': ha.File('in/a.txt', 'in/b.txt')}, metrics={'y': '1'})\n"
        "def sized(structure):\n"
        "    return {'y': len(structure.read_text())}\n"
    )
    (tmp_path / "c.toml").write_text(
        'app = "sized:sized"\npolicy = "random"\nobjective = { maximize = "y" }\nuntil = { max_runs = 2 }\n'
    )

    def hpcagent(*words: str) -> subprocess.CompletedProcess[str]:
        return command(*words, "--site", "threads", cwd=tmp_path)

    done = hpcagent("run", "c.toml", "--run-dir", "r", "--no-plots")
    assert done.returncode == 0, done.stderr
    (tmp_path / "in" / "a.txt").write_text("edited")
    refused = hpcagent("resume", "r", "--set", "until.max_runs=4")
    assert refused.returncode == 2 and "in/a.txt: SHA-256" in refused.stderr
    shutil.rmtree(tmp_path / "in")
    (tmp_path / "r").rename(tmp_path / "moved")
    again = hpcagent("resume", "moved", "--set", "until.max_runs=4", "--no-plots")
    assert again.returncode == 0, again.stdout + again.stderr
    results = ha.open_run(tmp_path / "moved").results
    assert {r.manifest.params["structure"]: r["y"] for r in results} == {"a.txt": 1.0, "b.txt": 2.0}


def test_a_copy_that_was_tampered_with_is_not_computed_with(tmp_path):
    app = made(*files(tmp_path / "in"))
    fixed = campaign(app, 3, fixed={"structure": "a.txt"})
    coordinator = ha.Coordinator(fixed, site="threads", run_dir=tmp_path / "r")
    with coordinator:
        kept = next((tmp_path / "r" / "files").rglob("a.txt"))
        kept.write_text("other")
        (tmp_path / "in" / "a.txt").write_text("another")  # and what it was copied from is gone as well
        with pytest.raises(BadInput, match=r"in/a.txt: SHA-256 \w+ recorded, \w+ now, and .* has no copy of it"):
            list(coordinator)
    from hpcagent.apps.chosen import placed
    from hpcagent.apps.run import Run

    order = {
        "manifest": {"params": {"s": "a.txt"}},
        "function": "mine:f",
        "chosen": {"s": {"name": "a.txt", "sha256": "0" * 64, "path": str(kept)}},
    }
    with pytest.raises(ha.AppFailed, match="not computed") as caught:
        placed(order, Run(workdir=tmp_path))
    assert caught.value.details["name"] == "FilesChanged"


def test_a_chain_gets_the_path_and_an_inner_run_too(tmp_path):
    inner = made(*files(tmp_path / "in"))

    @ha.chain(parameters={"structure": ha.File(*files(tmp_path / "in")[:2])}, metrics={"both": "1"})
    def both(structure: Path) -> dict[str, float]:
        return {"both": 10 * len(structure.read_text()) + inner(structure="c.txt", k=0.3).result()["y"]}

    with ha.open_site("threads"):
        assert both(structure="b.txt").result()["both"] == 23.0


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ((), "a file parameter without files"),
        (("no.txt",), "no.txt: no such file"),
        ((".",), "is no regular file"),
        ((3,), "3 is no path of a file"),
        (("a.txt", "a.txt"), "is given twice"),
        (("a.txt", "same.txt"), "have the same content"),
        (("a b.txt",), "not a plain word"),
    ],
)
def test_files_that_cannot_be_choices_are_refused_in_one_sentence(tmp_path, monkeypatch, paths, message):
    files(tmp_path, **{"same.txt": "x", "a b.txt": "q"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=message):
        ha.File(*paths)


def test_equal_names_in_several_folders_are_told_apart(tmp_path):
    for lattice in ("fcc", "bcc"):
        (tmp_path / lattice).mkdir()
        (tmp_path / lattice / "POSCAR").write_text(lattice)
    parameter = ha.File(tmp_path / "fcc" / "POSCAR", tmp_path / "bcc" / "POSCAR", default="bcc_POSCAR")
    assert (
        parameter.choices == ("fcc_POSCAR", "bcc_POSCAR") and parameter.narrowed(choices=["fcc_POSCAR"]).constant
    )
    one, other = ha.File(tmp_path / "fcc" / "POSCAR"), ha.File(tmp_path / "bcc" / "POSCAR")
    with pytest.raises(BadInput, match="both have a file 'POSCAR' of different contents"):
        Space.of(one=one, other=other)


def test_runs_with_another_content_under_the_same_name_do_not_begin_a_campaign(tmp_path):
    ha.run(campaign(made(*files(tmp_path / "x")), 3), site="threads", run_dir=tmp_path / "old")
    other = made(*files(tmp_path / "y", **{"b.txt": "other"}))
    with pytest.raises(BadInput, match=r"content of the file of structure: b\.txt"):
        ha.run(campaign(other, 6, earlier=[str(tmp_path / "old")]), site="threads", run_dir=tmp_path / "new")


def test_a_lammps_script_and_a_program_find_the_file_by_its_name_in_their_directory(tmp_path):
    folder = tmp_path / "in"
    files(folder)
    (folder / "prog.toml").write_text(
        'command = "wc -c {structure}"\n[parameters.structure]\nfiles = ["b.txt", "c.txt"]\n'
        "[metrics.n]\nregex = '^(\\d+) '\nunit = \"1\"\n"
    )
    app = ha.find_app(str(folder / "prog.toml"))
    with ha.open_site("threads"):
        assert [app(structure=name).result()["n"] for name in ("b.txt", "c.txt")] == [2.0, 3.0]

    for name, n in (("one.data", 1), ("two.data", 2)):
        head = f"x\n\n{n} atoms\n1 atom types\n\n0 9 xlo xhi\n0 9 ylo yhi\n0 9 zlo zhi\n\nMasses\n\n1 1.0\n\nAtoms\n\n"
        lines = (f"{i} 1 {2 * i} 0.5 0.5\n" for i in range(1, n + 1))
        (folder / name).write_text(head + "".join(lines))
    (folder / "in.cell").write_text(
        "units lj\nread_data ${structure}\npair_style lj/cut 2.0\npair_coeff * * 1 1\nfix 1 all nve\nthermo 10\n"
        "timestep ${dt}\nrun 20\n"
    )
    (folder / "in.cell.toml").write_text(
        '[variables.structure]\nfiles = ["one.data", "two.data"]\n'
        '[variables.dt]\nlow = 0.001\nhigh = 0.002\nunit = "tau"\n'
    )
    md = ha.lammps(folder / "in.cell")
    with ha.open_site("threads"):
        runs = [md(structure=name, dt=0.001).result() for name in ("one.data", "two.data")]
    assert [run["n_atoms"] for run in runs] == [1, 2], runs
