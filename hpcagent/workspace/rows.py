"""Runs and campaigns of a workspace, as they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcagent.model.failures import meaning
from hpcagent.workspace.took import AppVersion

__all__ = ["OVER", "Row", "as_given", "exit_code", "job_facts", "lost", "occupied", "ran"]

_EXIT_CODE = re.compile(r"\bexit(?:ed with)? code (-?\d+)")
OVER = ("completed", "failed", "stopped", "cancelled")


@dataclass(slots=True)
class Row:
    """A run, or a campaign, as it stands.

    Attributes:
        id: Its id: never guessed, never used again.
        kind: `run` or `campaign`.
        owner: Who asked for it.
        app: The app's name.
        site: Where it runs.
        state: pending, running, completed, failed, stopped, cancelled.
        asked_at: Unix time, in seconds.
        ended_at: Likewise; 0 before.
        changed_at: When it has come to stand as it does, likewise.
        manifest: As plain data; of a campaign nothing.
        request: What the gate let through, as plain data.
        result: As plain data, once it has ended.
        took: What it took until it was cancelled, as `Cost` in plain data; empty where that is not known.
        shares: The run whose work it shares, where that was asked for before.
        inputs: Ids of the runs that it takes as input.
        note: What is to be said of it.
        approval: The approval that it used.
        label: What its owner calls it; not unique.
        reference: How the app is found again.
        settings: What of the app was set otherwise than it is found.
        code: The app's digest when it was asked for.
        job: The run by which the work was begun that this one waits for: its own id, or that of the one it shares.
        stored: Bytes that were booked.
        taught: Results of a campaign that estimates have learnt from.
        settled: Node-hours that were booked: a campaign that is extended goes on from there.
        before: Node-hours that a campaign had taken when it was extended; `request` is of what comes on top.
        went_s: Seconds that it had gone on until then.
        again_at: Unix time at which it went on again, in seconds; 0: it was not extended.
        again_behind: Bytes that the campaign's own journal had then; None: that is not known.
        changes: With what it was let go on; None: it was not extended.
        was: How a campaign stood when it was let go on; None: it was not extended.
        in_vain: Why it did not go on when it was last let; empty where it did.
        cause: The triggers that have led to it.
    """

    id: str
    kind: str
    owner: str
    app: str
    site: str
    state: str
    asked_at: float
    execution_id: str
    ended_at: float = 0.0
    changed_at: float = 0.0
    manifest: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    took: Mapping[str, Any] = field(default_factory=dict)
    shares: str = ""
    inputs: tuple[str, ...] = ()
    note: str = ""
    approval: str = ""
    label: str = ""
    reference: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    job: str = ""
    settled: float = 0.0
    before: float = 0.0
    went_s: float = 0.0
    again_at: float = 0.0
    again_behind: int | None = None
    changes: Mapping[str, Any] | None = None
    stored: int = 0
    taught: int = 0
    was: Row | None = None
    in_vain: str = ""
    cause: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in OVER

    @property
    def end_key(self) -> str:
        """Key of the event of its end; a campaign that was let go on ends once more."""
        return f"{self.id} ended" + (f" {self.again_at!r}" if self.again_at else "")

    @property
    def params(self) -> dict[str, Any]:
        """Parameters as they are shown: a file of a run is `artifact:RUN/PATH`, as the caller wrote it."""
        return as_given(self.manifest.get("params", {}), self.request.get("given", {}))

    @property
    def node_hours_at_most(self) -> float | None:
        """Of all of it; None: nothing bounds them."""
        rest = self.request.get("node_hours")
        return None if rest is None else self.before + rest

    def elapsed_s(self, now: float) -> float:
        """Seconds that a campaign has gone on: not those between its end and its going on again."""
        return self.went_s + max(0.0, (self.ended_at or now) - (self.again_at or self.asked_at))

    def brief(self) -> dict[str, Any]:
        """A line of a list."""
        failure = (self.result or {}).get("failure") or {}
        return {
            "id": self.id,
            "kind": self.kind,
            "app": self.app,
            "site": self.site,
            "state": self.state,
            "owner": self.owner,
            "asked_at": self.asked_at,
            "ended_at": self.ended_at or None,
            "failure": failure.get("name"),
            "params": self.params,
            "metrics": dict((self.result or {}).get("metrics", {})),
            "distrusted": (self.result or {}).get("distrusted"),
            "units": dict((self.result or {}).get("units", {})),
        }


def as_given(params: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Parameters with the text that the caller wrote in place of the path of a file of a run.

    Example:
        >>> as_given({"x": 1.0, "file": "1f/a.txt"}, {"file": "artifact:r-1/a.txt"})
        {'x': 1.0, 'file': 'artifact:r-1/a.txt'}
    """
    return {name: given.get(name, value) for name, value in params.items()}


def job_facts(row: Row) -> dict[str, Any]:
    """What an event says of a run."""
    facts = {"job_id": row.id, "job_type": row.app, "kind": row.kind, "site": row.site}
    return facts | ({"label": row.label} if row.label else {})


def exit_code(row: Row) -> int | None:
    """The exit code that a run has ended with: 0 where it is completed, else the one that its failure names."""
    if row.kind != "run" or row.result is None:
        return None
    if row.state == "completed":
        return 0
    said = _EXIT_CODE.search(str((row.result.get("failure") or {}).get("message", "")))
    return None if said is None else int(said[1])


def lost(row: Row) -> bool:
    """Whether the machine has lost it: asked for again it is done again."""
    failure = (row.result or {}).get("failure") or {}
    if failure:
        return not meaning(failure["kind"], failure["name"], failure.get("repair")).final
    return row.state == "failed" and row.result is None


def ran(row: Row, taught: Mapping[str, Any] | None = None) -> AppVersion:
    """What a run, or a campaign's runs, were of; what an old journal does not have is taken from what it has.

    Args:
        row: The run or campaign.
        taught: What a campaign has taught: with the version of its app, and the digest of somebody's own.
    """
    if taught is not None and "version" in taught:
        return AppVersion(row.app, str(taught["version"]), str(taught.get("code", "")))
    version = str(row.request.get("version") or row.manifest.get("app_version") or "")
    named = row.reference.partition("@")[0] == row.app
    own = row.request.get("own", not named)
    if not own or (row.kind == "campaign" and named):  # of such a campaign the policy is somebody's own
        return AppVersion(row.app, version)
    return AppVersion(row.app, version, row.code or row.reference)


def occupied(manifest: Mapping[str, Any]) -> dict[str, int]:
    """What a run occupies that its speed depends on."""
    asked = manifest.get("resources") or {}
    names = {"nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1, "gpus_per_node": 0}
    return {name: int(asked.get(name) or least) for name, least in names.items()}
