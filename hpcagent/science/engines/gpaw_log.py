"""The steps of an SCF in GPAW's text output."""

from __future__ import annotations

import math
import re

from hpcagent.apps.printed import number_or_nan
from hpcagent.science.engines.base import Iteration

__all__ = ["iterations"]

_STEP = re.compile(r"iter:\s*(\d+)[\s|]+\d+:\d+:\d+[\s|]+(\S+)")


def iterations(log: str) -> tuple[Iteration, ...]:
    """SCF steps of the last SCF in a log of GPAW.

    Example:
        >>> first, second = iterations(
        ...     "|iter:   1| 19:26:48 |  -10.717001 | -0.08 |       |\\n"
        ...     "|iter:   2| 19:26:48 |  -10.613352c| -4.74 | -2.38 |\\n"
        ... )
        >>> second.energy, round(second.change, 3)
        (-10.613352, 0.104)
    """
    found: list[Iteration] = []
    for number, word in _STEP.findall(log):
        if int(number) == 1:
            found = []
        energy = number_or_nan(word.rstrip("c|"))
        found.append(Iteration(energy, abs(energy - found[-1].energy) if found else math.nan))
    return tuple(found)
