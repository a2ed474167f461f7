"""How often what an answer says of itself is true: campaigns on functions whose best point is known.

    python benchmarks/coverage.py                             every kind, the seeds of the published table
    python benchmarks/coverage.py --kind barred,unlucky --seeds 9000-9003
    python benchmarks/coverage.py --seeds 100-103 --json coverage.jsonl

A campaign is played with the default policy, run by run, and its answer is judged by the truth without noise:

- `bound`: "most likely no allowed point is better by more than X" is true where best - score(answer) <= X. Beside the
  share of true statements stand the interval in which the true share lies with 95 % (Clopper and Pearson, Biometrika
  26, 404, 1934), the medians of X and of the true shortfall in units of the spread of the allowed values (the 10 % to
  the 90 % quantile of random points), and the median of X over the shortfall where there is one.
- `notable`, `expected`: the stated chance that something is better by 1 %, and the stated mean shortfall, beside what
  was so.
- `P(feasible)`: of the points that were run, by what was stated of them, the share that is allowed in truth.
- `within two ±`: the share of goal values within two of their stated errors, of the models ("expected") and of the runs of a
  point ("measured"), for answers and for all points that were run, of kinds with noise; and the root mean square of value
  less truth over the error.

Kinds that decided how the bound is made are marked `tuned`, with other seeds (100-107, 200-211). The others were never looked
at before. Everything depends on the seeds alone; figures are of one thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from scipy.stats import beta
from threadpoolctl import threadpool_limits

from hpcagent.model.objective import Objective, at_most, maximize
from hpcagent.model.parameter import Choice, Float, Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import make_policy
from hpcagent.statistics.features import Features
from hpcagent.statistics.missed import Missed, missed
from hpcagent.statistics.recommend import estimates, recommend


def _sibling(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


steering = _sibling("steering")
Truth = dict[str, float] | None
WAVES = 512
GRID = 16384
FRESH = (9300, 9311)
BINS = (0.0, 0.5, 0.8, 0.9, 0.97, 1.0)


class Waves:
    """A random function of [0, 1]^d: a draw of a Gaussian process, by random cosines (Rahimi and Recht, NIPS 2007).

    Args:
        rng: What is drawn.
        size: d.
        length: Length scale.
        roughness: nu of the Matern correlation; None is the squared exponential.
    """

    def __init__(self, rng: np.random.Generator, size: int, length: float, roughness: float | None = None) -> None:
        normal = rng.standard_normal((size, WAVES))
        if roughness is not None:
            normal = normal / np.sqrt(rng.chisquare(2 * roughness, WAVES) / (2 * roughness))
        self.frequencies = normal / length
        self.phases = 2 * math.pi * rng.random(WAVES)
        self.heights = rng.standard_normal(WAVES) * math.sqrt(2 / WAVES)

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """`(m,)` values at `(m, d)`."""
        return np.asarray(np.cos(u @ self.frequencies + self.phases) @ self.heights)


class Drawn(steering.Problem):  # type: ignore[misc, name-defined]
    """A random function of numbers in [0, 1], and of a choice where there are `VALUES`, with limits and failures.

    The best point is found by random search that closes in on it, on the truth.
    """

    size: ClassVar[int] = 2
    VALUES: ClassVar[tuple[str, ...]] = ()
    runs: ClassVar[int] = 28
    tuned: ClassVar[bool] = True
    batch: ClassVar[int] = 4
    unlucky: ClassVar[float] = 0.0
    """Chance that a run fails for no reason."""
    fidelity: ClassVar[dict[str, Any] | None] = None
    objective: Objective = maximize("y")

    def setup(self, rng: np.random.Generator) -> None:
        """Draw the goal; kinds draw more."""
        self.values = self.drawn(rng)

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """The goal of `(m, size)` numbers and `(m,)` places of the choice."""
        raise NotImplementedError

    def allowed(self, u: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Where no limit is broken."""
        return np.ones(len(u), dtype=bool)

    def fails(self, u: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Where runs fail."""
        return np.zeros(len(u), dtype=bool)

    def others(self, u: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
        """Further metrics."""
        return {}

    def truth(self, params: Params) -> Truth:
        u = np.array([[float(params[f"x{i}"]) for i in range(self.size)]])
        c = np.array([self.VALUES.index(str(params["kind"])) if self.VALUES else 0])
        if self.fails(u, c)[0]:
            return None
        others = {m: float(v[0]) for m, v in self.others(u, c).items()}
        return {"y": float(self.values(u, c)[0]), **others}

    def run(self, params: Params, *, batch: int, index: int, rng: np.random.Generator) -> Observation:
        struck = rng.random() < self.unlucky
        o: Observation = super().run(params, batch=batch, index=index, rng=rng)
        return Observation(params, completed=False, failure="AppFailed", batch=batch, index=index) if struck else o

    @cached_property
    def best(self) -> float:
        rng = np.random.default_rng([self.seed, 3])
        last = len(self.VALUES) - 1
        chosen = rng.integers(0, last + 1, GRID) if self.VALUES else np.zeros(GRID, dtype=int)
        if self.fidelity is not None:
            chosen[:] = last
        u = rng.random((GRID, self.size))
        ok = self.allowed(u, chosen) & ~self.fails(u, chosen)
        found = np.where(ok, self.values(u, chosen), -np.inf)
        top = np.argsort(-found)[:24]
        u, chosen, found = u[top], chosen[top], found[top]
        for width in 0.1 * 0.75 ** np.arange(40):
            near = np.clip(u[:, None] + width * rng.standard_normal((len(u), 16, self.size)), 0, 1)
            flat, c = near.reshape(-1, self.size), np.repeat(chosen, 16)
            ok = self.allowed(flat, c) & ~self.fails(flat, c)
            values = np.where(ok, self.values(flat, c), -np.inf).reshape(len(u), 16)
            which = values.argmax(1)
            better = values.max(1) > found
            u[better] = near[np.arange(len(u)), which][better]
            found = np.maximum(found, values.max(1))
        return float(found.max())


def numbers(size: int) -> Space:
    """So many numbers."""
    return Space.of(**{f"x{i}": Float(0.0, 1.0) for i in range(size)})


def with_choice(size: int, values: Sequence[str]) -> Space:
    """So many numbers and a choice."""
    return Space.of(**{f"x{i}": Float(0.0, 1.0) for i in range(size)}, kind=Choice(*values))


class Smooth(Drawn):
    """Three numbers, smooth, no noise."""

    name, size, space, runs = "smooth", 3, numbers(3), 24

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        wave = Waves(rng, 3, rng.uniform(0.3, 0.7))
        return lambda u, c: 10 + 3 * wave(u)


class Rough(Drawn):
    """Two numbers, with kinks (Matern 3/2), no noise."""

    name, space = "rough", numbers(2)

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        wave = Waves(rng, 2, rng.uniform(0.2, 0.4), 1.5)
        return lambda u, c: 10 + 3 * wave(u)


class Noisy(Drawn):
    """Two numbers and 20 % of noise."""

    name, space, runs = "noisy", numbers(2), 36
    noisy: ClassVar[Mapping[str, float]] = {"y": 0.2}

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        wave = Waves(rng, 2, rng.uniform(0.3, 0.6), 2.5)
        return lambda u, c: 10 * np.exp(0.5 * wave(u))


class Categories(Drawn):
    """Two numbers and a choice of five, each with a function that half resembles the others; 3 % of noise."""

    name, VALUES = "categories", ("a", "b", "c", "d", "e")
    space = with_choice(2, VALUES)
    noisy: ClassVar[Mapping[str, float]] = {"y": 0.03}
    runs = 36

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        shared = Waves(rng, 2, 0.4)
        own = [Waves(rng, 2, 0.4) for _ in self.VALUES]
        shift = rng.standard_normal(len(self.VALUES))

        def values(u: np.ndarray, c: np.ndarray) -> np.ndarray:
            each = np.column_stack([w(u) for w in own])[np.arange(len(u)), c]
            return np.asarray(20 * np.exp(0.2 * (shared(u) + each + shift[c])))

        return values


class Barred(Drawn):
    """Two numbers and a choice of two; runs fail on one side of a line, beside which the best point may lie."""

    name, VALUES, runs = "barred", ("p", "q"), 40
    space = with_choice(2, VALUES)

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        angle = 2 * math.pi * rng.random()
        self.side = np.array([math.cos(angle), math.sin(angle)])
        self.off = rng.uniform(-0.15, 0.15)
        peaks, shift = rng.random((2, 2)), 1.5 * rng.permutation([0.0, 1.0])
        while (np.abs((peaks - 0.5) @ self.side - self.off) > 0.3).any():
            peaks = rng.random((2, 2))
        slopes, wave = rng.uniform(4, 16, (2, 2)), Waves(rng, 2, 0.5)

        def values(u: np.ndarray, c: np.ndarray) -> np.ndarray:
            return np.asarray(40 - (slopes[c] * (u - peaks[c]) ** 2).sum(1) + shift[c] + 0.5 * wave(u))

        return values

    def fails(self, u: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.asarray((u - 0.5) @ self.side < self.off)


class Unlucky(Barred):
    """The same, and a tenth of the runs fails for no reason."""

    name, unlucky = "unlucky", 0.1


class Short(Drawn):
    """Two numbers and ten runs."""

    name, space, runs = "short", numbers(2), 10

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        wave = Waves(rng, 2, rng.uniform(0.3, 0.7), 2.5)
        return lambda u, c: 10 * np.exp(0.5 * wave(u))


class Limited(Drawn):
    """Three numbers and two limits, 3 % of noise; about a quarter is allowed."""

    name, size, space, runs, tuned = "limited", 3, numbers(3), 36, False
    objective = maximize("y", subject_to={"a": at_most(1.0), "b": at_most(1.0)})
    noisy: ClassVar[Mapping[str, float]] = {"y": 0.03, "a": 0.03, "b": 0.03}

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        wave = Waves(rng, 3, 0.5)
        self.waves = [Waves(rng, 3, 0.5) for _ in range(2)]
        return lambda u, c: 10 * np.exp(0.3 * wave(u))

    def others(self, u: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
        return {m: np.exp(0.5 * w(u)) for m, w in zip("ab", self.waves, strict=True)}

    def allowed(self, u: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.asarray(np.max(list(self.others(u, c).values()), axis=0) <= 1)


class Islands(Drawn):
    """Two numbers and a choice of three; runs fail in a disc, and for one value of the choice at one end."""

    name, VALUES, runs, tuned = "islands", ("u", "v", "w"), 36, False
    space = with_choice(2, VALUES)

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        self.middle, self.radius = rng.uniform(0.2, 0.8, 2), rng.uniform(0.2, 0.4)
        self.bad, self.end = int(rng.integers(3)), rng.uniform(0.3, 0.7)
        wave, shift = Waves(rng, 2, 0.4, 2.5), rng.standard_normal(3)
        return lambda u, c: 30 + 4 * wave(u) + 3 * shift[c]

    def fails(self, u: np.ndarray, c: np.ndarray) -> np.ndarray:
        inside = ((u - self.middle) ** 2).sum(1) < self.radius**2
        return np.asarray(inside | ((c == self.bad) & (u[:, 0] > self.end)))


class Steps(Drawn):
    """Two numbers, with cliffs: a smooth function and three steps across the square, 2 % of noise."""

    name, space, tuned = "steps", numbers(2), False
    noisy: ClassVar[Mapping[str, float]] = {"y": 0.02}

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        wave, walls, places = Waves(rng, 2, 0.4), rng.standard_normal((2, 3)), rng.uniform(0.2, 0.8, (3, 2))
        heights = rng.uniform(-3, 3, 3)

        def values(u: np.ndarray, c: np.ndarray) -> np.ndarray:
            over = np.column_stack([(u - p) @ walls[:, i] > 0 for i, p in enumerate(places)])
            return np.asarray(20 + 3 * wave(u) + over @ heights)

        return values


class Levels(Drawn):
    """Three numbers at two fidelities: the cheap one is off by a smooth function."""

    name, size, VALUES, runs, tuned = "levels", 2, ("cheap", "dear"), 32, False
    space = with_choice(2, VALUES)
    fidelity: ClassVar[dict[str, Any] | None] = {"parameter": "kind", "levels": ["cheap", "dear"]}

    def drawn(self, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        wave, error = Waves(rng, 2, 0.4, 2.5), Waves(rng, 2, 0.4)
        return lambda u, c: 10 + 3 * wave(u) + (c == 0) * error(u)


def _known(name: str, *, runs: int, tuned: bool) -> type[Any]:
    """A problem of `steering.py` as a kind."""
    parent = steering.PROBLEMS[name]
    extra = {"runs": runs, "tuned": tuned, "batch": 4, "fidelity": None, "name": name}
    return type(parent.__name__, (parent,), extra)


KINDS: Mapping[str, type[Any]] = {
    k.name: k
    for k in (
        Smooth,
        Rough,
        Noisy,
        Categories,
        Barred,
        Unlucky,
        Short,
        _known("md", runs=28, tuned=True),
        _known("hartmann6", runs=40, tuned=True),
        _known("mixed", runs=32, tuned=True),
        Limited,
        Islands,
        Steps,
        Levels,
        _known("gardner", runs=32, tuned=False),
        _known("argon", runs=32, tuned=False),
        _known("nacl", runs=32, tuned=False),
    )
}


def play(problem: Any) -> tuple[list[Observation], float]:
    """One campaign with the default policy: its runs, and CPU seconds of the suggestions."""
    options = {} if problem.fidelity is None else {"fidelity": problem.fidelity}
    policy = make_policy("bayes", space=problem.space, objective=problem.objective, seed=problem.seed, **options)
    rng = np.random.default_rng([problem.seed, 2])
    history: list[Observation] = []
    cpu, number = 0.0, 0
    while len(history) < problem.runs:
        began = time.process_time()
        points = policy.suggest(tuple(history), min(problem.batch, problem.runs - len(history)))
        cpu += time.process_time() - began
        if not points:
            break
        for params in points:
            history.append(problem.run(params, batch=number, index=len(history), rng=rng))
        number += 1
    return history, cpu


def counting(problem: Any, history: Sequence[Observation]) -> list[Observation]:
    """The runs of which an answer may be chosen."""
    if problem.fidelity is None:
        return list(history)
    name, last = problem.fidelity["parameter"], problem.fidelity["levels"][-1]
    return [o for o in history if o.params[name] == last]


def spread(problem: Any) -> float:
    """From the 10 % to the 90 % quantile of the goal at random allowed points: what a difference is measured by."""
    rng = np.random.default_rng([problem.seed, 4])
    features = Features(problem.space)
    points = features.points(features.from_cube(rng.random((400, features.size))))
    if problem.fidelity is not None:
        points = [{**p, problem.fidelity["parameter"]: problem.fidelity["levels"][-1]} for p in points]
    true = [t for p in points if (t := problem.truth(p)) is not None]
    kept = [t for t in true if problem.objective.feasible(t)]
    scores = [problem.objective.score(t) for t in (kept if len(kept) >= 20 else true)]
    return float(np.quantile(scores, 0.9) - np.quantile(scores, 0.1))


def stated(problem: Any, history: Sequence[Observation], answer: Params) -> Missed | None:
    """What is said of an answer."""
    held = {}
    if problem.fidelity is not None:
        held = {problem.fidelity["parameter"]: problem.fidelity["levels"][-1]}
    return missed(history, problem.objective, answer, space=problem.space, seed=problem.seed, held=held)


def judged(problem: Any, history: Sequence[Observation]) -> dict[str, Any]:
    """One campaign's statements beside the truth; `shortfall` is None without an answer that is called allowed."""
    objective, seen = problem.objective, counting(problem, history)
    goal = objective.goal.metric
    found = recommend(seen, objective, space=problem.space)
    row: dict[str, Any] = {"kind": problem.name, "seed": problem.seed, "runs": len(history)}
    row["points"] = [
        (e.probability_feasible, (t := problem.truth(e.params)) is not None and objective.feasible(t))
        for e in (estimates(seen, objective, space=problem.space) if objective.constraints else [])
    ]
    row["off"] = [
        (stated_by, bool(found) and e.params == found.params, (value - true[goal]) / error)
        for e in estimates(seen, objective, space=problem.space)
        if (true := problem.truth(e.params)) is not None
        for stated_by, values, errors in (
            ("expected", e.expected, e.expected_error),
            ("measured", e.metrics, e.uncertainty),
        )
        if (value := values.get(goal)) is not None and (error := errors.get(goal, 0.0)) > 0
    ]
    row["shortfall"] = None
    if found is None or not found.feasible:
        return row
    true = problem.truth(found.params)
    assert true is not None  # it completed
    began = time.process_time()
    said = stated(problem, history, found.params)
    row["bound_cpu_s"] = time.process_time() - began
    row |= {
        "shortfall": problem.best - objective.score(true),
        "value": abs(objective.score(true)),
        "spread": spread(problem),
        "p_answer": found.probability_feasible,
        "allowed": objective.feasible(true),
    }
    if said is not None:
        row |= {"bound": said.at_most, "expected": said.expected, "notable": said.notable}
    return row


def campaign(kind: str, seed: int) -> dict[str, Any]:
    """Play and judge one."""
    problem = KINDS[kind](seed)
    history, cpu = play(problem)
    return {**judged(problem, history), "suggest_cpu_s": cpu}


def interval(k: int, n: int) -> tuple[float, float]:
    """The shares that k of n do not contradict at 95 %.

    Example:
        >>> [round(v, 3) for v in interval(48, 50)]
        [0.863, 0.995]
    """
    low = float(beta.ppf(0.025, k, n - k + 1)) if k else 0.0
    high = float(beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0
    return low, high


HEAD = (
    f"{'kind':12}{'tuned':>6}{'n':>5}{'answers':>8}{'true':>8}{'interval %':>12}{'X':>8}{'short':>8}{'X/short':>8}"
    f"{'expected':>9}{'mean':>7}{'notable':>8}{'was':>5}"
)


def line(name: str, rows: Sequence[Mapping[str, Any]], *, tuned: str = "") -> str:
    """A row of the table."""
    said = [r for r in rows if r.get("bound") is not None]
    if not said:
        return f"{name:12}{tuned:>6}{len(rows):5d}   no statement"
    right = sum(r["shortfall"] <= r["bound"] + 1e-9 * r["value"] for r in said)
    low, high = interval(right, len(said))
    short = [max(r["shortfall"], 0.0) for r in said]
    ratios = [r["bound"] / s for r, s in zip(said, short, strict=True) if s > 0]
    chances = [r for r in said if math.isfinite(r["notable"])]
    was = fmean(r["shortfall"] > 0.01 * r["value"] for r in chances) if chances else math.nan
    notable = fmean(r["notable"] for r in chances) if chances else math.nan
    return (
        f"{name:12}{tuned:>6}{len(rows):5d}{len(said):8d}{right:5d}/{len(said):<3d}{100 * low:6.0f}-{100 * high:<5.0f}"
        f"{median(r['bound'] / r['spread'] for r in said):7.3f}"
        f"{median(s / r['spread'] for s, r in zip(short, said, strict=True)):8.3f}"
        f"{median(ratios) if ratios else math.nan:8.1f}"
        f"{fmean(r['expected'] / r['spread'] for r in said):9.3f}"
        f"{fmean(s / r['spread'] for s, r in zip(short, said, strict=True)):7.3f}{notable:8.2f}{was:5.2f}"
    )


def calibration(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """P(feasible) as stated and as it was, for all points that were run and for the answers."""
    kinds: dict[str, list[tuple[float, bool]]] = {"points run": [tuple(p) for r in rows for p in r["points"]]}
    kinds["answers"] = [(r["p_answer"], r["allowed"]) for r in rows if r["shortfall"] is not None and r["points"]]
    lines = [f"{'P(feasible) of':16}{'from':>6}{'to':>6}{'n':>6}{'stated':>8}{'allowed':>9}"]
    for name, pairs in kinds.items():
        for low, high in pairwise(BINS):
            there = [(p, a) for p, a in pairs if low <= p < high or (high == 1.0 and p == 1.0)]
            if there:
                says, was = fmean(p for p, _ in there), fmean(a for _, a in there)
                lines.append(f"{name:16}{low:6.2f}{high:6.2f}{len(there):6d}{says:8.3f}{was:9.3f}")
    return lines


def errors_held(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How often two stated errors held the truth, of kinds whose runs have noise."""
    lines = [f"{'within two ± of':20}{'n':>7}{'held':>8}{'interval %':>12}{'rms':>7}"]
    for stated_by in ("expected", "measured"):
        for name, only_answer in (("answers", True), ("points", False)):
            off = [
                z for r in rows for by, is_answer, z in r["off"] if by == stated_by and is_answer >= only_answer
            ]
            if off:
                held = sum(abs(z) <= 2 for z in off)
                low, high = interval(held, len(off))
                rms = math.sqrt(fmean(z * z for z in off))
                lines.append(
                    f"{f'{stated_by}, {name}':20}{len(off):7d}{held / len(off):8.3f}{100 * low:6.0f}-{100 * high:<5.0f}{rms:7.2f}"
                )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def names(text: str) -> list[str]:
        wrong = [n for n in text.split(",") if n not in KINDS]
        if wrong:
            raise argparse.ArgumentTypeError(f"unknown kind {wrong[0]!r}; known: {', '.join(KINDS)}")
        return text.split(",")

    parser.add_argument("--kind", type=names, default=list(KINDS), help=", ".join(KINDS))
    parser.add_argument("--seeds", default=f"{FRESH[0]}-{FRESH[1]}", metavar="A-B")
    parser.add_argument("--json", type=Path, help="write every campaign to this file")
    options = parser.parse_args(arguments)
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    threadpool_limits(1)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    began, rows = time.process_time(), []
    print(HEAD)
    for kind in options.kind:
        found = [campaign(kind, seed) for seed in seeds]
        print(line(kind, found, tuned="yes" if KINDS[kind].tuned else "no"), flush=True)
        rows += found
        if options.json:
            options.json.write_text("".join(json.dumps(r) + "\n" for r in rows))
    for label, part in (("tuned", True), ("not tuned", False)):
        chosen = [r for r in rows if KINDS[r["kind"]].tuned is part]
        if chosen:
            print(line(label, chosen))
    print(line("all", rows))
    print("\n".join(calibration(rows)))
    print("\n".join(errors_held([r for r in rows if KINDS[r["kind"]].noisy])))
    bounds = [r["bound_cpu_s"] for r in rows if "bound_cpu_s" in r]
    if bounds:
        print(f"{median(bounds):.2f} CPU-s a statement (most {max(bounds):.2f}); ", end="")
    print(f"{time.process_time() - began:.0f} CPU-s in all")


if __name__ == "__main__":
    main()
