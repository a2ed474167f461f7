"""A ladder of policies: where one cannot suggest, the next one does, and says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import Policy, Reason, make_policy, takes_option
from hpcagent.statistics.points import key, located

__all__ = ["LADDER", "Portfolio"]

LADDER = ("bayes", "quality_first", "sobol")


@dataclass(frozen=True)
class _Rung:
    name: str
    policy: Policy
    space: Space


@dataclass(frozen=True)
class _Fallen:
    """A rung that did not serve."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} did not serve: {self.why}"


class Portfolio:
    """Asks the policies of a ladder in order and takes the first whole answer.

    A policy is passed over where it raises, where a point is not one of the space, where it gives fewer points
    than wanted, or the same point twice although there are others (bandits may). One with an option `strict`, such
    as `bayes`, raises where it can fit no model, if not told otherwise. Where none gives a whole answer
    the longest one is taken: the design is exhausted. `reasons` says with every point which policy suggested it,
    and why those before it did not.

    It is a pure function if its policies are: the ladder is climbed anew for every suggestion.

    Args:
        space: Where it may suggest.
        objective: Handed to every policy; each must be able to follow it.
        seed: Handed to every policy.
        ladder: Names, or tables with `name` and options, e.g. `["bayes", {name = "ucb", buckets = 3}]`.
        fidelity: Handed to the policies that know fidelities; the others suggest at its last level only.
        noise: Handed to the policies that take it: relative standard deviation of one run, by metric.

    Raises:
        BadInput: An empty ladder, or one of its policies cannot be made.

    Example:
        >>> from hpcagent.model.objective import maximize
        >>> from hpcagent.model.parameter import Float
        >>> from hpcagent.model.space import Space
        >>> policy = Portfolio(Space.of(x=Float(0, 1)), maximize("y"), ladder=["quality_first", "sobol"])
        >>> len(policy.suggest([], 3))
        3
    """

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        ladder: Sequence[str | Mapping[str, Any]] = LADDER,
        fidelity: Mapping[str, Any] | None = None,
        noise: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(ladder, str) or not isinstance(ladder, Sequence) or not ladder:
            raise BadInput(
                f'ladder={ladder!r} must be a list of policies, e.g. ["bayes", "quality_first"].', value=ladder
            )
        self.space, self.objective = space, objective
        self.rungs = tuple(_rung(entry, space, objective, seed, fidelity, noise) for entry in ladder)

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return the points of the first policy that gives `n` good ones."""
        return self._climbed(history, n, pending)[0]

    def reasons(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Reason]:
        """The points of `suggest`, which policy suggested them, and why those before it did not."""
        points, rung, fallen = self._climbed(history, n, pending)
        if rung is None:
            return []
        said = "; ".join(map(str, fallen))
        role = f"{rung.name} (fallback)" if fallen else rung.name
        prefix = f"{rung.name} suggested it" + (f", because {said}" if fallen else "")
        found = []
        for reason in _own_reasons(rung.policy, history, n, pending, points):
            text = f"{prefix}. {reason.text}".strip()
            found.append(replace(reason, role=f"{role}: {reason.role}" if reason.role else role, text=text))
        return found

    def _climbed(
        self, history: Sequence[Observation], n: int, pending: Sequence[Params]
    ) -> tuple[list[Params], _Rung | None, list[_Fallen]]:
        """(points, the policy they are of, those that did not serve before it)."""
        if n <= 0:
            return [], None, []
        fallen: list[_Fallen] = []
        longest: tuple[list[Params], _Rung | None, list[_Fallen]] = ([], None, [])
        silent = 0
        for rung in self.rungs:
            try:
                points = [self.space.validated(p) for p in rung.policy.suggest(history, n, pending)[:n]]
            except Exception as error:  # whatever is wrong with one policy, the next one may serve
                fallen.append(_Fallen(rung.name, _words(error)))
                continue
            why = self._wrong(rung, points, n, history, pending)
            if not why:
                return points, rung, fallen
            if len(points) > len(longest[0]) and "twice" not in why:
                longest = (points, rung, list(fallen))
            silent += not points
            fallen.append(_Fallen(rung.name, why))
        if longest[1] is None and not silent:
            raise HpcAgentError(
                "no policy of the portfolio could suggest anything: " + "; ".join(map(str, fallen)) + ". Add one "
                'that needs no model to the end of the ladder, e.g. "sobol".'
            )
        return longest

    def _wrong(
        self,
        rung: _Rung,
        points: Sequence[Params],
        n: int,
        history: Sequence[Observation],
        pending: Sequence[Params],
    ) -> str:
        if len(points) < n:
            return f"it gave {len(points)} of {n} points"
        if getattr(rung.policy, "repeats", False):
            return ""
        waiting = {key(p) for p in pending}
        used = {key(p) for p, _ in located(rung.space, history)} | waiting
        new = {key(p) for p in points}
        again = len(new) < len(points) or bool(new & waiting)
        # Of a few choices there may be no others left.
        others = rung.space.size - len(used) >= n
        return "it gave the same point twice" if again and others else ""


def _rung(
    entry: str | Mapping[str, Any],
    space: Space,
    objective: Objective,
    seed: int,
    fidelity: Mapping[str, Any] | None,
    noise: Mapping[str, float] | None,
) -> _Rung:
    if isinstance(entry, str):
        name, options = entry, {}
    elif isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        options = {k: v for k, v in entry.items() if k != "name"}
        name = entry["name"]
    else:
        raise BadInput(f"ladder: {entry!r} is neither a policy's name nor a table with name.", value=entry)
    if name == "portfolio":
        raise BadInput("ladder: a portfolio cannot be a part of a portfolio.", value=name)
    if fidelity is not None:
        if takes_option(name, "fidelity"):
            options["fidelity"] = fidelity
        else:
            space = space.narrowed({fidelity["parameter"]: {"value": list(fidelity["levels"])[-1]}})
    # Here another policy serves where no model can be fitted; alone the policy would go on with points of its own.
    if takes_option(name, "strict", by_name=True):
        options.setdefault("strict", True)
    if noise is not None and takes_option(name, "noise", by_name=True):
        options.setdefault("noise", noise)
    try:
        return _Rung(name, make_policy(name, space=space, objective=objective, seed=seed, **options), space)
    except BadInput as error:
        raise BadInput(f"ladder: {error}", value=name) from None


def _own_reasons(
    policy: Policy, history: Sequence[Observation], n: int, pending: Sequence[Params], points: Sequence[Params]
) -> list[Reason]:
    """What the policy says of its points; only that they are its own where it says nothing, or of others."""
    plain = [Reason(params=p, role="") for p in points]
    ask: Callable[..., list[Reason]] | None = getattr(policy, "reasons", None)
    if ask is None:
        return plain
    try:
        found = list(ask(history, n, pending))[: len(points)]
    except Exception:  # explaining is not worth a campaign
        return plain
    return found if [r.params for r in found] == list(points) else plain


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip() or 'without a message'}".splitlines()[0].rstrip(".")
