"""Parsl's interchange, for workers on this machine. Run by `htex.py`, never by hand.

Three differences to Parsl's own, all because everything here is one machine:

* It ends when the process that opened the site ends, however that ended.
* It knows that a manager has died from the process table within 0.5 s, where Parsl waits for missed
  heartbeats: minutes by default, and if the limit is low, a laptop that slept is taken for dead.
* It handles all waiting messages before it looks for managers to feed, one per round being Parsl's way.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import zmq
from parsl.executors.high_throughput import interchange as parsl_interchange

from hpcagent.lifeline import birth, watch
from hpcagent.sites.launch import detach

_LOOK_EVERY_S = 0.5
_MESSAGES_A_ROUND = 64


class Interchange(parsl_interchange.Interchange):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's interchange with the three differences above. The `Any`s are Parsl's own structures."""

    _looked = 0.0

    def process_task_incoming(self) -> None:
        """Take up to a round's worth of tasks from the opener."""
        super().process_task_incoming()
        for _ in range(_MESSAGES_A_ROUND):
            if not self.task_incoming.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                return
            self.socks[self.task_incoming] = zmq.POLLIN
            super().process_task_incoming()

    def process_manager_socket_message(self, *state: Any) -> None:
        """Take up to a round's worth of results and registrations."""
        super().process_manager_socket_message(*state)
        for _ in range(_MESSAGES_A_ROUND):
            if not self.manager_sock.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                return
            self.socks[self.manager_sock] = zmq.POLLIN
            super().process_manager_socket_message(*state)

    def expire_bad_managers(self, *state: Any) -> None:
        """Report the tasks of managers whose process has ended as lost."""
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY_S:
            self._looked = now
            for manager in self._ready_managers.values():
                if "pid" in manager and birth(manager["pid"]) != manager["birth"]:
                    manager["last_heartbeat"] = 0.0
            super().expire_bad_managers(*state)


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
    importlib.import_module("hpcagent.sites.interchange").main()
