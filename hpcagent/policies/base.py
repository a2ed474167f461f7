"""What a policy is, and how one is found by its name.

The rules every policy keeps (checked by `hpcagent.testing.PolicyContract`):

1. `suggest` is a pure function of (the policy's seed, history, pending): no hidden state, no module-level
   random numbers, arguments are never changed. So resuming a campaign is replaying it.
2. It returns exactly `n` points that `Space.validated` accepts, or fewer only when the design is exhausted:
   a grid is done, or every point of a finite space has been given.
3. A run that failed is data. `Observation.completed` is False where the simulation itself failed; a
   steering policy keeps away from there. Infrastructure failures and cancelled runs never appear in the
   history: they say nothing about the point, which may be suggested again.
4. `role == "reference"` (and replicates, repeats) are in the history and may be used as data; they don't
   count as suggestions. Neither do `enqueued` points, which somebody else has chosen, and `told` results, which
   were measured elsewhere.
5. A `distrusted` run did not have its core to itself: its goal metric must not be used as a measurement of
   speed; its other metrics are as good as any.
6. `pending` are points that were suggested and have not come back; they count as given, and nothing is
   known of them.
7. A policy that steers by one goal refuses an objective with several; a sweep takes any objective.
8. `role == "earlier"` is a run of another campaign: data, but not a suggestion of this one.
   Its `context` says under which circumstances it ran, where they differ from this campaign's.
9. In a space with constraints or conditional parameters every suggestion is allowed (`Space.allows`), and what is
   not active at a point is left out of it, as it is in the history. What a policy from outside suggests is led
   back there where it does not see to it (`hpcagent.policies.kept`).
10. `bounds` of an observation says which metrics of a run that was stopped early are only bounds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from hpcagent.errors import BadInput, nearest
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.offered import load, offered
from hpcagent.policies.kept import Kept

__all__ = [
    "Policy",
    "Reason",
    "is_contextual",
    "make_policy",
    "one_goal",
    "policy_names",
    "takes_option",
]

BUILT_IN: Mapping[str, str] = {
    "ax": "hpcagent.policies.adapters.ax:Ax",
    "bayes": "hpcagent.policies.bayes:Bayes",
    "epsilon_greedy": "hpcagent.policies.bandits:EpsilonGreedy",
    "gest": "hpcagent.policies.adapters.gest:Gest",
    "grid": "hpcagent.policies.sweeps:Grid",
    "latin_hypercube": "hpcagent.policies.sweeps:LatinHypercube",
    "linear_thompson": "hpcagent.policies.contextual:LinearThompson",
    "linucb": "hpcagent.policies.contextual:LinUCB",
    "optuna": "hpcagent.policies.adapters.optuna:Optuna",
    "portfolio": "hpcagent.policies.portfolio:Portfolio",
    "quality_first": "hpcagent.policies.quality_first:QualityFirst",
    "random": "hpcagent.policies.sweeps:Random",
    "screen": "hpcagent.policies.screen:Screen",
    "sobol": "hpcagent.policies.sweeps:Sobol",
    "staircase": "hpcagent.policies.staircase:Staircase",
    "sweep": "hpcagent.policies.design:Design",
    "thompson": "hpcagent.policies.bandits:Thompson",
    "ucb": "hpcagent.policies.bandits:UCB",
}


@dataclass(frozen=True)
class Reason:
    """Why a policy suggested a point. A policy may have a method `reasons` with the arguments of `suggest`.

    Attributes:
        params: The point.
        role: What it is for, in one or two words, e.g. `space-filling`, `improvement`, `exploration`.
        text: One sentence.
        predicted: Metric -> (mean, standard error) expected there, in the metric's unit.
        probability_feasible: P(every limit is kept), or None where no model says.
        probability_completes: P(the run does not fail), or None where no model says.
        numbers: Whatever else it was chosen by, e.g. the expected improvement in the goal's unit.
    """

    params: Params
    role: str
    text: str = ""
    predicted: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    probability_feasible: float | None = None
    probability_completes: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class Policy(Protocol):
    """Suggests points. The rules are at the top of this module."""

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return the next `n` points to run.

        Args:
            history: Finished runs in the recorded order.
            n: How many points are wanted.
            pending: Points that were suggested and have not come back.

        Returns:
            `n` points of the space as plain values; fewer only when the design is exhausted.
        """
        ...


