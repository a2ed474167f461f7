"""Any ASE calculator, by its dotted path: for engines of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.made_with import package_version
from hpcagent.apps.packages import accepted, needs, no_bands, versions_of
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Iteration, Level

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
        module, name = _parts(level)
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

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """The calculator's own module, where it is a file of the user's; a path in `keywords` counts by itself."""
        source = _source(_parts(level)[0])
        return () if source is None else (Deciding("calculator", source),)

    def versions(self, calculator: Any) -> dict[str, str]:
        """Of ASE, and of the package that the calculator comes from."""
        package = type(calculator).__module__.partition(".")[0]
        # Of the same name mostly; to look into every installed distribution takes a fifth of a second.
        known = package_version(package) is not None
        of_package = (package,) if known else metadata.packages_distributions().get(package, ())
        return versions_of("ase", *of_package)

    def used(self, level: Level, atoms: Atoms, calculator: Any) -> dict[str, str]:
        """The calculator's dotted path."""
        return {"calculator": str(level.options.get("calculator") or "")}

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """None: nothing is known of it."""
        raise no_bands(self.name)


def _parts(level: Level) -> tuple[str, str]:
    """The module and the name in it that the setting `calculator` stands for."""
    reference = str(level.options.get("calculator") or "")
    module, colon, name = reference.partition(":")
    if not colon:
        module, _, name = reference.rpartition(".")
    return module, name


def _source(module: str) -> Path | None:
    """The file of a module, found without importing anything; None where it is no Python file."""
    places: Sequence[str] | None = None
    spec = None
    whole = ""
    for part in module.split("."):
        whole = f"{whole}.{part}" if whole else part
        spec = PathFinder.find_spec(whole, places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    origin = None if spec is None else spec.origin
    return Path(origin) if origin is not None and Path(origin).is_file() else None


def _pairs(calculator: Any) -> Any:
    found = getattr(calculator, "iterations", ())
    return found if isinstance(found, (list, tuple)) else ()


ENGINE = Dotted()
