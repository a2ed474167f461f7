"""LAMMPS scripts as apps of a workspace: added, approved, removed; each change is a line of the journal."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.made_with import sha256
from hpcagent.catalog import app_names
from hpcagent.errors import BadInput
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.registry.findings import Finding, errors_of, warnings_of
from hpcagent.registry.inputs import AddedApp, check_name, looked_over
from hpcagent.registry.scripts import SCRIPTS
from hpcagent.registry.trials import Trial
from hpcagent.science.lammps.script import LARGEST_SCRIPT
from hpcagent.shown import plain
from hpcagent.store.files import make_folder, refusing_clearly, write_whole
from hpcagent.workspace.app_store import STORED, packed, unpacked
from hpcagent.workspace.references import sandbox_of
from hpcagent.workspace.tools import Registered

__all__ = ["Added"]

MOST_BYTES = 4 << 30
"""Of all files that are kept with an app."""
RESERVED = ("lammps", "synthetic")
"""Kinds of runs that MCP clients ask for by these words."""
NO_TESTS = Trial(state="none", why="a LAMMPS script has no tests; each run of it is checked by its log")


_SHOWN_ELSEWHERE = ("script", "paths")  # settings that are the text and the files of a card


class Added(Registered):
    """Apps of a workspace that were made of LAMMPS scripts; they are listed and decided on with its tools."""

    # -- adding -------------------------------------------------------------------------------

    def add_app(self, caller: Caller, *, app: Mapping[str, Any], why: str = "") -> dict[str, Any]:
        """Make a LAMMPS script an app of the workspace, with its contract and the files that it reads.

        An admin's is approved by being added; that of somebody else waits for a person.

        Args:
            caller: Who asks.
            app: A LAMMPS app as `packed` has it, with a name; its files are copied from where they lie.
            why: What it is for.

        Returns:
            Its card.

        Raises:
            NotAllowed: The role may not write.
            BadInput: It is no LAMMPS script, its name is taken, or a file that it reads cannot be kept.
        """
        with self.gate.recorded(caller, what="add_app"):
            self.gate.require(caller, "write")
        made = unpacked({"app": app.get("app"), "carried": app.get("carried", ""), "path": app.get("path", [])})
        if self.answered.earlier is not None:
            return self._added_card(made.name)
        if made.function != LAMMPS or app.get("carried") or app.get("path"):
            raise BadInput(
                f"{made.name} is no LAMMPS script; a Python function becomes a tool by `hpcagent tools register`, "
                "and any other app is run by its path or module.",
                value=made.name,
            )
        check_name(made.name)
        described = made.contract.description or plain(why)[:300] or f"The LAMMPS script {Path(made.source).name}."
        contract = made.contract.model_copy(update={"description": described})
        made = made.model_copy(update={"contract": contract, "source": ""})
        with self._keeping() as new:
            made = self._with_kept_files(made, new)
            findings = looked_over(made, self._included(made))
            _refuse(made, findings)
            record = packed(made)
            digest = self.store.digest(record)
            with self._turn:
                known = self.added.here.get(made.name)
                if known is not None and known.sha256 == digest and known.state != "rejected":
                    return self._added_card(made.name)
                self._refuse_taken(made.name)
                if not self.store.has(STORED + digest):
                    new.append(self.store.path(STORED + digest))
                self.store.put(record)
                mine = AddedApp(
                    name=made.name,
                    version=made.contract.version,
                    sha256=digest,
                    files=_files_of(made),
                    asked_by=caller.name,
                    at=self._clock(),
                    why=plain(why)[:2000],
                    warnings=tuple(str(one) for one in warnings_of(findings)),
                )
                if caller.role == "admin":
                    by = {"decided_by": caller.name, "decided_at": mine.at, "note": "added by an admin"}
                    mine = mine.model_copy(update=by | {"state": "approved"})
                line = self._event("app_added", by=caller.name, **mine.model_dump(mode="json"))
                new.clear()
        self._write_card(made.name)
        self._tell_line(line)
        return self._added_card(made.name)

    def _refuse_taken(self, name: str) -> None:
        known = self.added.here.get(name)
        if known is not None:
            raise BadInput(
                f"there is an app {name} already, added by {known.asked_by} ({known.state}): remove it first "
                f"(`hpcagent workspace remove-app {name}`), or give this one another name (--name NAME).",
                value=name,
            )
        if name in app_names() or name in SCRIPTS or name in RESERVED or self.tools.has(name):
            what = "a registered tool" if self.tools.has(name) else "an app that comes with the library"
            raise BadInput(f"{name} is {what}; give the script another name (--name NAME).", value=name)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[list[Path]]:
        """A list of new files, which are removed again unless it is cleared."""
        new: list[Path] = []
        try:
            yield new
        finally:
            for path in new:
                path.unlink(missing_ok=True)

    def _with_kept_files(self, app: App, new: list[Path]) -> App:
        """The app with copies of its files, by their content."""
        places = dict(app.settings["paths"])
        choices = {one.path for p in app.contract.space.parameters for one in p.files}
        whole = sum(Path(path).stat().st_size for path in {*places.values(), *choices} if Path(path).is_file())
        if whole > MOST_BYTES:
            raise BadInput(
                f"the files that {app.name} reads have {whole >> 20} MB; at most {MOST_BYTES >> 20} MB are kept "
                "with an app. Leave out what it does not need.",
                value=whole,
            )
        kept = {name: self._kept(name, path, app.settings["files"][name], new) for name, path in places.items()}
        space = app.contract.space
        parameters = tuple(
            p.model_copy(
                update={
                    "files": tuple(
                        f.model_copy(update={"path": str(self._kept(f.name, f.path, f.sha256, new))})
                        for f in p.files
                    )
                }
            )
            if p.files
            else p
            for p in space.parameters
        )
        contract = app.contract.model_copy(update={"space": space.model_copy(update={"parameters": parameters})})
        settings = app.settings | {"paths": {name: str(path) for name, path in kept.items()}}
        return app.model_copy(update={"settings": settings, "contract": contract})

    def _kept(self, name: str, path: str, digest: str, new: list[Path]) -> Path:
        target = self.folder.added / "files" / digest
        if target.is_file() and sha256(target) == digest:
            return target
        make_folder(target.parent)
        part = target.with_name(f".{digest}.{os.getpid()}")
        with refusing_clearly(target):
            try:
                try:
                    shutil.copyfile(path, part)
                except FileNotFoundError:
                    raise BadInput(f"the file {name} ({path}) is gone; put it back.", value=path) from None
                if sha256(part) != digest:
                    raise BadInput(f"the file {name} ({path}) was changed at this moment; try again.", value=path)
                part.chmod(0o444)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        new.append(target)
        return target

    def _included(self, app: App) -> dict[str, str]:
        """Texts of the scripts that it includes, as they are kept."""
        from hpcagent.science.lammps.script import commands

        texts: dict[str, str] = {}
        waiting = [str(app.settings["script"])]
        while waiting:
            for one in commands(waiting.pop()):
                name = one.words[1] if one.name in ("include", "jump") and len(one.words) > 1 else ""
                path = app.settings["paths"].get(str(Path(name))) if name else None
                if path is not None and name not in texts and Path(path).stat().st_size <= LARGEST_SCRIPT:
                    texts[name] = Path(path).read_text(errors="replace")
                    waiting.append(texts[name])
        return texts

    # -- removing, deciding -------------------------------------------------------------------

    def remove_app(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """Remove an app that was added: one's own, or any with the right to approve; no run of it is begun again.

        Its script and files stay where a run has used them.

        Raises:
            NotAllowed: The role may not.
            BadInput: There is none of that name.
        """
        if self.answered.earlier is not None:
            return {"name": name, "removed": True}
        with self.gate.recorded(caller, what=f"remove app {name[:80]}"):
            self.gate.require(caller, "write")
            one = self._one_added(name)
            if one.asked_by != caller.name:
                self.gate.require(caller, "approve")
        with self._turn:
            line = self._event("app_removed", **_facts(one), state="removed", by=caller.name)
            used = any(row.reference == STORED + one.sha256 for row in self.rows.values())
        (self.folder.added / f"{name}.json").unlink(missing_ok=True)
        if not used:
            others = {digest for other in self.added.here.values() for digest in other.files.values()}
            for digest in set(one.files.values()) - others:
                (self.folder.added / "files" / digest).unlink(missing_ok=True)
            self.store.path(STORED + one.sha256).unlink(missing_ok=True)
        self._tell_line(line)
        return {"name": name, "removed": True}

    def decide_tool(
        self,
        caller: Caller,
        *,
        name: str,
        approve: bool,
        note: str = "",
        sha256: str = "",
        despite_tests: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """As of a tool; an added app has no tests."""
        if name not in self.added.here:
            return super().decide_tool(
                caller,
                name=name,
                approve=approve,
                note=note,
                sha256=sha256,
                despite_tests=despite_tests,
                dry_run=dry_run,
            )
        if self.answered.earlier is not None:
            return self._added_card(name)
        with self._turn, self.gate.recorded(caller, what=f"app {name[:80]}"):
            self.gate.require(caller, "approve")
            one = self._one_added(name)
            if approve and one.asked_by == caller.name and caller.role != "admin":
                raise NotAllowed(
                    "approval",
                    "nobody approves an app that they have added themselves",
                    field="by",
                    value=caller.name,
                    allowed="somebody else with the right to approve",
                    do="ask one of them",
                )
            if sha256 and sha256.lower() != one.sha256:
                raise BadInput(
                    f"the app {name} has the SHA-256 {one.sha256}, not {sha256[:64]}: it is another one than was "
                    f"looked at. Look at it again (`hpcagent tools show {name}`), and give all 64 digits.",
                    value=name,
                )
            wanted = "approved" if approve else "rejected"
            if one.state == wanted or dry_run:
                return self._added_card(name)
            kind = "app_approved" if approve else "app_rejected"
            said = plain(note)[:2000]
            line = self._event(kind, **_facts(one), state=wanted, by=caller.name, note=said)
        self._write_card(name)
        self._tell_line(line)
        return self._added_card(name)

    def remove_tool(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """As of a tool: an added app that is approved is rejected first."""
        one = self.added.here.get(name)
        if one is None:
            return super().remove_tool(caller, name=name)
        if one.state == "approved":
            raise BadInput(f"{name} is approved; reject it first.", value=name)
        return self.remove_app(caller, name=name)

    # -- seeing -------------------------------------------------------------------------------

    def list_tools(self, caller: Caller) -> list[dict[str, Any]]:
        """All registered tools, and the apps that were added, in whatever state."""
        tools = super().list_tools(caller)
        return sorted([*tools, *map(self._added_card, list(self.added.here))], key=lambda one: str(one["name"]))

    def get_tool(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """One tool with its text; of an added app its script, the scripts that it includes, and its contract."""
        if name not in self.added.here:
            return super().get_tool(caller, name=name)
        self.gate.require(caller, "read")
        card = self._added_card(name)
        found: dict[str, Any] = {"text": "", "contract": None}
        with contextlib.suppress(BadInput):  # which is its problem
            app = self.store.app(STORED + card["sha256"])
            parts = [str(app.settings["script"])]
            parts += [f"# -- {name} --\n{text}" for name, text in self._included(app).items()]
            found = {"text": "\n".join(parts), "contract": app.contract.model_dump(mode="json")}
        return card | found | {"tests": NO_TESTS.model_dump(mode="json")}

    def tools_that_run(self, caller: Caller) -> list[App]:
        """Approved tools and added apps that the caller may use."""
        found = super().tools_that_run(caller)
        for name, one in list(self.added.here.items()):
            if one.state == "approved" and name not in app_names() and self._mine(caller, name):
                with contextlib.suppress(BadInput):  # its files are not as they were
                    found.append(self.references.added(name))
        return found

    def _mine(self, caller: Caller, name: str) -> bool:
        return self.gate.may_use(caller, "apps", f"own:{name}")

    def _one_added(self, name: str) -> AddedApp:
        one = self.added.here.get(name)
        if one is None:
            known = ", ".join(sorted(self.added.here)) or "none was added"
            raise BadInput(
                f"there is no app {name[:80]!r} that was added to this workspace ({known}).", value=name[:80]
            )
        return one

    def _added_card(self, name: str) -> dict[str, Any]:
        """An added app with the fields of a registered tool's card."""
        one = self._one_added(name)
        problem, app = "", None
        try:
            app = self.store.app(STORED + one.sha256)
            self.references.check_kept(one)
        except BadInput as error:
            problem = error.message.rstrip(".")
        if name in app_names():
            problem = "an app of that name comes with the library now, and is what runs; add it under another name"
        contract = None if app is None else app.contract
        walltime = None if contract is None else contract.resources.walltime_s
        limit = "no limit of wall time" if walltime is None else f"it is ended after {walltime:g} s"
        return {
            "name": name,
            "kind": "lammps",
            "version": one.version,
            "state": one.state,
            "usable": one.state == "approved" and not problem,
            "problem": problem,
            "description": "" if contract is None else contract.description,
            "parameters": {}
            if contract is None
            else {
                p.name: p.range if p.default is None else f"{p.range}, {p.default} by default"
                for p in contract.space.parameters
            },
            "files": dict(one.files),
            "sha256": one.sha256,
            "asked_by": one.asked_by,
            "at": one.at,
            "origin": "a LAMMPS script",
            "why": one.why,
            "sandbox": "none" if app is None else sandbox_of(app),
            "walltime_s": walltime,
            "limit": limit if contract is None else f"a run takes {contract.resources.size}; {limit}",
            "settings": {}
            if app is None
            else {k: v for k, v in app.settings.items() if k not in _SHOWN_ELSEWHERE},
            "decided_by": one.decided_by,
            "decided_at": one.decided_at or None,
            "note": one.note,
            "errors": [],
            "warnings": list(one.warnings),
            "tests": NO_TESTS.state,
            "agents": [a.record.name for a in self.agents.every() if name in a.record.tools],
        }

    def _write_card(self, name: str) -> None:
        """What clients see of it without asking: that there is an app of this name. The journal decides."""
        make_folder(self.folder.added)
        write_whole(self.folder.added / f"{name}.json", self.added.here[name].model_dump_json(indent=1) + "\n")

    def write_cards(self) -> None:
        """Put back notes of added apps that are not there, as after a copy of the journal alone."""
        for name in self.added.here:
            if not (self.folder.added / f"{name}.json").is_file():
                self._write_card(name)


def _facts(one: AddedApp) -> dict[str, Any]:
    """What a line of the journal says of an added app as it is."""
    return {"name": one.name, "version": one.version, "sha256": one.sha256}


def _refuse(app: App, findings: Sequence[Finding]) -> None:
    """Refuse a script for all that was found in it, at once."""
    errors = [f"line {one.line}: {one.says}" if one.line else one.says for one in errors_of(findings)]
    if errors:
        raise BadInput(f"the script of {app.name} cannot be added. {'. '.join(errors)}.", value=app.name)


def _files_of(app: App) -> dict[str, str]:
    of_choices = {one.name: one.sha256 for p in app.contract.space.parameters for one in p.files}
    return dict(app.settings["files"]) | of_choices
