"""Whether new runs are computed with the code and the files of the runs that are there.

What an app is made of (its function, the user's modules, files of its settings, apps that a chain calls) is in
`app.json` as it was when the campaign began; what an engine or LAMMPS reads from elsewhere is in the journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.apps.chosen import changed_choices
from hpcagent.apps.deciding import declared, places
from hpcagent.apps.made_with import OtherFile, changed_files, other_files
from hpcagent.apps.modes import LAMMPS_MODES, MODE
from hpcagent.apps.modules import other_modules
from hpcagent.errors import InputsChanged
from hpcagent.model.base import canonical_json
from hpcagent.model.records import Result

if TYPE_CHECKING:
    from hpcagent.apps.base import App

__all__ = [
    "FilesOfLevel",
    "changed_inputs",
    "changed_since",
    "compared",
    "files_event",
    "level_key",
    "refusal",
    "repair_of",
    "unknown_before",
]

# Parameters that choose files, beside those that name one (`reads`); others (cutoffs, structures) do not.
_CHOOSING = ("engine", "xc", "basis")


def changed_inputs(recorded: App, given: App) -> tuple[str, ...]:
    """A clause for each part of an app that is not as it was when its campaign began.

    Args:
        recorded: The app as the campaign's folder has it.
        given: The app that is to go on: the same record, or one of a script that was started again.
    """
    files = other_files(given.settings, gone=True)
    choices = changed_choices(recorded.contract.space, given.contract.space)
    if not given.is_recorded:  # made anew, of the files as they are now
        files += _other_content(recorded, given)
    clauses = [*map(str, other_modules(recorded.modules or recorded.modules_later)), *map(str, files), *choices]
    if clauses and not recorded.modules_later:
        return tuple(clauses)
    return (*clauses, *_changed_code(recorded, given))


def _other_content(recorded: App, given: App) -> list[OtherFile]:
    """Files of the same name that the two apps have with different contents, wherever they lie."""
    ours, before = (app.settings.get("files") for app in (given, recorded))
    if not isinstance(ours, Mapping) or not isinstance(before, Mapping):
        return []
    return [
        OtherFile(name, given.settings["paths"].get(name, ""), before[name], now)
        for name, now in ours.items()
        if before.get(name) not in (None, "", now) and given.settings.get(name) == recorded.settings.get(name)
    ]


def _changed_code(recorded: App, given: App) -> list[str]:
    """The function of a script, what a chain calls, and what has no file in the record."""
    if not recorded.code_digest:
        return []
    by_file = bool(recorded.modules) and bool(recorded.function)
    if by_file and not recorded.inner:
        return []
    live = given if given.plain_function is not None else _imported(recorded)
    if live is None or live.source != recorded.source:
        return []
    live = live.frozen()
    clauses = [
        f"{name}, which the chain calls: SHA-256 {before[:12]} recorded, {live.inner[name][:12]} now"
        for name, before in (recorded.inner or recorded.inner_later).items()
        if live.inner.get(name, before) != before
    ]
    if not by_file and live.code_digest != recorded.code_digest and live.continuing(recorded) is None:
        module, _, name = recorded.source.rpartition(":")
        where = "the script" if module == "__main__" else f"module {module}"
        clauses.append(
            f"the function {name} of {where}, with what it uses there: SHA-256 {recorded.code_digest[:12]} "
            f"recorded, {live.code_digest[:12]} now"
        )
    return clauses


def _imported(recorded: App) -> App | None:
    """The app of an importable module as it is now; None where it cannot be had here: workers say more."""
    from hpcagent.catalog import look_up

    with contextlib.suppress(Exception):  # whatever the user's module raises
        return look_up(recorded.function)
    return None


def repair_of(recorded: App) -> str:
    """What helps where it is this process that has another content, whatever is in the file; else empty."""
    if not any(other.stale for other in other_modules(recorded.modules or recorded.modules_later)):
        return ""
    return (
        "Restart this process (in a notebook, the kernel), which has imported the module with another content, "
        "and go on. If it is refused again, put the old content back, or choose another folder (run_dir)."
    )


def refusal(
    root: str,
    clauses: Sequence[str],
    *,
    done: int,
    repair: str = "",
    elsewhere: bool = False,
) -> InputsChanged:
    """The refusal to mix runs with code or files of other contents.

    Args:
        root: The campaign's folder.
        clauses: What is different.
        done: How many runs are finished (completed or failed), with the old content.
        repair: What helps, where that is known better.
        elsewhere: Whether it is a file that is found through the environment, the settings or the site.
    """
    place = " (or set the variable, setting or site profile that names its folder as it was)" if elsewhere else ""
    helps = repair or (
        f"Put the old content back{place} and go on, or choose another folder (run_dir, --run-dir) for a new "
        "campaign. To begin it with what these runs found (earlier), say in its [context] that the input is "
        "another, and take a contextual policy."
    )
    if not done:
        helps = repair or "Put the old content back, or delete that folder and begin again, or choose another one."
        return InputsChanged(
            f"{root}: {'; '.join(clauses)}. No run has finished there. {helps}", changed=list(clauses)
        )
    return InputsChanged(
        f"{root}: {'; '.join(clauses)}. {done} finished run(s) were computed with what is recorded. New runs "
        f"would be computed with something else, and their numbers could not be compared with those. {helps}",
        changed=list(clauses),
    )


@dataclass(slots=True)
class FilesOfLevel:
    """The files of the runs of one app at one level of theory, as they were when runs were sent.

    Attributes:
        app: Name of the app.
        params: The parameters that choose files.
        settings: Settings of the app.
        function: The app's function, `module:name`.
        files: Name -> every SHA-256 that it had.
        note: What the results have to say of earlier ones; empty: nothing.
    """

    app: str
    params: Mapping[str, Any]
    settings: Mapping[str, Any]
    function: str = ""
    files: dict[str, dict[str, None]] = field(default_factory=dict)
    note: str = ""

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in an event of `files_event`."""
        for name, digest in event["files"].items():
            self.files.setdefault(name, {})[digest] = None
        self.note = event.get("note") or self.note


