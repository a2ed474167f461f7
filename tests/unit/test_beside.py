"""Modules of the working directory come last, and those of other users are not run."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from hpcagent.beside import told, use_modules_of
from hpcagent.sites.launch import python_command

STRANGER = pwd.getpwnam("nobody")
COMMAND = [str(Path(sys.executable).with_name("hpcagent"))]
WORDS = ["--set", "until.max_runs=2", "--set", "policy.name=sobol", "--no-plots"]
PWNED = "open('pwned', 'a').close()\n"
APP = """
import hpcagent as ha

@ha.app(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1"}, seeded=False)
def mine(x):
    import secrets

    import scipy.special

    return {"y": x + 0 * len(secrets.token_hex(2))}
"""
CAMPAIGN = """
name = "mine"
app = "my_app_beside:mine"
[space]
x = { low = 0.0, high = 1.0 }
[objective]
minimize = "y"
[policy]
name = "sobol"
[until]
max_runs = 2
"""
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def run(folder: Path, *words: str, command: list[str] = COMMAND) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HPCAGENT_TRUST")}
    return subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "my_app_beside.py").write_text(APP)
    (tmp_path / "c.toml").write_text(CAMPAIGN)
    for name in ("scipy", "secrets", "numpy", "ase"):
        (tmp_path / f"{name}.py").write_text(PWNED)
    return tmp_path


@pytest.mark.parametrize("site", ["threads", "laptop"])
def test_a_module_of_ones_own_is_found_and_shadows_nothing_here_and_in_workers(project, site):
    done = run(project, "run", "c.toml", "--site", site, "--run-dir", "r", *WORDS)
    assert "2 runs, 2 completed" in done.stdout, done.stderr
    seen = run(project, "status", "r", command=[sys.executable, "-P", "-m", "hpcagent.cli"])
    assert seen.returncode == 0, seen.stderr
    assert not list(project.rglob("pwned"))


@root_only
def test_a_module_of_another_user_is_refused_with_its_owner_and_what_accepts_it(project):
    os.chown(project / "my_app_beside.py", STRANGER.pw_uid, STRANGER.pw_gid)
    done = run(project, "run", "c.toml", "--site", "threads", "--run-dir", "r")
    assert done.returncode == 2 and "belongs to nobody" in done.stderr and "--trust nobody" in done.stderr
    accepted = run(
        project, "run", "c.toml", "--site", "laptop", "--run-dir", "r", "--trust", "nobody", "--no-plots"
    )
    assert "2 runs, 2 completed" in accepted.stdout, accepted.stderr


@root_only
def test_a_folder_of_another_user_is_named_in_the_error_itself(project):
    os.chown(project, 4321, 4321)
    done = run(project, "run", "c.toml", "--site", "threads", "--run-dir", "/tmp/never")
    error = done.stderr.split("error:")[-1]
    assert done.returncode == 2
    assert "'my_app_beside' of the working directory is not used" in error
    assert "belongs to 4321" in error and "HPCAGENT_TRUST" in error and "--trust 4321" in error


@root_only
@pytest.mark.parametrize("python", [None, sys.executable])
def test_compiled_code_packages_and_links_of_another_user_are_not_run_in_children_either(
    python, tmp_path, monkeypatch
):
    import py_compile

    for name in ("fine", "linked", "pack/inner"):
        path = tmp_path / f"{name}_beside.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("what = 'own'\n")
    (tmp_path / "pack" / "__init__.py").touch()
    os.chown(tmp_path / "pack" / "inner_beside.py", STRANGER.pw_uid, -1)
    source = tmp_path / "fine_beside.py"
    stamp = source.stat()
    source.write_text("what = 'bad'\n")  # as long, and of the same time
    os.utime(source, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    compiled = Path(py_compile.compile(str(source)) or "")
    source.write_text("what = 'own'\n")
    os.utime(source, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    os.chown(compiled, STRANGER.pw_uid, -1)
    (tmp_path / "other_beside.py").symlink_to(tmp_path / "linked_beside.py")
    os.chown(tmp_path / "other_beside.py", STRANGER.pw_uid, -1, follow_symlinks=False)
    (tmp_path / "checking_beside.py").write_text(
        "def main():\n"
        "    import fine_beside, sys\n"
        "    print(fine_beside.what, sys.path[-1])\n"
        "    for name in ('other_beside', 'pack.inner_beside'):\n"
        "        try:\n"
        "            __import__(name)\n"
        "            print('pwned')\n"
        "        except ImportError as error:\n"
        "            print(error)\n"
    )
    before = sys.path[:], sys.path_hooks[:], sys.meta_path[:], dict(sys.path_importer_cache)
    try:
        assert use_modules_of(str(tmp_path)) == ""
        assert told()[0] == str(tmp_path) == sys.path[-1]
        command = python_command("checking_beside", python=python)
    finally:
        sys.path[:], sys.path_hooks[:], sys.meta_path[:] = before[:3]
        monkeypatch.setattr("hpcagent.beside._Folder.path", "")
        monkeypatch.setattr("hpcagent.beside._Folder.guarded", set())
    (tmp_path / "elsewhere").mkdir()
    done = run(tmp_path / "elsewhere", command=command)
    first, link, inner = done.stdout.splitlines()
    assert first.startswith("own ") and "pwned" not in done.stdout, done.stderr
    assert "is a link of another user" in link
    assert "inner_beside.py belongs to nobody" in inner
