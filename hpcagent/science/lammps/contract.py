"""A LAMMPS app from an input script and the contract beside it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent import packaged
from hpcagent.apps.base import App, check_names
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.made_with import sha256
from hpcagent.apps.modes import with_mode
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.apps.sandbox.setting import FAILURES, SANDBOX, as_setting, check_goes_with
from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import build, read_toml
from hpcagent.model.contract import Contract, Resources
from hpcagent.model.parameter import Parameter
from hpcagent.moved import moved
from hpcagent.science.lammps.contract_checks import (
    check_artifacts,
    check_columns,
    check_length,
    check_structure,
    check_timestep,
    check_variables,
)
from hpcagent.science.lammps.contract_file import Checks, Column, ContractFile, LogReading, Structure
from hpcagent.science.lammps.contract_space import space_of
from hpcagent.science.lammps.failures import FAILURE_MODES
from hpcagent.science.lammps.promised import promised_metrics
from hpcagent.science.lammps.restart_script import with_restarts
from hpcagent.science.lammps.script import read_script

__all__ = ["contract_beside", "lammps", "packaged_inputs", "stem_of"]


def packaged_inputs() -> dict[str, Path]:
    """Name -> contract of the LAMMPS inputs that come with hpcagent.

    Example:
        >>> "lj_argon" in packaged_inputs()
        True
    """
    return dict(_packaged(packaged.folder("lammps_inputs")))


@functools.cache
def _packaged(root: Path) -> dict[str, Path]:
    """Looked for once in a process: each run asks whether its app is among them."""
    return {path.stem: path for path in sorted(root.glob("*/*.toml"))}


def lammps(
    script: str | Path,
    *,
    variables: Mapping[str, Parameter] | None = None,
    contract: str | Path | None = None,
    metrics: tuple[str, ...] | None = None,
    resources: Resources | None = None,
    resources_from: Mapping[str, str] | None = None,
    structure: Mapping[str, Any] | None = None,
    artifacts: Mapping[str, str] | None = None,
    columns: Mapping[str, Mapping[str, Any]] | None = None,
    checks: Mapping[str, Any] | None = None,
    log: Mapping[str, Any] | None = None,
    seed_variables: Sequence[str] | None = None,
    name: str | None = None,
    mode: str | None = None,
    sandbox: Sandbox | Mapping[str, Any] | str | None = None,
) -> App:
    """Make an app of a LAMMPS input script.

    The contract is the TOML of the same name beside the script (`in.melt` -> `melt.toml` or
    `in.melt.toml`), if there is one; arguments given here go before it.

    Args:
        script: Path of an input script or of its contract, or the name of a packaged input.
        variables: Name -> `Float(...)`, `Int(...)`, `Choice(...)` or `File(...)` for the script's `${variables}`.
        contract: Path of the contract, where it does not lie beside the script.
        metrics: Names of the metrics promised.
        resources: What one run occupies.
        resources_from: Resource -> name of the variable that decides it, e.g. `{"ranks_per_node": "ranks"}`; the
            script need not use that variable.
        structure: The structure that a run takes and gives, as the contract's table `[structure]`, e.g.
            `{"file": "structure.data", "elements": ["Ar"]}`.
        artifacts: Name -> file that a run must have written, e.g. `{"data": "final.data"}`.
        columns: Metrics of your own from thermo columns, as the contract's `[columns.NAME]`, e.g.
            `{"hottest": {"column": "Temp", "reduce": "max", "unit": "K"}}`; beside those of the contract.
        checks: What makes a run a failure, as `[checks]`, e.g. `{"conserved_energy": True}`; key by key before the
            contract's.
        log: Which run of the log is measured, as `[log]`, e.g. `{"production": 0, "discard": 0.1}`; likewise.
        seed_variables: Variables of the script that take the run's random seed, e.g. `["seed"]`; without any, runs
            at the same parameters are copies of one another, their speeds apart.
        name: The app's name.
        mode: How LAMMPS is started: `executable`, a program for each run; `library`, in a process that a worker
            keeps; `auto`, which of the two by what is known of the runs; `ensemble`, many runs in one launch.
            What a run gives does not depend on it.
        sandbox: Confines LAMMPS, for a script that is not trusted: a tier (`"limits"`, `"bubblewrap"`), the keys
            of `[sandbox]`, or a `Sandbox`. LAMMPS is then a program of its own, on one rank, and of its files only
            logs, restart files and artifacts are kept.

    Returns:
        The app. Its runs happen in directories of their own, with the files the script reads beside them.

    Raises:
        BadInput: The script or contract is missing, a variable is never used or has no value, a metric
            is not known for the script's `units`, or bounds make no sense.

    Example:
        >>> md = lammps("lj_argon")
        >>> md.contract.space["timestep"].unit
        'ps'
    """
    script_path, contract_path = _find(Path(script).expanduser(), contract)
    where = str(contract_path or script_path)
    file = ContractFile() if contract_path is None else _contract_file(contract_path, script_path)
    if file.script is not None and Path(file.script).name != script_path.name:
        raise BadInput(
            f"{where}: it is the contract of {file.script!r}, not of {script_path.name!r}; name the right "
            "contract, or drop its key 'script'.",
            value=file.script,
        )
    file = _with_given(file, columns or {}, checks or {}, log or {}, seed_variables)
    read = read_script(script_path)
    space = space_of(read, file, variables or {}, where, script_path.parent)
    deciding = file.resources_from if resources_from is None else dict(resources_from)
    check_names(space, where, "name it in `seed_variables` instead")
    check_variables(read, space, file, where, deciding)
    check_columns(read, file, where)
    check_timestep(read, space, where)
    text = read.text
    if file.restart is not None:
        rule = file.restart
        check_length(space, rule.steps, where)
        text = with_restarts(
            read, rule.variable, rule.every, production=file.log.production, where=where, steps=rule.steps
        )
    promised = promised_metrics(read, file, metrics, where)
    moved = file.structure if structure is None else build(Structure, dict(structure), where="structure=")
    kept = file.artifacts if artifacts is None else dict(artifacts)
    check_artifacts(kept, where)
    if moved is not None:
        check_structure(read, moved, kept, where)
    confined = file.sandbox if sandbox is None else sandbox
    made = build(
        Contract,
        {
            "name": name or file.name or stem_of(script_path),
            "version": file.version,
            "app_type": "simulation",
            "description": file.description,
            "space": space,
            "inputs": ("structure",) if moved is not None and moved.file else (),
            "metrics": promised,
            "resources": resources or file.resources,
            "resources_from": deciding,
            "deterministic": False,
            "seeded": bool(file.seed_variables),
            "estimated_runtime_s": file.estimated_runtime_s,
            "failure_modes": FAILURE_MODES if confined is None else (*FAILURE_MODES, *FAILURES),
            "side_effects": file.side_effects,
            "deprecated": file.deprecated,
        },
        where=where,
    )
    folder = script_path.resolve().parent
    # What the input run hands over is not what lies beside the script for runs by hand.
    files = [name for name in read.files if moved is None or name != moved.file]
    settings: dict[str, Any] = {
        "script": text,
        "units": read.units,
        "logs": [name for name in read.logs if name != "log.lammps"],
        "files": {name: sha256(folder / name) for name in files},
        "paths": {name: str(folder / name) for name in files},
        "only_read": list(read.only_read),
        "folders": list(read.folders),
        "seed_variables": list(file.seed_variables),
        "production": file.log.production,
        "discard": file.log.discard,
        "columns": {n: c.model_dump() for n, c in file.columns.items()},
        "conserved_energy": file.checks.conserved_energy,
        "nonsense_above": file.checks.nonsense_above,
        "min_cpu_use_percent": file.checks.min_cpu_use_percent,
    }
    if file.checks.atoms_change:
        settings["atoms_change"] = True
    if file.restart is not None:
        settings["restart"] = {"variable": file.restart.variable}
        if file.restart.steps is not None:
            settings["restart"]["steps"] = file.restart.steps
            settings["extendable"] = True
    if moved is not None:
        periodic = None if read.boundary is None else [word == "p" for word in read.boundary]
        settings["structure"] = moved.model_dump(mode="json") | {
            "atom_style": read.atom_style,
            "periodic": periodic,
        }
    if kept:
        settings["artifacts"] = kept
    if file.forces is not None:
        settings["forces"] = file.forces.model_dump(exclude_none=True)
    settings = with_mode(made.name, LAMMPS, settings, file.mode if mode is None else mode)
    if confined is not None:
        settings[SANDBOX] = as_setting(confined, where)
    check_goes_with(made.name, settings, made.resources, function=LAMMPS)
    return App(
        contract=made,
        function=LAMMPS,
        settings=settings,
        source=str(script),
        vary=tuple(variables) if variables else file.vary,
    )


def _with_given(
    file: ContractFile,
    columns: Mapping[str, Mapping[str, Any]],
    checks: Mapping[str, Any],
    log: Mapping[str, Any],
    seed_variables: Sequence[str] | None,
) -> ContractFile:
    """The contract with what was given in Python before it."""
    for what, given in (("columns", columns), ("checks", checks), ("log", log)):
        if not isinstance(given, Mapping):
            raise BadInput(f"{what}={given!r}: give a dict, as the contract's table [{what}].", value=given)
    if isinstance(seed_variables, str):
        raise BadInput(
            f"seed_variables={seed_variables!r}: give a list, as [{seed_variables!r}].", value=seed_variables
        )
    own = {}
    for name, column in columns.items():
        if not isinstance(name, str):
            raise BadInput(f"columns={{{name!r}: ...}}: the name of a metric is a text.", value=name)
        if not isinstance(column, Mapping):
            raise BadInput(
                f"columns={{{name!r}: {column!r}}}: give a dict such as "
                '{"column": "Temp", "reduce": "max", "unit": "K"}.',
                value=column,
            )
        own[name] = build(Column, dict(column), where=f"columns={{{name!r}: ...}}")
    return file.model_copy(
        update={
            "columns": {**file.columns, **own},
            "checks": build(Checks, {**file.checks.model_dump(), **checks}, where="checks="),
            "log": build(LogReading, {**file.log.model_dump(), **log}, where="log="),
            "seed_variables": file.seed_variables if seed_variables is None else tuple(seed_variables),
        }
    )


def _find(script: Path, contract: str | Path | None) -> tuple[Path, Path | None]:
    """Resolve what the user named to (script, contract or None)."""
    known = packaged_inputs()
    if not script.is_file() and len(script.parts) == 1 and str(script) in known:
        contract = contract or known[str(script)]
        script = Path(contract)
    if script.suffix == ".toml":
        contract = contract or script
        data = _contract_file(Path(contract))
        if data.script is None:
            raise BadInput(
                f"{contract}: the key 'script' is missing; name the input script beside it (or, of another "
                "program, its 'command')."
            )
        return Path(contract).parent / data.script, Path(contract)
    if not script.exists():
        raise BadInput(
            f"{script}: no such LAMMPS input script, and no packaged input of that name; "
            f"{nearest(str(script), known)}",
            value=str(script),
        )
    if contract is not None:
        if not Path(contract).is_file():
            raise BadInput(f"{contract}: no such contract file.", value=str(contract))
        return script, Path(contract)
    return script, None if script.is_dir() else contract_beside(script)


def contract_beside(script: Path) -> Path | None:
    """The contract that lies beside a script, or None."""
    names = (f"{script.name}.toml", f"{stem_of(script)}.toml")
    return next((path for path in map(script.with_name, names) if path.is_file()), None)


def _contract_file(path: Path, script: Path | None = None) -> ContractFile:
    data = read_toml(path)
    if "objective" in data or "app" in data:
        key = "[objective]" if "objective" in data else "the key 'app'"
        if script is None:
            raise BadInput(
                f"{path}: it is a campaign ({key}), not a contract; name the contract.", value=str(path)
            )
        raise BadInput(
            f"{path}: {path.name} beside {script.name} is read as its contract, but it looks like a campaign "
            f"({key}); rename one of them.",
            value=str(path),
        )
    return build(ContractFile, data, where=str(path))


def stem_of(script: Path) -> str:
    """The name that a script has by its file: that of its app, and of a contract beside it.

    Example:
        >>> stem_of(Path("in.melt")), stem_of(Path("melt.in")), stem_of(Path("in.v1.2"))
        ('melt', 'melt', 'v1_2')
    """
    name = script.name
    for ending in (".in", ".lmp", ".lammps", ".txt"):
        name = name.removesuffix(ending)
    name = name.removeprefix("in.").removeprefix("input.")
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in name) or "lammps"


__getattr__ = moved(__name__, {"averages": "hpcagent.science.lammps.promised"})
