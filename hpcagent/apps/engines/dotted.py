"""Any ASE calculator, by its dotted path: for engines of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.engines.base import Iteration, Level
from hpcagent.apps.engines.packages import accepted, needs, no_bands
from hpcagent.errors import AppFailed

if TYPE_CHECKING:
    from ase import Atoms

    from hpcagent.apps.run import Run

__all__ = ["ENGINE", "Dotted"]


class Dotted:
    """The calculator that the setting `calculator` names: `"package.module:Class"` (or with a dot).

    It is made with the setting `keywords` and nothing else, so no parameter of the level is taken. If its
    `calculate` raises `NotConverged`, that is the run's failure; there is nothing to repair it with.
    """

    name = "ase"
    kind: Literal["other"] = "other"
    isolated = True
    takes: tuple[str, ...] = ()

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """An instance of that class."""
        needs("ase", "pip install 'hpcagent[ase]'")
        reference = str(level.options.get("calculator") or "")
        module, colon, name = reference.partition(":")
        if not colon:
            module, _, name = reference.rpartition(".")
        if not module or not name:
            raise AppFailed(
                f"the setting `calculator` is {reference!r}; engine 'ase' needs the dotted path of a calculator, "
                'e.g. with_settings(calculator="ase.calculators.morse:MorsePotential").',
                kind="contract",
                name="BadSettings",
            )
        found = getattr(needs(module, f"the package of the calculator {reference}"), name, None)
        if not callable(found):
            raise AppFailed(f"module {module!r} has no calculator {name!r}.", kind="contract", name="BadSettings")
        made = accepted(reference, found, level.options.get("keywords") or {})
        if not hasattr(made, "get_property"):
            raise AppFailed(
                f"{reference} made a {type(made).__name__}, which is no ASE calculator: it has no get_property.",
                kind="contract",
                name="BadSettings",
            )
        return made

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """The calculator's own attribute `iterations`, if it has one; pairs of energy and change in eV."""
        return tuple(Iteration(*pair) if not isinstance(pair, Iteration) else pair for pair in _pairs(calculator))

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """None: nothing is known of it."""
        return ()

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """None: nothing is known of it."""
        raise no_bands(self.name)


def _pairs(calculator: Any) -> Any:
    found = getattr(calculator, "iterations", ())
    return found if isinstance(found, (list, tuple)) else ()


ENGINE = Dotted()
