"""How many numbers become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["REDUCTIONS"]

REDUCTIONS: Mapping[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": lambda x: float(x.mean()),
    "std": lambda x: float(x.std()),
    "last": lambda x: float(x[-1]),
    "first": lambda x: float(x[0]),
    "min": lambda x: float(x.min()),
    "max": lambda x: float(x.max()),
    "sum": lambda x: float(x.sum()),
}
"""Name -> what it makes of (n,) values, n > 0; `std` is the population's."""
