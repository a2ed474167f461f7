"""What the app of a call refers to: an installed one, a registered tool, a file, or one that came along."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.made_with import sha256
from hpcagent.apps.modes import MODE
from hpcagent.catalog import app_names, find_app, packaged
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Tier
from hpcagent.gate.rules import Rules
from hpcagent.model.contract import LONG_RUNTIME_S, RUNTIME_S
from hpcagent.registry.contract import app_of, tool_of
from hpcagent.registry.inputs import AddedApp, AddedApps
from hpcagent.registry.scripts import SCRIPTS, script_app
from hpcagent.registry.store import Tools, split_version
from hpcagent.workspace.app_store import STORED, AppStore, packed
from hpcagent.workspace.took import AppVersion

__all__ = ["References", "is_function", "is_ours", "runtime_is_stated", "sandbox_of", "version_of"]

# Settings that name code: a calculator of the engine `ase`, a program in place of the site's, a pickle of a model.
CODE = frozenset({"calculator", "checkpoint", "command"})
# Keywords likewise: PySCF evaluates what stands in such a file.
CODE_KEYWORDS = frozenset({"chkfile"})
# Settings that the library adds to its apps, and that are no code: how runs are started, confined and repaired.
ADDED = frozenset({MODE, "sandbox", "repairs"})


class References:
    """The apps that calls name.

    Args:
        store: Those that came along.
        tools: Those that are registered.
        added: Scripts that were added as apps.
        files: Where the files of these are kept, by their digest.
        rules: What holds now.
    """

    def __init__(
        self, store: AppStore, tools: Tools, added: AddedApps, files: Path, rules: Callable[[], Rules]
    ) -> None:
        self._store, self._tools, self._added = store, tools, added
        self._files, self._rules = files, rules
        self._apps: dict[str, App] = {}

    def app(self, reference: str) -> App:
        """The app of a reference: a name, `NAME@VERSION`, the path of a script or contract, or a kept one.

        No code is imported for it but what is installed with hpcagent and its extensions.

        Raises:
            NotAllowed: There is none of that name, or of that version.
        """
        try:
            if reference.startswith(STORED):
                self._may_still_run_added(reference)
                return self._may_still_run(self._store.app(reference))
            if reference in self._apps:
                return self._apps[reference]
            tool = self.tool(reference)
            if tool is not None:
                return tool
            if is_function(reference):
                raise BadInput(
                    f"the service imports no code: {reference!r} goes along with a call of ha.Workspace or of "
                    "`hpcagent workspace`, as it is where that is called."
                )
            found = find_app(reference)
        except HpcAgentError as error:
            raise NotAllowed(
                "contract",
                error.message,
                field="app",
                value=reference,
                do="`hpcagent workspace apps` lists those that you may use",
            ) from None
        if not Path(reference).expanduser().is_file():  # a file may be another one at the next call
            self._apps[reference] = found
        return found

    def _may_still_run(self, app: App) -> App:
        """A kept app, if it is no registered tool that has been rejected since, and no script that is off by now.

        Raises:
            BadInput: It is.
        """
        if app.name in SCRIPTS:
            script_app(app.name, self._rules())
        tool = tool_of(app)
        if tool is not None:
            name, version, sha256 = tool
            record, _ = self._tools.approved(f"{name}@{version}")
            if record.sha256 != sha256:
                raise BadInput(f"{name}@{version} is another text than was approved.", value=name)
        return app

    def of(self, app: str | Mapping[str, Any]) -> str:
        """How the app of a call is called from now on; one that came along is kept.

        Raises:
            NotAllowed: What came along is no app.
        """
        try:
            if isinstance(app, Mapping):
                return self._store.put(app)
            if not isinstance(app, str):
                raise BadInput("an app is a name, or what ha.Workspace makes of an app of one's own.")
            # Kept as it was approved: whoever runs it compares the digest of the text.
            tool = self.tool(app)
            added = self._added.here.get(split_version(app)[0])
            if tool is not None and added is not None and tool.name == added.name:
                return STORED + added.sha256
            return app if tool is None else self._store.put(packed(tool))
        except BadInput as error:
            named = (
                {"value": app, "do": "`hpcagent tools list` says how each tool stands"}
                if isinstance(app, str)
                else {}
            )
            raise NotAllowed("contract", error.message, field="app", **named) from None

    def tool(self, reference: str) -> App | None:
        """The app of a registered tool, by `NAME` or `NAME@VERSION`; None: there is no tool of that name.

        Raises:
            BadInput: There is, and it may not run: it is not approved, or its files are others than were approved.
        """
        name, version = split_version(reference)
        if name in SCRIPTS:
            script = script_app(name, self._rules())
            if version not in ("", script.contract.version):
                raise BadInput(
                    f"{name} has version {script.contract.version} here, not {version}.", value=reference
                )
            return script
        if name in app_names():
            return None
        if name in self._added.here:
            return self.added(name, version)
        if not self._tools.has(name):
            return None
        record, path = self._tools.approved(reference)
        assert record.contract is not None  # of a text that was approved
        return app_of(record.contract, path, sha256=record.sha256, version=record.version, sandbox=record.sandbox)

    def added(self, name: str, version: str = "") -> App:
        """An app that was added, as it was then.

        Raises:
            BadInput: It is not approved, has another version, or a file of it is not as it was.
        """
        one = self._added.ready(name)
        if version not in ("", one.version):
            raise BadInput(f"{name} has version {one.version} here, not {version}.", value=f"{name}@{version}")
        self.check_kept(one)
        return self._store.app(STORED + one.sha256)

    def check_kept(self, one: AddedApp) -> None:
        """See that what is kept of an added app is as it was when it was added.

        Raises:
            BadInput: The app or a file was edited, or is gone.
        """
        self._store.record(STORED + one.sha256)
        for name, digest in one.files.items():
            now = ""
            with contextlib.suppress(OSError):
                now = sha256(self._files / digest)
            if now != digest:
                raise BadInput(
                    f"the file {name} that was kept with the app {one.name} {'was edited' if now else 'is gone'}: "
                    "remove the app and add it again.",
                    value=name,
                )

    def _may_still_run_added(self, reference: str) -> None:
        digest = reference.removeprefix(STORED)
        self._added.check_still(digest)
        if digest in self._added.names:
            self.check_kept(self._added.here[self._added.names[digest]])

    def offers(self, of: AppVersion) -> bool:
        """Whether somebody's own code is a registered tool or an added app, as it is now."""
        try:
            tool = self.tool(f"{of.app}@{of.version}")
        except HpcAgentError:
            return False
        return tool is not None and tool.digest == of.code

    def has_own(self, name: str) -> bool:
        """Whether there is a registered tool or an added app of that name, in whatever state."""
        return name in self._added.here or self._tools.has(name)

    def path_of(self, reference: str) -> list[str]:
        """Folders of modules that an app brings along.

        Raises:
            BadInput: The kept app is damaged.
        """
        return list(self._store.record(reference)["path"]) if reference.startswith(STORED) else []

    def brings_code(self, app: App, reference: str) -> bool:
        """Whether a run of an app, or a campaign with it, runs code that the library does not bring.

        Args:
            app: The app, with the settings of the call.
            reference: How it is called: with what is kept of it may go folders of modules, which come before all
                others where it runs.

        Raises:
            BadInput: The kept app is damaged.
        """
        return not is_ours(app) or bool(self.path_of(reference))


