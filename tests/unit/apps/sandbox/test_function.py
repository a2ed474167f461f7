"""Functions of a user's own in a sandbox: the same numbers, and what hostile ones try does not work."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.apps.decorator import app
from hpcagent.apps.rebuilt import Travelled
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.apps.worker import execute
from hpcagent.errors import BadInput

MODULE = """
import os
import socket
import time

import hpcagent as ha
from hpcagent.apps.run import Outcome

import {helper}

try:
    with open({trace!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
except OSError:
    pass


def take(x, run):
    return {code}
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Makes an app of a function in a module of the user's, whose body is an expression; forgets the module."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    count = 0

    def make(code: str, *, before: str = "", sandbox: object = "bubblewrap", **more: object) -> App:
        nonlocal count
        count += 1
        name, helper = (f"{what}_{time.time_ns():x}_{count}" for what in ("theirs", "helper"))
        (folder / f"{helper}.py").write_text("def twice(x):\n    return 2 * x\n")
        trace = str(folder / "trace")
        text = MODULE.format(helper=helper, trace=trace, code=code.replace("HELPER", helper))
        (folder / f"{name}.py").write_text(text.replace("    return", f"{before}    return"))
        Path(trace).write_text("")
        module = __import__(name)
        found = app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, name="theirs", sandbox=sandbox, **more)(
            module.take
        )
        for one in (name, helper):
            sys.modules.pop(one)
        Path(trace).write_text("")
        return found

    return make


def run(app: App, folder: Path, x: float = 0.25, *, times: list[int] = [0], upstream=(), **more):  # noqa: B006
    times[0] += 1
    order = app.order(app.manifest({"x": x}, seed=7), work=folder / f"{times[0]}" / "work", site={"name": "here"})
    return execute(order | more, *upstream)


def failure(result) -> tuple[str, str, str]:
    assert result["status"] == "FAILED", result
    return result["failure"]["name"], result["failure"]["kind"], result["failure"]["message"]


# ---- an honest one


def test_it_gives_what_it_gives_without_and_its_module_is_run_in_the_box_only(tier, made, tmp_path):
    code = (
        "Outcome(metrics={'y': HELPER.twice(x) + run.seed / 3}, artifacts={'text': 'out/a.txt'}, notes=('told',))"
    )
    before = "    os.mkdir('out'); open('out/a.txt', 'w').write('kept'); open('b.txt', 'w').write('lost'); print('said')\n"
    boxed = made(code, before=before, sandbox=tier)
    result = run(boxed, tmp_path)
    assert result["status"] == "COMPLETED", result
    assert not any(name.startswith(("theirs_", "helper_")) for name in sys.modules)
    pids = (tmp_path / "modules" / "trace").read_text().split()
    assert str(os.getpid()) not in pids
    assert len(pids) == (1 if tier == "limits" else 0)
    assert result["metrics"] == {"y": 0.5 + 7 / 3}
    folder = Path(result["workdir"])
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        "manifest.json",
        "out/a.txt",
        "output.txt",
        "result.json",
    ]
    assert (folder / "out" / "a.txt").read_text() == "kept"
    assert (folder / "output.txt").read_text() == "said\n"
    notes = " ".join(result["notes"])
    assert "told" in notes
    assert f"ran in the sandbox {tier}" in notes
    assert "b.txt is no declared output" in notes


def test_files_of_settings_choices_and_inputs_are_there_and_a_sibling_is_not(made, tmp_path, with_bubblewrap):
    for name in ("table.dat", "other.dat", "chosen.dat"):
        (tmp_path / name).write_text(name)
    before = {
        "workdir": str(tmp_path / "earlier"),
        "artifacts": {"log": "a.log"},
        "status": "COMPLETED",
        "metrics": {},
    }
    (tmp_path / "earlier").mkdir()
    for name in ("a.log", "b.log"):
        (tmp_path / "earlier" / name).write_text(name)
    code = (
        "{'y': len(''.join([open(run.settings['paths']['table']).read(), open(run.upstream[0]['workdir'] + '/a.log')"
        ".read(), open(which).read(), which.name])),"
        " 'hidden': sum(map(os.path.exists, [os.path.dirname(run.settings['paths']['table']) + '/other.dat',"
        " run.upstream[0]['workdir'] + '/b.log']))}"
    )
    folder = tmp_path / "modules"
    (folder / "choosing.py").write_text(f"import os\ndef take(which, run):\n    return {code}\n")
    found = app(
        parameters={"which": ha.File(tmp_path / "chosen.dat")},
        metrics={"y": "1", "hidden": "1"},
        inputs=("run",),
        settings={},
        files=("table",),
        sandbox="bubblewrap",
    )(__import__("choosing").take).with_settings(table=tmp_path / "table.dat")
    sys.modules.pop("choosing")
    manifest = found.manifest({"which": "chosen.dat"}, upstream=("x",))
    order = found.order(manifest, work=tmp_path / "there" / "work", site={"name": "here"})
    result = execute(order, before)
    assert result["status"] == "COMPLETED", result
    assert result["metrics"] == {"y": len("table.data.logchosen.datchosen.dat"), "hidden": 0}


