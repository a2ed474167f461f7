"""How commands run a campaign: the site, changes by --set, the plan of a dry run, the answer at the end."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import typer

from hpcagent.commands.common import say
from hpcagent.errors import BadInput
from hpcagent.shown import masked

__all__ = [
    "How",
    "answer_data",
    "parse_changes",
    "profile_of",
    "run_detached",
    "run_to_its_end",
    "show_plan",
]

_BEGUN_S = 30.0


class How(NamedTuple):
    """How a campaign is run."""

    profile: Any
    workers: int | None
    inside: bool
    as_json: bool
    plots: bool


def profile_of(site: str, **changes: Any) -> Any:
    """The profile of a site, with what the command line says otherwise."""
    from hpcagent.sites.limits import with_overrides
    from hpcagent.sites.profiles import find_profile

    return with_overrides(find_profile(site), **changes)


def parse_changes(changes: list[str]) -> dict[str, Any]:
    """`key=value` with a TOML value; a bare word is taken as a string."""
    from hpcagent.model.base import parse_toml

    parsed: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise BadInput(f"--set {change!r}: write KEY=VALUE, e.g. --set until.max_runs=12.", value=change)
        try:
            parsed[key.strip()] = parse_toml(f"value = {text.strip()}", f"--set {key}")["value"]
        except BadInput:
            parsed[key.strip()] = text.strip()
    return parsed


def run_to_its_end(
    campaign: Any, run_dir: Path | None, how: How, begun: Callable[[], None] = lambda: None
) -> None:
    """Run a campaign, print its answer, write its report; leave with its exit code."""
    from hpcagent.campaign.view import JsonLines
    from hpcagent.runs.run import run as run_campaign

    opened = math.inf

    def seen(event: Any) -> None:
        nonlocal opened
        if event.kind == "opened":
            opened = time.monotonic()
        # Where it asks for jobs, it has begun when the first was taken, or after a while without an answer.
        taken = event.kind == "finished" or (event.kind == "site" and " submitted" in event.reason)
        at_once = (not how.profile.batch or how.inside) and event.kind != "starting"
        if taken or at_once or time.monotonic() - opened > _BEGUN_S:
            begun()

    result = run_campaign(
        campaign,
        site=how.profile,
        run_dir=run_dir,
        workers=how.workers,
        inside=how.inside,
        watch=seen,
        progress=JsonLines(campaign, sys.stdout) if how.as_json else True,
    )
    written = result.report(plots=how.plots)
    if how.as_json:
        say(json.dumps({"event": "answer", **answer_data(result), "report": str(written.path)}))
    else:
        if result.points:
            say(f"{result.table(result.rivals)}\n")
        say(result)
        for line in written.learned:
            say(line)
        say(f"report: {written}")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def run_detached(campaign: Any, run_dir: Path | None, how: How) -> None:
    """Run a campaign in the background, and say how to follow and stop it."""
    from hpcagent.elsewhere.detach import detach
    from hpcagent.elsewhere.job import LOG

    folder = run_dir or Path("runs") / campaign.name

    def work(begun: Callable[[], None]) -> int:
        try:
            run_to_its_end(campaign, run_dir, how, begun)
        except typer.Exit as end:
            return end.exit_code
        return 0

    apart = detach(work, log=folder / LOG)
    say(
        f"the coordinator of {folder} goes on in the background: process {apart.pid} on {apart.host}\n"
        f"follow it: hpcagent status {folder} --follow     what it prints: {apart.log}\n"
        f"stop it: hpcagent stop {folder} (or kill -TERM {apart.pid} on {apart.host}); "
        f"`hpcagent resume {folder}` goes on"
    )


def show_plan(campaign: Any, profile: Any, workers: int | None, run_dir: Path | None, as_json: bool) -> None:
    """Print what a campaign would do first, and what it could cost."""
    from hpcagent.campaign.dry_run import plan
    from hpcagent.campaign.numbers import point_text
    from hpcagent.campaign.view import duration

    made = plan(campaign, site=profile, workers=workers, run_dir=run_dir)
    if as_json:
        for manifest in made.manifests:
            say(manifest.model_dump_json())
        return
    units = {p.name: p.unit for p in campaign.app.contract.space.parameters}
    say(f"{campaign.name}: {campaign.question}")
    say(
        f"app {campaign.app.name} {campaign.app.contract.version}, policy {campaign.policy.name}, "
        f"seed {campaign.seed}"
    )
    say(
        f"site {made.profile.name}: {made.workers} run(s) at a time; "
        f"folder {run_dir or Path('runs') / campaign.name}"
    )
    if made.jobs is not None:
        jobs = made.jobs
        say(
            f"executor {jobs.executor} takes the runs: up to {jobs.at_once} job(s) at a time, "
            f"{jobs.nodes} node(s) each for {duration(jobs.walltime_s)}, account {jobs.account or 'none'}"
        )
    if made.runs is not None and made.expected_s is None:
        say(f"{made.runs} runs at most")
    if made.runs is not None and made.expected_s is not None:
        whole = "" if made.jobs is None else f": {made.jobs.in_all} whole job(s), every run to its last second"
        say(
            f"{made.runs} runs at most; expected about {duration(made.expected_s)} and "
            f"{made.expected_node_hours:.2g} node-hours, at worst {made.worst_node_hours:.2g} node-hours{whole}"
        )
    for note in made.notes:
        say(f"note: {note}")
    say(f"first batch ({len(made.manifests)} runs):")
    for manifest in made.manifests:
        shown = {n: manifest.params[n] for n in campaign.search.names if n in manifest.params}
        say(f"  {manifest.execution_id}  {point_text(shown, units)}")
    if made.jobs is not None:
        say(f"each job (PORT and MARK are settled at the start):\n{masked(made.jobs.script.rstrip())}")
    say("dry run: nothing was written or submitted")


def answer_data(result: Any) -> dict[str, Any]:
    """An answer as plain data."""
    best = result.best
    return {
        "name": result.campaign.name,
        "runs": len(result.results),
        "completed": sum(r.ok for r in result.results),
        "states": result.counts,
        "earlier_runs": 0 if result.warm is None else result.warm.runs,
        "failures": result.failures,
        "distrusted": result.distrusted,
        "busy": list(result.busy),
        "remarks": list(result.remarks),
        "node_hours": result.node_hours,
        "jobs_node_hours": sum(job.node_hours for job in result.jobs) if result.jobs else None,
        "reason": result.reason,
        "run_dir": str(result.run_dir),
        "best": None
        if best is None
        else {
            "params": best.params,
            "metrics": best.metrics,
            "uncertainty": best.uncertainty,
            "expected": best.expected,
            "expected_error": best.expected_error,
            "estimated": list(best.estimated),
            "feasible": best.feasible,
            "probability_feasible": best.probability_feasible,
            "runs": best.runs,
            "earlier_runs": best.earlier,
        },
        "speedups": [{"over": s.over, "factor": s.factor, "error": s.error} for s in result.speedups],
    } | ({"points": result.data()} if result.campaign.sweep else {})
