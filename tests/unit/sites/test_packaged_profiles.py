"""The profiles that come along: each reads, knows its machine, and keeps to the limits it states."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from hpcagent import packaged
from hpcagent.errors import BadInput
from hpcagent.model.contract import Resources
from hpcagent.sites.block import block_of
from hpcagent.sites.limits import check, executor_for, with_overrides
from hpcagent.sites.profile import Profile, account_of, check_where
from hpcagent.sites.profiles import find_profile, identify_site

FILES = sorted(packaged.folder("site_profiles").glob("*.toml"))
GENERIC = {"laptop", "laptop_alone", "threads", "slurm", "pbs", "flux"}
FACILITIES = [path.stem for path in FILES if path.stem not in GENERIC]
BATCH = [*FACILITIES, "slurm", "pbs", "flux"]

# One machine, two profiles: a person has to say which.
TWINS = {"perlmutter-cpu": "perlmutter-gpu", "lumi-c": "lumi-g"}
TWINS |= {b: a for a, b in TWINS.items()}


@pytest.fixture(autouse=True)
def _empty_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HPCAGENT_SITE_PATH", raising=False)


def text_of(name: str) -> str:
    return (packaged.folder("site_profiles") / f"{name}.toml").read_text()


def cores(affinity: str) -> list[set[int]]:
    """Parsl's `list:0-3,8-11:4-7` as sets of cores, worker by worker."""
    workers = []
    for group in affinity.removeprefix("list:").split(":"):
        spans = [span.partition("-") for span in group.split(",")]
        workers.append({core for first, _, last in spans for core in range(int(first), int(last or first) + 1)})
    return workers


def test_the_facilities_are_there() -> None:
    asked = (
        "polaris aurora crux sophia perlmutter-cpu perlmutter-gpu frontier frontera stampede3 vista anvil expanse"
    )
    assert set(FACILITIES) >= {*asked.split(), "delta", "lumi-c", "lumi-g"}


@pytest.mark.parametrize("name", BATCH)
def test_small_runs_of_every_kind_pass_the_sites_own_limits(name: str) -> None:
    profile = find_profile(name)
    kinds = [Resources(), Resources(ranks_per_node=4)]
    if "gpu" in profile.executors:
        kinds.append(Resources(gpus_per_node=1))
    labels = [executor_for(profile, resources) for resources in kinds]
    assert labels == ["workers", "mpi", "gpu"][: len(kinds)]
    for label, resources in zip(labels, kinds, strict=True):
        assert check(profile, label, resources).notes == ()


@pytest.mark.parametrize("name", FACILITIES)
def test_a_machine_is_known_by_its_environment_and_by_its_name(name: str) -> None:
    identify = find_profile(name).identify
    hosts = [glob.replace("*", "node1") for glob in identify.hostname]
    surroundings = [({}, host) for host in hosts] + ([(identify.env, "node1")] if identify.env else [])
    assert surroundings
    for environ, host in surroundings:
        if name in TWINS:
            with pytest.raises(BadInput, match=f"'{min(name, TWINS[name])}' and '{max(name, TWINS[name])}'"):
                identify_site(environ, host)
        else:
            assert identify_site(environ, host).name == name


@pytest.mark.parametrize("name", FACILITIES)
def test_a_facility_wants_an_account_and_the_package_has_none(name: str) -> None:
    assert "account" not in tomllib.loads(text_of(name))
    assert not re.search(r"--account|-A ", "\n".join(_directives(find_profile(name))))
    with pytest.raises(BadInput, match=rf"{name} needs an account.*\$HPCAGENT_ACCOUNT.*\S$"):
        account_of(find_profile(name), environ={})


def _directives(profile: Profile) -> list[str]:
    return [line for label in profile.executors for line in block_of(profile, label).directives]


@pytest.mark.parametrize("name", FACILITIES)
def test_a_facility_says_its_sources_when_they_were_read_and_what_is_open(name: str) -> None:
    comment = "\n".join(line for line in text_of(name).split("\nkind =")[0].splitlines() if line.startswith("#"))
    assert re.search(r"docs\.\w+|www\.sdsc", comment)
    assert re.search(r"20\d\d-\d\d-\d\d|undated", comment)
    assert "never run there" in comment
    assert "Not confirmed" in comment


