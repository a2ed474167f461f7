"""Catalysts and electronic structure: look up, compute what nobody has computed, write down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hpcagent.errors import BadInput
from hpcagent.materials.filters import Asked
from hpcagent.materials.query import query_materials_database
from hpcagent.mcp.callers import Caller
from hpcagent.mcp.serving import Answer, Price, tool
from hpcagent.mcp.tools.runs import BOUND_BY_WALLTIME, Handle, RunId, Site, Why, handle_of
from hpcagent.model.contract import LONGEST_S

__all__ = [
    "add_catalyst",
    "append_notebook_entry",
    "get_dft",
    "optimize_geometry",
    "plot_band_structure",
    "query_database",
    "run_dft",
]

TABLE = "catalyst_db"

Engine = Annotated[
    Literal["pyscf", "tblite", "gpaw", "espresso", "vasp", "mace", "emt", "lj"],
    Field(description="What computes; emt is a fast model of metals, not DFT."),
]
Walltime = Annotated[float | None, Field(gt=0, le=LONGEST_S, description="At most, in s.")]
Parameters = Annotated[
    dict[str, Any],
    Field(description="More parameters of the app, in the units of describe_app."),
]
StructureRun = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        description=(
            "run_id of a completed run that made it: build_crystal, build_slab, build_molecule, dft_relax, ..."
        ),
    ),
]


class Dft(Answer):
    """What is known of a catalyst's adsorption energy."""

    state: Literal[
        "found", "pending", "running", "recording", "recorded", "failed", "stopped", "cancelled", "completed"
    ] = Field(description="found: known before; recorded: computed and stored.")
    run_id: str | None = Field(description="For get_dft and get_status; null: no run that the caller may see.")
    adsorption_energy_ev: float | None = Field(description="In eV; below 0 it binds.")
    result_uri: str | None = Field(description="Where it comes from.")
    row: dict[str, Any] | None = Field(description="Of catalyst_db: method, energy_reference, facet, site, relax.")
    promising: bool | None = Field(description="Below threshold_ev.")
    notes: list[str]
    error: str | None = Field(description="Why there is none.")
    repair: str | None = Field(description="What may help, where it has failed; null: not known.")


def _price_of_dft(
    caller: Caller, *, structure: str, adsorbate: str, engine: str, params: dict[str, Any], **more: Any
) -> Mapping[str, Any]:
    values = _joined(params, engine=engine)
    return caller.workspace.estimate_catalyst(structure, adsorbate, parameters=values, **more)


@tool(
    "Adsorption energy of a catalyst",
    scope="runs:write",
    read_only=False,
    foreign=True,
    asks=True,
    price=Price(_price_of_dft, BOUND_BY_WALLTIME),
)
def run_dft(
    caller: Caller,
    structure: Annotated[
        str,
        Field(pattern=r"^[A-Z][a-z]?$", description="Element of the slab, e.g. Cu. Supports are not computed."),
    ],
    adsorbate: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9()+_-]{1,40}$", description="Atom or molecule, e.g. O, CO, CO2.")
    ],
    catalyst: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9-]{0,60}$", description="What it is called, e.g. Cu-ZnO; empty: the element."),
    ] = "",
    accept: Annotated[
        Literal["same_method", "any_method"],
        Field(description="Which row of catalyst_db will do."),
    ] = "same_method",
    engine: Engine = "pyscf",
    threshold_ev: Annotated[
        float,
        Field(ge=-100, le=100, description="Below this, in eV, new_promising_catalyst is told to everybody here."),
    ] = -1.2,
    params: Parameters = {},  # noqa: B006
    site: Site = "",
    walltime_s: Walltime = None,
    why: Why = "",
) -> Dft:
    """Look a catalyst's adsorption energy up, and compute it only where nobody has; returns at once.

    Its result is stored in dft_results, lab_notebook and catalyst_db, also if nobody waits; get_dft follows it.
    params are those of the app adsorption; one that it does not have (temperature) is refused, never dropped:
    site (ontop by default; others may bind more strongly), facet, layers, relax, kspacing (1/angstrom, for pyscf).
    """
    return Dft(
        **caller.workspace.catalyst(
            structure,
            adsorbate,
            catalyst=catalyst,
            accept=accept,
            threshold_ev=threshold_ev,
            parameters=_joined(params, engine=engine),
            site=site,
            walltime_s=walltime_s,
            why=why,
        )
    )


@tool("How an adsorption energy stands", foreign=True)
def get_dft(caller: Caller, run_id: RunId) -> Dft:
    """How a computation of run_dft stands: recorded, with its number, once it is stored and written down."""
    return Dft(**caller.workspace.catalyst_state(run_id))


