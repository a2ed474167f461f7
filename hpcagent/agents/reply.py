"""An answer: what the model says, what really ran, and where each number comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcagent.agents.cited import RUN_ID, Citation
from hpcagent.agents.turn import Called

__all__ = ["Reply", "unknown_runs"]

MOST_SHOWN = 30


@dataclass(frozen=True)
class Reply:
    """The answer to a question.

    Attributes:
        state: `answered`, or `stopped` before there was an answer.
        text: What the supervisor says; of one that was stopped: why.
        calls: What was really called.
        runs: Runs and campaigns that the calls have named.
        states: How each that it has started stood at its end; a failure by its name.
        numbers: Each number of the text, and where it comes from.
        unknown_runs: Handles in the text that no call has named.
        thread: The thread that it belongs to.
        model: Who was asked.
        requests: How often the model was asked.
        input_tokens: Tokens that were sent.
        output_tokens: Tokens that came back.
        node_hours: What the runs and campaigns that it has started have taken so far, in node-hours.
        wall_s: How long it took, in seconds.
    """

    state: Literal["answered", "stopped"]
    text: str
    calls: tuple[Called, ...] = ()
    runs: tuple[str, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    numbers: tuple[Citation, ...] = ()
    unknown_runs: tuple[str, ...] = ()
    thread: str = ""
    model: str = ""
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    node_hours: float = 0.0
    wall_s: float = 0.0

    @property
    def flagged(self) -> tuple[Citation, ...]:
        """Numbers that no run, tool or question has."""
        return tuple(one for one in self.numbers if one.flagged)

    def plain(self) -> dict[str, Any]:
        """For a record."""
        counts = ("requests", "input_tokens", "output_tokens", "node_hours", "wall_s")
        return {
            "state": self.state,
            "text": self.text,
            "thread": self.thread,
            "model": self.model,
            "runs": list(self.runs),
            "started": list(self.started),
            "states": dict(self.states),
            "unknown_runs": list(self.unknown_runs),
            "calls": [one.plain() for one in self.calls],
            "numbers": [one.plain() for one in self.numbers],
            "flagged": [one.text for one in self.flagged],
            **{name: getattr(self, name) for name in counts},
        }

    def __str__(self) -> str:
        parts = [self.text if self.state == "answered" else f"stopped: {self.text}"]
        parts += _lines("Not of any run (check these):", [one.text for one in self.flagged])
        parts += _lines("Not a run that was called here (check these):", self.unknown_runs)
        parts += _lines("Numbers:", [_where(one) for one in self.numbers if not one.flagged])
        parts += _lines("What ran:", [self._started(run) for run in self.started] or ["nothing"])
        parts += _lines("What was called:", [_called(one) for one in self.calls])
        return "\n".join(parts)

    @property
    def started(self) -> tuple[str, ...]:
        """Runs and campaigns that it has started: what was found, read or refused did not run for it."""
        return tuple(dict.fromkeys(run for call in self.calls for run in call.started))

    def _started(self, run: str) -> str:
        state = self.states.get(run, "")
        return f"{run}: {state}" if state else run


def _lines(title: str, lines: Any) -> list[str]:
    several = list(dict.fromkeys(lines))
    if not several:
        return []
    more = [f"  ({len(several) - MOST_SHOWN} more)"] if len(several) > MOST_SHOWN else []
    return ["", title, *(f"  {line}" for line in several[:MOST_SHOWN]), *more]


def _where(one: Citation) -> str:
    if one.source == "asked":
        return f"{one.text}: as it was asked"
    unit = f" {one.unit}" if one.unit not in ("", "1") else ""
    of = "" if one.source == "run" else "tool "
    more = f" (it fits {one.others} more)" if one.others else ""
    return f"{one.text}: {of}{one.run}, {one.name} = {one.value!r}{unit}{more}"


def _called(one: Called) -> str:
    more = f" and {len(one.runs) - 5} more" if len(one.runs) > 5 else ""
    runs = f" {', '.join(one.runs[:5])}{more}" if one.runs else ""
    unknown = "" if one.ended else " asked for, outcome unknown"
    return f"{one.agent}.{one.tool}{runs}{unknown}" + (f" refused: {one.refused}" if one.refused else "")


def unknown_runs(text: str, known: Mapping[str, Any] | tuple[str, ...]) -> tuple[str, ...]:
    """Handles in a text that are not among those that are known."""
    return tuple(dict.fromkeys(one for one in RUN_ID.findall(text) if one not in known))
