"""What does not fit is refused before a job is submitted, with both numbers."""

from __future__ import annotations

import pytest

from hpcagent.errors import BadInput
from hpcagent.model.contract import Resources
from hpcagent.sites.block import block_of
from hpcagent.sites.limits import check, executor_for, most_blocks, with_overrides
from hpcagent.sites.profile import Profile

QUEUES = {
    "debug": {"node": "cpu", "max_nodes": 2, "max_walltime": "01:00:00", "max_jobs": 1},
    "long": {
        "node": "cpu",
        "min_nodes": 4,
        "walltime_by_nodes": {8: "02:00:00", 16: "06:00:00"},
        "note": "See page 9.",
    },
    "gpu": {"node": "gpu", "max_nodes": 4, "min_walltime": "00:05:00"},
}
NODES = {
    "cpu": {"cores": 16, "memory_gb": 64},
    "gpu": {"cores": 16, "memory_gb": 128, "gpus": 4},
}
EXECUTORS = {
    "workers": {},
    "wide": {"cores_per_worker": 4},
    "gpu": {"available_accelerators": 4, "cores_per_worker": 4, "block": {"queue": "gpu"}},
    "mpi": {"mode": "mpi", "block": {"nodes_per_block": 2}},
}


def site(*labels: str, kind: str = "slurm", **block: object) -> Profile:
    executors = {label: EXECUTORS[label] for label in labels or EXECUTORS}
    return Profile(
        name="ours", kind=kind, executors=executors, nodes=NODES, queues=QUEUES, block={"queue": "debug", **block}
    )


