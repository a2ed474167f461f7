"""A LAMMPS app from an input script and the contract beside it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hpcagent import packaged
from hpcagent.apps.base import App, check_names
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.made_with import sha256
from hpcagent.apps.modes import LAMMPS_MODES, with_mode
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.apps.sandbox.setting import FAILURES, SANDBOX, as_setting, check_goes_with
from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Record, Scalar, build, read_toml
from hpcagent.model.contract import OUTPUTS_ONLY, Contract, Metric, Resources
from hpcagent.model.files import with_file_choices
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space
from hpcagent.science.lammps.failures import FAILURE_MODES
from hpcagent.science.lammps.metric_table import METRICS, metric_units
from hpcagent.science.lammps.restart import with_restarts
from hpcagent.science.lammps.script import KEEPS_EARLIER_VALUE, Script, read_script
from hpcagent.science.lammps.structure import READABLE, final_of
from hpcagent.science.lammps.structure import STYLES as ATOM_STYLES
from hpcagent.science.lammps.thermo_columns import column_units
from hpcagent.units import STYLES, factor, unit_style

__all__ = ["ContractFile", "Structure", "averages", "contract_beside", "lammps", "packaged_inputs"]

# Metrics whose meaning is a measured speed: better when larger, and noisy from outside the run.
_SPEEDS = ("ns_per_day", "tau_per_day", "timesteps_per_s")
_FASTER = (*_SPEEDS, *(f"{name}_cpu" for name in _SPEEDS))
# What a script whose contract names no metrics must at least yield.
_ALWAYS = ("timesteps_per_s", "loop_time_s", "n_atoms")
# What a sweep of such a script shows, of what its thermo output has.
_AVERAGES = ("temperature", "pressure", "density", "potential_energy", "total_energy")
# What a misspelt unit of a timestep may have meant.
_TIMES = ("fs", "ps", "ns", "us", "tau")


class Variable(Record):
    """One `[variables.NAME]` table: bounds, unit and default of a script variable."""

    kind: Literal["float", "int", "choice"] | None = None
    low: float | None = None
    high: float | None = None
    unit: str | None = None
    log: bool = False
    choices: tuple[Scalar, ...] = ()
    files: tuple[str, ...] = ()
    default: Scalar | None = None
    description: str = ""


class Column(Record):
    """One `[columns.NAME]` table: a metric of your own from a thermo column."""

    column: str
    reduce: Literal["mean", "std", "last", "first", "min", "max", "slope"] = "mean"
    unit: str = Field(min_length=1)
    description: str = ""


class LogReading(Record):
    """The `[log]` table: which run of the log is measured."""

    production: int = -1
    discard: float | None = Field(default=None, ge=0.0, lt=1.0)


class Checks(Record):
    """The `[checks]` table: what makes a run a failure although LAMMPS ended well."""

    conserved_energy: bool = False
    nonsense_above: float = Field(default=0.5, gt=0.0, allow_inf_nan=False)
    min_cpu_use_percent: float | None = Field(default=95.0, ge=0.0, allow_inf_nan=False)
    atoms_change: bool = False


class Restart(Record):
    """The `[restart]` table: how the script goes on from a restart file."""

    every: int = Field(ge=1)
    variable: str = "restart"
    steps: str | None = None


class Structure(Record):
    """The `[structure]` table: the structure that a run takes and gives.

    Attributes:
        elements: Element of each atom type, in order: the first is that of type 1.
        file: File that the script reads the input run's structure from; empty if it takes none.
        artifact: What of the input run becomes that file: `structure` is written as a LAMMPS data file, any other
            artifact, such as `data`, is copied as it is.
        charges: Element -> charge in elementary charges; the structure's own for elements that are not here.
        bonds: Bond types in order, by elements: `["O-H"]`.
        angles: Angle types in order, the middle atom in the middle: `["H-O-H"]`.
    """

    elements: tuple[str, ...]
    file: str = ""
    artifact: str = "structure"
    charges: dict[str, float] = {}
    bonds: tuple[str, ...] = ()
    angles: tuple[str, ...] = ()


class Forces(Record):
    """The `[forces]` table: dumps of the forces on the same atoms, for the metrics of their errors.

    Attributes:
        computed: The forces as the run computed them.
        converged: Converged ones at the same positions, for `force_error`.
        beside: Forces of other settings at the same positions, for `force_error_ratio`.
        beside_converged: What those converge to, where it is not `converged`.
    """

    computed: str
    converged: str
    beside: str | None = None
    beside_converged: str | None = None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that these dumps give."""
        return (_FORCE_ERROR, *(() if self.beside is None else (_FORCE_ERROR_RATIO,)))


