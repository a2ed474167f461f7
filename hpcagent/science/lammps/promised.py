"""The metrics that a LAMMPS app promises, and those that it may have."""

from __future__ import annotations

from collections.abc import Sequence

from hpcagent.errors import BadInput, nearest
from hpcagent.model.contract import Metric
from hpcagent.science.lammps.contract_file import FORCE_ERROR, FORCE_ERROR_RATIO, ContractFile
from hpcagent.science.lammps.metric_table import METRICS, metric_units
from hpcagent.science.lammps.script import Script

__all__ = ["averages", "promised_metrics"]


# Metrics whose meaning is a measured speed: better when larger, and noisy from outside the run.
_SPEEDS = ("ns_per_day", "tau_per_day", "timesteps_per_s")
_FASTER = (*_SPEEDS, *(f"{name}_cpu" for name in _SPEEDS))
# What a script whose contract names no metrics must at least yield.
_ALWAYS = ("timesteps_per_s", "loop_time_s", "n_atoms")
# What a sweep of such a script shows, of what its thermo output has.
_AVERAGES = ("temperature", "pressure", "density", "potential_energy", "total_energy")


def promised_metrics(
    read: Script, file: ContractFile, asked: tuple[str, ...] | None, where: str
) -> tuple[Metric, ...]:
    """Metrics that an app promises: those asked for, or those of the contract, with units of the script's style.

    Raises:
        BadInput: One is not known in these units, or lacks what it is worked out from.
    """
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


_LACKING = {
    FORCE_ERROR.name: " (it needs the contract's table [forces])",
    FORCE_ERROR_RATIO.name: " (it needs the key 'beside' in the contract's table [forces])",
}


def averages(metrics: Sequence[Metric]) -> tuple[str, ...]:
    """The thermodynamic averages of a script whose contract names no metrics; empty for every other app.

    Example:
        >>> from hpcagent.science.lammps.contract import lammps
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
