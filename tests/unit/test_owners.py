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
from hpcagent.campaign.record import load_run
from hpcagent.campaign.report import report
from hpcagent.errors import BadInput
from hpcagent.owners import stranger
from hpcagent.sites.profile import find_profile, list_profiles
from hpcagent.sites.reap import reap

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
        return os.stat_result((*found[:4], STRANGER.pw_uid, *found[5:10]))

    monkeypatch.setattr("hpcagent.owners.os.stat", stat)
    return lambda path: given.add(str(path))


def begun(folder: Path) -> Path:
    campaign = ha.Campaign(
        synthetic, ha.maximize("value"), space={"x": {}, "y": {}}, until=ha.max_runs(2), policy="sobol"
    )
    ha.run(campaign, site="threads", run_dir=folder)
    return folder


READERS = [
    load_run,
    ha.read_run,
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
    assert len(ha.read_run(folder).results) == 2


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


def test_a_profile_that_a_group_may_write_needs_a_word(tmp_path, monkeypatch):
    path = tmp_path / "mine.toml"
    path.write_text('kind = "threads"\n')
    path.chmod(0o664)
    assert find_profile(path).kind == "threads"  # one's own group, of one's own name
    monkeypatch.setattr("hpcagent.owners._group", lambda gid: "lab")
    with pytest.raises(BadInput, match=r"by the group lab \(`chmod g-w .*--trust @lab"):
        find_profile(path)
    monkeypatch.setenv("HPCAGENT_TRUST", "@lab")
    assert find_profile(path).kind == "threads"


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