class ContractFile(Record):
    """The TOML beside an input script.

    Attributes:
        name: The app's name; the script's name by default.
        version: Semantic version; raise it when the meaning of a result changes.
        description: One or two sentences on the physics.
        script: File name of the input script beside the contract.
        variables: The script's variables: bounds, unit, default.
        vary: Names of the variables that a campaign varies if it does not say; all without a default, or all.
        metrics: Names of the metrics promised (see the table in the reference).
        columns: Metrics of your own, from thermo columns.
        seed_variables: Variables that take the run's random seed.
        log: Which run of the log is measured.
        checks: What makes a run a failure although LAMMPS ended well.
        restart: How the script goes on from a restart file, if it can.
        structure: The structure that a run takes and gives, if it does.
        artifacts: Name -> file that a run must have written into its directory; the final structure is made
            from `data` (`write_data`), or else from `trajectory` (`dump`).
        forces: The dumps from which `force_error` and `force_error_ratio` are measured, if the script writes them.
        resources: What one run occupies.
        resources_from: Resource -> the variable that decides it, e.g. `ranks_per_node = "ranks"`.
        estimated_runtime_s: Expected wall time of one run, in seconds.
        mode: How LAMMPS is started: `executable`, `library`, `auto` or `ensemble`.
        sandbox: Confines LAMMPS: the keys of `[sandbox]`. It is then a program of its own, on one rank.
        side_effects: What a run touches beside its own directory (see `Contract.side_effects`).
        deprecated: Why it should not be used any more; it is then found by its version only.
    """

    name: str | None = None
    version: str = "0.1.0"
    description: str = ""
    script: str | None = None
    variables: dict[str, Variable] = {}
    vary: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    columns: dict[str, Column] = {}
    seed_variables: tuple[str, ...] = ()
    log: LogReading = LogReading()
    checks: Checks = Checks()
    restart: Restart | None = None
    structure: Structure | None = None
    artifacts: dict[str, str] = {}
    forces: Forces | None = None
    resources: Resources = Resources()
    resources_from: dict[str, str] = {}
    estimated_runtime_s: float = 60.0
    mode: str = LAMMPS_MODES[0]
    sandbox: Sandbox | None = None
    side_effects: str = OUTPUTS_ONLY
    deprecated: str | None = None


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
    space = _space(read, file, variables or {}, where, script_path.parent)
    deciding = file.resources_from if resources_from is None else dict(resources_from)
    check_names(space, where, "name it in `seed_variables` instead")
    _check_variables(read, space, file, where, deciding)
    _check_columns(read, file, where)
    _check_timestep(read, space, where)
    text = read.text
    if file.restart is not None:
        rule = file.restart
        _check_length(space, rule.steps, where)
        text = with_restarts(
            read, rule.variable, rule.every, production=file.log.production, where=where, steps=rule.steps
        )
    promised = _metrics(read, file, metrics, where)
    moved = file.structure if structure is None else build(Structure, dict(structure), where="structure=")
    kept = file.artifacts if artifacts is None else dict(artifacts)
    _check_artifacts(kept, where)
    if moved is not None:
        _check_structure(read, moved, kept, where)
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


