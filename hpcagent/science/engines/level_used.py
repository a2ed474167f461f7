"""The level of theory that an engine really had, with its defaults resolved, in words for people and records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcagent.science.engines.base import Engine, Level
from hpcagent.science.engines.functionals import canonical
from hpcagent.science.engines.protocols import sampled

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["level_used"]

# How the engines' own keywords call a correction for dispersion.
_DISPERSION = ("vdw_corr", "ivdw", "disp", "dispersion", "luse_vdw")


def level_used(engine: Engine, level: Level, atoms: Atoms, calculator: Any) -> dict[str, str]:
    """What was computed with: name -> value with its unit; what an engine has not got is left out.

    Args:
        engine: The engine; its method `used`, where it has one, says what only it knows (basis, cutoff).
        level: As it was in the end: settled, with the structure's charge, after repairs.
        atoms: The structure.
        calculator: The engine's.
    """
    takes = engine.takes
    found = {"engine": engine.name, "kind": engine.kind}
    if "xc" in takes:
        found["xc"] = canonical(level.xc) or level.xc
    if "charge" in takes:
        found["charge"] = f"{level.charge:+d} e" if level.charge else "0 e"
    if "magmom" in takes:
        own = atoms.get_initial_magnetic_moments()
        moment = float(own.sum()) if own.any() else level.magmom * len(atoms)
        found["initial_moment"] = f"{moment:g} Bohr magnetons"
    if "kpts" in takes:
        found["kpoints"] = "x".join(map(str, sampled(atoms, level))) if atoms.pbc.any() else "none, not periodic"
    if "smearing" in takes:
        found["smearing"] = f"{level.smearing:g} eV" if level.smearing > 0 else "none"
    keywords: Mapping[str, Any] = level.options.get("keywords") or {}
    if engine.kind == "dft":
        named = [f"{name} = {keywords[name]!r}" for name in keywords if name.lower() in _DISPERSION]
        found["dispersion"] = ", ".join(named) or "none beside xc"
    if keywords:
        found["keywords"] = json.dumps(keywords, sort_keys=True, default=str)
    own_words = getattr(engine, "used", None)
    return found | (own_words(level, atoms, calculator) if callable(own_words) else {})
