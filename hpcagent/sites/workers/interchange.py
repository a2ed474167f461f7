"""Parsl's interchange, with eyes for where a run fits. Run by `executor.py`, never by hand.

Differences to Parsl's own:

* It ends when the process that opened the site ends, however that ended.
* A manager on this machine that has died is known from the process table within 0.5 s, where Parsl waits for
  missed heartbeats; one on a node that is being ended says goodbye; one whose job has ended is expired by the
  executor. Heartbeats are left for what goes without a word.
* It handles all waiting messages before it looks for managers to feed, one per round being Parsl's way.
* A run goes only where its cores and GPUs are free and where it ends before the block does. See `room.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zmq
from parsl.app.errors import RemoteExceptionWrapper
from parsl.executors.high_throughput import interchange as parsl_interchange
from parsl.executors.high_throughput.errors import ManagerLost
from parsl.serialize import serialize as serialize_object

from hpcagent.lifeline import birth, end_tree, watch
from hpcagent.sites.launch import detach
from hpcagent.sites.workers.placement import Room
from hpcagent.sites.workers.wire import CANCEL, Cancelled, placed

_LOOK_EVERY_S = 0.5
_SLEPT_S = 5.0
"""A round of the loop that took longer says that this process did not run."""
_FROZEN_S = 120.0
"""A manager on this machine that lives says so every second; one that has not for so long was stopped."""
_MESSAGES_A_ROUND = 64
_PASSED_OVER = 8
"""So often may smaller runs go before one that waits for a larger part of a block; then it is kept free for it."""
_FRESH_S = 5.0
"""So long after its workers have come a block takes runs that want all of its time; see `Room.could`."""
_LOOKED_THROUGH = 2000
"""Waiting tasks looked at in one round, at most."""


class _Words:
    """Where a manager's word of its own arrives: Parsl's channel for monitoring, which is not used here."""

    def __init__(self) -> None:
        self.goodbyes: list[str] = []

    def send(self, payload: Any) -> None:  # Parsl's monitoring messages are tuples
        if isinstance(payload, Mapping) and "goodbye" in payload:
            self.goodbyes.append(payload["goodbye"])


class Interchange(parsl_interchange.Interchange):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's interchange with the differences above. The `Any`s are Parsl's own structures."""

    def __init__(self, **config: Any) -> None:
        self._looked = 0.0
        self._words = _Words()
        self._choosy = False
        self._passed: dict[int, int] = {}
        self._unwanted: set[int] = set()
        super().__init__(**config)

    def _send_monitoring_info(self, monitoring_radio: Any, manager: Any) -> None:
        """Note when a manager came. Nobody listens; Parsl's copies the manager's record for every result."""
        manager.setdefault("came", time.time())

    # --- messages

    def process_task_incoming(self) -> None:
        """Take up to a round's worth of tasks from the opener."""
        super().process_task_incoming()
        for _ in range(_MESSAGES_A_ROUND):
            if not self.task_incoming.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                return
            self.socks[self.task_incoming] = zmq.POLLIN
            super().process_task_incoming()

    def process_manager_socket_message(self, interesting: set[bytes], radio: Any, kill: Any) -> None:
        """Take up to a round's worth of results and registrations."""
        super().process_manager_socket_message(interesting, self._words, kill)
        for _ in range(_MESSAGES_A_ROUND):
            if not self.manager_sock.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                break
            self.socks[self.manager_sock] = zmq.POLLIN
            super().process_manager_socket_message(interesting, self._words, kill)
        while self._words.goodbyes:
            self._lose(self._words.goodbyes.pop().encode(), interesting)

    def process_command(self, radio: Any) -> None:
        """Answer the executor: Parsl's questions, and `STATE`, `EXPIRE`, `RETIRE`, `CANCEL` and `END`."""
        if self.socks.get(self.command_channel) != zmq.POLLIN:
            return
        request = self.command_channel.recv_pyobj()
        answer: Any = None
        if request == "WORKER_BINDS":
            answer = self.worker_port
        elif request == "CONNECTED_BLOCKS":
            answer = self.connected_block_history
        elif request == "MANAGERS":
            answer = [
                {
                    "manager": manager_id.decode(),
                    "block_id": m["block_id"],
                    "worker_count": m["worker_count"],
                    "tasks": len(m["tasks"]),
                    "idle_duration": time.time() - (m["idle_since"] or time.time()),
                    "active": m["active"],
                    "parsl_version": m["parsl_version"],
                    "python_version": m["python_version"],
                    "draining": m["draining"],
                }
                for manager_id, m in self._ready_managers.items()
            ]
        elif request == "STATE":
            answer = self._state()
        elif isinstance(request, tuple) and request[0] == "EXPIRE":
            self._expire(request[1])
        elif isinstance(request, tuple) and request[0] == "RETIRE":
            answer = self._retire(request[1])
        elif isinstance(request, tuple) and request[0] == "CANCEL":
            answer = self._cancel(frozenset(request[1]))
        elif request == "END":
            for manager_id in self._ready_managers:
                self.manager_sock.send_multipart([manager_id, parsl_interchange.PKL_SHUTDOWN_CODE])
            answer = True
        self.command_channel.send_pyobj(answer)

    def _state(self) -> dict[str, Any]:
        """What scaling needs to know: managers by block, and what waits."""
        now = time.time()
        blocks: dict[str, dict[str, Any]] = {}
        for m in self._ready_managers.values():
            about = blocks.setdefault(
                m["block_id"], {"managers": 0, "tasks": 0, "idle_s": float("inf"), "usable": False, "hosts": []}
            )
            about["managers"] += 1
            about["tasks"] += len(m["tasks"])
            about["idle_s"] = min(about["idle_s"], now - m["idle_since"] if m["idle_since"] else 0.0)
            about["hosts"].append(m.get("hostname"))
            about["usable"] |= not m["draining"] and self._usable(m, now)
        return {
            "blocks": blocks,
            "waiting": len(self.pending_task_queue),
            "seen": list(self.connected_block_history),
        }

    def _usable(self, m: Any, now: float) -> bool:
        """Whether any of the waiting tasks could run at this manager, if not now then later."""
        if not self.pending_task_queue:
            return True
        room = _room(m)
        tried: set[tuple[Any, ...]] = set()
        for *_, task in self.pending_task_queue[-_LOOKED_THROUGH:]:
            needs = task["context"].get("needs") or {}
            key = tuple(sorted(needs.items()))
            if key not in tried:
                tried.add(key)
                if room is None or room.could(needs, now):
                    return True
        return False

    def _expire(self, block_id: str) -> None:
        """The job of this block has ended: its managers are gone, whatever their last heartbeat."""
        for manager_id, m in list(self._ready_managers.items()):
            if m["block_id"] == block_id:
                self._lose(manager_id, set())

    def _retire(self, block_id: str) -> bool:
        """Let a block go, unless something has been given to it in the meantime."""
        managers = [m for m in self._ready_managers.values() if m["block_id"] == block_id]
        if any(m["tasks"] for m in managers):
            return False
        for m in managers:
            m["draining"] = True
        return True

    def _cancel(self, unwanted: frozenset[int]) -> bool:
        """Cancel tasks that are at a manager there, and those that wait, or are still to come, here."""
        self._unwanted |= unwanted
        for manager_id, m in self._ready_managers.items():
            theirs = [{"task_id": task_id, CANCEL: True} for task_id in m["tasks"] if task_id in unwanted]
            if theirs:
                self.manager_sock.send_multipart([manager_id, pickle.dumps(theirs)])
                self._unwanted.difference_update(one["task_id"] for one in theirs)
        return True

    def _drop_unwanted(self) -> None:
        """Answer tasks that wait here and are not wanted any more; one may come after the word that it is not."""
        for entry in [entry for entry in self.pending_task_queue if entry[-1]["task_id"] in self._unwanted]:
            self.pending_task_queue.remove(entry)
            task_id = entry[-1]["task_id"]
            self._unwanted.discard(task_id)
            self._fail_task(task_id, Cancelled("The run was cancelled."), {})

    # --- managers that have gone

    def expire_bad_managers(self, interesting: set[bytes], radio: Any) -> None:
        """Report the tasks of managers that have ended as lost."""
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY_S:
            # When this process itself was stopped, or had no processor, what managers said meanwhile still waits.
            slept, self._looked = self._looked and now - self._looked > _SLEPT_S, now
            for manager_id, m in list(self._ready_managers.items()):
                if slept or m.get("beat") != m["last_heartbeat"]:
                    m["beat"], m["heard"] = m["last_heartbeat"], now
                if "pid" not in m:
                    lost = now - m["heard"] > self.heartbeat_threshold
                elif birth(m["pid"]) != m["birth"]:
                    lost = True
                else:
                    lost = now - m["heard"] > _FROZEN_S
                    if lost:
                        # Alive but silent (stopped): it must not come back and go on beside its successor.
                        print(f"manager {m['pid']} has said nothing for {_FROZEN_S:g} s and is ended", flush=True)
                        end_tree(m["pid"])
                if lost:
                    self._lose(manager_id, interesting)

    def _lose(self, manager_id: bytes, interesting: set[bytes]) -> None:
        """As Parsl's, and the message says which block it was."""
        m = self._ready_managers.pop(manager_id, None)
        interesting.discard(manager_id)
        if m is None:
            return
        for task_id in m["tasks"]:
            self._fail_task(task_id, ManagerLost(manager_id, m["hostname"]), {"block_id": m["block_id"]})

    def _fail_task(self, task_id: int, why: Exception, more: Mapping[str, Any]) -> None:
        """Answer a task with an exception, as a worker that raised it would."""
        try:
            raise why
        except Exception:
            error = serialize_object(RemoteExceptionWrapper(*sys.exc_info()))
        self.results_outgoing.send(
            pickle.dumps({"type": "result", "task_id": task_id, "exception": error, **more})
        )

    # --- what goes where

    def process_tasks_to_send(self, interesting: set[bytes], radio: Any) -> None:
        """Give waiting tasks to managers with room for them, the most urgent first."""
        interesting.intersection_update(self._ready_managers)  # those of an expired block are gone
        if self._unwanted:
            self._drop_unwanted()
        if not self._choosy:
            self._choosy = any(m.get("hosts") or m.get("ends_at") for m in self._ready_managers.values())
        if not self._choosy:
            super().process_tasks_to_send(interesting, radio)
            return
        if not (interesting and self.pending_task_queue):
            return
        for manager_id in self.manager_selector.sort_managers(self._ready_managers, interesting)[::-1]:
            m = self._ready_managers[manager_id]
            capacity = m["max_capacity"] - len(m["tasks"])
            if not capacity or not m["active"] or m["draining"]:
                interesting.discard(manager_id)
                continue
            tasks = self._chosen(m, capacity)
            if tasks:
                self.manager_sock.send_multipart([manager_id, pickle.dumps(tasks)])
                self.count += len(tasks)
                m["tasks"].extend(task["task_id"] for task in tasks)
                m["idle_since"] = None

    def _chosen(self, m: Any, capacity: int) -> list[dict[str, Any]]:
        """Take tasks that fit at this manager out of the queue."""
        room, now = _room(m), time.time()
        if room is not None:
            for task_id in [t for t in room.holders() if t not in m["tasks"]]:  # came back, or was lost
                room.give(task_id)
        tasks: list[dict[str, Any]] = []
        entries: list[Any] = []
        no_room: set[tuple[Any, ...]] = set()
        passed: list[int] = []
        m.pop("kept_for", None)
        for entry in reversed(self.pending_task_queue[-_LOOKED_THROUGH:]):
            task = entry[-1]
            task_id, needs = task["task_id"], task["context"].get("needs")
            if room is None or needs is None:
                place = None
            else:
                key = tuple(sorted(needs.items()))
                place = None if key in no_room else room.take(task_id, needs, now)
                if place is None:
                    no_room.add(key)
                    if room.could(needs, now):
                        if self._passed.get(task_id, 0) >= _PASSED_OVER and not self._kept_elsewhere(task_id, m):
                            m["kept_for"] = task_id
                            break  # what becomes free is kept for it
                        passed.append(task_id)
                    continue
            self._passed.pop(task_id, None)
            for waiting in passed:
                self._passed[waiting] = self._passed.get(waiting, 0) + 1
            entries.append(entry)
            tasks.append(placed(task, place) if m.get("room") and place is not None else task)
            if len(tasks) == capacity:
                break
        for entry in entries:
            self.pending_task_queue.remove(entry)
        return tasks

    def _kept_elsewhere(self, task_id: int, here: Any) -> bool:
        """Whether another block is being kept free for the task: one is enough."""
        return any(
            m is not here and m.get("kept_for") == task_id and m["active"] and not m["draining"]
            for m in self._ready_managers.values()
        )