def sandbox_of(app: App) -> Tier:
    """The tier that every run of an app has at least; `none` without a sandbox."""
    asked = app.settings.get("sandbox")
    found: Tier = asked["require"] if isinstance(asked, Mapping) else "none"
    return found


def is_ours(app: App) -> bool:
    """Whether the library brings the app and all that it runs: settings that are code make it somebody's own.

    Its contract has to be the library's, too: by it values are checked, and side effects said.
    """
    try:
        known = packaged(app.name)
    except BadInput:
        return False
    if known is app:
        return not app.made_of
    if known is None or _place(known) != _place(app) or app.made_of or known.code_digest != app.code_digest:
        return False
    if known.contract != app.contract.model_copy(update={"resources": known.contract.resources}):
        return False
    differ = {n for n in {*known.settings, *app.settings} if known.settings.get(n) != app.settings.get(n)}
    if known.function == LAMMPS:
        return differ <= {MODE, "sandbox"}
    if differ & CODE or not differ <= {*known.settings, *ADDED}:
        return False
    keywords = app.settings.get("keywords") or {}
    return isinstance(keywords, Mapping) and CODE_KEYWORDS.isdisjoint(keywords)


def _place(app: App) -> tuple[object, ...]:
    """Where an app comes from, and where it runs: a chain in the process that keeps the site."""
    return app.source, app.function, app.chain, app.mpi


def version_of(app: App, *, own: bool | None = None, digest: str = "") -> AppVersion:
    """What the times of an app's runs are of.

    Args:
        app: The app.
        own: Whether it is somebody's own code; None: as `is_ours` says.
        digest: Of the app, where that is known.
    """
    if own is None:
        own = not is_ours(app)
    return AppVersion(app.name, app.contract.version, (digest or app.digest) if own else "")


def runtime_is_stated(app: App) -> bool:
    """Whether somebody has said what a run of an app takes: where nobody has, its contract has the default.

    Example:
        >>> runtime_is_stated(find_app("lj_argon")), runtime_is_stated(find_app("synthetic"))
        (True, True)
    """
    default = LONG_RUNTIME_S if app.chain or app.function == LAMMPS else RUNTIME_S
    return app.contract.estimated_runtime_s != default


def is_function(reference: str) -> bool:
    """Whether a reference names a function of somebody's own."""
    module, colon, _ = reference.partition(":")
    return bool(colon) and not module.startswith("hpcagent.") and not Path(reference).expanduser().is_file()
