"""Several open sites as one, for campaigns that run on all of them."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hpcagent.errors import BadInput, HpcAgentError, SiteFailed
from hpcagent.html import Card
from hpcagent.model.contract import Resources
from hpcagent.sites.profile import Profile
from hpcagent.sites.several_profiles import Several
from hpcagent.sites.site import Site
from hpcagent.sites.workers.fair_share import Turns

__all__ = ["Member", "Sites", "open_several"]

MOST_MENDED = 3
"""So often is a site opened again whose process between us and the workers has died."""


@dataclass(slots=True, eq=False)
class Member:
    """One of several sites.

    Attributes:
        site: Open.
        about: What apps may know of it; see `Site.about`.
        lost: Why it takes no more runs; empty while it does.
        mended: How often it was opened again.
    """

    site: Site
    about: dict[str, Any]
    lost: str = ""
    mended: int = 0

    @property
    def name(self) -> str:
        """What it is called in records."""
        return self.site.profile.name

    @property
    def shares_files(self) -> bool:
        """Whether its runs lie in the campaign's folder here."""
        return not self.site.profile.remote


class Sites(Site):
    """Open sites that campaigns use as one; made by `open_site` with several profiles.

    A campaign's runner decides which of them gets a run (`campaign/spread.py`); they stay open to each other's
    failures: one that dies is left out, and its unfinished runs go to the others.

    Rules: those of `Site`. It is never Parsl's configuration, so apps are not called by hand on it.

    Attributes:
        members: The sites, in the order they were named.
    """

    def __init__(
        self, profile: Several, sites: Sequence[Site], *, again: Callable[[Profile], Site] | None = None
    ) -> None:
        self.profile = profile
        self.members = [Member(site, site.about) for site in sites]
        self.run_dir = sites[0].run_dir
        self.work_dir = sites[0].work_dir
        self.inside = None
        self.turns = Turns()
        self._again = again
        self._told: deque[str] = deque(maxlen=1000)
        self._mending = threading.Lock()
        self._closed = False

    @property
    def alive(self) -> list[Member]:
        """Those that take runs."""
        return [member for member in self.members if not member.lost]

    @property
    def workers(self) -> int:  # type: ignore[override]  # a site's does not change
        """How many runs of one core go at once, on all that are left."""
        return max(1, sum(member.site.workers for member in self.alive))

    @property
    def about(self) -> dict[str, Any]:
        """Of the first that is left, with the fewest cores of a node: forecasts of costs are then not too low."""
        first = (self.alive or self.members)[0]
        cores = [member.about["node_cores"] for member in self.members if member.about["node_cores"]]
        return {**first.about, "name": self.profile.name, "node_cores": min(cores, default=None)}

    def tell(self, *sentences: str) -> None:
        """Add to what `news` returns next."""
        self._told.extend(sentences)

    def news(self) -> list[str]:
        """What has happened on the sites since this was last asked; each sentence names the site."""
        told = []
        for member in self.members:
            told += [f"{member.name}: {text}" for text in member.site.news()]
        while self._told:
            told.append(self._told.popleft())
        return told

    @property
    def out_of_time(self) -> bool:
        """False: none of them is opened inside of a job."""
        return False

    @property
    def refused_s(self) -> float | None:
        """For how long none of them has taken a job; None while one has."""
        waits = [member.site.refused_s for member in self.alive]
        known = [wait for wait in waits if wait is not None]
        return min(known) if known and len(known) == len(waits) else None

    @property
    def ends_at(self) -> float | None:
        """None: none of them is opened inside of a job."""
        return None

    def fitting(self, resources: Resources, *, estimated_runtime_s: float | None = None) -> list[Member]:
        """Those that are left and have a place for runs with these resources.

        Raises:
            BadInput: None has; with what each says.
            SiteFailed: None of those that are left has.
        """
        found, said = [], []
        for member in self.alive:
            try:
                member.site.place(resources, estimated_runtime_s=estimated_runtime_s)
            except BadInput as error:
                said.append(f"{member.name}: {error.message}")
            else:
                found.append(member)
        if not found:
            gone = [f"{member.name} is lost: {member.lost}" for member in self.members if member.lost]
            if gone:
                raise SiteFailed(f"No site that is left has a place for such a run. {' '.join([*said, *gone])}")
            raise BadInput(f"No site has a place for such a run. {' '.join(said)}")
        return found

    def place(
        self, resources: Resources, *, estimated_runtime_s: float | None = None
    ) -> tuple[str, dict[str, Any]]:
        """As that of the first on which they fit.

        Raises:
            BadInput: They fit on none.
        """
        first = self.fitting(resources, estimated_runtime_s=estimated_runtime_s)[0]
        return first.site.place(resources, estimated_runtime_s=estimated_runtime_s)

    def longest_s(self, resources: Resources) -> float | None:
        """The longest time that such a run can have on any of them; None where it has no end."""
        found = [member.site.longest_s(resources) for member in self.fitting(resources)]
        known = [seconds for seconds in found if seconds is not None]
        return max(known) if len(known) == len(found) else None

    def workers_for(self, resources: Resources) -> int:
        """How many runs with these resources go at once, on all that are left."""
        return sum(member.site.workers_for(resources) for member in self.fitting(resources))

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        priority: float | None = None,
        executor: str | None = None,
        needs: Mapping[str, Any] | None = None,
    ) -> Future[Any]:
        """Send `function(*args)` to the first that is left, for scripts; campaigns choose a site for each run.

        Raises:
            SiteFailed: They are closed, or none is left.
            BadInput: An executor is named: which site's is not known.
        """
        if executor is not None:
            raise BadInput(
                f"executor={executor!r}: which of the sites {self.profile.name} is meant is not known; submit to "
                "one of `members`."
            )
        if not self.alive:
            raise self.none_left()
        return self.alive[0].site.submit(function, *args, priority=priority, needs=needs)

    def cancel(self, executions: Iterable[str], futures: Iterable[Future[Any]] = ()) -> bool:
        """Cancel runs whose answers nobody wants any more, where a site can; see `Site.cancel`."""
        executions, futures = list(executions), list(futures)
        taken = [member.site.cancel(executions, futures) for member in self.alive]
        return any(taken)

    def failed(self, member: Member, error: SiteFailed) -> bool:
        """Open a site again where that is all it takes; otherwise it gets no more runs.

        Returns:
            Whether it takes runs.
        """
        with self._mending:
            if member.lost or self._closed:
                return False
            said = str(error).partition(". Its log")[0].rstrip(".")
            if error.details.get("mendable") and self._again is not None and member.mended < MOST_MENDED:
                member.mended += 1
                profile = member.site.profile
                try:
                    self._close(member.site)
                    member.site = self._again(profile)
                    member.about = member.site.about
                except (HpcAgentError, OSError) as other:
                    said = f"{said}; opened again: {str(other).rstrip('.')}"
                else:
                    self.tell(f"{member.name}: {said}; the site is opened again")
                    return True
            member.lost = f"{said}."
            left = ", ".join(m.name for m in self.alive)
            goes = f"its unfinished runs go to {left}, uncharged" if left else "no other is left"
            self.tell(f"the site {member.name} is lost: {said}; {goes}")
            return False

    def _close(self, site: Site) -> None:
        try:
            site.close()
        except SiteFailed as error:
            self.tell(str(error))

    def none_left(self) -> SiteFailed:
        """Why nothing can be run any more."""
        why = " ".join(f"{member.name}: {member.lost}" for member in self.members if member.lost)
        return SiteFailed(f"No site is left. {why or 'They are closed.'}")

    def close(self) -> None:
        """Close all of them. Again: does nothing.

        Raises:
            Unverified: Of one of them; the others are closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        failures = []
        for member in self.members:
            try:
                member.site.close()
            except SiteFailed as error:
                failures.append(error)
        if failures and sys.exc_info()[1] is None:
            raise failures[0]

    def _card(self) -> Card:
        facts: list[tuple[str, object]] = [(m.name, m.lost or f"{m.site.workers} at once") for m in self.members]
        return Card("Sites", self.profile.name, [*facts, ("state", "closed" if self._closed else "open")])

    def __repr__(self) -> str:
        return f"<Sites {self.profile.name}, {self.workers} workers, {'closed' if self._closed else 'open'}>"


def open_several(
    profile: Several, opened: Callable[[Profile], Site], *, inside: bool = False, account: str | None = None
) -> Sites:
    """Open each of several profiles.

    Args:
        profile: Of them all.
        opened: Opens one of them, privately.
        inside: Not for several.
        account: Not for several.

    Raises:
        BadInput: What is said is for one site, or one of them cannot be opened; the others are closed again.
        SiteFailed: One of them cannot be opened.
    """
    for name, given in (("inside", inside), ("account", account)):
        if given:
            raise BadInput(f"{name} is for one site, and these are several ({profile.name}).", value=given)
    sites: list[Site] = []
    try:
        for member in profile.members:
            sites.append(opened(member))
    except BaseException:
        for site in sites:
            site.close()
        raise
    return Sites(profile, sites, again=opened)