def _check_length(space: Space, steps: str | None, where: str) -> None:
    """The variable of the length is one of the contract's, and a whole number."""
    if steps is None:
        return
    if steps not in space:
        raise BadInput(
            f"{where}, restart: steps = {steps!r} is none of the contract's variables; "
            f'{nearest(steps, space.names)} Write a table [variables.{steps}] with kind = "int".',
            value=steps,
        )
    if space[steps].kind != "int":
        raise BadInput(
            f"{where}, restart: steps = {steps!r} is a {space[steps].kind}; the length of a run is an int: "
            f'kind = "int" in [variables.{steps}].',
            value=steps,
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


def _check_columns(read: Script, file: ContractFile, where: str) -> None:
    """Refuse names that are none, and units in which LAMMPS does not print: the number is taken as it stands."""
    for name, column in file.columns.items():
        if not name.isidentifier():
            raise BadInput(
                f"{where}: columns: {name!r} is no name of a metric; use letters, digits and _.", value=name
            )
        printed = column_units(column.column, read.units)
        if column.reduce == "slope" and printed:
            printed = tuple(f"{unit}/{unit_style(read.units).time}" for unit in printed)
        if printed and unit_style(read.units).reduced:
            printed = (*printed, "1")
        if printed and not any(_same(column.unit, unit) for unit in printed):
            raise BadInput(
                f"{where}: columns.{name}: {column.column} is printed in {' or '.join(printed)} under units "
                f"{read.units}, not in {column.unit!r}; a column's numbers are taken as they stand.",
                value=column.unit,
            )


def _same(unit: str, other: str) -> bool:
    try:
        return unit == other or math.isclose(factor(unit, other), 1.0)
    except BadInput:
        return False


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


def _space(read: Script, file: ContractFile, given: Mapping[str, Parameter], where: str, folder: Path) -> Space:
    parameters = _parameters(file, where, folder)
    for name, parameter in given.items():
        if not isinstance(parameter, Parameter):
            raise BadInput(
                f"variables={{{name!r}: {parameter!r}}}: a variable is given as ha.Float(low, high, unit=...), "
                "ha.Int(...), ha.Choice(...) or ha.File(...).",
                value=parameter,
            )
        parameters[name] = parameter.model_copy(update={"name": name})
    with_defaults = [_with_default(read, p) for p in parameters.values()]
    for p in with_defaults:
        if p.when is not None and p.default is None:
            raise BadInput(
                f"{where}: variable {p.name!r} is left out where {p.when!r} is not kept, and has no default; give "
                f"it one, or define it in the script (variable {p.name} index ...).",
                value=p.name,
            )
    return Space(parameters=tuple(with_defaults))


def _parameters(file: ContractFile, where: str, folder: Path) -> dict[str, Parameter]:
    """The contract's own variables; what is wrong with them is told of all at once."""
    parameters: dict[str, Parameter] = {}
    lacking: list[str] = []
    wrong: list[BadInput] = []
    for name, variable in file.variables.items():
        if variable.unit is None and _kind(variable) != "choice":
            lacking.append(f"variables.{name}")
            continue
        try:
            parameters[name] = _parameter(name, variable, where, folder)
        except BadInput as error:
            wrong.append(error)
    if lacking:
        said = f"{where}, {', '.join(lacking)}: the key 'unit' is missing; write '1' for a pure number."
        wrong.insert(0, BadInput(said))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise BadInput(" ".join(error.message for error in wrong))
    return parameters


def _kind(variable: Variable) -> str:
    return variable.kind or ("choice" if variable.choices or variable.files else "float")


def _parameter(name: str, variable: Variable, where: str, folder: Path) -> Parameter:
    data: dict[str, Any] = with_file_choices(variable.model_dump(exclude_none=True), folder, f"{where}, {name}")
    unit = "1" if variable.unit is None else variable.unit
    return build(
        Parameter, data | {"name": name, "kind": _kind(variable), "unit": unit}, where=f"{where}, variables.{name}"
    )


def _with_default(read: Script, parameter: Parameter) -> Parameter:
    """Take the script's own `variable x index 1.0` as the default, where it is allowed."""
    style, word = read.defined.get(parameter.name, ("", ""))
    if any(isinstance(choice, bool) for choice in parameter.choices):
        raise BadInput(
            f"variables.{parameter.name}: a LAMMPS variable is a number or a word, not true or false; list what "
            'the script takes there, e.g. choices = ["yes", "no"] or [1, 0].',
            value=list(parameter.choices),
        )
    if parameter.default is not None or style not in ("index", "string"):
        return parameter
    value: Scalar = next((c for c in parameter.choices if str(c) == word), word)
    if parameter.kind != "choice":
        try:
            value = float(word)
        except ValueError:
            return parameter
    try:
        return parameter.model_copy(update={"default": parameter.validated(value)})
    except BadInput:
        return parameter


def _check_variables(
    read: Script, space: Space, file: ContractFile, where: str, deciding: Mapping[str, str]
) -> None:
    restart = () if file.restart is None else (file.restart.variable,)
    for name in restart:
        if name in space or name in file.seed_variables:
            raise BadInput(
                f"{where}: {name!r} names the restart file, so it cannot be a variable or seed variable too; "
                "drop it from the contract's other tables.",
                value=name,
            )
    for name in file.seed_variables:
        if name in space:
            raise BadInput(
                f"{where}: {name!r} is both a variable and a seed variable; drop it from one of them.", value=name
            )
    for name in (*space.names, *file.seed_variables):
        if name not in read.used and name in deciding.values():
            continue
        if name not in read.used:
            raise BadInput(
                f"{where}: the script {read.path.name} never uses the variable {name!r}; "
                f"{nearest(name, read.used)} Write ${{{name}}} in the script, or drop it from the contract.",
                value=name,
            )
        style = read.defined.get(name, ("index", ""))[0]
        if style not in KEEPS_EARLIER_VALUE:
            raise BadInput(
                f"{where}: the script {read.path.name} sets {name!r} itself with `variable {name} {style} ...`, "
                f"which does not keep the value it is given; write `variable {name} index ...`.",
                value=name,
            )
    has_value = {*space.names, *file.seed_variables, *read.defined, *read.conditional, *restart}
    for name in sorted(read.used):
        if name not in has_value:
            raise BadInput(
                f"{where}: the script {read.path.name} uses ${{{name}}}, which has no value; add it to the "
                f"contract's variables, or write `variable {name} index VALUE` in the script.",
                value=name,
            )


# Artifacts that every run has.
_OWN = ("input", "log", "log_before", "output", "restart", "variables")
_ELEMENT = re.compile(r"[A-Z][a-z]?\Z")


def _check_artifacts(artifacts: Mapping[str, str], where: str) -> None:
    for name, file in artifacts.items():
        if name in _OWN:
            raise BadInput(
                f"{where}, artifacts: {name!r} is an artifact that every run has; choose another name.", value=name
            )
        path = Path(file)
        if not file or path.is_absolute() or ".." in path.parts or "$" in file or "*" in file:
            raise BadInput(
                f"{where}, artifacts.{name}: {file!r} is not the plain name of a file in the run's directory.",
                value=file,
            )


def _check_structure(read: Script, structure: Structure, artifacts: Mapping[str, str], where: str) -> None:
    if read.units == "lj":
        raise BadInput(
            f"{where}, structure: the script {read.path.name} has `units lj`, but a structure has elements, "
            "and its lengths are in angstrom; use `units metal` or `units real`.",
            value=read.units,
        )
    if not structure.elements:
        raise BadInput(f"{where}, structure: name the element of each atom type, e.g. elements = ['Ar'].")
    for element in structure.elements:
        if not _ELEMENT.match(element) or structure.elements.count(element) > 1:
            raise BadInput(
                f"{where}, structure: elements are symbols, each once, in the order of the atom types; got "
                f"{list(structure.elements)}.",
                value=element,
            )
    _check_bonded(read, structure, where)
    if not structure.file:
        if final_of(artifacts, read.atom_style) is None and "structure" not in artifacts:
            raise BadInput(
                f"{where}, structure: it takes none (there is no 'file'), and gives none: name the final data "
                f"file (data, for `atom_style` {', '.join(READABLE)}) or the dump (trajectory) in [artifacts]."
            )
        return
    if Path(structure.file).is_absolute() or Path(structure.file).name != structure.file:
        raise BadInput(f"{where}, structure: file is the plain name of a file; got {structure.file!r}.")
    if not re.search(
        rf"^[^#\n]*\bread_(data|restart)\s+{re.escape(structure.file)}(\s|\"|$)", read.text, re.MULTILINE
    ):
        raise BadInput(
            f"{where}, structure: the script {read.path.name} never reads {structure.file!r}; write "
            f"`read_data {structure.file}` in place of the commands that make the atoms.",
            value=structure.file,
        )
    if structure.artifact == "structure" and read.atom_style not in ATOM_STYLES:
        raise BadInput(
            f"{where}, structure: the script {read.path.name} has `atom_style {read.atom_style}`; a structure is "
            f"written for {', '.join(ATOM_STYLES)}. Take the data file of another LAMMPS run (artifact = 'data').",
            value=read.atom_style,
        )


def _check_bonded(read: Script, structure: Structure, where: str) -> None:
    for element in structure.charges:
        if element not in structure.elements:
            raise BadInput(
                f"{where}, structure.charges: {nearest(element, structure.elements)} {element!r} is not among the "
                "elements.",
                value=element,
            )
    if structure.charges and read.atom_style == "atomic":
        raise BadInput(
            f"{where}, structure: charges need `atom_style charge` or `full` in {read.path.name}; it has `atomic`."
        )
    if (structure.bonds or structure.angles) and read.atom_style != "full":
        raise BadInput(
            f"{where}, structure: bonds and angles need `atom_style full` in {read.path.name}; it has "
            f"`{read.atom_style}`."
        )
    for what, length, names in (("bonds", 2, structure.bonds), ("angles", 3, structure.angles)):
        for name in names:
            parts = name.split("-")
            if len(parts) != length or not set(parts) <= set(structure.elements):
                raise BadInput(
                    f"{where}, structure.{what}: {name!r} is not {length} of the elements with '-' between them.",
                    value=name,
                )


def _check_timestep(read: Script, space: Space, where: str) -> None:
    """Refuse a timestep whose unit is not that of the script: its number goes to LAMMPS as it is."""
    if read.units not in STYLES:
        return  # said with the metrics
    right = unit_style(read.units).time
    for name in sorted(read.timesteps.intersection(space.names)):
        unit = space[name].unit
        try:
            fits = unit == "1" or factor(unit, right) == 1.0
        except BadInput:
            # Of another dimension, or unknown: a word we do not know may be right, a misspelt one is not.
            fits = not (_known(unit) or get_close_matches(unit.lower(), (right, *_TIMES), cutoff=0.75))
        if not fits:
            raise BadInput(
                f"{where}: {name!r} is in {unit}, but the script's `timestep ${{{name}}}` under "
                f"`units {read.units}` takes {right}; the number goes to the "
                f"script as it stands, so give bounds and unit in {right}.",
                value=unit,
            )


def _known(unit: str) -> bool:
    try:
        factor(unit, unit)
    except BadInput:
        return False
    return True


def _metrics(read: Script, file: ContractFile, asked: tuple[str, ...] | None, where: str) -> tuple[Metric, ...]:
    try:
        units = metric_units(read.units)
    except BadInput as error:
        raise BadInput(f"{read.path}: units: {error.message}", value=read.units) from None
    names = tuple(asked) if asked is not None else file.metrics
    forces = () if file.forces is None else file.forces.metrics
    more = (*file.columns, *(m.name for m in forces))
    for name in names:
        if name not in units and name not in more:
            other = f" (it exists, but not in `units {read.units}`)" if name in METRICS else ""
            other = _LACKING.get(name, other)
            raise BadInput(
                f"{where}: unknown metric {name!r}{other}; {nearest(name, [*units, *more])}", value=name
            )
    required = names or (() if file.columns else _ALWAYS)
    found = [_metric(name, unit, required=name in required) for name, unit in units.items()]
    own = [
        Metric(name=n, unit=c.unit, description=c.description or f"{c.reduce} of thermo column {c.column}")
        for n, c in file.columns.items()
    ]
    return (*found, *own, *forces)


_FORCE_ERROR = Metric(
    name="force_error",
    unit="1",
    description="rms(f - f_converged) / rms(f_converged), of the two dumps that `[forces]` names",
)
_FORCE_ERROR_RATIO = Metric(
    name="force_error_ratio",
    unit="1",
    description="`force_error` over that of other settings at the same positions, the dump `beside` of `[forces]`",
)
_LACKING = {
    _FORCE_ERROR.name: " (it needs the contract's table [forces])",
    _FORCE_ERROR_RATIO.name: " (it needs the key 'beside' in the contract's table [forces])",
}


def averages(metrics: Sequence[Metric]) -> tuple[str, ...]:
    """The thermodynamic averages of a script whose contract names no metrics; empty for every other app.

    Example:
        >>> averages(lammps("lj_melt").contract.metrics)  # its contract names its own
        ()
    """
    if {m.name for m in metrics if m.required} != set(_ALWAYS):
        return ()
    return tuple(m.name for m in metrics if m.name.startswith(_AVERAGES))


def _metric(name: str, unit: str, *, required: bool) -> Metric:
    return Metric(
        name=name,
        unit=unit,
        description=METRICS[name].description,
        direction="maximize" if name in _FASTER else None,
        required=required,
        undisturbed=f"{name}_cpu" if name in _SPEEDS else None,
    )
