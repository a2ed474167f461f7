"""Molecular dynamics with any engine, by ASE's integrators."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcagent.apps.decorator import app
from hpcagent.apps.ending import Limit
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Parameter
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.isolated import FAILURE_MODES, run_isolated
from hpcagent.science.engines.task import (
    FILES,
    GPUS,
    MACHINE_LEARNED,
    RESOURCES_FROM_GPUS,
    SETTINGS,
    counts,
    keep_structure,
    largest,
    pressure_gpa,
    three_periods,
)
from hpcagent.science.engines.watched import Watch, attached
from hpcagent.statistics.timeseries import (
    block_average,
    fitted_slope,
    fluctuation_ratio,
    windowed_fluctuation,
)

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["DYNAMICS", "mlip_md"]

TRAJECTORY = "md.traj"
THERMO = "thermo.csv"
PROTOCOL = "md.json"
COLUMNS = (
    "time_ps",
    "temperature_K",
    "epot_eV",
    "ekin_eV",
    "etot_eV",
    "econserved_eV",
    "volume_A3",
    "pressure_GPa",
)
"""Columns of thermo.csv; the last three are empty where there is no such thing."""

# Beyond these nothing is left of a structure: a sound run at 5000 K stays far below both.
_HOTTEST = 10.0
_HOTTEST_OFFSET_K = 2000.0
_LARGEST_FORCE = 1000.0
_AMU_PER_A3 = 1.66053906660  # g/cm^3

DYNAMICS: dict[str, Parameter] = {
    "ensemble": Choice(
        "nvt", "nve", "npt", default="nvt", description="of the steps that are measured; npt scales the whole cell"
    ),
    "thermostat": Choice(
        "langevin",
        "bussi",
        "nose_hoover_chain",
        default="langevin",
        description="of nvt, and of the equilibration before nve; npt has a Nose-Hoover chain",
    ),
    "temperature": Float(1e-3, 20000.0, unit="K", default=300.0, description="of the start and of the thermostat"),
    "pressure_gpa": Float(-100.0, 1000.0, unit="GPa", default=0.0, description="of the barostat"),
    "timestep": Float(0.01, 20.0, unit="fs", log=True, default=1.0, description="of the integrator"),
    "steps": Int(1, 100_000_000, default=1000, description="steps that are measured"),
    "equilibration_steps": Int(0, 100_000_000, default=0, description="steps before them, that are not"),
    "friction": Float(1e-5, 1.0, unit="1/fs", log=True, default=0.01, description="of the Langevin thermostat"),
    "thermostat_time": Float(
        1.0, 1e5, unit="fs", log=True, default=100.0, description="time constant of the other thermostats"
    ),
    "barostat_time": Float(
        1.0, 1e6, unit="fs", log=True, default=1000.0, description="time constant of the barostat"
    ),
    "velocities": Choice(
        "new",
        "keep",
        default="new",
        description="`keep`: those of the input structure, if it has some, so that runs can follow one another",
    ),
    "sample_every": Int(1, 1_000_000, default=10, description="steps between rows of thermo.csv"),
    "every": Int(1, 10_000_000, default=100, description="steps between frames of the trajectory"),
}
"""Parameters of the dynamics."""


@app(
    name="mlip_md",
    version="1.0.0",
    inputs=("structure",),
    parameters=MACHINE_LEARNED | DYNAMICS | GPUS,
    metrics={
        name: Metric(name=name, unit=unit, description=description, required=required)
        for name, unit, description, required in (
            ("temperature", "K", "mean of 2 K / (k_B times the degrees of freedom)", True),
            ("potential_energy", "eV/atom", "mean potential energy", True),
            ("kinetic_energy", "eV/atom", "mean kinetic energy", True),
            ("pressure", "GPa", "mean pressure with its kinetic part, where the engine has stress", False),
            ("volume", "angstrom^3", "mean volume, for three periodic directions", False),
            ("density", "g/cm^3", "mean density, for three periodic directions", False),
            (
                "energy_drift_mev_per_atom_ns",
                "meV/atom/ns",
                "slope of the conserved energy; none with a Langevin thermostat, which conserves nothing",
                False,
            ),
            (
                "energy_fluctuation_1ps",
                "1",
                "rms of the conserved energy divided by that of the kinetic energy, within windows of 1 ps; grows "
                "as the timestep squared",
                False,
            ),
            ("energy_fluctuation_run", "1", "the same over the whole run, with which it can grow", False),
            ("energy_fluctuation", "1", "old name of energy_fluctuation_run", False),
            ("max_force", "eV/angstrom", "largest force on an atom in the sampled steps", True),
            ("simulated_ps", "ps", "time that was measured", True),
            ("n_samples", "1", "rows of thermo.csv that were measured", True),
            ("n_atoms", "1", "number of atoms", True),
            ("steps_per_s", "1/s", "steps per second of wall time, those of the equilibration included", True),
            ("scf_steps", "1", "SCF steps in all; 0 without an SCF", True),
            ("n_repairs", "1", "repairs that were needed to make an SCF converge", True),
        )
    },
    resources_from=RESOURCES_FROM_GPUS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=60.0,
    failure_modes=(*FAILURE_MODES, "NonNumeric", "Exploded", "MissingFile", "NoDevice"),
)
def mlip_md(run: Run, **params: Any) -> Outcome:
    """Molecular dynamics with a machine-learned potential, or with any other engine.

    Starting velocities are drawn from the Maxwell-Boltzmann distribution, without motion of the centre of mass;
    every run has its own (from its execution id), the same run the same ones. Integrators are ASE's: velocity
    Verlet (nve), Langevin (E. Vanden-Eijnden and G. Ciccotti, doi:10.1016/j.cplett.2006.07.086), stochastic
    velocity rescaling (G. Bussi, D. Donadio and M. Parrinello, doi:10.1063/1.2408420), Nose-Hoover chains (G. J.
    Martyna et al., doi:10.1063/1.463940) and, for npt, isotropic Martyna-Tobias-Klein (doi:10.1063/1.467468). All
    of them count 3 N - 3 degrees of freedom, as many as there are.

    Errors of means are those of correlated series (`hpcagent.statistics.timeseries`). Failures beside those of
    the engine: `Exploded` (a temperature or a force beyond sense), `NonNumeric`.

    Artifacts: `trajectory` (ASE, with energies and forces), `thermo` (CSV, units in its header), `protocol` (what
    was done: ensemble, thermostat and its constants, timestep, engine, checkpoint), `structure` (the last one,
    with velocities), `scf` (with an SCF).
    """
    return run_isolated(_dynamics, run, **params)


def _dynamics(run: Run, **params: Any) -> Outcome:
    atoms, watch = attached(run, Level.of(params, run.settings))
    _check(atoms, params)
    notes = []
    if params["velocities"] == "new" or not atoms.has("momenta"):
        if params["velocities"] == "keep":
            notes.append("the input structure has no velocities; new ones were drawn")
        _draw_velocities(atoms, params["temperature"], run)
    recorder = _Recorder(run, atoms, watch, params)
    try:
        dynamics, protocol = _equilibrated(run, atoms, params, recorder)
        _write_protocol(run, protocol, params, watch, recorder)
        recorder.measure(dynamics, params["steps"])
    finally:
        recorder.close()
        atoms.set_constraint(recorder.constraints)
        files = watch.close()
    metrics, uncertainty = recorder.metrics()
    return Outcome(
        metrics=metrics | counts(watch),
        uncertainty=uncertainty,
        artifacts=keep_structure(run, atoms)
        | {"trajectory": TRAJECTORY, "thermo": THERMO, "protocol": PROTOCOL}
        | files,
        notes=(*notes, *watch.remarks, *recorder.notes),
        **watch.made_with,
    )


def _check(atoms: Atoms, params: Mapping[str, Any]) -> None:
    ensemble = params["ensemble"]
    if len(atoms) < 2:
        raise _refused("one atom without motion of its centre of mass does not move", None)
    if ensemble == "npt" and params["thermostat"] == "bussi":
        raise _refused(
            "npt has a Nose-Hoover chain; thermostat='bussi' is for nvt", "thermostat='nose_hoover_chain'"
        )
    if ensemble == "npt" and (
        not three_periods(atoms) or "stress" not in atoms.calc.implemented_properties or atoms.constraints
    ):
        raise _refused(
            "npt needs three periodic directions, an engine that has stress and atoms without constraints "
            f"({atoms.symbols}: pbc {atoms.pbc.tolist()}, {len(atoms.constraints)} constraint(s), engine "
            f"{atoms.calc.name})",
            "nvt",
        )
    chain = params["thermostat"] == "nose_hoover_chain" and (ensemble == "nvt" or params["equilibration_steps"])
    if chain and ensemble != "npt" and atoms.constraints:
        raise _refused("ASE's Nose-Hoover chain knows no constraints", "thermostat='langevin' or 'bussi'")


def _refused(why: str, repair: str | None) -> AppFailed:
    return AppFailed(f"{why}.", kind="contract", name="BadSettings", repair=repair)


def _rng(run: Run, purpose: str) -> Any:
    """Random numbers of their own for every run and purpose; the same manifest has the same ones."""
    import numpy as np

    digest = hashlib.sha256(f"{purpose}/{run.execution_id}/{run.seed}/{run.replicate}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8]))


def _draw_velocities(atoms: Atoms, temperature: float, run: Run) -> None:
    """Momenta of a Maxwell-Boltzmann distribution: each component normal with the variance m k_B T."""
    import numpy as np
    from ase.units import kB

    masses = atoms.get_masses()[:, None]
    momenta = _rng(run, "velocities").standard_normal((len(atoms), 3)) * np.sqrt(masses * kB * temperature)
    if not atoms.constraints:
        # Takes away the centre of mass only; what is left has 3 N - 3 degrees of freedom at this temperature.
        momenta -= masses * momenta.sum(axis=0) / masses.sum()
    atoms.set_momenta(momenta)


# ---- integrators


def _integrator(run: Run, atoms: Atoms, ensemble: str, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """ASE's integrator of an ensemble, and what it does in words and numbers."""
    from ase import units

    timestep = params["timestep"] * units.fs
    common = {"ensemble": ensemble, "timestep_fs": params["timestep"]}
    target = {"temperature_K": params["temperature"]}
    if ensemble == "nve":
        from ase.md.verlet import VelocityVerlet

        return VelocityVerlet(atoms, timestep), common | {"integrator": "velocity Verlet", "thermostat": None}
    tdamp = params["thermostat_time"] * units.fs
    if ensemble == "npt":
        from ase.md.nose_hoover_chain import IsotropicMTKNPT

        made = IsotropicMTKNPT(
            atoms,
            timestep,
            pressure_au=params["pressure_gpa"] * units.GPa,
            tdamp=tdamp,
            pdamp=params["barostat_time"] * units.fs,
            **target,
        )
        _count_freedom(made, atoms)
        return made, common | target | {
            "integrator": "isotropic Martyna-Tobias-Klein",
            "thermostat": "nose_hoover_chain",
            "thermostat_time_fs": params["thermostat_time"],
            "chain": 3,
            "barostat": "isotropic Martyna-Tobias-Klein",
            "barostat_time_fs": params["barostat_time"],
            "pressure_GPa": params["pressure_gpa"],
        }
    which = params["thermostat"]
    if which == "nose_hoover_chain":
        from ase.md.nose_hoover_chain import NoseHooverChainNVT

        chain = NoseHooverChainNVT(atoms, timestep, tdamp=tdamp, **target)
        _count_freedom(chain, atoms)
        return chain, common | target | {
            "integrator": "Nose-Hoover chain",
            "thermostat": which,
            "thermostat_time_fs": params["thermostat_time"],
            "chain": 3,
        }
    if not atoms.constraints:
        from ase.constraints import FixCom

        # ASE's thermostats count degrees of freedom by the constraints.
        atoms.set_constraint(FixCom())
    if which == "langevin":
        from ase.md.langevin import Langevin

        return (
            Langevin(
                atoms,
                timestep,
                friction=params["friction"] / units.fs,
                fixcm=False,
                rng=_rng(run, "langevin"),
                **target,
            ),
            common
            | target
            | {"integrator": "Langevin", "thermostat": which, "friction_per_fs": params["friction"]},
        )
    from ase.md.bussi import Bussi

    return (
        Bussi(atoms, timestep, taut=tdamp, rng=_rng(run, "bussi"), **target),
        common
        | target
        | {
            "integrator": "velocity Verlet",
            "thermostat": which,
            "thermostat_time_fs": params["thermostat_time"],
        },
    )


