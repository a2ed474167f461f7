"""What holds in a workspace, for whoever asks: sites that they may use, and the rules in words."""

from __future__ import annotations

from typing import Any

from hpcagent.gate.rules import ApprovalRule, Caller, Quota, Rules
from hpcagent.sites.block import block_of
from hpcagent.sites.profile import Profile

__all__ = ["approval_words", "quota_words", "rules_words", "site_line"]


def site_line(name: str, profile: Profile, rules: Rules) -> dict[str, Any]:
    """A site: what it is, and what it takes."""
    return {
        "name": name,
        "kind": profile.kind,
        "description": profile.description,
        "batch": profile.batch,
        "usd_per_node_hour": rules.price(name),
        "default": name == rules.default_site,
        "named": name in rules.sites,
        "blocks": [_block(profile, label) for label in profile.executors] if profile.batch else [],
    }


def _block(profile: Profile, label: str) -> dict[str, Any]:
    block = block_of(profile, label)
    return {"executor": label, "mode": block.mode, "nodes": block.nodes_per_block, "walltime_s": block.walltime_s}


def quota_words(whose: str, quota: Quota) -> list[str]:
    """The bounds of a quota, each in a sentence.

    Example:
        >>> quota_words("of the workspace", Quota(node_hours=5, per_minute=3))
        ['at most 5 node-hours of the workspace', 'at most 3 submissions a minute of the workspace']
    """
    units = {
        "node_hours": "node-hours",
        "usd": "US dollars",
        "runs_at_once": "runs that wait or go",
        "per_minute": "submissions a minute",
        "gigabytes": "gigabytes of files",
    }
    found = []
    for name, unit in units.items():
        limit = getattr(quota, name)
        if limit is not None:
            found.append(f"at most {limit:g} {unit} {whose}")
    return found


def approval_words(rule: ApprovalRule) -> str:
    """When a person has to say yes, in a sentence.

    Example:
        >>> approval_words(ApprovalRule(app="lj_*", nodes_times_hours=0.5, because="it is dear"))
        'a person approves what is a run of lj_*, and takes more than 0.5 node-hours (it is dear)'
        >>> approval_words(ApprovalRule(nodes_times_hours=2, because="more than 2 node-hours"))
        'a person approves what takes more than 2 node-hours'
    """
    when = [] if rule.app == "*" else [f"is a run of {rule.app}"]
    when += (
        [f"takes more than {rule.nodes_times_hours:g} node-hours"] if rule.nodes_times_hours is not None else []
    )
    when += [f"costs more than {rule.usd:g} USD"] if rule.usd is not None else []
    when += [f"{' or '.join(rule.effects)}"] if rule.effects else []
    when += (
        [f"{'is' if rule.own else 'is not'} code that the library does not bring"] if rule.own is not None else []
    )
    when += [f"is asked for by {' or '.join(rule.roles)}"] if rule.roles else []
    said = any(rule.because.rstrip(".") in one for one in when)  # a reason that repeats the rule is said once
    because = f" ({rule.because})" if rule.because and not said else ""
    return f"a person approves what {', and '.join(when)}{because}" if when else f"a person approves all{because}"


def rules_words(rules: Rules, caller: Caller) -> dict[str, Any]:
    """What holds for a caller, in words.

    Args:
        rules: Of the workspace.
        caller: Whoever asks.
    """
    said = quota_words("of the workspace", rules.quota)
    person = rules.people.get(caller.name)
    if person is not None and person.quota is not None:
        said += quota_words(f"of {caller.name}", person.quota)
    said += [approval_words(rule) for rule in rules.approval]
    hours = rules.approval_expires_s / 3600
    said += [f"an approval holds once, for one request, for {hours:g} hours"] if rules.approval else []
    if rules.require_sandbox != "none":
        said.append(f"code that the library does not bring runs in the sandbox {rules.require_sandbox}")
    for name, tier in rules.base_agents:
        if tier != "off":
            said.append(f"{name}_agent runs what a model has written, in the sandbox {tier}")
    if rules.retention_days is not None:
        said.append(f"files of runs are removed after {rules.retention_days:g} days")
    return {"default_site": rules.default_site, "rules": said}
