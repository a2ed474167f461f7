"""Suggestions that keep the constraints of a space, whatever the policy knows of them.

The built-in policies suggest allowed points by themselves. Those of others see only `space`, `history` and
`pending`; so what they suggest is held against the constraints here, and a forbidden point is led back to what is
allowed, before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.longer import as_meant
from hpcagent.statistics.points import given, inside, key, led_back

__all__ = ["Kept"]


class Kept:
    """A policy in a space where not every point is allowed.

    - A point is settled first: what is not active is left out, sums are kept (`Space.from_unit`).
    - One that is still forbidden becomes the furthest allowed point on the way to it from the nearest known one.
    - If that one was suggested before, the next point of a Sobol sequence takes its place.
    - To a policy that does not say `conditional = True`, points are shown complete: what is not active has its
      default, or the middle of its range.

    Args:
        policy: The policy itself.
        space: Its space.
        seed: Of the sequence.
    """

    def __init__(self, policy: Any, space: Space, *, seed: int = 0) -> None:
        self.policy, self.space, self.seed = policy, space, seed
        if callable(getattr(policy, "reasons", None)):
            self.reasons: Callable[..., Any] = self._reasons

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("policy", "reasons"):
            raise AttributeError(name)
        return getattr(self.policy, name)

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """The policy's points, those that are forbidden replaced."""
        found: list[Params] = self.policy.suggest(*self._shown(history, n, pending))
        return [point for point, _ in self._allowed(found, history, pending)]

    def _reasons(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Any]:
        found = self.policy.reasons(*self._shown(history, n, pending))
        pairs = self._allowed([r.params for r in found], history, pending)
        return [
            replace(r, params=point) if same else replace(r, params=point, text=f"{r.text} {MOVED}".strip())
            for r, (point, same) in zip(found, pairs, strict=True)
        ]

    def _shown(
        self, history: Sequence[Observation], n: int, pending: Sequence[Params]
    ) -> tuple[Sequence[Observation], int, Sequence[Params]]:
        if getattr(self.policy, "conditional", False) or all(p.when is None for p in self.space.parameters):
            return history, n, pending
        whole = [replace(o, params=self._complete(o.params)) for o in history]
        return whole, n, [self._complete(p) for p in pending]

    def _complete(self, params: Mapping[str, Scalar]) -> Params:
        rest = {p.name: p.from_unit(0.5) if p.default is None else p.default for p in self.space.parameters}
        return {**rest, **params}

    def _allowed(
        self, points: Sequence[Params], history: Sequence[Observation], pending: Sequence[Params]
    ) -> list[tuple[Params, bool]]:
        """Each point or what stands for it, and whether it is the same."""
        used = {key(p) for p in given(history, pending)}
        found: list[tuple[Params, bool]] = []
        for point in points:
            now = inside(self.space, point)
            same = now is not None
            if now is None:
                near = self.space.region.columns.point(self.space.clipped(self._complete(point)))
                known = [p for o in history if (p := inside(self.space, o.params)) is not None]
                now = led_back(self.space, near, known)
                if key(now) in used:
                    now = self._fresh(history, [*pending, *(p for p, _ in found)]) or now
            used.add(key(now))
            found.append((as_meant(point, now) if same else now, same))
        return found

    def _fresh(self, history: Sequence[Observation], pending: Sequence[Params]) -> Params | None:
        from hpcagent.policies.sweeps import Sobol  # only where it is needed

        return next(iter(Sobol(self.space, seed=self.seed).suggest(history, 1, pending)), None)


MOVED = "Moved to where the constraints are kept."