def _count_freedom(dynamics: Any, atoms: Atoms) -> None:
    """Have ASE's Nose-Hoover chain thermostat 3 N - 3 degrees of freedom; it counts 3 N.

    The centre of mass rests, so with 3 N the mean temperature of the rest would be N / (N - 1) of the one asked
    for.
    """
    for part in (dynamics, dynamics._thermostat):
        if getattr(part, "_num_atoms_global", None) == len(atoms):
            part._num_atoms_global = len(atoms) - 1


def _conserved(dynamics: Any, atoms: Atoms) -> float | None:
    """What the dynamics conserve, in eV; None for a Langevin thermostat."""
    name = type(dynamics).__name__
    if name == "Langevin":
        return None
    if hasattr(dynamics, "get_conserved_energy"):
        return float(dynamics.get_conserved_energy())
    total = atoms.get_potential_energy(force_consistent=True) + atoms.get_kinetic_energy()
    return float(total - getattr(dynamics, "transferred_energy", 0.0))


def _equilibrated(
    run: Run, atoms: Atoms, params: Mapping[str, Any], recorder: _Recorder
) -> tuple[Any, dict[str, Any]]:
    """The integrator of the steps that are measured, after the equilibration, with what it does."""
    steps, ensemble = params["equilibration_steps"], params["ensemble"]
    if steps:
        # In the same ensemble the integrator goes on: its thermostat is at rest too, its noise is not repeated.
        dynamics, protocol = _integrator(run, atoms, "nvt" if ensemble == "nve" else ensemble, params)
        recorder.equilibration = {"steps": steps} | protocol
        recorder.advance(dynamics, steps, measured=False)
        if ensemble != "nve":
            return dynamics, protocol
        atoms.set_constraint(recorder.constraints)
    return _integrator(run, atoms, ensemble, params)


