"""A campaign's folder as one object: what it holds, finished or running, read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign, about
from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.errors import BadInput
from hpcagent.model.records import Result
from hpcagent.store.columns import Column, columns_of

if TYPE_CHECKING:
    import pandas
    import xarray

    from hpcagent.campaign.best import Best
    from hpcagent.campaign.enqueued import Enqueued
    from hpcagent.campaign.events import Event
    from hpcagent.campaign.result import CampaignResult
    from hpcagent.campaign.table import Table
    from hpcagent.campaign.view import View
    from hpcagent.replays.regret import Replay
    from hpcagent.replays.whatif import PolicySpec
    from hpcagent.reports.explanation import Explanation
    from hpcagent.reports.report import Written
    from hpcagent.runs.archive import Archived
    from hpcagent.runs.removed import Removal
    from hpcagent.runs.status import Status
    from hpcagent.runs.stopped import Stopping
    from hpcagent.sites.reap import Reaped

__all__ = ["CampaignRun", "open_run"]


class CampaignRun:
    """A campaign in its folder, finished or running; made by `open_run`.

    It only reads, takes no lock, and works beside the coordinator that writes, and in folders that cannot be
    written (`report` writes into it, `stop` ends its coordinator). The journal is read when something of it
    is asked for first, the models of the answer are fitted when that is; all properties then speak of that one
    moment, until `refresh`.

    Attributes:
        folder: The folder; of an archive a temporary one with its records.
        archive: The archive that it was opened from, or None.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.folder = Path(run_dir).expanduser()
        self.archive: Path | None = None
        if self.folder.is_file():
            from hpcagent.runs.unpacked import Unpacked

            self.archive = self.folder
            self._unpacked = Unpacked(self.folder)  # its folder is there as long as this is
            self.folder = self._unpacked.folder
        self._campaign = load_run(self.folder, to_read=True)

    def __repr__(self) -> str:
        return f"CampaignRun({str(self.archive or self.folder)!r}: {self._campaign.name})"

    def _repr_html_(self) -> str:
        from hpcagent.html import Card

        facts = [
            ("folder", self.archive or self.folder),
            ("question", self._campaign.objective),
            ("status", self.status),
        ]
        return Card("CampaignRun", self._campaign.name, facts).html()

    @property
    def campaign(self) -> Campaign:
        """What was asked."""
        return self._campaign

    def refresh(self) -> CampaignRun:
        """Forget what was read, so that it is read anew when it is asked for; returns itself."""
        self._campaign = load_run(self.folder, to_read=True)
        for name in ("_read", "_columns", "status", "result"):
            self.__dict__.pop(name, None)
        return self

    @property
    def running(self) -> bool:
        """Whether a coordinator is at it now, as far as this machine can tell; asked anew each time."""
        from hpcagent.store.rundir import holder

        return self.archive is None and holder(self.folder)[0]

    def wait(self, timeout_s: float | None = None, *, progress: bool | View = True) -> CampaignResult:
        """Wait until the campaign has stopped, and return its answer; see `Attached.wait`."""
        from hpcagent.runs.attached import Attached

        Attached(self.folder).wait(timeout_s, progress=progress)
        return self.refresh().result

    def stop(self, timeout_s: float = 60.0) -> Stopping:
        """Ask its coordinator to stop, as Ctrl-C would, and wait until it has; harmless where none runs.

        What has finished is kept. A process of this machine is sent SIGTERM once it is seen to hold the folder's
        lock; a coordinator in a job, and those that wait to follow it, have their jobs cancelled.

        Args:
            timeout_s: How long to wait until its coordinator is gone, in seconds.

        Raises:
            BadInput: The coordinator is this process, is on another machine, or cannot be seen to be one.
            TimeoutError: It is not gone by then; it was asked.
        """
        from hpcagent.runs.stopped import stop_run

        done = stop_run(self._of_its_own("stopped"), within_s=timeout_s)
        self.refresh()
        return done

    def reap(self, timeout_s: float = 60.0) -> list[Reaped]:
        """Cancel the jobs that a killed coordinator has left, and see them gone. Safe to call again.

        Args:
            timeout_s: How long to wait until they are gone, in seconds.

        Raises:
            RunDirLocked: A live coordinator has the folder; it ends its jobs itself.
        """
        from hpcagent.sites.reap import reap

        return reap(self._of_its_own("reaped"), within_s=timeout_s)

    def enqueue(self, points: Sequence[Mapping[str, object]]) -> Enqueued:
        """Have points of one's own run before the policy's, by the coordinator that is at it or by the next one.

        Args:
            points: Of the varied parameters.

        Raises:
            BadInput: A point is not allowed; none was added.
        """
        from hpcagent.campaign.enqueued import enqueue

        return enqueue(self._of_its_own("added to"), points)

    def write_archive(self, output: str | Path, *, with_work: bool = False) -> Archived:
        """Write it into one file, which `open_run` opens anywhere, read only.

        Args:
            output: The file, `.tar.gz`, `.tgz` or `.zip`; must not be there.
            with_work: All files of runs and logs, also large and binary ones, which cannot be masked.
        """
        from hpcagent.runs.archive import archive

        return archive(self._of_its_own("archived"), output, with_work=with_work)

    def remove(self, *, keep_records: bool = False, dry_run: bool = False) -> Removal:
        """Remove the folder, or free those of its runs and keep the records.

        Args:
            keep_records: Only the folders of its runs.
            dry_run: Say what would be removed; remove nothing.
        """
        from hpcagent.runs.removed import remove_run

        return remove_run(self._of_its_own("removed"), keep_records=keep_records, dry_run=dry_run)

    def _of_its_own(self, what: str) -> Path:
        """The folder, where it is not that of an archive."""
        if self.archive is not None:
            raise BadInput(
                f"{self.archive} is an archive: it is read, and cannot be {what}.", value=str(self.archive)
            )
        return self.folder

    @cached_property
    def _read(self) -> Snapshot:
        return snapshot(self.folder, self._campaign)

    @cached_property
    def status(self) -> Status:
        """How far it is and who is at it; prints as `hpcagent status`. Fits nothing."""
        from hpcagent.runs.status import status_of

        return status_of(self.folder, self._read)

    @property
    def results(self) -> tuple[Result, ...]:
        """Every result so far, in manifest order; in rolling mode as they came."""
        return tuple(self._read.results)

    @cached_property
    def result(self) -> CampaignResult:
        """The answer and all that belongs to it, as `read_run` gives it. Models of all runs are fitted."""
        from hpcagent.campaign.answer import answer_of

        return answer_of(self._read)

    @property
    def best(self) -> Best | None:
        """The point to use, or None where no run completed with the objective's metrics."""
        return self.result.best

    @property
    def front(self) -> tuple[Result, ...]:
        """With several goals: the results on the Pareto front."""
        return self.result.front

    def table(self, n: int = 8) -> Table:
        """The `n` best points: parameters, metrics ± standard error, P(feasible), runs."""
        return self.result.table(n)

    @cached_property
    def _columns(self) -> tuple[Column, ...]:
        return columns_of(self.results, self._campaign.app.contract)

    def to_pandas(self) -> pandas.DataFrame:
        """Every result as a row of a DataFrame; see `CampaignResult.to_pandas`. Fits nothing.

        Raises:
            BadInput: pandas is not installed (extra `pandas`).
        """
        from hpcagent.store.frames import to_pandas

        return to_pandas(self._columns, self._about)

    def to_xarray(self) -> xarray.Dataset:
        """Every result along the dimension `index`; see `CampaignResult.to_xarray`. Fits nothing.

        Raises:
            BadInput: xarray is not installed (extra `xarray`).
        """
        from hpcagent.store.frames import to_xarray

        return to_xarray(self._columns, self._about)

    @property
    def _about(self) -> dict[str, str]:
        return about(self._campaign)

    def report(self, *, plots: bool = True) -> Written:
        """Write report/report.md and its plots into the folder; returns where they are.

        Of an archive they go into a folder of the working directory, NAME_report.

        Raises:
            StoreFull: The folder cannot be written.
        """
        from hpcagent.reports.report import report

        to = None if self.archive is None else Path(f"{self._campaign.name}_report")
        return report(self.folder, plots=plots, to=to)

    def explain(self, run: int | str) -> Explanation:
        """Say why a run was asked for, what was expected of it, and what came out.

        Args:
            run: Its number, or the beginning of its execution id.
        """
        from hpcagent.reports.explain import explain

        return explain(self.folder, run)

    def fetch(
        self, run: int | str, *paths: str, to: str | Path | None = None, max_mb: float = 100.0
    ) -> tuple[Path, ...]:
        """Bring files of a run from the endpoint that computed it; returns where they are.

        Args:
            run: Its number, or the beginning of its execution id.
            paths: Names of artifacts, files, or globs.
            to: Another folder than the run's own.
            max_mb: Largest size of all together, in MB (10**6 bytes).
        """
        from hpcagent.runs.fetched import fetch

        return fetch(self.folder, run, *paths, to=to, max_mb=max_mb).paths

    def follow(self, *, every_s: float = 1.0) -> Iterator[Event]:
        """Tell what has happened, then what happens, until it stops.

        Args:
            every_s: Time between two looks, in seconds.
        """
        from hpcagent.runs.follow import follow

        return follow(self.folder, every_s=every_s)

    def replay(
        self,
        *,
        policy: PolicySpec | Sequence[PolicySpec] = (),
        batch: int | None = None,
        runs: int | None = None,
        seeds: int = 20,
        workers: int | None = None,
        watch: Callable[[str, int], None] | None = None,
    ) -> Replay:
        """Play other policies on what is recorded; see `hpcagent.replays.whatif.replay`."""
        from hpcagent.replays.whatif import replay

        return replay(
            self.folder, policy=policy, batch=batch, runs=runs, seeds=seeds, workers=workers, watch=watch
        )


def open_run(run_dir: str | Path) -> CampaignRun:
    """Open the folder of a campaign, finished or running, to look at what it holds. Nothing of it is changed.

    Args:
        run_dir: The folder that `run` wrote, or a file that `archive` wrote.

    Raises:
        BadInput: The folder is not that of a campaign, its files are damaged, or it belongs to another user.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ended = run("synthetic", site="threads", run_dir=folder)
        ...     found = open_run(folder)
        ...     len(found.results), found.best.params == ended.best.params
        (36, True)
    """
    return CampaignRun(run_dir)