def test_one_that_yields_is_stopped_by_the_guard_from_inside(made, tmp_path, without_bubblewrap):
    folder = tmp_path / "modules"
    (folder / "yielding.py").write_text(
        "def take(x):\n    for n in range(5):\n        yield {'y': x if n < 2 else float('nan')}, {}, n / 5\n"
    )
    found = app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, sandbox="limits")(
        __import__("yielding").take
    )
    sys.modules.pop("yielding")
    result = run(
        found,
        tmp_path,
        guard={"stops": ["blown_up"], "confidence": 0.99, "least_share": 0.2, "goal": None, "limits": []},
    )
    assert failure(result)[0] == "BlownUp"
    assert result["stopped"]["reason"] == "blown_up"
    whole = run(found, tmp_path)
    assert failure(whole)[:2] == ("NotFinite", "simulation")


@pytest.mark.usefixtures("with_bubblewrap")
def test_on_an_endpoint_the_folder_of_its_modules_is_there(made, tmp_path):
    found = made("{'y': HELPER.twice(x)}")
    folder = tmp_path / "came"
    (tmp_path / "modules").rename(folder)
    order = found.order(found.manifest({"x": 0.25}), work=tmp_path / "work", site={"name": "here"})
    result = execute(order | {"function": Travelled(order["function"], str(folder))})
    assert result["status"] == "COMPLETED", result
    assert result["metrics"] == {"y": 0.5}


# ---- hostile ones


@pytest.mark.usefixtures("with_bubblewrap")
def test_a_secret_outside_is_not_there_and_a_socket_is_refused(made, tmp_path, monkeypatch):
    secret = tmp_path / "modules" / "secret.txt"
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (home / "key").write_text("the key")
    monkeypatch.setenv("API_TOKEN", "a-very-secret-value")
    name, kind, message = failure(run(made(f"{{'y': len(open({str(secret)!r}).read())}}"), tmp_path))
    secret.write_text("the secret")
    assert failure(run(made(f"{{'y': len(open({str(secret)!r}).read())}}"), tmp_path)) == (name, kind, message)
    assert (name, kind) == ("FileNotFoundError", "contract")
    seen = run(
        made("{'y': sum(map(os.path.exists, [os.path.expanduser('~/key'), '/etc/passwd', '/home']))}"), tmp_path
    )
    assert seen["metrics"] == {"y": 0}
    assert run(made("{'y': 'API_TOKEN' in os.environ}"), tmp_path)["metrics"] == {"y": 0}
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"{{'y': socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5).fileno()}}"
        result = run(made(code), tmp_path)
        assert failure(result)[:2] == ("ConnectionRefusedError", "contract")
        assert "`network`" in result["failure"]["repair"]
        through = run(made(code, sandbox=Sandbox(network=True)), tmp_path)
        assert through["status"] == "COMPLETED"


