"""Hostile programs in each tier: what they try, and that it does not work; what is refused before anything runs."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcagent.apps.sandbox import confined
from hpcagent.apps.sandbox import tiers as tiers_module
from hpcagent.apps.sandbox.calls import call_text, run_boxed
from hpcagent.apps.sandbox.outputs import taken_out
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.apps.sandbox.tiers import chosen_tier, tiers
from hpcagent.errors import AppFailed, BadInput

LIMITS = Sandbox(require="limits")
BOX = Sandbox()
PYTHON = sys.executable


def python(code, folder, sandbox=BOX, **more):
    return run_boxed([PYTHON, "-I", "-c", code], folder=folder, sandbox=sandbox, **more)


def alive(mark: str) -> list[str]:
    """Processes with a word in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if mark.encode() in text and str(os.getpid()) != path.parent.name:
            found.append(path.parent.name)
    return found


# ---- tiers


@pytest.mark.usefixtures("without_bubblewrap")
def test_bubblewrap_that_is_required_and_not_here_is_refused_and_nothing_weaker_runs(tmp_path):
    with pytest.raises(
        AppFailed, match='requires the sandbox "bubblewrap", which is not here: there is no bwrap'
    ) as e:
        run_boxed(["touch", str(tmp_path / "ran")], folder=tmp_path)
    assert (e.value.details["name"], e.value.details["kind"]) == ("NoSandbox", "infrastructure")
    assert list(tmp_path.iterdir()) == []
    state = tiers()[1]
    assert not state.available
    assert "install the package bubblewrap" in state.why


