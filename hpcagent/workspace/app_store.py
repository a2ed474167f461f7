"""Apps that have no name of their own in every process: kept as they were when somebody asked for a run.

A script, a program or a function of somebody's own goes to the service as a record, with a digest of all that
decides its numbers: what is edited is another app, and the service imports no code for it. `apps/SHA256.json` has

    {"app": {...}, "carried": "base64, a function of a script or notebook", "path": ["folders of own modules"]}
"""

from __future__ import annotations

import base64
import hashlib
import io
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcagent.apps.base import App
from hpcagent.apps.carried import Carried
from hpcagent.apps.modules import file_in_tree
from hpcagent.catalog import find_app, is_packaged, packaged
from hpcagent.errors import BadInput
from hpcagent.model.base import canonical_json, explain, read_json, read_record
from hpcagent.offered import path_of
from hpcagent.store.files import make_folder, write_whole
from hpcagent.workspace.configured import configured, settings_of

__all__ = ["STORED", "AppStore", "asked", "code_key", "packed", "unpacked"]

STORED = "stored:"
"""What the reference of a kept app begins with."""

LARGEST = 64 << 20
"""Bytes of a record: the texts of scripts and small files."""


def packed(app: App) -> dict[str, Any]:
    """An app as plain data, with its function where that has no module.

    Raises:
        BadInput: The function uses what cannot be sent.
    """
    whole = app.frozen()
    sent = whole.sent
    folders: dict[str, None] = {}
    for name in whole.made_of:
        file, below = file_in_tree(name)
        if file is not None and below:
            folders[str(file.absolute().parents[below.count("/")])] = None
    return {
        "app": whole.model_dump(mode="json"),
        "carried": "" if sent is None else base64.b64encode(pickle.dumps(sent)).decode(),
        "path": list(folders),
    }


