"""LAMMPS scripts that were added to a workspace as apps: what is on record of each, and what their texts reach.

The journal of the workspace has it all; the script and its contract are kept by their digest, and so is each file
that the script reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from pydantic import Field

from hpcagent.apps.base import App
from hpcagent.errors import BadInput
from hpcagent.model.base import Record
from hpcagent.model.texts import Name
from hpcagent.registry.findings import Finding
from hpcagent.registry.names import NAME_WORDS, is_name
from hpcagent.registry.record import SHA256, State
from hpcagent.registry.steering import check_text
from hpcagent.science.lammps.script import REFERENCE, commands, nested, written

__all__ = ["AddedApp", "AddedApps", "check_name", "looked_over"]

# Commands that read the file which one of their words names.
_FILE_AT = {
    "include": 1,
    "jump": 1,
    "molecule": 2,
    "read_data": 1,
    "read_dump": 1,
    "read_restart": 1,
    "rerun": 1,
}
# Commands that read files among all of their words, of which some may come with LAMMPS.
_MAY_READ = re.compile(r"(pair|bond|angle|dihedral|improper|kspace)_(coeff|style)\Z")
_READING_VARIABLES = ("file", "atomfile")


class AddedApp(Record):
    """An app that was made of a LAMMPS script.

    Attributes:
        name: Its name.
        version: That of its contract.
        sha256: Digest of the app as it is kept: script, contract, and digests of its files.
        files: File that the script reads -> SHA-256.
        state: It runs only when it is approved.
        asked_by: Who added it.
        at: When, as Unix time in seconds.
        why: What it is for.
        warnings: What whoever approves should look at.
        decided_by: Who approved or rejected it.
        decided_at: When, as Unix time in seconds.
        note: What they said.
    """

    name: Name
    version: str
    sha256: str = Field(pattern=SHA256)
    files: dict[str, str] = {}
    state: State = "pending"
    asked_by: str = ""
    at: float = 0.0
    why: str = Field(default="", max_length=2000)
    warnings: tuple[str, ...] = ()
    decided_by: str = ""
    decided_at: float = 0.0
    note: str = ""


class AddedApps:
    """The apps that were added, as the lines of a journal say it.

    Attributes:
        here: Name -> what is on record of those that there are.
        names: Digest -> name, of all that were ever added.
    """

    def __init__(self) -> None:
        self.here: dict[str, AddedApp] = {}
        self.names: dict[str, str] = {}

    def replay(self, event: Mapping[str, Any]) -> None:
        """Take a line of the journal: `app_added`, `app_approved`, `app_rejected`, `app_removed`."""
        kind, name = event["event"], event["name"]
        if kind == "app_added":
            fields = {key: event[key] for key in AddedApp.model_fields if key in event}
            self.here[name] = AddedApp.model_validate(fields)
            self.names[self.here[name].sha256] = name
        elif kind == "app_removed":
            self.here.pop(name, None)
        elif self.here[name].sha256 == event["sha256"]:
            decided = {"decided_by": event["by"], "decided_at": event["at"], "note": event.get("note", "")}
            state = "approved" if kind == "app_approved" else "rejected"
            self.here[name] = self.here[name].model_copy(update=decided | {"state": state})

    def ready(self, name: str) -> AddedApp:
        """An app that may run.

        Raises:
            BadInput: It is not approved.
        """
        one = self.here[name]
        if one.state != "approved":
            raise BadInput(
                f"the app {name} is {one.state}: a person approves it first (`hpcagent tools approve {name}`).",
                value=name,
            )
        return one

    def check_still(self, sha256: str) -> None:
        """See that an app which is kept under this digest may run, if it is one that was added.

        Raises:
            BadInput: It was removed since, is another one by now, or is not approved.
        """
        name = self.names.get(sha256)
        if name is None:
            return
        if name not in self.here or self.here[name].sha256 != sha256:
            now = "is another script by now" if name in self.here else "was removed from this workspace"
            raise BadInput(f"the app {name}, as it was when this was asked for, {now}.", value=name)
        self.ready(name)


def check_name(name: str) -> None:
    """Refuse a name that clients could not write.

    Raises:
        BadInput: It is none.
    """
    if not is_name(name):
        raise BadInput(
            f"{name[:80]!r} is no name of an app: {NAME_WORDS}; give another one (--name NAME, name=).",
            value=name[:80],
        )


def looked_over(app: App, included: Mapping[str, str]) -> list[Finding]:
    """What a LAMMPS app's texts reach outside of what is kept with it, and what in its description steers a model.

    Args:
        app: Of a LAMMPS script.
        included: Name -> text of the files that it includes.

    Returns:
        Errors: files that would not be kept. Warnings: what runs programs of the machine or writes elsewhere.

    Example:
        >>> from hpcagent.catalog import find_app
        >>> looked_over(find_app("lj_argon"), {})
        []
    """
    texts = {"": app.settings["script"], **included}
    kept = set(app.settings["files"])
    kept |= {word for text in texts.values() for words, _ in _commands(text) for word in written(words)}
    moved = app.settings.get("structure") or {}
    kept |= {moved["file"]} if moved.get("file") else set()
    free = {(app.settings.get("restart") or {}).get("variable", "")}
    free |= {one.name for one in app.contract.space.parameters if one.files}
    found = []
    for name, text in texts.items():
        for words, line in _commands(text):
            for rule, severity, says in _reached(words, kept, free):
                where = f"{says} (in {name})" if name else says
                found.append(Finding(rule=rule, line=line, says=where, severity=severity, tool=app.name))
    said = [(app.contract.description, "description")]
    said += [(one.description, "argument") for one in app.contract.space.parameters if one.description]
    for text, kind in said:
        found += check_text(text, kind=kind, tool=app.name)  # type: ignore[arg-type]
    return found


def _commands(text: str) -> Iterator[tuple[list[str], int]]:
    """Every command of a script with its line, those inside of `if` and `run every` too."""
    for one in commands(text):
        yield one.words, one.first + 1
        for words in nested(one.words):
            yield words, one.first + 1


def _reached(words: list[str], kept: set[str], free: set[str]) -> Iterator[tuple[str, Any, str]]:
    """Rule, severity and sentence of what a command reaches."""
    command = words[0]
    if command == "shell":
        yield "shell", "warning", f"`{_short(words)}` runs a command of the machine"
    elif command in ("python", "plugin"):
        yield command, "warning", f"`{_short(words)}` runs code that LAMMPS loads"
    elif any(word.startswith("python") for word in words[1:4]) and command in ("fix", "pair_style", "variable"):
        yield "python", "warning", f"`{_short(words)}` runs Python"
    if command == "variable" and words[2:3] == ["getenv"]:
        yield "getenv", "warning", f"`{_short(words)}` reads the environment of the run"
    at = _FILE_AT.get(command)
    reads_variable = command == "variable" and len(words) > 3 and words[2] in _READING_VARIABLES
    if reads_variable:
        at = 3
    if at is not None and len(words) > at:
        error = _unkept(words, words[at], kept, free)
        if error:
            yield "file", "error", error
        return
    for word in words[1:]:
        if not _is_elsewhere(word):
            continue
        if _MAY_READ.match(command):
            yield "file", "error", _outside(words, word)
        elif command not in ("shell", "python", "plugin", "print", "variable", "if"):
            yield "outside", "warning", f"`{_short(words)}` names a file outside of the run's folder"


def _unkept(words: list[str], word: str, kept: set[str], free: set[str]) -> str:
    """Why a file that a command reads is not kept with the app; empty: it is, or the run writes it."""
    if word in ("SELF", "nocoeff") or str(PurePath(word)) in kept or word in kept:
        return ""
    names = {next(filter(None, match)) for match in REFERENCE.findall(word)}
    if names:
        if names <= free:
            return ""
        return (
            f"`{_short(words)}`: which file that is cannot be told from the script, so it cannot be kept with the "
            "app; write its name, or make the variable one of files (`files` in the contract, ha.File)"
        )
    if "*" in word or "%" in word:
        return ""  # restart files of the run itself
    if _is_elsewhere(word):
        return _outside(words, word)
    return f"`{_short(words)}`: there is no file {word!r} beside the script, so it cannot be kept with the app"


def _outside(words: list[str], word: str) -> str:
    return (
        f"`{_short(words)}`: {word!r} lies outside of the script's folder, so it is not kept with the app; put it "
        "beside the script, and write its name there"
    )


def _is_elsewhere(word: str) -> bool:
    return (word.startswith(("/", "~")) and len(word) > 1) or ".." in PurePath(word).parts


def _short(words: list[str]) -> str:
    return " ".join(" ".join(words).split())[:100]
