"""The conditions of a campaign: its own beside the app's, and the space that they leave to a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcagent.campaign.sweep_space import SWEEP
from hpcagent.errors import BadInput
from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.conditions import holds
from hpcagent.model.grammar import read_condition
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space

if TYPE_CHECKING:
    import numpy as np

    from hpcagent.apps.base import App
    from hpcagent.campaign.record import Campaign
else:
    np = Later("numpy")

__all__ = ["by_default", "check_rules_of", "narrowed", "notes", "ruled"]

NEVER = 20_000
"""Points of which every one keeps a constraint that is then said to forbid nothing."""


def ruled(space: Space, ranges: Mapping[str, Mapping[str, Any]] | None, constraints: Sequence[Any]) -> Space:
    """The app's space with the conditions of a campaign: its `constraints`, and `when` of its ranges."""
    whens = {name: of["when"] for name, of in (ranges or {}).items() if of.get("when") is not None}
    if not whens and not constraints:
        return space
    for name, when in whens.items():
        if not isinstance(when, str):
            raise BadInput(f"space.{name}.when is a condition in quotes; got {when!r}.", value=when)
    parameters = tuple(p.narrowed(when=whens[p.name]) if p.name in whens else p for p in space.parameters)
    return Space.made(parameters, (*space.constraints, *constraints))


def narrowed(
    whole: Space, names: Sequence[str], ranges: Mapping[str, Mapping[str, Any]], fixed: Mapping[str, Scalar]
) -> Space:
    """The varied part of a space: conditions count with the values of all others.

    Raises:
        BadInput: The fixed values break a constraint, or a parameter has no value.
    """
    changes = {n: {k: v for k, v in of.items() if k != "when"} for n, of in ranges.items()}
    if whole.simple:
        return Space(parameters=tuple(whole[n] for n in names)).narrowed(changes)
    changed = whole.narrowed(changes)
    known: dict[str, Scalar] = {}
    for p in changed.parameters:
        value = fixed.get(p.name, p.default)
        if value is None and p.constant and p.kind != "text":
            value = p.levels(1)[0]
        if p.name not in names and value is not None:
            known[p.name] = p.validated(value)
    rest = changed.without(known)
    for p in rest.parameters:
        if p.name not in names:
            raise BadInput(
                f"parameter {p.name!r} has no value; give it in fixed, or vary it (space).", value=p.name
            )
    order = [n for n in names if n in rest]
    return Space(parameters=tuple(rest[n] for n in order), constraints=rest.constraints)


def by_default(app: App, fixed: Mapping[str, Scalar]) -> list[str]:
    """What is varied where a campaign does not say.

    What the app names (`vary`); else all that have no default value; else all but those that decide how much of a
    machine a run takes (`resources_from`), unless there are no others.
    """
    named = [n for n in app.vary if n not in fixed]
    if named:
        return named
    space = app.contract.space
    left = [p for p in space.parameters if p.name not in fixed and p.kind != "text"]
    needed = [p for p in left if p.default is None]
    if needed:
        return [p.name for p in needed]
    costly = set(app.contract.resources_from.values())
    return [p.name for p in left if p.name not in costly] or [p.name for p in left]


def check_rules_of(campaign: Campaign) -> None:
    """Hold a campaign's conditions against its fixed values, its reference and what its app can do without.

    Raises:
        BadInput: Nothing is allowed, a fixed point is not, or a parameter cannot be left out.
    """
    whole = campaign.whole
    if whole.simple:
        return
    search = campaign.search
    for name in campaign.space or {}:
        if name not in search:
            when = whole[name].when
            raise BadInput(
                f"space: {name!r} is never a part of a run here: the fixed values do not keep {when!r}; drop it.",
                value=name,
            )
    for p in search.parameters:
        if p.when is not None:
            check_left_out(campaign.app, p)
    if not search.simple:
        search.middle  # noqa: B018  (raises where nothing is allowed)
    baseline = campaign.confirm.baseline if campaign.confirm is not None else {}
    if baseline:
        whole.without({n: whole[n].validated(v) for n, v in {**campaign.fixed, **baseline}.items()})


def check_left_out(app: App, p: Parameter) -> None:
    """Refuse to leave a parameter out of the runs of an app that does not say what it is then."""
    own = app.contract.space[p.name]
    if own.when is None and own.default is None:
        raise BadInput(
            f"parameter {p.name!r} is left out of runs where {p.when!r} is not kept, but {app.name} has no "
            "default for it; give the app's parameter one (default=...), or the condition (when=...).",
            value=p.name,
        )


def notes(campaign: Campaign) -> tuple[str, ...]:
    """What a person should know of the space before anything runs, a sentence each."""
    found = []
    if campaign.space is None and campaign.policy.name != SWEEP:
        rest = [
            n for n in campaign.app.contract.space.names if n not in campaign.search and n not in campaign.fixed
        ]
        said = f"; not {', '.join(rest)}" if rest else ""
        found.append(f"space does not say what is varied: {', '.join(campaign.search.names)}{said}.")
    search = campaign.search
    if search.simple:
        return tuple(found)
    region, many = search.region, search.region.columns
    free = Space(parameters=search.parameters)
    units = np.random.default_rng(0).random((NEVER, len(free)))
    columns = many.of_units(units)
    active = many.active(columns)
    for constraint in search.constraints:
        off = many.off(constraint.names, active, NEVER)
        kept = np.asarray(holds(read_condition(constraint.text), columns), dtype=bool) | off
        if kept.all():
            found.append(
                f"the constraint {constraint.text!r} forbids none of {NEVER} points: the ranges keep it already."
            )
    if search.constraints and region.every is None:
        share = region.share()
        if share < 0.01:
            found.append(
                f"the constraints leave {'less than 1e-3' if share == 0 else f'about {share:.2g}'} of the space; "
                "points are found by walking in it."
            )
    return tuple(found)
