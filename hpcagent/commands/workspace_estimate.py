"""`hpcagent workspace estimate`: an app, a campaign, more of a campaign, a run once more; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.commands.workspace_apps import is_campaign_file, params_of, refuse_unknown_of
from hpcagent.commands.workspace_shown import Said, shown
from hpcagent.errors import BadInput

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["estimated"]

HOW = (
    "`hpcagent workspace estimate` takes APP NAME=VALUE..., a campaign (its file, or --set with a packaged name), "
    "CAMPAIGN_ID with --set, or RUN with changes"
)


def estimated(
    there: Workspace, given: Sequence[str], changes: Mapping[str, Any], *, site: str, walltime_s: float | None
) -> Said:
    """What it would take, and what the gate would say.

    Args:
        there: The workspace.
        given: An app with parameters, a campaign, the id of a campaign, or of a run with changes.
        changes: Dotted key -> value, of a campaign.
        site: Where it would run.
        walltime_s: Wall time after which a run would be ended, in seconds.

    Raises:
        BadInput: Something does not go with what is asked for.
    """
    first, rest = given[0], list(given[1:])
    if _is_id(first, "c"):
        _refuse(
            first,
            "a campaign that there is",
            "--set",
            {**_words(rest), "--site": site, "--walltime-s": walltime_s},
        )
        found = there.estimate_extension(first, changes)
        totals = there.campaign_runs(first, most=1)["totals"]
        return Said(found, lambda: _of_extension(first, found, totals))
    if _is_id(first, "r"):
        _refuse(first, "a run", "changes", {"--set": changes, "--site": site, "--walltime-s": walltime_s})
        if not rest:
            raise BadInput(
                f"estimate {first}: it is a run that there is, and nothing is changed; say what shall be other, "
                f'e.g. "timestep = 0.002 ps" or "timestep /2".',
                value=first,
            )
        found = there.estimate_repeat(rest, first)
        return Said(found, lambda: shown("", found))
    if _is_campaign(first, changes):
        _refuse(first, "a campaign", "--set", {**_words(rest), "--walltime-s": walltime_s})
        refuse_unknown_of(there, first, changes)
        found = there.estimate_campaign(first, changes=changes, site=site)
        return Said(found, lambda: _of_campaign(first, found))
    _refuse(first, "an app", "NAME=VALUE", {"--set": changes})
    app = str(Path(first).absolute()) if Path(first).is_file() else first
    found = there.estimate(app, params_of(there, app, rest), site=site, walltime_s=walltime_s)
    return Said(found, lambda: shown("", found))


def _is_id(word: str, kind: str) -> bool:
    """Whether it is the id of a campaign (`c`) or a run (`r`): no app is called so."""
    return re.fullmatch(rf"{kind}-[\w-]+", word) is not None and not Path(word).is_file()


def _is_campaign(word: str, changes: Mapping[str, Any]) -> bool:
    """Whether it is a campaign's file, or a packaged campaign: by --set, or as no app has its name."""
    from hpcagent.campaign.loading import list_configs
    from hpcagent.catalog import app_names

    if Path(word).expanduser().is_file():
        return is_campaign_file(word)
    return word in list_configs() and (bool(changes) or word not in app_names())


def _words(rest: Sequence[str]) -> dict[str, Any]:
    return {" ".join(rest): True} if rest else {}


def _refuse(first: str, is_: str, takes: str, given: Mapping[str, Any]) -> None:
    """Refuse what does not go with what is asked for.

    Raises:
        BadInput: Something of it is given.
    """
    wrong = next((name for name, value in given.items() if value), None)
    if wrong is not None:
        raise BadInput(f"estimate {first}: it is {is_}, which takes {takes}, not {wrong}. {HOW}.", value=wrong)


def _of_campaign(name: str, found: Mapping[str, Any]) -> str:
    runs = "as many runs as it takes" if found["runs"] is None else f"{found['runs']} runs at most"
    lines = [f"{name}: {runs} of {found['app']} on the site {found['site']}; nothing was run"]
    lines += [_expected(found), _at_most(found)]
    lines += [f"known: {found['known']} is the same campaign"] if found.get("known") else []
    return "\n".join([*lines, *_gate(found)])


def _of_extension(identity: str, found: Mapping[str, Any], totals: Mapping[str, Any]) -> str:
    """What comes on top of what a campaign has taken."""
    whole = "" if found["runs_in_all"] is None else f", {found['runs_in_all']} runs in all"
    lines = [
        f"{identity}: {found['app']} on the site {found['site']}{whole}; nothing was run",
        f"so far: {totals['done']} runs, {totals['node_hours']:.3g} node-hours",
        f"on top: {'as many runs as it takes' if found['runs'] is None else _runs(found['runs'])}; "
        f"{_at_most(found)}",
        _expected(found, " on top"),
    ]
    return "\n".join([*lines, *_gate(found)])


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _expected(found: Mapping[str, Any], of: str = "") -> str:
    """Node-hours to expect, and what that is from."""
    hours, each_s = found["node_hours"], found["wall_s_per_run"]
    words = "not known" if hours is None else f"{hours:.3g} node-hours"
    each = "" if each_s is None else f", {each_s:.3g} s a run"
    return f"expected{of}: {words}{each} ({found['from']})"


def _at_most(found: Mapping[str, Any]) -> str:
    hours, usd = found["node_hours_at_most"], found["usd_at_most"]
    if hours is None:
        return "node-hours are not bounded (--set until.node_hours=H bounds them)"
    return f"at most {hours:.3g} node-hours" + ("" if usd is None else f", {usd:.3g} US dollars")


def _gate(found: Mapping[str, Any]) -> list[str]:
    """What the gate would say."""
    lines = [f"a person would have to approve it: {found['approval']}"] if found["approval"] else []
    refused = found["refused"]
    if refused:
        lines.append(f"would be refused ({refused['check']}): {refused['why']}")
        lines += [f"  {name}: {refused[name]}" for name in ("allowed", "do") if refused.get(name)]
    return lines
