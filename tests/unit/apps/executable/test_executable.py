"""A program of one's own becomes an app: what reaches it, what is refused, what its end means."""

from __future__ import annotations

import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.campaign.dry_run import plan
from hpcagent.campaign.loading import load_run
from hpcagent.errors import BadInput, InputsChanged
from hpcagent.model.failures import meaning

N = ha.Int(1, 1000, log=True)
METHOD = ha.Choice("trapezoid", "simpson")
ERROR = ha.output.from_json("out.json", "result.errors[0]", unit="1")
WORK = ha.output.from_regex(r"(\d+) evaluations", unit="1")
ONE = {"x": ha.output.from_regex("x=(.*)", unit="1")}


def quadrature(folder, **more):
    return ha.executable(
        "./quad {n} {method} --out out.json",
        parameters={"n": N, "method": METHOD},
        metrics={"error": ERROR, "evaluations": WORK},
        relative_to=folder,
        **more,
    )


# ---- a program in C


def test_a_program_in_c_gives_the_numbers_that_theory_gives(quad, called):
    app = quadrature(quad)
    for method, order, constant in (("trapezoid", 2, (math.e - 1) / 12), ("simpson", 4, (math.e - 1) / 2880)):
        result = called(app, n=10, method=method)
        assert result["status"] == "COMPLETED", result
        assert result["metrics"]["error"] == pytest.approx(constant * 0.1**order, rel=2e-3)
    assert result["metrics"]["evaluations"] == 30
    assert result["units"] == {"error": "1", "evaluations": "1"}
    workdir = Path(result["workdir"])
    assert (workdir / "command.txt").read_text() == f"{quad}/quad 10 simpson --out out.json\n"
    assert sorted(path.name for path in workdir.iterdir()) == [
        "command.txt",
        "manifest.json",
        "out.json",
        "output.txt",
        "result.json",
    ]


def test_failures_have_the_names_that_they_are_given_whatever_the_exit_code(quad, called):
    app = quadrature(
        quad, failures={"NotConverged": "did not converge", "TooCoarse": {"exit_codes": [4], "repair": "larger n"}}
    )
    named = {n: called(app, n=n, method="simpson")["failure"] for n in (13, 14, 15)}
    assert {n: (f["name"], f["kind"]) for n, f in named.items()} == {
        13: ("NotConverged", "simulation"),
        14: ("TooCoarse", "simulation"),
        15: ("Crashed", "simulation"),
    }
    assert "line 1" in named[13]["message"]
    assert named[14]["repair"] == "larger n"
    assert {"NotConverged", "TooCoarse"} <= set(app.contract.failure_modes)
    plain = quadrature(quad)
    assert called(plain, n=13, method="simpson")["failure"]["name"] == "NoOutput"  # exit code 0, and no file
    assert called(plain, n=14, method="simpson")["failure"]["name"] == "NonzeroExit"
    fine = quadrature(quad, success=[0, 4])
    assert called(fine, n=14, method="simpson")["failure"]["name"] == "NoOutput"


def test_a_campaign_in_toml_needs_no_python_and_finds_the_cheapest(quad, tmp_path):
    (tmp_path / "quad.toml").write_text(f"""
command = "{quad}/quad {{n}} {{method}} --out out.json"
[parameters]
n = {{ kind = "int", low = 1, high = 1000, unit = "1", log = true }}
method = {{ choices = ["trapezoid", "simpson"] }}
[metrics]
error = {{ file = "out.json", key = "result.errors[0]", unit = "1", noise = 0 }}
evaluations = {{ regex = '(\\d+) evaluations', unit = "1", noise = 0 }}
[failures]
NotConverged = "did not converge"
""")
    (tmp_path / "campaign.toml").write_text("""
app = "quad.toml"
site = "threads"
[objective]
minimize = "evaluations"
subject_to = { error = { at_most = 1e-6 } }
[policy]
name = "grid"
levels = 31
[space]
n = { low = 2, high = 9 }
method = {}
[until]
max_runs = 16
""")
    campaign = ha.load_campaign(tmp_path / "campaign.toml")
    assert any(f"{quad}/quad 2 trapezoid --out out.json" in note for note in plan(campaign).notes)
    result = ha.run(campaign, run_dir=tmp_path / "run")
    # Simpson's error is (e - 1) / 2880 n^4: 9.5e-7 with 5 panels, 2.3e-6 with 4.
    assert result.best.params == {"n": 5, "method": "simpson"}
    assert result.best.metrics["evaluations"] == 15


