"""The shared contract suite on every built-in policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import make_policy
from hpcagent.testing import PolicyContract


class TestGrid(PolicyContract):
    factory = partial(make_policy, "grid")
    seeded = False

    def exhausted(self, space: Space, runs: Sequence[Observation], points: Sequence[Params]) -> bool:
        given = [o.params for o in runs if o.role == "suggested"] + list(points)
        return all(point in given for point in space.grid(3))


class TestShuffledGrid(TestGrid):
    factory = partial(make_policy, "grid", order="shuffled")
    seeded = True


class TestRandom(PolicyContract):
    factory = partial(make_policy, "random")


class TestSobol(PolicyContract):
    factory = partial(make_policy, "sobol")


class TestLatinHypercube(PolicyContract):
    factory = partial(make_policy, "latin_hypercube", size=12)


class TestQualityFirst(PolicyContract):
    factory = partial(make_policy, "quality_first")
    steers = True


class TestEpsilonGreedy(PolicyContract):
    factory = partial(make_policy, "epsilon_greedy", buckets=3)
    steers = True


class TestUCB(PolicyContract):
    factory = partial(make_policy, "ucb", buckets=3)
    steers = True


class TestUCBWithPenalty(PolicyContract):
    factory = partial(make_policy, "ucb", reward="penalty", jitter=True)
    steers = True


class TestThompson(PolicyContract):
    factory = partial(make_policy, "thompson", buckets=3)
    steers = True
