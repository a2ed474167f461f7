"""How busy a campaign keeps its workers, beside stock Parsl and beside what is possible at all.

Run times are log-normal (sigma 1), the same draw for all ways of one line. Utilisation is the sum of the run times
over workers x (last end - first start), so what every run has to wait for counts, and the start of the site does
not. "ideal" is list scheduling of the same draw: the next run starts the moment that a worker is free.

barrier      a batch as large as the number of workers, which is waited for
batch 4x     four times that: the default
rolling      the next is suggested whenever one ends
slow policy  rolling, with a policy that takes 0.25 s for every suggestion
stock Parsl  the same run times as python_apps on its HighThroughputExecutor, all submitted at once

2 and 8 workers are real processes that sleep (8 also on fewer cores); 64 are simulated: the decisions are those of
`hpcagent.campaign.rolling`, which the coordinator takes too, and between them the way there and back takes 2 ms.

    python benchmarks/utilisation.py [--seeds 1] [--short]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import hpcagent as ha
from hpcagent.apps.decorator import app
from hpcagent.campaign.rolling import due, in_flight
from hpcagent.model.parameter import Int
from hpcagent.policies.sweeps import Grid

TIMES = "HPCAGENT_BENCHMARK_TIMES"
WAY_S = 0.002
SLOW_S = 0.25


def draw(runs: int, mean_s: float, seed: int) -> list[float]:
    """Log-normal run times whose mean is that of the draw itself."""
    times = np.random.default_rng(seed).lognormal(0.0, 1.0, runs)
    return [float(t) for t in times * mean_s / times.mean()]


def ideal(times: Sequence[float], workers: int) -> float:
    """Utilisation of list scheduling."""
    free = [0.0] * workers
    for t in times:
        heapq.heappush(free, heapq.heappop(free) + t)
    return sum(times) / (workers * max(free))


def ideal_batches(times: Sequence[float], workers: int, size: int) -> float:
    """Utilisation of list scheduling that waits for every batch."""
    total = 0.0
    for first in range(0, len(times), size):
        batch = times[first : first + size]
        total += sum(batch) / (workers * ideal(batch, workers))
    return sum(times) / (workers * total)


@app(
    metrics={"value": "1"},
    parameters={"k": Int(0, 9999, description="which of the drawn run times")},
    estimated_runtime_s=0.1,
)
def sleeper(k: int) -> dict[str, float]:
    """Sleep as long as the k-th run of the draw."""
    time.sleep(_times()[k])
    return {"value": 0.0}


def _times(known: list[list[float]] = []) -> list[float]:  # noqa: B006  (read once for each worker)
    if not known:
        known.append([float(t) for t in Path(os.environ[TIMES]).read_text().split()])
    return known[0]


class InOrder(Grid):
    """Run 0, 1, 2, ..., so that every way has the same runs in the same order."""

    def __init__(self, *, delay_s: float = 0.0, runs: int, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self._delay_s, self._runs = delay_s, runs

    def suggest(self, history, n, pending=()):  # type: ignore[no-untyped-def]
        time.sleep(self._delay_s)
        begun = len(history) + len(pending)
        return [{"k": k} for k in range(begun, min(begun + n, self._runs))]


def nothing() -> float:
    return time.time()


def utilised(spans: Sequence[tuple[float, float]], workers: int) -> float:
    """Of (start, end) of each run."""
    begin, end = min(s for s, _ in spans), max(e for _, e in spans)
    return sum(e - s for s, e in spans) / (workers * (end - begin))


def ours(times: Sequence[float], workers: int, *, mode: str, size: int, delay_s: float = 0.0) -> float:
    """Utilisation of a campaign."""
    folder = Path(tempfile.mkdtemp(prefix="utilisation-"))
    (folder / "times").write_text("\n".join(map(repr, times)))
    os.environ[TIMES] = str(folder / "times")
    campaign = ha.Campaign(
        sleeper,
        ha.maximize("value"),
        space={"k": {}},
        policy={"name": f"{InOrder.__module__}:InOrder", "delay_s": delay_s, "runs": len(times)},
        until=ha.until.max_runs(len(times)),
        mode=mode,
        batch_size=size,
    )
    with ha.open_site("laptop", run_dir=folder / "site", workers=workers, private=True) as site:
        for future in [site.submit(nothing) for _ in range(4 * workers)]:
            future.result()
        result = ha.run(campaign, site=site, run_dir=folder / "run")
    spans = [(r.started_at, r.ended_at) for r in result.results]
    assert len(spans) == len(times) and all(r.ok for r in result.results)
    shutil.rmtree(folder, ignore_errors=True)
    return utilised(spans, workers)


def sleep_and_tell(seconds: float) -> tuple[float, float]:
    import time

    began = time.time()
    time.sleep(seconds)
    return began, time.time()


def stock(times: Sequence[float], workers: int) -> float:
    """Utilisation of Parsl's HighThroughputExecutor as it comes."""
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    folder = tempfile.mkdtemp(prefix="utilisation-")
    python = Path(sys.executable).parent
    here = Path(__file__).parent
    executor = HighThroughputExecutor(
        label="htex",
        address="127.0.0.1",
        max_workers_per_node=workers,
        cores_per_worker=1e-6,  # otherwise it starts no more workers than there are cores
        interchange_launch_cmd=[str(python / "interchange.py")],
        provider=LocalProvider(
            init_blocks=1, max_blocks=1, worker_init=f"export PATH={python}:$PATH PYTHONPATH={here}:$PYTHONPATH"
        ),
    )
    with parsl.load(Config(executors=[executor], run_dir=folder, usage_tracking=0)):
        task = parsl.python_app(sleep_and_tell)
        for future in [task(0.01) for _ in range(8 * workers)]:
            future.result()
        spans = [future.result() for future in [task(t) for t in times]]
    shutil.rmtree(folder, ignore_errors=True)
    return utilised(spans, workers)


