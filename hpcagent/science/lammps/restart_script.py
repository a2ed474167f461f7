"""A script that is continued: its restart commands, and how long its last run is.

The script says how it continues (`if "${restart} == none" then ... else "read_restart ${restart}"`) and how long
it is in all (`run N upto`); hpcagent adds the `restart` command before that last run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.model.space import Space
from hpcagent.science.lammps.restart_file import END, FILES
from hpcagent.science.lammps.script import Script

__all__ = ["NONE", "steps_in_all", "times_at_most", "with_restarts"]

NONE = "none"
"""Value of the script's variable in a run that starts from the beginning."""
_IDIOM = (
    'variable {0} index none ... if "${{{0}}} == none" then "create_box 1 box" ... else "read_restart ${{{0}}}"'
)


def with_restarts(
    read: Script, variable: str, every: int, *, production: int, where: str, steps: str | None = None
) -> str:
    """The script with a `restart` command before its last run, and a restart file of its end where it has `steps`.

    Args:
        read: The script.
        variable: Its variable that names the file to continue from, or is `none`.
        every: Steps between restart files.
        production: The contract's key of that name.
        where: The contract, for messages.
        steps: Its variable that is the length of the last run, if runs can be extended.

    Raises:
        BadInput: The script does not read the file, its last run has no `upto`, or another run is measured.
    """
    if variable not in read.used or not re.search(rf"read_restart\s+\$(\{{{variable}\}}|{variable}\b)", read.text):
        raise BadInput(
            f"{where}, restart: the script {read.path.name} has no `read_restart ${{{variable}}}`; write "
            f"{_IDIOM.format(variable)}.",
            value=variable,
        )
    if read.defined.get(variable, ("index", NONE)) not in (("index", NONE), ("string", NONE)):
        raise BadInput(
            f"{where}, restart: write `variable {variable} index none` in {read.path.name}: from the beginning is "
            "what it does when run by hand.",
            value=variable,
        )
    if production != -1:
        raise BadInput(
            f"{where}, restart: it is the script's last run that is continued, so that run must be the one "
            f"that is measured; drop `production = {production}`.",
            value=production,
        )
    lines = read.text.splitlines(keepends=True)
    first, words, last = _last_run(lines)
    if first is None or "upto" not in words:
        said = f"it is `{' '.join(words)}`" if words else "it has none that stands by itself"
        raise BadInput(
            f"{where}, restart: the last run of {read.path.name} must be `run N upto`, so that it ends at the "
            f"same step wherever it begins; {said}.",
            value=" ".join(words),
        )
    # Flushed, or the rows since the last full buffer are lost with the process.
    added = ["thermo_modify flush yes\n", f"restart {every} {FILES[0]} {FILES[1]}\n"]
    if steps is None:
        return "".join(lines[:first] + added + lines[first:])
    if words[1] not in (f"${{{steps}}}", f"${steps}" if len(steps) == 1 else ""):
        raise BadInput(
            f"{where}, restart: steps = {steps!r} must be the length of the last run of {read.path.name}, as "
            f"`run ${{{steps}}} upto`; it is `{' '.join(words)}`.",
            value=steps,
        )
    run = lines[first : last + 1]
    run[-1] = run[-1].rstrip("\n") + "\n"
    return "".join([*lines[:first], *added, *run, f"write_restart {END}\n", *lines[last + 1 :]])


def steps_in_all(settings: Mapping[str, Any], params: Mapping[str, Any], times: float) -> int | None:
    """Length of a run that is `times` times an ordinary one, in steps; None without `steps` in the contract."""
    steps = (settings.get("restart") or {}).get("steps")
    return None if steps is None else round(float(params[steps]) * times)


def times_at_most(settings: Mapping[str, Any], space: Space, params: Mapping[str, Any]) -> float | None:
    """How many times as long as an ordinary run one may be by the contract's range of its length; None: no range.

    Args:
        settings: Of the app.
        space: The parameters of its contract.
        params: Of the run.
    """
    steps = (settings.get("restart") or {}).get("steps")
    most = None if steps is None else space[steps].high
    return None if steps is None or most is None else float(most) / float(params[steps])


def _last_run(lines: list[str]) -> tuple[int | None, list[str], int]:
    """Index, words and last line of the last `run` command that is a line of its own."""
    found: int | None = None
    last = 0
    words: list[str] = []
    going_on, quoted, inside = False, False, False
    for number, line in enumerate(lines):
        here = line.partition("#")[0].split()
        if not going_on and not quoted:
            inside = here[:1] == ["run"]
            if inside:
                found, words = number, []
        if inside:
            words += [word for word in here if word != "&"]
            last = number
        quoted ^= bool(line.count('"""') % 2)
        going_on = line.rstrip().endswith("&")
        inside = inside and going_on
    return found, words, last
