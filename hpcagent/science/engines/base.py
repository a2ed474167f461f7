"""What an engine is, and the level of theory it is asked for.

Every engine is an ASE `Calculator`: energies in eV, forces in eV/angstrom, stresses in eV/angstrom^3. An engine
module has one `ENGINE`, the registry in `hpcagent.science.engines.registry` finds it by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hpcagent.errors import AppFailed
from hpcagent.model.parameter import Choice, Float, Int, Parameter, Text
from hpcagent.offered import offered

if TYPE_CHECKING:
    from ase import Atoms

    from hpcagent.apps.deciding import Deciding
    from hpcagent.apps.run import Run

__all__ = [
    "BUILT_IN",
    "ENGINES",
    "KPOINTS",
    "LEVEL",
    "PROTOCOLS",
    "Engine",
    "Iteration",
    "Level",
    "NotConverged",
]

PROTOCOLS = ("fast", "moderate", "precise")
"""Names of the sets of defaults in `hpcagent.science.engines.protocols`."""

KPOINTS = ("protocol", "kspacing", "kpts", "mesh")
"""The parameters that say how a crystal is sampled; an engine takes all of them or none."""

BUILT_IN = ("pyscf", "tblite", "gpaw", "espresso", "vasp", "mace", "emt", "lj", "ase")
"""hpcagent's own engines; `ase` is any calculator by dotted path."""

ENGINES = (*BUILT_IN, *(name for name in offered("engines") if name not in BUILT_IN))
"""Names of the engines: hpcagent's own, and what packages offer as `hpcagent.engines`."""

LEVEL: dict[str, Parameter] = {
    "engine": Choice(
        *ENGINES, default="pyscf", description="what computes; `ase`: the calculator named in settings"
    ),
    "xc": Text(default="", description="functional (DFT) or method (tblite); empty: PBE, GFN2-xTB"),
    "basis": Text(
        default="", description="basis set (pyscf) or mode (gpaw: pw, lcao, fd); empty: the engine's own"
    ),
    "ecut": Float(0.0, 5000.0, unit="eV", default=0.0, description="plane-wave cutoff; 0: the engine's own"),
    "protocol": Choice(
        *PROTOCOLS,
        default="moderate",
        description="how well converged what is not given is: k-points and smearing of crystals, cutoff of gpaw",
    ),
    "kspacing": Float(
        0.0,
        5.0,
        unit="1/angstrom",
        default=0.0,
        description="largest distance of k-points, 2 pi included; 0: the protocol's, for crystals",
    ),
    "kpts": Int(
        0,
        64,
        default=0,
        description="k-points along the longest reciprocal vector, others in proportion; 0: by kspacing",
    ),
    "mesh": Text(default="", description="numbers of k-points themselves, 8x8x6; empty: by kpts or kspacing"),
    "smearing": Float(
        -1.0,
        5.0,
        unit="eV",
        default=-1.0,
        description="width of the occupations; 0: none; -1: the protocol's for crystals (gpaw, espresso), or 0",
    ),
    "charge": Int(
        -20, 20, default=0, unit="1", description="total charge in elementary charges; 0: that of the structure"
    ),
    "magmom": Float(
        -10.0, 10.0, default=0.0, unit="1", description="initial moment of each atom in Bohr magnetons; 0: no spin"
    ),
    "tolerance": Float(
        1e-10,
        1e-2,
        unit="eV",
        log=True,
        default=1e-5,
        description="largest change of the energy in the last SCF step",
    ),
    "max_scf": Int(1, 10000, default=100, description="SCF steps before it counts as not converged"),
    "mixing": Float(0.0, 1.0, default=0.0, description="share of the new density mixed in; 0: the engine's own"),
    "repairs": Int(0, 4, default=2, description="how often an SCF that does not converge is tried otherwise"),
}
"""The parameters by which an app is told what to compute with; the same for every engine."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of theory: the values of `LEVEL`, and what the app's settings say beside them.

    `hpcagent.science.engines.protocols.settled` makes one of it that has a `mesh` and a `smearing` for a
    structure; a negative `smearing` that was not settled is none.

    Attributes:
        options: Settings of the app (plain data), e.g. `pseudopotentials`, `command`, `calculator`, `checkpoint`,
            `keywords` (passed on to the calculator as they are).
    """

    engine: str
    xc: str = ""
    basis: str = ""
    ecut: float = 0.0
    protocol: str = "moderate"
    kspacing: float = 0.0
    kpts: int = 0
    mesh: str = ""
    smearing: float = -1.0
    charge: int = 0
    magmom: float = 0.0
    tolerance: float = 1e-5
    max_scf: int = 100
    mixing: float = 0.0
    repairs: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(params: Mapping[str, Any], options: Mapping[str, Any]) -> Level:
        """The level in an app's parameters; others than those of `LEVEL` are passed over."""
        return Level(**{k: v for k, v in params.items() if k in LEVEL}, options=dict(options))


@dataclass(frozen=True, slots=True)
class Iteration:
    """One step of a self-consistent field.

    Attributes:
        energy: Total energy, in eV; NaN where the engine does not print it.
        change: Absolute change or estimated error of the energy, in eV; NaN where not known.
    """

    energy: float
    change: float


class NotConverged(AppFailed):
    """An SCF that did not converge; raised by an engine's calculator.

    Args:
        message: A full sentence.
        history: The `Iteration`s, as far as they are known.
    """

    def __init__(self, message: str, *, history: tuple[Iteration, ...] = (), **details: Any) -> None:
        super().__init__(message, **({"name": "NotConverged"} | details), history=history)


class Engine(Protocol):
    """One engine.

    Rules: `calculator` imports what it needs inside; a missing package or program is an `AppFailed` of kind
    `infrastructure` named `NoEngine` that says how to get it. The calculator's `calculate` raises `NotConverged`.
    All files go into `run.workdir`. A method `used(level, atoms, calculator)`, which an engine need not have, says
    what its own defaults were (basis set, cutoff): name -> value with its unit, for the result.
    """

    name: str
    kind: Literal["dft", "semi-empirical", "classical", "machine-learned", "other"]
    # Heavy, or not to be trusted with the worker's process: the app's function runs in a child process of its own.
    isolated: bool
    # Names of parameters in LEVEL that it takes into account; others must have their defaults.
    takes: tuple[str, ...]

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """An ASE calculator for these atoms (not attached to them yet)."""

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """SCF history of the calculator's last calculation; empty for engines without an SCF."""

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """What to try when an SCF at this level has not converged, in this order: (name, changed level)."""

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """The files that decide this engine's numbers at this level, for all elements; none that is missing.

        Called where the run is planned and where it is, so it imports no heavy package and raises nothing: what is
        wrong with a file the calculator says.

        Args:
            level: The level of theory; its options are the app's settings.
            site: `apps`, with the environment of each engine.
        """

    def versions(self, calculator: Any) -> dict[str, str]:
        """Versions of what has computed: name of the program or Python distribution -> version."""

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """An `ase.spectrum.band_structure.BandStructure` along an ASE `BandPath`, after an SCF."""
