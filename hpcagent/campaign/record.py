"""A campaign written down: one frozen record, one TOML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import PrivateAttr, ValidationError, field_validator, model_validator

from hpcagent.apps.base import App
from hpcagent.campaign.alerts import Rule
from hpcagent.campaign.checked import check_campaign
from hpcagent.campaign.choices import Confirm, Fidelity, PolicyChoice, Reference
from hpcagent.campaign.ensemble_table import Ensemble
from hpcagent.campaign.guard_table import Guard
from hpcagent.campaign.largest import largest_of, most_cores
from hpcagent.campaign.own_points import distinct, own_point
from hpcagent.campaign.ruled import by_default, narrowed, ruled
from hpcagent.campaign.sweep_space import SWEEP, in_vain, spanned
from hpcagent.campaign.written import identity, stop_text, table, toml
from hpcagent.errors import BadInput
from hpcagent.html import Card, Displayed
from hpcagent.model.base import Record, Scalar, canonical_json, explain
from hpcagent.model.constraints import Constraint
from hpcagent.model.contract import Resources
from hpcagent.model.objective import NO_OBJECTIVE, Objective
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.records import params_text
from hpcagent.model.repairs import Repairs
from hpcagent.model.space import Space
from hpcagent.moved import moved
from hpcagent.policies.base import is_contextual, takes_option
from hpcagent.policies.design import REPLICATES
from hpcagent.policies.stop import Stop
from hpcagent.policies.stop_combined import read_stop
from hpcagent.policies.stop_spent import max_runs

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
        return {name: table(name, one) if isinstance(one, Parameter) else one for name, one in space.items()}

    @field_validator("until", mode="before")
    @classmethod
    def _read_until(cls, data: Any) -> Any:
        return read_stop(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _check(self) -> Campaign:
        check_campaign(self)
        return self

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

    def _card(self) -> Card:
        varied = ", ".join(f"{p.name} in {p.range}" for p in self.search.parameters)
        facts = [
            ("about", self.description),
            ("question", self.question),
            ("app", f"{self.app.name} {self.app.contract.version}"),
            ("fixed", params_text(self.fixed)),
            ("policy", self.policy.name),
            ("stops", stop_text(self.until)),
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
        from hpcagent.science.lammps.promised import averages

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
        return toml(self, app=app)

    def identity(self) -> dict[str, str]:
        """Digest of each part that may not change between a run and its resumption."""
        return identity(self)


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
