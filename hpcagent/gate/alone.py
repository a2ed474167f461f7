"""The gate where there is no workspace: the same checks, with the rules that hold by default."""

from __future__ import annotations

import time

from hpcagent.gate.accounts import Accounts
from hpcagent.gate.approvals import Approvals
from hpcagent.gate.gate import Admission, Gate
from hpcagent.gate.request import Request
from hpcagent.gate.rules import Caller, Rules

__all__ = ["admit_alone"]


def admit_alone(request: Request, rules: Rules | None = None) -> Admission:
    """Let a request of whoever owns this process through, or refuse it.

    Raises:
        NotAllowed: As `Gate.admit`; nothing is recorded, as there is no journal.

    Example:
        >>> admit_alone(Request(app="synthetic", version="1.0.0", work="w")).approval is None
        True
    """
    gate = Gate(
        rules or Rules(),
        Approvals(_nowhere, clock=time.time, expires_s=1.0),
        Accounts(),
        clock=time.time,
        record=_nowhere,
        tiers=dict,
    )
    return gate.admit(request, Caller(name="owner", role="admin"))


def _nowhere(event: dict[str, object]) -> None:
    """There is no journal."""
