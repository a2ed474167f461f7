"""Active learning: a potential that asks for labels until its error on new frames is small enough."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcagent.apps.chain import artifacts_of, chain
from hpcagent.apps.parts import failed
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Text
from hpcagent.science.chains.levels import level_of, own_settings
from hpcagent.science.chains.references import atoms_of
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.engines.base import ENGINES, LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.ml.pod_calculator import PodPotential
from hpcagent.science.ml.pod_frames import pod_frames
from hpcagent.science.ml.pod_train import DESCRIPTORS, train_pod_potential
from hpcagent.science.mlip.md import mlip_md
from hpcagent.science.structures.crystal import LATTICES, build_crystal
from hpcagent.science.structures.deform import deform
from hpcagent.statistics.rms import rms_error

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["active_learning"]

_KEY = "condition"
_CALCULATOR = "hpcagent.science.ml.pod_calculator:POD"
# Equilibration, which is not drawn from: rattled lattices have less potential energy than the temperature asks
# for, and take it from the motion. It is back after some times 1 / friction, however long the trajectory is.
_EQUILIBRATION = 0.25
_FRICTION = 0.01  # 1/fs
_SETTLED = 6.0
# How dynamics end with a potential that is not good enough yet; any other failure is the chain's.
_BLOWN_UP = ("Exploded", "NonNumeric", "EngineFailed")


@dataclass(frozen=True, slots=True)
class _Condition:
    temperature: float
    volume: float

    @property
    def name(self) -> str:
        return f"{self.temperature:g} K, V {self.volume:g}"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A structure that is to be labelled; `drawn` blindly, or chosen for its uncertainty."""

    atoms: Atoms
    condition: _Condition
    drawn: bool
    flagged: bool