def asked(
    app: str | App, settings: Mapping[str, Any] | None = None, resources: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """An app as the service is asked for it: by the name that it has everywhere, else as it is.

    Args:
        app: A name, `NAME@VERSION`, the path of a script or contract, `module:function`, or the app itself.
        settings: As `App.with_settings` takes them.
        resources: As `App.with_resources` takes them.

    Returns:
        `app` (a name, or what `packed` gives), `settings`, `resources`.

    Raises:
        BadInput: There is none, or it has no such setting or resource.
    """
    wanted, needs = dict(settings or {}), dict(resources or {})
    if isinstance(app, str):
        name = app.partition("@")[0]
        if not Path(app).is_file() and (is_packaged(name) or path_of("apps", name) is not None):
            return {"app": app, "settings": wanted, "resources": needs}
        app = find_app(app)
    known = packaged(app.name)
    if known is not None:
        there, here = known.contract.resources.model_dump(), app.contract.resources.model_dump()
        own = {name: value for name, value in here.items() if value != there[name]}
        differs = settings_of(app, known)
        try:
            same = configured(known, differs).with_resources(**own)
        except BadInput:
            same = known
        if (same.digest, same.contract) == (app.digest, app.contract):
            return {"app": app.name, "settings": differs | wanted, "resources": own | needs}
    made = configured(app, wanted)
    return {"app": packed(made.with_resources(**needs) if needs else made), "settings": {}, "resources": {}}


def code_key(record: Mapping[str, Any]) -> str:
    """What runs with the same code on their path have in common; empty where the code is installed."""
    if not record["path"]:
        return ""
    made_of = record["app"].get("modules", {}) | record["app"].get("modules_later", {})
    text = canonical_json([record["path"], made_of])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class AppStore:
    """The apps that a workspace keeps.

    Args:
        folder: `apps` of the workspace.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, App] = {}

    def digest(self, record: Mapping[str, Any]) -> str:
        """The SHA-256 by which an app is kept."""
        return hashlib.sha256(_text_of(record).encode()).hexdigest()

    def path(self, reference: str) -> Path:
        """The file of a kept app."""
        return self._path(reference.removeprefix(STORED))

    def has(self, reference: str) -> bool:
        """Whether an app is kept."""
        return self.path(reference).is_file()

    def put(self, record: Mapping[str, Any]) -> str:
        """Keep an app, unless it is kept; return its reference.

        Raises:
            BadInput: It is no record of an app.
            StoreFull: It cannot be written.
        """
        fields, text = _fields_of(record), _text_of(record)
        if len(text) > LARGEST:
            raise BadInput(f"the app has {len(text) >> 20} MB; at most {LARGEST >> 20} MB are kept.")
        digest = hashlib.sha256(text.encode()).hexdigest()
        app = unpacked(fields)
        path = self._path(digest)
        if digest not in self._known or not path.is_file():
            if not path.is_file() or path.read_bytes() != text.encode():
                make_folder(self._folder)
                write_whole(path, text, private=True)
            self._known[digest] = app
        return STORED + digest

    def app(self, reference: str) -> App:
        """A kept app, without its code: what it takes, gives and is made of.

        Raises:
            BadInput: It is not there, or damaged.
        """
        digest = reference.removeprefix(STORED)
        if digest not in self._known:
            self._known[digest] = unpacked(self.record(reference))
        return self._known[digest]

    def record(self, reference: str) -> dict[str, Any]:
        """What is kept of it.

        Raises:
            BadInput: It is not there, or its content is not that of its name.
        """
        digest = reference.removeprefix(STORED)
        path = self._path(digest)
        try:
            record: dict[str, Any] = read_json(path)
        except OSError as error:
            raise BadInput(f"the app {path} cannot be read: {error.strerror}.") from None
        if hashlib.sha256(canonical_json(record).encode()).hexdigest() != digest:
            raise BadInput(f"the app {path} is damaged: put it back from a copy, or ask for the run again.")
        return record

    def runnable(self, reference: str) -> App:
        """A kept app with its code, for the process that runs it; folders of own modules come first from now on.

        Raises:
            BadInput: It is not there, or damaged.
        """
        record = self.record(reference)
        for folder in reversed(record["path"]):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        app = unpacked(record)
        if record["carried"]:
            packed_one = _Carriers(io.BytesIO(base64.b64decode(record["carried"]))).load()
            # The function of a chain runs here; that of any other app is unpacked where it runs.
            app = app.carrying(packed_one) if app.chain else app.sending(packed_one)
        return app

    def _path(self, digest: str) -> Path:
        if len(digest) != 64 or not digest.isalnum():
            raise BadInput("an app is kept by its SHA-256.", value=digest[:80])
        return self._folder / f"{digest}.json"


def _fields_of(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"app": record.get("app"), "carried": record.get("carried", ""), "path": record.get("path", [])}


def _text_of(record: Mapping[str, Any]) -> str:
    return canonical_json(_fields_of(record))


def unpacked(record: Mapping[str, Any]) -> App:
    """The app of a record that `packed` has made, without its code.

    Raises:
        BadInput: It is no record of an app.
    """
    unknown: dict[str, None] = {}
    try:
        app = read_record(App, record["app"], unknown)
    except ValidationError as error:
        raise BadInput(explain(App, error, "the app").message) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"this is no record of an app: {error}.") from None
    if unknown:
        raise BadInput(f"the app has {', '.join(unknown)}, which this version does not know.")
    if record["carried"] and app.function:
        # Else code of somebody's own would pass for the library's, which is known by its function.
        raise BadInput(f"the app has a function of a module ({app.function}), and carries one of a script, too.")
    return app.recorded()


class _Carriers(pickle.Unpickler):
    """Takes a `Carried`, whose code stays packed until it is where it runs, and nothing that runs here."""

    def find_class(self, module: str, name: str) -> Any:
        """Nothing else is found."""
        if (module, name) == (Carried.__module__, Carried.__qualname__):
            return Carried
        raise BadInput(f"the app carries {module[:80]}.{name[:80]} in place of a function; it is not loaded.")
