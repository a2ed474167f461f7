"""The samplers of Optuna (Akiba et al., KDD 2019, doi 10.1145/3292500.3330701), versions 4.5 to 5.

Each suggestion makes a study in memory, tells it the finished runs with their limits, adds the pending points as
running trials, and asks.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from hpcagent.errors import BadInput, nearest
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.space import Space
from hpcagent.policies.adapters.common import Adapter, isolated, needed, table
from hpcagent.policies.adapters.imputation import Told, penalised
from hpcagent.policies.base import one_goal

__all__ = ["SAMPLERS", "Optuna"]

# Sampler -> (package it needs besides Optuna, extra that brings it).
SAMPLERS: Mapping[str, tuple[str, str] | None] = {
    "TPESampler": None,
    "GPSampler": ("torch", "optuna-gp"),
    "CmaEsSampler": ("cmaes", "optuna"),
    "NSGAIISampler": None,
    "NSGAIIISampler": None,
}
# These note in each trial how they made it, so the trials must pass through their hands again one after another.
REPLAYED = ("CmaEsSampler", "NSGAIISampler", "NSGAIIISampler")
RESERVED = {
    "seed": "it is the campaign's",
    "n_startup_trials": "write startup",
    "constraints_func": "limits are told by the adapter",
}


class Optuna(Adapter):
    """A sampler of Optuna.

    Several goals are taken by all samplers but CmaEsSampler, which knows no limits either: runs that break one are
    told to it as worse than any that keep them.

    Args:
        space: Where it may suggest.
        objective: Goals and limits.
        seed: Decides the points.
        sampler: `TPESampler`, `GPSampler` (needs PyTorch), `CmaEsSampler`, `NSGAIISampler` or `NSGAIIISampler`.
        startup: Runs from which the sampler takes over from a Sobol sequence.
        sampler_options: Keywords of the sampler, see Optuna's documentation, e.g. `{"multivariate": False}`.

    Raises:
        BadInput: Optuna is not installed, an unknown sampler or option, or goals the sampler cannot follow.
    """

    name = "optuna"
    modules: tuple[str, ...] = ("optuna",)
    loggers = ("optuna",)

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        sampler: str = "TPESampler",
        startup: int = 8,
        sampler_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(space, objective, seed=seed, startup=startup)
        if sampler not in SAMPLERS:
            raise BadInput(f"unknown sampler {sampler!r}; {nearest(str(sampler), SAMPLERS)}", value=sampler)
        needed("'optuna'", "optuna", "optuna")
        other = SAMPLERS[sampler]
        if other is not None:
            needed(f"'optuna' with sampler {sampler!r}", *other)
        if sampler == "CmaEsSampler":
            one_goal("optuna' with sampler 'CmaEsSampler", objective)
        self.sampler = sampler
        if sampler == "TPESampler":
            self.asks = 8
        if sampler == "GPSampler":
            self.asks, self.most_runs = 2, 300  # each takes a fit, which costs the cube of the runs
            self.modules = ("optuna", "torch")
        self.options = table("sampler_options", sampler_options, RESERVED)
        self._check()

    def ask(
        self, data: Sequence[Told], waiting: Sequence[Params], n: int, seed: int
    ) -> Generator[Params, None, None]:
        """Points from a study that is told everything again."""
        import optuna

        # A sampler that is replayed must draw each time what it drew before.
        again = self.sampler in REPLAYED
        replay = _replaying(self._made(self.seed)) if again else None
        study = optuna.create_study(
            study_name="hpcagent",
            storage=optuna.storages.InMemoryStorage(),
            sampler=replay or self._made(seed),
            pruner=optuna.pruners.NopPruner(),
            directions=[g.direction for g in self.objective.goals],
        )
        distributions = {p.name: _distribution(p) for p in self.free.parameters}
        if self.sampler == "CmaEsSampler" and self.objective.constraints:
            data = penalised(self.objective, data)
        for one in data:
            if replay is not None:
                replay.past = one.params
                self._replay(study, distributions, one)
                replay.past = None
            else:
                study.add_trial(self._finished(distributions, one))
        running = optuna.trial.TrialState.RUNNING
        for point in waiting:
            study.add_trial(
                optuna.trial.create_trial(state=running, params=dict(point), distributions=distributions)
            )
        while True:
            yield dict(study.ask(distributions).params)

    def _finished(self, distributions: Mapping[str, Any], one: Told) -> Any:
        import optuna

        limits: dict[str, Any] = {}
        if one.excess and _newer():
            limits = {"constraints": {str(k): e for k, e in enumerate(one.excess)}}
        elif one.excess:
            limits = {"system_attrs": {"constraints": one.excess}, "user_attrs": {"excess": one.excess}}
        return optuna.trial.create_trial(
            params=dict(one.params), distributions=dict(distributions), values=list(one.values), **limits
        )

    def _replay(self, study: Any, distributions: Mapping[str, Any], one: Told) -> None:
        trial = study.ask(dict(distributions))
        if self.sampler != "CmaEsSampler":
            for k, e in enumerate(one.excess):
                if _newer():
                    trial.set_constraint(str(k), e)
            trial.set_user_attr("excess", one.excess)
        study.tell(trial, list(one.values))

    def _made(self, seed: int) -> Any:
        import optuna

        options: dict[str, Any] = {"seed": seed}
        if self.sampler in ("TPESampler", "GPSampler", "CmaEsSampler"):
            options["n_startup_trials"] = 1
        if self.sampler == "TPESampler":
            # The defaults of version 5, also for version 4.
            options |= {"constant_liar": True, "multivariate": len(self.objective.goals) == 1}
        if self.sampler in ("NSGAIISampler", "NSGAIIISampler"):
            options["population_size"] = max(self.startup, 8)  # its default of 50 is more than most campaigns run
        if self.sampler != "CmaEsSampler" and self.objective.constraints and not _newer():
            options["constraints_func"] = _excess_of
        return getattr(optuna.samplers, self.sampler)(**(options | self.options))

    def _check(self) -> None:
        """Say now, not in the middle of a campaign, that an option is wrong."""
        if not self.options:
            return
        import optuna

        known = [
            p for p in inspect.signature(getattr(optuna.samplers, self.sampler)).parameters if p not in RESERVED
        ]
        for option in self.options:
            if option not in known:
                raise BadInput(
                    f"{self.sampler} of optuna {optuna.__version__} has no option {option!r}; "
                    f"{nearest(option, known)}",
                    value=option,
                )
        try:
            self._load()
            with isolated(0, self.loggers):
                self._made(0)
        except (TypeError, ValueError) as error:
            raise BadInput(
                f"sampler_options of {self.sampler} are not accepted: {error}", value=self.options
            ) from None


def _replaying(sampler: Any) -> Any:
    """A sampler that goes through the motions of another, but gives the point of the `past` where there is one."""
    import optuna

    class Replaying(optuna.samplers.BaseSampler):  # type: ignore[misc,unused-ignore]
        past: Params | None = None

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return sampler.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            drawn = sampler.sample_relative(study, trial, search_space)
            return drawn if self.past is None else {name: self.past[name] for name in search_space}

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            drawn = sampler.sample_independent(study, trial, param_name, param_distribution)
            return drawn if self.past is None else self.past[param_name]

        def before_trial(self, study: Any, trial: Any) -> None:
            sampler.before_trial(study, trial)

        def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
            sampler.after_trial(study, trial, state, values)

    return Replaying()


def _distribution(p: Parameter) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if p.kind == "choice":
        return CategoricalDistribution(p.choices)
    assert p.low is not None and p.high is not None
    if p.kind == "int":
        return IntDistribution(int(p.low), int(p.high), log=p.log)
    return FloatDistribution(p.low, p.high, log=p.log)


def _newer() -> bool:
    """Whether limits are told to the trial (from version 5) and not by a function of it."""
    import optuna

    return hasattr(optuna.trial.Trial, "set_constraint")


def _excess_of(trial: Any) -> tuple[float, ...]:
    return tuple(trial.user_attrs["excess"])