@chain(
    name="active_learning",
    version="1.1.0",
    parameters=LEVEL
    | {"engine": Choice(*ENGINES, default="emt", description="what labels; see the level of theory")}
    | RANKS
    | {
        "name": Text(default="Cu", description="element or formula of the crystal"),
        "crystal": Choice(*LATTICES, default="auto", description="lattice; auto: the element's own"),
        "a": Float(0.0, 100.0, unit="angstrom", default=0.0, description="lattice constant to start at; 0: ASE's"),
        "cells": Int(1, 10, default=2, description="cubic cells along each vector"),
        "temperatures": Text(default="300,600,900", description="temperatures of the dynamics, in K"),
        "volumes": Text(default="0.97,1,1.03", description="volumes over that of the crystal"),
        "timestep": Float(0.1, 5.0, unit="fs", default=2.0, description="of the dynamics"),
        "steps": Int(40, 10_000_000, default=400, description="steps of the dynamics of each condition"),
        "every": Int(1, 1_000_000, default=20, description="steps between frames"),
        "rattle": Float(
            0.001, 0.5, unit="angstrom", default=0.05, description="displacements of the first structures"
        ),
        "initial": Int(2, 1000, default=2, description="first structures of each condition"),
        "drawn": Int(2, 1000, default=2, description="frames of each condition and round that measure the error"),
        "chosen": Int(0, 1000, default=1, description="flagged or uncertain frames of each condition and round"),
        "rounds": Int(1, 100, default=5, description="most rounds"),
        "labels": Int(1, 1_000_000, default=1000, description="most labels in all"),
        "target": Float(
            1e-3, 1e4, unit="meV/angstrom", log=True, default=5.0, description="rms error of forces that is wanted"
        ),
        **DESCRIPTORS,
    },
    metrics={
        name: Metric(name=name, unit=unit, description=description, required=required)
        for name, unit, description, required in (
            ("force_rmse", "meV/angstrom", "rms error of forces on the frames drawn last", True),
            ("energy_rmse", "meV/atom", "rms error of energies there", True),
            ("force_rmse_first", "meV/angstrom", "rms error of forces in the first round", True),
            ("coverage", "1", "share of force components within 1.96 sigma there, frames not flagged", False),
            ("flagged_share", "1", "share of the last round's drawn frames that were flagged", True),
            (
                "target_met",
                "1",
                "1: the error with two standard errors is below the target, and that of fresh frames; 0: the "
                "budget ended",
                True,
            ),
            ("n_rounds", "1", "rounds", True),
            ("n_labels", "1", "structures that were labelled", True),
            ("n_training", "1", "of them those that the potential was trained on", True),
        )
    },
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=300.0,
    vary=("rcut",),
    failure_modes=(
        "BadLattice",
        "BadConditions",
        "BudgetTooSmall",
        *dict.fromkeys(
            (*train_pod_potential.contract.failure_modes, *dft_energy.contract.failure_modes, "Exploded")
        ),
    ),
)
def active_learning(run: Run, **params: Any) -> Outcome:
    """Train a POD potential of a crystal by active learning, until its error on new frames meets a target.

    First structures, rattled, are labelled by the engine. Then in each round: the potential is trained
    (`train_pod_potential`, conditions held out); it runs molecular dynamics at each condition (a temperature and
    a volume), after 600 fs or a quarter of `steps` in which it comes to the temperature; of each trajectory
    `drawn` frames are taken blindly and `chosen` ones because they are flagged or have the largest sigma; all of
    them are labelled. The drawn ones, on which the potential was not trained, are its error, with the standard
    error from the scatter between conditions. Where the error with two standard errors is below `target`,
    further frames are drawn and labelled: the target is met if their error is below it, too, and that error is
    the result's, since it decided least; else all new labels go into the training of the next round. Dynamics
    that a bad potential blows up are replaced by rattled structures of that condition and told in the notes.

    The budget (`rounds`, `labels`) ends it too, with `target_met` 0. The potential returned is that whose error
    was measured; labels of its last round are in `labels` but not in its training.

    Artifacts: `model`, `parameters`, `coefficients` (as of `train_pod_potential`), `labels` (extended XYZ, all
    labels), `rounds` (JSON: each round's errors with standard errors, coverage, flags, counts, temperatures).

    Raises:
        AppFailed: `BadConditions`: temperatures or volumes are no lists of positive numbers, or one condition in
            all; `BudgetTooSmall`: `labels` is less than the first round needs.
    """
    conditions = _conditions(params)
    label = dft_energy.with_settings(**own_settings(run.settings))
    level = level_of(params)
    first, each = params["initial"], params["drawn"] + params["chosen"]
    need = len(conditions) * (first + each)
    if need > params["labels"]:
        raise AppFailed(
            f"labels={params['labels']} is too small: {len(conditions)} conditions need {need} labels for the "
            "first round.",
            kind="contract",
            name="BudgetTooSmall",
            repair=f"labels={need} or more, or fewer conditions",
        )
    perfect = build_crystal(
        name=params["name"],
        lattice=params["crystal"],
        a=params["a"],
        cubic="yes",
        **{f"n{x}": params["cells"] for x in "xyz"},
    )
    cells = {c: atoms_of(deform(perfect, volume_ratio=c.volume)) for c in conditions}
    rng = np.random.default_rng([run.seed, run.replicate])
    wanted = [
        _Wanted(_rattled(cells[c], params["rattle"], rng), c, drawn=True, flagged=False)
        for c in conditions
        for _ in range(first)
    ]
    training = _labelled(label, wanted, level)
    everything = list(training)
    rounds: list[dict[str, Any]] = []
    notes: list[str] = []
    while True:
        trained = _trained(run, training, params, len(rounds))
        model = Path(trained.workdir) / trained.artifacts["model"]
        wanted, warm = _asked(run, model, cells, params, rng, notes, len(rounds))
        fresh = _labelled(label, wanted, level)
        everything += fresh
        last = _measured(PodPotential(model), wanted, fresh, trained, len(training))
        last |= {"temperature_by_condition": warm}
        rounds.append(last)
        force, error = last["force_rmse_meV_per_angstrom"]
        met = force + 2 * error <= params["target"]
        if met and len(everything) + len(conditions) * params["drawn"] <= params["labels"]:
            # Of many rounds the lucky ones end: their own error is too small, that of fresh frames is not.
            wanted, warm = _asked(run, model, cells, {**params, "chosen": 0}, rng, notes, len(rounds) - 1)
            fresh = _labelled(label, wanted, level)
            everything += fresh
            last = _measured(PodPotential(model), wanted, fresh, trained, len(training))
            rounds[-1]["confirmation"] = last | {"temperature_by_condition": warm}
            met = last["force_rmse_meV_per_angstrom"][0] <= params["target"]
        elif met:
            notes.append(
                "no labels were left for fresh frames: the error is that of the frames that decided to end, and "
                "lower than the true one on average"
            )
        _write(run.workdir / "labels.xyz", everything)
        (run.workdir / "rounds.json").write_text(json.dumps(rounds, indent=1) + "\n")
        spent = len(everything) + len(conditions) * each > params["labels"]
        if met or spent or len(rounds) == params["rounds"]:
            break
        training = list(everything)
    if not met:
        what = f"{params['rounds']} rounds" if len(rounds) == params["rounds"] else f"{params['labels']} labels"
        notes.append(f"the target of {params['target']:g} meV/angstrom was not met within {what}")
    force, error = last["force_rmse_meV_per_angstrom"]
    if last["flagged_share"] > 0.5:
        notes.append(
            f"{last['flagged_share']:.0%} of the last round's drawn frames are flagged: the potential states no "
            "sigma there; more rounds or labels, or a smaller target"
        )
    metrics = {
        "force_rmse": force,
        "energy_rmse": last["energy_rmse_meV_per_atom"][0],
        "force_rmse_first": rounds[0]["force_rmse_meV_per_angstrom"][0],
        "flagged_share": last["flagged_share"],
        "target_met": float(met),
        "n_rounds": len(rounds),
        "n_labels": len(everything),
        "n_training": len(training),
    }
    if last["coverage"] is not None:
        metrics["coverage"] = last["coverage"]
    uncertainty = {
        "force_rmse": error,
        "energy_rmse": last["energy_rmse_meV_per_atom"][1],
        "force_rmse_first": rounds[0]["force_rmse_meV_per_angstrom"][1],
    }
    return Outcome(
        metrics={k: float(v) for k, v in metrics.items()},
        uncertainty={k: v for k, v in uncertainty.items() if math.isfinite(v)},
        artifacts=artifacts_of(run, model=trained, parameters=trained, coefficients=trained)
        | {"labels": "labels.xyz", "rounds": "rounds.json"},
        notes=tuple(dict.fromkeys(notes)),
    )


