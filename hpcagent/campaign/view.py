"""Progress while a campaign runs: a live view in a terminal or notebook, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from hpcagent.campaign.compare import estimated
from hpcagent.campaign.counts import best_single, stop_words, told_note
from hpcagent.campaign.numbers import number
from hpcagent.campaign.repairing import repairs_text
from hpcagent.campaign.table import headed
from hpcagent.html import escaped
from hpcagent.model.records import Result
from hpcagent.shown import plain
from hpcagent.surroundings import in_notebook

if TYPE_CHECKING:
    from rich.console import Console, Group

    from hpcagent.campaign.budget import Outlook
    from hpcagent.campaign.coordinator import Coordinator
    from hpcagent.campaign.events import Event
    from hpcagent.campaign.record import Campaign

__all__ = [
    "JsonLines",
    "Lines",
    "Live",
    "Opening",
    "View",
    "closed_at_the_end",
    "opening_view",
    "progress_view",
    "together",
    "watch",
]

SHOWN_ROWS = 8
BAR = 50
EACH_BATCH = 50
"""So many batches have a line each; of those that follow, one in `SPARSE_S` seconds has."""
SPARSE_S = 10.0

_TOLD = ("starting", "opened", "site", "late", "stopped", "report")
"""Events whose reason a live view shows."""


class Tally:
    """What the views have in common: counts, best so far, time and node-hours left."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.results: list[Result] = []
        self.running = 0
        self.budget: int | None = None
        self.outlook: Outlook | None = None
        self.batch = -1
        self.began = time.monotonic()
        self.runs = 0
        self.before = 0
        self.earlier: Sequence[Result] = ()
        self.failed_before: Counter[str] = Counter()

    def take(self, event: Event) -> None:
        """Take in one event."""
        if event.kind == "report":
            return  # comes after the end, and counts nothing
        if event.kind == "opened":
            self.before, self.results = event.runs, list(event.results)
            best = self.best()
            # Those that were given up are run again now.
            self.failed_before = Counter(r.failure.name for r in self.results if r.failure and r.final)
            self.results, self.earlier = [], [] if best is None else [best]
        if event.kind == "finished":
            self.results += event.results
        if event.kind == "batch" and event.results:
            self.batch = max(r.manifest.batch for r in event.results)
        self.running, self.budget, self.runs = event.running, event.budget, event.runs
        self.outlook = event.outlook or self.outlook

    @property
    def failures(self) -> Counter[str]:
        """Failure name -> runs that have failed, those of earlier sessions included."""
        return self.failed_before + Counter(r.failure.name for r in self.results if r.failure and r.final)

    @property
    def given_up(self) -> Counter[str]:
        """Failure name -> runs that were given up in this session."""
        return Counter(r.failure.name for r in self.results if r.failure and not r.final)

    @property
    def node_hours(self) -> float:
        """Node-hours of this session."""
        return sum(r.cost.node_hours for r in self.results)

    def best(self) -> Result | None:
        """The best single feasible run so far (the answer itself pools repeats)."""
        return best_single(self.campaign, (*self.earlier, *self.results))

    def left(self) -> tuple[float, float] | None:
        """Seconds and node-hours that the remaining runs will probably take."""
        done = self.runs - self.before
        # What the cheap runs of a screening took says nothing of the dear ones to come.
        if self.budget is None or done <= 0 or self.campaign.fidelity is not None:
            return None
        if self.outlook is not None and self.outlook.cap is not None:
            return None  # it may end before the runs do
        remaining = max(0, self.budget - self.runs)
        elapsed = time.monotonic() - self.began
        return remaining * elapsed / done, remaining * self.node_hours / max(1, len(self.results))

    def summary(self) -> str:
        """One line."""
        total = f"/{self.budget}" if self.budget is not None else ""
        parts = [f"{self.runs}{total} runs"]
        if self.running:
            parts.append(f"{self.running} running")
        for state, found in (("failed", self.failures), ("given up", self.given_up)):
            if found:
                parts.append(f"{state}: " + ", ".join(f"{n} {name}" for name, n in sorted(found.items())))
        best = self.best()
        if best is not None:
            goal = self.campaign.objective.goal.metric
            guess = estimated(self.campaign, best).get(goal)
            value = best.metrics[goal] if guess is None else guess
            source = told_note(best) if guess is None else " (estimated from CPU time)"
            # The answer pools runs and wants P(feasible); it may be another point, with a smaller number.
            parts.append(f"best single run: {goal} {number(value)}{source}")
        left = self.left()
        if left is not None and self.runs < (self.budget or 0):
            hours = f" and {left[1]:.2g} node-hours" if self.outlook is None else ""
            parts.append(f"about {duration(left[0])}{hours} left")
        if self.outlook is not None:
            parts.append(str(self.outlook))
        return "; ".join(parts)


