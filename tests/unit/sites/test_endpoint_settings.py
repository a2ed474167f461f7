"""What a profile says of an endpoint: every mistake is named with its place, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcagent.campaign.where import SITE, note_site
from hpcagent.errors import BadInput
from hpcagent.model.contract import Resources
from hpcagent.sites.endpoint_settings import destination
from hpcagent.sites.limits import check, executor_for
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile
from hpcagent.store.rundir import RunDir

ID = "4b116d3c-1703-4f8f-9f6f-39921e5864df"
OTHER = "11111111-1703-4f8f-9f6f-39921e5864df"
HEAD = f'kind = "globus_compute"\nendpoint_id = "{ID}"\nwork_dir = "/scratch/me"\nruns_at_once = 8\n'


def read(folder: Path, text: str) -> Profile:
    path = folder / "far.toml"
    path.write_text(text)
    return find_profile(path)


def endpoint(**more: Any) -> Profile:
    settings = {"endpoint_id": ID, "work_dir": "/scratch/me", "runs_at_once": 8} | more
    return Profile(name="far", kind="globus_compute", **settings)


def test_a_profile_of_an_endpoint_has_defaults_for_the_rest(tmp_path: Path) -> None:
    far = read(tmp_path, HEAD.replace(ID, ID.upper()))
    assert (far.remote, far.batch, far.endpoint_id) == (True, False, ID)
    assert (far.at_close, far.offline_wait_s, far.amqp_port) == ("cancel", 3600.0, None)
    assert not find_profile("laptop").remote


def test_what_a_campaign_writes_down_reads_as_the_same_profile(tmp_path: Path) -> None:
    text = HEAD + (
        'amqp_port = 5671\nat_close = "leave"\noffline_wait_s = 0\n[user_endpoint_config]\naccount = "m1"\nnodes = 2\n'
        'rate = 0.5\nopen = true\nmodules = ["lammps", "python"]\n[user_endpoint_config.inner]\na = 1\n'
        f'[control]\nendpoint_id = "{OTHER}"\n[executors.mpi]\nmode = "mpi"\nuser_endpoint_config.role = "mpi"\n'
        f'[transfer]\nhere = "{ID}"\nthere = "{OTHER}"\nthere_path = "/scratch"\n'
    )
    far = read(tmp_path, text)
    note_site(RunDir(tmp_path), far)
    assert find_profile(tmp_path / SITE) == far


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD.replace(ID, "cluster"),
            r"far\.toml, endpoint_id: 'cluster' is no UUID such as .*globus-compute-endpoint",
        ),
        (HEAD.replace(ID, ID + "\\n"), r"endpoint_id: .* is no UUID"),
        (HEAD.replace(f'endpoint_id = "{ID}"\n', ""), r"the key 'endpoint_id' is missing, which kind = \"globus_"),
        (HEAD.replace('work_dir = "/scratch/me"\n', ""), r"'work_dir' is missing"),
        (HEAD.replace("runs_at_once = 8\n", ""), r"'runs_at_once' is missing.*workers on a node times its nodes"),
        (HEAD.replace("/scratch/me", "scratch"), r"work_dir: 'scratch' is relative.*write /… or ~/…"),
        (HEAD.replace("/scratch/me", "~you/x"), r"work_dir: '~you/x' is relative"),
        (HEAD.replace("/scratch/me", "/a/../b"), r"work_dir: '/a/\.\./b' must be a folder of its own"),
        (HEAD.replace("/scratch/me", "~/"), r"work_dir: '~/' must be a folder of its own"),
        (HEAD.replace("/scratch/me", "/"), r"work_dir: '/' must be a folder of its own"),
        (HEAD.replace("/scratch/me", "/a\\nb"), r"work_dir: the character '\\n'"),
        (HEAD + "amqp_port = 8080\n", r"amqp_port: .*443, 5671 or 5672"),
        (HEAD + 'at_close = "kill"\n', r"at_close: .*'cancel' or 'leave'"),
        (HEAD + "offline_wait_s = -1\n", r"offline_wait_s: .*greater than or equal to 0"),
        (HEAD + 'account = "m1"\n', r'account has no meaning for kind = "globus_compute"'),
        (HEAD + "[block]\nnodes_per_block = 2\n", r"block has no meaning for kind = \"globus_compute\""),
        (HEAD + '[env]\nA = "b"\n', r"env has no meaning for kind = .*worker_init of the endpoint's template"),
        (HEAD + '[identify]\nhostname = ["a"]\n', r"identify has no meaning"),
        (HEAD + '[executors.w]\nworker_init = "x"\n', r"executors\.w: worker_init has no meaning.*its template"),
        (HEAD + '[user_endpoint_config]\nglobus_token = "x"\n', r"globus_token: a secret has no place here"),
        (HEAD + '[user_endpoint_config]\nx = { API_KEY = "y" }\n', r"user_endpoint_config: x\.API_KEY: a secret"),
        (
            HEAD + "[user_endpoint_config]\nday = 2026-01-01\n",
            r"day: .*\(date\) cannot be sent as JSON; write it as",
        ),
        (HEAD + "[user_endpoint_config]\nx = inf\n", r"x: inf is no number in JSON"),
        (HEAD + '[user_endpoint_config]\nx = ["a\\u0007"]\n', r"x\[0\]: the character '\\x07'"),
        (HEAD + '[user_endpoint_config]\n"a b" = 1\n', r"'a b' is no name"),
        (
            HEAD + f'[user_endpoint_config]\na = "{"x" * 60000}"\nb = "{"x" * 9000}"\n',
            r"69\d\d\d bytes .*at most 65536",
        ),
        (HEAD + '[executors.w]\nuser_endpoint_config.token = "x"\n', r"executors\.w.*a secret has no place"),
        (HEAD + '[control]\nendpoint_id = "x"\n', r"control\.endpoint_id: 'x' is no UUID"),
        (HEAD + f'[transfer]\nhere = "{ID}"\n', r"transfer: the key 'there' is missing"),
        ('kind = "local"\nendpoint_id = "x"\n', r"endpoint_id: 'x' is no UUID"),
        ('kind = "local"\nwork_dir = "/x"\n', r'work_dir has no meaning for kind = "local"; .*"globus_compute"'),
        ('kind = "slurm"\n[control]\n', r'control has no meaning for kind = "slurm"'),
        (
            'kind = "local"\n[executors.w]\nuser_endpoint_config.a = 1\n',
            r"executors\.w\.user_endpoint_config has no",
        ),
    ],
)
def test_every_mistake_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_a_secret_is_not_in_the_error_that_refuses_it() -> None:
    with pytest.raises(BadInput) as caught:
        Profile.model_validate({"name": "x", "kind": "globus_compute"} | endpoint().model_dump(exclude_unset=True))
        read_secret = {"user_endpoint_config": {"password": "hunter2"}}
        from hpcagent.model.base import build

        build(Profile, endpoint().model_dump(exclude_unset=True) | read_secret, where="far.toml")
    assert "hunter2" not in str(caught.value) + repr(caught.value.details)


def test_errands_go_where_control_says() -> None:
    runs = {"queue": "debug"}
    same = endpoint(user_endpoint_config=runs)
    assert destination(same, "workers", control=True) == (ID, runs)
    one = endpoint(executors={"workers": {"user_endpoint_config": runs}})
    assert destination(one, "files", control=True) == (ID, runs), "what only fetches goes as the first executor"
    light = endpoint(user_endpoint_config=runs, control={"user_endpoint_config": {"role": "control"}})
    assert destination(light, "workers", control=True) == (ID, {"role": "control"})
    assert destination(light, "workers") == (ID, runs)
    other = endpoint(user_endpoint_config=runs, control={"endpoint_id": OTHER})
    assert destination(other, "workers", control=True) == (OTHER, {})


@pytest.mark.parametrize(
    ("more", "resources", "message"),
    [
        ({}, Resources(ranks_per_node=4), r"needs an executor for MPI.*GlobusMPIEngine"),
        (
            {},
            Resources(threads_per_rank=4),
            r"4 threads .* has 1 core.*cores_per_worker in \[executors\.workers\]",
        ),
        ({}, Resources(gpus_per_node=1), r"workers have a GPU each"),
        (
            {"user_endpoint_config": {"walltime": "00:10:00"}},
            Resources(walltime_s=601),
            r"= 601 .*walltime 00:10:00",
        ),
        (
            {"user_endpoint_config": {"nodes_per_block": 2}, "executors": {"mpi": {"mode": "mpi"}}},
            Resources(nodes=3),
            r"3 nodes does not fit into jobs of 2.*nodes_per_block",
        ),
    ],
)
def test_a_run_that_cannot_fit_is_refused_here(more: dict[str, Any], resources: Resources, message: str) -> None:
    far = endpoint(**more)
    with pytest.raises(BadInput, match=message):
        check(far, executor_for(far, resources), resources)


def test_runs_that_fit_pass() -> None:
    far = endpoint(
        user_endpoint_config={"walltime": "as long as it takes"},
        executors={"workers": {"cores_per_worker": 4, "available_accelerators": 2}, "mpi": {"mode": "mpi"}},
    )
    assert check(far, "workers", Resources(threads_per_rank=4, gpus_per_node=1, walltime_s=1e6)).notes == ()
    assert executor_for(far, Resources(nodes=2, ranks_per_node=8)) == "mpi"
    assert check(far, "mpi", Resources(nodes=2, ranks_per_node=8)).notes == ()
