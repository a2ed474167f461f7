"""What the library says to a person at a shell, in the words of the tools: a model has no shell."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["NEXT", "in_tool_words", "next_step", "said_in_tool_words"]

# First match wins: the longer command stands before the shorter one. What only a person can do (approve, log in,
# write a profile) stays as it is.
_COMMANDS: tuple[tuple[str, str], ...] = (
    ("workspace list", "list_runs"),
    ("workspace status", "get_status"),
    ("workspace fetch", "fetch_artifact"),
    ("workspace approvals", "list_approvals"),
    ("workspace cancel", "cancel"),
    ("workspace expire", "expire_runs"),
    ("tools show", "get_registered_tool"),
    ("tools list", "list_registered_tools"),
    ("workspace apps", "list_apps"),
    ("workspace describe", "describe_app"),
    (r"apps? [A-Za-z{<][^`\s]*", "describe_app"),
    ("apps", "list_apps"),
    ("contract", "describe_app"),
    ("resume", "extend_campaign"),
    ("extend", "extend_campaign"),
    ("run", "start_campaign"),
    ("submit", "start_campaign"),
    ("stop", "stop_campaign"),
    ("status", "get_campaign"),
    ("replay", "replay_campaign"),
    ("report", "make_report"),
    ("fetch", "fetch_artifact"),
    ("sites", "get_workspace"),
    ("list", "list_packaged_campaigns"),
)
_SAID = tuple((re.compile(rf"`hpcagent {command}(?![a-z-])[^`]*`"), tool) for command, tool in _COMMANDS)
_OPTIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"--nodes[ =](\d+)"), r'resources {"nodes": \1}'),
    (re.compile(r"--nodes\b"), 'resources {"nodes": ...}'),
    (re.compile(r"--walltime\b"), "walltime_s"),
    (re.compile(r"--(site|seed|why)\b"), r"\1"),
    (re.compile(r"--set (\S+?)=(\S+)"), r'changes {"\1": \2}'),
)

NEXT: dict[str, str] = {
    "app": "list_apps has the apps",
    "campaign": "list_packaged_campaigns has campaigns, list_runs those that were started",
    "run": "list_runs has runs and campaigns",
    "file": "list_artifacts has the files of a run",
    "site": "get_workspace has the sites",
    "approval": "list_approvals has approvals",
    "subscription": "subscribe_events makes one",
}
_ABOUT = re.compile(
    r"\b(?:no such|there is no|has no|unknown) (?:\w+ )?(app|campaign|run|file|site|approval|subscription)\b"
)
_ADVICE = re.compile(
    r"; [a-z]+ (?:it|another)|\b(?:list|get|describe|start|stop|extend|make|subscribe)_[a-z_]+|; give |Do this"
)


def in_tool_words(text: str) -> str:
    """A text with tools in place of commands and options.

    Example:
        >>> in_tool_words("`hpcagent apps lj_argon` has its parameters; go on by `hpcagent resume DIR`, --nodes 2")
        'describe_app has its parameters; go on by extend_campaign, resources {"nodes": 2}'
    """
    for pattern, tool in _SAID:
        text = pattern.sub(tool, text)
    for pattern, option in _OPTIONS:
        text = pattern.sub(option, text)
    return text


def next_step(message: str) -> str:
    """What to do next after an error that says only what is wrong; empty: it says that itself, or nobody knows."""
    if _ADVICE.search(message):
        return ""
    about = _ABOUT.search(message)
    return "" if about is None else NEXT[about[1]]


def said_in_tool_words(data: Any) -> Any:
    """The same of all texts of plain data."""
    if isinstance(data, str):
        return in_tool_words(data)
    if isinstance(data, dict):
        return {key: said_in_tool_words(one) for key, one in data.items()}
    return [said_in_tool_words(one) for one in data] if isinstance(data, list) else data
