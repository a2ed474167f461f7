"""The run that eats the memory of its jobs is found, and only that one is given up."""

from __future__ import annotations

import random

import pytest

from hpcagent.campaign.suspects import Suspects


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("runs", "slots"), [(2, 2), (8, 4), (32, 32), (40, 16)])
def test_one_culprit_among_many_is_charged_and_no_other(runs: int, slots: int, seed: int) -> None:
    draw = random.Random(seed)
    culprit = draw.randrange(runs)
    suspects, waiting, done = Suspects(), [str(n) for n in range(runs)], set()
    charges: dict[str, int] = {}
    block: list[str] = []
    for _ in range(2000):
        while waiting and len(block) < slots:
            block.append(waiting.pop(0))
        if not block:
            break
        if str(culprit) in block and (len(block) == slots or not waiting):  # it has grown large by then
            lost, block = block, []
            guilty = suspects.culprit(lost)
            for name in lost:
                charges[name] = charges.get(name, 0) + (name == guilty)
                if charges[name] > 2:
                    suspects.done(name)
                    done.add(name)
                else:
                    suspects.add(name)
        else:
            name = block.pop(draw.randrange(len(block)))
            if name == str(culprit):
                block.append(name)
                continue
            suspects.done(name)
            done.add(name)
        waiting[:0] = suspects.release()
    assert len(done) == runs
    assert {name for name, n in charges.items() if n} == {str(culprit)}


def test_half_of_them_go_at_a_time_and_those_first_that_were_lost_least_often() -> None:
    suspects = Suspects()
    for name in "abcdef":
        suspects.add(name)
    assert suspects.release() == ["a", "b", "c"]
    for name in "ab":  # lost once more
        suspects.add(name)
    suspects.done("c")
    assert suspects.release() == ["d", "e"]


def test_a_run_that_was_alone_in_its_job_was_it() -> None:
    assert Suspects().culprit(["a"]) == "a"
