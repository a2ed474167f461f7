"""What the nodes say of a run: processor time, wall time, cores, memory; of each number that is not known, why."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from hpcagent.sites.ledger import read_ledger
from hpcagent.workspace.rows import Row

__all__ = ["counters_of", "processes_in"]

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
MOST_PROCESSES = 100_000
MOST_JOBS = 20


def counters_of(row: Row, folder: Path, *, ledgers: list[Path], now: float) -> dict[str, Any]:
    """The counters of a run.

    Args:
        row: The run.
        folder: Its directory.
        ledgers: Of the site: the jobs that it has.
        now: Unix time, in seconds.

    Returns:
        `nodes`, `ranks`, `threads_per_rank`, `gpus_per_node` as asked for; `node`, `cpu_s`, `wall_s`,
        `cores_held`, `cpu_use_percent`, `max_rss_bytes`, each None with a reason in `unknown`; `source`; the
        site's `jobs`.
    """
    asked = row.manifest.get("resources", {})
    ranks = int(asked.get("nodes", 1)) * int(asked.get("ranks_per_node", 1))
    found: dict[str, Any] = {
        "state": row.state,
        "nodes": int(asked.get("nodes", 1)),
        "ranks": ranks,
        "threads_per_rank": int(asked.get("threads_per_rank", 1)),
        "gpus_per_node": int(asked.get("gpus_per_node", 0)),
        "node": None,
        "cpu_s": None,
        "wall_s": None,
        "cores_held": ranks * int(asked.get("threads_per_rank", 1)),
        "cpu_use_percent": None,
        "max_rss_bytes": None,
        "processes": None,
        "source": "nothing yet",
        "jobs": _jobs(ledgers, row, now),
    }
    unknown: dict[str, str] = {}
    if row.result is not None:
        found |= _recorded(row.result, unknown)
    elif row.state == "running":
        found |= _measured(folder, now, unknown)
    else:
        why = "it has not begun" if not row.over else "it ended without a result"
        unknown |= dict.fromkeys(("node", "cpu_s", "wall_s", "cpu_use_percent", "max_rss_bytes"), why)
    held = found["cores_held"]
    if found["cpu_s"] is not None and found["wall_s"] and held:
        found["cpu_use_percent"] = 100.0 * found["cpu_s"] / (found["wall_s"] * held)
    elif "cpu_use_percent" not in unknown:
        unknown["cpu_use_percent"] = "processor time or wall time is not known"
    return {**found, "unknown": {name: why for name, why in unknown.items() if found[name] is None}}


def _recorded(result: Any, unknown: dict[str, str]) -> dict[str, Any]:
    """What the worker has written down when the run ended."""
    cost = result.get("cost") or {}
    wall_s, hours = float(cost.get("wall_s") or 0.0), float(cost.get("core_hours") or 0.0)
    unknown["max_rss_bytes"] = "workers do not write down how much memory a run took"
    unknown["cpu_s"] = "the worker was lost before it could say" if not wall_s else "the run's worker did not say"
    unknown["wall_s"] = "the worker was lost before it could say"
    unknown["node"] = "the worker did not say where it ran"
    held = {"cores_held": hours * 3600 / wall_s} if wall_s and hours else {}
    return {
        "node": result.get("host") or None,
        "cpu_s": cost.get("cpu_s"),
        "wall_s": wall_s or None,
        "source": "the worker's record at the end of the run",
        **held,
    }


def _measured(folder: Path, now: float, unknown: dict[str, str]) -> dict[str, Any]:
    """What the kernel of this machine says of processes that work in the run's directory."""
    try:
        wall_s = max(0.0, now - (folder / "manifest.json").stat().st_mtime)
    except OSError:
        unknown["wall_s"] = "its worker has written nothing into a directory of its own yet"
        wall_s = None
    seen = processes_in(folder)
    if not seen:
        why = (
            "no process of this machine works in the run's directory: it runs on another node, or within its "
            "worker; the numbers come when it has ended"
        )
        unknown |= dict.fromkeys(("node", "cpu_s", "max_rss_bytes"), why)
        return {"wall_s": wall_s, "source": "the run's directory"}
    return {
        "node": socket.gethostname(),
        "wall_s": wall_s,
        "cpu_s": sum(one["cpu_s"] for one in seen),
        "max_rss_bytes": sum(one["peak_bytes"] for one in seen),
        "processes": len(seen),
        "source": "this machine's kernel, of the processes that live at this moment; max_rss_bytes is the sum of "
        "their peaks",
    }


def processes_in(folder: Path) -> list[dict[str, Any]]:
    """Processes of this machine that work in a directory, or below it: `pid`, `cpu_s`, `peak_bytes`."""
    wanted = os.path.realpath(folder)
    found = []
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()][:MOST_PROCESSES]  # noqa: PTH208
    except OSError:
        return []
    for name in names:
        try:
            there = os.readlink(f"/proc/{name}/cwd")  # noqa: PTH115
        except OSError:
            continue
        if there != wanted and not there.startswith(wanted + os.sep):
            continue
        one = _process(int(name))
        if one is not None:
            found.append(one)
    return found


def _process(pid: int) -> dict[str, Any] | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    peak = next((line.split() for line in status.splitlines() if line.startswith("VmHWM:")), None)
    try:
        resident = int(fields[21]) * _PAGE if peak is None else int(peak[1]) * 1024
        return {"pid": pid, "cpu_s": (int(fields[11]) + int(fields[12])) * _TICK_S, "peak_bytes": resident}
    except (ValueError, IndexError):
        return None


def _jobs(ledgers: list[Path], row: Row, now: float) -> list[dict[str, Any]]:
    """Jobs of the scheduler that the site had while the run went: a job has many runs."""
    began = row.asked_at
    ended = row.ended_at or now
    found = []
    for path in ledgers:
        for entry in read_ledger(path):
            over = entry.ended_at
            if entry.submitted_at > ended or (over is not None and over < began):
                continue
            found.append(
                {
                    "scheduler": entry.scheduler,
                    "job_id": entry.job_id,
                    "nodes": (entry.about or {}).get("nodes"),
                    "submitted_at": entry.submitted_at,
                    "started_at": entry.started_at,
                    "ended_at": over,
                    "state": entry.ended or "waiting or running",
                }
            )
    return found[-MOST_JOBS:]
