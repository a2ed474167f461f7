"""Whether a campaign's `[repairs]` can be made of its app, and the app with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from hpcagent.apps.base import App
from hpcagent.errors import BadInput
from hpcagent.model.failures import can_be_repaired
from hpcagent.model.repairs import Repairs

if TYPE_CHECKING:
    from hpcagent.model.records import Result

__all__ = ["altering", "repaired_app", "repaired_note", "repaired_there", "repairs_text"]


def repaired_app(app: App, repairs: Repairs, varied: Collection[str]) -> App:
    """The app whose runs are repaired so; the repairs are among its settings, so its runs have ids of their own.

    Args:
        app: What runs.
        repairs: The campaign's table.
        varied: Names of the parameters that the campaign varies.

    Raises:
        BadInput: A failure or repair that is not known, or that the app, its script or what is studied forbids.
    """
    if app.chain:
        raise BadInput(
            f"repairs: {app.name!r} is a chain, whose runs are apart from each other: its function can try again "
            "by itself.",
            value=app.name,
        )
    from hpcagent.science.lammps.repairs import studied  # most campaigns have no such table

    lammps = "script" in app.settings and app.function.startswith("hpcagent.apps.lammps.")
    for failure, listed in repairs.rules.items():
        _check_failure(app, failure, lammps)
        if len(listed) > repairs.tries:
            raise BadInput(
                f"repairs.{failure} lists {len(listed)} repairs, and a run has at most {repairs.tries}.",
                value=failure,
            )
        for one in listed:
            where = f"repairs.{failure}"
            if isinstance(one, str):
                _check_named(app, failure, one, where, lammps)
                changed = studied(app.settings, one, varied)
            else:
                changed = _check_values(app, one, where, varied)
            if changed and not repairs.changes_studied:
                what = one if isinstance(one, str) else ", ".join(f"{k} = {v}" for k, v in one.items())
                raise BadInput(
                    f"{where} = {what!r} would change {', '.join(changed)}, which this campaign varies: its runs "
                    "would not be what they are recorded as. Take another repair, do not vary it, or say "
                    "changes_studied = true in [repairs]; each result then says so.",
                    value=changed[0],
                )
    return app._changed(settings={**app.settings, "repairs": repairs.plain()})


def altering(app: App, repairs: Repairs | None, varied: Collection[str]) -> dict[str, list[str]] | None:
    """Which repairs change what is studied, for the workers; None where the campaign allows none that does.

    Args:
        app: What runs.
        repairs: The campaign's table, if it has one.
        varied: Names of the parameters that the campaign varies.

    Returns:
        `repairs`, the names of those that change a varied variable of the script, and `parameters`, the varied
        ones to which a table of values may give another one.
    """
    if repairs is None or not repairs.changes_studied:
        return None
    from hpcagent.science.lammps.repairs import studied

    listed = [one for rule in repairs.rules.values() for one in rule]
    named = {one for one in listed if isinstance(one, str) and studied(app.settings, one, varied)}
    given = {name for one in listed if not isinstance(one, str) for name in one if name in varied}
    return {"repairs": sorted(named), "parameters": sorted(given)}


def _check_failure(app: App, failure: str, lammps: bool) -> None:
    from hpcagent.science.lammps.repairs import REPAIRS

    allowed = list(REPAIRS) if lammps else [f for f in app.contract.failure_modes if can_be_repaired(f)]
    if failure in allowed:
        return
    if not allowed:
        raise BadInput(
            f"repairs.{failure}: app {app.name!r} names no failures that could be repaired; say "
            f'failure_modes=("{failure}",) where it is defined.',
            value=failure,
        )
    raise BadInput(
        f"repairs.{failure}: no failure of app {app.name!r} that can be repaired; those are "
        f"{', '.join(sorted(allowed))}.",
        value=failure,
    )


def _check_named(app: App, failure: str, repair: str, where: str, lammps: bool) -> None:
    from hpcagent.science.lammps.repairs import REPAIRS, refused

    if not lammps:
        raise BadInput(
            f"{where} = {repair!r}: repairs with a name are for LAMMPS scripts; of app {app.name!r} give a table "
            f"of parameters with other values, such as {{{next(iter(app.contract.space.names), 'x')} = ...}}.",
            value=repair,
        )
    if repair not in REPAIRS[failure]:
        raise BadInput(
            f"{where} = {repair!r}: no repair of that; allowed: {', '.join(REPAIRS[failure])}, or a table of "
            "parameters with other values.",
            value=repair,
        )
    why = refused(repair, app.settings)
    if why:
        raise BadInput(f"{where} = {repair!r} cannot be made of {app.source or app.name}: {why}.", value=repair)


def _check_values(app: App, values: Mapping[str, Any], where: str, varied: Collection[str]) -> list[str]:
    space = app.contract.space
    for name, value in values.items():
        parameter = space[name]
        parameter.validated(value)
        if parameter.kind == "text" or parameter.files:
            raise BadInput(f"{where}: {name!r} is a file or a text, which a repair does not change.", value=name)
        if name in app.contract.resources_from.values():
            raise BadInput(
                f"{where}: {name!r} decides what the run occupies, and its place is given already.", value=name
            )
    return [name for name in values if name in varied]


def repairs_text(result: Result) -> str:
    """The repairs of a run in a few words; empty without any.

    Example:
        >>> from hpcagent.model.records import Manifest, Result
        >>> asked = Manifest(execution_id="1", app="melt", app_version="1.0.0")
        >>> made = {"failure": "LostAtoms", "repair": "minimize"}
        >>> repairs_text(Result(manifest=asked, status="COMPLETED", repairs=[made]))
        'repaired: minimize'
    """
    # Of values of parameters the repair's name has the numbers already.
    said = [f"{r.repair} ({r.changed})" if r.changed and "=" not in r.repair else r.repair for r in result.repairs]
    return f"repaired: {', '.join(said)}" if said else ""


def repaired_note(results: Collection[Result]) -> str:
    """How many runs were repaired, and how that ended; empty without any."""
    repaired = [r for r in results if r.repairs]
    if not repaired:
        return ""
    ok = sum(r.ok for r in repaired)
    return (
        f"{len(repaired)} run(s) failed and were repaired, {ok} of them completed; what each repair changed is in "
        "its notes"
    )


def repaired_there(results: Collection[Result], params: Mapping[str, Any]) -> str:
    """What was changed in the completed runs of a point; empty where none was repaired."""
    there = [r for r in results if r.ok and all(r.manifest.params.get(n) == v for n, v in params.items())]
    made = [one for r in there for one in r.repairs]
    if not made:
        return ""
    changed = "; ".join(dict.fromkeys(one.changed or one.repair for one in made))
    runs = sum(bool(r.repairs) for r in there)
    return (
        f"{runs} of its {len(there)} completed run(s) did not run as they were asked for, but repaired: {changed}"
    )