def refused(profile: Profile, label: str, resources: Resources | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        check(profile, label, resources or Resources())
    return str(caught.value)


def test_what_fits_passes() -> None:
    for label, resources in {
        "workers": Resources(memory_gb=64),
        "wide": Resources(threads_per_rank=4),
        "gpu": Resources(gpus_per_node=1, threads_per_rank=4),
        "mpi": Resources(nodes=2, ranks_per_node=16, walltime_s=3540),
    }.items():
        assert check(site(), label, resources) == (1, ())


def test_a_walltime_over_the_queues() -> None:
    text = refused(site(walltime="01:01:00"), "workers")
    assert "walltime of 01:01:00 is over the 01:00:00 that the partition debug of ours gives" in text
    assert "others: long (4- nodes, up to 06:00:00), gpu (1-4 nodes)" in text


@pytest.mark.parametrize(("nodes", "walltime"), [(4, "02:00:00"), (8, "02:00:00"), (9, "06:00:00")])
def test_a_walltime_over_what_a_job_of_that_size_gets(nodes: int, walltime: str) -> None:
    fitting = with_overrides(site("mpi"), queue="long", nodes=nodes, walltime=walltime)
    assert check(fitting, "mpi", Resources()).notes == ()
    text = refused(with_overrides(fitting, walltime="06:01:00"), "mpi")
    assert (
        f"06:01:00 is over the {walltime} that the partition long of ours gives for jobs of {nodes} node(s)"
        in text
    )
    assert text.endswith("See page 9.")


def test_a_walltime_under_the_queues() -> None:
    assert "00:04:00 is under the 00:05:00" in refused(with_overrides(site(), walltime="00:04:00"), "gpu")


def test_a_block_too_large_or_too_small_for_its_queue() -> None:
    assert "3 nodes is too large for the partition debug of ours, which takes 2" in refused(
        site(nodes_per_block=3), "workers"
    )
    assert "1 node(s) is too small for the partition long of ours, which takes 4 nodes" in refused(
        site(queue="long"), "workers"
    )
    assert "the queue debug" in refused(site(kind="pbs", nodes_per_block=3), "workers")


def test_a_run_with_more_nodes_than_a_block() -> None:
    assert "A run of 3 nodes does not fit into a block of 2" in refused(site(), "mpi", Resources(nodes=3))


def test_a_run_with_more_threads_than_a_node_has_cores() -> None:
    text = refused(site(), "mpi", Resources(ranks_per_node=4, threads_per_rank=5))
    assert "4 rank(s) of 5 thread(s) need 20 cores on a node" in text and "have 16 usable ones" in text


def test_a_run_with_more_cores_than_were_asked_for() -> None:
    assert "have 8 usable ones" in refused(site(cores_per_node=8), "mpi", Resources(ranks_per_node=9))


def test_a_run_with_more_threads_than_its_worker_has_cores() -> None:
    assert "A run of 5 threads does not fit a worker of the executor wide of ours, which has 4" in refused(
        site(), "wide", Resources(threads_per_rank=5)
    )


def test_a_run_of_several_ranks_sent_to_workers() -> None:
    assert "2 rank(s) does not fit the executor workers of ours" in refused(
        site(), "workers", Resources(ranks_per_node=2)
    )


def test_a_run_with_more_gpus_than_a_node() -> None:
    on_gpu_nodes = with_overrides(site(), queue="gpu")
    assert "5 GPU(s) on a node does not fit: nodes of the partition gpu of ours have 4" in refused(
        on_gpu_nodes, "mpi", Resources(gpus_per_node=5)
    )
    assert "have none; others: long" in refused(site(), "mpi", Resources(gpus_per_node=1))
    assert "worker of the executor workers of ours, which has none" in refused(
        site(), "workers", Resources(gpus_per_node=1)
    )


def test_workers_with_gpus_on_nodes_without() -> None:
    executors = {"gpu": {"available_accelerators": 4}}
    profile = Profile(
        name="ours", kind="slurm", executors=executors, nodes=NODES, queues=QUEUES, block={"queue": "debug"}
    )
    text = refused(profile, "gpu")
    assert (
        "executors.gpu.available_accelerators has 4 GPU(s); nodes of the partition debug of ours have none" in text
    )


def test_a_run_with_more_memory_than_a_node() -> None:
    assert "65 GB on a node does not fit: nodes of the partition debug of ours have 64 GB" in refused(
        site(), "workers", Resources(memory_gb=65)
    )
    assert "have 10 GB" in refused(site(mem_per_node_gb=10), "workers", Resources(memory_gb=11))
    assert "mem_per_node_gb = 100 is more than the 64 GB" in refused(site(mem_per_node_gb=100), "workers")


def test_a_run_that_would_outlast_its_block() -> None:
    text = refused(site(), "workers", Resources(walltime_s=3541))
    assert (
        "walltime_s = 3541 does not fit into a block: walltime 01:00:00 less the last 60 s (margin_s) is 3540 s"
        in text
    )


def test_a_walltime_that_was_not_given_is_not_asked_for() -> None:
    assert check(site(walltime="00:10:00"), "workers", Resources()).notes == ()


def test_a_block_shorter_than_the_margin() -> None:
    assert "leaves no time for runs" in refused(site(walltime="00:01:00"), "workers")


def test_blocks_are_cut_to_the_jobs_a_user_may_have() -> None:
    most, notes = check(site(max_blocks=5), "workers", Resources())
    assert most == 1
    assert notes == (
        "max_blocks is 1 in place of 5: the partition debug of ours takes 1 job(s) of a user at a time.",
    )
    assert check(with_overrides(site(max_blocks=5), queue="gpu"), "gpu", Resources()) == (5, ())
    assert "min_blocks = 2" in refused(site(min_blocks=2, max_blocks=5), "workers")


def test_a_site_without_queues_or_jobs_has_no_limits() -> None:
    huge = Resources(nodes=1, ranks_per_node=1000)
    check(Profile(name="x", kind="slurm", executors={"mpi": {"mode": "mpi"}}), "mpi", huge)
    check(Profile(name="x", kind="local"), "workers", huge)


def test_runs_go_to_the_executor_for_them() -> None:
    profile = site()
    assert executor_for(profile, Resources()) == "workers"
    assert executor_for(profile, Resources(threads_per_rank=4)) == "wide"
    assert executor_for(profile, Resources(threads_per_rank=64)) == "workers"
    assert executor_for(profile, Resources(gpus_per_node=1)) == "gpu"
    assert executor_for(profile, Resources(gpus_per_node=2)) == "mpi"
    assert executor_for(profile, Resources(ranks_per_node=2)) == "mpi"
    assert executor_for(profile, Resources(nodes=2)) == "mpi"
    assert executor_for(site("workers", "mpi"), Resources(gpus_per_node=1)) == "mpi"
    assert executor_for(site("mpi"), Resources()) == "mpi"


def test_a_site_without_an_executor_for_a_run_says_how_to_add_one() -> None:
    with pytest.raises(
        BadInput, match=r'2 rank\(s\) needs an executor for MPI.*\[executors\.mpi\] with mode = "mpi"'
    ):
        executor_for(site("workers"), Resources(ranks_per_node=2))
    with pytest.raises(BadInput, match=r"\[executors\.gpu\] with available_accelerators = 4"):
        executor_for(site("workers"), Resources(gpus_per_node=1))


def test_the_command_line_goes_before_the_profile_in_every_executor() -> None:
    changed = with_overrides(site(), account="a", queue="gpu", walltime="00:30:00", nodes=3, blocks=2)
    assert changed.account == "a"
    for label in changed.executors:
        block = block_of(changed, label)
        assert (block.queue, block.walltime, block.nodes_per_block, block.max_blocks) == ("gpu", "00:30:00", 3, 2)
    assert block_of(changed, "gpu").accelerators == ("0", "1", "2", "3")  # the rest stays
    assert with_overrides(site(), nodes=3).executors["workers"] == site().executors["workers"]
    untouched = site()
    assert with_overrides(untouched) is untouched


def test_a_queue_without_gpus_is_not_meant_for_the_executor_that_has_them() -> None:
    changed = with_overrides(site(), queue="long", nodes=5, walltime="02:00:00", blocks=2)
    workers, gpu = block_of(changed, "workers"), block_of(changed, "gpu")
    assert (workers.queue, workers.nodes_per_block, workers.walltime) == ("long", 5, "02:00:00")
    assert (gpu.queue, gpu.nodes_per_block, gpu.walltime, gpu.max_blocks) == ("gpu", 1, "01:00:00", 2)
    check(changed, "gpu", Resources(gpus_per_node=1))


def test_mpi_runs_with_gpus_go_where_the_gpus_are() -> None:
    executors = {**EXECUTORS, "mpi_gpu": {"mode": "mpi", "block": {"queue": "gpu"}}}
    profile = Profile(
        name="ours", kind="slurm", executors=executors, nodes=NODES, queues=QUEUES, block={"queue": "debug"}
    )
    assert executor_for(profile, Resources(ranks_per_node=4, gpus_per_node=4)) == "mpi_gpu"
    assert executor_for(profile, Resources(gpus_per_node=2)) == "mpi_gpu"
    assert executor_for(profile, Resources(ranks_per_node=4)) == "mpi"
    check(profile, "mpi_gpu", Resources(ranks_per_node=4, gpus_per_node=4))


def test_how_many_blocks_there_may_be_is_told_also_of_blocks_that_can_not_run() -> None:
    impossible = site(walltime="02:00:00", max_blocks=3)
    assert most_blocks(impossible, "workers").max_blocks == 1
    refused(impossible, "workers")


def test_a_wrong_word_on_the_command_line_is_named() -> None:
    with pytest.raises(BadInput, match=r"queue 'debgu' is not among those of the site ours; did you mean 'debug'"):
        with_overrides(site(), queue="debgu")
    with pytest.raises(BadInput, match=r"command line's options, block\.walltime: walltime '1h' is not HH:MM:SS"):
        with_overrides(site(), walltime="1h")
    with pytest.raises(BadInput, match=r'kind = "local", which submits no jobs'):
        with_overrides(Profile(name="x", kind="local"), nodes=2)
