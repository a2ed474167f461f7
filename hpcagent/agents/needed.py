"""The supervisor, where the packages that it needs are installed."""

from __future__ import annotations

from typing import Any

from hpcagent.agents.models import NEEDS
from hpcagent.errors import BadInput

__all__ = ["supervisors"]


def supervisors() -> Any:
    """The module `hpcagent.agents.supervisor`.

    Raises:
        BadInput: A package that it needs is missing.
    """
    try:
        from hpcagent.agents import supervisor
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "hpcagent":
            raise
        raise BadInput(f"{NEEDS} ({error.name} is missing).", value=error.name) from None
    return supervisor
