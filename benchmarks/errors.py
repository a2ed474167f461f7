"""Do +-2 stated errors hold the true value 95 times of 100? For series with a known answer, and for real runs.

The real runs are of LAMMPS: liquid argon of 256 atoms (temperature, pressure, g(r), diffusion, heat capacity, viscous
enough to be correlated) and the solid of the packaged `lj_argon` (energy conservation), each from as many velocity
seeds as asked for. All start from one lattice with one kinetic energy, so all have one energy and the same true
values, which the mean over the seeds stands for (a drift of conserved energy is taken against that mean too).

    python benchmarks/errors.py              the table (about three minutes on two quiet cores)
    python benchmarks/errors.py --seeds 40
    python benchmarks/errors.py --known      only the series with a known answer
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hpcagent as ha
from hpcagent.statistics.timeseries import block_average, fitted_slope, windowed_fluctuation

Series = NDArray[np.float64]
Estimate = tuple[float, float]

LIQUID = """\
variable seed   index 1
units           metal
atom_style      atomic
lattice         fcc 5.79                # 1.374 g/cm^3, Rahman's argon (1964)
region          box block 0 4 0 4 0 4
create_box      1 box
create_atoms    1 box
mass            1 39.948
pair_style      lj/cut 8.5125
pair_coeff      1 1 0.0103 3.405
pair_modify     shift yes
suffix          opt
neighbor        1.0 bin
velocity        all create 250.0 ${seed} mom yes rot yes dist gaussian
fix             nve all nve
thermo_style    custom step time temp ke pe etotal press vol density
thermo_modify   line yaml
thermo          10
timestep        0.005
run             4000
reset_timestep  0 time 0.0
dump            d all custom 10 trajectory.lammpstrj id type element xu yu zu vx vy vz
dump_modify     d sort id element Ar format float %.8g
run             4000
"""
CONTRACT = """\
name = "argon_liquid"
version = "1.0.0"
description = "Liquid argon, 256 atoms, constant energy."
script = "in.argon_liquid"
estimated_runtime_s = 3.0
seed_variables = ["seed"]
metrics = ["temperature", "pressure"]
[structure]
elements = ["Ar"]
[artifacts]
trajectory = "trajectory.lammpstrj"
"""


def autoregressive(n: int, independent: float, rng: np.random.Generator) -> Series:
    """(n,) x_i = phi x_{i-1} + noise that counts as `independent` samples: (1 + phi) / (1 - phi) = n / independent."""
    phi = (n - independent) / (n + independent)
    x = rng.normal(size=n)
    x[0] /= math.sqrt(1 - phi**2)
    for i in range(1, n):
        x[i] += phi * x[i - 1]
    return x


def known(series: int) -> Iterator[tuple[str, float, list[Estimate]]]:
    """What is estimated, its true value, and the estimates from each series."""
    n = 400
    time = np.arange(float(n))

    def of(estimate: Callable[[np.random.Generator], Estimate], *key: int) -> list[Estimate]:
        return [estimate(np.random.default_rng([seed, *key])) for seed in range(series)]

    yield "mean, white noise", 0.0, of(lambda rng: block_average(rng.normal(size=n)))
    for independent in (100, 30, 10, 5):
        found = of(lambda rng, m=independent: block_average(autoregressive(n, m, rng)), independent)  # type: ignore[misc]
        yield f"mean, AR(1), {independent} independent", 0.0, found
    yield "mean of 10, white noise", 0.0, of(lambda rng: block_average(rng.normal(size=10)))
    yield "slope, white noise", 0.0, of(lambda rng: fitted_slope(time, rng.normal(size=n)))
    yield "slope, AR(1), 30 independent", 0.0, of(lambda rng: fitted_slope(time, autoregressive(n, 30, rng)))
    for share in (0.02, 0.1, 0.5):
        found = of(
            lambda rng, s=share: fitted_slope(time, rng.normal(size=n) + s * np.cumsum(rng.normal(size=n))),  # type: ignore[misc]
            1,
        )
        yield f"slope, noise + walk of {share:g} a step", 0.0, found
    yield "slope, random walk", 0.0, of(lambda rng: fitted_slope(time, np.cumsum(rng.normal(size=n))))

    def window(rng: np.random.Generator) -> Estimate:
        energy = 0.01 * rng.normal(size=n) + 1e-3 * np.cumsum(rng.normal(size=n))
        return windowed_fluctuation(energy, rng.normal(size=n), 20)

    # The variance of m samples of a walk about their mean: s^2 (m + 1) / 6.
    yield "fluctuation in windows of 20, walk", math.sqrt(1e-4 + 1e-6 * 21 / 6), of(window)


def measured(seeds: int) -> Iterator[tuple[str, float, list[Estimate]]]:
    """The same of real runs; the true value is the mean over the seeds."""
    found: dict[str, list[Estimate]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ha.open_site("laptop", run_dir=folder):
        script = Path(folder) / "in.argon_liquid"
        script.write_text(LIQUID)
        script.with_name("argon_liquid.toml").write_text(CONTRACT)
        liquid, solid = ha.lammps(script), ha.lammps("lj_argon")
        runs = [liquid(seed=seed) for seed in range(1, seeds + 1)]
        solids = [solid(timestep=0.0097, skin=1.0, accelerator="opt", seed=seed) for seed in range(1, seeds + 1)]
        apps: Mapping[str, Callable[..., object]] = {
            "msd": lambda run: ha.apps.msd(run),
            "vacf": lambda run: ha.apps.vacf(run, length=2.0),
            "rdf": lambda run: ha.apps.rdf(run, bins=100),
            "averages": lambda run: ha.apps.averages(run),
            "heat_capacity": lambda run: ha.apps.heat_capacity(run, ensemble="nve"),
        }
        analyses = {name: [app(run) for run in runs] for name, app in apps.items()}
        for name, futures in {"liquid": runs, "solid, 9.7 fs": solids, **analyses}.items():
            for future in futures:
                result = future.result()  # type: ignore[attr-defined]
                if not result.ok:
                    print(name, result.failure)
                    continue
                for metric, value in result.metrics.items():
                    found[f"{name}: {metric}"].append((value, result.uncertainty.get(metric, math.nan)))
    for name, estimates in found.items():
        if any(math.isfinite(error) for _, error in estimates):
            yield name, float(np.mean([value for value, _ in estimates])), estimates


def show(name: str, true: float, estimates: list[Estimate]) -> None:
    values, errors = np.array(estimates).T
    stated = np.isfinite(errors)
    scatter = values.std(ddof=1)
    covered = np.mean(np.abs(values - true)[stated] <= 2 * errors[stated]) if stated.any() else math.nan
    print(
        f"{name:48} {values.mean():11.4g} {scatter:10.3g} {np.nanmean(errors):10.3g} {100 * covered:6.0f} % "
        f"{100 * stated.mean():5.0f} %",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=24, metavar="N", help="real runs of each kind (24)")
    parser.add_argument("--series", type=int, default=400, metavar="N", help="series with a known answer (400)")
    parser.add_argument("--known", action="store_true", help="only these")
    arguments = parser.parse_args()
    print(f"{'quantity':48} {'mean':>11} {'scatter':>10} {'error':>10} {'+-2':>8} {'stated':>7}")
    for name, true, estimates in known(arguments.series):
        show(name, true, estimates)
    if not arguments.known:
        for name, true, estimates in measured(arguments.seeds):
            show(name, true, estimates)


if __name__ == "__main__":
    main()
