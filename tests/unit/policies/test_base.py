from __future__ import annotations

import subprocess
import sys

import pytest

from hpcagent.errors import BadInput
from hpcagent.model.objective import at_most, maximize, minimize
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.model.space import Space
from hpcagent.policies import make_policy, policy_names

SPACE = Space.of(x=Float(0, 1), c=Choice("a", "b"))
GOAL = maximize("y")


FIDELITY = {"parameter": "c", "levels": ["a", "b"]}
# What a policy needs beside the common things.
NEEDS = {
    "screen": (SPACE, GOAL, {"fidelity": FIDELITY, "points": 4}),
    "staircase": (Space.of(x=Float(0, 1)), minimize("y", subject_to={"z": at_most(1)}), {}),
}


def test_every_name_makes_a_policy_that_suggests():
    # Ax is an extra of its own of 1.5 GB, and gest needs a generator: test_adapters has both.
    for name in set(policy_names()) - {"ax", "gest"}:
        space, goal, options = NEEDS.get(name, (SPACE, GOAL, {}))
        policy = make_policy(name, space=space, objective=goal, seed=1, **options)
        assert len(policy.suggest((), 4)) == 4


def test_the_nearest_name_is_offered():
    with pytest.raises(BadInput, match="did you mean 'thompson'"):
        make_policy("tompson", space=SPACE, objective=GOAL)


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(BadInput, match="no option 'level'; did you mean 'levels'"):
        make_policy("grid", space=SPACE, objective=GOAL, level=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grid", {"levels": 0}),
        ("grid", {"levels": 2.5}),
        ("grid", {"levels": {"z": 2}}),
        ("grid", {"order": "random"}),
        ("latin_hypercube", {"size": 0}),
        ("quality_first", {"initial": 0}),
        ("quality_first", {"step": 2}),
        ("epsilon_greedy", {"epsilon": 1.5}),
        ("ucb", {"buckets": 0}),
        ("ucb", {"buckets": {"z": 2}}),
        ("ucb", {"buckets": {"c": 2}}),
        ("ucb", {"exploration": -1}),
        ("ucb", {"reward": "harsh"}),
        ("ucb", {"weight": 2.0}),
        ("ucb", {"reward": "penalty", "weight": 0}),
        ("ucb", {"jitter": "yes"}),
        ("thompson", {"certainty": 0}),
    ],
)
def test_a_bad_option_is_refused(name, options):
    with pytest.raises(BadInput):
        make_policy(name, space=SPACE, objective=GOAL, **options)


def test_a_huge_grid_is_refused_before_it_is_made():
    space = Space.of(**{f"x{i}": Float(0, 1) for i in range(12)})
    with pytest.raises(BadInput, match="too large"):
        make_policy("grid", space=space, objective=GOAL, levels=10)


def test_a_policy_of_the_user_is_found_by_its_dotted_path(tmp_path, monkeypatch):
    (tmp_path / "my_policy_module.py").write_text(
        "class Same:\n"
        "    def __init__(self, space, objective, seed, u=0.5):\n"
        "        self.space, self.u = space, u\n"
        "    def suggest(self, history, n, pending=()):\n"
        "        return [self.space.from_unit([self.u] * len(self.space))] * n\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    policy = make_policy("my_policy_module:Same", space=SPACE, objective=GOAL, u=0.25)
    assert policy.suggest((), 1) == [{"x": 0.25, "c": "a"}]
    with pytest.raises(BadInput, match="no option 'v'"):
        make_policy("my_policy_module:Same", space=SPACE, objective=GOAL, v=1)
    with pytest.raises(BadInput, match="cannot be loaded"):
        make_policy("my_policy_module:Other", space=SPACE, objective=GOAL)


def test_something_that_cannot_suggest_is_refused():
    with pytest.raises(BadInput, match="no method suggest"):
        make_policy("builtins:dict", space=SPACE, objective=GOAL)


def test_steering_policies_name_the_goals_they_cannot_follow():
    with pytest.raises(BadInput, match=r"2 \(y, z\).*sweep"):
        make_policy("quality_first", space=SPACE, objective=maximize("y", "z"))


def test_a_space_without_a_choice_to_make_is_exhausted_by_one_point():
    space = Space.of(k=Int(3, 3))
    for name in ("grid", "random", "sobol", "latin_hypercube", "quality_first"):
        assert make_policy(name, space=space, objective=GOAL).suggest((), 4) == [{"k": 3}]


def test_importing_the_package_does_not_import_scipy():
    code = "import sys, hpcagent.policies, hpcagent.policies.stop_combined; sys.exit('scipy' in sys.modules)"
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]
    assert subprocess.run(command, timeout=60).returncode == 0