def _conditions(params: Mapping[str, Any]) -> list[_Condition]:
    lists = {}
    for name, low, high in (("temperatures", 0.0, 20000.0), ("volumes", 0.1, 10.0)):
        try:
            lists[name] = [float(word) for word in params[name].split(",")]
        except ValueError:
            lists[name] = []
        if not lists[name] or not all(low < value <= high for value in lists[name]):
            raise AppFailed(
                f"{name}={params[name]!r} is no list of numbers above {low:g} and up to {high:g}, with commas "
                "between them.",
                kind="contract",
                name="BadConditions",
            )
    found = [
        _Condition(t, v) for t in dict.fromkeys(lists["temperatures"]) for v in dict.fromkeys(lists["volumes"])
    ]
    if len(found) < 2:
        raise AppFailed(
            "one temperature and one volume are one condition: none can be held out, so no error can be "
            "calibrated.",
            kind="contract",
            name="BadConditions",
            repair="two or more temperatures or volumes",
        )
    return found


def _rattled(cell: Atoms, width: float, rng: np.random.Generator) -> Atoms:
    atoms: Atoms = cell.copy()
    atoms.calc = None
    atoms.info = {}
    atoms.positions += rng.normal(0.0, width, atoms.positions.shape)
    return atoms


def _labelled(label: Any, wanted: Sequence[_Wanted], level: Mapping[str, Any]) -> list[Atoms]:
    """The structures with energy and forces, all labelled side by side."""
    parts = [label(one.atoms, forces="yes", **level) for one in wanted]
    found = []
    for one, part in zip(wanted, parts, strict=True):
        result = part.result()
        if result.failure is not None:
            raise failed(result)
        atoms = atoms_of(part)
        atoms.info[_KEY] = one.condition.name
        found.append(atoms)
    return found


def _write(path: Path, labelled: Sequence[Atoms]) -> None:
    from ase.io.extxyz import write_extxyz

    part = path.with_name(f"{path.name}.part")
    with part.open("w") as file:
        write_extxyz(file, list(labelled))
    part.rename(path)


def _trained(run: Run, training: Sequence[Atoms], params: Mapping[str, Any], number: int) -> Any:
    path = run.workdir / f"training_{number + 1}.xyz"
    _write(path, training)
    chosen = {name: params[name] for name in DESCRIPTORS}
    result = train_pod_potential.with_settings(data=str(path))(condition=_KEY, **chosen).result()
    if result.failure is not None:
        raise failed(result)
    return result


