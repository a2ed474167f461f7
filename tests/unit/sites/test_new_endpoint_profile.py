"""A first profile of an endpoint, and the templates that come along, by the shell's commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpcagent.cli import cli
from hpcagent.errors import BadInput
from hpcagent.sites.endpoint_settings import destination
from hpcagent.sites.profiles import find_profile

ID = "4b116d3c-1703-4f8f-9f6f-39921e5864df"
WORDS = ["site", "new", "far", "--kind", "globus_compute", "--endpoint-id", ID, "--work-dir", "~/runs", "--yes"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_profile_for_our_template_has_its_roles() -> None:
    more = ["--runs-at-once", "8", "--template", "slurm", "--account", "m1", "--walltime", "02:00:00"]
    done = CliRunner().invoke(cli, [*WORDS, *more, "--lammps", "lmp -sf opt"])
    assert done.exit_code == 0, done.output
    assert "next: hpcagent doctor --site far" in done.output
    far = find_profile("far")
    assert (far.endpoint_id, far.work_dir, far.runs_at_once, far.lammps) == (
        ID,
        "~/runs",
        8,
        ("lmp", "-sf", "opt"),
    )
    assert destination(far, "mpi").user_endpoint_config == {"account": "m1", "walltime": "02:00:00", "role": "mpi"}
    assert destination(far, "workers", control=True).user_endpoint_config == {"role": "control"}


def test_another_template_gets_no_names_of_ours() -> None:
    assert CliRunner().invoke(cli, [*WORDS, "--runs-at-once", "8"]).exit_code == 0
    far = find_profile("far")
    assert (far.user_endpoint_config, far.control.user_endpoint_config) == ({}, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (WORDS, "--runs-at-once is missing: how many runs"),
        ([*WORDS, "--runs-at-once", "8", "--template", "lsf"], "--template 'lsf' is not known; known: machine"),
        ([*WORDS, "--runs-at-once", "8", "--worker-init", "x"], "--worker-init: of an endpoint; write it into"),
        ([*WORDS[:6], "me", *WORDS[7:], "--runs-at-once", "8"], "endpoint_id: 'me' is no UUID"),
        (
            ["site", "new", "near", "--kind", "local", "--work-dir", "x"],
            "--work-dir has a meaning with --kind globus",
        ),
        (["site", "template", "slrum"], "there is no endpoint template 'slrum'; did you mean 'slurm'"),
    ],
)
def test_what_cannot_be_leaves_nothing(words: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, BadInput) and message in str(done.exception)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_template_is_written_and_not_over_another(tmp_path: Path) -> None:
    listed = CliRunner().invoke(cli, ["site", "template"])
    assert [line.split()[0] for line in listed.output.splitlines()] == ["machine", "pbs", "slurm"]
    done = CliRunner().invoke(cli, ["site", "template", "pbs", "my folder"])
    assert done.exit_code == 0
    assert "--template-config 'my folder/user_config_template.yaml.j2'" in done.output
    assert (tmp_path / "my folder/user_config_schema.json").is_file()
    again = CliRunner().invoke(cli, ["site", "template", "pbs", "my folder"])
    assert isinstance(again.exception, BadInput) and "is there already" in str(again.exception)
