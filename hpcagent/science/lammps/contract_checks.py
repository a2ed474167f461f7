"""What a contract says held against its input script: variables, columns, timestep, length, files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from hpcagent.errors import BadInput, nearest
from hpcagent.model.space import Space
from hpcagent.science.lammps.contract_file import ContractFile, Structure
from hpcagent.science.lammps.script import KEEPS_EARLIER_VALUE, Script
from hpcagent.science.lammps.structure import READABLE, final_of
from hpcagent.science.lammps.structure import STYLES as ATOM_STYLES
from hpcagent.science.lammps.thermo_columns import column_units
from hpcagent.units import STYLES, factor, unit_style

__all__ = [
    "check_artifacts",
    "check_columns",
    "check_length",
    "check_structure",
    "check_timestep",
    "check_variables",
]


# What a misspelt unit of a timestep may have meant.
_TIMES = ("fs", "ps", "ns", "us", "tau")


def check_length(space: Space, steps: str | None, where: str) -> None:
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


def check_columns(read: Script, file: ContractFile, where: str) -> None:
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


def check_variables(
    read: Script, space: Space, file: ContractFile, where: str, deciding: Mapping[str, str]
) -> None:
    """Hold the variables of a contract against the script that has them.

    Raises:
        BadInput: One is given twice, is not in the script, or changes nothing in it.
    """
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


def check_artifacts(artifacts: Mapping[str, str], where: str) -> None:
    """Artifacts of a contract are plain names of files in a run's directory.

    Raises:
        BadInput: One is another path, or has a name that every run's own artifacts have.
    """
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


def check_structure(read: Script, structure: Structure, artifacts: Mapping[str, str], where: str) -> None:
    """Hold the structure that a run takes, or hands on, against the script.

    Raises:
        BadInput: The script is in reduced units, or elements or files do not go together with it.
    """
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


def check_timestep(read: Script, space: Space, where: str) -> None:
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
