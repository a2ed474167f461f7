"""Both directions of gest-api (generator-standard.readthedocs.io): its generators as policies, and ours as one.

The standard is what libEnsemble, optimas, Xopt and others share: a generator is made from a VOCS (variables,
objectives, constraints), suggests points as dicts, and ingests dicts with the results.

`Gest` (the policy `gest`) runs any such generator here. `Generator` is any policy of ours for use there:

    from hpcagent.policies.adapters.gest import Generator
    generator = Generator(vocs, policy="bayes", seed=1, log=["timestep"])
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Generator as Yields
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.objective import Constraint, Goal, Objective
from hpcagent.model.parameter import Choice, Float, Int, Parameter, Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.offered import refuse_path
from hpcagent.policies.adapters.common import Adapter, isolated, needed, table
from hpcagent.policies.adapters.imputation import Told, believed
from hpcagent.policies.base import make_policy
from hpcagent.statistics.points import whole

__all__ = ["Generator", "Gest"]  # noqa: F822  (Generator is made when it is asked for)

SEEDS = ("seed", "random_seed", "random_state")
KEPT = -1e-9  # LESS_THAN is strict, our limits are not: a run exactly at its limit is told as this


class Gest(Adapter):
    """A generator of the gest-api standard.

    What it sees: a logarithmic parameter as its log10, a whole number as a continuous variable (rounded when it
    comes back), a choice of numbers as a discrete variable, a choice of words as the words' positions 0, 1, ...;
    each goal under its metric's name in plain units; each limit as `<metric>_excess` LESS_THAN 0 on a tamed scale.
    Failed runs are told as data, pending points as the median run.

    For each suggestion a new generator is made and ingests the whole history, so it must be one that learns from
    points it did not make: a Bayesian optimiser, not a simplex search in the middle of a step. One that draws
    random numbers must take `seed`, `random_seed` or `random_state`, or draw from the global generators.

    Args:
        space: Where it may suggest.
        objective: Goals and limits; the generator says which it takes.
        seed: Decides the points.
        generator: `package.module:Class`.
        options: Keywords for it, besides the VOCS.
        startup: Runs from which the generator takes over from a Sobol sequence.

    Raises:
        BadInput: gest-api or the generator is not there, or the generator refuses the space, objective or options.
    """

    name = "gest"
    modules: tuple[str, ...] = ("gest_api.vocs",)
    asks = 4

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        generator: str = "",
        options: Mapping[str, Any] | None = None,
        startup: int = 8,
    ) -> None:
        super().__init__(space, objective, seed=seed, startup=startup)
        needed("'gest'", "gest_api", "gest")
        self.generator = generator
        self.options = table("options", options, {"vocs": "it is made from the space and the objective"})
        self._class = _loaded(generator)
        self.modules = ("gest_api.vocs", self._class.__module__)
        self.goals, self.limits = _names(space, objective)
        self._load()
        with isolated(0):
            try:
                self._made(0)
            except (TypeError, ValueError, BadInput) as error:
                raise BadInput(
                    f"generator {generator!r} does not take this space, objective or options: {error}",
                    value=generator,
                ) from None

    def ask(
        self, data: Sequence[Told], waiting: Sequence[Params], n: int, seed: int
    ) -> Yields[Params, None, None]:
        """Points of a generator that has ingested everything; one at a time if it gives no batches."""
        generator = self._made(seed)
        try:
            generator.ingest([self._row(t) for t in (*data, *believed(data, waiting))])
            size = n
            while True:
                try:
                    rows = generator.suggest(size)
                except ValueError:  # what the standard says for a number it cannot produce
                    if size == 1:
                        return
                    size = 1
                    continue
                if not rows:
                    return
                points = [self._point(row) for row in rows]
                yield from points
                generator.ingest([self._row(t) for t in believed(data, [self._part(p) for p in points])])
                size = 1
        finally:
            finalize = getattr(generator, "finalize", None)
            if finalize is not None:
                finalize()

    def _made(self, seed: int) -> Any:
        from gest_api.vocs import VOCS

        vocs = VOCS(
            variables={p.name: _variable(p) for p in self.free.parameters},
            objectives={n: g.direction.upper() for n, g in zip(self.goals, self.objective.goals, strict=True)},
            constraints={name: ["LESS_THAN", 0.0] for name in self.limits},
        )
        seeds = {k: seed for k in SEEDS if k in _keywords(self._class) and k not in self.options}
        return self._class(vocs=vocs, **seeds, **self.options)

    def _row(self, one: Told) -> dict[str, Any]:
        row: dict[str, Any] = {p.name: _outward(p, one.params[p.name]) for p in self.free.parameters}
        row |= zip(self.goals, one.values, strict=True)
        return row | {k: e if e > 0 else min(e, KEPT) for k, e in zip(self.limits, one.excess, strict=True)}

    def _point(self, row: Mapping[str, Any]) -> Params:
        for name in self.free.names:
            if name not in row:
                raise BadInput(f"generator {self.generator!r} suggested a point without {name!r}.", value=name)
        return self.free.clipped({p.name: _inward(p, float(row[p.name])) for p in self.free.parameters})


def _loaded(path: str) -> Any:
    module, colon, attribute = str(path).partition(":")
    if not (module and colon and attribute):
        raise BadInput(f"policy 'gest' needs generator='package.module:Class'; got {path!r}.", value=path)
    refuse_path("generator", path)
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"generator {path!r} cannot be loaded: {error}.", value=path) from None
    if not (callable(found) and callable(getattr(found, "suggest", None)) and hasattr(found, "ingest")):
        raise BadInput(f"generator {path!r} is not a class with the methods suggest and ingest.", value=path)
    return found


def _keywords(cls: Any) -> Iterable[str]:
    fields = getattr(cls, "model_fields", {})  # pydantic models, as Xopt's are, hide their keywords
    try:
        return {*inspect.signature(cls).parameters, *fields}
    except ValueError:
        return set(fields)


def _names(space: Space, objective: Objective) -> tuple[list[str], list[str]]:
    """Names of the goals and the limits, all different and none a parameter's."""
    taken = set(space.names)

    def fresh(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    goals = [fresh(g.metric) for g in objective.goals]
    return goals, [fresh(f"{c.metric}_excess") for c in objective.constraints]


def _variable(p: Parameter) -> Any:
    from gest_api.vocs import ContinuousVariable, DiscreteVariable

    if p.kind == "choice":
        return DiscreteVariable(values={_outward(p, c) for c in p.choices})
    assert p.low is not None and p.high is not None
    return ContinuousVariable(domain=[_outward(p, p.low), _outward(p, p.high)])


def _numeric(choices: Iterable[Scalar]) -> bool:
    return all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in choices)


