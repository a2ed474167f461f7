"""The journal of a campaign with the state that it makes, as a session writes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcagent.campaign.changes import change_text, changed_event
from hpcagent.campaign.planned import Plan
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import rebuilt_event, replayed
from hpcagent.campaign.same_files import changed_since, refusal
from hpcagent.campaign.state import State
from hpcagent.campaign.taken_up import write_down
from hpcagent.campaign.warm import read_earlier
from hpcagent.sites.site import Site
from hpcagent.store.journal import Journal
from hpcagent.store.rundir import RunDir

__all__ = ["Recording"]


@dataclass(slots=True)
class Recording:
    """What is on record, and where more of it is written.

    Attributes:
        folder: Of the campaign.
        journal: Its events.
        state: What they say.
    """

    folder: RunDir
    journal: Journal
    state: State

    @classmethod
    def of(cls, plan: Plan, journal: Journal, *, resumed: bool) -> Recording:
        """What the folder has."""
        state = replayed(plan.folder, plan.campaign, look=True, results=False) if resumed else State()
        return cls(plan.folder, journal, state)

    def note(self, event: Mapping[str, Any], *, sync: bool = False) -> None:
        """Write an event, and take it in; with `sync` it is on the disk then."""
        event = {"at": time.time(), **event}
        if sync:
            self.journal.check()
        self.journal.append([event])
        self.state.apply(event)
        if sync:
            self.journal.sync()

    def check_files(self, site: Site) -> None:
        """Refuse to add numbers of other pseudopotentials, setups or models to those that are there."""
        state = self.state
        ended = (*state.results.values(), *state.part_results.values())
        changed = changed_since(state.files.values(), ended, site.about)
        if changed:
            raise refusal(str(self.folder.root), changed, done=state.finished, elsewhere=True)

    def note_changes(self, campaign: Campaign, written: Campaign | None) -> str:
        """Write down what differs from what was written, the journal first: it says who decided what, and when."""
        if written is None:
            return ""
        event = changed_event(written, campaign)
        if event is not None:
            self.note(event, sync=True)
        write_down(self.folder, campaign)
        return "" if event is None else change_text(self.state.changes[-1])

    def note_rebuilt(self, written: Campaign | None) -> None:
        """Write what damage has taken from the journal into it again."""
        until = None if written is None else written.until
        event = rebuilt_event(
            self.state,
            budget=None if until is None else until.budget(),
            cap=None if until is None else until.cap(),
        )
        if event is not None:
            self.note(event, sync=True)
            self.state.damage.unrecorded = []

    def take_earlier(self, plan: Plan) -> None:
        """Write down what earlier campaigns have found, when this one begins: from then on it has them itself.

        Where the line that had it is damaged, they are read anew.
        """
        if not plan.campaign.earlier or self.state.warm is not None:
            return
        warm = plan.warm or read_earlier(plan.campaign, run_dir=self.folder.root)
        if warm is not None:
            self.note(warm.event(), sync=True)
