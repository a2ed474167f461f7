"""Which of several sites gets a run, and when: late, where there is room, so that none ends long after the others.

A run stays here until a site has room for it. A site has room for as many runs as it works on at once, and for as
many more as it finishes while the next ones are on their way. Of the sites a run fits on, the one is taken that
would end it first, by the mean time of the runs that each has finished; where that one has no room now, the run
waits for it. A site whose workers are not there yet (its jobs wait in a queue) gets one run, so that it asks for
its job, and more when it is up; of an endpoint nobody knows that: until it has answered it gets its part of what
waits. If everything else is sent, what lies at a site that is not up is run elsewhere, too (if it is an endpoint,
after a while), and the first answer counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hpcagent.campaign.recent import RecentRuns
from hpcagent.errors import AppFailed, SiteFailed
from hpcagent.model.records import Manifest, Result
from hpcagent.sites.several import Member, Sites
from hpcagent.sites.site import Site
from hpcagent.sites.workers.fair_share import Turn

__all__ = ["Lot", "Spread"]

WAY_S, FAR_WAY_S = 0.1, 2.0
"""What an answer and the next run take on their way, in seconds: in this machine's network, and to an endpoint."""

MOST_AHEAD = 32
"""So many rounds of runs wait at a site at most, however short they are."""

PATIENCE_S = 60.0
"""So long is an endpoint waited for that has not answered yet, or is offline; then its runs go elsewhere, too."""

Send = Callable[[Site, Mapping[str, Any]], Future[Any]]


@dataclass(slots=True, eq=False)
class Lot:
    """Runs that go to a worker together, and wait for a site.

    Attributes:
        manifests: Of the runs.
        priority: Smaller goes first.
        send: Makes their orders for a site and submits them there.
        wants_s: Time that they need in a block, in seconds; 0 where nobody knows.
        refuse: Takes an error that keeps them from being sent; None: it ends the campaign.
        home: Name of the site that they are to run on, while it is there.
        near: Names of the sites that their inputs can be read on; empty: any.
        flights: On how many sites they are.
        ended: Whether one has answered.
        sent_at: When it was last sent to a site, on the monotonic clock, in seconds.
    """

    manifests: Sequence[Manifest]
    priority: float
    send: Send
    wants_s: float = 0.0
    refuse: Callable[[Exception], None] | None = None
    home: str = ""
    near: frozenset[str] = frozenset()
    flights: int = 0
    ended: bool = False
    sent_at: float = 0.0

    @property
    def first(self) -> Manifest:
        """Of whose kind they all are."""
        return self.manifests[0]


@dataclass(slots=True, eq=False)
class _Place:
    """A site as one campaign sees it."""

    member: Member
    flying: int = 0
    answered: bool = False

    @property
    def up(self) -> bool:
        return self.answered or bool(self.member.site.up)

    def way_s(self) -> float:
        return FAR_WAY_S if self.member.site.profile.remote else WAY_S


