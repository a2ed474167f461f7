"""Why a run was asked for, what was expected of it, and what came out: from the records of its campaign."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from hpcagent.campaign.decisions import decision_of
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.recorded import begun_state, replayed
from hpcagent.campaign.state import State
from hpcagent.errors import BadInput
from hpcagent.model.records import Manifest
from hpcagent.moved import moved
from hpcagent.reports.explanation import Explanation
from hpcagent.reports.outcome import Outcome
from hpcagent.reports.why_planned import planned
from hpcagent.reports.why_suggested import suggested
from hpcagent.store.journal import read_events
from hpcagent.store.rundir import RunDir, holder

__all__ = ["LEAST_PREFIX", "explain", "named_run"]

LEAST_PREFIX = 4  # characters of an execution id


def explain(run_dir: str | Path, run: int | str) -> Explanation:
    """Say why a run was asked for, what was expected of it, and what came out.

    Reads only, so the campaign may be running. The policy is asked once more with what it knew then, which takes
    as long as it took then.

    Args:
        run_dir: The campaign's folder.
        run: Position of the run in the campaign, from 0, or the first characters of its execution id.

    Raises:
        BadInput: The folder is not that of a campaign, or it has no such run.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     found = explain(folder, 7)
        >>> found.role, found.again, found.source
        ('suggested', True, 'policy')
    """
    campaign = load_run(run_dir, to_read=True)
    events = list(read_events(RunDir(run_dir).events))
    state = replayed(RunDir(run_dir), campaign)
    manifest = named_run(state, run, run_dir)
    seen = Outcome.of(campaign, state, manifest, attended=holder(run_dir)[0])
    if manifest.by_policy:
        about = suggested(decision_of(run_dir, manifest.index), manifest, seen)
        if not about["again"]:
            about["notes"] += _other_versions(events, manifest.index)
    else:
        about = planned(
            campaign,
            _before(events, manifest.index, begun_state(RunDir(run_dir), campaign)),
            state,
            manifest,
            seen,
        )
    names = campaign.search.names
    notes = (*about.pop("notes", ()), *seen.notes)
    remote = None if seen.result is None else seen.result.remote
    if remote is not None:
        notes += (f"its files ({remote.brief}) are in {remote}: hpcagent fetch {run_dir} {manifest.index} PATH",)
    return Explanation(
        index=manifest.index,
        execution_id=manifest.execution_id,
        batch=manifest.batch,
        role=manifest.role,
        params={n: manifest.params[n] for n in names if n in manifest.params},
        units={p.name: p.unit for p in campaign.search.parameters},
        policy=campaign.policy.name,
        status="no result" if seen.result is None else seen.result.status,
        state=seen.state,
        outcome=seen.text,
        feasible=seen.feasible,
        notes=notes,
        **about,
    )


def named_run(state: State, run: int | str, run_dir: str | Path) -> Manifest:
    """The manifest of a run, by its number or the beginning of its execution id.

    Raises:
        BadInput: There is none, or more than one.
    """
    text = str(run).strip()
    last = state.next_index - 1
    has = f"it has runs 0 to {last}" if last >= 0 else "it has no runs yet"
    here = [m for m in state.manifests if text.isdecimal() and m.index == int(text)]
    if here:
        return here[0]
    word = text.lower().removesuffix("...")
    found = [m for m in state.manifests if m.execution_id.startswith(word)] if len(word) >= LEAST_PREFIX else []
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(f"{m.execution_id} (run {m.index})" for m in found[:3])
        raise BadInput(f"{text!r} is the beginning of {len(found)} execution ids: {some}; give more.", value=run)
    chains = [chain for part, chain in state.parts.items() if len(word) >= LEAST_PREFIX and part.startswith(word)]
    chain = state.manifest(chains[0]) if chains else None
    if chain is not None:
        raise BadInput(
            f"{text} is an inner run of the chain that is run {chain.index}; explain that one.", value=run
        )
    raise BadInput(
        f"there is no run {text} in {run_dir}; {has}. Give one of these numbers, or at least {LEAST_PREFIX} "
        "characters of an execution id.",
        value=run,
    )


def _before(events: Sequence[Mapping[str, Any]], index: int, state: State) -> State:
    """What was known when a run was planned, in a state to which nothing was given yet."""
    for event in events:
        if _plans(event, index):
            break
        state.read(event)
    return state


def _plans(event: Mapping[str, Any], index: int) -> bool:
    rows = event.get("manifests", [event.get("manifest")]) if event.get("event") in ("manifests", "told") else None
    return isinstance(rows, list) and any(isinstance(m, dict) and m.get("index", 0) == index for m in rows)


def _other_versions(events: Sequence[Mapping[str, Any]], index: int) -> list[str]:
    """Packages that are not the ones that the coordinator had when it planned a run."""
    then: Mapping[str, str] = {}
    for event in events:
        if event.get("event") == "session":
            then = event.get("versions", {})
        if _plans(event, index):
            break
    found = []
    for package, version in then.items():
        try:
            now = platform.python_version() if package == "python" else metadata.version(package)
        except metadata.PackageNotFoundError:
            now = "not installed"
        if now != version:
            found.append(f"{package} {version} (here {now})")
    return [f"it was planned with {', '.join(found)}"] if found else []


__getattr__ = moved(
    __name__, {"Expected": "hpcagent.reports.explanation", "Explanation": "hpcagent.reports.explanation"}
)
