"""Answers one question about a campaign in a process of its own; see `hpcagent.workspace.questions`.

    python -m hpcagent.workspace.answering ROOT HANDLE

A policy of somebody's own is asked here, not in the service.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcagent.campaign.answer import read_run
from hpcagent.campaign.sweep import SweepResult
from hpcagent.errors import HpcAgentError, RunDirLocked
from hpcagent.model.base import read_json
from hpcagent.replays.whatif import replay
from hpcagent.reports.explain import explain
from hpcagent.reports.lessons import sliced
from hpcagent.reports.report import report
from hpcagent.store.files import write_whole
from hpcagent.store.rundir import Lock
from hpcagent.workspace.answers import answer_of, next_points
from hpcagent.workspace.app_store import STORED, AppStore
from hpcagent.workspace.questions import ANSWER, ASKED, COSTLY

__all__ = ["WHAT", "main"]

NICER = 5
MOST_CPU_S = 900
"""Processor time of one answer, in seconds; of `COSTLY` ones `MOST_COSTLY_CPU_S`."""
MOST_COSTLY_CPU_S = 3600
MOST_NEAR = 300
"""Runs that a slice shows, the newest."""


def _explained(folder: Path, *, run: str) -> dict[str, Any]:
    found = explain(folder, run)
    return found.data() | {"text": str(found)}


def _replayed(folder: Path, *, policies: list[str], seeds: int) -> dict[str, Any]:
    found = replay(folder, policy=policies, seeds=seeds)
    data = found.data()
    data.pop("run_dir")
    data["real"].pop("seed")
    for one in data["policies"]:
        one["courses"] = len(one["courses"])
    return data | {"text": str(found)}


def _reported(folder: Path) -> dict[str, Any]:
    found = report(folder)
    files = [path for path in (found.path, found.html, *found.plots) if path is not None]
    return {
        "files": [path.relative_to(folder).as_posix() for path in files],
        "learned": list(found.learned),
        "note": found.note,
    }


def _sliced(folder: Path) -> dict[str, Any]:
    """The models along each parameter through the answer, as numbers for a plot."""
    result = read_run(folder)
    if isinstance(result, SweepResult):
        return {"slices": [], "point": {}, "note": "a sweep has no model"}
    found = sliced(result)
    note = found.note or ("" if found.slices else "there is no point yet to go through")
    return {
        "slices": [
            {
                "metric": s.metric,
                "parameter": s.name,
                "values": list(s.values),
                "mean": [*map(float, s.mean)],
                "low": [*map(float, s.low)],
                "high": [*map(float, s.high)],
                "limit": s.limit,
                "runs": [list(one) for one in s.runs[-MOST_NEAR:]],
            }
            for s in found.slices
        ],
        "point": found.point or {},
        "note": note,
    }


WHAT: Mapping[str, Callable[..., dict[str, Any]]] = {
    "answer": answer_of,
    "explain": _explained,
    "recommend": lambda folder, *, n: next_points(folder, n),
    "replay": _replayed,
    "report": _reported,
    "slices": _sliced,
}
"""What may be asked of a campaign: each is called with its folder and the arguments of the question."""


def answered(root: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What came of a question: `state`, and `answer` or `error`."""
    folder = root / "campaigns" / str(asked["campaign"])
    if str(asked["app"]).startswith(STORED):
        sys.path[:0] = AppStore(root / "apps").record(asked["app"])["path"]
    try:
        found: dict[str, Any] = {"state": "done", "answer": WHAT[asked["what"]](folder, **asked["args"])}
    except HpcAgentError as error:
        found = {"state": "failed", "error": {"kind": type(error).__name__, "message": error.message}}
    except Exception as error:
        traceback.print_exc()
        found = {
            "state": "failed",
            "error": {"kind": "HpcAgentError", "message": f"{type(error).__name__}: {error}"},
        }
    # A folder of this machine is nobody's business: the campaign has an id.
    where = json.dumps(str(folder))[1:-1]
    told: dict[str, Any] = json.loads(json.dumps(_finite(found)).replace(where, str(asked["campaign"])))
    return told


def _finite(value: Any) -> Any:
    """Plain data without NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def main() -> None:
    """See the module."""
    root, handle = Path(sys.argv[1]), sys.argv[2]
    folder = root / "answers" / handle
    lock = Lock(folder)
    try:
        lock.acquire()
    except RunDirLocked:
        return  # another process is at it
    try:
        if (folder / ANSWER).exists():
            return
        asked = read_json(folder / ASKED)
        most_s = MOST_COSTLY_CPU_S if asked["what"] in COSTLY else MOST_CPU_S
        os.nice(NICER)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
        said = answered(root, asked) | {"took_s": time.process_time()}  # with what it takes to begin
        write_whole(folder / ANSWER, json.dumps(said) + "\n", private=True)
    finally:
        lock.release()


if __name__ == "__main__":
    main()
