"""Begin with what earlier campaigns have found: their runs, checked and copied into the new journal.

A folder counts only where its runs are runs of the same thing: the same app, version and input digest, the same
units, the same values of what is not varied. Its runs are then data of role `earlier` before the own history.
They cost nothing here, count against no budget and stop nothing; a point that only they know is run once more
before it is the answer (`Campaign.confirming`).

What a machine's speed was then is not what it is now. Where both campaigns have the same reference point, earlier
speeds are multiplied with the ratio of the two references (see `compare`). Otherwise a speed (a metric that states
`undisturbed` or `noise`) gets a larger standard error: DISTURBED_NOISE of its value on a host that has had a run
of this campaign too, OTHER_HOST of it elsewhere. Policies then take them as hints; an answer does not rest on them
(see `earlier_evidence`).
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcagent.campaign.compare import DISTURBED_NOISE, Comparison, compare, observations
from hpcagent.campaign.earlier import EarlierRun, Source, WarmStart
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import replayed
from hpcagent.errors import BadInput
from hpcagent.model.contract import Contract
from hpcagent.model.extended import counting
from hpcagent.model.files import contents
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation, Result
from hpcagent.policies.base import is_contextual
from hpcagent.statistics.points import inside, key
from hpcagent.store.rundir import RunDir

__all__ = [
    "comparable",
    "earlier_evidence",
    "earlier_observations",
    "read_earlier",
]

# Machines in use side by side differ by up to a factor of two; the logarithm of such a speed is then uniform over
# ln 2 and has a standard deviation of ln 2 / sqrt(12) = 0.20, that of the ratio of two of them is 0.28.
OTHER_HOST = 0.28


def read_earlier(campaign: Campaign, *, run_dir: Path | None = None) -> WarmStart | None:
    """Read the folders of `campaign.earlier`, which are not touched, and check that their runs may be used.

    Args:
        campaign: The new campaign.
        run_dir: Its own folder, which cannot be among them.

    Returns:
        What is to be written into its journal, or None where it names no folder.

    Raises:
        BadInput: A folder is not that of a campaign, or its runs are of something else; says what differs.
    """
    if not campaign.earlier:
        return None
    seen: dict[Path, str] = {}
    for folder in campaign.earlier:
        real = Path(folder).resolve()
        if real in seen:
            raise BadInput(f"earlier: {folder} is named twice (as {seen[real]}); drop one.", value=folder)
        if run_dir is not None and real == run_dir.resolve():
            raise BadInput(
                f"earlier: {folder} is this campaign's own folder. Go on with it by `hpcagent resume {folder}`, "
                "or choose another --run-dir.",
                value=folder,
            )
        seen[real] = folder
    found = tuple(_read(campaign, folder) for folder in campaign.earlier)
    return WarmStart(host=platform.node(), earlier=found)


def earlier_observations(
    campaign: Campaign, warm: WarmStart | None, results: Sequence[Result]
) -> list[Observation]:
    """The earlier runs as a policy sees them, before the own history: points of the search space.

    Args:
        campaign: The new campaign.
        warm: What its journal has (`State.warm`).
        results: Its own results known at the time, by whose reference runs and hosts speeds are compared.

    Returns:
        Observations of role `earlier`, batch -1, index -n ... -1, in the recorded order.
    """
    if warm is None:
        return []
    names, links = campaign.search.names, _links(campaign, warm, results)
    if warm._known is None or warm._known[0] != (names, links):
        seen = (o for o, *_ in _compared(warm, links))
        warm._known = (
            (names, links),
            [replace(o, params={n: o.params[n] for n in names if n in o.params}) for o in seen],
        )
    return list(warm._known[1])


def earlier_evidence(campaign: Campaign, warm: WarmStart | None, results: Sequence[Result]) -> list[Observation]:
    """The earlier runs that an answer may rest on, with all parameters.

    Those of the same circumstances. Where a speed is asked for that no reference makes comparable: only those of
    this campaign's hosts, at points that it has not measured itself.
    """
    if warm is None:
        return []
    measured = {key(r.manifest.params) for r in results if r.ok}
    found = []
    for seen, run, source, link in _compared(warm, _links(campaign, warm, results)):
        vague = link.unknown(campaign.objective.metrics)
        if source.context == campaign.context and not (
            vague and (run.host not in link.hosts or key(run.params) in measured)
        ):
            found.append(seen)
    return found


def comparable(campaign: Campaign, seen: Sequence[Observation]) -> list[Observation]:
    """The observations without those of other circumstances."""
    return [o for o in seen if o.role != "earlier" or o.context == campaign.context]


# -- reading ----------------------------------------------------------------------------------


def _read(campaign: Campaign, folder: str) -> Source:
    place = RunDir(folder)
    if not place.exists:
        raise BadInput(
            f"earlier: {folder} is not the folder of a campaign (it has no events.jsonl); name folders that "
            "`hpcagent run` wrote, or leave it out.",
            value=folder,
        )
    old = load_run(place.root, to_read=True)
    _check(campaign, old, folder)
    results = replayed(place, old).in_order()
    _check_units(campaign, results, folder)
    old, comparison = _asked_anew(campaign, old, results)
    counted = counting(results)  # of a run that was extended the longer one
    informative = [r for r in counted if r.shown]
    seen = observations(old, informative, comparison)
    same = old.context == campaign.context
    units = {m.name for m in old.app.contract.metrics} & {m.name for m in campaign.app.contract.metrics}
    runs = [
        EarlierRun(
            params=o.params,
            completed=o.completed,
            metrics={k: v for k, v in o.metrics.items() if k in units},
            uncertainty={k: v for k, v in o.uncertainty.items() if k in units},
            bounds=o.bounds,
            failure=o.failure,
            distrusted=o.distrusted,
            wall_s=o.wall_s,
            node_hours=o.node_hours,
            host=r.host if _as_here(campaign, r) else "",
        )
        for o, r in zip(seen, informative, strict=True)
        if inside(campaign.search, o.params) is not None and (not same or _unvaried(campaign, o.params))
    ]
    known = comparison is not None and bool(comparison.scale)
    return Source(
        folder=folder,
        campaign=old.name,
        digest=old.app.digest,
        found=len(counted),
        outside=len(informative) - len(runs),
        uninformative=len(counted) - len(informative),
        context=old.context,
        reference=old.complete(old.reference.params) if known and old.reference is not None else None,
        metric=comparison.metric if known and comparison is not None else "",
        value=comparison.value if known and comparison is not None else None,
        runs=tuple(runs),
    )


def _asked_anew(
    campaign: Campaign, old: Campaign, results: Sequence[Result]
) -> tuple[Campaign, Comparison | None]:
    """The old campaign with the new one's question, and what its reference says of that."""
    metric = campaign.objective.goal.metric
    if campaign.reference is not None and campaign.reference.metric is not None:
        metric = campaign.reference.metric
    reference = None if old.reference is None else old.reference.model_copy(update={"metric": metric})
    old = old.model_copy(update={"objective": campaign.objective, "reference": reference})
    return old, compare(old, results)