def test_a_campaign_is_not_gone_on_with_when_its_program_or_a_template_was_changed(tmp_path, python):
    tool = python("print('x=' + open('in.txt').read())")
    (tmp_path / "in.txt").write_text("${a}")

    def campaign(runs=3):
        app = ha.executable(
            tool, parameters={"a": ha.Float(0, 1)}, metrics=ONE, templates=["in.txt"], relative_to=tmp_path
        )
        return ha.Campaign(app, ha.minimize("x"), until=ha.until.max_runs(runs), policy="random", site="threads")

    ha.run(campaign(), run_dir=tmp_path / "run")
    for name, text in (("in.txt", "1${a}"), ("tool", "#!/bin/sh\necho x=1\n")):
        before = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text)
        for again in (campaign(4), load_run(tmp_path / "run", changes={"until.max_runs": 4})):
            with pytest.raises(InputsChanged, match=name):
                ha.run(again, run_dir=tmp_path / "run")
        (tmp_path / name).write_text(before)
    assert len(ha.run(campaign(4), run_dir=tmp_path / "run").results) == 4


# ---- what reaches a program


def test_a_value_is_one_word_whatever_is_in_it(tmp_path, python, called):
    tool = python("print('x=1'); json.dump(sys.argv[1:], open('args.json', 'w'))")
    app = ha.executable(
        [tool, "{text}", "--at={x:.3e}", "{{n}}", "{n:04d}", "{x}", "a b"],
        parameters={"text": ha.Text(), "x": ha.Float(-10, 10), "n": ha.Int(0, 99)},
        metrics=ONE,
        relative_to=tmp_path,
    )
    hostile = "a'b\"; rm -rf $HOME `id` {n} ${x} |>"
    result = called(app, text=hostile, x=-2.5, n=7)
    assert result["status"] == "COMPLETED", result
    words = json.loads((Path(result["workdir"]) / "args.json").read_text())
    assert words == [hostile, "--at=-2.500e+00", "{n}", "0007", "-2.5", "a b"]
    failure = called(app, text="--out=/etc/passwd", x=0.0, n=1)["failure"]
    assert (failure["kind"], failure["name"]) == ("contract", "BadParameter")


def test_templates_stdin_environment_and_files_reach_the_program(tmp_path, python, called):
    tool = python(
        "print('x=' + sys.stdin.read()); print(os.environ['MODE'], open('sub/t.dat').read(), os.path.islink('big'))"
    )
    (tmp_path / "in.txt").write_text("${x:.2f}\r\n# $HOME $${x} ${mode} ${steps}")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "t.dat").write_text("table")
    (tmp_path / "big").write_text("large")
    app = ha.executable(
        tool,
        parameters={"x": ha.Float(0, 1), "mode": ha.Choice("fast", "slow")},
        constants={"steps": 100},
        metrics={"x": ha.output.from_regex("x=(.*)", unit="1", match="first")},
        templates=["in.txt"],
        files=["sub/t.dat"],
        links={"big": "big"},
        stdin="in.txt",
        env={"MODE": "m-{mode}"},
        artifacts={"input": "in.*"},
        relative_to=tmp_path,
    )
    result = called(app, x=1 / 3, mode="fast")
    workdir = Path(result["workdir"])
    assert result["metrics"] == {"x": 0.33}
    assert (workdir / "in.txt").read_bytes() == b"0.33\r\n# $HOME ${x} fast 100"
    assert "m-fast table True" in (workdir / "output.txt").read_text()
    assert result["artifacts"]["input"] == "in.txt"
    (tmp_path / "big").write_text("other")  # a linked file counts by its content, too
    assert called(app, x=0.5, mode="fast")["failure"]["name"] == "FilesChanged"


