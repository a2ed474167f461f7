"""A sweep's report: what was asked, all points with their errors, the plots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcagent.campaign.numbers import point_text
from hpcagent.campaign.sweep import SweepResult
from hpcagent.shown import markdown

__all__ = ["sweep_text"]


def sweep_text(result: SweepResult, drawn: Sequence[Path], note: str) -> str:
    """The report as Markdown.

    Args:
        result: What is known.
        drawn: The plots beside it.
        note: Why there are none, or an empty text.
    """
    campaign = result.campaign
    own = tuple(f"![{path.stem}]({path.name})" for path in drawn)
    units = {p.name: p.unit for p in campaign.app.contract.space.parameters}
    head = [f"# {campaign.name}", "", _flat(campaign.description or campaign.app.contract.description), ""]
    head += [f"- varied: {p.name} in {p.range}" for p in campaign.search.parameters]
    middle = campaign.complete(campaign.search.from_unit([0.5] * len(campaign.search)))
    constant = {n: v for n, v in middle.items() if n not in campaign.search}
    head += [f"- constant: {point_text(constant, units)}"] if constant else []
    head.append(f"- app {campaign.app.name} {campaign.app.contract.version}; seed {campaign.seed}")
    head += [f"- {_flat(line)}" for line in str(result).splitlines()[1:]]
    table = result.table()
    rows = [_line(table.header), _line("---" for _ in table.header), *map(_line, table.rows)]
    parts = ["\n".join(head), "## Points", f"{_flat(result.error_text)}.", "\n".join(rows), *own]
    parts += [f"({note})"] if note else []
    files = "`metrics.h5` has every run, `events.jsonl` everything as it happened, `work/` each run's files."
    return markdown("\n\n".join([*parts, files]), own=own) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_flat(cell).replace("|", "\\|") for cell in cells) + " |"


def _flat(text: str) -> str:
    return " ".join(text.split())
