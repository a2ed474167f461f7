"""The tools of a folder: one text and one record each, versions that stay as they were approved.

    NAME.py  NAME.json              as it is now
    versions/NAME@1.0.0.py  .json   as it was approved

Whoever looks sees what was edited by hand since: it is pending then. Writers take turns by a lock on a file.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.sandbox.record import Tier
from hpcagent.errors import BadInput, HpcAgentError, NotThere
from hpcagent.model.base import read_json
from hpcagent.model.texts import checked_name
from hpcagent.registry.checked import check_whole, of_tool
from hpcagent.registry.files import mark, newlines, read_own, write_record, young
from hpcagent.registry.findings import Finding, refuse
from hpcagent.registry.names import NAME_WORDS, is_name
from hpcagent.registry.record import ToolRecord, digest_of
from hpcagent.registry.source import Parsed, ToolText
from hpcagent.registry.trials import Trial
from hpcagent.resources.locking import held
from hpcagent.shown import plain
from hpcagent.store.files import make_folder, write_whole

__all__ = ["Change", "Pins", "Seen", "Tools", "split_version"]

Pins = Callable[[str, str], str | None]
"""Of a name and version: the seal with which it was approved, as a journal has it; None: it was not."""
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})\Z")
LOCKED_S = 20.0
_WHOLE_DIGEST = re.compile(r"[0-9a-fA-F]{64}\Z")
WEAKER = "it asks for the sandbox `limits`: its runs can read your files and use the network"


@dataclass(frozen=True, slots=True)
class Seen:
    """A tool as it is now.

    Attributes:
        record: What is on record of it.
        problem: Why its files cannot be used, in a sentence; empty if they can.
    """

    record: ToolRecord
    problem: str = ""

    @property
    def usable(self) -> bool:
        """Whether it may run."""
        return self.record.state == "approved" and not self.problem


@dataclass(frozen=True, slots=True)
class Change:
    """What a look has found changed by hand.

    Attributes:
        name: The tool.
        version: Its version now.
        before: Its version before.
        was: Its state before; empty: it is new.
        now: Its state now.
        why: In a sentence.
    """

    name: str
    version: str
    before: str
    was: str
    now: str
    why: str


def split_version(reference: str) -> tuple[str, str]:
    """Name and version of `NAME@VERSION`; no version of `NAME`.

    Example:
        >>> split_version("rate@1.2.0"), split_version("rate")
        (('rate', '1.2.0'), ('rate', ''))
    """
    name, _, version = reference.partition("@")
    return name, version


class Tools:
    """The tools of a folder.

    Args:
        root: The folder; made when something is first written.
        taken: Names that no tool may have: those of apps that come with the library.
        owner: Who owns the folder: what was edited by hand is theirs.
        pins: What a journal says was approved; None: the records alone say it.
        told: Is given what was changed by hand, as soon as it is seen.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        root: Path,
        *,
        taken: Callable[[], Collection[str]] = tuple,
        owner: str = "",
        pins: Pins | None = None,
        told: Callable[[Change], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root, self.versions = root, root / "versions"
        self._taken, self._owner, self._pins, self._clock = taken, owner, pins, clock
        self._told = told or (lambda change: None)
        self._known: dict[str, tuple[Any, Seen]] = {}  # by name: as its files were when they were last read

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        make_folder(self.versions)
        with held(self.root / ".lock", within_s=LOCKED_S):
            yield

    # -- what there is ------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Names of all tools, sorted."""
        if not self.root.is_dir():
            return []
        stems = {path.stem for path in self.root.iterdir() if path.suffix in (".py", ".json")}
        return sorted(name for name in stems if is_name(name))

    def has(self, name: str) -> bool:
        """Whether there is a tool of that name, in whatever state."""
        return is_name(name) and any(os.path.lexists(self._path(name, end)) for end in ("py", "json"))

    def look(self) -> list[Seen]:
        """All tools as they are now; what was edited by hand since the last look is told."""
        return [self._see_or_say(name) for name in self.names()]

    def _see_or_say(self, name: str) -> Seen:
        """A tool as it is now; one that cannot be looked at takes no other from the list."""
        try:
            return self._see(name)
        except (HpcAgentError, ValueError, TypeError, RecursionError) as error:
            record = ToolRecord(name=name, sha256="0" * 64, asked_by=self._owner)
            return Seen(record, f"it cannot be looked at: {plain(str(error))[:200]}")

    def see(self, name: str) -> Seen:
        """One tool as it is now.

        Raises:
            BadInput: There is none of that name.
        """
        if not self.has(name):
            raise NotThere(
                f"there is no tool {name!r}; `hpcagent tools list` has those that there are.", value=name
            )
        return self._see(name)

    def text(self, name: str, version: str = "") -> str:
        """The text of a tool, as it is now, or as a version of it was approved.

        Raises:
            BadInput: There is none, or it is no plain file.
        """
        path = self._version(name, version, "py") if version else self._path(name, "py")
        return read_own(path)

    def approved(self, reference: str) -> tuple[ToolRecord, Path]:
        """A tool that may run, by `NAME` or `NAME@VERSION`, and its text, which stays as it is.

        Raises:
            BadInput: It is not there, not approved, or its files are others than were approved.
        """
        name, version = split_version(reference)
        if not version:
            seen = self.see(name)
            if seen.problem:
                raise BadInput(f"the tool {name} cannot be used: {seen.problem}.", value=name)
            if seen.record.state != "approved":
                raise BadInput(
                    f"the tool {name} is {seen.record.state}: a person approves it first "
                    f"(`hpcagent tools approve {name}`).",
                    value=name,
                )
            version = seen.record.version
        record = self._record(self._version(name, version, "json"))
        pin = record.seal if self._pins is None else self._pins(name, version)
        if not record.intact or record.seal != pin or (record.name, record.version) != (name, version):
            raise BadInput(f"{name}@{version}: its record is another one than was approved.", value=reference)
        if record.state != "approved":
            raise BadInput(f"{name}@{version} is {record.state}.", value=reference)
        path = self._version(name, version, "py")
        if digest_of(read_own(path)) != record.sha256:
            raise BadInput(f"{name}@{version}: its text is another one than was approved.", value=reference)
        return record, path

    # -- what is written ----------------------------------------------------------------------

    def check(self, text: str) -> Parsed:
        """Read a text and check it; nothing is written."""
        return check_whole(text, taken=self._taken(), others=self.names())

    def register(
        self,
        text: str,
        *,
        by: str,
        origin: str = "code",
        why: str = "",
        sandbox: Tier = "bubblewrap",
        may_replace: bool = False,
    ) -> list[ToolRecord]:
        """Register each function of a text as a tool, all or none; each is pending.

        Args:
            text: Python.
            by: Who asks.
            origin: Where the text is from, in words.
            why: What it is for.
            sandbox: The tier that each run needs.
            may_replace: Whether tools of others may get another text.

        Raises:
            BadInput: Errors of the text, all of them at once; or a name is another person's tool.
        """
        parsed = self.check(text := newlines(text))
        refuse(parsed.findings, "the text")
        with self._held():
            for tool in parsed.tools:
                self._refuse_others(tool.name, by, may_replace)
            return [
                self._write(tool, parsed, by=by, origin=origin, why=why, sandbox=sandbox) for tool in parsed.tools
            ]

    def _refuse_others(self, name: str, by: str, may_replace: bool) -> None:
        if not self.has(name) or may_replace:
            return
        seen = self._see(name, locked=True)
        if seen.record.asked_by != by:
            raise BadInput(
                f"{name} is a tool of {seen.record.asked_by}; give yours another name, or ask them, or "
                "somebody who approves, to register it.",
                value=name,
            )

    def _write(
        self, tool: ToolText, parsed: Parsed, *, by: str, origin: str, why: str, sandbox: Tier
    ) -> ToolRecord:
        record = self._fresh(tool, parsed.findings, digest_of(tool.text), by=by, origin=origin)
        weaker = () if sandbox == "bubblewrap" else (Finding(rule="sandbox", says=WEAKER, severity="warning"),)
        record = record.sealed(why=why, sandbox=sandbox, findings=(*record.findings, *weaker))
        write_whole(self._path(tool.name, "py"), tool.text)
        write_record(self._path(tool.name, "json"), record)
        return record

    def tested(self, name: str, sha256: str, trial: Trial) -> bool:
        """Keep what the tests of a text have shown; False: it is another text by now, or was decided on."""
        with self._held():
            seen = self._see(name, locked=True)
            if seen.record.sha256 != sha256 or seen.record.state == "approved":
                return False
            write_record(self._path(name, "json"), seen.record.sealed(tests=trial))
            return True

    def decide(
        self,
        name: str,
        *,
        approve: bool,
        by: str,
        note: str = "",
        sha256: str = "",
        despite_tests: bool = False,
        dry_run: bool = False,
        on_record: Callable[[ToolRecord], None] = lambda record: None,
    ) -> ToolRecord:
        """Approve or reject a tool as it is now; one that is approved can be rejected later.

        Args:
            name: The tool.
            approve: Or reject.
            by: Who decides.
            note: What they say.
            sha256: The digest of the text that they have read, all 64 digits; empty: not said.
            despite_tests: Approve it although its tests have failed or could not run.
            dry_run: Check all that a decision needs, and decide nothing.
            on_record: Puts the decision on record, before anybody else looks at the tool.

        Raises:
            BadInput: It is not there, its text has errors or is another than they read, or its tests say no.
        """
        with self._held():
            seen = self._see(name, locked=True) if self.has(name) else None
            if seen is None:
                raise NotThere(
                    f"there is no tool {name!r}; `hpcagent tools list` has those that there are.", value=name
                )
            record = seen.record
            if sha256 and not _WHOLE_DIGEST.match(sha256):
                raise BadInput(
                    f"sha256: all 64 digits of the text's digest are needed, as `hpcagent tools show {name}` "
                    "has them: other texts with the same beginning can be made.",
                    value=sha256[:64],
                )
            if sha256 and record.sha256 != sha256.lower():
                raise BadInput(
                    f"the text of {name} has the SHA-256 {record.sha256[:12]}..., not {sha256[:12]}...: it was "
                    "changed since it was looked at. Look at it again.",
                    value=name,
                )
            if approve and record.state != "approved":
                _refuse_unready(seen, despite_tests)
            elif approve or record.state == "rejected":
                return record
            if dry_run:
                return record
            state = "approved" if approve else "rejected"
            decided = record.sealed(state=state, decided_by=by, decided_at=self._clock(), note=note)
            if approve:
                self._keep_version(decided)
            elif record.state == "approved":
                write_record(self._version(name, record.version, "json"), decided)
            write_record(self._path(name, "json"), decided)
            on_record(decided)
            return decided

    def _keep_version(self, record: ToolRecord) -> None:
        """Keep the text and the record as they were approved; a text that is kept is never another one later."""
        text = read_own(self._path(record.name, "py"))
        if digest_of(text) != record.sha256:
            raise BadInput(f"the text of {record.name} was changed at this moment; look at it again.")
        path = self._version(record.name, record.version, "py")
        if os.path.lexists(path):
            if read_own(path) != text:
                raise BadInput(f"{path} is there with another text; move it away first.", value=str(path))
        else:
            write_whole(path, text)
            path.chmod(0o444)
        write_record(self._version(record.name, record.version, "json"), record)

    def remove(self, name: str) -> ToolRecord:
        """Remove a tool that is not approved; versions of it that were approved stay.

        Raises:
            BadInput: There is none, or it is approved.
        """
        with self._held():
            seen = self.see(name) if not self.has(name) else self._see(name, locked=True)
            if seen.record.state == "approved":
                raise BadInput(f"{name} is approved; reject it first.", value=name)
            for end in ("py", "json"):
                self._path(name, end).unlink(missing_ok=True)
            self._known.pop(name, None)
            return seen.record

    # -- a look -------------------------------------------------------------------------------

    def _see(self, name: str, *, locked: bool = False) -> Seen:
        now = tuple(mark(self._path(name, end)) for end in ("py", "json"))
        known = self._known.get(name)
        if known is not None and known[0] == now and not locked:
            return known[1]
        with contextlib.nullcontext() if locked else self._held():
            now = tuple(mark(self._path(name, end)) for end in ("py", "json"))
            seen, change = self._reconciled(name)
            if change is not None:
                self._told(change)
                now = tuple(mark(self._path(name, end)) for end in ("py", "json"))
            if not young(now, time.time()):  # clocks of file systems tick: one that is young may change unseen
                self._known[name] = now, seen
            else:
                self._known.pop(name, None)
            return seen

    def _reconciled(self, name: str) -> tuple[Seen, Change | None]:
        """A tool as its files are, and the record that goes with them."""
        record: ToolRecord | None = None
        why = "it has no record"
        with contextlib.suppress(HpcAgentError):
            record = self._record(self._path(name, "json"))
        if record is not None and (not record.intact or record.name != name):
            why = "its record was edited by hand"
        elif os.path.lexists(self._path(name, "json")) and record is None:
            why = "its record cannot be read"
        try:
            text = read_own(self._path(name, "py"))
        except BadInput as error:
            return self._without_text(name, record, error.message)
        sha256 = digest_of(text)
        if record is not None and record.name == name and record.intact:
            if record.sha256 != sha256:
                why = "its text was edited by hand"
            elif record.state == "approved" and not self._pinned(record):
                why = "that it was approved is not on record"
            else:
                return Seen(record), None
        was, old = ("", "") if record is None else (record.state, record.version)
        back = self._approved_before(name, sha256)
        if back is not None:
            write_record(self._path(name, "json"), back)
            said = f"{why}; it is the text of {back.version} again, which is approved"
            return Seen(back), Change(name, back.version, old, was, back.state, said)
        fresh = self._by_hand(name, text, sha256, why)
        if record is not None and record.name == name:
            fresh = fresh.sealed(sandbox="bubblewrap", why=record.why)
        write_record(self._path(name, "json"), fresh)
        return Seen(fresh), Change(name, fresh.version, old, was, "pending", why)

    def _without_text(self, name: str, record: ToolRecord | None, why: str) -> tuple[Seen, Change | None]:
        problem = why.rstrip(".")
        known = record or ToolRecord(name=name, sha256="0" * 64, asked_by=self._owner)
        return Seen(known, problem), None

    def _by_hand(self, name: str, text: str, sha256: str, why: str) -> ToolRecord:
        parsed = self.check(text)
        tool = next((one for one in parsed.tools if one.name == name), None)
        findings = list(parsed.findings)
        if len(parsed.tools) != 1 or tool is None:
            says = f"{name}.py has to define one public function, called {name}"
            findings.append(Finding(rule="name", says=says, tool=name))
        if tool is None:
            record = ToolRecord(
                name=name, version=self._next(name), sha256=sha256, asked_by=self._owner, at=self._clock()
            )
            trial = Trial(state="none", why="its text has errors")
            return record.sealed(findings=tuple(findings), origin=f"by hand: {why}", tests=trial)
        return self._fresh(tool, findings, sha256, by=self._owner, origin=f"by hand: {why}")

    def _fresh(
        self, tool: ToolText, findings: Collection[Finding], sha256: str, *, by: str, origin: str
    ) -> ToolRecord:
        record = ToolRecord(
            name=tool.name,
            version=self._next(tool.name),
            sha256=sha256,
            asked_by=by,
            at=self._clock(),
            origin=origin,
            contract=tool.signature,
            findings=of_tool(findings, tool),
        )
        if record.refused:
            return record.sealed(tests=Trial(state="none", why="its text has errors"))
        return record.sealed()

    def _pinned(self, record: ToolRecord) -> bool:
        return self._pins is None or self._pins(record.name, record.version) == record.seal

    def _kept(self, name: str) -> list[ToolRecord]:
        """Its versions, as far as their records can be read."""
        found = []
        for path in sorted(self.versions.glob(f"{name}@*.json")):
            with contextlib.suppress(HpcAgentError):
                found.append(self._record(path))
        return found

    def _approved_before(self, name: str, sha256: str) -> ToolRecord | None:
        for one in self._kept(name):
            fits = (one.name, one.sha256, one.state) == (name, sha256, "approved")
            if fits and one.intact and self._pinned(one):
                return one
        return None

    def _next(self, name: str) -> str:
        """The version of a text that is new: behind all that were kept."""
        found = (_VERSION.search(path.stem) for path in self.versions.glob(f"{name}@*.py"))
        numbers = [tuple(map(int, one.groups())) for one in found if one is not None]
        if not numbers:
            return "1.0.0"
        major, minor, _ = max(numbers)
        return f"{major}.{minor + 1}.0"

    # -- files --------------------------------------------------------------------------------

    def _path(self, name: str, end: str) -> Path:
        if not is_name(name):
            raise BadInput(f"{name[:80]!r} is no name of a tool: {NAME_WORDS}.", value=name[:80])
        return self.root / f"{checked_name(name, 'the name of the tool')}.{end}"

    def _version(self, name: str, version: str, end: str) -> Path:
        self._path(name, end)
        if not _VERSION.match(version):
            raise BadInput(f"{version[:40]!r} is no version like 1.0.0.", value=version[:40])
        path = self.versions / f"{name}@{version}.{end}"
        if (
            not os.path.lexists(path)
            and not os.path.lexists(path.with_name(f"{name}@{version}.py"))
            and end == "json"
        ):
            raise NotThere(f"there is no version {version} of the tool {name} that was approved.", value=version)
        return path

    @staticmethod
    def _record(path: Path) -> ToolRecord:
        read_own(path)  # a plain file of one's own
        try:
            return ToolRecord.model_validate(read_json(path))
        except (ValueError, OSError) as error:
            raise BadInput(f"{path.name} is no record of a tool: {str(error)[:200]}.") from None


def _refuse_unready(seen: Seen, despite_tests: bool) -> None:
    record = seen.record
    if seen.problem:
        raise BadInput(f"{record.name} cannot be approved: {seen.problem}.", value=record.name)
    refuse(record.findings, f"{record.name}.py")
    if record.tests.state == "waiting":
        raise BadInput(f"the tests of {record.name} have not ended; ask again in a moment.", value=record.name)
    if record.tests.state != "passed" and not despite_tests:
        bad = [one.name for one in record.tests.cases if not one.passed]
        said = f" ({'; '.join(bad)[:300]})" if bad else f" ({record.tests.why[:300]})" if record.tests.why else ""
        what = {"failed": "have failed", "none": "are not there", "not run": "could not run"}[record.tests.state]
        raise BadInput(
            f"the tests of {record.name} {what}{said}. Correct the text, or say in the approval that it is "
            "approved all the same (despite_tests).",
            value=record.name,
        )