def level_key(app: str, params: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Equal for runs that take the same files: app, settings, engine and functional or basis set, paths."""

    def counts(name: str, value: object) -> bool:
        return name != "paths" and not (name == MODE and value in LAMMPS_MODES)

    return canonical_json([app, _choosing(params, settings), {k: v for k, v in settings.items() if counts(k, v)}])


def files_event(
    app: str,
    params: Mapping[str, Any],
    settings: Mapping[str, Any],
    files: Mapping[str, str],
    note: str = "",
    *,
    function: str = "",
) -> dict[str, Any]:
    """The files of a level, for the journal."""
    said = {"note": note} if note else {}
    return {
        "event": "files",
        "app": app,
        "params": _choosing(params, settings),
        "settings": dict(settings),
        "function": function,
        "files": dict(files),
    } | said


def _choosing(params: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    names = (*_CHOOSING, *(settings or {}).get("reads", ()))
    return {name: params[name] for name in names if name in params}


def compared(
    level: FilesOfLevel, files: Mapping[str, str], results: Iterable[Result], site: Mapping[str, Any]
) -> list[str]:
    """A clause for each file that finished runs of the level have used with another content.

    A file that no finished run has used, that of another element for example, may be another one; of one that
    cannot be read here nothing is known.

    Args:
        level: What is recorded.
        files: Name -> SHA-256, of now.
        results: Finished runs of the campaign.
        site: What the site says of itself.
    """
    other = {n: now for n, now in files.items() if set(level.files.get(n, ())) - {now}}
    if not other:
        return []
    used = {digest: path for result in results if result.ok for path, digest in result.files.items()}
    clauses = []
    where = places(level.params, level.settings, site, function=level.function)
    for name, now in other.items():
        for before in level.files[name]:
            if before != now and before in used:
                clauses.append(
                    f"{name} of {level.app}: {used[before]} (SHA-256 {before[:12]}) in finished runs, "
                    f"{where.get(name, 'another file')} (SHA-256 {now[:12]}) now"
                )
    return clauses


def changed_since(
    levels: Iterable[FilesOfLevel], results: Iterable[Result], site: Mapping[str, Any]
) -> tuple[str, ...]:
    """A clause for each file by which new runs would not be comparable with the finished ones."""
    ended = list(results)
    taken = [
        clause
        for level in levels
        for clause in compared(level, declared(level.function, level.params, level.settings, site), ended, site)
    ]
    if taken:
        return tuple(dict.fromkeys(taken))
    recorded = {path: digest for result in ended for path, digest in result.files.items()}
    return tuple(
        f"{path}, with which finished runs were computed, has changed" for path in changed_files(recorded)
    )


def _made_beside(path: str, result: Result) -> bool:
    return bool(result.workdir) and Path(path).is_relative_to(Path(result.workdir).parent)


def unknown_before(
    app: str, params: Mapping[str, Any], files: Mapping[str, str], results: Iterable[Result]
) -> str:
    """What to say where finished runs at this level have no record of the files that they used; empty: none."""
    chosen = _choosing(params)
    earlier = [r for r in results if r.ok and r.manifest.app == app and _choosing(r.manifest.params) == chosen]
    silent = sum(not r.files for r in earlier)
    there = set(files.values())
    other = {
        path: None
        for r in earlier
        for path, digest in r.files.items()
        # What another run of the campaign has made (a trained potential) is an input, and known as one.
        if digest not in there and not _made_beside(path, r)
    }
    said = []
    if silent:
        said.append(
            f"{silent} earlier run(s) of {app} in this campaign have no record of the pseudopotentials, setups or "
            "models that they used"
        )
    if other:
        said.append(f"earlier runs of {app} in this campaign used {', '.join(other)}, which is not taken now")
    if not said:
        return ""
    return f"{'; '.join(said)}: whether the numbers can be compared is not known"
