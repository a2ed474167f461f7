"""Contexts: writes per second, replay, and how soon another process hears of a write; writes beside those of SQLite.

python benchmarks/contexts.py [--rounds 5] [--writes 1000] [--folder FOLDER]

SQLite (WAL, synchronous=NORMAL) keeps a document of the same content as one row, and compares and sets its version in an
immediate transaction, so both write the same with the same promise: a crash of the machine may cost the last moment.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from hpcagent.contexts import Contexts, Events, put

FORK = multiprocessing.get_context("fork")


class Database:
    """The same in SQLite."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        self.connection.execute("CREATE TABLE IF NOT EXISTS c (id TEXT PRIMARY KEY, version INT, document TEXT)")
        self.connection.execute("CREATE TABLE IF NOT EXISTS log (version INT, by TEXT, do TEXT)")
        self.connection.execute("INSERT OR IGNORE INTO c VALUES ('c', 0, '{}')")

    def add(self, who: str) -> None:
        """Add one to the document's number, and to the log; again whenever another was quicker."""
        while True:
            version, text = self.connection.execute("SELECT version, document FROM c WHERE id='c'").fetchone()
            document = json.loads(text)
            document["n"] = document.get("n", 0) + 1
            self.connection.execute("BEGIN IMMEDIATE")
            done = self.connection.execute(
                "UPDATE c SET version=?, document=? WHERE id='c' AND version=?",
                (version + 1, json.dumps(document), version),
            ).rowcount
            if done:
                self.connection.execute(
                    "INSERT INTO log VALUES (?, ?, ?)", (version + 1, who, f"n={document['n']}")
                )
            self.connection.execute("COMMIT")
            if done:
                return


def add(context, who: str) -> None:
    context.change(lambda d: put("shared", "n", d.shared.get("n", 0) + 1), by=who)


def ours(folder: Path, who: str, writes: int) -> None:
    context = Contexts(folder / "ours").open("c")
    for _ in range(writes):
        add(context, who)


def theirs(folder: Path, who: str, writes: int) -> None:
    database = Database(folder / "theirs.db")
    for _ in range(writes):
        database.add(who)


def rate(work, folder: Path, processes: int, writes: int) -> float:
    started = time.perf_counter()
    if processes == 1:
        work(folder, "w0", writes)
    else:
        workers = [FORK.Process(target=work, args=(folder, f"w{k}", writes)) for k in range(processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert all(worker.exitcode == 0 for worker in workers)
    return processes * writes / (time.perf_counter() - started)


def writes(folder: Path, rounds: int, count: int) -> None:
    Contexts(folder / "ours").create("c")
    Database(folder / "theirs.db")
    for processes in (1, 8):
        found = [
            (rate(ours, folder, processes, count), rate(theirs, folder, processes, count)) for _ in range(rounds)
        ]
        ratios = [a / b for a, b in found]
        spread = statistics.stdev(ratios) if rounds > 1 else float("nan")
        print(
            f"compare-and-set, {processes} process(es): {statistics.median(a for a, _ in found):.0f} writes/s, SQLite "
            f"{statistics.median(b for _, b in found):.0f}: {statistics.mean(ratios):.2f} +- {spread:.2f} x"
        )
    expected = rounds * 9 * count
    assert Contexts(folder / "ours").view("c").read().shared["n"] == expected


def replay(folder: Path) -> None:
    context = Contexts(folder).create("r")
    for i in range(10_000):
        context.write(put("shared", f"k{i % 100}", {"value": i, "unit": "eV"}), by="planner", version=i + 1)
    size = context.path.stat().st_size
    times = []
    for fresh in (True, False):
        if not fresh:
            (folder / "r.snapshot.json").unlink()
        started = time.perf_counter()
        assert Contexts(folder).view("r").version == 10_001
        times.append(1e3 * (time.perf_counter() - started))
    print(
        f"replay of 10 000 updates ({size / 1e6:.1f} MB): {times[0]:.1f} ms with its snapshot, {times[1]:.0f} ms without"
    )


def answer(folder: Path, count: int) -> None:
    context = Contexts(folder).open("p")
    for update in context.changes(after=1):
        if update.by == "ping":
            context.write(put("shared", "pong", update.version), by="pong", version=update.version)
        if update.version > 2 * count:
            return


def push(folder: Path, count: int) -> None:
    context = Contexts(folder).create("p")
    other = FORK.Process(target=answer, args=(folder, count))
    other.start()
    time.sleep(0.5)
    times = []
    updates = context.changes(after=1)
    for _ in range(count):
        started = time.perf_counter()
        version = context.write(put("shared", "ping", 1), by="ping", version=context.version).version
        while next(updates).version <= version:
            pass
        times.append(1e3 * (time.perf_counter() - started))
    other.join()
    times.sort()
    print(
        f"push, there and back between two processes (two writes): median {statistics.median(times):.2f} ms, 95 of 100 "
        f"within {times[int(0.95 * count)]:.2f} ms"
    )


def idle(folder: Path) -> None:
    context = Contexts(folder).create("i")
    started = time.process_time()
    assert list(context.changes(timeout_s=10)) == []
    print(f"waiting costs {1e3 * (time.process_time() - started) / 10:.2f} ms of CPU a second")


def events(folder: Path, count: int) -> None:
    told = Events(folder / "events")
    mine = told.subscribe("my_event", owner="ada", where={"i": {"at_least": 0}})
    started = time.perf_counter()
    for i in range(count):
        told.tell("my_event", {"i": i}, owner="ada")
    between = time.perf_counter()
    found = sum(1 for _ in told.notifications(mine.subscription_id, owner="ada", timeout_s=0))
    ended = time.perf_counter()
    assert found == count
    print(
        f"events: {count / (between - started):.0f}/s told, {count / (ended - between):.0f}/s taken and acknowledged"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--writes", type=int, default=1000, help="of each process")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="contexts-", dir=arguments.folder))
    writes(folder, arguments.rounds, arguments.writes)
    replay(folder / "replay")
    push(folder / "push", 1000)
    idle(folder / "idle")
    events(folder, 2000)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
