"""What a campaign costs beside raw Parsl: runs/s with full records against no-op tasks/s without any.

Everything is measured in one process, in turn, on the same number of workers. "stock" is Parsl's
HighThroughputExecutor with its own defaults (its debug log on) and a no-op python_app; ours is a campaign
of the `synthetic` app on the site `laptop`: manifest, journal, result and metrics for every run.

Rates depend on what else the machine does, and on the disk of the temporary folder (TMPDIR). What hardly does is
the CPU time for each run of all processes together, which is measured as well: the difference between a long and a
short series, so that starting up does not count (Linux).

`--delayed 1` does the same with every call that opens, makes, renames, looks at or removes a file delayed by 1 ms, in
all processes of both, as on a file system under load (strace's `inject`; Debian's package strace); `--long 20000` is one
campaign of so many runs, its rate by quarter.

    python benchmarks/overhead.py [--runs 1000] [--rounds 3] [--delayed MS] [--long RUNS]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

import hpcagent as ha
from hpcagent.apps.landscape import synthetic

WORKERS = 2
METADATA = (
    "open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,link,linkat,symlink,symlinkat,"
    "stat,lstat,newfstatat,statx,access,faccessat,faccessat2,chmod,fchmodat,getdents64,truncate,utimensat"
)
PR_SET_CHILD_SUBREAPER = 36


def noop(seconds: float) -> float:
    if seconds:
        import time

        time.sleep(seconds)
    return seconds


def stock(runs: int, seconds: float, *, logging: bool) -> tuple[float, float]:
    """Tasks/s of Parsl as it comes, and seconds from load() to the first result."""
    folder = tempfile.mkdtemp(prefix="overhead-")
    python, here = Path(sys.executable).parent, Path(__file__).parent
    executor = HighThroughputExecutor(
        label="htex",
        address="127.0.0.1",
        max_workers_per_node=WORKERS,
        interchange_launch_cmd=[str(python / "interchange.py")],
        provider=LocalProvider(
            init_blocks=1, max_blocks=1, worker_init=f"export PATH={python}:$PATH PYTHONPATH={here}:$PYTHONPATH"
        ),
    )
    began = time.perf_counter()
    with parsl.load(Config(executors=[executor], run_dir=folder, initialize_logging=logging)):
        task = parsl.python_app(noop)
        task(0.0).result()
        first = time.perf_counter() - began
        for future in [task(0.0) for _ in range(50)]:
            future.result()
        began = time.perf_counter()
        for future in [task(seconds) for _ in range(runs)]:
            future.result()
        took = time.perf_counter() - began
    shutil.rmtree(folder, ignore_errors=True)
    return runs / took, first


def ours(runs: int, seconds: float, mode: str) -> tuple[float, float]:
    """Runs/s of a campaign from its first submission to its end, and seconds from start to the first result."""
    folder = tempfile.mkdtemp(prefix="overhead-")
    # The first batch warms the workers up, as the stock tasks before the clock do.
    warm = 50
    campaign = ha.Campaign(
        synthetic,
        ha.maximize("value"),
        space={"x": {}, "y": {}},
        fixed={"run_time_s": seconds},
        policy="random",
        until=ha.until.max_runs(runs + warm),
        mode=mode,
        batch_size=runs // 4 if mode == "batch" else runs,
    )
    times: list[tuple[float, int]] = []
    began = time.perf_counter()

    def watch(event: ha.types.Event) -> None:
        if event.kind == "finished":
            times.append((time.perf_counter(), event.runs))

    ha.run(campaign, site="laptop", run_dir=folder, workers=WORKERS, watch=watch)
    first = times[0][0] - began
    start = next(i for i, (_, n) in enumerate(times) if n >= warm)
    rate = (times[-1][1] - times[start][1]) / (times[-1][0] - times[start][0])
    shutil.rmtree(folder, ignore_errors=True)
    return rate, first


def cpu_s_of(name: str, runs: int) -> float:
    """CPU seconds of a whole series: this process, all it starts, and what those leave behind."""
    script = f"import overhead; overhead.in_child({name!r}, {runs})"
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(found.stdout)


def in_child(name: str, runs: int) -> None:
    """Adopt what is orphaned, so that its CPU time comes here."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if name == "stock":
        stock(runs, 0.0, logging=True)
    else:
        ours(runs, 0.0, name)
    give_up = time.monotonic() + 5
    with contextlib.suppress(ChildProcessError):  # all have ended
        while time.monotonic() < give_up:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(sum(u.ru_utime + u.ru_stime for u in used))


