"""What is spent and committed, by person and in all: estimated before a run, reconciled after it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request
from hpcagent.gate.rules import Quota

__all__ = ["Account", "Accounts"]

MINUTE_S = 60.0


@dataclass(slots=True)
class Account:
    """Of one person, or of the workspace.

    Attributes:
        node_hours: Spent by what has ended.
        usd: Likewise, where a site has a price.
        bytes: Of files in the folders of runs, and of files of runs that are kept for others to read.
        committed: Request -> (node-hours, US dollars) of what waits or goes.
        recent: Unix times of the submissions of the last minute, in seconds.
    """

    node_hours: float = 0.0
    usd: float = 0.0
    bytes: int = 0
    committed: dict[str, tuple[float, float]] = field(default_factory=dict)
    recent: deque[float] = field(default_factory=deque)
    _hours: float = 0.0
    _dollars: float = 0.0

    def commit(self, identity: str, node_hours: float, usd: float, at: float) -> None:
        """A request was let through."""
        self.committed[identity] = node_hours, usd
        self._hours, self._dollars = self._hours + node_hours, self._dollars + usd
        self.recent.append(at)

    def settle(self, identity: str, node_hours: float, usd: float, size: int) -> None:
        """It has ended, and this is what it took."""
        was_hours, was_dollars = self.committed.pop(identity, (0.0, 0.0))
        # Sums of what comes and goes drift: with nothing under way they are zero.
        self._hours = self._hours - was_hours if self.committed else 0.0
        self._dollars = self._dollars - was_dollars if self.committed else 0.0
        self.node_hours, self.usd = self.node_hours + node_hours, self.usd + usd
        self.bytes += size

    @property
    def in_flight(self) -> tuple[float, float]:
        """Node-hours and US dollars of what waits or goes, at most."""
        return self._hours, self._dollars

    def check(self, quota: Quota, request: Request, whose: str, now: float) -> None:
        """Refuse what does not fit.

        Raises:
            NotAllowed: Which quota, how much of it is used, when there is room again.
        """
        hours, dollars = self.in_flight
        if quota.runs_at_once is not None and len(self.committed) >= quota.runs_at_once:
            raise NotAllowed(
                "quota",
                f"{len(self.committed)} runs of {whose} wait or go",
                field="runs_at_once",
                value=len(self.committed) + 1,
                allowed=f"at most {quota.runs_at_once}",
                do="wait until one has ended, or cancel one",
            )
        if quota.per_minute is not None:
            while self.recent and self.recent[0] <= now - MINUTE_S:
                self.recent.popleft()
            if len(self.recent) >= quota.per_minute:
                wait_s = self.recent[len(self.recent) - quota.per_minute] + MINUTE_S - now
                raise NotAllowed(
                    "quota",
                    f"{whose} has submitted {len(self.recent)} times within a minute",
                    field="per_minute",
                    value=len(self.recent) + 1,
                    allowed=f"at most {quota.per_minute}",
                    do=f"ask again in {wait_s:.0f} s",
                )
        for name, limit, spent, flying, asked, unit in (
            ("node_hours", quota.node_hours, self.node_hours, hours, request.charged_node_hours, "node-hours"),
            ("usd", quota.usd, self.usd, dollars, request.usd, "USD"),
        ):
            if limit is None or (name == "usd" and not request.priced):
                continue
            if asked is None:
                raise NotAllowed(
                    "quota",
                    f"nothing bounds what {request.app} takes, and {whose} has a quota of {limit:g} {unit}",
                    field="walltime_s" if request.kind == "run" else "until.node_hours",
                    value=None,
                    allowed=f"at most {max(0.0, limit - spent - flying):.4g} {unit}",
                    do="give the run a walltime_s, the campaign a cap of node-hours (until.node_hours)",
                )
            if spent + flying + asked > limit * (1 + 1e-9):
                raise NotAllowed(
                    "quota",
                    f"of {limit:g} {unit} of {whose} {spent:.4g} are spent and {flying:.4g} committed",
                    field=name,
                    value=asked,
                    allowed=f"at most {max(0.0, limit - spent - flying):.4g} {unit}",
                    do="ask for less, wait for what goes, or have the quota raised in workspace.toml",
                )
        if quota.gigabytes is not None and self.bytes > quota.gigabytes * 1e9:
            raise NotAllowed(
                "quota",
                f"the runs of {whose} have {self.bytes / 1e9:.3g} GB of files, with those kept for runs to read",
                field="gigabytes",
                value=round(self.bytes / 1e9, 3),
                allowed=f"at most {quota.gigabytes:g}",
                do="remove runs (hpcagent workspace expire), or have the quota raised",
            )

    def check_file(self, quota: Quota, name: str, size: int, whose: str) -> None:
        """Refuse to keep a file that does not fit.

        Args:
            quota: What may be used.
            name: The file's.
            size: Its bytes.
            whose: The account's, in words.

        Raises:
            NotAllowed: How much is used, what is allowed, what to do.
        """
        if quota.gigabytes is None or not size or self.bytes + size <= quota.gigabytes * 1e9:
            return
        left = max(0.0, quota.gigabytes - self.bytes / 1e9)
        raise NotAllowed(
            "quota",
            f"of {quota.gigabytes:g} GB of files of {whose} {self.bytes / 1e9:.3g} are used, and a copy of {name} "
            "is to be kept for the run to read",
            field="gigabytes",
            value=round(size / 1e9, 9),
            allowed=f"at most {left:.3g}",
            do="name a smaller file, remove runs (hpcagent workspace expire), or have the quota raised in "
            "workspace.toml",
        )


class Accounts:
    """Of everybody, and of the workspace as a whole."""

    def __init__(self) -> None:
        self.whole = Account()
        self._people: dict[str, Account] = {}

    def of(self, person: str) -> Account:
        """A person's."""
        found = self._people.get(person)
        return self._people.setdefault(person, Account()) if found is None else found

    def people(self) -> dict[str, Account]:
        """All of them, by name."""
        return dict(self._people)

    def commit(self, person: str, identity: str, node_hours: float, usd: float, at: float) -> None:
        """See `Account.commit`."""
        for account in (self.whole, self.of(person)):
            account.commit(identity, node_hours, usd, at)

    def settle(self, person: str, identity: str, node_hours: float, usd: float, size: int = 0) -> None:
        """See `Account.settle`."""
        for account in (self.whole, self.of(person)):
            account.settle(identity, node_hours, usd, size)

    def store(self, person: str, size: int) -> None:
        """Count bytes of files, of a person and of the workspace; those of nobody are the workspace's only."""
        for account in (self.whole, self.of(person)) if person else (self.whole,):
            account.bytes += size