def test_every_run_has_a_seed_of_its_own_and_the_ranks_and_threads_of_its_resources(tmp_path, python, called):
    app = ha.executable(
        [python("print('x=' + sys.argv[1], sys.argv[2], os.environ['OMP_NUM_THREADS'])"), "{seed}", "{threads}"],
        parameters={"t": ha.Int(1, 4), "y": ha.Float(0, 1)},
        metrics={
            "x": ha.output.from_regex(r"x=(\d+)", unit="1"),
            "threads": ha.output.from_regex(r"(\d) \d$", unit="1"),
        },
        env={"Y": "{y}"},
        resources_from={"threads_per_rank": "t"},
        relative_to=tmp_path,
    )
    first, second = called(app, t=2, y=0.1), called(app, t=2, y=0.2)
    assert first["metrics"]["threads"] == 2
    assert first["metrics"]["x"] != second["metrics"]["x"]
    assert called(app, t=2, y=0.1)["metrics"] == first["metrics"]


def test_json_goes_in_on_stdin_and_status_and_result_come_out(tmp_path, python, called):
    code = """
print('warming up', file=sys.stderr)
p = json.load(sys.stdin)
if p['x'] > 3: print(json.dumps({'status': 'error', 'message': 'x is too large'})); sys.exit(1)
if p['x'] > 2: print('done')
elif p['x'] > 1: print(json.dumps({'result': {'y': 1}}))
else: print(json.dumps({'status': 'success', 'result': {'y': p['x'] ** 2, 'sd': 0.5, 'k': p['k'], 'on': True}}))
"""
    app = ha.executable(
        python(code),
        parameters={"x": ha.Float(0, 4)},
        constants={"k": 3},
        metrics={
            "y": ha.output.from_json("stdout", "y", error_key="sd", unit="eV"),
            "k": ha.output.from_json("stdout", "k", unit="1"),
        },
        stdin="json",
        stdout="json",
        relative_to=tmp_path,
    )
    good = called(app, x=0.5)
    assert (good["metrics"], good["uncertainty"]) == ({"y": 0.25, "k": 3.0}, {"y": 0.5})
    assert (Path(good["workdir"]) / "errors.txt").read_text() == "warming up\n"
    names = {x: called(app, x=x)["failure"]["name"] for x in (1.5, 2.5, 3.5)}
    assert names == {1.5: "BadOutput", 2.5: "BadOutput", 3.5: "ReportedError"}
    assert "x is too large" in called(app, x=3.5)["failure"]["message"]


def test_a_program_on_the_path_is_found_by_the_worker_and_its_content_is_told(called, tmp_path):
    app = ha.executable(
        "seq {n}", parameters={"n": ha.Int(1, 9)}, metrics={"x": ha.output.from_regex("^(.*)$", unit="1")}
    )
    result = called(app, n=4)
    assert result["metrics"] == {"x": 4.0}
    assert result["versions"]["seq"].startswith("SHA-256 ")
    elsewhere = called(app, site={"apps": {"seq": {"command": ["/bin/echo", "7"]}}}, n=5)
    assert elsewhere["failure"]["name"] == "BadOutput"  # the site's own command was taken: it printed "7 5"
    missing = ha.executable("no-such-program-here {n}", parameters={"n": ha.Int(1, 9)}, metrics=ONE)
    failure = called(missing, n=1)["failure"]
    assert failure["name"] == "NoExecutable"
    assert not meaning(failure["kind"], failure["name"]).again


