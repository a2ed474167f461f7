"""Runs that a campaign's guard has ended early, for policies that know values and failures only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcagent.model.objective import Objective
from hpcagent.model.records import Observation

__all__ = ["imputed"]


def imputed(runs: Sequence[Observation], objective: Objective) -> list[Observation]:
    """The runs, with those that were stopped early as if they had ended where such runs are expected to end.

    A run that would have ended beyond a threshold gets the mean of the values of completed runs that lie beyond it
    (the threshold itself without any), never the value that it had when it was stopped, and of the other metrics
    the median. Until a run has completed nothing is expected, and they stay as they are: not completed.

    Example:
        >>> from hpcagent.model.objective import maximize
        >>> done = [Observation({"x": x}, metrics={"y": 10.0 * x}) for x in (0.1, 0.2, 0.9)]
        >>> early = Observation({"x": 0}, completed=False, stopped=True, metrics={"y": 9.0}, bounds={"y": "below"})
        >>> imputed([*done, early], maximize("y"))[-1].metrics
        {'y': 1.5}
    """
    if not any(o.stopped for o in runs):
        return list(runs)
    known = [o for o in runs if o.completed and not o.bounds and objective.known(o.metrics)]
    values = {m: np.array([o.metrics[m] for o in known]) for m in objective.metrics}
    return [_ended(o, values) if o.stopped and known else o for o in runs]


def _ended(o: Observation, values: dict[str, np.ndarray]) -> Observation:
    metrics: dict[str, float] = {}
    for name, known in values.items():
        if name not in o.bounds or name not in o.metrics:
            metrics[name] = float(np.median(known))
            continue
        threshold = o.metrics[name]
        beyond = known[known > threshold] if o.bounds[name] == "above" else known[known < threshold]
        metrics[name] = float(beyond.mean()) if beyond.size else threshold
    return replace(o, completed=True, stopped=False, metrics=metrics, uncertainty={}, bounds={})
