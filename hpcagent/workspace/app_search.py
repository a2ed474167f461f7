"""Apps by words: those that have all of them first, then those that have some."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcagent.apps.base import App

__all__ = ["found_by"]

# What people say, and contracts do not.
_MEANS = {
    "catalyst": "adsorption",
    "catalysts": "adsorption",
    "catalysis": "adsorption",
    "md": "dynamics",
    "mlip": "machine-learned",
    "speed": "ns_per_day",
    "bandgap": "gap",
}


def _text(app: App) -> tuple[str, str]:
    """What says most of an app, and all else that its contract and its engine have."""
    contract = app.contract
    first = f"{app.name} {contract.description}".lower()
    more = [contract.app_type, app.function if isinstance(app.function, str) else "", *contract.inputs]
    for one in contract.space.parameters:
        more += [one.name, one.description, *map(str, one.choices)]
    for metric in contract.metrics:
        more += [metric.name, metric.description]
    return first, " ".join([first, *more]).lower()


def _score(app: App, words: Sequence[str]) -> tuple[int, int]:
    first, whole = _text(app)
    forms = [(word, word.rstrip("s"), _MEANS.get(word, word)) for word in words]
    has = sum(any(form in whole for form in either if form) for either in forms)
    return has, sum(any(form in first for form in either if form) for either in forms)


def found_by(apps: Sequence[App], query: str) -> list[App]:
    """Apps whose name, description, kind, engine, parameters or metrics have words of a query; without one all.

    Example:
        >>> from hpcagent.catalog import find_app
        >>> apps = [find_app("synthetic"), find_app("lj_argon"), find_app("dft_energy")]
        >>> [app.name for app in found_by(apps, "LAMMPS argon")]
        ['lj_argon']
    """
    words = re.findall(r"[^\s,;]+", query.lower())
    if not words:
        return list(apps)
    scored = [(_score(app, words), app) for app in apps]
    most = max((score[0] for score, _ in scored), default=0)
    kept = [(score, app) for score, app in scored if score[0] and (score[0] == most or score[1])]
    return [app for _, app in sorted(kept, key=lambda one: (-one[0][0], -one[0][1]))]