def test_walltime_and_what_is_printed_are_bounded(tmp_path, python, called):
    tool = python("import time\nif sys.argv[1] == '1': time.sleep(60)\nfor i in range(300000): print('line', i)")
    app = ha.executable(
        [tool, "{a}"],
        parameters={"a": ha.Choice(1, 2)},
        metrics={"x": ha.output.from_regex(r"line (\d+)", unit="1")},
        resources=ha.Resources(walltime_s=0.5),
        relative_to=tmp_path,
    )
    assert called(app, a=1)["failure"]["name"] == "Walltime"
    roomy = app.with_resources(walltime_s=60)
    result = called(roomy, site={"max_output_mb": 0.1}, a=2)
    assert result["metrics"] == {"x": 299_999}
    assert (Path(result["workdir"]) / "output.txt").stat().st_size < 110_000
    assert any("left out" in note for note in result["notes"])


def test_what_is_to_be_removed_goes_and_nothing_behind_a_link_does(tmp_path, python, called):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.tmp").write_text("mine")
    tool = python(f"open('b.tmp', 'w'); os.symlink({str(outside)!r}, 'd'); print('x=1')")
    app = ha.executable(tool, parameters={}, metrics=ONE, remove=["*.tmp", "d/*.tmp"], relative_to=tmp_path)
    workdir = Path(called(app)["workdir"])
    assert not (workdir / "b.tmp").exists()
    assert (outside / "a.tmp").read_text() == "mine"


def test_a_number_that_was_there_before_is_no_result(tmp_path, python, called):
    (tmp_path / "out.json").write_text('{"x": "${n}"}')
    how = {"x": ha.output.from_json("out.json", "x", unit="1")}
    tool = python("if sys.argv[1] != '1': json.dump({'x': 2.0}, open('out.json', 'w'))")
    for way in ("files", "templates", "links"):
        with pytest.raises(BadInput, match=r"metrics\.x: 'out\.json' is there before the program begins"):
            ha.executable(
                f"{tool} {{n}}", parameters={"n": N}, metrics=how, relative_to=tmp_path, **{way: ["out.json"]}
            )
    # What an app that was recorded before says is looked at where the run is.
    (tmp_path / "out.json").write_text('{"x": 1.0}')
    app = ha.executable(
        f"{tool} {{n}}", parameters={"n": N}, metrics=how, files={"in.json": "out.json"}, relative_to=tmp_path
    )
    text = app.model_dump_json().replace("in.json", "out.json")
    app = type(app).model_validate_json(text)
    failed = called(app, n=1)["failure"]
    assert (failed["name"], "has not written out.json" in failed["message"]) == ("NoOutput", True)
    assert called(app, n=2)["metrics"] == {"x": 2.0}


def test_an_artifact_is_not_removed(tmp_path, python, called):
    tool = python("open('o.json', 'w').write('1'); open('p', 'w'); print('x=1')")
    app = ha.executable(
        tool, parameters={}, metrics=ONE, artifacts={"o": "o.json"}, remove=["*"], relative_to=tmp_path
    )
    result = called(app)
    assert result["artifacts"]["o"] == "o.json"
    assert sorted(p.name for p in Path(result["workdir"]).iterdir() if p.suffix != ".txt") == [
        "manifest.json",
        "o.json",
        "result.json",
    ]


