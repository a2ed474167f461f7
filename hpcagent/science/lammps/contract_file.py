"""The contract of a LAMMPS app as it is written: the TOML beside an input script, and its tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hpcagent.apps.modes import LAMMPS_MODES
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.model.base import Record, Scalar
from hpcagent.model.contract import LONG_RUNTIME_S, OUTPUTS_ONLY, Metric, Resources

__all__ = [
    "FORCE_ERROR",
    "FORCE_ERROR_RATIO",
    "Checks",
    "Column",
    "ContractFile",
    "Forces",
    "LogReading",
    "Restart",
    "Structure",
    "Variable",
]


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
        return (FORCE_ERROR, *(() if self.beside is None else (FORCE_ERROR_RATIO,)))


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
    estimated_runtime_s: float = LONG_RUNTIME_S
    mode: str = LAMMPS_MODES[0]
    sandbox: Sandbox | None = None
    side_effects: str = OUTPUTS_ONLY
    deprecated: str | None = None


FORCE_ERROR = Metric(
    name="force_error",
    unit="1",
    description="rms(f - f_converged) / rms(f_converged), of the two dumps that `[forces]` names",
)
FORCE_ERROR_RATIO = Metric(
    name="force_error_ratio",
    unit="1",
    description="`force_error` over that of other settings at the same positions, the dump `beside` of `[forces]`",
)
