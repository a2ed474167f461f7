"""A first profile written from answers, with a scheduler's queues that are played here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcagent.errors import BadInput
from hpcagent.model.contract import Resources
from hpcagent.sites.limits import check, with_overrides
from hpcagent.sites.new_profile import answered, proposed, write_profile
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.schedulers.answers import Queue

QUEUES = (
    Queue("gpu", min_nodes=2, nodes=4, cores=64, gpus=4, memory_gb=512.04),
    Queue("work", default=True, max_walltime_s=7200, cores=128, nodes=10, max_nodes=6),
    Queue("work.big", open=False, max_walltime_s=86400, cores=128, nodes=10),
    Queue("route"),
    Queue("odd", min_nodes=5, nodes=4, cores=8),
)


def test_each_queue_has_a_table_with_its_own_nodes(tmp_path: Path) -> None:
    profile = find_profile(str(write_profile(proposed("pbs", queues=QUEUES), folder=tmp_path)))
    assert profile.block.queue == "work" and set(profile.queues) == {queue.name for queue in QUEUES}
    nodes = {name: profile.nodes[limits.node] for name, limits in profile.queues.items()}
    assert {name: node.cores for name, node in nodes.items()} == {
        "work": 128, "work.big": 128, "route": 128, "gpu": 64, "odd": 8,
    }  # fmt: skip
    assert (nodes["gpu"].gpus, nodes["gpu"].memory_gb, nodes["work"].gpus) == (4, 512.0, 0)
    assert (profile.queues["work"].max_nodes, profile.queues["gpu"].min_nodes) == (6, 2)
    check(with_overrides(profile, queue="gpu", nodes=2), "workers", Resources())
    with pytest.raises(BadInput, match=re.escape("over the 02:00:00")):
        check(with_overrides(profile, walltime="03:00:00"), "workers", Resources())


def test_fewer_cores_than_the_hardware_threads_that_were_told_are_those_of_all_nodes_of_that_kind(
    tmp_path: Path,
) -> None:
    answers = answered(proposed("pbs", queues=QUEUES), "cores", "64")
    profile = find_profile(str(write_profile(answers, folder=tmp_path)))
    assert {profile.nodes[profile.queues[name].node].cores for name in ("work", "work.big")} == {64}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("nodes", "7", "nodes: 7 are more than the 6 that the queue work gives"),
        ("nodes", "0", "0 is too few"),
        ("nodes", "two", "'two' is not a whole number"),
        ("cores", 129, "cores: 129 are more than the 128"),
        ("walltime", "02:00:01", "'02:00:01' is over the 02:00:00"),
        ("walltime", None, "'' is not HH:MM:SS"),
        ("queue", "worm", "did you mean 'work'"),
    ],
)
def test_an_answer_that_the_queue_does_not_give_is_refused_with_both_numbers(
    key: str, value: object, says: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        answered(proposed("pbs", queues=QUEUES), key, value)


def test_too_few_nodes_for_a_queue_are_refused_and_another_queue_changes_what_is_proposed() -> None:
    answers = answered(proposed("pbs", queues=QUEUES)._replace(name="mine"), "queue", "gpu")
    assert (answers.name, answers.nodes, answers.cores, answers.walltime) == ("mine", 2, 64, "01:00:00")
    with pytest.raises(BadInput, match="nodes: 1 are fewer than the 2"):
        answered(answers, "nodes", 1)


def test_answers_made_by_hand_are_held_against_the_queue_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="over the"):
        write_profile(proposed("pbs", queues=QUEUES)._replace(walltime="05:00:00"), folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()