def cpu_us(name: str, runs: int) -> float:
    """CPU microseconds for each further run."""
    few = max(200, runs // 4)
    return 1e6 * (cpu_s_of(name, few + runs) - cpu_s_of(name, few)) / runs


def by_quarter(runs: int, mode: str) -> list[float]:
    """Runs/s in each quarter of a campaign of no-op runs; the first begins with the first result."""
    folder = Path(tempfile.mkdtemp(prefix="overhead-"))
    times: list[tuple[float, int]] = []

    def watch(event: ha.types.Event) -> None:
        if event.kind == "finished":
            times.append((time.perf_counter(), event.runs))

    campaign = ha.Campaign(
        synthetic,
        ha.maximize("value"),
        space={"x": {}, "y": {}},
        policy="random",
        batch_size=500 if mode == "batch" else runs,
        mode=mode,
        until=ha.until.max_runs(runs),
    )
    ha.run(campaign, site="laptop", workers=WORKERS, run_dir=folder / "run", watch=watch)
    shutil.rmtree(folder, ignore_errors=True)
    ends = [next(at for at, n in times if n >= max(1, runs * quarter // 4)) for quarter in range(5)]
    return [runs / 4 / (after - before) for before, after in itertools.pairwise(ends)]


def under_strace(delay_ms: float) -> None:
    """Start this script again, each metadata call of it and of its children delayed."""
    if shutil.which("strace") is None:
        raise SystemExit("--delayed needs strace: sudo apt-get install strace")
    position = sys.argv.index("--delayed")
    words = [*sys.argv[:position], *sys.argv[position + 2 :], "--brief"]
    how = ["-f", "-qqq", "--seccomp-bpf", "-o", os.devnull, "-e", f"trace={METADATA}", "-e", "signal=none"]
    how += ["-e", f"inject={METADATA}:delay_enter={round(1000 * delay_ms)}"]
    print(f"every metadata call of both is delayed by {delay_ms:g} ms", flush=True)
    os.execvp("strace", ["strace", *how, sys.executable, *words])


def round_trip() -> float:
    """Median seconds from submitting one run to its recorded result, nothing else going on."""
    from hpcagent.apps.worker import execute
    from hpcagent.sites.opening import open_site

    folder = Path(tempfile.mkdtemp(prefix="overhead-"))
    took = []
    with open_site("laptop", run_dir=folder, workers=WORKERS, private=True) as site:
        for i in range(300):
            manifest = synthetic.manifest({"x": 0.5}, replicate=i)
            began = time.perf_counter()
            order = synthetic.order(manifest, work=folder / "work", site={"node_cores": 2})
            site.submit(execute, order).result()
            took.append(time.perf_counter() - began)
    shutil.rmtree(folder, ignore_errors=True)
    return statistics.median(took[50:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delayed", type=float, metavar="MS")
    parser.add_argument("--long", type=int, metavar="RUNS")
    parser.add_argument("--brief", action="store_true", help="no-op runs only, beside stock Parsl with its log")
    arguments = parser.parse_args()
    if arguments.delayed:
        under_strace(arguments.delayed)
    if arguments.long:
        for mode in ("batch", "rolling"):
            rates = ", ".join(f"{rate:.0f}" for rate in by_quarter(arguments.long, mode))
            print(f"{arguments.long} no-op runs, {mode}, runs/s in each quarter: {rates}")
        return
    for seconds in (0.0,) if arguments.brief else (0.0, 0.01):
        rates: dict[str, list[float]] = {}
        firsts: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for name, measure in (
                ("stock Parsl", lambda: stock(arguments.runs, seconds, logging=True)),
                ("stock Parsl, its log off", lambda: stock(arguments.runs, seconds, logging=False)),
                ("campaign, batch", lambda: ours(arguments.runs, seconds, "batch")),
                ("campaign, rolling", lambda: ours(arguments.runs, seconds, "rolling")),
            ):
                if arguments.brief and "log off" in name:
                    continue
                rate, first = measure()
                rates.setdefault(name, []).append(rate)
                firsts.setdefault(name, []).append(first)
        base = statistics.median(rates["stock Parsl"])
        print(
            f"\nruns of {seconds * 1000:g} ms, {WORKERS} workers, {arguments.rounds} rounds: median (ratio to stock)"
        )
        for name in rates:
            rate, first = statistics.median(rates[name]), statistics.median(firsts[name])
            print(
                f"  {name:26} {rate:8.0f} runs/s  x{rate / base:4.2f}   first result {first:5.2f} s after the start"
            )
    if arguments.brief:
        return
    if sys.platform.startswith("linux"):
        used = {name: cpu_us(name, arguments.runs) for name in ("stock", "batch", "rolling")}
        print("\nCPU time for each no-op run, all processes together (ratio to stock)")
        for name, each in used.items():
            print(f"  {name:10} {each:7.0f} us  x{used['stock'] / each:4.2f}")
    print(f"\nround trip of one run with full records: {1000 * round_trip():.2f} ms (median of 250)")


if __name__ == "__main__":
    main()