def _price_of_relax(caller: Caller, **arguments: Any) -> Mapping[str, Any]:
    return caller.workspace.estimate(**_order_of("dft_relax", **arguments))


@tool(
    "Relax a structure",
    scope="runs:write",
    read_only=False,
    asks=True,
    price=Price(_price_of_relax, BOUND_BY_WALLTIME),
)
def optimize_geometry(
    caller: Caller,
    structure: StructureRun,
    engine: Engine = "pyscf",
    fmax: Annotated[
        float, Field(ge=1e-5, le=1.0, description="Largest force when it counts as relaxed, in eV/angstrom.")
    ] = 0.02,
    max_steps: Annotated[int, Field(ge=1, le=100_000, description="Steps of the optimiser at most.")] = 200,
    cell: Annotated[
        Literal["fixed", "volume", "shape", "shape_and_volume"],
        Field(description="What of the cell relaxes with the atoms."),
    ] = "fixed",
    params: Parameters = {},  # noqa: B006
    site: Site = "",
    walltime_s: Walltime = None,
    why: Why = "",
) -> Handle:
    """Relax a structure to the nearest minimum of the energy, by the app dft_relax; returns at once.

    get_status has energy (eV), forces (eV/angstrom) and cell (angstrom); the run is the structure of further runs.
    """
    order = _order_of(
        "dft_relax",
        structure=structure,
        params=params,
        site=site,
        walltime_s=walltime_s,
        why=why,
        engine=engine,
        fmax=fmax,
        max_steps=max_steps,
        cell=cell,
    )
    return handle_of(caller.workspace.run(**order))


def _price_of_bands(caller: Caller, **arguments: Any) -> Mapping[str, Any]:
    return caller.workspace.estimate(**_order_of("dft_bands", **arguments))


@tool(
    "Band structure",
    scope="runs:write",
    read_only=False,
    asks=True,
    price=Price(_price_of_bands, BOUND_BY_WALLTIME),
)
def plot_band_structure(
    caller: Caller,
    structure: StructureRun,
    engine: Engine = "pyscf",
    path: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9,]{0,100}$", description="Special points, e.g. LGXKG; empty: the standard path."
        ),
    ] = "",
    points: Annotated[int, Field(ge=10, le=2000, description="k-points along the path.")] = 100,
    params: Parameters = {},  # noqa: B006
    site: Site = "",
    walltime_s: Walltime = None,
    why: Why = "",
) -> Handle:
    """Bands along a path of special points, by the app dft_bands; returns at once.

    get_status has gap, vbm and cbm (eV); the plot is the run's file bands.png, for fetch_artifact.
    """
    order = _order_of(
        "dft_bands",
        structure=structure,
        params=params,
        site=site,
        walltime_s=walltime_s,
        why=why,
        engine=engine,
        path=path,
        points=points,
    )
    return handle_of(caller.workspace.run(**order))


def _order_of(
    app: str,
    *,
    structure: str,
    params: dict[str, Any],
    site: str,
    walltime_s: float | None,
    why: str,
    **named: Any,
) -> dict[str, Any]:
    """A run of one structure as the workspace takes it, to run or to estimate."""
    more = {"site": site, "walltime_s": walltime_s, "why": why, "data_only": True}
    return {"app": app, "params": _joined(params, **named), "inputs": [structure], **more}


def _joined(params: dict[str, Any], **named: Any) -> dict[str, Any]:
    """Parameters with those that are arguments of the tool itself.

    Raises:
        BadInput: One is given twice.
    """
    twice = sorted(set(params) & set(named))
    if twice:
        raise BadInput(
            f"params has {', '.join(twice)}, which is an argument of its own; leave it out.", value=twice
        )
    return {**named, **params}


class Range(BaseModel):
    """Bounds of a number; ends belong to it."""

    model_config = ConfigDict(extra="forbid")

    min: float | None = Field(default=None, description="At least, in `unit`.")
    max: float | None = Field(default=None, description="At most, in `unit`.")
    unit: str | None = Field(default=None, max_length=40, description="E.g. eV; null: the column's own.")


class Filters(BaseModel):
    """What records have to meet, all of it."""

    model_config = ConfigDict(extra="forbid")

    elements: list[Annotated[str, Field(max_length=3)]] = Field(
        default=[], max_length=20, description="Elements that it has."
    )
    ranges: dict[str, Range] = Field(default={}, description="Column to bounds, e.g. adsorption_energy.")
    texts: dict[str, Annotated[str, Field(max_length=200)]] = Field(
        default={}, description="Column to text, e.g. adsorbate."
    )


class Records(Answer):
    """Records of a database."""

    source: str
    query: str
    total: int | None
    records: list[dict[str, Any]] = Field(description="artifact_id, values, units of each.")
    next_offset: int | None = Field(description="null: no more.")
    notes: list[str]


