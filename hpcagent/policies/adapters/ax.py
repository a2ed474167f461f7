"""Ax (Olson et al., AutoML 2025): Gaussian processes of BoTorch, noisy expected improvement of whole batches.

The strongest of the adapters on smooth spaces of five and more parameters, and the heaviest: it brings PyTorch,
and a batch takes seconds. Each suggestion makes a client, attaches the finished and the pending runs, and asks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Literal

from hpcagent.errors import BadInput
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.space import Space
from hpcagent.policies.adapters.common import Adapter, needed
from hpcagent.policies.adapters.imputation import Told

__all__ = ["Ax"]

METHODS = ("fast", "quality")


class Ax(Adapter):
    """Ax's own choice of Gaussian process and acquisition function, versions 1.3 and later.

    Several goals give points along the Pareto front.

    Args:
        space: Where it may suggest.
        objective: Goals and limits.
        seed: Decides the points.
        startup: Runs from which Ax takes over from a Sobol sequence.
        method: `fast`, or `quality`: a fully Bayesian model, minutes for a batch.

    Raises:
        BadInput: Ax is not installed, or a bad option.
    """

    name = "ax"
    modules = ("ax.api.client",)
    loggers = ("ax", "botorch", "gpytorch", "linear_operator", "pyro")
    asks = 1
    most_runs = 200

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        startup: int = 8,
        method: Literal["fast", "quality"] = "fast",
    ) -> None:
        super().__init__(space, objective, seed=seed, startup=startup)
        if method not in METHODS:
            raise BadInput(f"method={method!r} of policy 'ax' must be 'fast' or 'quality'.", value=method)
        needed("'ax'", "ax", "ax")
        self.method = method

    def ask(
        self, data: Sequence[Told], waiting: Sequence[Params], n: int, seed: int
    ) -> Generator[Params, None, None]:
        """At most `n` points from a client that is told everything again."""
        from ax.api.client import Client
        from ax.exceptions.core import SearchSpaceExhausted
        from ax.exceptions.generation_strategy import GenerationStrategyRepeatedPoints

        client = Client(random_seed=seed)
        client.configure_experiment(parameters=[_parameter(p) for p in self.free.parameters])
        goals = [
            ("" if g.direction == "maximize" else "-") + f"goal{i}" for i, g in enumerate(self.objective.goals)
        ]
        limits = [f"limit{k} <= 0" for k in range(len(self.objective.constraints))]
        client.configure_optimization(objective=", ".join(goals), outcome_constraints=limits or None)
        client.configure_generation_strategy(
            method=self.method, initialization_budget=0, initialize_with_center=False
        )
        for one in data:
            metrics = {f"goal{i}": v for i, v in enumerate(one.values)}
            metrics |= {f"limit{k}": e for k, e in enumerate(one.excess)}
            client.complete_trial(client.attach_trial(dict(one.params)), raw_data=metrics)
        for point in waiting:
            client.attach_trial(dict(point))
        try:
            asked: dict[int, Any] = client.get_next_trials(max_trials=n)
        except (SearchSpaceExhausted, GenerationStrategyRepeatedPoints):
            return  # a finite space in which Ax finds nothing new
        yield from asked.values()


def _parameter(p: Parameter) -> Any:
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    if p.kind == "choice":
        numbers = all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in p.choices)
        if all(isinstance(c, bool) for c in p.choices):
            return ChoiceParameterConfig(
                name=p.name, values=list(p.choices), parameter_type="bool", is_ordered=False
            )
        kind = "str" if not numbers else "int" if all(isinstance(c, int) for c in p.choices) else "float"
        # The order of numbers is a fact that the model may use, the order of words is not.
        values: list[Any] = [float(c) for c in p.choices] if kind == "float" else list(p.choices)
        return ChoiceParameterConfig(name=p.name, values=values, parameter_type=kind, is_ordered=numbers)
    assert p.low is not None and p.high is not None
    return RangeParameterConfig(
        name=p.name,
        bounds=(p.low, p.high),
        parameter_type="int" if p.kind == "int" else "float",
        scaling="log" if p.log else "linear",
    )