def _outward(p: Parameter, value: Scalar) -> float | int:
    """Words go as positions: a set of words has another order in each process."""
    if p.kind == "choice" and not _numeric(p.choices):
        return p.choices.index(value)
    assert not isinstance(value, str)
    return math.log10(value) if p.log else value


def _inward(p: Parameter, value: float) -> Scalar:
    if p.kind == "choice":
        return min(p.choices, key=lambda c: abs(_outward(p, c) - value))
    assert p.low is not None and p.high is not None
    number = min(max(10.0**value if p.log else value, p.low), p.high)
    return round(number) if p.kind == "int" else number


class _Problem:
    """A VOCS as a space and an objective, and its points in both spellings.

    Variables and discrete values may have any names there; here they are p0, p1, ... and the values' positions
    (numbers stay numbers).
    """

    def __init__(self, vocs: Any, log: Iterable[str]) -> None:
        from gest_api.vocs import ContextualVariable, ContinuousVariable, DiscreteVariable

        self.names: dict[str, str] = {name: f"p{i}" for i, name in enumerate(vocs.variables)}
        self.words: dict[str, list[Any]] = {}
        logarithmic = {log} if isinstance(log, str) else set(log)
        for name in logarithmic - set(vocs.variables):
            raise BadInput(f"log names {name!r}, which is not a variable; there are {', '.join(vocs.variables)}.")
        parameters: dict[str, Parameter] = {}
        for name, variable in vocs.variables.items():
            if isinstance(variable, ContextualVariable) or not isinstance(
                variable, (ContinuousVariable, DiscreteVariable)
            ):
                raise BadInput(
                    f"variable {name!r} is a {type(variable).__name__}; it can't be set, only observed."
                )
            if isinstance(variable, DiscreteVariable):
                # A set comes in another order in each process.
                values = sorted(
                    variable.values, key=lambda v: (isinstance(v, str), v if _numeric([v]) else repr(v))
                )
                if not _numeric(values):
                    self.words[name] = values
                    values = [f"v{i}" for i in range(len(values))]
                parameters[self.names[name]] = Choice(*values)
            else:
                low, high = variable.domain
                made = Int if "int" in str(variable.dtype) and low == int(low) and high == int(high) else Float
                parameters[self.names[name]] = made(low, high, log=name in logarithmic)
        self.space = Space.of(**parameters)
        self.objective = _objective(vocs)

    def outward(self, params: Params) -> dict[str, Any]:
        """A point as the VOCS spells it."""
        found = {name: params[mine] for name, mine in self.names.items()}
        for name, values in self.words.items():
            found[name] = values[int(str(found[name])[1:])]
        return found

    def inward(self, row: Mapping[str, Any]) -> Params:
        """A row's variables as we spell them; a point outside of the space stays as it is."""
        found: Params = {}
        for name, mine in self.names.items():
            if name not in row:
                raise BadInput(f"a result without the variable {name!r}: {dict(row)}.")
            value = row[name].item() if hasattr(row[name], "item") else row[name]
            if name in self.words:
                value = f"v{self.words[name].index(value)}" if value in self.words[name] else str(value)
            found[mine] = value
        return found


