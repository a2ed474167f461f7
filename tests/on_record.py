"""What the workers of a campaign have on record of its runs."""

from __future__ import annotations

from pathlib import Path

from hpcagent.apps.run_records import RunRecords


def hosts_on_record(work: Path) -> list[str]:
    """The host of each run that has ended and has written no file."""
    return [one.result["host"] for one in RunRecords(work).of(lambda name: True).values() if one.result]