def test_replicates_of_a_program_without_a_seed_are_not_run(tmp_path, python):
    tool = python("print('x=' + sys.argv[1])")

    def made(command, **more):
        x = ha.output.from_regex("x=(.*)", **{"unit": "1", **more})
        return ha.executable(command, parameters={"n": N}, metrics={"x": x}, relative_to=tmp_path)

    plain = made(f"{tool} {{n}}")
    assert not plain.contract.seeded and made(f"{tool} {{n}} {{seed}}").contract.seeded
    result = ha.run(ha.Sweep(plain, {"n": [1, 2]}, replicates=3), run_dir=tmp_path / "s", site="threads")
    assert len(result.results) == 2 and "write {seed} in its command" in str(result)
    # A measured time differs from run to run, and so does what states its noise.
    for number, more in enumerate(({"unit": "s"}, {"noise": 0.1})):
        sweep = ha.Sweep(made(f"{tool} {{n}}", **more), {"n": [1, 2]}, replicates=2)
        assert len(ha.run(sweep, run_dir=tmp_path / f"{number}", site="threads").results) == 4
    # Its numbers may have an error all the same: a campaign does not take them as exact.
    assert not ha.Campaign(name="c", app=plain, objective=ha.minimize("x")).exact


# ---- what is refused before anything runs


