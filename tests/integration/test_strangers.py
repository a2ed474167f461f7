"""Strangers at the ports of a campaign on this machine: what they send changes nothing."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
import time

import psutil
import pytest

import hpcagent as ha
from tests.warm import COLD


@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"})
def slow_square(x):
    import time

    time.sleep(0.2)
    return {"y": x * x}


def ports() -> set[tuple[str, int]]:
    """Where this process and its children listen."""
    me = psutil.Process()
    found: set[tuple[str, int]] = set()
    for process in [me, *me.children(recursive=True)]:
        try:
            listening = process.net_connections("tcp")
        except psutil.Error:
            continue
        found |= {(c.laddr.ip, c.laddr.port) for c in listening if c.status == psutil.CONN_LISTEN}
    return found


# ZMTP 3.0 greetings (https://rfc.zeromq.org/spec/23/): without security, and one that promises CURVE.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"
NULL = GREETING + b"NULL".ljust(20, b"\0") + bytes(32)
CURVE = GREETING + b"CURVE".ljust(20, b"\0") + bytes(32)


class Bomb:
    """Unpickled, it would leave a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self):
        return (open, (self._path, "w"))


def sent(pwned: str) -> list[bytes]:
    pickled = pickle.dumps(Bomb(pwned))
    ready = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    return [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)) * 400,
        pickled,
        NULL + ready + b"\x00" + bytes([len(pickled)]) + pickled,
        CURVE + b"\x04" + bytes([200]) + b"\x05HELLO" + bytes(194),
        NULL + b"\x02" + struct.pack(">Q", 1 << 62),  # a frame of 4 EB
        b"\xff" * 100_000,
    ]


@pytest.mark.slow
def test_strangers_at_every_port_of_a_campaign_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(COLD, "1")  # the interchange, which listens, is a child of this process
    campaign = ha.Campaign(
        slow_square, ha.minimize("y"), space={"x": {}}, until=ha.until.max_runs(24), policy="sobol", batch_size=4
    )
    done = threading.Event()
    tried: dict[tuple[str, int], int] = {}
    held: list[socket.socket] = []

    def attack() -> None:
        before = ports()
        while not done.is_set():
            for place in ports() - before:
                for what in sent(str(tmp_path / "pwned")):
                    try:
                        stranger = socket.create_connection(place, timeout=1)
                        stranger.sendall(what)
                    except OSError:
                        continue
                    tried[place] = tried.get(place, 0) + 1
                    held.append(stranger)  # and never say goodbye
            time.sleep(0.3)

    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    try:
        result = ha.run(campaign, site="laptop", run_dir=tmp_path / "run", workers=2)
    finally:
        done.set()
        thread.join()
        for stranger in held:
            stranger.close()
    assert len(tried) >= 3 and all(number >= 8 for number in tried.values())  # tasks, results, commands
    assert {ip.removeprefix("::ffff:") for ip, _ in tried} == {"127.0.0.1"}
    assert len(result.results) == 24
    assert {r.status for r in result.results} == {"COMPLETED"}
    assert all(r.metrics["y"] == r.manifest.params["x"] ** 2 for r in result.results)
    assert not (tmp_path / "pwned").exists()
