"""What may change in a campaign while its runs stay what they are, and how that is written down and told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from hpcagent.apps.sandbox.setting import SANDBOX
from hpcagent.campaign.choices import PolicyChoice
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.sweep_space import SWEEP
from hpcagent.errors import BadInput
from hpcagent.model.base import canonical_json
from hpcagent.model.constraints import Constraint
from hpcagent.model.objective import NO_OBJECTIVE, Objective

__all__ = ["as_begun", "before", "change_text", "changeable", "changed_event"]

LONGEST_TOLD = 160


def changeable(written: Campaign, given: Campaign) -> frozenset[str]:
    """The parts of `Campaign.identity` that may differ: none of them decides what a run gives.

    The space may, where a sweep is gone on with or begins: a design grows, and a campaign looks around in it.
    """
    sweeps = SWEEP in (written.policy.name, given.policy.name)
    return frozenset({"objective", "policy", *(["space"] if sweeps else [])})


def changed_event(written: Campaign, given: Campaign) -> dict[str, Any] | None:
    """What is written into the journal where a campaign goes on otherwise than it did; None where it does not."""
    old, new = _parts(written), _parts(given)
    changes = {
        name: {"old": old[name], "new": new[name]}
        for name in old
        if canonical_json(_plain(old[name])) != canonical_json(_plain(new[name]))
    }
    return {"event": "changed", "changes": changes} if changes else None


def _parts(campaign: Campaign) -> dict[str, Any]:
    return {
        "until": campaign.until.toml(),
        "policy": campaign.policy.toml(),
        "objective": campaign.objective.toml(),
        "space": campaign.space,
        "constraints": [c.text for c in campaign.constraints],
        "resources": campaign.app.contract.resources.layout,
        "sandbox": campaign.app.settings.get(SANDBOX),
    }


def _plain(value: Any) -> Any:
    # Without what canonical JSON refuses: a limit may be an infinity.
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def before(campaign: Campaign, changes: Mapping[str, Any]) -> Campaign:
    """The campaign as it was before these changes.

    Raises:
        BadInput: They are not the changes of a campaign.
    """
    old = {name: part["old"] for name, part in changes.items() if isinstance(part, Mapping) and "old" in part}
    update: dict[str, Any] = {}
    if isinstance(old.get("policy"), Mapping):
        update["policy"] = PolicyChoice.model_validate(old["policy"])
    if "objective" in old:
        update["objective"] = Objective.model_validate(old["objective"]) if old["objective"] else NO_OBJECTIVE
    if "space" in old:
        update["space"] = old["space"]
    if isinstance(old.get("constraints"), list):
        update["constraints"] = tuple(Constraint.model_validate(text) for text in old["constraints"])
    return campaign.model_copy(update=update)


def as_begun(campaign: Campaign, events: Iterable[Mapping[str, Any]]) -> list[Campaign]:
    """The campaign as it was before each of its changes, the first first, and as it is now.

    Args:
        campaign: As it is now.
        events: Its events `changed`, in their order.
    """
    found = [campaign]
    for event in reversed(list(events)):
        changes = event.get("changes")
        try:
            found.append(before(found[-1], changes) if isinstance(changes, Mapping) else found[-1])
        except (BadInput, ValueError):  # a damaged line: what it was is not known
            found.append(found[-1])
    return found[::-1]


def change_text(event: Mapping[str, Any]) -> str:
    """A change in words, without a full stop.

    Example:
        >>> change_text({"at": 0.0, "changes": {"until": {"old": {"max_runs": 8}, "new": {"max_runs": 12}}}})
        'changed 1970-01-01 00:00 UTC: until from {"max_runs": 8} to {"max_runs": 12}'
    """
    when = datetime.fromtimestamp(event["at"], UTC).strftime("%Y-%m-%d %H:%M UTC")
    told = [words for name, part in event["changes"].items() for words in _told(name, part["old"], part["new"])]
    return f"changed {when}: {'; '.join(told)}"


def _told(name: str, old: Any, new: Any) -> list[str]:
    """What differs of a part; of a policy's options and of a space only those entries that do.

    Example:
        >>> was = {"name": "sweep", "replicates": 1, "values": {"T": [1, 2]}}
        >>> _told("policy", was, {"name": "sweep", "replicates": 3, "values": {"T": [1, 2, 3]}})
        ['replicates from 1 to 3', 'values of T from 2 to 3']
        >>> _told("policy", was, {"name": "bayes"})
        ['policy from sweep to bayes']
        >>> _told("sandbox", {"cpu_s": 60, "memory_mb": 500}, {"cpu_s": 60, "memory_mb": 900})
        ['memory_mb of the sandbox from 500 to 900']
    """
    both = isinstance(old, Mapping) and isinstance(new, Mapping)
    if name == "policy" and both and old.get("name") != new.get("name"):
        return [f"policy from {old.get('name')} to {new.get('name')}"]
    if name not in ("policy", "space", "resources", "sandbox") or not both:
        return [f"{name} from {_short(old)} to {_short(new)}"]
    return [
        words for key in dict.fromkeys((*old, *new)) for words in _entry(name, key, old.get(key), new.get(key))
    ]


def _entry(part: str, key: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if part == "space":
        return [f"range of {key} from {_short(old)} to {_short(new)}"]
    if part == "sandbox":
        return [f"{key} of the sandbox from {_short(old)} to {_short(new)}"]
    if key == "values" and isinstance(old or {}, Mapping) and isinstance(new or {}, Mapping):
        were, are = old or {}, new or {}
        return [
            f"values of {name} from {_count(were.get(name))} to {_count(are.get(name))}"
            for name in dict.fromkeys((*were, *are))
            if were.get(name) != are.get(name)
        ]
    return [f"{key} from {_count(old)} to {_count(new)}"]


def _count(value: Any) -> str:
    """A list as the number of its entries, others as they are."""
    return str(len(value)) if isinstance(value, list) else value if isinstance(value, str) else _short(value)


def _short(value: Any) -> str:
    text = "none" if value in ({}, None) else json.dumps(value)
    return text if len(text) <= LONGEST_TOLD else f"{text[: LONGEST_TOLD - 3]}..."
