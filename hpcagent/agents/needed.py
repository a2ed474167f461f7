"""The supervisor, where the packages that it needs are installed."""

from __future__ import annotations

import os
from typing import Any

from hpcagent.agents.models import NEEDS
from hpcagent.errors import BadInput

__all__ = ["supervisors"]


def supervisors() -> Any:
    """The module `hpcagent.agents.supervisor`.

    Raises:
        BadInput: A package that it needs is missing.
    """
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # it advertises a service that sends what is asked
    try:
        from hpcagent.agents import supervisor
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "hpcagent":
            raise
        raise BadInput(f"{NEEDS} ({error.name} is missing).", value=error.name) from None
    return supervisor
