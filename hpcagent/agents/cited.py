"""Which run each number of an answer comes from; a number that none has is flagged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcagent.agents.numbers import Known, Said, numbers_in, same
from hpcagent.errors import HpcAgentError
from hpcagent.mcp.callers import Caller
from hpcagent.mcp.said import clean

__all__ = ["Citation", "cite", "known_of", "numbers_of_answer", "run_ids_in"]

RUN_ID = re.compile(r"\b[rc]-[A-Za-z0-9_-]{16}(?![A-Za-z0-9_-])")
_DAY = {"ns_per_day": "ns/day"}
_COST = {"wall_s": "s", "cpu_s": "s", "node_hours": "h", "core_hours": "h"}
_HANDLES = ("id", "run_id", "campaign_id", "run")
DEEPEST = 8

Source = Literal["run", "asked", "tool", "none"]


@dataclass(frozen=True)
class Citation:
    """A number of an answer.

    Attributes:
        text: As it stands there.
        source: `run`: a run of the thread has it; `tool`: a tool said it, of no run; `asked`: it stood in the
            question; `none`: nobody has it, and it is flagged.
        run: The run, or the tool.
        name: What it is there.
        value: What is known there.
        unit: Of `value`.
        others: How many more known numbers it fits: with few digits a number fits many by chance.
    """

    text: str
    source: Source
    run: str = ""
    name: str = ""
    value: float | None = None
    unit: str = ""
    others: int = 0

    @property
    def flagged(self) -> bool:
        """Whether nobody has it."""
        return self.source == "none"

    def plain(self) -> dict[str, Any]:
        """For a record."""
        fields = {"text": self.text, "source": self.source, "run": self.run, "name": self.name}
        more = {"value": self.value, "unit": self.unit, "others": self.others, "flagged": self.flagged}
        return fields | more


def run_ids_in(value: Any) -> list[str]:
    """The handles of runs and campaigns in plain data that a tool answered: in fields for handles, not in texts.

    Example:
        >>> run_ids_in({"run_id": "r-jE62yTIxgVcAaXBH", "log_tail": "r-AAAAAAAAAAAAAAAA", "more": [1]})
        ['r-jE62yTIxgVcAaXBH']
    """
    return list(dict.fromkeys(_ids(value, 0)))


def _ids(value: Any, depth: int) -> Iterable[str]:
    if depth > DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, one in value.items():
            if isinstance(one, str):
                yield from [one] if key in _HANDLES and RUN_ID.fullmatch(one) else []
            else:
                yield from _ids(one, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _ids(one, depth + 1)


def known_of(caller: Caller, identity: str) -> list[Known]:
    """The numbers that a run or campaign has, read from the workspace: metrics, errors, parameters, cost."""
    try:
        status = caller.workspace.status(identity, lines=0)
    except HpcAgentError:
        return []
    # As they are on record, and as a model reads them, rounded by their errors.
    found = list(dict.fromkeys([*_of_status(identity, status), *_of_status(identity, clean(status))]))
    if status.get("kind") == "campaign":
        return found + _of_campaign(caller, identity)
    units = _units_of_parameters(caller, str(status.get("app", "")))
    found += [Known(float(v), units.get(name, ""), identity, name) for name, v in _plain(status.get("params"))]
    return found + _of_catalyst(caller, identity)


def _of_status(identity: str, status: Mapping[str, Any]) -> list[Known]:
    units = status.get("units") or {}
    found = [Known(v, _unit(name, units), identity, name) for name, v in _plain(status.get("metrics"))]
    found += [
        Known(v, _unit(name, units), identity, f"error of {name}") for name, v in _plain(status.get("uncertainty"))
    ]
    return found + [Known(v, _COST.get(name, ""), identity, name) for name, v in _plain(status.get("cost"))]


def _of_campaign(caller: Caller, identity: str) -> list[Known]:
    try:
        found = caller.workspace.campaign(identity, timeout_s=0.0)
    except HpcAgentError:
        return []
    answer = found.get("answer") or {}
    best = answer.get("best") or {}
    units = {**_units_of_parameters(caller, str(found.get("app", ""))), **(best.get("units") or {})}
    every = dict.fromkeys(one for form in (answer, clean(answer)) for one in _with_units(form, "", units, 0))
    known = [Known(v, unit, identity, name) for name, v, unit in every]
    known += [Known(v, "", identity, f"runs.{name}") for name, v in _numbers(found.get("runs") or {})]
    hours = [("node_hours", found.get("node_hours")), ("node_hours_at_most", found.get("node_hours_at_most"))]
    return known + [Known(float(v), "h", identity, name) for name, v in hours if isinstance(v, int | float)]


def _of_catalyst(caller: Caller, identity: str) -> list[Known]:
    try:
        found = caller.workspace.catalyst_state(identity)
    except HpcAgentError:
        return []
    energy = found.get("adsorption_energy_ev")
    return [] if energy is None else [Known(float(energy), "eV", identity, "adsorption_energy")]


def _units_of_parameters(caller: Caller, app: str) -> dict[str, str]:
    try:
        card = caller.workspace.describe(app)
    except HpcAgentError:
        return {}
    every = [*card["space"]["parameters"], *card["metrics"]]
    return {one["name"]: one.get("unit") or "" for one in every}


def _unit(name: str, units: Mapping[str, str]) -> str:
    last = name.rpartition(".")[2]
    return units.get(last) or _DAY.get(last, "")


def _plain(values: Any) -> list[tuple[str, float]]:
    pairs = values.items() if isinstance(values, Mapping) else ()
    return [(str(k), float(v)) for k, v in pairs if isinstance(v, int | float) and not isinstance(v, bool)]


def _numbers(value: Any, name: str = "", depth: int = 0) -> list[tuple[str, float]]:
    """Numbers in plain data by their dotted names; texts are none, whatever digits they have."""
    if isinstance(value, bool) or depth > DEEPEST:
        return []
    if isinstance(value, int | float):
        return [(name, float(value))]
    if isinstance(value, Mapping):
        pairs = [(f"{name}.{key}" if name else str(key), one) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(name, one) for one in value]
    else:
        return []
    return [found for key, one in pairs for found in _numbers(one, key, depth + 1)]


def numbers_of_answer(tool: str, value: Mapping[str, Any]) -> list[Known]:
    """Numbers that a tool's answer has in fields of their own; not those in texts, as logs are.

    Example:
        >>> numbers_of_answer("estimate", {"node_hours": 0.5, "text": "99 g/cm^3"})
        [Known(value=0.5, unit='h', run='estimate', name='node_hours')]
    """
    return [Known(number, unit, tool, name) for name, number, unit in _with_units(value, "", {}, 0)]


def _with_units(value: Any, name: str, units: Mapping[str, str], depth: int) -> Iterable[tuple[str, float, str]]:
    """Numbers by their dotted names, each with the unit that the nearest `units` or `unit` around it has."""
    if isinstance(value, Mapping):
        own, one_for_all = value.get("units"), value.get("unit")
        around = {**units, **{str(k): str(u) for k, u in own.items()}} if isinstance(own, Mapping) else {**units}
        around[""] = one_for_all if isinstance(one_for_all, str) else ""
        for key, one in value.items() if depth <= DEEPEST else ():
            yield from _with_units(one, f"{name}.{key}" if name else str(key), around, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value if depth <= DEEPEST else ():
            yield from _with_units(one, name, units, depth + 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        last = name.rpartition(".")[2]
        known = units.get(last) or _DAY.get(last) or _COST.get(last) or _suffix(last)
        yield name, float(value), known or units.get("", "")


def _suffix(name: str) -> str:
    endings = {"_s": "s", "_ev": "eV", "node_hours": "h", "node_hours_at_most": "h", "_k": "K"}
    return next((unit for ending, unit in endings.items() if name.lower().endswith(ending)), "")


def cite(text: str, *, runs: Sequence[Known], tools: Sequence[Known] = (), asked: str = "") -> list[Citation]:
    """Each number of a text, with the run that has it.

    Args:
        text: The answer.
        runs: Numbers of the runs of the thread.
        tools: Numbers that tools said, of no run.
        asked: The question.
    """
    stood = numbers_in(asked)
    named = [(found.start(), found[0]) for found in RUN_ID.finditer(text)]
    return [_cited(one, runs, tools, stood, named) for one in numbers_in(text) if not one.counts]


def _cited(
    said: Said,
    runs: Sequence[Known],
    tools: Sequence[Known],
    asked: Sequence[Said],
    named: Sequence[tuple[int, str]],
) -> Citation:
    for source, every in (("run", runs), ("tool", tools)):
        close = [one for one in every if same(said, one)]
        if close:
            one = min(close, key=lambda known: (_far(known, said, named), not known.unit))
            where: Source = "run" if source == "run" else "tool"
            others = len({(known.run, known.name) for known in close}) - 1
            return Citation(said.text, where, one.run, one.name, one.value, one.unit, others)
    stands = any(same(said, Known(one.value, one.unit, "", "")) for one in asked)
    return Citation(said.text, "asked" if stands else "none")


def _far(known: Known, said: Said, named: Sequence[tuple[int, str]]) -> float:
    """How far from a number its run is named; of several runs that have it, the text means the nearest."""
    return min((abs(at - said.at) for at, run in named if run == known.run), default=float("inf"))
