"""`hpcagent workspace runs`: the runs of a campaign as a table, and a run by the number that it has there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcagent.commands.workspace_shown import IN_A_CELL, Said, shown
from hpcagent.errors import BadInput

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["failed_run", "folder_of", "is_numbered", "one_run", "runs_of"]

_TABLES = ("params", "metrics", "uncertainty")


def runs_of(there: Workspace, identity: str, *, first: int | None, last: int | None) -> Said:
    """A campaign's runs by their numbers, from 0 as everywhere.

    Args:
        there: The workspace.
        identity: The campaign.
        first: Only so many, from the beginning.
        last: Only so many, those at the end.

    Raises:
        BadInput: There is no such campaign, or both are given.
    """
    if first is not None and last is not None:
        raise BadInput("--first and --last: give one of them.", value=[first, last])
    rows, about, totals = _all_of(there, identity)
    some = rows[-last:] if last is not None else rows[:first]
    data = {"runs": some, "about": about, "totals": totals}
    return Said(data, lambda: _words(identity, some, len(rows), about or {}, totals))


def is_numbered(identity: str, word: str) -> bool:
    """Whether words name a run of a campaign by its number."""
    return identity.startswith("c-") and word.isdecimal()


def folder_of(there: Workspace, identity: str, number: str) -> str:
    """The folder that a campaign's run has in that of the campaign.

    Args:
        there: The workspace.
        identity: The campaign.
        number: Of the run, as `runs` numbers it.

    Raises:
        BadInput: It has no such run.
    """
    return f"work/{_id_of(there, identity, number)}"


def one_run(there: Workspace, identity: str, number: str) -> Said:
    """A run of a campaign by its number: state, parameters, metrics with units, failure, the log's last lines.

    Args:
        there: The workspace.
        identity: The campaign.
        number: Of the run, as `runs` numbers it.

    Raises:
        BadInput: It has no such run.
    """
    found = there.campaign_run(identity, _id_of(there, identity, number))
    plain = {name: value for name, value in found.items() if name != "index"}
    return Said(found, lambda: f"run {found['index']} of {identity}\n{shown('', plain)}")


def failed_run(there: Workspace, identity: str) -> list[str]:
    """Why the last run of a campaign that has failed did so, with its log, as lines; empty where none has.

    Args:
        there: The workspace.
        identity: The campaign.
    """
    rows, _, _ = _all_of(there, identity)
    failed = next((row for row in reversed(rows) if row["failure"]), None)
    if failed is None:
        return []
    found = there.campaign_run(identity, failed["id"])
    brief = {name: found[name] for name in ("params", "failure", "log_tail")}
    return [f"run {failed['index']}: {found['state']}", *(f"  {line}" for line in shown("", brief).splitlines())]


def _id_of(there: Workspace, identity: str, number: str) -> str:
    rows, _, _ = _all_of(there, identity)
    ids = [row["id"] for row in rows if row["index"] == int(number)]
    if len(ids) == 1:
        return str(ids[0])
    if ids:
        raise BadInput(
            f"{identity} has {len(ids)} runs of the number {number}: name one by its folder, work/EXECUTION_ID; "
            f"they are {', '.join(ids)}.",
            value=number,
        )
    there_are = f"0 to {rows[-1]['index']}" if rows else "none yet"
    raise BadInput(
        f"{identity} has no run {number}; its runs: {there_are}. `hpcagent workspace runs {identity}` lists them.",
        value=number,
    )


def _all_of(there: Workspace, identity: str) -> tuple[list[dict[str, Any]], dict[str, Any] | None, dict[str, Any]]:
    """All runs by number, each as a table, what is asked, and totals."""
    rows: dict[str, dict[str, Any]] = {}
    about, after = None, ""
    while True:
        page = there.campaign_runs(identity, after)
        rows = ({} if page["anew"] else rows) | {row["id"]: row for row in _rows(page["runs"])}
        about, after = page["about"] or about, page["after"]
        if not page["more"]:
            return sorted(rows.values(), key=lambda row: row["index"]), about, page["totals"]


def _rows(columns: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    plain = {name: values for name, values in columns.items() if name not in _TABLES}
    for i in range(len(columns["id"])):
        row = {name: values[i] for name, values in plain.items()}
        for name in _TABLES:
            row[name] = {n: values[i] for n, values in columns[name].items() if values[i] is not None}
        yield row


def _words(
    identity: str, rows: Sequence[Mapping[str, Any]], of: int, about: Mapping[str, Any], totals: Mapping[str, Any]
) -> str:
    from hpcagent.campaign.numbers import number, with_error
    from hpcagent.campaign.table import Table, headed

    if not of:
        return f"{identity} has no runs yet"
    units = {p["name"]: p["unit"] for p in about.get("parameters") or ()}
    measured = {m["name"]: m["unit"] for m in about.get("metrics") or ()}
    asked = [one["metric"] for key in ("goals", "limits") for one in about.get(key) or ()]
    asked += about.get("shown") or ()
    names, metrics = list(units), list(dict.fromkeys(asked)) or list(measured)[:IN_A_CELL]
    head = [
        "run",
        "state",
        *(headed(n, units[n]) for n in names),
        *(headed(m, measured.get(m, "1")) for m in metrics),
    ]
    lines = [
        [
            str(row["index"]),
            _state(row),
            *(number(row["params"][n]) if n in row["params"] else "" for n in names),
            *(
                with_error(row["metrics"][m], row["uncertainty"].get(m)) if m in row["metrics"] else ""
                for m in metrics
            ),
            f"work/{row['id']}",
        ]
        for row in rows
    ]
    which = "" if len(rows) == of else f"; {len(rows)} of {of} are shown"
    limits = [limit["text"] for limit in about.get("limits") or ()]
    title = f"{identity}: {totals['done']} of {totals['planned']} runs have ended, "
    title += f"{totals['node_hours']:.2g} node-hours{which}"
    end = [f"limits: {', '.join(limits)}"] if limits else []
    return "\n".join([str(Table(title, [*head, "folder"], lines)), *end])


def _state(row: Mapping[str, Any]) -> str:
    """Its state; why it failed, or that it breaks a limit."""
    if row["failure"]:
        return f"{row['state']} ({row['failure']})"
    return f"{row['state']}, breaks a limit" if row["keeps"] is False else str(row["state"])