@pytest.mark.parametrize(
    ("command", "more", "words"),
    [
        ("seq {m}", {}, "'m' is neither a parameter nor a constant; known"),
        ("seq 1", {}, "'n' is never used"),
        ("seq {n} {", {}, "has no partner"),
        ("seq {n!r}", {}, "is no place for a value"),
        ("seq {n.real}", {}, "is no place for a value"),
        ("seq {n:>9999}", {}, "is no place for a value"),
        ("seq {n:.2d}", {}, "behind the point"),
        ("seq {n:.3}", {}, "behind the point"),
        ("seq {n} {seed:.3}", {}, "behind the point"),
        ("seq {n}", {"files": {"a": "/etc/hostname", "a/b": "/etc/hostname"}}, "would lie in a folder 'a'"),
        ("seq {n}", {"files": {"command.txt/b": "/etc/hostname"}}, "a file of the library"),
        ("seq {n} > out.txt", {}, "word of a shell"),
        ("{n} 1", {}, "not chosen by a parameter"),
        ("./seq {n}", {}, "no such file"),
        ("", {}, "the command is empty"),
        ("seq 'a {n}", {}, "taken apart"),
        ("seq {n}", {"constants": {"n": 1}}, "is a parameter too"),
        ("seq {n}", {"constants": {"k": 1}}, "'k' is never used"),
        ("seq {n}", {"stdin": "in.txt"}, "none of its files"),
        ("seq {n}", {"templates": ["absent.txt"]}, "absent.txt"),
        ("seq {n}", {"files": ["../../etc/no_such_file"]}, "no such file"),
        ("seq {n}", {"files": {"../x": "/etc/hostname"}}, "not the name of a file in the run's directory"),
        ("seq {n}", {"files": {"result.json": "/etc/hostname"}}, "library's own"),
        ("seq {n}", {"env": {"A B": "1"}}, "environment variable"),
        ("seq {n}", {"artifacts": {"all": "/tmp/*"}}, "not the name of a file"),
        ("seq {n}", {"remove": ["../*"]}, "not the name of a file"),
        ("seq {n}", {"failures": {"Walltime": "late"}}, "is of kind infrastructure everywhere"),
        ("seq {n}", {"failures": {"bad name": "late"}}, "no name of a failure"),
        ("seq {n}", {"failures": {"Late": ".*"}}, "every run would fail"),
        ("seq {n}", {"failures": {"Late": 0}}, "means success"),
        ("seq {n}", {"failures": {"Late": {}}}, "regex or exit_codes"),
        ("seq {n}", {"metrics": {}}, "at least one number"),
        ("seq {n}", {"metrics": {"x": "out.json"}}, "say how it is read"),
        ("seq {n}", {"metrics": {"x": ha.output.from_json("stdout", "x", unit="1")}}, 'needs stdout = "json"'),
        ("seq {n}", {"vary": ["m"]}, "'m'"),
        ("seq {n}", {"metrics": ["x"]}, "give a dict"),
        ("seq {n}", {"metrics": {"a/b": ONE["x"]}}, "'/'"),
        ("seq {n}", {"parameters": {"n": 3}}, "Int(...)"),
        ("seq {n}", {"failures": ["late"]}, "failures"),
        ("seq {n}", {"success": 0}, "success"),
        ("seq {n}", {"templates": "in.txt"}, "['in.txt']"),
        (["seq", 3], {}, "list of words"),
        (None, {}, "list of words"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_reason(command, more, words):
    given = {"parameters": {"n": ha.Int(1, 9)}, "metrics": ONE} | more
    with pytest.raises(BadInput) as refused:
        ha.executable(command, **given)
    assert words in str(refused.value)


def test_names_in_a_template_are_checked_with_the_line_and_texts_are_kept_out(tmp_path):
    path = tmp_path / "in.txt"
    for text, words in (
        ("a\n${m}", "'m' is neither"),
        ("a\n${n", "line 2"),
        ("plain", "no ${name} is in it"),
        ("${t}", "is a text"),
        ("${n:.2d}", "behind the point"),
        ("${b}", "true or false"),
        ("${c}", "no plain word"),
    ):
        path.write_text(text)
        with pytest.raises(BadInput) as refused:
            ha.executable(
                "seq {n} {t}",
                parameters={"n": ha.Int(1, 9), "t": ha.Text(), "b": ha.Choice(True, False)},
                metrics=ONE,
                constants={"c": "a; rm *"},
                templates=[path],
            )
        assert words in str(refused.value)
        assert "in.txt" in str(refused.value)


def test_a_file_that_the_run_would_not_have_is_asked_for(tmp_path, python):
    (tmp_path / "model.py").write_text("print(1)")
    given = {"parameters": {"n": ha.Int(1, 9)}, "metrics": ONE, "relative_to": tmp_path}
    with pytest.raises(BadInput, match="List it under files"):
        ha.executable("python3 model.py {n}", **given)
    assert ha.executable("python3 model.py {n}", files=["model.py"], **given).settings["copies"] == ["model.py"]
    python("print(1)")
    with pytest.raises(BadInput, match=r"write \./tool"):
        ha.executable("tool {n}", **given)
    (tmp_path / "tool").chmod(0o644)
    with pytest.raises(BadInput, match="chmod"):
        ha.executable("./tool {n}", **given)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("n = { low = 1, high = 9, unit = '1' }", 'write kind = "int"'),
        ("n = { low = 1.0, high = 9 }", "'unit' is missing"),
        ("n = { kind = 'int', low = 1, high = 9, unit = '1', most = 3 }", "most"),
    ],
)
def test_a_parameter_in_toml_says_what_it_is(tmp_path, line, words):
    path = tmp_path / "seq.toml"
    path.write_text(
        f"command = 'seq {{n}}'\n[parameters]\n{line}\n[metrics]\nx = {{ regex = '(.*)', unit = '1' }}\n"
    )
    with pytest.raises(BadInput) as refused:
        ha.find_app(str(path))
    assert words in str(refused.value)
    assert "parameters.n" in str(refused.value)


def test_what_belongs_to_a_parameter_that_does_not_apply_is_left_out(tmp_path, python, called):
    tool = python("print('x=1', sys.argv[1:], os.environ.get('LEVELS'))")
    (tmp_path / "in.txt").write_text("solver = ${solver}\nlevels = ${levels} # ${solver}\nn = ${n}")
    given = {
        "parameters": {
            "solver": ha.Choice("cg", "mg"),
            "n": ha.Int(1, 9),
            "levels": ha.Int(1, 4).model_copy(update={"when": "solver == 'mg'"}),
        },
        "metrics": {"x": ha.output.from_regex(r"x=(\d)", unit="1")},
        "constraints": ["levels <= n"],
        "templates": ["in.txt"],
        "relative_to": tmp_path,
    }
    command = [tool, "{solver}", "-{levels}", ["--levels", "{levels}"]]
    app = ha.executable(command, env={"LEVELS": "{levels}"}, **given)
    seen = {}
    for params in ({"solver": "mg", "n": 3, "levels": 2}, {"solver": "cg", "n": 3}):
        workdir = Path(called(app, **params)["workdir"])
        texts = (workdir / "output.txt").read_text(), (workdir / "in.txt").read_text()
        seen[params["solver"]] = texts
    assert seen["mg"] == (
        "x=1 ['mg', '-2', '--levels', '2'] 2\n",
        "solver = mg\nlevels = 2 # mg\nn = 3",
    )
    assert seen["cg"] == ("x=1 ['cg'] None\n", "solver = cg\nn = 3")
    with pytest.raises(BadInput, match="levels <= n"):
        app.manifest({"solver": "mg", "n": 1, "levels": 2})
    with pytest.raises(BadInput, match="without its value"):
        ha.executable([tool, "{solver}", "--levels", "{levels}"], **given)


def test_a_script_that_each_run_gets_is_started_by_what_runs_it(tmp_path, called):
    (tmp_path / "job.sh").write_text("echo x=${n}")
    given = {"parameters": {"n": ha.Int(1, 9)}, "metrics": ONE, "templates": ["job.sh"], "relative_to": tmp_path}
    assert called(ha.executable("sh job.sh", **given), n=3)["metrics"] == {"x": 3.0}
    with pytest.raises(BadInput, match="name what runs it"):
        ha.executable("./job.sh", **given)


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="needs mpi4py")
def test_ranks_are_started_by_the_launcher_and_know_each_other(tmp_path, called):
    (tmp_path / "rank.py").write_text(
        "from mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "total = world.allreduce(world.Get_rank() + 1)\n"
        "if world.Get_rank() == 0: print('sum', total, 'of', world.Get_size())\n"
    )
    app = ha.executable(
        [sys.executable, "rank.py", "{ranks}"],
        parameters={"ranks": ha.Int(1, 4)},
        metrics={"sum": ha.output.from_regex(r"sum (\d+)", unit="1")},
        files=["rank.py"],
        resources_from={"ranks_per_node": "ranks"},
        relative_to=tmp_path,
    )
    result = called(app, ranks=3)
    assert result["status"] == "COMPLETED", result
    assert result["metrics"] == {"sum": 6.0}
    assert "-n 3" in (Path(result["workdir"]) / "command.txt").read_text()


