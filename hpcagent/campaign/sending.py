"""How runs get to the site: at once to the one there is, or to one of several as soon as it has room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from hpcagent.apps.worker import execute, execute_each
from hpcagent.campaign.attempts import Attempts
from hpcagent.campaign.spread import Lot, Spread
from hpcagent.campaign.state import State
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.records import Manifest
from hpcagent.sites.several import Sites
from hpcagent.sites.site import Site

__all__ = ["OrdersFor", "Pack", "Sender"]

Pack = tuple[Sequence[Manifest], Future[Any]]
OrdersFor = Callable[[Mapping[str, Any]], list[dict[str, Any]]]


def _near(inputs: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The endpoint that inputs of a run lie on; what lies here can be sent anywhere."""
    return frozenset(str(one["remote"]["site"]) for one in inputs if one.get("remote"))


class Sender:
    """Sends runs to the site, each in its turn among the campaigns that share it.

    Args:
        site: Where they run.
        state: What is known of the campaign.
        attempts: How much time runs want that were cut before.
        answered: Takes runs that went together, and their answer, in any thread.
        lost: Called with the name of one of several sites that is lost, and why.
        by_reference: Whether speeds on several sites are compared by the reference runs of each.

    Attributes:
        about: What runs are told of the site.
        turn: Of this campaign.
        spread: Which of several sites gets a run; None where there is one.
    """

    def __init__(
        self,
        site: Site,
        state: State,
        attempts: Attempts,
        *,
        answered: Callable[[Pack], None],
        lost: Callable[[str, str], None],
        by_reference: bool,
    ) -> None:
        self.site, self.about = site, site.about
        self.turn = site.turns.join()
        self._attempts, self._answered = attempts, answered
        self.spread: Spread | None = None
        if isinstance(site, Sites):
            known = [*state.results.values(), *state.part_results.values()]
            self.spread = Spread(site, self.turn, known, state.recent, by_reference=by_reference, lost=lost)

    def move(self, site: Site) -> None:
        """Send what is to come to another site."""
        self.turn.leave()
        self.site, self.about = site, site.about
        self.turn = site.turns.join()

    def site_of(self, execution_id: str) -> str:
        """The name of the site that a run is on."""
        return str(self.about.get("name", "")) if self.spread is None else self.spread.site_of(execution_id)

    def go(self) -> None:
        """Send what has waited for room, where there are several sites."""
        if self.spread is not None:
            self.spread.go()

    def send(
        self,
        manifests: Sequence[Manifest],
        orders: OrdersFor,
        take_turn: Callable[[], float],
        *,
        inputs: Sequence[Any] = (),
        refusable: bool = False,
    ) -> None:
        """Send runs that go to a worker together.

        Args:
            manifests: Of the runs, all of one kind.
            orders: Makes their orders, one each, by what runs are told of a site.
            take_turn: Gives the priority of their turn; called when nothing can refuse them any more.
            inputs: Of the one run, if it needs the results of others.
            refusable: Whether an error that keeps them from being sent ends only them.

        Raises:
            AppFailed: They cannot run, unless they wait for a site and are `refusable`: then it is their answer.
            BadInput: Likewise.
        """
        runs = len(manifests)

        def made(site: Site, about: Mapping[str, Any]) -> Callable[[float], Future[Any]]:
            what, (label, needs) = orders(about), self._place(manifests[0], site)
            work, order = (execute, what[0]) if runs == 1 else (execute_each, what)
            return lambda priority: site.submit(
                work, order, *inputs, executor=label, needs=needs, priority=priority
            )

        submit = made(self.site, self.about) if self.spread is None else None
        turn, priority = self.turn, take_turn()

        def back(done: Future[Any]) -> None:
            turn.back(priority, runs=runs)
            self._answered((manifests, done))

        def sent(future: Future[Any]) -> Future[Any]:
            future.add_done_callback(back)
            return future

        if self.spread is None:
            assert submit is not None
            sent(submit(priority))
            return
        lot = self._lot(manifests, priority, lambda site, about: sent(made(site, about)(priority)))
        lot.near = _near(inputs)
        if refusable:
            lot.refuse = lambda error: _refuse(error, back)
        self.spread.add(lot)

    def _lot(
        self,
        manifests: Sequence[Manifest],
        priority: float,
        send: Callable[[Site, Mapping[str, Any]], Future[Any]],
    ) -> Lot:
        wants_s = max((self._attempts.wants_s.get(m.execution_id, 0.0) for m in manifests), default=0.0)
        return Lot(manifests, priority, send, wants_s)

    def _place(self, manifest: Manifest, site: Site) -> tuple[str, dict[str, Any]]:
        label, needs = site.place(manifest.resources, estimated_runtime_s=manifest.estimated_runtime_s)
        wants_s = self._attempts.wants_s.get(manifest.execution_id, 0.0)
        return label, {**needs, "walltime_s": max(wants_s, needs.get("walltime_s", 0.0))} if wants_s else needs


def _refuse(error: Exception, back: Callable[[Future[Any]], None]) -> None:
    if not isinstance(error, AppFailed | BadInput):
        raise error
    failed: Future[Any] = Future()
    failed.set_exception(error)
    back(failed)
