"""A campaign written down: one frozen record, one TOML file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import PrivateAttr, ValidationError, field_validator, model_validator

from hpcagent.apps.base import App
from hpcagent.campaign.alerts import Rule
from hpcagent.campaign.choices import Confirm, Fidelity, PolicyChoice, Reference
from hpcagent.campaign.ensemble_table import Ensemble, refuse_ensemble
from hpcagent.campaign.guard_table import Guard
from hpcagent.campaign.largest import largest_of, most_cores
from hpcagent.campaign.own_points import distinct, own_point
from hpcagent.campaign.repairing import repaired_app
from hpcagent.campaign.ruled import by_default, check_rules_of, narrowed, ruled
from hpcagent.campaign.sweep_space import SWEEP, in_vain, needless, spanned
from hpcagent.catalog import from_name
from hpcagent.errors import BadInput
from hpcagent.html import Card, Displayed
from hpcagent.model.base import Record, Scalar, canonical_json, explain
from hpcagent.model.constraints import Constraint
from hpcagent.model.contract import Resources
from hpcagent.model.extended import cannot
from hpcagent.model.files import without_paths
from hpcagent.model.objective import NO_OBJECTIVE, Objective
from hpcagent.model.records import checked_counter, params_text
from hpcagent.model.repairs import Repairs
from hpcagent.model.space import Parameter, Params, Space
from hpcagent.model.texts import as_name, checked_name
from hpcagent.moved import moved
from hpcagent.policies.base import is_contextual, takes_option
from hpcagent.policies.design import REPLICATES
from hpcagent.policies.stop import DesignDone, Stop, max_runs, read_stop

__all__ = ["Campaign"]

DEFAULT_RUNS = 32


class Searched:
    """The space of a campaign, made once: what it works out of itself (its middle, allowed points) takes long.

    Records that are equal stay so, and a copy has its own.
    """

    def __init__(self) -> None:
        self._made: tuple[tuple[object, ...], Space] | None = None

    def of(self, parts: tuple[object, ...], make: Callable[[], Space]) -> Space:
        """The space that is made of these very parts."""
        made = self._made
        if made is None or any(a is not b for a, b in zip(made[0], parts, strict=True)):
            made = self._made = parts, make()
        return made[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Searched)

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return Searched, ()


class Campaign(Displayed, Record):
    """An app, an objective and how to get there.

    Attributes:
        name: Also the default name of the run directory.
        description: One or two sentences.
        app: What runs.
        objective: What is to be made large or small, under which limits. A sweep needs none.
        constraints: Conditions that every run keeps beside those of the app, e.g. `["x + y <= 1"]`.
        space: Parameter name -> narrower range, a table or `ha.Float(low, high)` (`{}`: the whole one), and `when`
            for one that is left out of runs in which a condition is not kept; or a `Space`. Only these are varied;
            by default those that the app names (`vary`), or all without a default value, or if there are none all
            but those that decide how much of a machine a run takes.
        fixed: Values of parameters that are not varied (the rest take their defaults).
        policy: Who suggests.
        until: When to stop.
        mode: `batch` waits for a whole batch; `rolling` suggests anew whenever a run ends.
        batch_size: Runs in a batch (the reference included); by default four times the site's workers.
        in_flight: Runs submitted at the same time in rolling mode; by default the workers, and what
            ends during a suggestion.
        seed: Seeds everything random.
        reference: A point that is run in every batch, or None.
        confirm: The last batch that repeats the contenders, or None.
        repeat_distrusted: How often a run whose times cannot be believed is repeated.
        retries: How often a run is started again after an infrastructure failure.
        site: The default site; several in a list, or with commas between their names.
        settings: Settings of the app (see `App.with_settings`), e.g. the pseudopotentials of a DFT run.
        repairs: What is done about failures before a run counts as failed, e.g. `{"LostAtoms": "minimize"}`.
        fidelity: A parameter that makes runs cheaper or dearer, for policies that know how to use it.
        rules: Events that results are told of by, e.g. below a limit.
        ensemble: How large the MPI launches are that runs share, in the mode `ensemble` of an app, or None.
        guard: What ends a run early that has blown up, breaks a limit or cannot win, or None.
        show: Metrics shown in tables and reports beside those of the objective.
        cache: A folder in which the inner runs of chains lie, so that campaigns share them; None: each its own.
        earlier: Folders of campaigns with the same app whose results this one begins with.
        points: Points of one's own, which are run before the policy's; see `enqueue`.
        context: Circumstances that are no parameters, e.g. `{"atoms": 32000, "node_type": "cpu"}`: contextual
            policies learn from earlier campaigns of other circumstances.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> from hpcagent.model.objective import maximize
        >>> campaign = Campaign(synthetic, maximize("value"), space={"x": {}, "y": {}})
        >>> campaign.search.names
        ('x', 'y')
    """

    name: str = ""
    description: str = ""
    app: App
    objective: Objective = NO_OBJECTIVE
    space: dict[str, dict[str, Any]] | None = None
    constraints: tuple[Constraint, ...] = ()
    fixed: Params = {}
    policy: PolicyChoice = PolicyChoice()
    until: Stop = max_runs(DEFAULT_RUNS)
    mode: Literal["batch", "rolling"] = "batch"
    batch_size: int | None = None
    in_flight: int | None = None
    seed: int = 0
    reference: Reference | None = None
    confirm: Confirm | None = None
    repeat_distrusted: int = 1
    retries: int = 2
    site: str = "laptop"
    settings: dict[str, Any] = {}
    repairs: Repairs | None = None
    fidelity: Fidelity | None = None
    rules: tuple[Rule, ...] = ()
    guard: Guard | None = None
    ensemble: Ensemble | None = None
    show: tuple[str, ...] = ()
    cache: str | None = None
    earlier: tuple[str, ...] = ()
    points: tuple[Params, ...] = ()
    context: Params = {}
    _searched: Searched = PrivateAttr(default_factory=Searched)
    _unread: tuple[str, ...] = PrivateAttr(default=())  # what `load_run` has left out, for the reader

    def __init__(self, app: App | None = None, objective: Objective | None = None, /, **data: Any) -> None:
        if app is not None:
            data["app"] = app
        if objective is not None:
            data["objective"] = objective
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise explain(Campaign, error) from None

    @model_validator(mode="before")
    @classmethod
    def _sweep_table(cls, data: Any) -> Any:
        """Accept `[sweep]`, the options of the policy that runs a design."""
        if not isinstance(data, Mapping) or "sweep" not in data:
            return data
        data = dict(data)
        options = data.pop("sweep")
        if not isinstance(options, Mapping) or "name" in options:
            raise BadInput(f"sweep is a table such as {{design = 'grid', replicates = 3}}; got {options!r}.")
        if "policy" in data:
            raise BadInput("[sweep] and [policy] exclude each other: a sweep runs its design; drop one.")
        return data | {"policy": {"name": SWEEP, "options": dict(options)}}

    @field_validator("site", mode="before")
    @classmethod
    def _several_sites(cls, site: Any) -> Any:
        """A list of sites is kept as their names with commas between them."""
        several = isinstance(site, (list, tuple)) and site and all(isinstance(one, str) for one in site)
        return ",".join(site) if several else site

    @field_validator("space", mode="before")
    @classmethod
    def _of_parameters(cls, space: Any) -> Any:
        """A `Space`, or parameters in place of tables, are ranges within those of the app's contract."""
        if isinstance(space, Space):
            if space.constraints:
                raise BadInput("space: give the constraints of a Space as constraints=[...] of the campaign.")
            space = {parameter.name: parameter for parameter in space.parameters}
        if not isinstance(space, Mapping):
            return space
        return {name: _table(name, one) if isinstance(one, Parameter) else one for name, one in space.items()}

    @field_validator("until", mode="before")
    @classmethod
    def _read_until(cls, data: Any) -> Any:
        return read_stop(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _check(self) -> Campaign:
        self._check_counts()
        self._take_settings()
        self._check_inputs()
        self._check_extend()
        self.objective.check(self.app.contract)
        self._check_metrics(self.until.metrics())
        self._check_space()
        if self.repairs is not None:
            self._settle(app=repaired_app(self.app, self.repairs, self.search.names))
        self._check_watched()
        self._check_metrics(self.show)
        self._check_fidelity()
        self._check_varied()
        check_rules_of(self)
        self._check_compared()
        self._check_context()
        if self.points:
            checked = [own_point(self, p, where=f"points[{i}]") for i, p in enumerate(self.points)]
            self._settle(points=distinct(checked))
        if self.earlier:
            # By their whole paths: a campaign is resumed from anywhere.
            self._settle(earlier=tuple(str(Path(folder).expanduser().absolute()) for folder in self.earlier))
        if self.name:
            checked_name(self.name, "the campaign's name")
        self._check_sweep()
        self._settle(name=self.name or as_name(self.app.name))
        return self

    def _settle(self, **fields: Any) -> None:
        """Complete what was given, while the record is made: afterwards it is frozen."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _check_counts(self) -> None:
        for key, least in (("batch_size", 1), ("in_flight", 1), ("retries", 0), ("repeat_distrusted", 0)):
            value = getattr(self, key)
            if value is not None and value < least:
                raise BadInput(f"{key}={value} must be at least {least}.", value=value)
        checked_counter("seed", self.seed)
        if self.batch_size == 1 and self.reference is not None:
            raise BadInput("batch_size=1 leaves no run beside the reference; take at least 2.", value=1)

    def _take_settings(self) -> None:
        """The app with the campaign's own settings."""
        if not self.settings:
            return
        changed = self.app.with_settings(**self.settings)
        # By their whole paths: a campaign is resumed from anywhere.
        paths = {n: p for n, p in changed.settings.get("paths", {}).items() if n in self.settings and p}
        self._settle(app=changed, settings=self.settings | paths)

    def _check_metrics(self, names: Iterable[str]) -> None:
        for name in names:
            self.app.contract.metric(name)

    def _check_space(self) -> None:
        """What is varied and what is fixed are parameters of the app, each one or the other."""
        whole = self.app.contract.space
        for name in (*(self.space or {}), *self.fixed):
            whole[name]
        for name, value in self.fixed.items():
            whole[name].validated(value)
            if self.space and name in self.space:
                raise BadInput(f"parameter {name!r} is both in space and fixed; drop one.", value=name)
        for p in self.search.parameters:
            if p.kind == "text":
                raise BadInput(
                    f"parameter {p.name!r} is a text, which cannot be varied; give it in fixed, or say which "
                    f'texts: space.{p.name} = {{choices = ["...", "..."]}}.',
                    value=p.name,
                )

    def _check_watched(self) -> None:
        """What is done beside the runs suits the app: rules, the guard, launches that are shared."""
        for rule in self.rules:
            rule.check(self.app.contract)
        if self.guard is not None:
            self.guard.check(self.app, self.objective)
        if self.ensemble is not None:
            self.ensemble.check(self.app)
        elif self.app.shares_launches:
            refuse_ensemble(self.app)

    def _check_fidelity(self) -> None:
        if self.fidelity is None:
            return
        name = self.fidelity.parameter
        if name not in self.search:
            raise BadInput(f"fidelity: {name!r} is not varied; name it in space.", value=name)
        for level in self.fidelity.levels:
            self.search[name].validated(level)

    def _check_varied(self) -> None:
        if len(self.search.free) == 0 and self.policy.name != SWEEP:
            raise BadInput(
                f"the space is empty: nothing varies. Name parameters of app {self.app.name!r} in space; "
                f"known: {', '.join(self.app.contract.space.names) or 'none'}."
            )

    def _check_compared(self) -> None:
        """The points that others are compared with can be run."""
        self.complete(self.search.middle)
        if self.reference is not None:
            self.complete(self.reference.params)
            self._check_metrics([self.reference.metric] if self.reference.metric is not None else ())
        for name, value in (self.confirm.baseline if self.confirm is not None else {}).items():
            self.app.contract.space[name].validated(value)

    def _check_extend(self) -> None:
        """A policy that is to let runs go on needs an app that can."""
        if self.policy.options.get("extend") is not True or not takes_option(self.policy.name, "extend"):
            return
        words = cannot(self.app.settings, self.app.name, self.search.names)
        if words:
            raise BadInput(f"policy.extend = true: {words}", value=self.app.name)

    def _check_inputs(self) -> None:
        """A campaign's points are parameters: what takes a structure or a run finds none."""
        takes = self.app.contract.inputs
        if not takes:
            return
        named = from_name(self.app.name)
        instead = f"take {named}, which builds it from a name; or " if named else ""
        raise BadInput(
            f"the app {self.app.name!r} takes {', '.join(takes)} as input, and a campaign or sweep gives its runs "
            f"parameters only: {instead}write a chain that builds or reads the input and calls "
            f"{self.app.name}(...) with it (ten lines: docs, how-to 'Chains'), and vary the chain's parameters.",
            value=self.app.name,
        )

    def _check_sweep(self) -> None:
        if self.policy.name == SWEEP and "until" not in self.model_fields_set:
            self._settle(until=DesignDone())
        if self.objective.goals:
            return
        if self.policy.name != SWEEP:
            raise BadInput(
                "the objective is missing: name a metric to maximize or minimize. Without one there can only be a "
                "sweep, of all points of a design: ha.Sweep(app, space), the table [sweep], `hpcagent sweep`."
            )
        given = {"reference": self.reference, "confirm": self.confirm, "fidelity": self.fidelity}
        extra = [name for name, value in (given | {"earlier": self.earlier}).items() if value]
        extra += [f"until.{kind}" for kind in needless(self.until)]
        if extra:
            raise BadInput(
                f"a sweep has no objective, and {' and '.join(extra)} need(s) one; drop it, or name an objective.",
                value=extra[0],
            )

    def enqueue(self, *points: Mapping[str, Scalar]) -> Campaign:
        """This campaign with points of one's own, which are run before what the policy suggests.

        They count in the budget, and each is run once: also when it was run before the campaign is resumed.

        Args:
            points: Points of the varied parameters.

        Raises:
            BadInput: A point is not allowed.

        Example:
            >>> from hpcagent.apps.landscape import synthetic
            >>> from hpcagent.model.objective import maximize
            >>> campaign = Campaign(synthetic, maximize("value"), space={"x": {}, "y": {}})
            >>> campaign.enqueue({"x": 0.5, "y": 0.25}).points
            ({'x': 0.5, 'y': 0.25},)
        """
        checked = [own_point(self, p, where=f"enqueue, point {i}") for i, p in enumerate(points)]
        return self.model_copy(update={"points": distinct([*self.points, *checked])})

    def _check_context(self) -> None:
        for name, value in self.context.items():
            if not name.isidentifier() or (isinstance(value, float) and not math.isfinite(value)):
                raise BadInput(
                    f"context: {name} = {value!r}; a feature has a plain name, and a finite number or a word.",
                    value=value,
                )
        if "context" in self.policy.options:
            raise BadInput(
                "policy.context: circumstances belong to the campaign; move them to the table [context].",
                value="context",
            )
        if "noise" in self.policy.options:
            raise BadInput(
                "policy.noise: what is known of a metric's noise belongs to the app, where answers are worked out "
                "by it too; state it in the contract: Metric(..., noise=0.05).",
                value="noise",
            )

    def _card(self) -> Card:
        varied = ", ".join(f"{p.name} in {p.range}" for p in self.search.parameters)
        facts = [
            ("about", self.description),
            ("question", self.question),
            ("app", f"{self.app.name} {self.app.contract.version}"),
            ("fixed", params_text(self.fixed)),
            ("policy", self.policy.name),
            ("stops", _stop_text(self.until)),
            ("repairs", "" if self.repairs is None else canonical_json(self.repairs.toml())),
            ("mode", f"{self.mode}, {self.batch_size} runs" if self.batch_size else self.mode),
            ("reference", "" if self.reference is None else params_text(self.reference.params)),
            ("begins with", ", ".join(self.earlier)),
            ("site", self.site),
        ]
        brief = f"{self.question}; {varied}; policy {self.policy.name}"
        return Card("Campaign", self.name, facts, self.search._rows(), brief=brief)

    @property
    def question(self) -> str:
        """The objective in words, with the units of its limits."""
        return self.objective.text({m.name: m.unit for m in self.app.contract.metrics})

    @property
    def shown(self) -> tuple[str, ...]:
        """The metrics that tables show: the objective's, and those of `show`; of a sweep all sure ones.

        Of a sweep of a LAMMPS script whose contract names none: the averages of its thermo output, no speeds.
        """
        chosen = tuple(dict.fromkeys((*self.objective.metrics, *self.show)))
        if chosen:
            return chosen
        from hpcagent.science.lammps.contract import averages  # what sweeps show

        contract = self.app.contract.metrics
        return (
            averages(contract) or tuple(m.name for m in contract if m.required) or tuple(m.name for m in contract)
        )

    @property
    def judged(self) -> tuple[str, ...]:
        """The metrics that it is about: the objective's, or those that a sweep shows."""
        return self.objective.metrics or self.shown

    @property
    def sweep(self) -> bool:
        """Whether it runs all points of a design and looks for nothing."""
        return not self.objective.goals

    def run_seed(self, replicate: int) -> int:
        """The seed of a run: each replicate of a design has its own, for functions that use nothing else."""
        return self.seed + replicate if self.policy.name == SWEEP else self.seed

    @property
    def single(self) -> str:
        """Why a design's points are run only once, although replicates are asked for; empty where they are not."""
        if self.policy.name != SWEEP or self.policy.options.get("replicates", REPLICATES) == 1:
            return ""
        return in_vain(self.app, self.judged, exact=self.exact)

    @property
    def policy_options(self) -> dict[str, Any]:
        """The policy's options, with the fidelity where there is one, and the context for those that use it."""
        given: dict[str, Any] = {} if self.fidelity is None else {"fidelity": self.fidelity.model_dump()}
        if self.context and is_contextual(self.policy.name):
            given["context"] = self.context
        if self.noise and takes_option(self.policy.name, "noise", by_name=True):
            given["noise"] = self.noise
        if self.single:
            given["replicates"] = 1
        return self.policy.options | given

    def full(self, params: Mapping[str, Scalar]) -> bool:
        """Whether a run with these parameters may be the answer: not one at a cheaper level of a fidelity."""
        return self.fidelity is None or params.get(self.fidelity.parameter) == self.fidelity.levels[-1]

    @property
    def last_level(self) -> Params:
        """The fidelity at the level that counts, as parameters; empty without one."""
        return {} if self.fidelity is None else {self.fidelity.parameter: self.fidelity.levels[-1]}

    @property
    def exact(self) -> bool:
        """Whether the objective's metrics are known to be without noise."""
        return all(self.noise.get(m) == 0.0 for m in self.judged)

    @property
    def timed(self) -> bool:
        """Whether it asks for a metric that a busy machine changes: a speed, or a time that was measured.

        Only then a run that did not have its core tells less. Of an app that does not say which of its metrics are
        speeds nobody knows, so there it is True.
        """
        contract = self.app.contract
        if not contract.speeds:
            return True
        asked = (*self.judged, *self.shown, *self.until.metrics(), *(rule.metric for rule in self.rules))
        return not contract.timed.isdisjoint(asked)

    @property
    def noise(self) -> dict[str, float]:
        """Relative standard deviation of one run that is known beforehand, by metric.

        What the app's contract states; 0 where no seed decides a metric, unless it is a measured speed.
        """
        contract = self.app.contract
        # That its copies agree is not that it knows no error: a mean over a trajectory has one.
        free = contract.seeded or not contract.deterministic
        exact = [] if free else [m.name for m in contract.metrics if m.name not in contract.speeds]
        return dict.fromkeys(exact, 0.0) | {m.name: m.noise for m in contract.metrics if m.noise is not None}

    @property
    def confirming(self) -> Confirm | None:
        """The confirmation: a campaign that begins with earlier runs repeats at least its best point, once.

        So its answer rests on a run of its own.
        """
        return Confirm(top=1, replicates=1) if self.confirm is None and self.earlier else self.confirm

    @property
    def smoothed(self) -> Space | None:
        """The space through which neighbouring points help each other; None where each is exact by itself."""
        return None if self.exact else self.search

    @property
    def search(self) -> Space:
        """The space the policy suggests in."""
        return self._searched.of((self.app, self.space, self.constraints, self.policy, self.fixed), self._search)

    def _search(self) -> Space:
        whole = self.whole
        ranges = self.space
        if self.policy.name == SWEEP:
            ranges = spanned(whole, self.policy.options, ranges)
        names = by_default(self.app, self.fixed) if ranges is None else list(ranges)
        return narrowed(whole, names, ranges or {}, self.fixed)

    @property
    def whole(self) -> Space:
        """The app's space, with the campaign's own constraints and conditions."""
        return ruled(self.app.contract.space, self.space, self.constraints)

    def complete(self, params: Mapping[str, Scalar]) -> Params:
        """All of the app's parameters: those given, the fixed ones, and defaults for the rest.

        Those that are not active there are left out.

        Raises:
            BadInput: A value is not allowed, or a constraint is not kept.
        """
        return self.whole.validated({**self.fixed, **params}, where=f"app {self.app.name}")

    def allows(self, params: Mapping[str, Scalar]) -> bool:
        """Whether a run with these parameters, the rest as `complete` has it, keeps every constraint."""
        try:
            self.complete(params)
        except BadInput:
            return False
        return True

    @property
    def largest(self) -> Resources:
        """What the largest of its runs occupies, where parameters decide that."""
        contract, search = self.app.contract, self.search
        if not contract.resources_from:
            return contract.resources
        middle = search.middle
        points: list[Params] = [{}]
        points += [] if self.reference is None else [self.reference.params]
        points += [] if self.confirm is None else [self.confirm.baseline]
        sizes = [contract.resources_for(self.complete({**middle, **point})).model_dump() for point in points]
        # One that is not varied is as it is fixed, not as large as the app could take it.
        reachable = contract.largest_resources(search).model_dump()
        varied = {r: reachable[r] for r, name in contract.resources_from.items() if name in search}
        fixed = {name: sizes[0][r] for r, name in contract.resources_from.items() if name not in search}
        tied = most_cores(contract.resources_from, search, self.whole.constraints, fixed) or {}
        sizes.append({**sizes[0], **varied, **tied})
        return contract.resources.model_copy(update=largest_of(sizes, list(contract.resources_from)))

    def toml(self, *, app: str | None = None) -> str:
        """The campaign as TOML; `load_campaign` reads it back.

        Args:
            app: What to write as the app's reference; what the user named by default.
        """
        policy = self.policy
        data: dict[str, Any] = {
            "name": self.name,
            "description": self.description or None,
            "app": app or self.app.source or self.app.name,
            "seed": self.seed,
            "mode": self.mode,
            "batch_size": self.batch_size,
            "in_flight": self.in_flight,
            "cache": self.cache,
            "show": list(self.show) or None,
            "earlier": list(self.earlier) or None,
            "repeat_distrusted": self.repeat_distrusted,
            "retries": self.retries,
            "site": self.site,
            "objective": self.objective.toml() if self.objective.goals else None,
            "space": self.space,
            "constraints": [c.text for c in self.constraints] or None,
            "fixed": self.fixed or None,
            **({"sweep": dict(policy.options)} if policy.name == SWEEP else {"policy": policy.toml()}),
            "until": self.until.toml() or None,
            "reference": self.reference and self.reference.toml(),
            "confirm": self.confirm and self.confirm.model_dump(),
            "settings": self.settings or None,
            "repairs": self.repairs and self.repairs.toml(),
            "fidelity": self.fidelity and self.fidelity.model_dump(),
            "points": [dict(p) for p in self.points] or None,
            "context": self.context or None,
            "guard": self.guard and self.guard.toml(),
            "ensemble": self.ensemble and self.ensemble.toml(),
            "rules": [rule.model_dump(exclude_none=True) for rule in self.rules] or None,
        }
        return tomli_w.dumps({key: value for key, value in data.items() if value is not None})

    def identity(self) -> dict[str, str]:
        """Digest of each part that may not change between a run and its resumption."""
        parts: dict[str, Any] = {
            "app": [self.app.name, self.app.contract.version, self.app.digest],
            "objective": self.objective.toml(),
            "space": without_paths(self.search.model_dump(mode="json")),
            "fixed": self.fixed,
            "policy": self.policy.toml(),
            "mode": self.mode,
            "seed": self.seed,
            "fidelity": None if self.fidelity is None else self.fidelity.model_dump(),
            "reference": None if self.reference is None else self.reference.toml(),
            "earlier": list(self.earlier),
            "context": self.context,
        }
        return {
            key: hashlib.sha256(canonical_json(_no_nan(value)).encode()).hexdigest()[:16]
            for key, value in parts.items()
        }


def _table(name: str, parameter: Parameter) -> dict[str, Any]:
    """A parameter as the table of a range; what the contract alone says is refused."""
    if parameter.unit != "1" or parameter.description:
        raise BadInput(f"space.{name}: leave out unit and description; the app's contract has them.")
    told = parameter.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    keys = ("low", "high", "log", "choices", "default", "when")
    return {key: told[key] for key in keys if key in told}


def _no_nan(value: Any) -> Any:
    """NaN and infinities as text: canonical JSON has no way to write them."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {k: _no_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_no_nan(v) for v in value]
    return value


def _stop_text(stop: Stop) -> str:
    conditions: tuple[Stop, ...] = getattr(stop, "conditions", ())
    kind = str(getattr(stop, "kind", type(stop).__name__))
    if conditions:
        return f" {'and' if kind == 'all_of' else 'or'} ".join(map(_stop_text, conditions))
    own = ", ".join(f"{name} = {value}" for name, value in stop if name != "kind" and value is not None)
    return f"{kind.replace('_', ' ')}: {own}" if own else kind.replace("_", " ")


def about(campaign: Campaign) -> dict[str, str]:
    """What a DataFrame, or a Dataset, of a campaign's results says of it."""
    return {"campaign": campaign.name, "app": f"{campaign.app.name} {campaign.app.contract.version}"}


__getattr__ = moved(
    __name__,
    {
        "load_campaign": "hpcagent.campaign.loading",
        "load_run": "hpcagent.campaign.loading",
        "list_configs": "hpcagent.campaign.loading",
    },
)
