"""How many runs a campaign plans in all, by budget, grid or a sweep's design, and what a sweep is to have more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpcagent.apps.base import App
from hpcagent.campaign.sweep_space import SWEEP, spanned
from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest
from hpcagent.policies.base import make_policy
from hpcagent.policies.design import REPLICATES, Design
from hpcagent.policies.sweeps import Grid, every_point, grid_size
from hpcagent.statistics.points import inside, key

if TYPE_CHECKING:
    from hpcagent.campaign.record import Campaign

__all__ = ["EXHAUSTED", "PlannedRuns", "design_of", "grown", "ranges_text"]

GRID = "grid"
SPREAD = ("latin_hypercube", "random", "sobol")
"""Policies that give each point of a finite space once."""
LARGEST = 20_000
"""Points that are counted; of more the budget is what is known."""
EXHAUSTED = "the policy has nothing left to suggest: its design is exhausted."
"""Why a campaign ends whose policy gives no further point."""


def design_of(campaign: Campaign) -> Design | None:
    """The design of a sweep; None where another policy suggests."""
    if campaign.policy.name != SWEEP:
        return None
    made = make_policy(
        SWEEP,
        space=campaign.search,
        objective=campaign.objective,
        seed=campaign.seed,
        **campaign.policy_options,
    )
    assert isinstance(made, Design)
    return made


def once_each(campaign: Campaign, most: int) -> list[Params] | None:
    """The points of a policy that runs each of a finite number once; None of any other, or of more points.

    Nor where other runs come between them, as those of a reference, or what is run depends on what came out.

    Args:
        campaign: The campaign.
        most: Points that it has at most.
    """
    if campaign.reference is not None or campaign.fidelity is not None:
        return None
    if campaign.policy.name in SPREAD:
        return (every_point(campaign.search) or None) if campaign.search.size <= most else None
    if campaign.policy.name != GRID:
        return None
    options = campaign.policy_options
    try:
        if grid_size(campaign.search, options.get("levels", 3)) > most:
            return None
        made = make_policy(
            GRID, space=campaign.search, objective=campaign.objective, seed=campaign.seed, **options
        )
    except BadInput:
        return None  # the campaign is refused, with words of its own, where it is begun
    assert isinstance(made, Grid)
    return made.points


def ranges_text(campaign: Campaign) -> str:
    """What is varied, and in which range."""
    return ", ".join(f"{p.name} in {p.range}" for p in campaign.search.parameters)


class PlannedRuns:
    """Counts the runs of a campaign, those included that are still to come; None where nothing bounds them.

    Args:
        campaign: The campaign.
    """

    def __init__(self, campaign: Campaign) -> None:
        self._budget = campaign.until.budget()
        self._space = campaign.search
        self._design = design_of(campaign)
        self._campaign = campaign
        confirm = campaign.confirming
        self._confirm = 0
        if confirm is not None and confirm.runs:
            self._confirm = confirm.runs + (campaign.reference is not None)
        # With an end of another kind the confirmation is of that end.
        self._endless = campaign.until.budget() is None and campaign.until.cap() is None
        self._known: tuple[int, int, int] | None = None
        self._planned = False

    @cached_property
    def _points(self) -> list[Params] | None:
        most = LARGEST if self._budget is None else min(self._budget, LARGEST)
        return once_each(self._campaign, most)

    def count(
        self, manifests: Sequence[Manifest], *, confirmed: bool | None = None, enqueued: int = 0
    ) -> int | None:
        """Runs in all, where these are planned so far.

        Args:
            manifests: Of the campaign.
            confirmed: Whether the confirmation is planned; by default where a run of it is.
            enqueued: Points that somebody has enqueued and that are not planned.
        """
        if self._design is None and self._points is None:
            return self._budget
        # Asked at every tick; it changes with the manifests only.
        if self._known is None or self._known[0] != len(manifests):
            own = sum(not m.origin for m in manifests)  # what was told is no run
            self._known = len(manifests), own, len(self.lacking(manifests))
            self._planned = any(m.role == "replicate" for m in manifests) and not self.grown(manifests)
        whole = self._known[1] + self._known[2] + enqueued
        whole += 0 if (self._planned if confirmed is None else confirmed) else self._confirm
        return whole if self._budget is None else min(self._budget, whole)

    def lacking(self, manifests: Sequence[Manifest]) -> list[Params]:
        """Points of the runs of a sweep, or of a grid, that are not planned yet, in their order; else none."""
        if self._design is None and self._points is None:
            return []
        places = (inside(self._space, m.params) for m in manifests if m.role not in ("repeat", "extended"))
        ran = [p for p in places if p is not None]
        if self._design is not None:
            return self._design.lacking(ran)
        used = {key(p) for p in ran}
        return [dict(p) for p in self._points or () if key(p) not in used]

    def grown(self, manifests: Sequence[Manifest]) -> bool:
        """Whether a sweep without a budget or cap has runs behind its confirmation, or lacks some."""
        if self._design is None or not self._endless:
            return False
        roles = [m.role for m in manifests if m.role in ("suggested", "replicate")]
        return "replicate" in roles and (roles[-1] == "suggested" or bool(self.lacking(manifests)))

    def text(self, manifests: Sequence[Manifest]) -> str:
        """How many points and runs a design has, and how many of them are new; empty without a design."""
        whole = self.count(manifests)
        if self._design is None or whole is None:
            return ""
        assert self._known is not None
        points, new = len(self._design.points), sum(self._known[1:]) - len(manifests)
        text = f"{points} point(s), {points * self._design.replicates} run(s)"
        text += f", {new} of them new" if manifests else ""
        allowed = max(0, whole - len(manifests))
        return f"{text}; the stop condition lets {allowed} of them start" if allowed < new else text


def grown(
    written: Campaign,
    app: App,
    axes: Mapping[str, Any],
    *,
    design: str | None = None,
    replicates: int | None = None,
    points: int | Sequence[Mapping[str, Scalar]] | None = None,
) -> dict[str, Any]:
    """What is otherwise in a campaign whose design is to have more, for `load_run`; what is not named stays.

    Args:
        written: The campaign of the folder.
        app: What runs; its ranges may be wider than those of the campaign's app.
        axes: Parameter -> its values (a list), its range (a table), or the one value that it is fixed at.
        design: Another design.
        replicates: Runs at each point.
        points: How many points, or those of a list.

    Raises:
        BadInput: A value outside of the app's range, or values in a list for a design without a grid.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> from hpcagent.campaign.sweep import Sweep
        >>> grown(Sweep(synthetic, {"x": [0.1], "y": [0.5]}, replicates=1), synthetic, {"x": [0.1, 0.2]})
        {'sweep': {'design': 'grid', 'replicates': 1, 'values': {'x': [0.1, 0.2], 'y': [0.5]}}, 'space': None}
    """
    was: Mapping[str, Any] = written.policy.options if written.policy.name == SWEEP else {"replicates": REPLICATES}
    then = str(was.get("design", "grid"))
    listed = points is not None and not isinstance(points, int)
    kind = design or ("list" if listed else then)
    options = {name: value for name, value in was.items() if kind == then or name == "replicates"}
    given = {"design": kind if kind != then else None, "replicates": replicates, "points": points}
    options |= {name: value for name, value in given.items() if value is not None}
    if not axes and kind == then:
        return {"sweep": options} if options != was or written.policy.name != SWEEP else {}
    ranges, values = _ranges(written, kind, then), dict(options.pop("values", {}))
    levels = options.get("levels")
    for name, of in axes.items():
        when = {k: v for k, v in ranges.pop(name, {}).items() if k == "when"}
        if not isinstance(of, list):
            values.pop(name, None)
        if isinstance(levels, Mapping):
            options["levels"] = levels = {n: v for n, v in levels.items() if n != name}
        if isinstance(of, list):
            if kind != "grid":
                raise BadInput(
                    f"{name}: values in a list are of a grid, and this sweep's design is {kind!r}; give its range "
                    f"({name}=LOW:HIGH), or choose --design grid.",
                    value=of,
                )
            values[name] = [app.contract.space[name].validated(value) for value in of]
            ranges |= {name: when} if when else {}
        elif isinstance(of, Mapping):
            ranges[name] = {**of, **when}
    options |= {"values": values} if values else {}
    fixed = {name: value for name, value in written.fixed.items() if name not in axes}
    fixed |= {name: of for name, of in axes.items() if not isinstance(of, (list, Mapping))}
    told: dict[str, Any] = {"sweep": options, "space": ranges or (None if written.space is None else {})}
    return told | ({"fixed": fixed} if fixed != written.fixed else {})


def _ranges(written: Campaign, kind: str, then: str) -> dict[str, dict[str, Any]]:
    """The ranges that a campaign names, and those that it has by default or, for another design, by its values."""
    ranges = dict(written.space or {})
    if kind == "list":  # the points themselves say what is varied
        return ranges if kind == then else {n: {"when": of["when"]} for n, of in ranges.items() if "when" in of}
    if written.policy.name != SWEEP:
        return ranges or {name: {} for name in written.search.names}
    options = written.policy.options
    if kind != then:
        ranges = dict(spanned(written.app.contract.space, options, written.space) or {})
    valued = options.get("values", {}) if kind == then else {}
    names = [name for name in written.search.names if name not in valued]
    return {name: {} for name in names} | ranges