def _asked(
    run: Run,
    model: Path,
    cells: Mapping[_Condition, Atoms],
    params: Mapping[str, Any],
    rng: np.random.Generator,
    notes: list[str],
    number: int,
) -> tuple[list[_Wanted], dict[str, float]]:
    """New structures of each condition: frames of dynamics, blindly drawn and chosen; and mean temperatures, K."""
    import ase.io

    settling = math.ceil(max(_EQUILIBRATION * params["steps"], _SETTLED / _FRICTION / params["timestep"]))
    dynamics = mlip_md.with_settings(calculator=_CALCULATOR, keywords={"model": str(model.resolve())})
    moving = {
        c: dynamics(
            _rattled(cell, params["rattle"], rng),
            engine="ase",
            temperature=c.temperature,
            timestep=params["timestep"],
            steps=params["steps"],
            every=params["every"],
            friction=_FRICTION,
            equilibration_steps=settling,
        )
        for c, cell in cells.items()
    }
    judging = {c: pod_frames.with_settings(model=str(model))(md) for c, md in moving.items()}
    wanted: list[_Wanted] = []
    warm: dict[str, float] = {}
    for c, judged in judging.items():
        result = judged.result()
        if result.failure is not None:
            why = moving[c].result().failure or result.failure
            if why.name not in _BLOWN_UP:
                raise failed(moving[c].result() if moving[c].result().failure else result)
            notes.append(f"round {number + 1}, {c.name}: no dynamics ({why.name}); rattled structures instead")
            count = params["drawn"] + params["chosen"]
            wanted += [
                _Wanted(_rattled(cells[c], 2 * params["rattle"], rng), c, drawn=i < params["drawn"], flagged=True)
                for i in range(count)
            ]
            continue
        ran = moving[c].result()
        frames: Any = ase.io.read(Path(ran.workdir) / ran.artifacts["trajectory"], index=":")
        with (Path(result.workdir) / result.artifacts["frames"]).open(newline="") as file:
            rows = list(csv.DictReader(file))
        wanted += _picked(c, frames, rows, params, rng)
        warm[c.name] = ran.metrics["temperature"]
    return wanted, warm


def _picked(
    condition: _Condition,
    frames: Sequence[Atoms],
    rows: Sequence[Mapping[str, str]],
    params: Mapping[str, Any],
    rng: np.random.Generator,
) -> list[_Wanted]:
    """Frames drawn blindly, one from each stretch of the trajectory, and the most uncertain of the others."""
    count = params["drawn"] + params["chosen"]
    if len(frames) < count:
        raise AppFailed(
            f"{len(frames)} frames of {condition.name} are fewer than the {count} that a round labels.",
            kind="contract",
            name="TooFewFrames",
            repair="more steps, or a smaller `every`",
        )
    stretches = np.array_split(np.arange(len(frames)), params["drawn"])
    drawn = [int(rng.choice(stretch)) for stretch in stretches]
    rest = [i for i in range(len(frames)) if i not in drawn]

    def doubt(i: int) -> tuple[int, float]:
        flagged = int(rows[i]["flagged"])
        return flagged, float(rows[i]["leverage"] if flagged else rows[i]["sigma_meV_per_angstrom"])

    chosen = sorted(rest, key=doubt, reverse=True)[: params["chosen"]]
    return [
        _Wanted(_bare(frames[i]), condition, drawn=i in drawn, flagged=rows[i]["flagged"] == "1")
        for i in (*drawn, *chosen)
    ]


def _bare(atoms: Atoms) -> Atoms:
    from ase import Atoms as New

    return New(atoms.symbols, positions=atoms.positions, cell=atoms.cell, pbc=atoms.pbc)


def _measured(
    potential: PodPotential, wanted: Sequence[_Wanted], labelled: Sequence[Atoms], trained: Any, training: int
) -> dict[str, Any]:
    """What a round says: errors on frames that were drawn blindly, before any is trained on."""
    forces, energies, covered, where, flags, sought = [], [], [], [], [], []
    for one, atoms in zip(wanted, labelled, strict=True):
        judged = potential.judge(atoms)
        off = judged.forces - atoms.get_forces()
        square = float((off**2).mean())
        if not one.drawn:
            sought.append(square)
            continue
        forces.append(square)
        energies.append(((judged.energy - float(atoms.get_potential_energy())) / len(atoms)) ** 2)
        where.append(one.condition.name)
        flags.append(judged.flagged)
        if judged.sigma is not None:
            covered.append(np.abs(off) <= 1.959964 * judged.sigma)
    force, energy = rms_error(forces, where), rms_error(energies, where)
    by_condition = {}
    for name in dict.fromkeys(where):
        mean = np.mean([f for f, w in zip(forces, where, strict=True) if w == name])
        by_condition[name] = 1e3 * math.sqrt(float(mean))
    return {
        "training_frames": training,
        "model_id": potential.model_id,
        "force_rmse_meV_per_angstrom": [1e3 * x for x in force],
        "energy_rmse_meV_per_atom": [1e3 * x for x in energy],
        "force_rmse_by_condition": by_condition,
        "force_rmse_of_chosen": 1e3 * math.sqrt(float(np.mean(sought))) if sought else None,
        "drawn_frames": len(forces),
        "flagged_share": float(np.mean(flags)),
        "coverage": float(np.concatenate(covered).mean()) if covered else None,
        "coverage_frames": len(covered),
        "sigma_scale": trained["sigma_scale"],
        "held_out_force_rmse": trained["force_rmse"],
    }
