"""A run that is asked for by a client that may not name code or files of this machine: numbers, choices, runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.modes import MODE
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.registry.scripts import LINES, SCRIPTS

__all__ = ["check_only_data", "check_words"]

# Settings that are words, and no more than that.
WORDS = {MODE: re.compile(r"[a-z_]{1,40}"), "family": re.compile(r"[\w.-]{0,80}")}
# Parameters that name a source of data: an address will do, a path of this machine will not.
SOURCES = {("query_materials_database", "source"): "https://"}
# Texts that their apps read as data and never look for as a file; all others are words.
TEXTS: Mapping[str, frozenset[str]] = {
    "calculate": frozenset({"expression"}),
    "ml_predict_property": frozenset({"composition", "descriptors"}),
    "ml_train_surrogate": frozenset({"target", "features", "composition", "group"}),
    "plot_data": frozenset({"x", "y", "title", "x_label", "x_unit", "y_label", "y_unit"}),
    "query_materials_database": frozenset({"formula", "filters", "source"}),
    "simulate_chemical_reaction": frozenset({"reactants", "products"}),
    "smiles_to_xyz": frozenset({"smiles"}),
    "train_pod_potential": frozenset({"condition"}),
}
TEXT_OF_PLOTS = frozenset({"title", "labels"})
# What could be the name of a file: a slash, an ending, or several lines (for one, the content of a basis set).
_FILE = re.compile(r"[/\\\x00-\x1f\x7f\x85\u2028\u2029]|\.[^\W\d]|\A\.+\Z|~")
_PATH = re.compile(r"\s*(?:[/~\\]|\.{1,2}/|file:)|.*[/\\]\.\.(?:[/\\]|\Z)", re.IGNORECASE | re.DOTALL)


def check_only_data(app: App, params: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """See that a request names neither code nor a file of this machine.

    A setting may be a script, a command, a calculator or a folder; only those that are numbers, or words that are
    known to be no more, are taken. A text among the parameters is a choice of the contract, or could be no name of
    a file, whatever folder it is looked for in, unless the app runs where it sees none; `artifact:RUN/PATH` is a
    file of a run.

    Raises:
        NotAllowed: It does.

    Example:
        >>> from hpcagent.catalog import find_app
        >>> check_only_data(find_app("lj_argon"), {"skin": 2.0}, {"discard": 0.2})
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
        if (
            not isinstance(value, str)
            or not value
            or value.startswith("artifact:")
            or _is_choice(app, name, value)
        ):
            continue
        if app.name in SCRIPTS and name == LINES:  # code, which the workspace's rules let run in a sandbox
            continue
        begin = SOURCES.get((app.name, name))
        free = name in TEXTS.get(app.name, ()) or (app.name.startswith("plot_") and name in TEXT_OF_PLOTS)
        reads = app.settings.get("reads", ())
        free = free or (_boxed(app) and name not in reads)
        path = name in reads or _PATH.match(value) or (not free and _FILE.search(value))
        if path or (begin is not None and not value.startswith(begin)):
            raise NotAllowed(
                "contract",
                "it names a file of this machine, or could name one",
                field=name,
                value=value,
                allowed=f"an address, {begin}..."
                if begin is not None
                else "a text without slash, line break and ending (.txt), or artifact:RUN/PATH, a file of a run",
                do="correct it and ask again",
            )


def check_words(values: Mapping[str, Any]) -> None:
    """See that no text could be the name of a file, whatever takes it.

    Raises:
        NotAllowed: One could.
    """
    for name, value in values.items():
        if isinstance(value, str) and _FILE.search(value):
            raise NotAllowed(
                "contract",
                "it could name a file of this machine",
                field=name,
                value=value,
                allowed="a text without slash, line break and ending (.txt)",
                do="correct it and ask again",
            )


def _boxed(app: App) -> bool:
    """Whether its runs see no file of this machine, whatever their parameters name."""
    sandbox = app.settings.get("sandbox")
    return isinstance(sandbox, Mapping) and sandbox.get("require") == "bubblewrap" and not sandbox.get("read")


def _is_choice(app: App, name: str, value: str) -> bool:
    """Whether it is one of the few values that the app's contract has for a parameter."""
    return any(value in one.choices for one in app.contract.space.parameters if one.name == name)