class Lines:
    """One line for each batch, for logs and pipes; of many quick batches not all have one."""

    def __init__(self, campaign: Campaign, stream: TextIO | None = None) -> None:
        self._tally = Tally(campaign)
        self._batches, self._said_at = 0, 0.0
        self._left_out = ""
        self._stream = stream or sys.stderr  # None where that was closed: nobody looks

    def __call__(self, event: Event) -> None:
        self._tally.take(event)
        if event.kind in ("starting", "opened"):
            self._say(f"{self._tally.campaign.name}: {event.reason}")
        elif event.kind == "batch":
            self._batch()
        elif event.kind in ("site", "rule", "late", "report"):
            self._say(event.reason)
        elif event.kind == "stopped":
            if self._left_out:
                self._say(self._left_out)
            self._say(f"stopped: {event.reason}")

    def _batch(self) -> None:
        line, now = f"batch {self._tally.batch}: {self._tally.summary()}", time.monotonic()
        self._batches += 1
        self._left_out = ""
        if self._batches > EACH_BATCH and now - self._said_at < SPARSE_S:
            self._left_out = line
            return
        self._said_at = now
        self._say(line)

    def _say(self, text: str) -> None:
        # `... | head`, a terminal that was closed: who looked on has gone, the campaign goes on.
        if self._stream is None:  # print would take stdout
            return
        with contextlib.suppress(OSError):
            print(plain(text), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to put away."""


class JsonLines(Lines):
    """One JSON object for each event that matters: for programs."""

    def __call__(self, event: Event) -> None:
        if event.kind in ("tick", "starting"):  # for programs, a campaign begins with `opened`
            return
        data: dict[str, Any] = {"event": event.kind, "runs": event.runs, "running": event.running}
        if event.budget is not None:
            data["budget"] = event.budget
        if event.reason:
            data["reason"] = event.reason
        if event.outlook is not None:
            data["node_hours"] = {k: v for k, v in asdict(event.outlook).items() if v is not None}
        if event.kind == "finished":
            data["results"] = [_brief(r) for r in event.results]
        self._say(json.dumps(data))


def _brief(result: Result) -> dict[str, Any]:
    data: dict[str, Any] = {
        "index": result.manifest.index,
        "execution_id": result.manifest.execution_id,
        "status": result.status,
        "state": result.state,
        "role": result.manifest.role,
        "params": result.manifest.params,
        "metrics": result.metrics,
    }
    if result.failure is not None:
        data["failure"] = {
            "kind": result.failure.kind,
            "name": result.failure.name,
            "message": result.failure.message,
        }
    return data


class Live:
    """A progress bar, the latest runs, the best so far, failures and what is left; redrawn in place."""

    def __init__(self, campaign: Campaign, console: Console | None = None) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live as RichLive

        self._tally = Tally(campaign)
        self._console = console or RichConsole(stderr=True)
        self._note = ""
        self._live = RichLive(
            self._draw(),
            console=self._console,
            refresh_per_second=5,
            transient=False,
            # What the script prints on the same screen goes above the drawing; into a file it goes as it is.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            redirect_stderr=False,
        )
        self._live.start()

    def __call__(self, event: Event) -> None:
        if event.kind == "report":
            with contextlib.suppress(OSError):
                self._console.print(plain(event.reason), markup=False, highlight=False)
            return
        self._tally.take(event)
        if event.kind in _TOLD:
            self._note = event.reason
        self._live.update(self._draw(), refresh=event.kind == "starting")
        if event.kind == "stopped":
            self.close()

    def close(self) -> None:
        """Leave the last drawing on the screen, if that is still there."""
        with contextlib.suppress(OSError):
            self._live.stop()

    def _draw(self) -> Group:
        from rich.console import Group as RichGroup
        from rich.markup import escape
        from rich.table import Table
        from rich.text import Text

        tally, campaign = self._tally, self._tally.campaign
        parts: list[Any] = [Text(f"{campaign.name}: {campaign.question}", style="bold")]
        if tally.budget:
            done = round(BAR * min(tally.runs / tally.budget, 1.0))
            parts.append(Text.assemble(("━" * done, "green"), ("━" * (BAR - done), "dim")))
        parts.append(Text(plain(tally.summary())))
        rows = tally.results[-SHOWN_ROWS:]
        if rows:
            table = Table(box=None, padding=(0, 1), header_style="dim")
            units = {m.name: m.unit for m in campaign.app.contract.metrics}
            for p in campaign.search.parameters:
                table.add_column(escape(headed(p.name, p.unit)), justify="right")
            for metric in campaign.shown:
                table.add_column(escape(headed(metric, units[metric])), justify="right")
            table.add_column("")
            for result in rows:
                table.add_row(*_cells(campaign, result))
            parts.append(table)
        if self._note:
            parts.append(Text(plain(self._note), style="dim"))
        return RichGroup(*parts)


def _cells(campaign: Campaign, result: Result) -> list[str]:
    from rich.markup import escape

    cells = [
        escape(plain(number(p[n]))) if n in (p := result.manifest.params) else "-" for n in campaign.search.names
    ]
    cells += [number(result.metrics[m]) if m in result.metrics else "-" for m in campaign.shown]
    if result.failure is not None:
        failed = f"[red]{result.state}: {escape(result.failure.name)}[/red]"
        return [*cells, f"{failed} {escape(plain(repairs_text(result)))}".strip()]
    if result.stopped is not None:
        return [*cells, f"[yellow]{escape(stop_words(result))}[/yellow]"]
    if not campaign.objective.feasible(result.metrics):
        return [*cells, "[yellow]infeasible[/yellow]"]
    remarks = [repairs_text(result), "distrusted" if result.distrusted and campaign.timed else ""]
    said = ", ".join(filter(None, remarks))
    return [*cells, f"[dim]{escape(plain(said))}[/dim]" if said else ""]


def duration(seconds: float) -> str:
    """A time span in words.

    Example:
        >>> duration(75), duration(5), duration(7300)
        ('1 min 15 s', '5 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class View(Protocol):
    """What draws progress: called with every event, closed at the end."""

    def __call__(self, event: Event) -> None:
        """Take in an event."""

    def close(self) -> None:
        """Leave the last drawing as it is."""


class Opening:
    """Says what is being started, and that it is; what comes then is left to the loop over the batches."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._handle: Any = None
        if in_notebook():
            import IPython.display

            display: Any = IPython.display  # IPython has no type information
            self._html = display.HTML
            self._handle = display.display(display.HTML(""), display_id=True)

    def __call__(self, event: Event) -> None:
        if event.kind not in ("starting", "opened"):
            return
        text = plain(f"{self._campaign.name}: {event.reason}")
        if self._handle is not None:
            self._handle.update(self._html(f"<small>{escaped(text)}</small>"))
            return
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to put away."""


def opening_view(campaign: Campaign) -> View | None:
    """What says that a campaign is being started, where a person looks on; None elsewhere."""
    return Opening(campaign) if in_notebook() or _on_terminal() else None


def progress_view(campaign: Campaign) -> View:
    """A progress display that suits where it is used: notebook, terminal, or plain lines."""
    if in_notebook():
        return NotebookView(campaign)
    return Live(campaign) if _on_terminal() else Lines(campaign)


def together(*watchers: Callable[[Event], None] | None) -> Callable[[Event], None]:
    """Call all of them, those that there are, with every event."""
    calls = [watcher for watcher in watchers if watcher is not None]

    def tell(event: Event) -> None:
        for call in calls:
            call(event)

    return tell


@contextlib.contextmanager
def closed_at_the_end(view: View | None) -> Iterator[None]:
    """Close the view, if there is one, however it ended."""
    try:
        yield
    finally:
        if view is not None:
            view.close()


def watch(coordinator: Coordinator | Campaign) -> View:
    """A progress display that suits where it is used: notebook, terminal, or plain lines.

    Pass it as `watch=` to `run` or `Coordinator`.

    Example:
        >>> from hpcagent.campaign.loading import load_campaign
        >>> view = watch(load_campaign("synthetic"))
    """
    found: Any = getattr(coordinator, "campaign", coordinator)
    campaign: Campaign = found
    return progress_view(campaign)


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


class NotebookView:
    """The live view of a notebook: one output that is updated in place, without widgets."""

    def __init__(self, campaign: Campaign) -> None:
        import IPython.display

        display: Any = IPython.display  # IPython has no type information
        self._html = display.HTML
        self._tally = Tally(campaign)
        self._note = ""
        self._drawn = 0.0
        self._handle = display.display(display.HTML(""), display_id=True)

    def __call__(self, event: Event) -> None:
        self._tally.take(event)
        if event.kind in _TOLD:
            self._note = event.reason
        now = time.monotonic()
        # Every update is a message to the browser; five a second are enough for an eye.
        if event.kind in ("tick", "finished", "submitted") and now - self._drawn < 0.2:
            return
        self._drawn = now
        self._handle.update(self._html(self._draw()))

    def close(self) -> None:
        """Leave the last drawing."""
        self._handle.update(self._html(self._draw()))

    def _draw(self) -> str:
        from html import escape

        tally = self._tally
        share = min(1.0, tally.runs / tally.budget) if tally.budget else 0.0
        bar = f"<progress value='{share:.3f}' max='1' style='width:24em'></progress>" if tally.budget else ""
        return (
            f"<div><b>{escape(tally.campaign.name)}</b>: {escape(tally.campaign.question)}<br>{bar} "
            f"{escape(tally.summary())}<br><small>{escape(self._note)}</small></div>"
        )
