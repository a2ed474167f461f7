"""Two classical potentials of ASE: effective-medium theory of some metals, and Lennard-Jones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.packages import accepted, needs, no_bands, versions_of
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Iteration, Level

if TYPE_CHECKING:
    from ase import Atoms

    from hpcagent.apps.run import Run

__all__ = ["EMT", "LJ"]


@dataclass(frozen=True, slots=True)
class _Classical:
    name: str
    kind: Literal["classical"] = "classical"
    isolated: bool = False
    takes: tuple[str, ...] = ()

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """ASE's `EMT` or `LennardJones`."""
        needs("ase", "pip install 'hpcagent[ase]'")
        keywords = dict(level.options.get("keywords") or {})
        return _emt(atoms, keywords) if self.name == "emt" else _lj(keywords)

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """None: there is no SCF."""
        return ()

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """None: there is no SCF."""
        return ()

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """None: the parameters are in the code."""
        return ()

    def versions(self, calculator: Any) -> dict[str, str]:
        """ASE's."""
        return versions_of("ase")

    def used(self, level: Level, atoms: Atoms, calculator: Any) -> dict[str, str]:
        """The potential."""
        return {"potential": {"emt": "effective-medium theory (ASE)", "lj": "Lennard-Jones (ASE)"}[self.name]}

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """No electrons, no bands."""
        raise no_bands(self.name)


def _emt(atoms: Atoms, keywords: dict[str, Any]) -> Any:
    from ase.calculators import emt

    unknown = sorted(set(atoms.get_chemical_symbols()) - set(emt.parameters))
    if unknown:
        raise AppFailed(
            f"EMT has no parameters for {', '.join(unknown)}; it has them for {', '.join(emt.parameters)} "
            "(the last ones only for show).",
            kind="contract",
            name="BadSettings",
        )
    return accepted("EMT", emt.EMT, keywords)


def _lj(keywords: dict[str, Any]) -> Any:
    from ase.calculators.lj import LennardJones

    missing = [name for name in ("epsilon", "sigma") if name not in keywords]
    if missing:
        raise AppFailed(
            f"the Lennard-Jones potential has no {' and no '.join(missing)}; set them with "
            'with_settings(keywords={"epsilon": 0.0104, "sigma": 3.40, "rc": 10.2}) (eV, angstrom; argon).',
            kind="contract",
            name="BadSettings",
        )
    return accepted("LennardJones", LennardJones, keywords)


EMT = _Classical("emt")
"""Effective-medium theory of Al, Cu, Ag, Au, Ni, Pd and Pt: K. W. Jacobsen et al., Surf. Sci. 366,
394 (1996), doi:10.1016/0039-6028(96)00816-3."""

LJ = _Classical("lj")
"""Lennard-Jones, cut off at `rc` (3 sigma if not given) and shifted to zero there; `smooth` and `ro` as in ASE."""
