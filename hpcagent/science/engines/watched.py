"""A calculator that keeps watch over the engine's own: what each SCF did, and what is tried when one fails.

An SCF that does not converge is tried again with the engine's repairs, one after the other, each at most once in a
run. The level that a repair led to is kept for what follows. Nothing of this is silent: it is in `scf.json` of the
run's directory (also of a run that fails), in the metric `n_repairs` and in the notes of the result.
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from hpcagent.apps.deciding import used
from hpcagent.apps.run import Run
from hpcagent.apps.structures import read_structure, total_charge
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import KPOINTS, LEVEL, Engine, Iteration, Level, NotConverged
from hpcagent.science.engines.hooks import of_level
from hpcagent.science.engines.level_used import level_used
from hpcagent.science.engines.protocols import settled
from hpcagent.science.engines.registry import check
from hpcagent.science.engines.registry import engine as engine_of

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["SCF_FILE", "Watch", "attached", "changed_in", "changes"]

SCF_FILE = "scf.json"
"""SCF histories of a run, in its directory."""

# Parameters that say what is computed, not how: a repair that changes one of them gives the energy of another
# system.
_PHYSICS = ("xc", "basis", "ecut", *KPOINTS, "smearing", "charge", "magmom")

# Later calculations of a long run keep their number of steps only, unless something was repaired.
_WHOLE_HISTORIES = 100
# Charges of atoms are written with a few digits; their sum may be off by this much of an elementary charge.
_WHOLE_CHARGE = 0.01
_WRITE_EVERY_S = 5.0
_TAIL = 20


class Watch:
    """Makes calculators for a run, counts their SCF steps and repairs them.

    Attributes:
        engine: What computes.
        level: The level of theory now; a repair changes it.
        calculator: The engine's own calculator.
        scf_steps: SCF steps so far, those of failed attempts included.
        n_calculations: Calculations so far.
        repaired: What was done so far: `gentler_mixing: mixing 0.7 -> 0.28`.
        notes: Sentences for the notes of the result.
        files: Files whose content decides what is computed: path -> SHA-256.
    """

    def __init__(self, engine: Engine, atoms: Atoms, level: Level, run: Run) -> None:
        check(engine, level)
        elements = dict.fromkeys(atoms.get_chemical_symbols())
        self.files, said = used(of_level(engine, level, run.site), run, elements)
        level, defaults = settled(level, atoms, engine)
        self.engine = engine
        self.level = level
        self.scf_steps = 0
        self.n_calculations = 0
        self.repaired: list[str] = []
        self.notes: list[str] = [*said, *defaults]
        self._run, self._atoms = run, atoms
        self._records: list[dict[str, Any]] = []
        self._written = -math.inf
        self._last: tuple[Iteration, ...] = ()
        self._todo = list(engine.repairs(level))[: level.repairs] if level.repairs else []
        self.calculator = engine.calculator(atoms, level, run)

    def compute(self, atoms: Atoms, properties: Sequence[str], *, again: bool = False) -> dict[str, Any]:
        """Properties of these atoms by ASE's names, and whatever else the calculation gave.

        Args:
            atoms: The atoms.
            properties: E.g. `energy`, `forces`.
            again: Whether the atoms are those of the last call; many engines then have the SCF already.

        Raises:
            NotConverged: No repair helped.
            AppFailed: The engine failed in another way.
        """
        self.n_calculations += not again
        record: dict[str, Any] = {"calculation": self.n_calculations, "repairs": []}
        attempts: list[tuple[Iteration, ...]] = []
        while True:
            try:
                results = self._attempt(atoms, properties)
                history = tuple(self.engine.iterations(self.calculator))
                if again and not attempts and history == self._last:
                    return results
                break
            except NotConverged as error:
                history = tuple(error.details.get("history") or ()) or tuple(
                    self.engine.iterations(self.calculator)
                )
                attempts.append(history)
                self.scf_steps += len(history)
                if not self._todo:
                    self._note(record, attempts, converged=False)
                    raise self._given_up(error, record, history) from None
                record["repairs"].append(self._repair(atoms))
            except AppFailed:
                self._note(record, attempts, converged=False)
                raise
        attempts.append(history)
        self._last = history
        self.scf_steps += len(history)
        self._note(record, attempts, converged=True, energy=results.get("energy"))
        return results

    def _attempt(self, atoms: Atoms, properties: Sequence[str]) -> dict[str, Any]:
        from ase.calculators.calculator import PropertyNotImplementedError

        found: dict[str, Any] = {}
        try:
            for name in properties:
                # Where an engine knows no other, its energy is the one that belongs to its forces.
                asked = "energy" if name == "free_energy" and name not in _implemented(self.calculator) else name
                found[name] = self.calculator.get_property(asked, atoms)
        except (AppFailed, OSError, MemoryError):
            raise
        except PropertyNotImplementedError as error:
            raise AppFailed(
                f"engine {self.engine.name!r} does not compute what was asked for: {error}.",
                kind="contract",
                name="NoProperty",
            ) from None
        except Exception as error:  # every engine has its own; what it was asked is all that they have in common
            raise AppFailed(
                f"the calculator of engine {self.engine.name!r} failed: {type(error).__name__}: {error}.",
                name="EngineFailed",
                log_tail=traceback.format_exc()[-4000:],
            ) from error
        results = getattr(self.calculator, "results", None)
        found = {**(results if isinstance(results, Mapping) else {}), **found}
        return {"free_energy": found["energy"], **found} if "energy" in found else found

    def _repair(self, atoms: Atoms) -> str:
        name, level = self._todo.pop(0)
        what = changes(self.level, level)
        said = f"{name}: {what}" if what else name
        self.repaired.append(said)
        where = f"from calculation {self.n_calculations} on" if self.n_calculations > 1 else "for the whole run"
        self.notes.append(f"an SCF did not converge; repaired by {said} ({where})")
        other = [field for field in _PHYSICS if getattr(level, field) != getattr(self.level, field)]
        if other:
            self.notes.append(
                f"the repair {name} changed the physics: energies at another {' or '.join(other)} must not be "
                f"compared with this one{'; it holds only ' + where if self.n_calculations > 1 else ''}"
            )
        self._close_calculator()
        self.level = level
        self.calculator = self.engine.calculator(atoms, level, self._run)
        return said

    def _given_up(
        self, error: NotConverged, record: dict[str, Any], history: tuple[Iteration, ...]
    ) -> NotConverged:
        tried = record["repairs"]
        message = error.message.rstrip(".")
        if tried:
            message += f", also not after {'; '.join(tried)}"
        if self.n_calculations > 1:
            message += f" (calculation {self.n_calculations} of the run)"
        details = {k: v for k, v in error.details.items() if k not in ("history", "log_tail", "repair")}
        advice = "more smearing for a metal, another initial moment or charge, or a sounder structure"
        if self.level.repairs == 0:
            advice = f"allow repairs, or {advice}"
        return NotConverged(
            message + ".",
            history=history,
            log_tail="\n".join(filter(None, (error.details.get("log_tail"), _table(history)))),
            repair=error.details.get("repair") or advice,
            **details,
        )

    def _note(
        self,
        record: dict[str, Any],
        attempts: list[tuple[Iteration, ...]],
        *,
        converged: bool,
        energy: float | None = None,
    ) -> None:
        whole = len(self._records) < _WHOLE_HISTORIES or record["repairs"] or not converged
        record |= {
            "converged": converged,
            "energy_eV": None if energy is None else float(energy),
            "n_steps": sum(map(len, attempts)),
            # Each attempt: [energy in eV, change in eV] of each step.
            "attempts": [[[_plain(i.energy), _plain(i.change)] for i in history] for history in attempts]
            if whole
            else None,
        }
        if record["n_steps"] or record["repairs"] or not converged:
            self._records.append(record)
        if record["repairs"] or not converged or time.monotonic() - self._written > _WRITE_EVERY_S:
            self.write()

    def write(self) -> dict[str, str]:
        """Write `scf.json`; returns the artifact, nothing if there has been no SCF."""
        if not self._records:
            return {}
        self._written = time.monotonic()
        path = self._run.workdir / SCF_FILE
        part = path.with_name(f"{path.name}.part")
        level = level_used(self.engine, self.level, self._atoms, self.calculator)
        part.write_text(
            json.dumps({"engine": self.engine.name, "level_of_theory": level, "calculations": self._records})
        )
        os.replace(part, path)  # noqa: PTH105  (one call either way)
        return {"scf": SCF_FILE}

    @property
    def remarks(self) -> list[str]:
        """Our notes and those of the engine's calculator, if it has any (its attribute `notes`)."""
        return [*self.notes, *getattr(self.calculator, "notes", ())]

    @property
    def versions(self) -> dict[str, str]:
        """What has computed: name of the program or Python distribution -> version."""
        return self.engine.versions(self.calculator)

    @property
    def made_with(self) -> dict[str, Any]:
        """For the `Outcome`: the files, the versions and the level of theory that its numbers come from."""
        level = level_used(self.engine, self.level, self._atoms, self.calculator)
        return {"files": self.files, "versions": self.versions, "level_of_theory": level}

    def close(self) -> dict[str, str]:
        """Write `scf.json` and let the calculator end what it has open.

        Returns:
            The artifact `scf`, where there was an SCF, and those of the calculator (its attribute `artifacts`).
        """
        self._close_calculator()
        return {**getattr(self.calculator, "artifacts", {}), **self.write()}

    def _close_calculator(self) -> None:
        close = getattr(self.calculator, "close", None)
        if callable(close):
            close()