def _write_protocol(
    run: Run, protocol: dict[str, Any], params: Mapping[str, Any], watch: Watch, recorder: _Recorder
) -> None:
    import ase

    said = protocol | {
        "steps": params["steps"],
        "equilibration": recorder.equilibration,
        "degrees_of_freedom": recorder.freedom,
        "velocities": params["velocities"],
        "engine": watch.engine.name,
        "checkpoint_sha256": (run.settings.get("files") or {}).get("checkpoint") or None,
        "settings": {k: run.settings.get(k) for k in ("keywords", "calculator") if run.settings.get(k)},
        "sample_every": params["sample_every"],
        "frames_every": params["every"],
        "seed": run.seed,
        "replicate": run.replicate,
        "execution_id": run.execution_id,
        "ase": ase.__version__,
    }
    (run.workdir / PROTOCOL).write_text(json.dumps(said, indent=1))


# ---- recording


@dataclass
class _Recorder:
    """Runs the dynamics piece by piece, looks at every sample and writes down those that are measured."""

    run: Run
    atoms: Atoms
    watch: Watch
    params: Mapping[str, Any]
    equilibration: dict[str, Any] | None = None
    rows: list[tuple[float, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    max_force: float = 0.0

    def __post_init__(self) -> None:
        self.constraints = list(self.atoms.constraints)
        n = len(self.atoms)
        self.freedom = int(self.atoms.get_number_of_degrees_of_freedom()) if self.constraints else 3 * n - 3
        self._limit, self._since = Limit.of(self.run), time.monotonic()
        self._stepping_s = 0.0
        self._steps_made = 0
        self._table: Any = None
        self._trajectory: Any = None

    def advance(self, dynamics: Any, steps: int, *, measured: bool) -> None:
        """Make steps, a few at a time; after each piece, see that it still makes sense."""
        intervals = (self.params["sample_every"], self.params["every"] if measured else steps)
        done = 0
        while done < steps:
            piece = min(steps, *((done // interval + 1) * interval for interval in intervals)) - done
            began = time.perf_counter()
            dynamics.run(piece)
            self._stepping_s += time.perf_counter() - began
            done += piece
            self._steps_made += piece
            self._look()
            if measured and done % intervals[0] == 0:
                self._sample(dynamics, done)
            if measured and done % intervals[1] == 0:
                self._trajectory.write()
            if done < steps and time.monotonic() - self._since > self._limit.seconds:
                raise self._limit.failure(
                    wall_s=time.monotonic() - self._since,
                    log_tail=self._tail(),
                    repair=f"fewer steps, or a longer walltime_s: {self._steps_made} steps were made",
                )

    def measure(self, dynamics: Any, steps: int) -> None:
        """Make the steps that count: rows of thermo.csv and frames, the first of them at the start."""
        from ase.io import Trajectory

        self._table = (self.run.workdir / THERMO).open("w")
        self._table.write(",".join(COLUMNS) + "\n")
        self._trajectory = Trajectory(self.run.workdir / TRAJECTORY, "w", self.atoms)
        self.atoms.get_forces()
        self._sample(dynamics, 0)
        self._trajectory.write()
        self.advance(dynamics, steps, measured=True)

    def _look(self) -> None:
        atoms = self.atoms
        kinetic = float(atoms.get_kinetic_energy())
        potential = float(atoms.get_potential_energy())
        force = largest(atoms.get_forces())
        if not all(map(math.isfinite, (kinetic, potential, force))):
            raise AppFailed(
                f"energy or forces are no number after step {self._steps_made} (potential energy {potential}, "
                f"largest force {force}).",
                name="NonNumeric",
                log_tail=self._tail(),
                repair="smaller timestep, or relax first",
            )
        self.max_force = max(self.max_force, force)
        temperature, hottest = (
            self._temperature(kinetic),
            _HOTTEST * self.params["temperature"] + _HOTTEST_OFFSET_K,
        )
        if temperature > hottest or force > _LARGEST_FORCE:
            raise AppFailed(
                f"exploded: {temperature:.4g} K and a largest force of {force:.4g} eV/angstrom after step "
                f"{self._steps_made} (allowed: {hottest:.4g} K, {_LARGEST_FORCE:g} eV/angstrom).",
                name="Exploded",
                log_tail=self._tail(),
                repair="smaller timestep, or relax first; with a machine-learned potential, look whether it was "
                "trained on such structures",
            )

    def _temperature(self, kinetic: float) -> float:
        from ase.units import kB

        return 2 * kinetic / (self.freedom * float(kB))

    def _sample(self, dynamics: Any, step: int) -> None:
        atoms = self.atoms
        kinetic = float(atoms.get_kinetic_energy())
        potential = float(atoms.get_potential_energy(force_consistent=True))
        conserved = _conserved(dynamics, atoms)
        volume = pressure = math.nan
        if three_periods(atoms):
            volume = float(atoms.get_volume())
            # Only where it came with the forces: it can cost as much as they.
            if "stress" in atoms.calc.results:
                pressure = pressure_gpa(atoms.get_stress(include_ideal_gas=True))
        row = (
            step * self.params["timestep"] * 1e-3,
            self._temperature(kinetic),
            potential,
            kinetic,
            potential + kinetic,
            math.nan if conserved is None else conserved,
            volume,
            pressure,
        )
        self.rows.append(row)
        self._table.write(",".join("" if math.isnan(value) else f"{value:.12g}" for value in row) + "\n")

    def _tail(self) -> str:
        rows = [",".join(f"{value:.6g}" for value in row) for row in self.rows[-20:]]
        return "\n".join([",".join(COLUMNS), *rows]) if rows else ""

    def close(self) -> None:
        """Close the files; what they have stays."""
        if self._table is not None:
            self._table.close()
        if self._trajectory is not None:
            self._trajectory.close()

    def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Means with their errors, from the rows after the first, which is the start."""
        import numpy as np

        columns = dict(zip(COLUMNS, np.array(self.rows).T, strict=True))
        n = len(self.atoms)
        values: dict[str, float] = {}
        errors: dict[str, float] = {}
        mass = float(self.atoms.get_masses().sum())
        for name, column, scale in (
            ("temperature", columns["temperature_K"], 1.0),
            ("potential_energy", columns["epot_eV"], 1.0 / n),
            ("kinetic_energy", columns["ekin_eV"], 1.0 / n),
            ("pressure", columns["pressure_GPa"], 1.0),
            ("volume", columns["volume_A3"], 1.0),
            ("density", mass * _AMU_PER_A3 / columns["volume_A3"], 1.0),
        ):
            if np.isnan(column).any():
                continue
            mean, error = block_average(column[1:])
            values[name], errors[name] = mean * scale, error * scale
        self._conservation(columns, values, errors)
        values |= {
            "max_force": self.max_force,
            "simulated_ps": float(columns["time_ps"][-1]),
            "n_samples": len(self.rows) - 1,
            "n_atoms": n,
        }
        if self._stepping_s > 0:
            values["steps_per_s"] = self._steps_made / self._stepping_s
        return values, errors

    def _conservation(
        self, columns: Mapping[str, Any], values: dict[str, float], errors: dict[str, float]
    ) -> None:
        import numpy as np

        conserved = columns["econserved_eV"]
        if np.isnan(conserved).any():
            self.notes.append("a Langevin thermostat conserves no energy: no energy_drift_mev_per_atom_ns")
            return
        slope, error = fitted_slope(columns["time_ps"], conserved)
        scale = 1e6 / len(self.atoms)  # eV/ps -> meV/ns
        if math.isfinite(slope):
            values["energy_drift_mev_per_atom_ns"] = slope * scale
            errors["energy_drift_mev_per_atom_ns"] = error * scale
        ratio, _ = fluctuation_ratio(conserved, columns["ekin_eV"])
        if math.isfinite(ratio):
            # Without an error: an energy that walks has another ratio for each length.
            for name in ("energy_fluctuation_run", "energy_fluctuation"):
                values[name] = ratio
        time = columns["time_ps"]
        # Rows at equal intervals; the last may come early.
        interval = float(time[1] - time[0]) if len(time) > 1 else 0.0
        if interval > 0:
            ratio, error = windowed_fluctuation(conserved, columns["ekin_eV"], 1.0 / interval + 1.0)
            if math.isfinite(ratio):
                values["energy_fluctuation_1ps"], errors["energy_fluctuation_1ps"] = ratio, error
