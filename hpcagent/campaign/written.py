"""A campaign as text: its TOML, the digests of its parts, its stop condition in words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tomli_w

from hpcagent.campaign.sweep_space import SWEEP
from hpcagent.errors import BadInput
from hpcagent.model.base import canonical_json
from hpcagent.model.files import without_paths
from hpcagent.model.parameter import Parameter
from hpcagent.policies.stop import Stop

if TYPE_CHECKING:
    from hpcagent.campaign.record import Campaign

__all__ = ["identity", "stop_text", "table", "toml"]


def toml(campaign: Campaign, *, app: str | None = None) -> str:
    """The campaign as TOML; `load_campaign` reads it back.

    Args:
        app: What to write as the app's reference; what the user named by default.
    """
    policy = campaign.policy
    data: dict[str, Any] = {
        "name": campaign.name,
        "description": campaign.description or None,
        "app": app or campaign.app.source or campaign.app.name,
        "seed": campaign.seed,
        "mode": campaign.mode,
        "batch_size": campaign.batch_size,
        "in_flight": campaign.in_flight,
        "cache": campaign.cache,
        "show": list(campaign.show) or None,
        "earlier": list(campaign.earlier) or None,
        "repeat_distrusted": campaign.repeat_distrusted,
        "retries": campaign.retries,
        "site": campaign.site,
        "objective": campaign.objective.toml() if campaign.objective.goals else None,
        "space": campaign.space,
        "constraints": [c.text for c in campaign.constraints] or None,
        "fixed": campaign.fixed or None,
        **({"sweep": dict(policy.options)} if policy.name == SWEEP else {"policy": policy.toml()}),
        "until": campaign.until.toml() or None,
        "reference": campaign.reference and campaign.reference.toml(),
        "confirm": campaign.confirm and campaign.confirm.model_dump(),
        "settings": campaign.settings or None,
        "repairs": campaign.repairs and campaign.repairs.toml(),
        "fidelity": campaign.fidelity and campaign.fidelity.model_dump(),
        "points": [dict(p) for p in campaign.points] or None,
        "context": campaign.context or None,
        "guard": campaign.guard and campaign.guard.toml(),
        "ensemble": campaign.ensemble and campaign.ensemble.toml(),
        "rules": [rule.model_dump(exclude_none=True) for rule in campaign.rules] or None,
    }
    return tomli_w.dumps({key: value for key, value in data.items() if value is not None})


def identity(campaign: Campaign) -> dict[str, str]:
    """Digest of each part that may not change between a run and its resumption."""
    parts: dict[str, Any] = {
        "app": [campaign.app.name, campaign.app.contract.version, campaign.app.digest],
        "objective": campaign.objective.toml(),
        "space": without_paths(campaign.search.model_dump(mode="json")),
        "fixed": campaign.fixed,
        "policy": campaign.policy.toml(),
        "mode": campaign.mode,
        "seed": campaign.seed,
        "fidelity": None if campaign.fidelity is None else campaign.fidelity.model_dump(),
        "reference": None if campaign.reference is None else campaign.reference.toml(),
        "earlier": list(campaign.earlier),
        "context": campaign.context,
    }
    return {
        key: hashlib.sha256(canonical_json(_no_nan(value)).encode()).hexdigest()[:16]
        for key, value in parts.items()
    }


def table(name: str, parameter: Parameter) -> dict[str, Any]:
    """A parameter as the table of a range; what the contract alone says is refused."""
    if parameter.unit != "1" or parameter.description:
        raise BadInput(f"space.{name}: leave out unit and description; the app's contract has them.")
    told = parameter.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    keys = ("low", "high", "log", "choices", "default", "when")
    return {key: told[key] for key in keys if key in told}


def _no_nan(value: Any) -> Any:
    """NaN and infinities as text: canonical JSON has no way to write them."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {k: _no_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_no_nan(v) for v in value]
    return value


def stop_text(stop: Stop) -> str:
    """A stop condition in words, with its values."""
    conditions: tuple[Stop, ...] = getattr(stop, "conditions", ())
    kind = str(getattr(stop, "kind", type(stop).__name__))
    if conditions:
        return f" {'and' if kind == 'all_of' else 'or'} ".join(map(stop_text, conditions))
    own = ", ".join(f"{name} = {value}" for name, value in stop if name != "kind" and value is not None)
    return f"{kind.replace('_', ' ')}: {own}" if own else kind.replace("_", " ")
