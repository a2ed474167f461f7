"""Points that somebody has chosen, checked like those of a policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hpcagent.errors import BadInput, nearest
from hpcagent.model.parameter import Params
from hpcagent.statistics.points import key

if TYPE_CHECKING:
    from hpcagent.campaign.record import Campaign

__all__ = ["distinct", "own_point"]


def distinct(points: Iterable[Params]) -> tuple[Params, ...]:
    """The points, each once, in their order."""
    return tuple({key(p): p for p in points}.values())


def own_point(campaign: Campaign, params: Mapping[str, object], *, where: str) -> Params:
    """A point that somebody has chosen, as a point of the campaign's search space.

    Args:
        campaign: Whose.
        params: Its varied parameters; others may be named with the value that the campaign holds them at.
        where: For the error message.

    Raises:
        BadInput: A parameter is unknown, missing or out of bounds, or is not varied and has another value.
    """
    if not isinstance(params, Mapping):
        raise BadInput(f"{where}: a point is a mapping of parameters to values; got {params!r}.", value=params)
    search, whole = campaign.search, campaign.app.contract.space
    varied = {name: value for name, value in params.items() if name in search}
    point = search.validated(varied, where=where)
    silent = [name for name in point if name not in varied and not search[name].constant]
    if silent:
        raise BadInput(
            f"{where}: {', '.join(silent)} is varied by this campaign and not named; a point names all of "
            f"{', '.join(search.names)}.",
            value=silent,
        )
    constant = campaign.complete(point)
    for name, value in params.items():
        if name in search:
            continue
        if name not in whole:
            raise BadInput(f"{where}: unknown parameter {name!r}; {nearest(name, search.names)}", value=name)
        if whole[name].validated(value) != constant[name]:
            raise BadInput(
                f"{where}: {name}={value!r}, but this campaign does not vary {name!r}, which is "
                f"{constant[name]!r} in all of its runs. Name it in the campaign's space to vary it; varied: "
                f"{', '.join(search.names)}.",
                value=value,
            )
    return point
