"""What is on record of a tool and of an agent; a seal tells whether somebody has changed it by hand since."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import Field

from hpcagent.apps.sandbox.record import Tier
from hpcagent.model.base import Record, canonical_json
from hpcagent.model.texts import Name
from hpcagent.registry.findings import Finding, errors_of
from hpcagent.registry.signature import Signature
from hpcagent.registry.trials import Trial

__all__ = ["AgentRecord", "State", "ToolRecord", "digest_of"]

State = Literal["pending", "approved", "rejected"]
SHA256 = r"^[0-9a-f]{64}$"


def digest_of(text: str) -> str:
    """SHA-256 of a text.

    Example:
        >>> digest_of("")[:8]
        'e3b0c442'
    """
    return hashlib.sha256(text.encode()).hexdigest()


class ToolRecord(Record):
    """A tool: `NAME.json` beside `NAME.py`.

    Attributes:
        name: Its name: that of its function, and of its app.
        version: Semantic version; another text that is approved is another version.
        sha256: Digest of its text.
        state: It runs only when a person has approved it.
        asked_by: Who registered it, or owns the folder where it was edited by hand.
        at: When that was, as Unix time in seconds.
        origin: Where the text came from, in words.
        why: What it is for, as whoever registered it says.
        sandbox: The tier that each of its runs has at least.
        decided_by: Who approved or rejected it.
        decided_at: When, as Unix time in seconds.
        note: What they said.
        contract: What it takes and gives, as read from the text.
        findings: What the checks have found; a text with an error among them is not approved.
        tests: What its tests have shown.
        seal: Digest of all this.
    """

    name: Name
    version: str = "1.0.0"
    sha256: str = Field(pattern=SHA256)
    state: State = "pending"
    asked_by: str = ""
    at: float = 0.0
    origin: str = ""
    why: str = Field(default="", max_length=2000)
    sandbox: Tier = "bubblewrap"
    decided_by: str = ""
    decided_at: float = 0.0
    note: str = ""
    contract: Signature | None = None
    findings: tuple[Finding, ...] = ()
    tests: Trial = Trial()
    seal: str = ""

    def sealed(self, **changes: Any) -> ToolRecord:
        """A copy with changes and the seal that goes with them."""
        changed = self.model_copy(update=changes)
        return changed.model_copy(update={"seal": changed._digest()})

    @property
    def intact(self) -> bool:
        """Whether nobody has changed it by hand."""
        return self.seal == self._digest()

    def _digest(self) -> str:
        whole = self.model_dump(mode="json", exclude={"seal"})
        if self.contract is not None and self.contract.walltime_s is None:
            del whole["contract"]["walltime_s"]  # seals of records from before it was there hold
        return digest_of(canonical_json(whole))

    @property
    def refused(self) -> tuple[Finding, ...]:
        """Errors of its text."""
        return tuple(errors_of(self.findings))


class AgentRecord(Record):
    """An agent: `agents/NAME.json`.

    Attributes:
        name: Its name.
        role: What it is told that it is and does.
        tools: Names of the tools that it has.
        by: Who made it, or changed it last.
        at: When, as Unix time in seconds.
        origin: Where it is from, in words; empty: it was made here.
        waits: Whether it is from elsewhere and a person has not let it work yet.
    """

    name: Name
    role: str = Field(max_length=20_000)
    tools: tuple[Name, ...] = ()
    by: str = ""
    at: float = 0.0
    origin: str = ""
    waits: bool = False
