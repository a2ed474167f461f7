"""A call for a run, held against the contract of its app before the gate is asked: what is wrong, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.hooks import LAMMPS
from hpcagent.contexts.admitted import secret_in, unsecret
from hpcagent.errors import BadInput
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.model.records import Manifest
from hpcagent.registry.contract import as_texts, tool_of
from hpcagent.registry.scripts import SCRIPTS, as_lines
from hpcagent.shown import plain
from hpcagent.workspace.configured import configured
from hpcagent.workspace.inner import ARTIFACT
from hpcagent.workspace.only_data import check_only_data
from hpcagent.workspace.references import is_ours

__all__ = ["as_asked", "manifest_of", "params_of", "refuse_files", "refuse_inputs", "refuse_label"]


def params_of(
    app: App, params: Mapping[str, Any], settings: Mapping[str, Any], *, data_only: bool
) -> dict[str, Any]:
    """The parameters of a call, as the app takes them.

    Raises:
        NotAllowed: They are none, or more than data where only data will do.
    """
    try:
        params = as_texts(app, as_lines(app, params))
    except BadInput as error:
        raise NotAllowed("contract", error.message, field="params", do="correct it and ask again") from None
    if data_only:
        check_only_data(app, params, settings)
        refuse_files(app, params)
    return params


def as_asked(app: App, settings: Mapping[str, Any], resources: Mapping[str, Any], walltime_s: float | None) -> App:
    """The app with the settings, resources and walltime of a call.

    Raises:
        NotAllowed: One of them is not allowed.
    """
    asked_for = dict(resources) | ({} if walltime_s is None else {"walltime_s": walltime_s})
    field = "resources" if resources else "walltime_s"
    try:
        app = app.with_resources(**asked_for) if asked_for else app
        field = "settings"
        return configured(app, settings)
    except BadInput as error:
        raise NotAllowed("contract", error.message, field=field, value=error.details.get("value")) from None


def refuse_inputs(app: App, inputs: Sequence[str]) -> None:
    """Refuse so many runs as inputs, if the app takes others.

    Raises:
        NotAllowed: It does.
    """
    if not app.contract.takes(len(inputs)):
        raise NotAllowed(
            "contract",
            f"{app.name} takes other input runs",
            field="inputs",
            value=list(inputs),
            allowed=", ".join(app.contract.inputs) or "none",
            do="name runs that have ended, by their ids" if app.contract.inputs else "leave inputs out",
        )


def manifest_of(app: App, values: Mapping[str, Any], params: Mapping[str, Any], **more: Any) -> Manifest:
    """What would run.

    Args:
        app: The app.
        values: Its parameters.
        params: The same as they were given.
        more: As `App.manifest` takes it.

    Raises:
        NotAllowed: A parameter is not allowed.
    """
    try:
        return app.manifest(values, **more)
    except BadInput as error:
        field = next((name for name in params if name in error.message), "")
        raise NotAllowed(
            "contract", error.message, field=field, value=params.get(field), do=_where_said(app)
        ) from None


def _where_said(app: App) -> str:
    """What shows the parameters of an app; a registered tool is shown by another command than an app."""
    if app.name in SCRIPTS:
        return f"the parameters of {app.name} are {', '.join(app.contract.space.names)}"
    added = app.function == LAMMPS and not app.source
    command = "workspace describe" if added else "tools show" if tool_of(app) is not None else "apps"
    return f"`hpcagent {command} {app.name}` has names, units and bounds"


def refuse_files(app: App, params: Mapping[str, Any]) -> None:
    """No text of an app that the library brings is a file: what a run has written is none of its words.

    Raises:
        NotAllowed: One names a file of a run.
    """
    for name, value in params.items():
        if isinstance(value, str) and value.startswith(ARTIFACT) and is_ours(app):
            raise NotAllowed(
                "contract",
                f"{name} of {app.name} takes no file",
                field=name,
                value=value,
                allowed="what its contract says; runs whose results it takes are named by inputs",
                do="correct it and ask again; nothing was run",
            )


def refuse_label(label: str, *, field: str = "label") -> None:
    """Refuse what is no label, or has a credential in it.

    Raises:
        NotAllowed: It is none.
    """
    if not isinstance(label, str) or len(label) > 200 or (label and not label.isprintable()) or secret_in(label):
        raise NotAllowed(
            "contract",
            f"a {field} has at most 200 printable characters, and no credential in it",
            field=field,
            value=unsecret(plain(str(label)[:200])),
            do="give another one",
        )
