"""What a campaign tells while it runs: events for a live view, finished batches as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcagent.campaign.budget import Outlook
from hpcagent.campaign.compare import estimated
from hpcagent.campaign.counts import stop_words
from hpcagent.campaign.numbers import number
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.repairing import repairs_text
from hpcagent.campaign.result import CampaignResult
from hpcagent.campaign.table import Table, headed
from hpcagent.html import Card, Displayed, Rows
from hpcagent.model.failures import state_counts
from hpcagent.model.records import Result

__all__ = ["Batch", "Event"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened in a campaign; what a live view is drawn from.

    Attributes:
        kind: `starting`, `opened`, `submitted`, `finished`, `batch`, `rule`, `site`, `late`, `tick`, `stopped` or
            `report`.
        results: The results that came in (`finished`, `batch`).
        reason: Why it stopped (`stopped`), what is being started (`starting`), how it was opened (`opened`), what
            became of a job (`site`), what a rule told of (`rule`), which run takes longer than it should (`late`),
            where the report is (`report`).
        running: Runs in the state `running`: sent, and not back.
        runs: Runs that have ended: completed, failed or given up.
        budget: Runs planned in all, if the stop condition bounds them.
        outlook: Node-hours spent, in flight and forecast, and the cap; None where nobody reckons them.
    """

    kind: str
    results: tuple[Result, ...] = ()
    reason: str = ""
    running: int = 0
    runs: int = 0
    budget: int | None = None
    outlook: Outlook | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Batch(Displayed):
    """A finished batch.

    Attributes:
        number: From 0.
        results: Its results, in manifest order.
        campaign: What is run.
        answer: Works out `so_far`.
    """

    number: int
    results: tuple[Result, ...]
    campaign: Campaign = field(repr=False)
    answer: Callable[[], CampaignResult] = field(repr=False)

    @property
    def so_far(self) -> CampaignResult:
        """The campaign's answer after this batch."""
        return self.answer()

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the batch as text: varied parameters, the objective's metrics, what happened."""
        campaign = self.campaign
        names, metrics = campaign.search.names, campaign.shown
        units = {m.name: m.unit for m in campaign.app.contract.metrics}
        header = ["run", *(headed(p.name, p.unit) for p in campaign.search.parameters)]
        header += [headed(m, units[m]) for m in metrics] + [""]
        rows = []
        for result in self.results:
            cells = [str(result.manifest.index)]
            cells += [number(result.manifest.params[n]) if n in result.manifest.params else "-" for n in names]
            cells += [number(result.metrics[m]) if m in result.metrics else "-" for m in metrics]
            rows.append([*cells, _remark(campaign, result)])
        return header, rows

    def table(self) -> Table:
        """The batch as a table that prints in a terminal and displays in a notebook."""
        header, rows = self.rows()
        return Table(f"batch {self.number}", header, rows)

    def _card(self) -> Card:
        header, rows = self.rows()
        ended = Counter(r.state for r in self.results)
        brief = f"{len(self.results)} runs, {state_counts(ended)}"
        return Card("Batch", str(self.number), tables=[Rows(brief, header, rows)], brief=brief)


def _remark(campaign: Campaign, result: Result) -> str:
    if result.failure is not None:
        return f"{result.state}: {result.failure.name} {repairs_text(result)}".strip()
    if result.stopped is not None:
        return stop_words(result)
    words: list[str] = [] if result.manifest.role in ("suggested", "told") else [result.manifest.role]
    words += [f"told: {result.manifest.origin}"] if result.manifest.origin else []
    if campaign.objective.known(result.metrics) and not campaign.objective.feasible(result.metrics):
        words.append("infeasible")
    words += [repairs_text(result)] if result.repairs else []
    if result.distrusted is not None and campaign.timed:
        words.append("distrusted")
        words += [f"{m} {number(v)} by CPU time" for m, v in estimated(campaign, result).items()]
    return ", ".join(words)