@tool("Ask the database of catalysts", right="read", foreign=True)
def query_database(
    caller: Caller,
    query: Annotated[
        str,
        Field(max_length=100, description="A metal, or metal and support: Cu-ZnO; empty: all. No words, no SQL."),
    ] = "",
    filters: Annotated[Filters, Field(description="Further conditions.")] = Filters(),  # noqa: B008
    limit: Annotated[int, Field(ge=1, le=1000, description="Records at most.")] = 50,
    offset: Annotated[int, Field(ge=0, description="How many to leave out before.")] = 0,
) -> Records:
    """Records of catalyst_db: metal, support, adsorbate, adsorption_energy (eV), method, reference.

    A filter that the table cannot judge is refused, never dropped.
    """
    resources = caller.workspace.resources()
    resources.require(**{TABLE: "read"})
    wanted = filters.model_dump(exclude_defaults=True, exclude_none=True)
    if TABLE not in resources.provisioned:
        Asked.of(query, wanted, limit, offset)  # what is no question is none here either
        return Records(
            source=TABLE, query=query, total=0, records=[], next_offset=None, notes=["nothing has been stored yet"]
        )
    found = query_materials_database(query, wanted, source=resources.database(TABLE), limit=limit, offset=offset)
    return Records(
        source=TABLE,
        query=found.query,
        total=found.total,
        records=[
            {"artifact_id": one.artifact_id, "values": dict(one.values), "units": dict(one.units)} for one in found
        ],
        next_offset=found.next_offset,
        notes=list(found.notes),
    )


class AddedRow(Answer):
    """A row that was added."""

    row_id: str
    artifact_id: str


@tool("Add to the database of catalysts", scope="runs:write", right="write", read_only=False, idempotent=False)
def add_catalyst(
    caller: Caller,
    metal: Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,40}$", description="E.g. Cu.")],
    adsorbate: Annotated[str, Field(pattern=r"^[A-Za-z0-9()+_-]{1,40}$", description="E.g. CO2.")],
    adsorption_energy: Annotated[float, Field(ge=-1000, le=1000, description="In eV; below 0 it binds.")],
    reference: Annotated[
        str, Field(min_length=1, max_length=500, description="Where it is from: a DOI, a result.")
    ],
    method: Annotated[str, Field(min_length=1, max_length=500, description="How it was got: measured, PBE, ...")],
    support: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9]{1,40}$", description="E.g. ZnO; none: no support.")
    ] = "none",
    surface_area: Annotated[
        float | None, Field(ge=0, description="Area per mass, in m^2/g; null: not known.")
    ] = None,
    run_id: Annotated[
        str | None, Field(max_length=200, description="The run that made it; an executor has to say.")
    ] = None,
) -> AddedRow:
    """Add what is known from elsewhere (a paper, a measurement) to catalyst_db; run_dft adds what it computes."""
    values = {
        "metal": metal,
        "support": support,
        "adsorbate": adsorbate,
        "adsorption_energy": adsorption_energy,
        "reference": reference,
        "method": method,
    }
    values |= {} if surface_area is None else {"surface_area": surface_area}
    row = caller.workspace.resources().database(TABLE).add(values, run_id=run_id)
    return AddedRow(row_id=row.id, artifact_id=f"{TABLE}:{row.id}")


class ExperimentInputs(BaseModel):
    """What an experiment was made with; more may be said."""

    model_config = ConfigDict(extra="allow")

    catalyst: str = Field(min_length=1, max_length=200, description="E.g. Cu-ZnO.")
    adsorbate: str = Field(min_length=1, max_length=200, description="E.g. CO2.")


class Written(Answer):
    """An entry of the notebook."""

    number: int
    sha256: str
    at: float = Field(description="Unix time, in seconds.")


@tool("Write into the lab notebook", scope="runs:write", right="write", read_only=False, idempotent=False)
def append_notebook_entry(
    caller: Caller,
    experiment_id: Annotated[str, Field(min_length=1, max_length=200, description="What the entry is about.")],
    inputs: Annotated[ExperimentInputs, Field(description="Catalyst and adsorbate, and what else there is.")],
    output_uri: Annotated[
        str | None, Field(max_length=500, description="Where the result is; null: nothing came out.")
    ] = None,
    note: Annotated[str, Field(max_length=10_000, description="In words.")] = "",
) -> Written:
    """Append an entry to lab_notebook. Nobody can change or remove one; run_dft writes its own."""
    entry = {"experiment_id": experiment_id, "inputs": inputs.model_dump(), "output_uri": output_uri}
    made = caller.workspace.resources().notebook().append(entry | ({"note": note} if note else {}))
    return Written(number=made.number, sha256=made.sha256, at=made.at)