@pytest.mark.parametrize("name", FACILITIES)
def test_every_queue_takes_the_jobs_that_it_is_said_to_take(name: str) -> None:
    profile = find_profile(name)
    for queue, limits in profile.queues.items():
        wanted = with_overrides(profile, queue=queue, nodes=limits.min_nodes, walltime="00:10:00")
        gpus = profile.nodes[limits.node].gpus
        check(wanted, "gpu" if gpus and gpus >= len(block_of(wanted, "gpu").accelerators) else "mpi", Resources())
        if limits.max_nodes is not None:
            with pytest.raises(BadInput, match=f"too large for .*{queue}"):
                check(with_overrides(wanted, nodes=limits.max_nodes + 1), "mpi", Resources())


@pytest.mark.parametrize("name", FACILITIES)
def test_workers_with_a_gpu_each_share_no_core_and_all_cores_exist(name: str) -> None:
    for node in find_profile(name).nodes.values():
        if node.cpu_affinity:
            workers = cores(node.cpu_affinity)
            assert len(workers) == len(node.accelerator_ids) == node.gpus
            assert len(set().union(*workers)) == sum(len(w) for w in workers) <= node.cores * node.threads_per_core
            assert len({len(w) for w in workers}) == 1


@pytest.mark.parametrize("name", FACILITIES)
def test_workers_with_a_gpu_each_share_the_nodes_cores(name: str) -> None:
    profile = find_profile(name)
    for label, executor in profile.executors.items():
        if executor.available_accelerators:
            block = block_of(profile, label)
            assert block.node is not None
            assert len(block.accelerators) == block.node.gpus
            assert executor.cores_per_worker == block.node.cores // block.node.gpus
            check(profile, label, Resources(gpus_per_node=1, threads_per_rank=executor.cores_per_worker))


def test_the_second_thread_of_a_core_goes_with_the_first() -> None:
    for name, apart in (("polaris", 32), ("aurora", 104)):
        (node,) = find_profile(name).nodes.values()
        for worker in cores(node.cpu_affinity):
            first = {core for core in worker if core < apart}
            assert worker == first | {core + apart for core in first}


def test_two_cores_of_aurora_are_left_to_the_system() -> None:
    block = block_of(find_profile("aurora"), "gpu")
    used = set().union(*cores(block.cpu_affinity))
    assert not used & {0, 52, 104, 156}
    assert len(block.accelerators) == block.max_workers_per_node == 12
    assert block_of(find_profile("aurora"), "workers").max_workers_per_node == 102


def test_runs_of_several_ranks_with_gpus_have_nodes_with_gpus() -> None:
    for name in FACILITIES:
        profile = find_profile(name)
        if "gpu" in profile.executors:
            wanted = Resources(ranks_per_node=2, gpus_per_node=1)
            check(profile, executor_for(profile, wanted), wanted)


def test_a_programs_command_stands_only_where_a_facility_has_published_it() -> None:
    commands = {name: find_profile(name).lammps for name in FACILITIES}
    assert {name: command for name, command in commands.items() if command} == {
        "frontera": ("lmp_frontera",),
        "stampede3": ("lmp_stampede",),
    }


def test_tacc_keeps_coordinators_off_its_login_nodes() -> None:
    for name in ("frontera", "stampede3", "vista"):
        with pytest.raises(BadInput, match="TACC wants all AI-assisted workloads on compute nodes"):
            check_where(find_profile(name), "login")
    check_where(find_profile("polaris"), "login")


def test_small_jobs_are_kept_out_of_the_queues_for_large_ones() -> None:
    for name, queue in (("polaris", "prod"), ("aurora", "prod"), ("frontera", "normal")):
        with pytest.raises(BadInput, match="too small"):
            check(with_overrides(find_profile(name), queue=queue), "mpi", Resources())


def test_no_directive_is_one_that_the_site_rejects() -> None:
    for name, word in (("frontera", "--mem"), ("stampede3", "--gres")):
        assert word not in " ".join(_directives(find_profile(name)))
    for label in ("workers", "gpu", "mpi"):
        assert "--mem=0" in block_of(find_profile("expanse"), label).directives
    for name in ("polaris", "aurora", "crux", "sophia"):
        assert any(line.startswith("-l filesystems=home:") for line in _directives(find_profile(name)))
        assert find_profile(name).env["TMPDIR"] == "/tmp"
