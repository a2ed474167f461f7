"""Nothing that another user wrote, or may write, decides what is run."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.loading import load_run
from hpcagent.errors import BadInput, StoreFull
from hpcagent.owners import stranger
from hpcagent.reports.report import report
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.profiles import find_profile, list_profiles
from hpcagent.sites.reap import reap
from hpcagent.store.journal import Journal
from hpcagent.store.rundir import Lock

STRANGER = pwd.getpwnam("nobody")


@pytest.fixture
def theirs(monkeypatch):
    """Give a file to another user, as far as this one can tell."""
    given: set[str] = set()
    real = os.stat

    def stat(path, *args, **options):
        found = real(path, *args, **options)
        if str(path) not in given:
            return found
        named = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return os.stat_result((*found[:4], STRANGER.pw_uid, *found[5:10]), named)

    monkeypatch.setattr("hpcagent.owners.os.stat", stat)
    return lambda path: given.add(str(path))


def begun(folder: Path) -> Path:
    campaign = ha.Campaign(
        synthetic, ha.maximize("value"), space={"x": {}, "y": {}}, until=ha.until.max_runs(2), policy="sobol"
    )
    ha.run(campaign, site="threads", run_dir=folder)
    return folder


READERS = [
    load_run,
    read_run,
    ha.open_run,
    report,
    reap,
    lambda folder: ha.Coordinator(ha.load_campaign("synthetic"), run_dir=folder),
]


@pytest.mark.parametrize("name", [".", "app.json", "campaign.toml", "site.toml", "events.jsonl"])
def test_a_folder_with_a_file_of_another_user_is_refused_by_all_that_would_run_it(
    name, tmp_path, theirs, monkeypatch
):
    folder = begun(tmp_path / "run")
    theirs(folder / name)
    for reader in READERS:
        with pytest.raises(BadInput, match=r"belongs to nobody, not to .* \(--trust nobody"):
            reader(folder)
    monkeypatch.setenv("HPCAGENT_TRUST", "ann:nobody")
    assert len(read_run(folder).results) == 2


@pytest.mark.parametrize("name", [".", "app.json", "site.toml"])
def test_a_folder_that_everybody_may_write_is_refused(name, tmp_path, monkeypatch):
    folder = begun(tmp_path / "run")
    (folder / name).chmod(0o777)
    with pytest.raises(BadInput, match=r"every user of the machine \(`chmod o-w .*--trust everyone"):
        load_run(folder)
    monkeypatch.setenv("HPCAGENT_TRUST", "everyone")
    assert load_run(folder).name == "synthetic"


def test_what_the_library_writes_is_never_open_to_others(tmp_path):
    before = os.umask(0)
    try:
        folder = begun(tmp_path / "run")
    finally:
        os.umask(before)
    folder.chmod(0o755)
    for name in ("app.json", "campaign.toml", "site.toml", "events.jsonl"):
        assert (folder / name).stat().st_mode & 0o022 == 0, name
    assert load_run(folder).name == "synthetic"


def test_what_the_group_of_a_project_may_write_is_ones_own(tmp_path):
    # As on clusters: a setgid folder, umask 002, a group with another name than the user's.
    tmp_path.chmod(0o2775)
    command = [str(Path(sys.executable).with_name("hpcagent"))]
    (tmp_path / "mine.toml").write_text('kind = "threads"\n')
    space = ["--set", "policy.name=sobol", "--no-plots", "--site", "mine.toml", "--run-dir", "r"]

    def said(*words: str) -> str:
        changed = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert changed.returncode == 0, changed.stderr
        return changed.stderr

    (tmp_path / "mine.toml").chmod(0o664)
    first = said("run", "synthetic", "--set", "until.max_runs=2", *space)
    for path in [tmp_path / "r", *(tmp_path / "r").rglob("*")]:
        path.chmod(0o2775 if path.is_dir() else 0o664)
        if os.geteuid() == 0:
            os.chown(path, -1, STRANGER.pw_gid)
    then = said("resume", "r", "--set", "until.max_runs=4", "--no-plots") + said("status", "r")
    assert "group" not in first + then and "trust" not in first + then
    assert len(read_run(tmp_path / "r").results) == 4


def test_a_profile_of_another_user_is_refused_by_its_path_and_listed_as_not_usable(tmp_path, theirs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site_profiles").mkdir()
    path = tmp_path / "site_profiles" / "bait.toml"
    path.write_text('kind = "threads"\n')
    theirs(path)
    theirs(path.relative_to(tmp_path))
    for given in (path, "bait"):
        with pytest.raises(BadInput, match="belongs to nobody"):
            find_profile(given)
    listed = {entry.name: entry.description for entry in list_profiles()}
    assert "not usable" in listed["bait"]
    # A folder of this variable is trusted, as one of the PATH is.
    monkeypatch.setenv("HPCAGENT_SITE_PATH", str(path.parent))
    assert find_profile(path).kind == "threads"


def test_files_of_root_and_what_is_not_there_are_trusted(tmp_path):
    assert stranger(Path("/etc/passwd")) == "" == stranger(tmp_path / "none")


def test_an_owner_that_is_not_known_is_explained(tmp_path, theirs, monkeypatch):
    monkeypatch.setattr("hpcagent.owners.os.geteuid", lambda: 1000)
    path = tmp_path / "mine.toml"
    path.touch()
    theirs(path)
    assert "--trust nobody" in stranger(path) and "which may be yourself" in stranger(path)
    monkeypatch.setenv("HPCAGENT_TRUST", str(STRANGER.pw_uid))
    assert stranger(path) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_in_a_container_is_told_by_which_number_it_accepts_mounted_files(tmp_path, monkeypatch):
    path = tmp_path / "mine.toml"
    path.touch()
    os.chown(path, 4321, 4321)
    assert "belongs to 4321" in stranger(path) and "--trust 4321" in stranger(path)
    assert "as root in a container" in stranger(path)
    for trusted in ("4321", "@4321"):
        monkeypatch.setenv("HPCAGENT_TRUST", trusted)
        assert stranger(path) == ""


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/bin/unshare").exists(), reason="no user namespaces here")
@pytest.mark.parametrize("mapped", [["--map-root-user"], []])
def test_in_a_container_without_root_ones_own_files_are_ones_own(mapped, tmp_path):
    path = tmp_path / "mine.toml"
    path.touch()
    looked = "import sys; from pathlib import Path; from hpcagent.owners import stranger; print(repr(stranger(Path(sys.argv[1]))))"
    command = ["unshare", "--user", *mapped, sys.executable, "-c", looked, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.strip() == "''", done.stderr


def test_a_home_that_is_a_link_is_followed(tmp_path, monkeypatch):
    real = tmp_path / "real"
    begun(real / "run")
    (tmp_path / "home").symlink_to(real)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert len(read_run("~/run").results) == 2
    again = ha.run(load_run("~/run", changes={"until.max_runs": 3}), site="threads", run_dir="~/run")
    assert len(again.results) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_real_file_of_another_user(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('kind = "threads"\n')
    os.chown(path, STRANGER.pw_uid, STRANGER.pw_gid)
    with pytest.raises(BadInput, match="belongs to nobody"):
        find_profile(path)


def test_the_command_runs_no_module_of_a_folder_where_others_may_write(tmp_path):
    (tmp_path / "numpy.py").write_text("open('pwned', 'w').close()\nraise SystemExit('pwned')\n")
    (tmp_path / "json.py").write_text("open('pwned', 'w').close()\nraise SystemExit('pwned')\n")
    tmp_path.chmod(0o777)
    command = [str(Path(sys.executable).with_name("hpcagent")), "run", "synthetic"]
    words = ["--set", "until.max_runs=2", "--set", "policy.name=sobol", "--no-plots", "--run-dir", "r"]
    done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not (tmp_path / "pwned").exists()
    assert "no Python module of the working directory is used" in done.stderr
    assert "2 runs, 2 completed" in done.stdout


def test_the_option_is_taken_anywhere_on_the_line(tmp_path):
    folder = begun(tmp_path / "run")
    (folder / "site.toml").chmod(0o666)
    command = [str(Path(sys.executable).with_name("hpcagent")), "status", str(folder)]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "--trust everyone" in refused.stderr and "Traceback" not in refused.stderr
    for words in (["--trust", "everyone"], ["--trust=everyone"]):
        done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "2 runs" in done.stdout


@pytest.mark.parametrize("name", [".lock", "events.jsonl", "jobs.jsonl"])
def test_a_link_in_place_of_a_file_of_a_run_directory_is_not_followed(name, tmp_path):
    victim = tmp_path / "thesis.txt"
    victim.write_text("years of work")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / name).symlink_to(victim)
    opening = {
        ".lock": lambda path: Lock(path.parent).acquire(),
        "events.jsonl": Journal.open,
        "jobs.jsonl": lambda path: Ledger(path).refused("a", "b"),
    }[name]
    with pytest.raises(StoreFull, match=r"symbolic link, to .*thesis.txt, and is not followed: look who made it"):
        opening(tmp_path / "r" / name)
    assert victim.read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["parsl", "work", "report"])
def test_a_folder_that_is_another_users_link_is_refused_and_ones_own_is_followed(name, tmp_path):
    folder = begun(tmp_path / "run")
    there = tmp_path / "there"
    if (folder / name).is_dir():
        (folder / name).rename(there)
    else:
        there.mkdir()
    (folder / name).symlink_to(there)
    assert len(read_run(folder).results) == 2
    os.chown(folder / name, STRANGER.pw_uid, -1, follow_symlinks=False)
    with pytest.raises(BadInput, match=rf"{name} is a symbolic link of nobody, to .*--trust nobody"):
        load_run(folder)
    if name != "report":
        with pytest.raises(BadInput, match="symbolic link of nobody"):
            ha.open_site("threads", run_dir=folder, private=True)


def test_a_user_without_a_name_can_run(tmp_path, monkeypatch):
    # As `docker --user 2001`: no entry in passwd, and no name in the environment.
    def nobody_knows(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nobody_knows)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    with ha.open_site("threads", private=True, run_dir=tmp_path / "r") as site:
        assert site.submit(max, 2, 3).result() == 3
    assert "LOGNAME" not in os.environ
