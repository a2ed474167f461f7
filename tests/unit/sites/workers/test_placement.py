"""Which cores and GPUs a run gets: packed, neighbouring, the same on every node, and given back."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from hpcagent.sites.workers.placement import Room, share


def nodes(count: int, cores: int = 4, gpus: int = 0) -> list[dict[str, Any]]:
    return [
        {"name": f"n{i + 1}", "cores": list(range(cores)), "gpus": [str(g) for g in range(gpus)]}
        for i in range(count)
    ]


def place(room: Room, task_id: int, now: float = 0.0, **needs: Any) -> list[tuple[str, list[int]]] | None:
    got = room.take(task_id, needs, now)
    return None if got is None else [(host["name"], host["cores"]) for host in got["hosts"]]


def test_the_fullest_node_is_filled_first_so_that_another_stays_whole() -> None:
    room = Room(nodes(2))
    assert place(room, 1, cores=3) == [("n1", [0, 1, 2])]
    assert place(room, 2, cores=2) == [("n2", [0, 1])]
    assert place(room, 3, cores=1) == [("n1", [3])]  # not beside the two of n2
    assert place(room, 4, cores=3) is None
    room.give(2)
    assert place(room, 5, cores=4) == [("n2", [0, 1, 2, 3])]


def test_cores_of_a_run_are_neighbours_where_there_are_some() -> None:
    room = Room(nodes(1, cores=6))
    for task_id in range(6):
        assert place(room, task_id, cores=1) == [("n1", [task_id])]
    for task_id in (0, 2, 4, 5):
        room.give(task_id)
    assert place(room, 7, cores=2) == [("n1", [4, 5])]
    assert place(room, 8, cores=2) == [("n1", [0, 2])]  # none left: any two


def test_a_run_over_nodes_has_the_same_cores_and_gpus_on_each() -> None:
    room = Room(nodes(2, cores=4, gpus=2))
    assert room.take(1, {"cores": 1, "gpus": 1}, 0.0)["hosts"][0]["gpus"] == ["0"]  # type: ignore[index]
    wide = room.take(2, {"nodes": 2, "cores": 2, "gpus": 1}, 0.0)
    assert wide is not None and len(wide["hosts"]) == 2
    assert {tuple(h["cores"]) for h in wide["hosts"]} == {(1, 2)}
    assert {tuple(h["gpus"]) for h in wide["hosts"]} == {("1",)}


def test_a_run_over_nodes_waits_rather_than_being_bound_nowhere() -> None:
    room = Room(nodes(2, cores=2))
    place(room, 1, cores=1)
    place(room, 2, cores=2)
    place(room, 3, cores=1)
    room.give(1)  # n1 has core 0 free
    room.give(2)  # n2 has both
    place(room, 4, cores=1)  # core 0 of n1 again
    room.give(3)
    assert place(room, 5, nodes=2, cores=1) == [("n1", [1]), ("n2", [1])]
    room.give(4)
    place(room, 6, cores=1)
    room.give(5)
    assert place(room, 7, nodes=2, cores=2) is None
    # Two nodes are alike, a third is not: those two.
    room = Room(nodes(3, cores=2))
    assert [place(room, i, cores=2) for i in (1, 2, 3)]
    room.give(1)
    assert place(room, 4, cores=1) == [("n1", [0])]
    room.give(2)
    room.give(3)
    assert place(room, 5, nodes=2, cores=2) == [("n2", [0, 1]), ("n3", [0, 1])]


def test_nodes_that_never_name_their_cores_alike_are_used_all_the_same() -> None:
    room = Room([{"name": "n1", "cores": [4, 5]}, {"name": "n2", "cores": [0, 1]}])
    assert place(room, 1, nodes=2, cores=2) == [("n1", [4, 5]), ("n2", [0, 1])]


def test_what_runs_in_the_worker_itself_is_on_the_workers_node() -> None:
    room = Room(nodes(2, cores=2))
    assert place(room, 1, cores=1) == [("n1", [0])]
    assert place(room, 2, cores=1, here=True) == [("n1", [1])]
    assert place(room, 3, cores=1, here=True) is None
    assert place(room, 4, cores=1) == [("n2", [0])]
    assert room.take(5, {"cores": 1}, 0.0)["first"] == "n1"  # type: ignore[index]
    assert room.could({"cores": 1, "here": True}, 0.0)


def test_gpus_are_handed_out_once_each() -> None:
    room = Room(nodes(1, cores=8, gpus=4))
    ids = [room.take(i, {"cores": 1, "gpus": 1}, 0.0)["hosts"][0]["gpus"] for i in range(4)]  # type: ignore[index]
    assert ids == [["0"], ["1"], ["2"], ["3"]]
    assert room.take(9, {"cores": 1, "gpus": 1}, 0.0) is None
    assert room.take(10, {"cores": 1}, 0.0) is not None
    room.give(2)
    assert room.take(11, {"cores": 1, "gpus": 2}, 0.0) is None
    assert room.take(12, {"cores": 1, "gpus": 1}, 0.0)["hosts"][0]["gpus"] == ["2"]  # type: ignore[index]


def test_a_run_that_would_not_end_in_time_gets_nothing() -> None:
    room = Room(nodes(1), ends_at=1000.0)
    assert room.could({"cores": 1, "walltime_s": 100.0}, 900.0)
    assert not room.could({"cores": 1, "walltime_s": 100.0}, 900.1)
    assert place(room, 1, now=901.0, cores=1, walltime_s=100.0) is None
    assert place(room, 2, now=901.0, cores=1, walltime_s=99.0) == [("n1", [0])]
    assert place(room, 3, now=1000.5, cores=1) is None  # nothing begins after the end, whatever it asks for
    assert Room(nodes(1)).could({"cores": 1, "walltime_s": 1e9}, 0.0)


def test_giving_back_twice_or_what_was_never_taken_changes_nothing() -> None:
    room = Room(nodes(1, cores=2))
    place(room, 1, cores=2)
    room.give(1)
    room.give(1)
    room.give(99)
    assert room.holders() == []
    assert place(room, 2, cores=2) == [("n1", [0, 1])]


@pytest.mark.parametrize("seed", range(20))
def test_no_core_is_ever_given_to_two(seed: int) -> None:
    chance = random.Random(seed)
    room = Room(nodes(3, cores=8, gpus=2))
    held: dict[int, list[dict[str, Any]]] = {}
    for task_id in range(300):
        if held and chance.random() < 0.5:
            gone = chance.choice(sorted(held))
            room.give(gone)
            del held[gone]
        needs = {
            "nodes": chance.choice((1, 1, 2, 3)),
            "cores": chance.randint(1, 8),
            "gpus": chance.choice((0, 1)),
        }
        got = room.take(task_id, needs, 0.0)
        if got is not None:
            held[task_id] = got["hosts"]
            assert len({h["name"] for h in got["hosts"]}) == needs["nodes"]
            assert all(len(h["cores"]) == needs["cores"] for h in got["hosts"])
            assert all(len(h["gpus"]) == needs["gpus"] for h in got["hosts"])
        parts = list(itertools.chain(*held.values()))
        cores = [(h["name"], c) for h in parts for c in h["cores"]]
        gpus = [(h["name"], g) for h in parts for g in h["gpus"]]
        assert len(cores) == len(set(cores)) and len(gpus) == len(set(gpus))
    for task_id in list(held):
        room.give(task_id)
    assert place(room, 1000, nodes=3, cores=8, gpus=2) is not None  # all of it came back


def test_the_part_of_a_block_is_what_does_not_fit_beside_it() -> None:
    assert share({"nodes": 1, "cores": 4}, hosts=2, cores=32, gpus=0) == 1 / 16
    assert share({"nodes": 1, "cores": 17}, hosts=1, cores=32, gpus=0) == 1.0  # two do not fit
    assert share({"nodes": 1, "cores": 1, "gpus": 2}, hosts=1, cores=32, gpus=4) == 0.5
    assert share({"nodes": 2, "cores": 64}, hosts=2, cores=32, gpus=0) == 1.0