def simulated(times: Sequence[float], workers: int, *, rolling: bool, size: int, delay_s: float = 0.0) -> float:
    """Utilisation of a site that is not there, by the decisions of the coordinator."""
    now, count = 0.0, itertools.count()
    events: list[tuple[float, int, str, int]] = []
    queue: list[int] = []
    free, planned, running = workers, 0, 0
    walls: list[float] = []
    spans: list[tuple[float, float]] = []
    asked = 0

    def plan(n: int) -> None:
        nonlocal planned, running
        for _ in range(min(n, len(times) - planned)):
            heapq.heappush(events, (now + WAY_S / 2, next(count), "there", planned))
            planned, running = planned + 1, running + 1

    def think() -> None:
        nonlocal asked
        if not rolling:
            if not running:
                plan(size)
            return
        recent = walls[-32:]
        known = delay_s if planned else 0.0
        limit = in_flight(workers, sum(recent) / len(recent) if recent else None, known)
        n = min(due(limit, running, workers), len(times) - planned)
        if n > 0 and not asked:
            asked = n
            heapq.heappush(events, (now + max(delay_s, 0.001), next(count), "suggested", n))

    think()
    while events:
        now, _, kind, k = heapq.heappop(events)
        if kind == "suggested":
            plan(asked)
            asked = 0
        elif kind == "there":
            queue.append(k)
        elif kind == "ended":
            free += 1
            heapq.heappush(events, (now + WAY_S / 2, next(count), "told", k))
        else:
            running -= 1
            walls.append(times[k])
        while free and queue:
            k = queue.pop(0)
            free -= 1
            spans.append((now, now + times[k]))
            heapq.heappush(events, (now + times[k], next(count), "ended", k))
        think()
    return utilised(spans, workers)


def line(name: str, found: Sequence[float], best: Sequence[float]) -> None:
    ratio = statistics.mean(f / b for f, b in zip(found, best, strict=True))
    print(
        f"  {name:18} {statistics.mean(found):6.3f}   ideal {statistics.mean(best):5.3f}   of it {ratio:5.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="only mean 100 ms")
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    cases = [(0.1, 2, 80), (0.1, 8, 320), (1.0, 2, 20), (1.0, 8, 48)]
    for mean_s, workers, runs in cases[:2] if arguments.short else cases:
        draws = [draw(runs, mean_s, seed) for seed in seeds]
        best = [ideal(times, workers) for times in draws]
        print(f"\n{runs} runs of mean {1000 * mean_s:g} ms, {workers} workers (real), {len(draws)} draw(s)")
        for (
            name,
            size,
        ) in (("barrier", workers), ("batch 4x", 4 * workers)):
            found = [ours(times, workers, mode="batch", size=size) for times in draws]
            line(name, found, [ideal_batches(times, workers, size) for times in draws])
        line("rolling", [ours(t, workers, mode="rolling", size=4 * workers) for t in draws], best)
        slow = [ours(t, workers, mode="rolling", size=4 * workers, delay_s=SLOW_S) for t in draws]
        line("slow policy", slow, best)
        line("stock Parsl", [stock(times, workers) for times in draws], best)
    for mean_s in (0.1, 1.0):
        workers, runs = 64, 2560
        draws = [draw(runs, mean_s, seed) for seed in range(10)]
        best = [ideal(times, workers) for times in draws]
        print(f"\n{runs} runs of mean {1000 * mean_s:g} ms, {workers} workers (simulated), {len(draws)} draws")
        for name, size in (("barrier", workers), ("batch 4x", 4 * workers)):
            found = [simulated(times, workers, rolling=False, size=size) for times in draws]
            line(name, found, [ideal_batches(times, workers, size) for times in draws])
        for name, delay_s in (("rolling", 0.0), ("slow policy", SLOW_S)):
            line(name, [simulated(t, workers, rolling=True, size=0, delay_s=delay_s) for t in draws], best)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    # By its own name, so that the workers find what it defines.
    from utilisation import main as start

    start()
