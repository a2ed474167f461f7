"""A run that failed in a way that its campaign knows a repair for is tried again, in the same task.

Standard library only: this runs on a worker. What a repair may be and where it is refused says
`hpcagent.campaign.repairing`. A repair has a name (of LAMMPS: `hpcagent.science.lammps.repairs`) or is a table of
parameters with other values. Tries that failed are kept in `repair-N/`; all of them share the run's walltime.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hpcagent.apps.hooks import lammps
from hpcagent.apps.run import Run, note, repaired_by
from hpcagent.errors import AppFailed
from hpcagent.model.failures import meaning

__all__ = ["FILE", "MOST", "with_repairs"]

FILE = "repairs.json"
"""In the run's directory: the repairs of the try that lies there."""
MOST = 2
"""Repairs of one run, at most."""
_ALTERED = (
    "what the campaign studies was changed by a repair (changes_studied): the parameters are those that were "
    "asked for, and not those that it ran with"
)

_T = TypeVar("_T")
_Params = Mapping[str, Any]


def with_repairs(
    call: Callable[[_Params, Run], _T], params: _Params, run: Run, *, altering: Mapping[str, Any] | None = None
) -> _T:
    """Call the app's function; where it fails and the campaign names a repair, call it again with that.

    Args:
        call: The function, of its parameters and the run.
        params: The parameters.
        run: The run; its settings have `repairs` (see `hpcagent.model.repairs.Repairs.plain`).
        altering: What of the repairs changes what the campaign studies, as `hpcagent.campaign.repairing.altering`
            says it; a run that had such a one has a note.

    Raises:
        AppFailed: What the last try failed with.
    """
    rules: Mapping[str, Any] = run.settings["repairs"]
    kept = {path.name for path in run.workdir.iterdir()}
    limit = _limit(run)
    began = time.monotonic()
    made: list[dict[str, Any]] = []
    asked = params
    params, run = _as_before(params, run, made)
    altered = any(_alters(altering, one["repair"], params, asked) for one in made)
    if altered:
        note(_ALTERED)
    while True:
        tried = time.monotonic()
        try:
            return call(params, run)
        except AppFailed as error:
            now = time.monotonic()
            chosen = _next(error, rules, made, params, run)
            if isinstance(chosen, str):
                if chosen:
                    note(f"not repaired: {chosen}")
                raise _after(error, made) from None
            left = None if limit is None else limit - (now - began)
            if left is not None and left <= 0:
                note("not repaired: no walltime is left, which is for all tries together")
                raise _after(error, made) from None
            repair, params, settings, changed, said = chosen
            folder = _set_aside(run.workdir, kept)
            failure = error.details["name"]
            made.append(
                {
                    "failure": failure,
                    "message": error.message,
                    "repair": repair,
                    "changed": changed,
                    "folder": folder,
                    "wall_s": now - tried,
                }
            )
            run = replace(run, settings=settings)
            if left is not None:
                run = replace(run, resources={**run.resources, "walltime_s": left})
            _record(run.workdir, made)
            note(f"repaired after {failure} ({folder}/ has the try that failed so): {changed}; {said}")
            if not altered and _alters(altering, repair, params, asked):
                altered = True
                note(_ALTERED)


def _alters(altering: Mapping[str, Any] | None, repair: str, params: _Params, asked: _Params) -> bool:
    """Whether a repair has changed what the campaign studies: by its name, or by values that are others now."""
    if altering is None:
        return False
    if repair in altering["repairs"]:
        return True
    return any(params.get(name) != asked.get(name) for name in altering["parameters"])


def _limit(run: Run) -> float | None:
    """The walltime that all tries share, in seconds; None where none is set."""
    own = run.resources.get("walltime_s")
    if own is None and "script" in run.settings and not os.environ.get("HPCAGENT_BLOCK_ENDS"):
        from hpcagent.apps.ending import DEFAULT_WALLTIME_S

        own = DEFAULT_WALLTIME_S
    return None if own is None else float(own)


