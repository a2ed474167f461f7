"""A run that is asked for by a client that may not name code or files of this machine: numbers, choices, runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpcagent.apps.modes import MODE
from hpcagent.gate.not_allowed import NotAllowed

__all__ = ["check_only_data"]

# Settings that are words, and no more than that.
WORDS = {MODE: re.compile(r"[a-z_]{1,40}"), "family": re.compile(r"[\w.-]{0,80}")}
# Parameters that name a source of data: an address will do, a path of this machine will not.
SOURCES = {("query_materials_database", "source"): "https://"}
_PATH = re.compile(r"\s*(?:[/~\\]|\.{1,2}/|file:)|.*[/\\]\.\.(?:[/\\]|\Z)", re.IGNORECASE | re.DOTALL)


def check_only_data(app: str, params: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """See that a request names neither code nor a file of this machine.

    A setting may be a script, a command, a calculator or a folder; only those that are numbers, or words that are
    known to be no more, are taken. A text among the parameters is no path; `artifact:RUN/PATH` is a file of a run.

    Raises:
        NotAllowed: It does.

    Example:
        >>> check_only_data("lj_argon", {"skin": 2.0}, {"discard": 0.2})
    """
    for name, value in settings.items():
        allowed = WORDS.get(name)
        word = allowed is not None and isinstance(value, str) and allowed.fullmatch(value) is not None
        if not word and not isinstance(value, bool | int | float):
            raise NotAllowed(
                "contract",
                "a setting that is a text or a table may be code, or name a file of this machine",
                field=f"settings.{name}",
                value=value,
                allowed=f"numbers; words of {', '.join(WORDS)}",
                do="leave it out; a person starts such a run by the shell or by ha.Workspace",
            )
    for name, value in params.items():
        if not isinstance(value, str) or value.startswith("artifact:"):
            continue
        begin = SOURCES.get((app, name))
        if _PATH.match(value) or (begin is not None and not value.startswith(begin)):
            raise NotAllowed(
                "contract",
                "it names a file of this machine",
                field=name,
                value=value,
                allowed="artifact:RUN/PATH, a file of a run" if begin is None else f"an address, {begin}...",
                do="correct it and ask again",
            )