def _room(m: Any) -> Room | None:
    """The manager's room; one without cores to hand out has only an end."""
    if "room" not in m and ("hosts" in m or m.get("ends_at")):
        # Without places to hand out every task fits, if there is time.
        hosts = m.get("hosts")
        m["room"] = (Room if hosts else _Clock)(
            hosts or [{"name": "", "cores": []}],
            m.get("ends_at"),
            lasts_s=m.get("lasts_s"),
            fresh_until=m["came"] + _FRESH_S,
        )
    found: Room | None = m.get("room")
    return found


class _Clock(Room):
    """Room without end for all that ends in time: the workers of the manager have cores of their own."""

    def could(self, needs: Mapping[str, Any], now: float) -> bool:
        """Whether a run would end in time."""
        return self._in_time(needs, now)

    def take(self, task_id: int, needs: Mapping[str, Any], now: float) -> dict[str, Any] | None:
        """An empty place if the run would end in time."""
        return {} if self._in_time(needs, now) else None


def main() -> None:
    """Arguments: the opener's pid and birth, a file for the port, a file for the log, the certificates."""
    opener, born, port_file, log, certificates = sys.argv[1:]
    detach(log)

    def opener_ended() -> None:
        # The opener could not: with kill -9 nobody else is left to remove the secret keys.
        if certificates:
            shutil.rmtree(certificates, ignore_errors=True)
        os._exit(0)

    watch(int(opener), born, opener_ended)
    interchange = Interchange(**pickle.load(sys.stdin.buffer))
    part = Path(f"{port_file}.part")
    part.write_text(str(interchange.worker_port))
    part.rename(port_file)
    with contextlib.suppress(KeyboardInterrupt):
        interchange.start()


if __name__ == "__main__":
    # Not this copy's: what a user's notebook defines is unpickled into __main__, and would replace names here.
    importlib.import_module("hpcagent.sites.workers.interchange").main()