def charged(atoms: Atoms, level: Level) -> Level:
    """The level with the structure's charge, where it has one of its own; the structure then says so, too.

    A structure's charge is `charge` in its `info`, else the sum of its atoms' initial charges.

    Raises:
        AppFailed: `BadSettings`: structure and level say different charges, the atoms' charges add up to no whole
            number, or the engine knows no charge.
    """
    total = total_charge(atoms)
    whole = round(total)
    if abs(total - whole) > _WHOLE_CHARGE:
        raise AppFailed(
            f"the structure {atoms.symbols} has a charge of {total:g}, which is no whole number of elementary "
            "charges.",
            kind="contract",
            name="BadSettings",
            repair="set Atoms.info['charge'] to the total charge of the structure",
        )
    if whole and level.charge not in (0, whole):
        raise AppFailed(
            f"charge={level.charge:+d}, but the structure {atoms.symbols} has a charge of {whole:+d} of its own.",
            kind="contract",
            name="BadSettings",
            repair=f"leave `charge` out, or change the structure's (Atoms.info['charge'] = {level.charge})",
        )
    engine = engine_of(level.engine)
    if whole and "charge" not in engine.takes and engine.kind != "other":
        raise AppFailed(
            f"the structure {atoms.symbols} has a charge of {whole:+d}; engine {engine.name!r} knows no charges.",
            kind="contract",
            name="BadSettings",
            repair="an engine with electrons (pyscf, tblite, gpaw, espresso, vasp), or a neutral structure",
        )
    if engine.kind == "other" or not (whole or level.charge):
        return level
    level = replace(level, charge=whole or level.charge)
    atoms.info["charge"] = level.charge
    return level


