"""What the engine costs: stock Parsl against a site of ours, interleaved, on this machine.

    python benchmarks/engine.py [--tasks 1000] [--rounds 5] [--starts 3] [--workers 2]

Stock is Parsl's HighThroughputExecutor with a LocalProvider as its manual has it, everything at its default,
called through `python_app`. Ours is the profile `laptop`, called through `Site.submit` as the coordinator
does, and through `python_app` as a user does. The task copies a dict of about 400 bytes and returns it.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

RECORD = {f"parameter_{i}": i * 1.1 for i in range(16)}  # 400 bytes as JSON

STARTS = {
    "stock": """
import sys, time, json, copy
t = [time.perf_counter()]
import parsl
t.append(time.perf_counter())
from benchmark_engine import stock
parsl.load(stock(sys.argv[1], int(sys.argv[2])))
t.append(time.perf_counter())
parsl.python_app(copy.copy)({}).result()
t.append(time.perf_counter())
parsl.dfk().cleanup()
t.append(time.perf_counter())
print(json.dumps(t))
""",
    "ours": """
import sys, time, json, copy
t = [time.perf_counter()]
from hpcagent.sites import open_site
import parsl
t.append(time.perf_counter())
site = open_site("laptop", run_dir=sys.argv[1], workers=int(sys.argv[2]))
t.append(time.perf_counter())
site.submit(copy.copy, {}).result()
t.append(time.perf_counter())
site.close()
t.append(time.perf_counter())
print(json.dumps(t))
""",
}


def stock(run_dir: str, workers: int) -> Any:  # parsl.Config
    """Parsl's configuration as its manual has it for one machine."""
    import parsl
    from parsl.providers import LocalProvider

    return parsl.Config(
        executors=[
            parsl.HighThroughputExecutor(
                max_workers_per_node=workers, provider=LocalProvider(init_blocks=1, max_blocks=1)
            )
        ],
        run_dir=run_dir,
    )


def starts(repeats: int, workers: int, folder: Path) -> None:
    """Print the phases from a new Python to its first result and back, medians over `repeats`."""
    (folder / "benchmark_engine.py").write_text(Path(__file__).read_text())
    print(f"\nStart, s (median of {repeats})      import    open  first result    close   import to result")
    totals = {}
    for kind in STARTS:
        phases = []
        for _ in range(repeats):
            answer = subprocess.run(
                [sys.executable, "-c", STARTS[kind], str(folder / kind), str(workers)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
                capture_output=True,
                text=True,
                check=True,
            )
            t = json.loads(answer.stdout.splitlines()[-1])
            phases.append([b - a for a, b in pairwise(t)] + [t[3] - t[0]])
        middle = [median(column) for column in zip(*phases, strict=True)]
        totals[kind] = middle[-1]
        print(
            f"  {kind:<24} {middle[0]:9.2f} {middle[1]:7.2f} {middle[2]:13.2f} {middle[3]:8.2f} {middle[4]:18.2f}"
        )
    print(f"  ratio {totals['stock'] / totals['ours']:.1f}")


def rate(call: Callable[[dict[str, float]], Future[Any]], tasks: int) -> float:
    """Return tasks per second when all are sent at once."""
    began = time.perf_counter()
    for future in [call(RECORD) for _ in range(tasks)]:
        future.result()
    return tasks / (time.perf_counter() - began)


def round_trip(call: Callable[[dict[str, float]], Future[Any]], tasks: int = 50) -> float:
    """Return the median time from sending one task to its result, ms."""
    times = []
    for _ in range(tasks):
        began = time.perf_counter()
        call(RECORD).result()
        times.append(time.perf_counter() - began)
    return median(times) * 1e3


def rates(rounds: int, tasks: int, workers: int, folder: Path) -> None:
    """Print rates and round trips, the engines taking turns."""
    import parsl

    from hpcagent.sites import open_site

    with open_site("laptop", run_dir=folder, workers=workers, private=True) as site:
        ours = parsl.python_app(copy.copy, data_flow_kernel=site.dfk)
        # Loaded second: Parsl's debug log is for the whole process, and would slow ours down as well.
        kernel = parsl.DataFlowKernel(stock(str(folder / "stock"), workers))
        theirs = parsl.python_app(copy.copy, data_flow_kernel=kernel)
        calls: dict[str, Callable[[dict[str, float]], Future[Any]]] = {
            "stock, python_app": theirs,
            "ours, python_app": ours,
            "ours, Site.submit": lambda record: site.submit(copy.copy, record),
        }
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for call in calls.values():
            call(RECORD).result()
        log = logging.getLogger("parsl")
        for _ in range(rounds):
            for name, call in calls.items():
                log.setLevel(logging.DEBUG if call is theirs else logging.WARNING)
                measured[name].append((rate(call, tasks), round_trip(call)))
        kernel.cleanup()
    base = median(r for r, _ in measured["stock, python_app"])
    print(f"\n{workers} workers, {rounds} rounds of {tasks} tasks, medians    tasks/s    ratio   round trip, ms")
    for name, values in measured.items():
        per_second = median(r for r, _ in values)
        print(f"  {name:<40} {per_second:12.0f} {per_second / base:8.2f} {median(t for _, t in values):16.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    # Stock Parsl starts its processes by bare name.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        starts(args.starts, args.workers, Path(folder))
        rates(args.rounds, args.tasks, args.workers, Path(folder))


if __name__ == "__main__":
    main()