def _next(
    error: AppFailed, rules: Mapping[str, Any], made: list[dict[str, Any]], params: _Params, run: Run
) -> tuple[str, _Params, dict[str, Any], str, str] | str:
    """The repair's name, the parameters and settings with it, what it changes, what that means; or why none is."""
    name, settings = error.details["name"], dict(run.settings)
    if name not in rules["rules"] or not meaning(error.details["kind"], name).repairable:
        return ""
    if run.extends is not None:
        return f"{name} in a run that extends another: changed from there on, it would not be one run"
    if len(made) >= rules["tries"]:
        return f"{name} after {len(made)} repair(s), and the campaign allows no more"
    listed = rules["rules"][name]
    times = sum(one["failure"] == name for one in made)
    rule = listed[min(times, len(listed) - 1)]
    if isinstance(rule, str):
        found = lammps().repaired(rule, settings, 1 + sum(one["repair"] == rule for one in made), params)
        if found is None:
            return f"{name} again, and {rule} would change nothing more"
        return rule, params, found.settings, found.changed, found.note
    changed = {k: v for k, v in rule.items() if params.get(k) != v}
    if not changed:
        return f"{name} again, and the run has {_words(rule)} already"
    said = f"computed with {_words(changed)}, not with the values in its parameters"
    words = ", ".join(f"{k} from {params.get(k)} to {v}" for k, v in changed.items())
    return _words(changed), {**params, **changed}, {**settings, "anew": True}, words, said


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} = {v}" for k, v in values.items())


def _after(error: AppFailed, made: list[dict[str, Any]]) -> AppFailed:
    if not made:
        return error
    tried = "; ".join(f"{one['failure']}: {one['repair']}" for one in made)
    return AppFailed(f"{error.message} It was repaired before ({tried}).", **error.details)


def _set_aside(workdir: Path, kept: set[str]) -> str:
    """Move what the try that failed has written into a folder of its own."""
    number = 1
    while (workdir / f"repair-{number}").exists():
        number += 1
    aside = workdir / f"repair-{number}"
    aside.mkdir(0o775)
    for path in sorted(workdir.iterdir()):
        if path.name not in kept and not path.name.startswith("repair-"):
            path.rename(aside / path.name)
    return aside.name


def _record(workdir: Path, made: list[dict[str, Any]]) -> None:
    (workdir / FILE).write_text(json.dumps(made, indent=1))
    repaired_by(made)


def _as_before(params: _Params, run: Run, made: list[dict[str, Any]]) -> tuple[_Params, Run]:
    """The parameters and the run as an interrupted attempt had repaired them, if this one goes on from that."""
    if not run.settings.get("restart"):
        return params, run
    folder = lammps().attempt_before(run)
    if folder is None:
        return params, run
    try:
        settings = dict(run.settings)
        found = json.loads((folder / FILE).read_bytes())
        for one in found:
            params, settings = _again(one["failure"], one["repair"], params, settings)
        said = f"goes on from {folder.name}/, which had been repaired: {found[-1]['changed']}"
    except FileNotFoundError:
        return params, run
    except (ValueError, LookupError, TypeError):  # how that attempt was repaired is not known any more
        note(f"begins anew: {folder.name}/{FILE} is damaged, so how that attempt was repaired is not known")
        return params, replace(run, settings={**run.settings, "anew": True})
    settings.pop("anew", None)  # it goes on from a try that was repaired alike
    made += found
    _record(run.workdir, made)
    note(said)
    return params, replace(run, settings=settings)


def _again(failure: str, repair: str, params: _Params, settings: dict[str, Any]) -> tuple[_Params, dict[str, Any]]:
    """Parameters and settings with a repair that was made before.

    Raises:
        LookupError: The campaign has no such repair.
    """
    for rule in settings["repairs"]["rules"][failure]:
        if rule == repair:
            found = lammps().repaired(rule, settings, 1)
            return params, settings if found is None else found.settings
        if not isinstance(rule, str) and _words({k: rule[k] for k in rule if params.get(k) != rule[k]}) == repair:
            return {**params, **rule}, settings
    raise LookupError(repair)
