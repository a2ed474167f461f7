"""Campaigns and futures in an event loop: nothing blocks it, and a cancelled task closes what it has opened."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.record import Campaign
from hpcagent.errors import Interrupted
from hpcagent.public import public

if TYPE_CHECKING:
    from hpcagent.campaign.coordinator import Coordinator
    from hpcagent.campaign.events import Batch, Event
    from hpcagent.campaign.result import CampaignResult
    from hpcagent.sites.several_profiles import AnySite

__all__ = ["Awaited", "gather", "run_async"]

_T = TypeVar("_T")


class Awaited:
    """A coordinator in an event loop: opened, driven and closed in one thread of its own.

    One, because the kernel ends the processes of a site with the thread that has started them.

    Args:
        coordinator: Which.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coordinator")
        self._signal = ""
        self._handled: list[int] = []

    async def open(self) -> None:
        """Open the coordinator; if the task is cancelled meanwhile, close it again."""
        self._take_signals()
        try:
            await self.do(self._coordinator.open)
        except BaseException:
            await self.close()
            raise

    async def do(self, work: Callable[[], _T]) -> _T:
        """Do something in the thread. A task that is cancelled has it stop at the next safe point, and waits."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._coordinator.interrupt()
            await _until(future)
            raise

    async def close(self) -> None:
        """Close the coordinator, whatever is cancelled meanwhile.

        Raises:
            Interrupted: A signal has ended it.
        """
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._coordinator.close)
        await _until(future)
        self._give_signals_back()
        self._thread.shutdown(wait=False)
        future.result()

    async def batches(self) -> AsyncIterator[Batch]:
        """The finished batches."""
        loop = iter(self._coordinator)
        while (batch := await self.do(lambda: next(loop, None))) is not None:
            yield batch

    def ended_by(self) -> Interrupted | None:
        """What to raise in place of the cancellation, where a signal was its cause."""
        if not self._signal:
            return None
        folder = self._coordinator.folder.root
        return Interrupted(
            f"stopped by {self._signal}; what has finished is kept in {folder}, and running it again goes on.",
            run_dir=str(folder),
        )

    def _take_signals(self) -> None:
        """SIGTERM and SIGHUP cancel the task, where they would end the process without a word."""
        if threading.current_thread() is not threading.main_thread():
            return
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def arrived(number: int) -> None:
            self._signal = signal.Signals(number).name
            if task is not None:
                task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                    loop.add_signal_handler(number, arrived, number)
                    self._handled.append(number)

    def _give_signals_back(self) -> None:
        for number in self._handled:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._handled = []


async def _until(future: asyncio.Future[Any]) -> None:
    """Wait until it is done, however often the task is cancelled; what it raises is left in it."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
            await asyncio.wait([future])
    if not future.cancelled():
        future.exception()


async def run_async(
    campaign: Campaign | str | Path,
    *,
    site: AnySite | None = None,
    run_dir: str | Path | None = None,
    workers: int | None = None,
    watch: Callable[[Event], None] | None = None,
    inside: bool = False,
    progress: bool | None = None,
) -> CampaignResult:
    """Do as `run`, in an event loop, which goes on meanwhile; `watch` is called in another thread.

    A task that is cancelled (also by SIGTERM) closes the campaign cleanly: what has finished is kept.

    Raises:
        Interrupted: A signal has stopped it.
        BadInput, RunDirLocked, RunDirChanged, RunDirGone, StoreFull, SiteFailed: see `Coordinator`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = asyncio.run(run_async("synthetic", site="threads", run_dir=folder, progress=False))
        >>> result.best.feasible
        True
    """
    if not isinstance(campaign, Campaign):
        campaign = load_campaign(campaign)
    coordinator: Coordinator = public("Coordinator")(
        campaign, site=site, run_dir=run_dir, workers=workers, watch=watch, inside=inside, progress=progress
    )
    async with coordinator:
        async for _ in coordinator:
            pass
        return await asyncio.to_thread(coordinator.result)


async def gather(*futures: Future[_T]) -> list[_T]:
    """Wait in an event loop for the futures of apps (`md(timestep=...)`), and return their results in order.

    Unlike `asyncio.wrap_future`, a task that is cancelled leaves the runs alone: Parsl cannot cancel one.

    Args:
        futures: Of apps, chains, or of anything else that gives `concurrent.futures`.

    Raises:
        Exception: What the first of them that failed has raised; a run that failed raises nothing.

    Example:
        >>> async def both():
        ...     one, two = Future(), Future()
        ...     two.set_result(2)
        ...     one.set_result(1)
        ...     return await gather(one, two)
        >>> asyncio.run(both())
        [1, 2]
    """
    loop = asyncio.get_running_loop()

    def waiting(future: Future[_T]) -> asyncio.Future[_T]:
        waiter: asyncio.Future[_T] = loop.create_future()

        def hand_over() -> None:
            if waiter.done():
                return
            error = future.exception()
            if error is None:
                waiter.set_result(future.result())
            else:
                waiter.set_exception(error)

        def ended(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has gone
                loop.call_soon_threadsafe(hand_over)

        future.add_done_callback(ended)
        return waiter

    return list(await asyncio.gather(*(waiting(f) for f in futures)))
