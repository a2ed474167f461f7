"""What a campaign is checked for while it is made: its parts suit the app and each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.campaign.ensemble_table import refuse_ensemble
from hpcagent.campaign.own_points import distinct, own_point
from hpcagent.campaign.repairing import repaired_app
from hpcagent.campaign.ruled import check_rules_of
from hpcagent.campaign.sweep_space import SWEEP, needless
from hpcagent.catalog import from_name
from hpcagent.errors import BadInput
from hpcagent.model.extended import cannot
from hpcagent.model.records import checked_counter
from hpcagent.model.texts import as_name, checked_name
from hpcagent.policies.base import takes_option
from hpcagent.policies.stop import DesignDone

if TYPE_CHECKING:
    from hpcagent.campaign.record import Campaign

__all__ = ["check_campaign"]


def check_campaign(campaign: Campaign) -> None:
    """Check a campaign while it is made, and complete what was given.

    Raises:
        BadInput: The parts do not suit the app or each other.
    """
    _check_counts(campaign)
    _take_settings(campaign)
    _check_inputs(campaign)
    _check_extend(campaign)
    campaign.objective.check(campaign.app.contract)
    _check_metrics(campaign, campaign.until.metrics())
    _check_space(campaign)
    if campaign.repairs is not None:
        _settle(campaign, app=repaired_app(campaign.app, campaign.repairs, campaign.search.names))
    _check_watched(campaign)
    _check_metrics(campaign, campaign.show)
    _check_fidelity(campaign)
    _check_varied(campaign)
    check_rules_of(campaign)
    _check_compared(campaign)
    _check_context(campaign)
    if campaign.points:
        checked = [own_point(campaign, p, where=f"points[{i}]") for i, p in enumerate(campaign.points)]
        _settle(campaign, points=distinct(checked))
    if campaign.earlier:
        # By their whole paths: a campaign is resumed from anywhere.
        _settle(campaign, earlier=tuple(str(Path(folder).expanduser().absolute()) for folder in campaign.earlier))
    if campaign.name:
        checked_name(campaign.name, "the campaign's name")
    _check_sweep(campaign)
    _settle(campaign, name=campaign.name or as_name(campaign.app.name))


def _settle(campaign: Campaign, **fields: Any) -> None:
    """Complete what was given, while the record is made: afterwards it is frozen."""
    for name, value in fields.items():
        object.__setattr__(campaign, name, value)


def _check_counts(campaign: Campaign) -> None:
    for key, least in (("batch_size", 1), ("in_flight", 1), ("retries", 0), ("repeat_distrusted", 0)):
        value = getattr(campaign, key)
        if value is not None and value < least:
            raise BadInput(f"{key}={value} must be at least {least}.", value=value)
    checked_counter("seed", campaign.seed)
    if campaign.batch_size == 1 and campaign.reference is not None:
        raise BadInput("batch_size=1 leaves no run beside the reference; take at least 2.", value=1)


def _take_settings(campaign: Campaign) -> None:
    """The app with the campaign's own settings."""
    if not campaign.settings:
        return
    changed = campaign.app.with_settings(**campaign.settings)
    # By their whole paths: a campaign is resumed from anywhere.
    paths = {n: p for n, p in changed.settings.get("paths", {}).items() if n in campaign.settings and p}
    _settle(campaign, app=changed, settings=campaign.settings | paths)


def _check_inputs(campaign: Campaign) -> None:
    """A campaign's points are parameters: what takes a structure or a run finds none."""
    takes = campaign.app.contract.inputs
    if not takes:
        return
    named = from_name(campaign.app.name)
    instead = f"take {named}, which builds it from a name; or " if named else ""
    raise BadInput(
        f"the app {campaign.app.name!r} takes {', '.join(takes)} as input, and a campaign or sweep gives its runs "
        f"parameters only: {instead}write a chain that builds or reads the input and calls "
        f"{campaign.app.name}(...) with it (ten lines: docs, how-to 'Chains'), and vary the chain's parameters.",
        value=campaign.app.name,
    )


def _check_extend(campaign: Campaign) -> None:
    """A policy that is to let runs go on needs an app that can."""
    if campaign.policy.options.get("extend") is not True or not takes_option(campaign.policy.name, "extend"):
        return
    words = cannot(campaign.app.settings, campaign.app.name, campaign.search.names)
    if words:
        raise BadInput(f"policy.extend = true: {words}", value=campaign.app.name)