def _objective(vocs: Any) -> Objective:
    from gest_api.vocs import BoundsConstraint, GreaterThanConstraint, MaximizeObjective, MinimizeObjective

    if not vocs.objectives:
        raise BadInput("the VOCS has no objective; a policy needs at least one to MINIMIZE or MAXIMIZE.")
    goals = []
    for name, goal in vocs.objectives.items():
        if not isinstance(goal, (MaximizeObjective, MinimizeObjective)):
            raise BadInput(f"objective {name!r} is a {type(goal).__name__}; MINIMIZE or MAXIMIZE can be followed.")
        goals.append(
            Goal(metric=name, direction="maximize" if isinstance(goal, MaximizeObjective) else "minimize")
        )
    limits = []
    for name, limit in vocs.constraints.items():
        if isinstance(limit, BoundsConstraint):
            limits += [
                Constraint(metric=name, at_least=limit.range[0]),
                Constraint(metric=name, at_most=limit.range[1]),
            ]
        elif isinstance(limit, GreaterThanConstraint):
            limits.append(Constraint(metric=name, at_least=limit.value))
        else:
            limits.append(Constraint(metric=name, at_most=limit.value))
    return Objective(goals=tuple(goals), constraints=tuple(limits))


class _Steering:
    """A policy with the memory that a generator has and a policy has not: what came back, and what is out."""

    def __init__(self, problem: _Problem, policy: str, seed: int, options: Mapping[str, Any]) -> None:
        self.problem = problem
        self.policy = make_policy(policy, space=problem.space, objective=problem.objective, seed=seed, **options)
        self.history: list[Observation] = []
        self.pending: list[Params] = []
        self.batch = 0

    def suggest(self, n: int, *, exactly: bool) -> list[dict[str, Any]]:
        points = self.policy.suggest(tuple(self.history), n, tuple(self.pending))
        if exactly and len(points) < n:
            raise BadInput(
                f"{n} points are asked for, but only {len(points)} are left that were not given before."
            )
        self.pending += points
        return [self.problem.outward(p) for p in points]

    def ingest(self, results: Sequence[Mapping[str, Any]]) -> None:
        found = [self._observation(row, len(self.history) + i) for i, row in enumerate(results)]
        for one in found:
            if one.role == "suggested":
                self.pending.pop(self._waiting(one.params) or 0)
        self.history += found
        self.batch += 1

    def _observation(self, row: Mapping[str, Any], index: int) -> Observation:
        params = self.problem.inward(row)
        numbers = {name: _number(row.get(name)) for name in self.problem.objective.metrics}
        metrics = {name: v for name, v in numbers.items() if v is not None}
        completed = len(metrics) == len(numbers)
        place = self._waiting(params)
        return Observation(
            params=params if place is None else dict(self.pending[place]),
            completed=completed,
            metrics=metrics if completed else {},
            failure=None if completed else "NoResult",
            role="earlier" if place is None else "suggested",
            batch=self.batch,
            index=index,
        )

    def _waiting(self, params: Params) -> int | None:
        """Where the point stands among the pending ones; numbers may have been through a file of few digits."""
        for i, other in enumerate(self.pending):
            if all(_same(params[k], v) for k, v in other.items()):
                return i
        return None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _same(a: Scalar, b: Scalar) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-300)


def _generator_class() -> Any:
    needed("generator", "gest_api", "gest")
    from gest_api.generator import Generator as Base

    class Generator(Base):  # type: ignore[misc]  # gest-api has no annotations
        """Any policy of ours as a generator of the gest-api standard, for libEnsemble, optimas, Xopt and others.

        A result in which an objective or a constraint is missing or not finite is a run that failed there: it is
        kept, and steered away from. Results of points that this generator did not suggest are data as well.

        Args:
            vocs: Variables, objectives and constraints; no contextual variables, no objective to EXPLORE.
            policy: Name of the policy.
            seed: Decides the points.
            log: Names of the variables in which ratios matter rather than differences.
            batch_size: Points given when no number is asked for.
            options: The policy's options.

        Raises:
            BadInput: (a ValueError) The policy does not take these variables, objectives or options.
        """

        returns_id = False

        def __init__(
            self,
            vocs: Any,
            policy: str = "bayes",
            *,
            seed: int = 0,
            log: Iterable[str] = (),
            batch_size: int = 1,
            **options: Any,
        ) -> None:
            self._log = log
            super().__init__(vocs)
            self.vocs = vocs
            self.batch_size = whole("batch_size", batch_size)
            self._steering = _Steering(_Problem(vocs, log), policy, seed, options)

        def _validate_vocs(self, vocs: Any) -> None:
            _Problem(vocs, self._log)

        def suggest(self, num_points: int | None = None) -> list[dict[str, Any]]:
            """The next points, with the constants of the VOCS."""
            n = self.batch_size if num_points is None else num_points
            constants = {name: constant.value for name, constant in self.vocs.constants.items()}
            return [p | constants for p in self._steering.suggest(n, exactly=num_points is not None)]

        def ingest(self, results: list[dict[str, Any]]) -> None:
            """Take results: dicts with all variables, objectives and constraints."""
            self._steering.ingest(results)

    Generator.__module__ = __name__
    Generator.__qualname__ = "Generator"
    return Generator


def __getattr__(name: str) -> Any:
    """Make `Generator` when it is first asked for: its base class is gest-api's, which need not be installed."""
    if name != "Generator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        globals()[name] = _generator_class()
    except BadInput as error:
        raise ImportError(str(error)) from None
    return globals()[name]