def policy_names() -> tuple[str, ...]:
    """The names `make_policy` knows: built in, and from the entry points `hpcagent.policies`.

    Example:
        >>> "quality_first" in policy_names()
        True
    """
    return tuple(sorted({*BUILT_IN, *offered("policies")}))


def make_policy(name: str, *, space: Space, objective: Objective, seed: int = 0, **options: Any) -> Policy:
    """Make the policy called `name`.

    Args:
        name: A built-in name, the name of an entry point in the group `hpcagent.policies`, or a dotted path
            `package.module:factory`. A factory is called with the keywords `space`, `objective`, `seed` and
            options.
        space: Where it may suggest.
        objective: What it steers by.
        seed: Seed of its random choices.
        options: The policy's own options, e.g. `levels=5` for a grid.

    Raises:
        BadInput: Unknown name, unknown or bad option, or an objective the policy cannot follow.

    Example:
        >>> from hpcagent.model.objective import maximize
        >>> from hpcagent.model.parameter import Float
        >>> from hpcagent.model.space import Space
        >>> grid = make_policy("grid", space=Space.of(x=Float(0, 1)), objective=maximize("y"), levels=3)
        >>> grid.suggest([], 2)
        [{'x': 0.0}, {'x': 0.5}]
    """
    factory = _factory(name)
    _check_options(name, factory, options)
    policy: Policy = factory(space=space, objective=objective, seed=seed, **options)
    if not callable(getattr(policy, "suggest", None)):
        raise BadInput(f"{name!r} made a {type(policy).__name__}, which has no method suggest.", value=name)
    if not space.simple and name not in BUILT_IN:
        return Kept(policy, space, seed=seed)
    return policy


def is_contextual(name: str) -> bool:
    """Whether the policy learns across contexts: it has `contextual = True` and takes the option `context`.

    Example:
        >>> is_contextual("linucb"), is_contextual("ucb")
        (True, False)
    """
    return getattr(_factory(name), "contextual", False) is True


def takes_option(name: str, option: str, *, by_name: bool = False) -> bool:
    """Whether the policy has an option of that name; with `by_name` a factory's `**kwargs` do not count.

    Example:
        >>> takes_option("screen", "fidelity"), takes_option("sobol", "fidelity")
        (True, False)
    """
    try:
        parameters = inspect.signature(_factory(name)).parameters
    except ValueError:  # some callables written in C have no signature
        return False
    if by_name:
        return option in parameters
    return option in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def one_goal(name: str, objective: Objective) -> None:
    """Raise `BadInput` if the objective has several goals."""
    if len(objective.goals) > 1:
        goals = ", ".join(g.metric for g in objective.goals)
        raise BadInput(
            f"policy {name!r} steers by one goal, but the objective has {len(objective.goals)} ({goals}); name "
            "one goal and put limits on the others, or take 'bayes', or a sweep (grid, random, sobol, "
            "latin_hypercube).",
            value=goals,
        )


def _factory(name: str) -> Callable[..., Any]:
    factory: Callable[..., Any] = load("policies", name, BUILT_IN)
    if not callable(factory):
        raise BadInput(f"policy {name!r} is not a class or function.", value=name)
    return factory


def _check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some callables written in C have no signature
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = [p for p in parameters if p not in ("self", "space", "objective", "seed")]
    for option in options:
        if option == "fidelity" and option not in known:
            raise BadInput(
                f"policy {name!r} does not know fidelities; take 'bayes' or 'screen', or drop [fidelity].",
                value=name,
            )
        if option not in known:
            raise BadInput(f"policy {name!r} has no option {option!r}; {nearest(option, known)}", value=option)