def _as_here(campaign: Campaign, result: Result) -> bool:
    """Whether a run had the ranks and threads that it would have here: on others it tells of another machine."""
    try:
        here = campaign.app.contract.resources_for(result.manifest.params)
    except (BadInput, KeyError):  # a parameter that the app did not have then
        return False
    return here.layout == result.manifest.resources.layout


def _unvaried(campaign: Campaign, params: Params) -> bool:
    return all(params.get(name) == value for name, value in _constants(campaign).items())


def _constants(campaign: Campaign) -> Params:
    search = campaign.search
    middle = campaign.complete(search.middle)
    return {name: value for name, value in middle.items() if name not in search}


# -- checking ---------------------------------------------------------------------------------


def _check(campaign: Campaign, old: Campaign, folder: str) -> None:
    ours, theirs = campaign.app.contract, old.app.contract
    if ours.name != theirs.name:
        raise _differs(folder, "the app", theirs.name, ours.name)
    if ours.version != theirs.version:
        raise _differs(folder, f"the version of app {ours.name}", theirs.version, ours.version)
    _check_contracts(campaign, theirs, folder)
    if old.context != campaign.context:
        if not is_contextual(campaign.policy.name):
            raise _differs(
                folder,
                "the context",
                _said(old.context),
                _said(campaign.context),
                advice=f"The policy {campaign.policy.name} does not learn across contexts; take linucb or "
                "linear_thompson, or leave the folder out.",
            )
        return  # what is stated to be different may be: the input, and values that are not varied
    if campaign.app.continuing(old.app) is None:
        raise _differs(
            folder,
            f"the input of app {ours.name} (script, files, settings or code; its digest)",
            old.app.digest[:12],
            campaign.app.digest[:12],
            advice="Compare app.json there with that of this campaign. If it is another size of the same system, "
            "say so in [context] of both and take a contextual policy (linucb, linear_thompson); else leave the "
            "folder out.",
        )
    had = contents(old.app.contract.space.parameters)
    for name, digest in contents(campaign.app.contract.space.parameters).items():
        if had.get(name, digest) != digest:
            raise _differs(folder, f"the content of the file of {name}", had[name][:12], digest[:12])
    before = _constants(old)
    for name, value in _constants(campaign).items():
        if name in before and before[name] != value:
            raise _differs(
                folder,
                f"{name}, which is not varied,",
                repr(before[name]),
                repr(value),
                advice=f"Fix it at the same value ([fixed] {name} = {before[name]!r}), or leave the folder out.",
            )