class Spread:
    """The runs of a campaign that wait for one of several sites. Used by one thread.

    Args:
        sites: The sites.
        turn: The campaign's part in them.
        results: What is on record: on which site.
        recent: How long runs take on each site.
        by_reference: Whether speeds are compared by reference runs: then a site gets others when it has had one.
        lost: Called with the name of a site that is lost and why.
    """

    def __init__(
        self,
        sites: Sites,
        turn: Turn,
        results: Collection[Result] = (),
        recent: RecentRuns | None = None,
        *,
        by_reference: bool = False,
        lost: Callable[[str, str], None] = lambda name, why: None,
    ) -> None:
        self._sites, self._turn, self._lost = sites, turn, lost
        self._recent = recent or RecentRuns()
        self._by_reference = by_reference
        self._places = [_Place(member) for member in sites.members]
        self._lots: list[Lot] = []
        self._flights: dict[Future[Any], tuple[Lot, _Place]] = {}
        self._where: dict[str, str] = {}
        self._avoid: dict[str, set[str]] = {}
        self._went_down: set[str] = set()
        self._left = {i: place for place in self._places for i in place.member.site.left_there()}
        self._homes: dict[int, str] = {}
        self._referenced: set[str] = set()
        self._references: dict[tuple[int, str], int] = {}
        names = {place.member.name for place in self._places}
        for result in results:
            manifest = result.manifest
            if result.site in names and manifest.role == "reference" and result.ok:
                self._referenced.add(result.site)
            if result.site in names and manifest.role == "replicate":
                self._homes.setdefault(manifest.batch, result.site)

    # -- runs come and go ---------------------------------------------------------------------

    def add(self, lot: Lot) -> None:
        """Take runs that are to be sent, at the next `go`."""
        self._lots.append(lot)

    def back(self, done: Future[Any]) -> bool:
        """A future has ended; return whether its answer counts: the first of a run that was sent twice does."""
        found = self._flights.pop(done, None)
        if found is None:
            return True
        lot, place = found
        place.flying -= len(lot.manifests)
        lot.flights -= 1
        error = done.exception()
        if error is None:
            place.answered = True
        if lot.ended or (error is not None and lot.flights > 0):
            return False
        lot.ended = True
        if lot.flights:
            self._call_off(lot)
        for manifest in lot.manifests:
            self._where[manifest.execution_id] = place.member.name
            if isinstance(error, SiteFailed):
                self._went_down.add(manifest.execution_id)
        return True

    def site_of(self, execution_id: str) -> str:
        """The name of the site that a run was on last; that of all where it was on none."""
        return self._where.get(execution_id, self._sites.profile.name)

    def took(self, result: Result) -> bool:
        """A run has come back; one that the machine ended prefers another site from now on.

        Returns:
            Whether it went down with its whole site: an attempt that is not charged to it.
        """
        site = self._where.get(result.manifest.execution_id, "")
        if not result.final:
            self._avoid.setdefault(result.manifest.execution_id, set()).add(site)
        went_down = result.manifest.execution_id in self._went_down
        self._went_down.discard(result.manifest.execution_id)
        return went_down

    # -- sending ------------------------------------------------------------------------------

    def go(self) -> None:
        """Send what sites have room for.

        Raises:
            SiteFailed: No site is left, or none on which a run that waits fits.
        """
        while self._lots and not self._sent_all():
            pass  # a site was lost, or opened again: what it was to get is looked at anew
        if not self._lots:
            self._double()

    def _sent_all(self) -> bool:
        if not self._sites.alive:
            raise self._sites.none_left()
        waiting = sorted(self._lots, key=_before)
        lined: dict[_Place, int] = {}
        kept: list[Lot] = []
        for at, lot in enumerate(waiting):
            if lot.near and not self._fitting(lot) and lot.refuse is not None:
                lot.refuse(_unreachable(lot))
                continue
            place = self._chosen(lot, lined)
            if place is None:
                kept.append(lot)
            elif not self._send(lot, place):
                self._lots = kept + waiting[at:]
                return False
        self._lots = kept
        # Those that are not up ask for their jobs, where there is more to do than the others have room for.
        for lot in [lot for tied in (True, False) for lot in kept[::-1] if self._tied(lot) is tied]:
            fitting = self._fitting(lot)
            if self._tied(lot):
                home = self._home(lot, fitting)
                fitting = [home] if home is not None else []
            for place in fitting:
                few = self._few(lot, place, len(kept))
                if not place.up and place.flying < few and self._allowed(lot, place):
                    if not self._send(lot, place):
                        return False
                    self._lots.remove(lot)
                    break
        return True

    def _fitting(self, lot: Lot) -> list[_Place]:
        resources, estimate = lot.first.resources, lot.first.estimated_runtime_s
        fit = self._sites.fitting(resources, estimated_runtime_s=estimate)
        if lot.near:
            fit = [member for member in fit if member.name in lot.near]
        if lot.wants_s:
            ends = {member: member.site.longest_s(resources) for member in fit}
            fit = [m for m, end in ends.items() if end is None or end >= lot.wants_s] or fit
        return [place for place in self._places if place.member in fit]

    def _chosen(self, lot: Lot, lined: dict[_Place, int]) -> _Place | None:
        """The site that would end it first, if there is room for it now; otherwise it lines up for that one."""
        fitting = self._fitting(lot)
        left = next((self._left[m.execution_id] for m in lot.manifests if m.execution_id in self._left), None)
        if left is not None and left in fitting:
            return left  # its task is there already
        up = [place for place in fitting if place.up and self._allowed(lot, place)]
        if self._tied(lot):
            home = self._home(lot, fitting)
            up = [home] if home is not None and home.up else []
        avoid = self._avoid.get(lot.first.execution_id, ())
        up = [place for place in up if place.member.name not in avoid] or up
        if not up:
            return None
        runs = len(lot.manifests)
        first = min(up, key=lambda place: self._ends_s(lot, place, lined.get(place, 0)))
        if first.flying + lined.get(first, 0) + runs > self._room(lot, first) and first.flying:
            lined[first] = lined.get(first, 0) + runs
            return None
        return first

    def _tied(self, lot: Lot) -> bool:
        """Whether it is compared with other runs by its speed, and so is run on a certain site only."""
        return self._by_reference and lot.first.role in ("reference", "replicate")

    def _home(self, lot: Lot, fitting: Sequence[_Place]) -> _Place | None:
        """The site of runs that are compared with each other: each reference on another, a confirmation on one."""
        manifest = lot.first
        by_name = {place.member.name: place for place in fitting}
        settled = self._homes.get(manifest.batch)
        if settled in by_name:
            return by_name[settled]
        if manifest.role == "replicate":
            able = [place for place in fitting if place.member.name in self._referenced]
            if not able and not self._reference_under_way():
                able = list(fitting)
            if not able:
                return None
            chosen = max(
                able, key=lambda p: (self._references.get((manifest.batch, p.member.name), 0), p.up, p.answered)
            )
            self._homes[manifest.batch] = chosen.member.name
            return chosen
        if lot.home not in by_name and fitting:
            had = [self._references.get((manifest.batch, place.member.name), 0) for place in fitting]
            # A site that is not up is sent one as well: it is up, and of use, when that has been answered.
            lot.home = min(zip(had, (not p.up for p in fitting), by_name, strict=True))[2]
            self._references[manifest.batch, lot.home] = min(had) + 1
        return by_name.get(lot.home)

    def _reference_under_way(self) -> bool:
        lots = (*self._lots, *(lot for lot, _ in self._flights.values()))
        return any(lot.first.role == "reference" for lot in lots)

    def _allowed(self, lot: Lot, place: _Place) -> bool:
        """Whether speeds measured there could be compared: it has, or is getting, a reference run."""
        if not self._by_reference or self._tied(lot):
            return True
        return place.member.name in self._referenced

    def _ends_s(self, lot: Lot, place: _Place, lined: int) -> float:
        """How long it would be until its end there, in seconds."""
        at_once = place.member.site.workers_for(lot.first.resources)
        rounds = math.ceil((place.flying + lined + len(lot.manifests)) / at_once)
        return rounds * self._takes_s(lot, place)

    def _takes_s(self, lot: Lot, place: _Place) -> float:
        means = {other.member.name: self._recent.on(other.member.name).mean_s for other in self._places}
        own = means[place.member.name]
        if own is not None:
            return own
        known = [mean_s for mean_s in means.values() if mean_s is not None]
        return min(known) if known else lot.first.estimated_runtime_s or 1.0

    def _room(self, lot: Lot, place: _Place) -> int:
        """So many runs may be there at a time: what it works on, and what it ends while others are on the way."""
        at_once = place.member.site.workers_for(lot.first.resources)
        ahead = min(MOST_AHEAD, place.way_s() / max(self._takes_s(lot, place), 1e-3))
        most = at_once + math.floor(at_once * ahead)
        return min(most, max(1, self._turn.share(most)))

    def _few(self, lot: Lot, place: _Place, waiting: int) -> int:
        """What a site gets that is not up: one run; an endpoint, of whose workers nobody knows, its part."""
        if not place.member.site.profile.remote:
            return 1
        own, everywhere = place.member.site.workers_for(lot.first.resources), self._sites.workers
        return max(1, min(own, waiting * own // max(1, everywhere)))

    def _send(self, lot: Lot, place: _Place) -> bool:
        member = place.member
        try:
            future = lot.send(member.site, member.about)
        except SiteFailed as error:
            if not self._sites.failed(member, error):
                self._lost(member.name, member.lost)
            return False
        except Exception as error:
            if lot.refuse is None:
                raise
            lot.ended = True
            lot.refuse(error)
            return True
        lot.flights += 1
        lot.sent_at = time.monotonic()
        place.flying += len(lot.manifests)
        if lot.first.role == "reference":
            self._referenced.add(member.name)
        self._flights[future] = lot, place
        return True

    def _double(self) -> None:
        """Run elsewhere too what lies at a site that does not answer, now that nothing else waits.

        With a common folder the late one finds it finished. An endpoint has files of its own: it is given a while,
        and the late one is cancelled there, or its answer dropped.
        """
        now = time.monotonic()
        for lot, place in list(self._flights.values()):
            silent = not place.up or place.member.site.offline
            if not silent or lot.flights > 1 or lot.ended or lot.near:
                continue
            if not place.member.shares_files and now - lot.sent_at < PATIENCE_S:
                continue
            for other in self._fitting(lot):
                if other is place or not other.up or other.member.site.offline:
                    continue
                at_once = other.member.site.workers_for(lot.first.resources)
                if other.flying < at_once and self._allowed(lot, other):
                    self._turn.again(len(lot.manifests))
                    if self._send(lot, other):
                        break

    def _call_off(self, lot: Lot) -> None:
        """Cancel, where that can be, what has been answered from elsewhere."""
        executions = [manifest.execution_id for manifest in lot.manifests]
        for other, place in self._flights.values():
            if other is lot and not place.member.shares_files:
                place.member.site.cancel(executions)


def _unreachable(lot: Lot) -> AppFailed:
    return AppFailed(
        f"its inputs lie on {' or '.join(sorted(lot.near))}, which takes no more runs.",
        kind="infrastructure",
        name="SiteFailed",
    )


def _before(lot: Lot) -> tuple[bool, float]:
    """References first: without one on its site no other run can be compared."""
    return lot.first.role != "reference", lot.priority
