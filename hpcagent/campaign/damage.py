"""What was not as it should be in the records of a campaign, and what was done about it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pydantic import ValidationError

from hpcagent.model.base import explain
from hpcagent.model.records import Manifest, Result

__all__ = ["MOST_TOLD", "Damage"]

# So many damaged lines are told one by one.
MOST_TOLD = 5


class Damage:
    """What of a journal could not be read, and what was found elsewhere instead.

    Attributes:
        lines: Lines of the journal, or results or manifests on them, that could not be read.
        said: Which, and what is wrong with them: a sentence each, of the first.
        told: How many of them the journal itself tells of (event `rebuilt`).
        doubled: Lines that stood there twice; each counts once.
        unknown: Keys that this version does not know: a newer one has written them.
        strays: Execution ids of results whose manifest had not come before them.
        rebuilt: Execution ids of runs whose manifest was not found in the journal but in the run's own directory.
        unrecorded: Those manifests, inner runs' included, of which the journal does not tell yet.
        found: How many results were read from the runs' own directories, as the journal does not have them.
        read_from_work: Execution ids of those.
        unusable: What is wrong with results there that cannot be used as they are: sentences.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.said: list[str] = []
        self.told = 0
        self.doubled = 0
        self.unknown: dict[str, None] = {}
        self.strays: dict[str, None] = {}
        self.rebuilt: set[str] = set()
        self.unrecorded: list[Manifest] = []
        self.found = 0
        self.read_from_work: set[str] = set()
        self.unusable: list[str] = []

    @property
    def none(self) -> bool:
        """Whether every line could be read and came in its place."""
        return not (self.lines or self.strays or self.rebuilt)

    @property
    def count(self) -> int:
        """How many lines, or results without their manifest, are of no use."""
        return self.lines + len(self.strays)

    def add(
        self, line: int, error: BaseException | str, record: type[Manifest] | type[Result] | None = None
    ) -> None:
        """Note that a line, or a record on it, could not be read.

        Args:
            line: Its number.
            error: Why.
            record: What it was to be.
        """
        self.lines += 1
        if len(self.said) >= MOST_TOLD:
            return
        if isinstance(error, ValidationError) and record is not None:
            words = explain(record, error).message
        elif isinstance(error, KeyError):
            words = f"the key {error} is missing."
        elif isinstance(error, (TypeError, AttributeError)):
            words = f"it has not the form of its kind of event ({error})."
        else:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
        self.said.append(f"line {line}: {words}")

    def remarks(self, *, gaps: int, freed: Mapping[str, float]) -> tuple[str, ...]:
        """The same in sentences without their full stop.

        Args:
            gaps: How many positions have no run; see `Facts.gaps`.
            freed: Runs whose folders were removed on purpose, and when; see `Facts.freed`.
        """
        said = []
        if self.lines or self.rebuilt:
            more = f", and {self.lines - len(self.said)} more" if self.lines > len(self.said) else ""
            words = f"damage in events.jsonl ({'; '.join(self.said)}{more})" if self.lines else "events.jsonl"
            said.append(
                f"{words}: {len(self.rebuilt)} run(s) that were lost there were put back from work/"
                if self.rebuilt
                else f"{words}: no run that had begun was lost with it"
            )
            if gaps:
                said.append(f"{gaps} run(s) planned there had not begun and are gone; others take their place")
        if self.found:
            said.append(f"{self.found} result(s) that events.jsonl does not have were read from work/")
        said += self.unusable[:MOST_TOLD]
        if len(self.unusable) > MOST_TOLD:
            said.append(f"{len(self.unusable) - MOST_TOLD} more result.json cannot be used")
        if self.strays:
            some = ", ".join(list(self.strays)[:MOST_TOLD])
            said.append(
                f"results of {len(self.strays)} run(s) in events.jsonl are left out, as neither it nor work/ says "
                f"what was run: {some}"
            )
        if freed:
            when = time.strftime("%Y-%m-%d", time.localtime(max(freed.values())))
            said.append(
                f"the folders of {len(freed)} run(s) were removed to free space (last on {when}): their "
                "numbers are here, their files are not"
            )
        if self.doubled:
            said.append(f"{self.doubled} line(s) of events.jsonl stand there twice and count once")
        if self.unknown:
            said.append(
                f"events.jsonl was written by another version: what it says by {', '.join(self.unknown)} is not "
                "used (it stays in the file)"
            )
        return tuple(said)
