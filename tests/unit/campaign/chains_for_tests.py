"""Chains that the tests of chains run; in a module, because an interrupted campaign has to import them again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import hpcagent as ha


@ha.app(parameters={"x": ha.Float(0, 10)}, metrics={"y": "1"}, seeded=False)
def square(x, run):
    """x squared; leaves a mark for each time it really ran; fails above 9, loses its machine at 8.5 the first time."""
    with (run.workdir.parent.parent / "ran").open("a") as file:
        file.write(f"{x:g}\n")
    if x > 9:
        raise ha.AppFailed(f"x={x:g} is too large.", name="TooLarge", repair="x <= 9", log_tail="the last line")
    if x == 8.5 and not (run.workdir.parent.parent / "lost").exists():
        (run.workdir.parent.parent / "lost").touch()
        raise ha.AppFailed("the machine is gone.", name="FileSystemGone", kind="infrastructure")
    time.sleep(float(os.environ.get("SQUARE_S", "0")))
    return ha.Outcome(metrics={"y": x * x}, uncertainty={"y": 0.1}, artifacts={"mark": "mark.txt"})


@ha.app(inputs=("runs...",), metrics={"total": "1"}, seeded=False)
def total(run):
    """The sum of its inputs' y."""
    (run.workdir / "total.txt").write_text("here\n")
    return ha.Outcome(
        metrics={"total": sum(u["metrics"]["y"] for u in run.upstream)}, artifacts={"table": "total.txt"}
    )


@ha.chain(parameters={"n": ha.Int(1, 9), "add": ha.Int(0, 9, default=0)}, metrics={"total": "1"})
def sum_of_squares(n, add):
    """1 + 4 + ... + n^2 (+ (add + 0.5)^2)."""
    return total(*[square(x=float(i)) for i in range(1, n + 1)], *([square(x=add + 0.5)] if add else []))


@ha.chain(parameters={"n": ha.Int(1, 9)}, metrics={"total": "1", "last": "1", "half": "1"})
def nested(n):
    """A chain in a chain, and a run that depends on a result."""
    whole = sum_of_squares(n=n)
    last = square(x=float(n))
    half = square(x=whole.result()["total"] / 100)
    return {"total": whole["total"], "last": last["y"], "half": half["y"]}


@ha.chain(parameters={"x": ha.Float(0, 10)}, metrics={"y": "1"})
def careful(x):
    """Goes on with another run where the first one fails."""
    first = square(x=x).result()
    return first if first.ok else square(x=1.0)


@ha.app(inputs=("run",), metrics={"scaled": "1"}, seeded=False)
def halved(run):
    """Half of its input's y."""
    return {"scaled": run.upstream[0]["metrics"]["y"] / 2}


@ha.chain(parameters={"x": ha.Float(0, 10)}, metrics={"scaled": "1"})
def half_square(x):
    """A run whose input may fail."""
    return halved(square(x=x))


@ha.app(parameters={"x": ha.Float(0, 10)}, metrics={"y": "1"})
def noisy(x, run):
    """Depends on seed and replicate."""
    return {"y": x + run.seed + 100 * run.replicate}


@ha.chain(parameters={"x": ha.Float(0, 10)}, metrics={"y": "1", "exact": "1"})
def noisy_chain(x):
    """One part that depends on the seed, one that does not."""
    return {"y": noisy(x=x)["y"], "exact": square(x=x)["y"]}


def ran(folder: Path) -> list[str]:
    """Arguments of `square` in the order in which it really ran."""
    path = folder / "ran"
    return path.read_text().split() if path.exists() else []
