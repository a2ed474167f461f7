"""Campaigns that run elsewhere, found again and stopped; campaigns and futures in an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.campaign.answer import read_run
from hpcagent.errors import BadInput, Interrupted, RunDirLocked

ONE_OF_THE_SCRIPT = 3.0


def slow_hill(seconds: float) -> ha.App:
    """A function as a notebook has it: no other process can import it."""

    @ha.app(parameters={"x": ha.Float(0.0, 4.0)}, metrics={"height": "mm"}, seeded=False)
    def hill(x: float) -> dict[str, float]:
        time.sleep(seconds)
        return {"height": ONE_OF_THE_SCRIPT - (x - 1.0) ** 2}

    return hill


def campaign(runs: int, seconds: float) -> ha.Campaign:
    return ha.Campaign(
        slow_hill(seconds), ha.maximize("height"), policy="sobol", until=ha.until.max_runs(runs), batch_size=2
    )


def test_a_function_of_a_notebook_runs_detached_is_stopped_found_again_and_goes_on(tmp_path: Path) -> None:
    mine, folder = campaign(12, 0.2), tmp_path / "r"
    first = ha.run(mine, site="threads", workers=2, run_dir=folder, detach=True)
    assert first.running and "a coordinator is at it" in str(first)
    with pytest.raises(RunDirLocked):
        ha.run(mine, site="threads", run_dir=folder, detach=True)
    with pytest.raises(TimeoutError):
        first.wait(0.1, progress=False)
    deadline = time.monotonic() + 60
    while not first.result().results and time.monotonic() < deadline:
        time.sleep(0.1)
    found = ha.open_run(folder)
    assert found.running and "CampaignRun" in first._repr_html_()
    found.stop()
    assert not first.running and not found.running
    done = {r.manifest.execution_id: r.ended_at for r in read_run(folder).results}
    assert 0 < len(done) < 12
    with pytest.raises(Interrupted, match=r"no coordinator is at it.*the same script or cell"):
        first.wait(progress=False)
    ha.attach(folder).stop()  # nobody is there: nothing to do
    ha.run(mine, site="threads", workers=2, run_dir=folder, detach=True)
    result = ha.open_run(folder).wait(progress=False)
    assert len(result.results) == 12 and result.reason is not None
    assert {r.manifest.execution_id: r.ended_at for r in result.results}.items() >= done.items()
    log = (folder / "coordinator.log").read_text()
    assert "SIGTERM" in log and ": new, on threads" in log and "resumed with 0" not in log


def test_what_keeps_it_from_beginning_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no site"):
        ha.run(campaign(2, 0.0), site="nowhere", run_dir=tmp_path / "r", detach=True)
    with pytest.raises(BadInput, match="told of events"):
        ha.run(campaign(2, 0.0), site="threads", run_dir=tmp_path / "r", detach=True, watch=print)  # type: ignore[call-overload]
    with ha.open_site("threads") as site, pytest.raises(BadInput, match="belongs to this process"):
        ha.run(campaign(2, 0.0), site=site, run_dir=tmp_path / "r", detach=True)
    with pytest.raises(BadInput, match="not the folder of a campaign"):
        ha.attach(tmp_path)
    with ha.Coordinator(campaign(2, 0.0), site="threads", run_dir=tmp_path / "s", progress=False):
        with pytest.raises(BadInput, match="in this process"):
            ha.attach(tmp_path / "s").stop()


def test_batches_come_in_an_event_loop_that_goes_on(tmp_path: Path) -> None:
    async def main() -> tuple[list[int], int, float]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        coordinator = ha.Coordinator(campaign(6, 0.1), site="threads", run_dir=tmp_path / "r", progress=False)
        with pytest.raises(BadInput, match="async with"):
            async for _ in coordinator:
                pass
        async with coordinator:
            sizes = [len(batch.results) async for batch in coordinator]
            run = (await asyncio.to_thread(coordinator.submit, [coordinator.result().results[0].manifest.params]))[
                0
            ]
            height = (await run)["height"]
        ticking.cancel()
        return sizes, ticks, height

    sizes, ticks, height = asyncio.run(main())
    assert sizes == [2, 2, 2] and ticks > 20
    assert height == read_run(tmp_path / "r").results[0]["height"]


@pytest.mark.parametrize("how", ["cancel", "SIGTERM"])
def test_a_cancelled_task_closes_its_campaign_cleanly(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        end = task.cancel if how == "cancel" else lambda: os.kill(os.getpid(), signal.SIGTERM)
        asyncio.get_running_loop().call_later(1.0, end)
        one_batch = campaign(40, 0.2).model_copy(update={"batch_size": 40})  # it does not wait for the batch
        await ha.run_async(one_batch, site="threads", run_dir=tmp_path / "r", progress=False)

    with pytest.raises(asyncio.CancelledError if how == "cancel" else Interrupted):
        asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    attached = ha.attach(tmp_path / "r")
    assert not attached.running
    left = len(attached.result().results)
    assert left < 40
    result = asyncio.run(
        ha.run_async(campaign(max(2, left), 0.0), site="threads", run_dir=tmp_path / "s", progress=False)
    )
    assert result.reason is not None


def test_futures_of_apps_are_awaited_and_left_alone_by_a_cancelled_task() -> None:
    async def main(hill: Any) -> list[float]:
        return [r["height"] for r in await ha.gather(hill(x=1.0), hill(x=2.0))]

    async def cancelled(future: Future[Any]) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ha.gather(future), 0.05)

    with ha.open_site("threads"):
        assert asyncio.run(main(slow_hill(0.0))) == [3.0, 2.0]
        run = slow_hill(0.3)(x=1.0)
        asyncio.run(cancelled(run))
        assert run.result()["height"] == 3.0
