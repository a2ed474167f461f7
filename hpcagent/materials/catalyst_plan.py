"""The run that computes a catalyst's adsorption energy: checked whole before anything is started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.errors import BadInput, in_brief, nearest
from hpcagent.materials.formulas import counts_of, named_formulas, reduced_text
from hpcagent.model.records import Manifest
from hpcagent.model.texts import line

__all__ = ["CatalystPlan", "plan_catalyst", "planned"]

# Atoms whose adsorption energies are counted from half a molecule, as in the literature: O and N (B. Hammer,
# J. K. Norskov, Adv. Catal. 45, 71 (2000)), H (J. K. Norskov et al., J. Electrochem. Soc. 152, J23 (2005)),
# halogens alike. From a free atom they are lower by half the molecule's binding energy, 1 to 5 eV, and nearly
# all metals are below -1.2 eV.
_HALVES = ("H", "N", "O", "F", "Cl", "Br", "I")


@dataclass(frozen=True, slots=True)
class CatalystPlan:
    """The run that would be made.

    Attributes:
        chain: What computes it.
        inputs: A structure; the molecule is built where it is computed.
        manifest: Of the run.
        metal: Of the catalyst.
        support: Likewise; `none` without one.
        adsorbate: What adsorbs.
        structure: The element, or the slab.
    """

    chain: App
    inputs: tuple[Any, ...]
    manifest: Manifest
    metal: str
    support: str
    adsorbate: str
    structure: str

    @property
    def catalyst(self) -> str:
        return self.metal if self.support == "none" else f"{self.metal}-{self.support}"

    @property
    def key(self) -> str:
        """Of the stored result, e.g. `CuZnO_CO2_run47.json`."""
        support = "" if self.support == "none" else self.support
        name = re.sub(r"[^A-Za-z0-9_+-]", "", f"{self.metal}{support}_{self.adsorbate}")[:100]
        return f"{name}_run{self.manifest.execution_id}.json"

    @property
    def conditions(self) -> dict[str, str]:
        """What the energy depends on beside the method, by columns; a slab of one's own has no facet."""
        params = self.manifest.params
        said = {name: str(params[name]) for name in ("facet", "site", "relax") if name in params}
        return {"energy_reference": f"{params['share']:g} {params['reference'] or self.adsorbate}"} | said

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be known of the number before anything is computed."""
        from hpcagent.science.engines.registry import engine
        from hpcagent.science.structures.slab import SITES

        params, said = self.manifest.params, []
        used = engine(str(params["engine"]))
        if used.kind != "dft":
            said.append(f"engine {used.name} is a {used.kind} model, no DFT")
        if "site" in params:
            others = ", ".join(site for site in SITES if site != params["site"])
            said.append(
                f"it is of the site {params['site']}: at others ({others}) it may bind more strongly; they are "
                "computations of their own"
            )
        return tuple(said)

    def check(self) -> None:
        """See that it can be computed.

        Raises:
            BadInput: A parameter is missing without which the run would fail.
        """
        from hpcagent.science.engines.protocols import refuse_unsampled

        refuse_unsampled(self.manifest.params)

    @property
    def method(self) -> str:
        m = self.manifest
        return line(f"{m.app} {m.app_version}, {m.params['engine']}")


def plan_catalyst(
    structure: str, adsorbate: str, *, catalyst: str | None = None, parameters: Mapping[str, Any] | None = None
) -> CatalystPlan:
    """The run that a workspace would make for the adsorption energy of an element; nothing is started.

    Args:
        structure: An element, of which the chain `adsorption` makes the slab.
        adsorbate: As `run_catalyst` has it, and so are `catalyst` and `parameters`.

    Raises:
        BadInput: The run has no such parameter, or a value is not allowed.
    """
    if not re.fullmatch(r"[A-Z][a-z]?", structure):
        raise BadInput(f"structure={in_brief(structure)} is no element.", value=structure)
    return planned(structure, adsorbate, catalyst, {}, parameters or {}, here=False)


def planned(
    structure: Any,
    adsorbate: str,
    catalyst: str | None,
    settings: Mapping[str, Any],
    parameters: Mapping[str, Any],
    *,
    here: bool,
) -> CatalystPlan:
    """The run, checked whole; nothing is started.

    Args:
        structure: As `run_catalyst` has it, and so are `adsorbate`, `catalyst`, `settings` and `parameters`.
        adsorbate: What adsorbs.
        catalyst: What it is called.
        settings: Of the engine.
        parameters: Of the chain.
        here: Whether it would run on the open site.

    Raises:
        BadInput: The run has no such parameter, or a value is not allowed.
    """
    from hpcagent.science.chains.adsorption import adsorption, adsorption_energy
    from hpcagent.sites.site import current_site

    if not isinstance(adsorbate, str) or not adsorbate.strip():
        raise BadInput(f"adsorbate={in_brief(adsorbate)} must be the name of an atom or a molecule.")
    pair = _pair(catalyst)
    of_element = isinstance(structure, str) and not Path(structure).suffix
    chain = adsorption if of_element else adsorption_energy
    _refuse_others(chain, parameters)
    parameters = _with_reference(adsorbate, parameters)
    if settings:
        chain = chain.with_settings(**settings)
    site = current_site() if here else None
    about = None if site is None else site.about
    if of_element:
        return _of_element(chain, structure, adsorbate, pair, parameters, about)
    return _of_slab(chain, structure, adsorbate, pair, parameters, about)


def _refuse_others(chain: App, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that the run does not have, or has from elsewhere."""
    names = [p.name for p in chain.contract.space.parameters]
    taken = {"metal", "adsorbate"} & set(names)
    free = [name for name in names if name not in taken]
    for name in parameters:
        if name not in free:
            instead = "they are structure and adsorbate" if name in taken else nearest(name, free)
            raise BadInput(
                f"the run ({chain.name} {chain.contract.version}) has no input {name!r}, and nothing is dropped; "
                f"{instead}",
                value=name,
            )


