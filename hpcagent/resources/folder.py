"""The folder of resources: opened by somebody in a role, made on first use, expired, copied."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from hpcagent.errors import BadInput, ContentChanged, NotPermitted, nearest
from hpcagent.model.base import build, read_json
from hpcagent.model.texts import checked_name
from hpcagent.resources.callers import Caller, Gate
from hpcagent.resources.database import Database
from hpcagent.resources.locking import held
from hpcagent.resources.notebook import Notebook
from hpcagent.resources.objects import ObjectStore
from hpcagent.resources.place import CHANGES, HISTORY, Gone, Place, change_at, own_folder
from hpcagent.resources.record import BUILT_IN, Resource
from hpcagent.store.files import make_folder, refusing_clearly

__all__ = ["Resources"]

RECORD = "resource.json"
OWN_EVENTS = (*CHANGES, "provisioned", "session_ended", "snapshot", "torn")
_RESERVED = ("sessions", "ended_sessions")
_KINDS: Mapping[str, type[Database] | type[ObjectStore] | type[Notebook]] = {
    "database": Database,
    "object_store": ObjectStore,
    "document": Notebook,
}
_CALLS = {"database": "database", "object_store": "objects", "document": "notebook"}

Kind = TypeVar("Kind", Database, ObjectStore, Notebook)


class Resources:
    """The resources in a folder, for one caller; made by `Resources.open`.

    Attributes:
        folder: Where they are.
        caller: Who asks, and in which role.
        session: Name of the session, for resources that each session has its own of; or None.
    """

    def __init__(
        self,
        folder: Path,
        caller: Caller,
        session: str | None,
        defined: Mapping[str, Resource],
        clock: Callable[[], float],
        announce: Callable[[str, int], object] | None = None,
    ) -> None:
        self.folder = folder
        self.caller = caller
        self.session = session
        self._defined = defined
        self._clock = clock
        self._announce = announce

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        caller: str | Caller,
        role: str | None = None,
        session: str | None = None,
        define: Sequence[Resource] = (),
        clock: Callable[[], float] = time.time,
        announce: Callable[[str, int], object] | None = None,
    ) -> Resources:
        """Open a folder of resources. Nothing is made before it is used.

        Args:
            folder: Where they are, or will be.
            caller: Who asks; a name, or a `Caller`.
            role: In which role, with a name: `owner`, `planner`, `executor`, `reader`, or one that a resource
                of your own has permissions for.
            session: A name, for resources with persistence `session`.
            define: Resources beside `catalyst_db`, `dft_results` and `lab_notebook`, or in their place. One that
                is in the folder already must be the same.
            clock: Gives the time: Unix time, in seconds.
            announce: Is told of each change with the resource's name and where its line of the history begins, in
                bytes (`change_at` reads it); not of what lies in another folder, behind a proxy. What it raises is
                raised; the change stands.

        Raises:
            BadInput: A name is not allowed, the role is missing, or a definition is not that of the folder.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     resources = Resources.open(folder, caller="anna", role="planner")
            ...     [r.name for r in resources.records()], resources.provisioned
            (['catalyst_db', 'dft_results', 'lab_notebook'], ())
        """
        if isinstance(caller, Caller):
            if role is not None and role != caller.role:
                raise BadInput(f"role={role!r}, and the caller is {caller}; give one of them.", value=role)
        elif role is None:
            raise BadInput(
                f"in which role does {caller!r} open {folder}? Give role=, e.g. 'planner'.", value=caller
            )
        else:
            caller = Caller(caller, role)
        if session is not None:
            checked_name(session, "the session")
        names = [one.name for one in define]
        if len(set(names)) < len(names):
            raise BadInput(f"a resource is defined twice among {', '.join(names)}.")
        for name in names:
            if name in _RESERVED:
                raise BadInput(f"{name!r} is a folder of its own there; name the resource otherwise.", value=name)
        root = Path(folder).expanduser().absolute()
        if root.exists() and not root.is_dir():
            raise BadInput(f"{root} is a file; resources need a folder.", value=str(root))
        defined = {one.name: one for one in (*BUILT_IN, *define)}
        opened = cls(root, caller, session, defined, clock, announce)
        for one in define:
            opened._require_same(one)
        return opened

    def __repr__(self) -> str:
        return f"Resources({str(self.folder)!r}, {self.caller})"

    def records(self) -> tuple[Resource, ...]:
        """Every resource: those that are defined, and others that are there already, by name."""
        names = {*self._defined, *self.provisioned}
        return tuple(self.record(name) for name in sorted(names))

    def record(self, name: str) -> Resource:
        """What a resource is: as it was made, or as it would be.

        Raises:
            BadInput: There is none of this name.
        """
        found = self._stored(name)
        if found is not None:
            return found
        if name not in self._defined:
            known = {*self._defined, *self.provisioned}
            raise BadInput(
                f"{self.folder} has no resource {str(name)[:80]!r}; {nearest(str(name), known)}", value=name
            )
        return self._defined[name]

    @property
    def provisioned(self) -> tuple[str, ...]:
        """Names of the resources that are there: of the project, and of this session."""
        places = [self.folder] if self.session is None else [self.folder, self._session_folder]
        return tuple(sorted({p.parent.name for place in places for p in place.glob(f"*/{RECORD}")}))

    def provision(self, name: str) -> Resource:
        """Make a resource, if it is not there; returns its record.

        Raises:
            NotPermitted: The role may not.
            BadInput: There is no such resource, or it is one of a session and none is open.
        """
        record = self.record(name)
        Gate(self.caller, (record,)).require("provision")
        self._provision(record)
        return self.record(name)

    def database(self, name: str = "catalyst_db") -> Database:
        """A table; made on this first use if it may be.

        Raises:
            BadInput: There is none of this name, it is of another type, or it is static and was not made.
        """
        return self._opened(name, Database)

    def objects(self, name: str = "dft_results") -> ObjectStore:
        """A store of objects; see `database`."""
        return self._opened(name, ObjectStore)

    def notebook(self, name: str = "lab_notebook") -> Notebook:
        """A notebook; see `database`."""
        return self._opened(name, Notebook)

    def require(self, **actions: str) -> None:
        """See that the caller may do several things, before any of them is begun.

        Args:
            actions: Resource -> one of `ACTIONS`.

        Raises:
            NotPermitted: One is not permitted.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Resources.open(folder, caller="bot", role="executor").require(dft_results="add")
        """
        for name, action in actions.items():
            Gate(self.caller, (self.record(name),)).require(action)  # type: ignore[arg-type]  # told if unknown

    def expire(self, *, now: float | None = None) -> tuple[Gone, ...]:
        """Take out what is past its retention, in all resources where this caller may.

        It goes to the resource's own `archive`, or is deleted where its lifecycle says so. Each is a line of the
        resource's history and an element of the answer.

        Args:
            now: Unix time, in seconds; the present if not given.

        Raises:
            NotPermitted: Something has a retention, and the role may not expire it. Nothing was taken out.
        """
        places = []
        for name in self.provisioned:
            record = self.record(name)
            if record.storage.backend == "proxy" or record.storage.retention_days is None:
                continue
            Gate(self.caller, (record,)).require("expire")
            places.append(self._place(record))
        gone: list[Gone] = []
        for place in places:
            before = place.before(now)
            kind = _KINDS[place.record.identity.type](place)
            assert before is not None and not isinstance(kind, Notebook)
            gone += kind.expire(before)
        return tuple(gone)

    def snapshot(self, name: str) -> Path:
        """Copy all of a resource, as it is at one moment; returns the folder of the copy.

        Raises:
            NotPermitted: The role may not.
            BadInput: The resource is not there, stands for another, or is not to be copied.
        """
        record = self.record(name)
        Gate(self.caller, (record,)).require("snapshot")
        if not record.lifecycle.snapshot or record.storage.backend == "proxy" or self._stored(name) is None:
            why = (
                "is not there yet" if self._stored(name) is None else "stands for another, or is not to be copied"
            )
            raise BadInput(f"{name} {why}; no snapshot was made.", value=name)
        place = self._place(record)
        above = place.folder / "snapshots"
        place.make(above)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        folder = above / f"{stamp}-{uuid.uuid4().hex[:6]}"
        part = folder.with_name(f".{folder.name}.part")
        place.make(part)
        with refusing_clearly(part):
            _KINDS[record.identity.type](place).copy_to(part)
            shutil.copyfile(place.folder / RECORD, part / RECORD)
            part.rename(folder)
        place.tell("snapshot", item=folder.name)
        return folder

    def end_session(self) -> tuple[Path, ...]:
        """End the session: its resources are moved to `ended_sessions`, or deleted where they are not archived.

        Returns:
            Where they are now; notebooks are always kept.

        Raises:
            BadInput: No session is open.
            NotPermitted: The role may not expire one of them.
        """
        if self.session is None:
            raise BadInput("no session is open; give session= to `Resources.open`.")
        found = [self.record(p.parent.name) for p in sorted(self._session_folder.glob(f"*/{RECORD}"))]
        for record in found:
            document = record.identity.type == "document" or record.storage.backend == "proxy"
            Gate(self.caller, (record,)).require("provision" if document else "expire")
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        above = self.folder / "ended_sessions" / f"{self.session}-{stamp}-{uuid.uuid4().hex[:6]}"
        kept = []
        with refusing_clearly(above):
            for record in found:
                place = self._place(record)
                if record.lifecycle.archive or record.identity.type == "document":
                    place.tell("session_ended", item=self.session)
                    make_folder(above)
                    place.folder.rename(above / record.name)
                    kept.append(above / record.name)
                else:
                    shutil.rmtree(place.folder)
            if self._session_folder.is_dir() and not any(self._session_folder.iterdir()):
                self._session_folder.rmdir()
        return tuple(kept)

    def history(self, name: str) -> tuple[dict[str, Any], ...]:
        """What was done with a resource, in order: who, in which role, what, to which item, with which digest.

        Raises:
            NotPermitted: The role may not read it.
        """
        record = self.record(name)
        Gate(self.caller, (record,)).require("read")
        if self._stored(name) is None:
            return ()
        path = self._place(record).folder / HISTORY
        try:
            lines = path.read_bytes().splitlines(keepends=True)
            return tuple(json.loads(line) for line in lines if line.endswith(b"\n"))
        except (OSError, ValueError) as error:
            raise ContentChanged(f"{path} cannot be read: {error}.", path=str(path)) from None

    def change_at(self, name: str, at: int) -> dict[str, Any]:
        """A change as the history has it: what `announce` is told of.

        Args:
            name: The resource.
            at: Where its line begins, in bytes.

        Raises:
            NotPermitted: The role may not read it.
            BadInput: There is no such resource, or no change begins there.
        """
        record = self.record(name)
        Gate(self.caller, (record,)).require("read")
        return change_at(self._place(record).folder, at)

    def tell(self, name: str, event: str, **facts: Any) -> None:
        """Add an event of one's own to the history of a resource.

        Raises:
            NotPermitted: The role may not add to it.
            BadInput: The history has a meaning of its own for the event.
        """
        if event in OWN_EVENTS:
            raise BadInput(
                f"{event!r} is written into a history by what is done itself; name your own event otherwise.",
                value=event,
            )
        place = self._there(name)
        place.gate.require("add")
        place.tell(event, **facts)

    def claim(self, name: str, what: str) -> AbstractContextManager[bool]:
        """Hold a piece of work, so that nobody else begins the same meanwhile; others wait.

        Args:
            name: The resource that its result goes to.
            what: What identifies the work.

        Yields:
            Whether it had to be waited for: then somebody else has perhaps done it.
        """
        place = self._there(name)
        place.gate.require("add")
        claims = place.folder / "claims"
        place.make(claims)
        digest = hashlib.sha256(what.encode()).hexdigest()[:32]
        return held(claims / digest, mode=place.file_mode, within_s=None)

    @property
    def _session_folder(self) -> Path:
        assert self.session is not None
        return self.folder / "sessions" / self.session

    def _home(self, record: Resource) -> Path:
        if record.storage.persistence == "project":
            return self.folder / record.name
        if self.session is None:
            raise BadInput(
                f"each session has a {record.name} of its own; give session= to `Resources.open`.",
                value=record.name,
            )
        return self._session_folder / record.name

    def _stored(self, name: str) -> Resource | None:
        """The record of a resource that is there."""
        if not isinstance(name, str) or "/" in name or name.startswith("."):
            return None
        homes = [self.folder] if self.session is None else [self._session_folder, self.folder]
        for home in homes:
            path = home / name / RECORD
            own_folder(path.parent)
            if path.is_file():
                record = build(Resource, read_json(path), where=str(path))
                if record.name != name:
                    raise ContentChanged(f"{path} is the record of {record.name!r}; somebody has moved it.")
                return record
        return None

    def _require_same(self, given: Resource) -> None:
        stored = self._stored(given.name)
        if stored is None:
            return
        made = {"created_by": "", "created_at": None}
        bare = stored.model_copy(update={"provenance": stored.provenance.model_copy(update=made)})
        if bare != given.model_copy(update={"provenance": given.provenance.model_copy(update=made)}):
            parts = [part for part in Resource.model_fields if getattr(bare, part) != getattr(given, part)]
            raise BadInput(
                f"{given.name} in {self.folder} was made with another {', '.join(parts)} than is given now; leave "
                "`define` out to use it as it is, or define one of another name.",
                value=given.name,
            )

    def _place(self, record: Resource, *others: Resource) -> Place:
        return Place(self._home(record), record, Gate(self.caller, (*others, record)), self._clock, self._announce)

    def _there(self, name: str) -> Place:
        """The place of a resource, made if it was not there and may be."""
        record = self.record(name)
        if self._stored(name) is None:
            if record.provisioning == "static":
                raise BadInput(
                    f"{name} is not made on first use, and is not there; `provision({name!r})` makes it, in a "
                    f"role that may ({', '.join(record.access.roles_that_may('provision')) or 'none'}).",
                    value=name,
                )
            gate = Gate(self.caller, (record,))
            if not (gate.may("add") or gate.may("provision")) and record.storage.backend != "proxy":
                gate.require("read")
                raise NotPermitted(
                    f"{name} is not there yet, and {self.caller} may not make it; it is made when somebody writes "
                    f"into it ({', '.join(record.access.roles_that_may('add'))}).",
                    action="provision",
                    resource=name,
                )
            self._provision(record)
            record = self.record(name)
        return self._place(record)

    def _opened(self, name: str, kind: type[Kind]) -> Kind:
        record = self.record(name)
        if _KINDS[record.identity.type] is not kind:
            call = _CALLS[record.identity.type]
            raise BadInput(f"{name} is a {record.identity.type}; open it by `{call}({name!r})`.", value=name)
        if record.storage.backend == "proxy":
            return kind(self._behind(record))
        return kind(self._there(name))

    def _behind(self, record: Resource) -> Place:
        """The place of what a proxy stands for; the permissions of both count."""
        if record.content.format in ("ase", "optimade"):
            raise BadInput(
                f"{record.name} stands for {record.storage.target} ({record.content.format}); it is asked by "
                "`query_materials_database`.",
                value=record.name,
            )
        folder, _, name = record.storage.target.rpartition("#")
        if not folder or not name:
            raise BadInput(
                f"{record.name}: the target {record.storage.target!r} must be FOLDER#NAME, a resource of another "
                "folder.",
                value=record.storage.target,
            )
        there = Resources.open(folder, caller=self.caller, clock=self._clock)
        inner = there._stored(name)
        if inner is None or inner.identity.type != record.identity.type or inner.storage.backend == "proxy":
            what = "is not there" if inner is None else f"is a {inner.identity.type} ({inner.provisioning})"
            raise BadInput(
                f"{record.name} stands for {name} in {folder}, which {what}; wanted: a {record.identity.type} "
                "that was made there.",
                value=record.storage.target,
            )
        return there._place(inner, record)

    def _provision(self, record: Resource) -> None:
        """Make a resource under another name and rename it: of several who do so at once one has made it."""
        home = self._home(record)
        if self._stored(record.name) is not None:
            return
        own_folder(home)
        with refusing_clearly(home.parent):
            make_folder(home.parent)
        part = home.with_name(f".{home.name}.{uuid.uuid4().hex[:12]}.part")
        made = record.provenance.model_copy(update={"created_by": str(self.caller), "created_at": self._clock()})
        stored = record.model_copy(update={"provenance": made})
        place = Place(part, stored, Gate(self.caller, (stored,)), self._clock)
        try:
            place.make(part)
            if record.storage.backend != "proxy":
                _KINDS[record.identity.type](place).create()
            place.write(part / RECORD, stored.model_dump_json(indent=1).encode())
            place.tell("provisioned", item=record.name)
            with refusing_clearly(home):
                try:
                    part.rename(home)
                except OSError:
                    if not (home / RECORD).is_file():
                        raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
