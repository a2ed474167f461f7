"""A campaign from its beginning to its end, in one call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, overload

from hpcagent.campaign.coordinator import Coordinator
from hpcagent.campaign.events import Event
from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.result import CampaignResult
from hpcagent.campaign.view import View, closed_at_the_end, progress_view, together
from hpcagent.campaign.where import (
    stopped_words,
)
from hpcagent.endings import Stopped, say_at_exit
from hpcagent.errors import (
    AllocationEnded,
    BadInput,
    Interrupted,
)
from hpcagent.runs.attached import Attached, run_detached
from hpcagent.sites.several_profiles import AnySite
from hpcagent.store.rundir import RunDir

__all__ = ["run"]


@overload
def run(
    campaign: Campaign | str | Path,
    *,
    site: AnySite | None = None,
    run_dir: str | Path | None = None,
    workers: int | None = None,
    watch: Callable[[Event], None] | None = None,
    inside: bool = False,
    progress: bool | View | None = None,
    report: bool = False,
    detach: Literal[False] = False,
) -> CampaignResult: ...


@overload
def run(
    campaign: Campaign | str | Path,
    *,
    site: AnySite | None = None,
    run_dir: str | Path | None = None,
    workers: int | None = None,
    watch: None = None,
    inside: bool = False,
    progress: bool | None = None,
    report: bool = False,
    detach: Literal[True],
) -> Attached: ...


def run(
    campaign: Campaign | str | Path,
    *,
    site: AnySite | None = None,
    run_dir: str | Path | None = None,
    workers: int | None = None,
    watch: Callable[[Event], None] | None = None,
    inside: bool = False,
    progress: bool | View | None = None,
    report: bool = False,
    detach: bool = False,
) -> CampaignResult | Attached:
    """Run a campaign to its end, or go on with it if its folder is there.

    Args:
        campaign: The campaign, the path of its TOML, or the name of a packaged one.
        site: Name or path of a site profile, a list of several, or an open `Site`; the campaign's own by default.
        run_dir: The campaign's folder; `runs/NAME` by default.
        workers: Runs at the same time, in place of what the profile says.
        watch: Called with every `Event`.
        inside: Use the nodes of the job that this process is in, instead of submitting jobs.
        progress: Whether to show how it goes: drawn in place on a terminal (stderr) and in a notebook, elsewhere a
            line for each batch on stderr, for long campaigns not more than one in ten seconds. None: unless there
            is a `watch`. Or a view of your own.
        report: Write the report with plots when it has ended; see `CampaignResult.report`.
        detach: Run it in a process of its own that outlives this one, and return when it has begun.

    Returns:
        The answer: `best`, `speedups`, `results`, `reason`. With `detach` what follows, waits for and stops it;
        see `attach`.

    Raises:
        Interrupted: Ctrl-C, SIGTERM or SIGHUP (a lost connection); the message says how to go on.
        AllocationEnded: The job it runs inside of has no time left; the message says how to go on.
        BadInput, RunDirLocked, RunDirChanged, RunDirGone, StoreFull, SiteFailed: see `Coordinator`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        >>> result.best.feasible
        True
    """
    if detach:
        if watch is not None or not (progress is None or isinstance(progress, bool)):
            raise BadInput(
                "with detach=True nobody here is told of events: wait(progress=...) on what it returns."
            )
        return run_detached(campaign, site=site, run_dir=run_dir, workers=workers, inside=inside, report=report)
    if not isinstance(campaign, Campaign):
        campaign = load_campaign(campaign)
    view: View | None
    if isinstance(progress, bool) or progress is None:
        view = progress_view(campaign) if (watch is None if progress is None else progress) else None
    else:
        view = progress
    with closed_at_the_end(view):
        told = together(watch, view)
        try:
            coordinator = Coordinator(
                campaign, site=site, run_dir=run_dir, workers=workers, watch=told, inside=inside, progress=False
            )
        except KeyboardInterrupt as error:  # it imports a lot
            say_at_exit()
            folder = RunDir(run_dir if run_dir is not None else Path("runs") / campaign.name)
            raise Interrupted(stopped_words(error, campaign, folder, None), run_dir=str(folder.root)) from None
        result = _run(coordinator)
        if report:
            told(Event("report", reason=f"report: {result.report()}", runs=len(result.results)))
    return result


def _run(coordinator: Coordinator) -> CampaignResult:
    """Run it to its end; an interruption says how to go on."""
    try:
        with coordinator:
            for _ in coordinator:
                pass
            return coordinator.result()
    except AllocationEnded as error:
        say_at_exit()
        done = coordinator.finished
        raise AllocationEnded(
            f"{error}; {done} finished run(s) are kept in {coordinator.folder.root}. Go on in the next job with "
            f"`hpcagent resume {coordinator.folder.root} --inside`, or from a login node without --inside.",
            run_dir=str(coordinator.folder.root),
            runs=done,
        ) from None
    except Stopped as error:
        done = coordinator.finished
        raise Interrupted(str(error), run_dir=str(coordinator.folder.root), runs=done) from None
