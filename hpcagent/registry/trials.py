"""Tests of a tool, run in the sandbox before anybody approves it: its own, or calls made from its contract.

They tell what the tool does, not whether it is honest: its text runs in the process that reports. The sandbox
holds it, and a person reads it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from hpcagent.apps.sandbox.calls import Boxed, run_boxed
from hpcagent.apps.sandbox.record import Sandbox, Tier
from hpcagent.errors import AppFailed, HpcAgentError
from hpcagent.model.base import Record, canonical_json
from hpcagent.model.failures import meaning
from hpcagent.registry.contract import RUNNER, spec_of
from hpcagent.registry.runner import TOOL
from hpcagent.registry.signature import Argument
from hpcagent.registry.source import ToolText
from hpcagent.registry.trying import TRIAL
from hpcagent.shown import plain

__all__ = ["LIMIT_S", "Case", "Trial", "calls_of", "tried"]

LIMIT_S = 120.0
"""Wall time of all tests of a tool, in seconds."""
_CPU_S = 100
_MOST_CALLS = 6
_LONGEST = 4000
_HERE = Path(__file__).parent


class Case(Record):
    """One test.

    Attributes:
        name: Its name, or the arguments of a call.
        passed: Whether it went well.
        said: What went wrong, or what came out.
    """

    name: str
    passed: bool
    said: str = ""


class Trial(Record):
    """What the tests of a tool have shown.

    Attributes:
        state: `waiting` until they have run; `none`: there is nothing to try it with; `not run`: no sandbox here.
        kind: `supplied`: of the text; `generated`: calls made from the contract.
        cases: Each test.
        why: Why it failed or was not run, where that is no single test.
        tier: The sandbox that they ran in.
        wall_s: Wall time, in seconds.
    """

    state: Literal["waiting", "passed", "failed", "none", "not run"] = "waiting"
    kind: Literal["", "supplied", "generated"] = ""
    cases: tuple[Case, ...] = ()
    why: str = ""
    tier: str = ""
    wall_s: float = 0.0


def calls_of(arguments: Sequence[Argument]) -> list[dict[str, Any]]:
    """Valid arguments to try a function with: defaults, middles and ends of ranges; none if some have no value.

    Example:
        >>> calls_of([Argument(name="x", kind="float", low=0.0, high=2.0, bounded=True)])
        [{'x': 1.0}, {'x': 0.0}, {'x': 2.0}]
    """
    ways = [_middle, _low, _high]
    found: list[dict[str, Any]] = []
    for way in ways:
        values = {one.name: way(one) for one in arguments}
        if any(value is None for value in values.values()):
            return []
        if values not in found:
            found.append(values)
    for one in arguments:
        for choice in (False, True) if one.kind == "bool" else one.choices:
            values = {**found[0], one.name: choice}
            if values not in found and len(found) < _MOST_CALLS:
                found.append(values)
    return found


def _middle(one: Argument) -> Any:
    if one.default is not None:
        return one.default
    if one.kind in ("choice", "bool"):
        return one.choices[0] if one.choices else False
    if one.kind not in ("float", "int"):
        return None  # a text, a file, a list: nobody knows which
    if not one.bounded or one.low is None or one.high is None:
        return 1 if one.kind == "int" else 1.0
    middle = one.low + (one.high - one.low) / 2
    return int(middle) if one.kind == "int" else middle


def _end(one: Argument, value: float | None) -> Any:
    if one.kind not in ("float", "int") or not one.bounded or value is None:
        return _middle(one)
    return int(value) if one.kind == "int" else value


def _low(one: Argument) -> Any:
    return _end(one, one.low)


def _high(one: Argument) -> Any:
    return _end(one, one.high)


def tried(tool: ToolText, sha256: str, *, require: Tier = "bubblewrap", timeout_s: float = LIMIT_S) -> Trial:
    """Run the tests of a tool in the sandbox; its text is only written into a file here.

    Args:
        tool: The tool.
        sha256: Digest of its text.
        require: The tier that it needs.
        timeout_s: Wall time of all of them, in seconds.
    """
    signature = tool.signature
    supplied = bool(tool.tests or signature.example)
    calls = [] if supplied else calls_of(signature.arguments)
    if not supplied and not calls:
        why = "it has no tests, and an argument without a default has no value to try it with"
        return Trial(state="none", why=why)
    plan = {"tests": tool.tests, "examples": signature.example, "calls": calls}
    limits = Sandbox(
        require=require, memory_mb=2000, cpu_s=_CPU_S, processes=32, file_mb=100, disk_mb=200, output_mb=2
    )
    files = {name: (_HERE / name).read_text() for name in (RUNNER, "trying.py")} | {TOOL: tool.text}
    words = [sys.executable, "-I", "trying.py", signature.name, sha256, canonical_json(spec_of(signature))]
    kind: Literal["supplied", "generated"] = "supplied" if supplied else "generated"
    with tempfile.TemporaryDirectory(prefix="hpcagent-trial-") as folder:
        began = time.monotonic()
        try:
            done = run_boxed(
                words,
                folder=folder,
                sandbox=limits,
                files=files,
                outputs=(TRIAL,),
                stdin=json.dumps(plan),
                timeout_s=timeout_s,
            )
        except AppFailed as error:
            said = f"{error.name}: {error.message}"[:1000]
            # Else the machine is at fault, and nothing was shown. Tests that took all their time have shown that.
            shown = meaning(error.kind, error.name).final or time.monotonic() - began >= timeout_s
            return Trial(state="failed" if shown else "not run", kind=kind, why=said)
        except (HpcAgentError, OSError) as error:
            return Trial(state="not run", kind=kind, why=plain(str(error))[:1000])
        return _read(done, Path(folder), kind)


def _read(done: Boxed, folder: Path, kind: Literal["supplied", "generated"]) -> Trial:
    """What the tests wrote, which could be anything."""
    cases: list[Case] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        for one in json.loads((folder / TRIAL).read_text(errors="replace")):
            texts = [plain(str(one[name]))[:_LONGEST] for name in ("name", "said")]
            cases.append(Case(name=texts[0], passed=one["passed"] is True, said=texts[1]))
    passed = bool(cases) and all(one.passed for one in cases) and done.returncode == 0
    last = plain("\n".join(done.stderr.strip().splitlines()[-5:]))[-1000:]
    why = "" if cases else f"the tests ended without a word (exit code {done.returncode}): {last}"
    return Trial(
        state="passed" if passed else "failed",
        kind=kind,
        cases=tuple(cases[:50]),
        why=why,
        tier=done.tier,
        wall_s=round(done.wall_s, 3),
    )