def _check_contracts(campaign: Campaign, theirs: Contract, folder: str) -> None:
    ours = campaign.app.contract
    units = {m.name: m.unit for m in theirs.metrics}
    for name in campaign.objective.metrics:
        unit = ours.metric(name).unit
        if name not in units:
            raise _differs(folder, f"metric {name}", "not promised", f"in {unit}")
        if units[name] != unit:
            raise _differs(folder, f"the unit of {name}", units[name], unit)
    for p in ours.space.parameters:
        if p.name not in theirs.space:
            raise _differs(folder, f"parameter {p.name}", "unknown", f"in {p.unit}")
        if theirs.space[p.name].unit != p.unit:
            raise _differs(folder, f"the unit of {p.name}", theirs.space[p.name].unit, p.unit)


def _check_units(campaign: Campaign, results: Sequence[Result], folder: str) -> None:
    """What the runs themselves wrote down, should an app state units at run time."""
    wanted = {name: campaign.app.contract.metric(name).unit for name in campaign.objective.metrics}
    for result in results:
        for name, unit in wanted.items():
            if result.units.get(name, unit) != unit:
                raise _differs(
                    folder, f"the unit of {name} in run {result.manifest.index}", result.units[name], unit
                )


def _differs(folder: str, what: str, theirs: str, ours: str, *, advice: str = "Leave the folder out.") -> BadInput:
    return BadInput(
        f"earlier: the runs of {folder} cannot be used, {what} differs: {theirs} there, {ours} here. {advice}",
        value=folder,
    )


def _said(context: Params) -> str:
    return ", ".join(f"{name} = {value}" for name, value in context.items()) or "none stated"


# -- using ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Link:
    """How the speeds of an earlier campaign compare with those measured here.

    Attributes:
        speeds: The metrics that are speeds of a machine.
        metric: The one that both references measured, or an empty text.
        factor: What it is multiplied with.
        noise: Relative standard deviation of that.
        hosts: Hosts of this campaign.
    """

    speeds: frozenset[str]
    metric: str
    factor: float
    noise: float
    hosts: frozenset[str]

    @classmethod
    def of(cls, campaign: Campaign, source: Source, comparison: Comparison | None, hosts: frozenset[str]) -> _Link:
        promised = campaign.app.contract.metrics
        speeds = frozenset(m.name for m in promised if m.undisturbed is not None or m.noise is not None)
        if comparison is None or campaign.reference is None:
            return cls(speeds, "", 1.0, 0.0, hosts)
        # Compared by a reference it is a speed, whether its contract says so or not.
        speeds |= {comparison.metric}
        same = source.reference == campaign.complete(campaign.reference.params)
        if not (comparison.scale and source.value and source.metric == comparison.metric and same):
            return cls(speeds, "", 1.0, 0.0, hosts)
        return cls(speeds, comparison.metric, comparison.value / source.value, comparison.noise, hosts)

    def changed(self, run: EarlierRun, seen: Observation) -> Observation:
        """The run with speeds as they would be here, as far as that is known."""
        metrics, uncertainty = dict(seen.metrics), dict(seen.uncertainty)
        doubt = DISTURBED_NOISE if run.host in self.hosts else OTHER_HOST
        for name in self.speeds & metrics.keys():
            scale, more = (self.factor, self.noise) if name == self.metric else (1.0, doubt)
            metrics[name] *= scale
            error = math.hypot(uncertainty.get(name, 0.0) * scale, more * abs(metrics[name]))
            if error > 0:
                uncertainty[name] = error
        return replace(seen, metrics=metrics, uncertainty=uncertainty)

    def unknown(self, metrics: Iterable[str]) -> bool:
        """Whether one of the metrics is a speed that no reference makes comparable."""
        return bool((self.speeds - {self.metric}) & set(metrics))


def _links(campaign: Campaign, warm: WarmStart, results: Sequence[Result]) -> tuple[_Link, ...]:
    comparison = compare(campaign, results)
    # Before the first result all that is known is where the coordinator was.
    hosts = frozenset({r.host for r in results if r.host} or {warm.host})
    return tuple(_Link.of(campaign, source, comparison, hosts) for source in warm.earlier)


def _compared(warm: WarmStart, links: Sequence[_Link]) -> Iterator[tuple[Observation, EarlierRun, Source, _Link]]:
    index = -warm.runs
    for source, link in zip(warm.earlier, links, strict=True):
        for run in source.runs:
            yield link.changed(run, _observation(run, source, index)), run, source, link
            index += 1


def _observation(run: EarlierRun, source: Source, index: int) -> Observation:
    return Observation(
        params=dict(run.params),
        completed=run.completed,
        metrics=dict(run.metrics),
        uncertainty=dict(run.uncertainty),
        failure=run.failure,
        role="earlier",
        batch=-1,
        index=index,
        distrusted=run.distrusted,
        wall_s=run.wall_s,
        bounds=dict(run.bounds),
        node_hours=run.node_hours,
        context=dict(source.context),
        stopped=not run.completed and run.failure is None and bool(run.bounds),
    )