def _of_element(
    chain: App,
    structure: str,
    adsorbate: str,
    pair: tuple[str, str] | None,
    parameters: Mapping[str, Any],
    about: Mapping[str, Any] | None,
) -> CatalystPlan:
    made = named_formulas(structure)
    if len(made) != 1 or len(counts_of(structure)) != 1:
        raise BadInput(
            f"structure={structure!r} is no element, and of others no slab can be made from the name; give "
            f"the slab (ASE Atoms, or the path of a file) and catalyst={structure!r}.",
            value=structure,
        )
    manifest = chain.manifest({**parameters, "metal": structure, "adsorbate": adsorbate}, site=about)
    return CatalystPlan(chain, (), manifest, *(pair or (structure, "none")), adsorbate, structure)


def _of_slab(
    chain: App,
    structure: Any,
    adsorbate: str,
    pair: tuple[str, str] | None,
    parameters: Mapping[str, Any],
    about: Mapping[str, Any] | None,
) -> CatalystPlan:
    from hpcagent.apps.structures import Given, given, structure_of
    from hpcagent.science.structures.molecule import build_molecule

    slab = given(structure, "slab")
    if not isinstance(slab, Given):
        raise BadInput(f"structure={in_brief(structure)} is no element, no ASE Atoms and no path of a structure.")
    symbols = structure_of(slab.fields).get_chemical_symbols()
    formula = reduced_text({s: symbols.count(s) for s in dict.fromkeys(symbols)})
    values = chain.contract.space.validated(parameters, where=f"app {chain.name} {chain.contract.version}")
    molecule = build_molecule.manifest({"name": adsorbate, "vacuum": values["box"]}, site=about)
    manifest = chain.manifest(parameters, upstream=(slab.identity, molecule.execution_id), site=about)
    made_of = slab.fields["structure"]
    return CatalystPlan(chain, (slab,), manifest, *(pair or (formula, "none")), adsorbate, made_of)


def _with_reference(adsorbate: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the literature's reference, where none was asked for."""
    if adsorbate not in _HALVES or {"reference", "share"} & parameters.keys():
        return dict(parameters)
    spin = {"reference_magmom": 1.0} if adsorbate == "O" else {}
    return {"reference": f"{adsorbate}2", "share": 0.5} | spin | dict(parameters)


def _pair(catalyst: str | None) -> tuple[str, str] | None:
    """Metal and support of `Cu-ZnO`; None where nothing is said."""
    if catalyst is None:
        return None
    names = named_formulas(catalyst)
    if len(names) not in (1, 2):
        raise BadInput(
            f"catalyst={catalyst!r} must be a metal, or a metal and its support: Cu-ZnO.", value=catalyst
        )
    return names[0], names[1] if len(names) == 2 else "none"
