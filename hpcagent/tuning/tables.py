"""The contract and the campaign that `hpcagent tune` writes for a script, as the tables of their TOML files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.model.base import Scalar
from hpcagent.model.constraints import Constraint
from hpcagent.science.lammps.knobs import Knob
from hpcagent.science.lammps.rewritten import OWN, force_files
from hpcagent.tuning.checks import FORCE_RATIO, SPEED
from hpcagent.tuning.probe import Probe

__all__ = ["campaign_table", "contract_table"]

# How much larger than that of the script as it came an error of the forces may be.
FORCES_ALIKE = 1.05


def contract_table(
    name: str, made: Sequence[Knob], steps: str, probe: Probe, *, threads: int, walltime_s: float
) -> dict[str, Any]:
    """The contract of the script whose settings are parameters.

    Args:
        name: Of the script.
        made: What is tried.
        steps: The variable of the timed run's length.
        probe: What the script as it came told.
        threads: Of each rank, where they are not tried.
        walltime_s: The most that one run may take.
    """
    names = {k.setting: k.name for k in made}
    files = force_files(names)
    compared = probe.force_error is not None and "beside" in files
    resources = {"ranks_per_node": names["ranks"]}
    if "threads" in names:
        resources["threads_per_rank"] = names["threads"]
    metrics = [SPEED, "loop_time_s", "unsafe_builds", "n_atoms"]
    table: dict[str, Any] = {
        "name": name,
        "description": f"The input {name} with its settings of speed as parameters.",
        "script": f"in.{name}",
        "metrics": [*metrics, *(["force_error", FORCE_RATIO] if compared else [])],
        "vary": [k.name for k in made if len(k.values) != 1],
        "estimated_runtime_s": max(1.0, round(2.0 * probe.steps / probe.metrics[SPEED], 1)),
        "resources": {"walltime_s": walltime_s} | ({} if "threads" in names else {"threads_per_rank": threads}),
        "resources_from": resources,
        # Ranks that wait for each other do not use their cores; what they take is what is measured.
        "checks": {"min_cpu_use_percent": 80.0},
        "variables": {k.name: k.table for k in made}
        | {
            steps: {
                "kind": "int", "low": 1, "high": 10**9, "default": probe.steps, "unit": "steps",
                "description": "length of the timed run",
            }
        },
    }  # fmt: skip
    if compared:
        table["forces"] = files
    return table


def campaign_table(
    name: str,
    folder: Path,
    made: Sequence[Knob],
    steps: str,
    probe: Probe,
    *,
    cores: int,
    threads: int,
    runs: int,
    seed: int,
    checked: bool,
) -> dict[str, Any]:
    """The campaign.

    Args:
        name: Of the script.
        folder: Where everything is.
        made: What is tried.
        steps: The variable of the timed run's length.
        probe: What the script as it came told.
        cores: Of a node.
        threads: Of each rank, where they are not tried.
        runs: How many.
        seed: Of the policy.
        checked: Whether the script builds its neighbour lists checked. If not, only the reference is run so.
    """
    names = {k.setting: k.name for k in made}
    own = {k.name: k.own for k in made}
    limits: dict[str, Any] = {"unsafe_builds": {"at_most": 0.5}}
    if probe.force_error is not None and "beside" in force_files(names):
        limits[FORCE_RATIO] = {"at_most": FORCES_ALIKE}
    rules = []
    if "threads" in names:
        rules.append(f"{names['ranks']} * {names['threads']} <= {cores}")
        few = " or ".join(f"{names['threads']} == {n}" for n in sorted({1, int(own[names["threads"]])}))
        rules.append(f"{few} or {names['accelerator']} == 'omp'")
    else:
        rules.append(f"{names['ranks']} <= {cores // threads}")
    if "grid" in names:
        rules.append(f"{names['grid']} == '{own[names['grid']]}' or {names['ranks']} > 1")
    varied: dict[str, dict[str, Any]] = {k.name: {} for k in made if len(k.values) != 1}
    kept = [Constraint.model_validate(rule) for rule in rules]
    points = [p for p in _likely(made, own) if _allowed(p, made) and all(rule.kept(p) for rule in kept)]
    table: dict[str, Any] = {
        "name": name,
        "description": f"Most steps per second of {name}, as accurately as it came.",
        "app": f"in.{name}",
        "seed": seed,
        "site": str(folder / "site.toml"),
        "batch_size": max(3, min(8, runs // 4)),
        "space": varied,
        "fixed": {steps: probe.steps} | {k.name: k.own for k in made if len(k.values) == 1},
        "constraints": rules,
        "points": [{n: p[n] for n in varied} for p in points],
        "objective": {"maximize": SPEED, "subject_to": limits},
        "until": {"max_runs": runs},
        "reference": {"params": own},
        "confirm": {"top": 2, "replicates": 1 if runs < 20 else 2},
    }
    if not checked:
        _without_unchecked(table, made)
    return table


def _allowed(point: Mapping[str, Scalar], made: Sequence[Knob]) -> bool:
    return all(not k.values or str(point[k.name]) in k.values for k in made)


def _without_unchecked(table: dict[str, Any], made: Sequence[Knob]) -> None:
    for knob in made:
        if knob.setting == "rebuild":
            table["space"][knob.name] = {"choices": [w for w in knob.values if w != OWN]}
            for point in table["points"]:
                point[knob.name] = next(w for w in knob.values if w != OWN)


def _likely(made: Sequence[Knob], own: Mapping[str, Scalar]) -> list[dict[str, Scalar]]:
    """Points that experience would try first: all cores, and each accelerator on them."""
    names = {k.setting: k.name for k in made}
    ranks = next(k for k in made if k.setting == "ranks")
    most = max(map(int, ranks.values))
    ways = next((k.values for k in made if k.setting == "accelerator"), ())
    threads = {names["threads"]: 1} if "threads" in names else {}
    found: list[dict[str, Scalar]] = [{**own, names["ranks"]: most, **threads}]
    found += [{**found[0], names["accelerator"]: way} for way in ways if way != own[names["accelerator"]]]
    if "threads" in names and "omp" in ways and most > 1:
        found.append({**own, names["ranks"]: 1, names["threads"]: most, names["accelerator"]: "omp"})
    mesh = {k.setting: k for k in made if k.setting in ("order", "diff", "coulomb")}
    if "coulomb" in mesh and "order" in mesh:
        # A shorter real-space part pays where the mesh makes up for it.
        shorter = {mesh["coulomb"].name: 0.85 * float(mesh["coulomb"].own), mesh["order"].name: 7}
        found.append({**found[min(1, len(found) - 1)], **shorter})
    if "diff" in mesh and "accuracy" in names:
        half = float(own[names["accuracy"]]) / 2
        found.append({**found[min(1, len(found) - 1)], mesh["diff"].name: "ad", names["accuracy"]: half})
    return [p for p in found if p != dict(own)]