def test_a_file_that_a_parameter_chooses_lies_in_the_run_under_its_name(tmp_path, python, called):
    for name, text in (("fcc.xyz", "12"), ("bcc.xyz", "8")):
        (tmp_path / name).write_text(text)
    tool = python("print('x=' + open(sys.argv[1]).read(), open('in.txt').read())")
    (tmp_path / "in.txt").write_text("read ${structure}")
    given = {
        "parameters": {"structure": ha.File(tmp_path / "fcc.xyz", tmp_path / "bcc.xyz")},
        "metrics": {"x": ha.output.from_regex(r"x=(\d+)", unit="1")},
        "relative_to": tmp_path,
    }
    app = ha.executable(f"{tool} {{structure}}", templates=["in.txt"], **given)
    for name, neighbours in (("fcc.xyz", 12), ("bcc.xyz", 8)):
        result = called(app, structure=name)
        assert result["metrics"] == {"x": neighbours}
        assert f"read {name}" in (Path(result["workdir"]) / "output.txt").read_text()
    before = app.manifest({"structure": "bcc.xyz"}).execution_id
    (tmp_path / "bcc.xyz").write_text("9")
    edited = {**given, "parameters": {"structure": ha.File(tmp_path / "fcc.xyz", tmp_path / "bcc.xyz")}}
    again = ha.executable(f"{tool} {{structure}}", templates=["in.txt"], **edited)
    assert again.manifest({"structure": "bcc.xyz"}).execution_id != before
    with pytest.raises(BadInput, match="rename one"):
        ha.executable(f"{tool} {{structure}}", files=["fcc.xyz"], **edited)
