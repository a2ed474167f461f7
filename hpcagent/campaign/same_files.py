"""Whether new runs are computed with the pseudopotentials, setups and models of the runs that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcagent.apps.deciding import declared, places
from hpcagent.apps.made_with import changed_files
from hpcagent.model.base import canonical_json
from hpcagent.model.records import Result

__all__ = ["FilesOfLevel", "changed_since", "compared", "files_event", "level_key", "unknown_before"]

# Parameters that choose files; others (cutoffs, k-points, structures) do not.
_CHOOSING = ("engine", "xc", "basis")


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
    """Equal for runs that take the same files: same app, settings, engine and functional or basis set."""
    return canonical_json([app, _choosing(params), {k: v for k, v in settings.items() if k != "paths"}])


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
        "params": _choosing(params),
        "settings": dict(settings),
        "function": function,
        "files": dict(files),
    } | said


def _choosing(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: params[name] for name in _CHOOSING if name in params}


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
    where = places(level.params, level.settings, site)
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


def unknown_before(
    app: str, params: Mapping[str, Any], files: Mapping[str, str], results: Iterable[Result]
) -> str:
    """What to say where finished runs at this level have no record of the files that they used; empty: none."""
    chosen = _choosing(params)
    earlier = [r for r in results if r.ok and r.manifest.app == app and _choosing(r.manifest.params) == chosen]
    silent = sum(not r.files for r in earlier)
    there = set(files.values())
    other = {path: None for r in earlier for path, digest in r.files.items() if digest not in there}
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