@pytest.mark.usefixtures("with_bubblewrap")
def test_it_writes_nowhere_but_into_its_folder_and_only_named_artifacts_leave(made, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    before = (
        f"    os.makedirs({str(outside)!r}, exist_ok=True)\n"
        f"    open({str(outside / 'x')!r}, 'w').write('x')\n"  # into the /tmp of the box
        "    open('../escaped', 'w').write('x')\n"
        "    open('mine', 'w').write('x')\n"
    )
    result = run(made("{'y': 1}", before=before), tmp_path)
    assert result["status"] == "COMPLETED", result
    assert list(outside.iterdir()) == []
    assert sorted(p.name for p in Path(result["workdir"]).iterdir()) == ["manifest.json", "result.json"]
    assert "mine is no declared output" in " ".join(result["notes"])


LOOPS = {
    "cpu": ("    while True: pass\n", {"cpu_s": 1}, "CPU time"),
    "forks": (
        "    import subprocess\n    [subprocess.Popen(['sleep', '60']) for _ in range(40)]\n    time.sleep(60)\n",
        {"processes": 8},
        "",
    ),
    "memory": ("    bytearray(600_000_000)\n", {"memory_mb": 400}, "memory"),
    "file": ("    open('big', 'wb').write(bytes(3_000_000))\n", {"file_mb": 1.0}, "a file of it became larger"),
    "disk": (
        "    for n in range(40): open(f'f{n}', 'wb').write(bytes(500_000)); time.sleep(0.05)\n    time.sleep(60)\n",
        {"disk_mb": 3.0},
        "disk",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LOOPS)
def test_what_takes_too_much_is_ended_and_named(tier, what, made, tmp_path):
    before, limit, says = LOOPS[what]
    name, kind, message = failure(
        run(made("{'y': 1}", before=before, sandbox={"require": tier, **limit}), tmp_path)
    )
    # Where the kernel's own limit of processes is met first, which root has not, the fork fails.
    assert name in (("SandboxLimit", "BlockingIOError") if what == "forks" else ("SandboxLimit",)), message
    assert kind in ("simulation", "contract")
    assert says in message


FORGED = "    open('hpcagent-answer.json', 'w').write({answer!r}); os._exit(0)\n"
EMPTY = '"metrics": {"y": 1}, "uncertainty": {}, "units": {}, "bounds": {}, "versions": {}, "notes": []'


@pytest.mark.usefixtures("without_bubblewrap")
@pytest.mark.parametrize(
    ("before", "named", "says"),
    [
        ("    1 / 0\n", "ZeroDivisionError", "division by zero"),
        ("    raise ha.errors.AppFailed('no good.', name='NoGood')\n", "NoGood", "no good"),
        ("    os._exit(3)\n", "FunctionExited", "exit code 3"),
        ("    os.abort()\n", "FunctionCrashed", "SIGABRT"),
        (FORGED.format(answer="[1]"), "BadReturn", "is no answer"),
        (FORGED.format(answer="{"), "BadReturn", "is no JSON"),
        (FORGED.format(answer="{}"), "BadReturn", "neither an outcome nor a failure"),
        (FORGED.format(answer='{"outcome": {"metrics": 3}}'), "BadReturn", "Outcome.metrics is no mapping"),
        (FORGED.format(answer='{"outcome": {' + EMPTY + ', "artifacts": {"a": 1}}}'), "BadReturn", "else than texts"),
        (FORGED.format(answer='{"outcome": {' + EMPTY + ', "artifacts": {"a": "result.json"}}}'), "BadReturn", "own file"),
        (FORGED.format(answer='{"outcome": {' + EMPTY + ', "artifacts": {"a": "../x"}}}'), "BadReturn", "own file"),
        (
            FORGED.format(answer='{"outcome": {' + EMPTY + ', "artifacts": {}, "files": {"/etc/passwd": "0"}}}'),
            "BadReturn",
            "not believed",
        ),
        ("    os.symlink('/etc/hostname', 'hpcagent-answer.json'); os._exit(0)\n", "BadReturn", "no plain file"),
        ("    os.mkfifo('hpcagent-answer.json'); os._exit(0)\n", "BadReturn", "no plain file"),
        (
            "    os.symlink('/etc/hostname', 'a'); return Outcome(metrics={'y': 1}, artifacts={'a': 'a'})\n",
            "MissingArtifact",
            "a is a link",
        ),
        ("    return {'y': 'text'}\n", "BadReturn", "must be a real number"),
        ("    return 3\n", "BadReturn", "returned int"),
    ],
)  # fmt: skip
def test_what_it_answers_is_checked_as_a_strangers(before, named, says, made, tmp_path):
    name, _, message = failure(run(made("{'y': 1}", before=before, sandbox="limits"), tmp_path))
    assert name == named, message
    assert says in message


@pytest.mark.usefixtures("without_bubblewrap")
def test_a_module_that_was_edited_since_is_not_run(made, tmp_path):
    found = made("{'y': 1}", sandbox="limits").frozen()
    order = found.order(found.manifest({"x": 0.5}), work=tmp_path / "work", site={"name": "here"})
    [file] = (tmp_path / "modules").glob("theirs_*.py")
    file.write_text(file.read_text() + "\nprint('edited')\n")
    name, _, message = failure(execute(order))
    assert name == "FilesChanged"
    assert file.name in message
    assert not (tmp_path / "modules" / "trace").read_text()


@pytest.mark.usefixtures("without_bubblewrap")
def test_bubblewrap_that_is_required_and_not_here_runs_nothing(made, tmp_path):
    assert failure(run(made("{'y': 1}"), tmp_path))[:2] == ("NoSandbox", "infrastructure")
    assert not (tmp_path / "modules" / "trace").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("with_bubblewrap")
def test_a_function_of_a_script_is_unpacked_in_the_box_only(tmp_path):
    import subprocess

    (tmp_path / "beside.py").write_text("import os\nprint('imported by', os.getpid())\ndef three(): return 3\n")
    (tmp_path / "script.py").write_text(
        "import os, hpcagent as ha\n"
        "import beside\n"
        "table = {'a': 4}\n"
        "@ha.app(parameters={'x': ha.Float(0, 1)}, metrics={'y': '1', 'seen': '1'}, sandbox='bubblewrap')\n"
        "def take(x):\n"
        f"    return {{'y': x + table['a'] + beside.three(), 'seen': os.path.exists({str(tmp_path / 'script.py')!r})}}\n"
        "if __name__ == '__main__':\n"
        "    with ha.open_site('threads'):\n"
        "        result = take(x=0.5).result()\n"
        "        print(result.metrics, result.failure)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "{'y': 7.5, 'seen': 0.0} None" in done.stdout, done.stdout + done.stderr


# ---- with what else it does not go


def test_what_a_sandbox_does_not_go_with_is_refused_where_the_app_is_made(made, tmp_path):
    def take(x, run):
        return {"y": x}

    given = {"parameters": {"x": ha.Float(0, 1)}, "metrics": {"y": "1"}}
    for more, says in (
        ({"mpi": True}, "on MPI ranks .* one process"),
        ({"resources": ha.Resources(ranks_per_node=2)}, "a run has 2 MPI ranks"),
        ({"ensemble": True}, "in mode 'ensemble' its runs share a process"),
        ({"extendable": True}, "cannot be extended"),
        ({"sandbox": "chroot"}, "'limits' or 'bubblewrap'"),
        ({"sandbox": 3}, "give the name of a tier"),
        ({"sandbox": {"memory": 3}}, "memory"),
    ):
        with pytest.raises(BadInput, match=says):
            app(**given | {"sandbox": "limits"} | more)(take)
    with pytest.raises(BadInput, match="cannot be called 'sandbox'"):
        app(**given, settings={"sandbox": {"require": "bubblewrap"}})(take)
    with pytest.raises(BadInput, match="cannot be called 'sandbox'"):
        ha.chain(**given, settings={"sandbox": {"require": "bubblewrap"}})(take)
    plain = app(**given)(take)
    boxed = plain.with_settings(sandbox="limits")
    assert boxed.settings["sandbox"]["require"] == "limits"
    assert "sandbox" not in boxed.with_settings(sandbox=None).settings
    # Limits decide nothing of what a run gives; what it may see may.
    assert boxed.digest == plain.digest == plain.with_settings(sandbox={"memory_mb": 500}).digest
    for opened in ({"network": True}, {"read": ["/data"]}, {"pass_env": ["MINE"]}):
        assert plain.with_settings(sandbox=opened).digest != plain.digest
    with pytest.raises(BadInput, match="2 MPI ranks"):
        boxed.with_resources(ranks_per_node=2)
    with pytest.raises(BadInput, match="share a process"):
        boxed.with_settings(mode="ensemble")
    with pytest.raises(BadInput, match="has no setting 'sandbox'"):
        ha.find_app("synthetic").with_settings(sandbox="limits")
