"""The functions of chains: they run in threads of the coordinator, and mostly wait for runs that they ask for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.chain import ChainRun, inner_manifest
from hpcagent.apps.parts import Part
from hpcagent.apps.worker import execute
from hpcagent.campaign.chain_runs import ChainCall, interrupted
from hpcagent.campaign.orders import Orders
from hpcagent.campaign.sending import Pack, Sender
from hpcagent.campaign.state import State
from hpcagent.errors import SiteFailed
from hpcagent.model.records import Manifest

__all__ = ["ChainThreads"]

# So many chains have their functions running at a time.
MOST_CHAINS = 256


class ChainThreads:
    """Chains that run, and those that wait for their turn.

    Args:
        state: What is known of the campaign.
        orders: Makes what a chain's function is told.
        sender: Knows the site, and the campaign's turn at it.
        answered: Takes a chain and its answer, in any thread.
        asked: Takes a call that a chain makes, in the chain's thread.
    """

    def __init__(
        self,
        state: State,
        orders: Orders,
        sender: Sender,
        *,
        answered: Callable[[Pack], None],
        asked: Callable[[ChainCall], None],
    ) -> None:
        self._state, self._orders, self._sender = state, orders, sender
        self._answered, self._asked = answered, asked
        self._threads: dict[str, threading.Thread] = {}
        self._due: deque[Manifest] = deque()
        self._turns: dict[int, float] = {}
        self._stopping = False

    @property
    def names(self) -> frozenset[str]:
        """Execution ids of those that run, or are going to."""
        return frozenset(self._threads) | {manifest.execution_id for manifest in self._due}

    def running(self, execution_id: str) -> bool:
        """Whether the function of a chain is running."""
        return execution_id in self._threads

    def add(self, manifests: Iterable[Manifest]) -> None:
        """Take in chains of the campaign; `go` starts them."""
        self._due.extend(manifests)

    def go(self, app: App, *, work: Path, promises: Any) -> None:
        """Start as many as may run at a time."""
        most = max(32, min(MOST_CHAINS, 2 * self._sender.site.workers))
        while self._due and len(self._threads) < most:
            self.start(app, self._due.popleft(), (), work=work, promises=promises)

    def start(
        self,
        app: App,
        manifest: Manifest,
        inputs: tuple[Any, ...],
        *,
        work: Path,
        promises: Any,
        shared: bool = False,
    ) -> None:
        """Run the function of one in a thread; it ends like a run on a worker, with an answer.

        Args:
            app: The chain.
            manifest: Of its run.
            inputs: Runs or structures that it takes.
            work: Where its folder is.
            promises: What it must yield.
            shared: Whether other campaigns may find its result.
        """
        chain = ChainRun(app, inputs, partial(self._ask, manifest, app))
        if manifest.index not in self._turns:
            self._turns[manifest.index] = self._sender.turn.next(self._state.recent.expected_s(manifest), runs=0)
        order = self._orders.of_part(app, manifest, self._sender.about, work=work, promises=promises)
        order |= {"function": chain.function, "account": chain.account, "shared": shared}
        answer: Future[Any] = Future()
        answer.add_done_callback(lambda done: self._answered(((manifest,), done)))

        def run() -> None:
            try:
                answer.set_result(execute(order))
            except BaseException as error:  # the runner makes a failed result of it
                answer.set_exception(error)

        thread = threading.Thread(target=run, name=f"chain {manifest.index}", daemon=True)
        self._threads[manifest.execution_id] = thread
        try:
            thread.start()
        except RuntimeError as error:  # a login node's limit of processes and threads is reached
            del self._threads[manifest.execution_id]
            answer.set_exception(SiteFailed(f"The chain's thread on this machine could not be started: {error}."))

    def turn_of(self, part: Manifest) -> float | None:
        """The turn of the chain that a run belongs to; None where it has none."""
        return self._turns.get(part.index)

    def ended(self, execution_id: str) -> None:
        """A chain has answered."""
        self._threads.pop(execution_id, None)

    def forget_due(self) -> None:
        """Start no more of those that wait."""
        self._due.clear()

    def stop(self) -> None:
        """Let no chain ask for more."""
        self._stopping = True

    def join(self, timeout_s: float) -> None:
        """Wait until all functions have ended, so many seconds at most."""
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _ask(
        self,
        chain: Manifest,
        of: App,
        app: App,
        inputs: tuple[Any, ...],
        params: Any,
        seed: int | None,
        replicate: int | None,
    ) -> Part:
        """Called in a chain's thread; the run itself is started by the runner's `collect`."""
        if self._stopping:
            raise interrupted()
        about = self._sender.about
        with self._orders.keeping():
            manifest = inner_manifest(chain, of, app, inputs, params, seed, replicate, about)
            if app.made_of and manifest.execution_id not in self._state.parts:
                # Asked for before modules counted: the same run, under the id that it has in the journal.
                bare = app.without_modules()
                before = inner_manifest(chain, of, bare, inputs, params, seed, replicate, about)
                if before.execution_id in self._state.parts:
                    app, manifest = bare, before
        part = Part(app.name, manifest.execution_id)
        self._asked(ChainCall(part, app, manifest, inputs, chain.execution_id))
        return part