def _check_metrics(campaign: Campaign, names: Iterable[str]) -> None:
    for name in names:
        campaign.app.contract.metric(name)


def _check_space(campaign: Campaign) -> None:
    """What is varied and what is fixed are parameters of the app, each one or the other."""
    whole = campaign.app.contract.space
    for name in (*(campaign.space or {}), *campaign.fixed):
        whole[name]
    for name, value in campaign.fixed.items():
        whole[name].validated(value)
        if campaign.space and name in campaign.space:
            raise BadInput(f"parameter {name!r} is both in space and fixed; drop one.", value=name)
    for p in campaign.search.parameters:
        if p.kind == "text":
            raise BadInput(
                f"parameter {p.name!r} is a text, which cannot be varied; give it in fixed, or say which "
                f'texts: space.{p.name} = {{choices = ["...", "..."]}}.',
                value=p.name,
            )


def _check_watched(campaign: Campaign) -> None:
    """What is done beside the runs suits the app: rules, the guard, launches that are shared."""
    for rule in campaign.rules:
        rule.check(campaign.app.contract)
    if campaign.guard is not None:
        campaign.guard.check(campaign.app, campaign.objective)
    if campaign.ensemble is not None:
        campaign.ensemble.check(campaign.app)
    elif campaign.app.shares_launches:
        refuse_ensemble(campaign.app)


def _check_fidelity(campaign: Campaign) -> None:
    if campaign.fidelity is None:
        return
    name = campaign.fidelity.parameter
    if name not in campaign.search:
        raise BadInput(f"fidelity: {name!r} is not varied; name it in space.", value=name)
    for level in campaign.fidelity.levels:
        campaign.search[name].validated(level)


def _check_varied(campaign: Campaign) -> None:
    if len(campaign.search.free) == 0 and campaign.policy.name != SWEEP:
        raise BadInput(
            f"the space is empty: nothing varies. Name parameters of app {campaign.app.name!r} in space; "
            f"known: {', '.join(campaign.app.contract.space.names) or 'none'}."
        )


def _check_compared(campaign: Campaign) -> None:
    """The points that others are compared with can be run."""
    campaign.complete(campaign.search.middle)
    if campaign.reference is not None:
        campaign.complete(campaign.reference.params)
        _check_metrics(campaign, [campaign.reference.metric] if campaign.reference.metric is not None else ())
    for name, value in (campaign.confirm.baseline if campaign.confirm is not None else {}).items():
        campaign.app.contract.space[name].validated(value)


def _check_context(campaign: Campaign) -> None:
    for name, value in campaign.context.items():
        if not name.isidentifier() or (isinstance(value, float) and not math.isfinite(value)):
            raise BadInput(
                f"context: {name} = {value!r}; a feature has a plain name, and a finite number or a word.",
                value=value,
            )
    if "context" in campaign.policy.options:
        raise BadInput(
            "policy.context: circumstances belong to the campaign; move them to the table [context].",
            value="context",
        )
    if "noise" in campaign.policy.options:
        raise BadInput(
            "policy.noise: what is known of a metric's noise belongs to the app, where answers are worked out "
            "by it too; state it in the contract: Metric(..., noise=0.05).",
            value="noise",
        )


def _check_sweep(campaign: Campaign) -> None:
    if campaign.policy.name == SWEEP and "until" not in campaign.model_fields_set:
        _settle(campaign, until=DesignDone())
    if campaign.objective.goals:
        return
    if campaign.policy.name != SWEEP:
        raise BadInput(
            "the objective is missing: name a metric to maximize or minimize. Without one there can only be a "
            "sweep, of all points of a design: ha.Sweep(app, space), the table [sweep], `hpcagent sweep`."
        )
    given = {"reference": campaign.reference, "confirm": campaign.confirm, "fidelity": campaign.fidelity}
    extra = [name for name, value in (given | {"earlier": campaign.earlier}).items() if value]
    extra += [f"until.{kind}" for kind in needless(campaign.until)]
    if extra:
        raise BadInput(
            f"a sweep has no objective, and {' and '.join(extra)} need(s) one; drop it, or name an objective.",
            value=extra[0],
        )
