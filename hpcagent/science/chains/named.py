"""Chains on crystals that are named, not given: what a campaign or a sweep can vary."""

from __future__ import annotations

from typing import Any

from hpcagent.apps.chain import chain
from hpcagent.apps.run import Run
from hpcagent.model.parameter import Choice, Float, Parameter, Text
from hpcagent.science.chains.defects import substitution, vacancy
from hpcagent.science.chains.levels import own_settings
from hpcagent.science.chains.surface import surface_energy
from hpcagent.science.engines.task import FILES, SETTINGS
from hpcagent.science.structures.crystal import LATTICES, build_crystal

__all__ = ["crystal_substitution", "crystal_surface_energy", "crystal_vacancy"]

NAMED: dict[str, Parameter] = {
    "name": Text(default="Cu", description="element or formula of the crystal"),
    "crystal": Choice(*LATTICES, default="auto", description="lattice; auto: the element's own"),
    "a": Float(0.0, 100.0, unit="angstrom", default=0.0, description="lattice constant to start at; 0: ASE's"),
}
"""Parameters that say which crystal is meant."""


def _of(app: Any) -> dict[str, Any]:
    """What a chain on a named crystal shares with the one on a given crystal."""
    contract = app.contract
    return {
        "parameters": NAMED | {p.name: p for p in contract.space.parameters},
        "metrics": {m.name: m for m in contract.metrics},
        "failure_modes": tuple(dict.fromkeys(("BadLattice", *contract.failure_modes))),
        "settings": SETTINGS,
        "files": FILES,
        "estimated_runtime_s": 600.0,
        "seeded": False,
    }


def _built(name: str, crystal: str, a: float, cubic: str) -> Any:
    return build_crystal(name=name, lattice=crystal, a=a, cubic=cubic)


@chain(name="crystal_surface_energy", version="1.0.0", vary=("h", "k", "l"), **_of(surface_energy))
def crystal_surface_energy(name: str, crystal: str, a: float, run: Run, **params: Any) -> Any:
    """Energy of a face of a crystal from its name: built, relaxed, cut; see `surface_energy`."""
    of = surface_energy.with_settings(**own_settings(run.settings))
    return of(_built(name, crystal, a, "no"), **params)


@chain(name="crystal_vacancy", version="1.0.0", vary=("repeat",), **_of(vacancy))
def crystal_vacancy(name: str, crystal: str, a: float, run: Run, **params: Any) -> Any:
    """Formation energy of a vacancy in a crystal from its name, in its cubic cell; see `vacancy`."""
    return vacancy.with_settings(**own_settings(run.settings))(_built(name, crystal, a, "yes"), **params)


@chain(name="crystal_substitution", version="1.0.0", vary=("replacement",), **_of(substitution))
def crystal_substitution(name: str, crystal: str, a: float, run: Run, **params: Any) -> Any:
    """Energy of a foreign atom in a crystal from its name, in its cubic cell; see `substitution`."""
    return substitution.with_settings(**own_settings(run.settings))(_built(name, crystal, a, "yes"), **params)