def test_a_bwrap_that_does_not_work_is_told_with_its_words_and_is_tried_once(tmp_path, monkeypatch):
    counter = tmp_path / "count"
    fake = tmp_path / "bin" / "bwrap"
    fake.parent.mkdir()
    fake.write_text(
        f"#!/bin/sh\necho x >> {counter}\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    whys = {tiers()[1].why for _ in range(3)}
    assert len(whys) == 1
    assert "No permissions to create new namespace" in whys.pop()
    assert counter.read_text() == "x\n"
    assert chosen_tier(LIMITS) == "limits"
    with pytest.raises(AppFailed, match="No permissions"):
        chosen_tier(BOX)


def test_the_best_tier_is_used_and_told(tmp_path):
    done = run_boxed(["true"], folder=tmp_path, sandbox=LIMITS)
    assert done.tier == [state.name for state in tiers() if state.available][-1]


def test_the_settings_of_the_kernel_that_forbid_namespaces_are_named(tmp_path, monkeypatch):
    switch = tmp_path / "max_user_namespaces"
    switch.write_text("0\n")
    real = Path

    class Moved(type(real())):
        def __new__(cls, *parts):
            return real(switch) if parts == ("/proc/sys/user/max_user_namespaces",) else real(*parts)

    monkeypatch.setattr(tiers_module, "Path", Moved)
    assert (
        "user namespaces are switched off (/proc/sys/user/max_user_namespaces is 0)"
        in tiers_module._of_namespaces()
    )


# ---- what only namespaces keep away


@pytest.mark.usefixtures("with_bubblewrap")
def test_a_box_shows_no_file_of_the_home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_rsa").write_text("the key")
    target = tmp_path / "run"
    target.mkdir()
    code = (
        "import os, glob\n"
        f"for p in ({str(home / '.ssh/id_rsa')!r}, os.path.expanduser('~/.ssh/id_rsa'), '/etc/passwd', '/etc/shadow'):\n"
        "    try: print(open(p).read())\n"
        "    except OSError as e: print(type(e).__name__)\n"
        "print(glob.glob('/home/*'), os.listdir(os.path.expanduser('~')))\n"
    )
    done = python(code, target)
    assert done.stdout.split("\n")[:5] == ["FileNotFoundError"] * 4 + ["[] []"]


@pytest.mark.usefixtures("with_bubblewrap")
def test_a_box_has_no_network_unless_it_is_allowed(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('through')"
        closed, opened = tmp_path / "closed", tmp_path / "opened"
        closed.mkdir()
        opened.mkdir()
        shut = python(code, closed)
        assert shut.returncode != 0
        assert "ConnectionRefusedError" in shut.stderr
        assert python(code, opened, Sandbox(network=True)).stdout == "through\n"


@pytest.mark.usefixtures("with_bubblewrap")
def test_a_box_writes_nowhere_but_into_its_own_folder(tmp_path):
    outside = tmp_path / "other-run"
    outside.mkdir()
    target = tmp_path / "run"
    target.mkdir()
    shared = Path("/tmp", f"box-{time.time_ns()}")
    code = (
        "import os\n"
        f"for p in ({str(outside / 'x')!r}, {str(target / 'result.json')!r}, '/usr/x', '/etc/x', {sys.prefix + '/x'!r}):\n"
        "    try: open(p, 'w').write('x'); print('written', p)\n"
        "    except OSError as e: print(type(e).__name__)\n"
        f"open({str(shared)!r}, 'w').write('x')\n"
    )
    done = python(code, target)
    assert done.returncode == 0, done.stderr
    assert list(outside.iterdir()) == []
    assert sorted(p.name for p in target.iterdir()) == ["errors.txt", "output.txt"]
    assert not Path("/etc/x").exists()
    assert not Path("/usr/x").exists()
    assert not Path(sys.prefix, "x").exists()
    assert not shared.exists()


@pytest.mark.usefixtures("with_bubblewrap")
def test_a_box_sees_no_environment_of_another_process(tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "a-very-secret-value")
    code = (
        "import glob, os\n"
        "for p in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: print(open(p).read())\n"
        "    except OSError: pass\n"
        "print(len(glob.glob('/proc/[0-9]*')))\n"
        "os.kill(os.getppid(), 0)\n"
    )
    python(code, tmp_path)
    printed = (tmp_path / "output.txt").read_text()
    assert "a-very-secret-value" not in printed
    assert "API_TOKEN" not in printed
    assert int(printed.split()[-1]) <= 3


@pytest.mark.usefixtures("with_bubblewrap")
def test_a_box_leaves_no_process_behind(tmp_path):
    mark = f"9{time.time_ns() % 10**7}"
    code = (
        "import os, subprocess\n"
        f"subprocess.Popen(['setsid', 'sleep', '{mark}'], start_new_session=True)\n"
        "print('ended')\n"
    )
    assert python(code, tmp_path).stdout == "ended\n"
    assert alive(mark) == []


# ---- what every tier keeps


def box(tier, **more):
    return Sandbox(require=tier, **more)


def test_the_environment_has_no_credential_by_name_or_value(tier, tmp_path, monkeypatch):
    secrets = {
        "API_TOKEN": "t0ken-value-1",
        "AWS_ACCESS_KEY_ID": "AKIAABCDEFGHIJKLMNOP",
        "SLURM_JWT": "jwt-value-2",
        "GLOBUS_COMPUTE_CLIENT_ID": "globus-value-3",
        "DB_PASSWORD": "pass-value-4",
        "OMP_EXTRA": "https://ann:pass-value-5@host/x",
        "LC_MINE": "t0ken-value-1",  # the value of a secret under a name of the list
        "ANYTHING": "not on the list",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = python("import os, json; print(json.dumps(dict(os.environ)))", tmp_path, box(tier))
    seen = json.loads(done.stdout)
    assert not set(seen) & set(secrets)
    assert not any(value in done.stdout for value in secrets.values())
    assert seen["OMP_NUM_THREADS"] == "1"
    assert seen["HOME"] != os.environ["HOME"]


def test_a_fork_bomb_is_ended_with_all_that_it_has_started(tier, tmp_path):
    mark = f"8{time.time_ns() % 10**7}"
    # Bounded by itself: at most 60 children, of a minute.
    code = (
        f"import subprocess, time\nfor _ in range(60): subprocess.Popen(['sleep', '60.{mark}'])\ntime.sleep(60)\n"
    )
    started = time.monotonic()
    with pytest.raises(AppFailed) as caught:
        done = python(code, tmp_path, box(tier, processes=10), timeout_s=40)
        # The kernel's own limit, which root has not, was first.
        assert "BlockingIOError" in done.stderr
        raise AppFailed("processes", name="SandboxLimit")
    assert caught.value.details["name"] == "SandboxLimit"
    assert "processes" in caught.value.message
    assert time.monotonic() - started < 30
    assert alive(mark) == []


def test_a_disk_is_not_filled_by_one_file_nor_by_many(tier, tmp_path):
    small = box(tier, file_mb=1.0, disk_mb=3.0)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = python("open('big', 'wb').write(bytes(5_000_000))", tmp_path / "a", small)
    assert one.returncode != 0
    assert "File too large" in one.stderr
    many = (
        (
            "import time\n"
            "for i in range(40):\n"
            "    f = open(f'/tmp/f{i}' if i % 2 else f'f{i}', 'wb'); f.write(bytes(500_000)); f.close(); time.sleep(0.05)\n"
            "time.sleep(20)"
        )
        if tier == "bubblewrap"
        else (
            "import time\n"
            "for i in range(40): open(f'f{i}', 'wb').write(bytes(500_000)); time.sleep(0.05)\n"
            "time.sleep(20)"
        )
    )
    with pytest.raises(AppFailed, match="of disk where 3 MB are allowed"):
        python(many, tmp_path / "b", small)
    assert [p.name for p in (tmp_path / "b").iterdir() if p.is_dir()] == []


def test_memory_of_one_process_and_of_all_is_bounded(tier, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    small = box(tier, memory_mb=300)
    one = python("x = bytearray(400_000_000)", tmp_path / "a", small)
    assert "MemoryError" in one.stderr
    each = "import time; x = bytearray(b'1') * 120_000_000; time.sleep(20)"
    all_code = f"import subprocess, sys, time\nfor _ in range(4): subprocess.Popen([sys.executable, '-I', '-S', '-c', {each!r}])\ntime.sleep(20)"
    with pytest.raises(AppFailed, match="of memory where 300 MB are allowed"):
        python(all_code, tmp_path / "b", small)


@pytest.mark.slow
def test_cpu_time_and_wall_time_are_bounded(tier, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(AppFailed, match="of CPU time where 1 s are allowed") as caught:
        python("while True: pass", tmp_path / "a", box(tier, cpu_s=1), timeout_s=60)
    assert caught.value.details["name"] == "SandboxLimit"
    mark = f"7{time.time_ns() % 10**7}"
    with pytest.raises(AppFailed, match="stopped at its walltime limit"):
        run_boxed(["sleep", f"60.{mark}"], folder=tmp_path / "b", sandbox=box(tier), timeout_s=0.5)
    assert alive(mark) == []
    assert [p for p in (tmp_path / "b").iterdir() if p.is_dir()] == []


def test_a_daemon_is_ended_with_the_program(tier, tmp_path):
    mark = f"6{time.time_ns() % 10**7}"
    code = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        os.execvp('sleep', ['sleep', '60.{mark}'])\n"
        "    os._exit(0)\n"
        "os.wait(); print('ended')\n"
    )
    assert python(code, tmp_path, box(tier)).stdout == "ended\n"
    assert alive(mark) == []


def test_only_declared_plain_files_leave(tier, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    target = tmp_path / "run"
    target.mkdir()
    code = (
        "import os, socket\n"
        "os.makedirs('out/deep'); open('out/a.json', 'w').write('{}'); open('out/deep/b.json', 'w').write('{}')\n"
        "open('extra.bin', 'w').write('x')\n"
        f"os.symlink({str(secret)!r}, 'link.json')\n"
        f"os.symlink({str(tmp_path)!r}, 'folder')\n"
        "os.mkfifo('pipe.json')\n"
        "socket.socket(socket.AF_UNIX).bind('sock.json')\n"
        f"try: os.link({str(secret)!r}, 'hard.json')\n"
        "except OSError: open('second', 'w').write('x'); os.link('second', 'hard.json')\n"
        "open('closed.json', 'w').write('{\"a\": 1}'); os.chmod('closed.json', 0)\n"
        "os.makedirs('locked/in'); open('locked/in/x', 'w').write('x'); os.chmod('locked/in', 0); os.chmod('locked', 0)\n"
    )
    outputs = ["out/*.json", "*.json", "folder/*.txt"]
    done = python(code, target, box(tier), files={"given.in": "1"}, outputs=outputs)
    assert done.returncode == 0, done.stderr
    assert done.left.taken == ("closed.json", "out/a.json")
    assert done.left.refused == {
        "hard.json": "a second name of another file",
        "link.json": "a link",
        "pipe.json": "a device, a socket or a pipe",
        "sock.json": "a device, a socket or a pipe",
    }
    assert {"extra.bin", "out/deep/b.json", "folder"} <= set(done.left.not_declared)
    assert "given.in" not in done.left.not_declared
    assert (target / "closed.json").read_text() == '{"a": 1}'
    there = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert there == ["closed.json", "errors.txt", "out/a.json", "output.txt"]
    assert "link.json is a link" in done.left.said()
    assert secret.read_text() == "the secret"


def test_outputs_are_bounded(tmp_path):
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    target.mkdir()
    (source / "a.bin").write_bytes(bytes(2000))
    with pytest.raises(AppFailed, match=r"have 0\.002 MB, and 0\.001 MB may leave"):
        taken_out(source, target, ["a.bin"], most_bytes=1000)
    assert list(target.iterdir()) == []


# ---- functions that came as text


def test_code_of_a_text_runs_nowhere_but_in_the_sandbox(tier, tmp_path):
    trace = tmp_path / "ran-here"
    code = (
        "import os\n"
        f"try: open({str(trace)!r}, 'x').write(str(os.getpid()))\n"
        "except OSError: pass\n"
        "def mean(values): return {'mean': sum(values) / len(values), 'pid': os.getpid()}\n"
    )
    done = call_text(code, "mean", {"values": [1, 2, 6]}, folder=tmp_path, sandbox=box(tier))
    assert done.value["mean"] == 3.0
    assert done.value["pid"] != os.getpid()
    assert done.tier == tier
    if tier == "bubblewrap":
        assert not trace.exists()
    else:
        assert trace.read_text() != str(os.getpid())


@pytest.mark.usefixtures("without_bubblewrap")
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def f(): return 1/0", "FunctionFailed: f failed in the sandbox: ZeroDivisionError"),
        ("def f(): return float('nan')", "BadOutput: .*NaN is no finite number"),
        ("def f(): return [1e308 * 10]", "BadOutput: .*Infinity is no finite number"),
        ("def f(): return {1, 2}", "FunctionFailed: .*set is not JSON serializable"),
        ("import os\ndef f(): os._exit(0)", "BadOutput: f ended without an answer"),
        (
            "import os\ndef f(): open('hpcagent-answer.json','w').write('{\"value\": 1e999}'); os._exit(0)",
            "not finite",
        ),
        ("import os\ndef f(): os.symlink('/etc/hostname', 'hpcagent-answer.json'); os._exit(0)", "is a link"),
    ],
)
def test_what_a_function_returns_is_plain_finite_data_or_a_typed_failure(code, says, tmp_path):
    with pytest.raises(AppFailed) as caught:
        call_text(code, "f", folder=tmp_path, sandbox=LIMITS)
    import re

    assert re.search(says, f"{caught.value.details['name']}: {caught.value.message}")


def test_code_that_is_no_python_or_has_no_such_function_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(BadInput, match="is no Python"):
        call_text("def f(:", "f", folder=tmp_path)
    with pytest.raises(BadInput, match="no function 'g' at its top; it defines f"):
        call_text("def f(): pass", "g", folder=tmp_path)
    with pytest.raises(BadInput, match="no plain data"):
        call_text("def f(x): pass", "f", {"x": {1}}, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---- the record


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"pass_env": ["GITHUB_TOKEN"]}, "has the name of a credential"),
        ({"read": ["/"]}, "not / itself"),
        ({"read": ["data"]}, "not the whole path"),
        ({"read": ["/data/../root"]}, "not the whole path"),
        ({"require": "nothing"}, "limits"),
        ({"memory_mb": float("inf")}, "finite"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(table, says):
    with pytest.raises(ValueError, match=says):
        Sandbox(**table)


def test_two_sandboxes_at_once_have_folders_of_their_own(tmp_path):
    done = []

    def one(index):
        folder = tmp_path / str(index)
        folder.mkdir()
        done.append(
            run_boxed(["sh", "-c", f"echo {index} > n; cat n"], folder=folder, sandbox=LIMITS, outputs=["n"])
        )

    threads = [threading.Thread(target=one, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(box.stdout for box in done) == ["0\n", "1\n", "2\n"]
    assert sorted((tmp_path / str(i) / "n").read_text() for i in range(3)) == ["0\n", "1\n", "2\n"]


def test_a_python_in_the_home_folder_itself_does_not_bring_home_along(tmp_path, monkeypatch):
    for folder in ("bin", "lib", ".ssh"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(confined.sys, "base_prefix", str(tmp_path))
    bound = confined._python()
    assert {str(tmp_path / "bin"), str(tmp_path / "lib")} <= set(bound) and str(tmp_path) not in bound
    monkeypatch.setattr(confined.sys, "base_prefix", str(tmp_path.parent))
    assert str(tmp_path.parent) not in confined._python()
