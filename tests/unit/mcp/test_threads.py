"""Threads of the server: which call waits for which, by counts and order."""

from __future__ import annotations

import threading

import anyio
import pytest

pytest.importorskip("mcp")

from hpcagent.mcp.threads import Pool, in_thread

MANY = 200


def test_a_quick_call_is_answered_while_all_calls_that_wait_still_do():
    free = threading.Event()

    async def main():
        async with anyio.create_task_group() as group:
            for _ in range(MANY):
                group.start_soon(lambda: in_thread(free.wait, waits=True))
            with anyio.fail_after(60):
                found = await in_thread(free.is_set)
            free.set()
        return found

    assert anyio.run(main) is False


def test_one_caller_has_only_a_part_of_the_threads():
    free, begun = threading.Event(), threading.Semaphore(0)
    done = []

    def hold():
        begun.release()
        free.wait()

    async def main():
        pool = Pool(4, 2)

        async def other():
            await pool.run("bob", lambda: done.append(free.is_set()))
            assert not begun.acquire(blocking=False)  # no more of the first than its two have begun
            free.set()

        async with anyio.create_task_group() as group:
            for _ in range(MANY):
                group.start_soon(pool.run, "ada", hold)
            with anyio.fail_after(60):
                await anyio.to_thread.run_sync(begun.acquire)
                await anyio.to_thread.run_sync(begun.acquire)
                await other()
        assert not pool._of  # nothing is kept of who waits for nothing

    anyio.run(main)
    assert done == [False]


def test_a_call_that_was_given_up_gives_its_place_back():
    free = threading.Event()

    async def main():
        pool = Pool(1, 1)
        async with anyio.create_task_group() as group:
            group.start_soon(pool.run, "ada", free.wait)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0):
                await pool.run("ada", free.is_set)
            free.set()
        with anyio.fail_after(60):
            return await pool.run("ada", free.is_set)

    assert anyio.run(main)


def test_lists_come_before_many_that_wait_for_notifications(drive):
    async def body(client):
        said = await client.call_tool("subscribe_events", {"events": ["on_message"]})
        wait = {"subscription_id": said.structured_content["subscription_id"], "wait_s": 1.0}
        done = []

        async def one():
            done.append(await client.call_tool("get_notifications", wait))

        async with anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(one)
            await anyio.wait_all_tasks_blocked()
            await client.call_tool("list_runs", {})
            before = len(done)
            group.cancel_scope.cancel()
        return before

    assert drive(body) < 17  # as many as wait at a time