def attached(run: Run, level: Level) -> tuple[Atoms, Watch]:
    """The structure of the run's first input with a watched calculator of the level's engine.

    Raises:
        AppFailed: `NoStructure`, `BadSettings`, `NoEngine`, or what the engine says.
    """
    atoms = read_structure(run)
    level = charged(atoms, level)
    watch = Watch(engine_of(level.engine), atoms, level, run)
    atoms.calc = _calculator_class()(watch)
    return atoms, watch


@functools.cache
def _calculator_class() -> Any:
    from ase.calculators.calculator import Calculator

    class Watched(Calculator):
        """An ASE calculator whose results come from a `Watch`."""

        def __init__(self, watch: Watch) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.watch = watch
            self.implemented_properties = [*dict.fromkeys([*_implemented(watch.calculator), "free_energy"])]

        @property
        def name(self) -> str:
            return self.watch.engine.name

        def check_state(self, atoms: Any, tol: float = 1e-15) -> list[str]:
            # Dynamics ask several times in each step.
            return changed_in(self.atoms, atoms, tol)

        def calculate(
            self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = ("all",)
        ) -> None:
            super().calculate(atoms, properties, system_changes)  # type: ignore[no-untyped-call]
            self.results |= self.watch.compute(atoms, properties, again=not system_changes)

    return Watched


def changed_in(before: Any, after: Any, tol: float = 1e-15) -> list[str]:
    """What of a structure has changed, by ASE's names: as its `compare_atoms`, whose tolerance takes long.

    Args:
        before: Atoms, or None: everything has.
        after: Atoms.
        tol: Difference of two numbers that are the same.
    """
    from ase.calculators.calculator import all_changes, equal

    if before is None:
        return list(all_changes)
    found = []
    for name in all_changes:
        one, other = (
            atoms.cell.array if name == "cell" else atoms.pbc if name == "pbc" else atoms.arrays.get(name)
            for atoms in (before, after)
        )
        if one is None or other is None:
            if one is not other:
                found.append(name)
        elif not (one.shape == other.shape and (one == other).all()) and not equal(one, other, atol=tol):
            found.append(name)
    return found


def _implemented(calculator: Any) -> Sequence[str]:
    found: Sequence[str] = getattr(calculator, "implemented_properties", ())
    return found


def changes(old: Level, new: Level) -> str:
    """What differs between two levels, in words.

    Example:
        >>> changes(Level("pyscf", mixing=0.7), Level("pyscf", mixing=0.28))
        'mixing 0.7 -> 0.28'
    """
    found = []
    for field in fields(new):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        if field.name == "options":
            found += [
                f"{key} {before.get(key, 'not set')} -> {value}"
                for key, value in after.items()
                if value != before.get(key)
            ]
            continue
        unit = "" if LEVEL[field.name].unit == "1" else f" {LEVEL[field.name].unit}"
        # For these 0 is no value but the engine's own choice.
        own = before == 0 and field.name in ("mixing", "ecut")
        found.append(f"{field.name} {'(own)' if own else _short(before)} -> {_short(after)}{unit}")
    return ", ".join(found)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _table(history: tuple[Iteration, ...]) -> str:
    first = max(0, len(history) - _TAIL)
    rows = [f"{n + 1:6d} {i.energy:20.8f} {i.change:14.3e}" for n, i in enumerate(history) if n >= first]
    return "\n".join(["  step          energy (eV)    change (eV)", *rows]) if rows else ""
