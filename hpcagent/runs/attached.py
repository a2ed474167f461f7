"""A campaign whose coordinator runs elsewhere: started in the background from Python, found again, stopped."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.campaign.loading import load_campaign, load_run
from hpcagent.campaign.record import Campaign
from hpcagent.elsewhere.detach import TOLD, apart, ordered
from hpcagent.errors import BadInput, Interrupted
from hpcagent.public import public
from hpcagent.runs.follow import follow
from hpcagent.runs.stopped import stop_run
from hpcagent.store.rundir import RunDir, holder

if TYPE_CHECKING:
    from hpcagent.campaign.events import Event
    from hpcagent.campaign.result import CampaignResult
    from hpcagent.campaign.view import View
    from hpcagent.sites.several_profiles import AnySite

__all__ = ["Attached", "attach", "main", "run_detached"]

_BEGUN_S = 30.0
"""After so long without an answer of the scheduler it has begun all the same."""


class Attached:
    """A campaign in its folder, whose coordinator may be another process, another job, or gone.

    Made by `attach`, or by `run(..., detach=True)`. Nothing of it lives in this process: it may be made anew at
    any time, in another notebook or after the kernel was restarted.

    Attributes:
        run_dir: The campaign's folder.
    """

    def __init__(self, run_dir: str | Path) -> None:
        folder = RunDir(run_dir)
        folder.require()
        self.run_dir = folder.root

    def __str__(self) -> str:
        return str(public("open_run")(self.run_dir).status)

    def _repr_html_(self) -> str:
        shown: str = public("open_run")(self.run_dir)._repr_html_()
        return shown

    def __repr__(self) -> str:
        return f"Attached({str(self.run_dir)!r}: {'running' if self.running else 'no coordinator is at it'})"

    @property
    def running(self) -> bool:
        """Whether a coordinator is at it, as far as this machine can tell."""
        return holder(self.run_dir)[0]

    def follow(self, *, every_s: float = 1.0) -> Iterator[Event]:
        """What has happened, then what happens, as events; see `CampaignRun.follow`."""
        return follow(self.run_dir, every_s=every_s)

    def wait(self, timeout_s: float | None = None, *, progress: bool | View = True) -> CampaignResult:
        """Wait until the campaign has stopped, and show how it goes; Ctrl-C ends the waiting, not the campaign.

        Args:
            timeout_s: Wait no longer than that, in seconds.
            progress: Whether to show it; or a view of your own.

        Returns:
            The answer.

        Raises:
            TimeoutError: It has not stopped by then; it goes on.
            Interrupted: Nobody is at it any more, and it has not stopped; the message says how to go on.
        """
        from hpcagent.campaign.view import closed_at_the_end, progress_view

        view: View | None
        if isinstance(progress, bool):
            view = progress_view(load_run(self.run_dir, to_read=True)) if progress else None
        else:
            view = progress
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with closed_at_the_end(view):
            for event in self.follow(every_s=0.5):
                if view is not None:
                    view(event)
                if event.kind == "left":
                    raise Interrupted(event.reason, run_dir=str(self.run_dir))
                if event.kind != "stopped" and deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"the campaign in {self.run_dir} has not stopped within {timeout_s:g} s.")
        return self.result()

    def __await__(self) -> Generator[Any, None, CampaignResult]:
        return asyncio.to_thread(self.wait, progress=False).__await__()

    def result(self) -> CampaignResult:
        """The answer as it stands; see `CampaignRun.result`."""
        from hpcagent.campaign.answer import read_run

        return read_run(self.run_dir)

    def stop(self, timeout_s: float = 60.0) -> None:
        """Stop the campaign as Ctrl-C would: what has finished is kept, and it can be resumed.

        A coordinator on this machine is sent SIGTERM; one in a job of its own, or that waits for one, has its job
        cancelled. Returns when it is gone.

        Args:
            timeout_s: How long to wait for that, in seconds.

        Raises:
            BadInput: Its coordinator is this process, or one of another machine: the message says what to do.
            TimeoutError: It is not gone by then.
        """
        stop_run(self.run_dir, within_s=timeout_s)


def attach(run_dir: str | Path) -> Attached:
    """Take up a campaign that runs elsewhere: in the background, in another shell, in a job.

    Args:
        run_dir: The campaign's folder.

    Raises:
        BadInput: The folder is not that of a campaign.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder, progress=False)
        ...     attach(folder).wait(progress=False).best.params == result.best.params
        True
    """
    return Attached(run_dir)


def run_detached(
    campaign: Campaign | str | Path,
    *,
    site: AnySite | None = None,
    run_dir: str | Path | None = None,
    workers: int | None = None,
    inside: bool = False,
    report: bool = False,
) -> Attached:
    """Run a campaign in a process of its own, which outlives this one; see `ha.run` for the arguments.

    A function of a script or notebook goes along by value. What it prints is in `coordinator.log`.

    Raises:
        BadInput: As `Coordinator`; or the site is an open one, which is of this process.
        RunDirLocked: A coordinator has the folder.
        SiteFailed: It did not begin.
    """
    from hpcagent.campaign.coordinator import Coordinator
    from hpcagent.elsewhere.job import LOG
    from hpcagent.sites.site import Site

    if isinstance(site, Site):
        raise BadInput("an open site belongs to this process; name its profile to go on in the background.")
    if not isinstance(campaign, Campaign):
        campaign = load_campaign(campaign)
    coordinator = Coordinator(campaign, site=site, run_dir=run_dir, workers=workers, inside=inside, progress=False)
    coordinator.prepare()
    folder = coordinator.folder
    order = pickle.dumps(
        {
            "run_dir": str(folder.root.absolute()),
            "site": coordinator.profile,
            "workers": workers,
            "inside": inside,
            "report": report,
            "function": coordinator.campaign.app.sent,
        }
    )
    ordered("hpcagent.runs.attached", order, log=folder.root / LOG)
    return Attached(folder.root)


def main() -> None:
    """The process of its own: its order comes on standard input, from the process that started it."""
    from hpcagent.campaign.view import Lines

    with os.fdopen(os.dup(0), "rb") as pipe:
        order = pickle.loads(pipe.read())

    def work(begun: Any) -> int:
        campaign = load_run(order["run_dir"])
        if order["function"] is not None:
            campaign = campaign.model_copy(update={"app": campaign.app.carrying(order["function"])})
        lines, opened = Lines(campaign, sys.stderr), time.monotonic()

        def seen(event: Event) -> None:
            # Where it asks for jobs, it has begun when the first was taken, or after a while without an answer.
            taken = event.kind == "finished" or (event.kind == "site" and " submitted" in event.reason)
            waits = order["site"].batch and not order["inside"] and time.monotonic() - opened <= _BEGUN_S
            if event.kind != "starting" and (taken or not waits):
                begun()
            lines(event)

        result: CampaignResult = public("run")(
            campaign,
            site=order["site"],
            run_dir=order["run_dir"],
            workers=order["workers"],
            inside=order["inside"],
            report=order["report"],
            watch=seen,
            progress=False,
        )
        print(result, flush=True)
        return result.exit_code

    apart(work, 1, TOLD)
