"""What a resource is: its identity, who may do what, what it holds, where, how long, and what is kept of its past.

Every field decides something; none is there to be read only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator
from pydantic import Field as Given

from hpcagent.errors import BadInput
from hpcagent.model.base import Record
from hpcagent.model.texts import Line, Word, checked_name
from hpcagent.units import factor

__all__ = [
    "ACTIONS",
    "BUILT_IN",
    "CATALYST_DB",
    "DFT_RESULTS",
    "LAB_NOTEBOOK",
    "Access",
    "Action",
    "Content",
    "Field",
    "Identity",
    "Lifecycle",
    "Provenance",
    "Resource",
    "Storage",
]

Action = Literal["read", "add", "replace", "expire", "snapshot", "provision"]
ACTIONS: tuple[Action, ...] = ("read", "add", "replace", "expire", "snapshot", "provision")
"""What a role may do: read; add what was not there; write a new version of what is; have old content removed or
archived (also at the end of a session); copy all of it; make it where it does not exist."""

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")
OWN_COLUMNS = ("id", "version", "created_at", "created_by", "run_id", "sha256")
"""Columns that every table has beside its own fields."""


def _identifier(text: str) -> str:
    if not _IDENTIFIER.match(text):
        raise BadInput(
            f"{text[:80]!r} is no name of a resource or field: small letters, digits and _, a letter first, at "
            "most 63 characters.",
            value=text[:200],
        )
    checked_name(text)
    return text


Identifier = Annotated[str, AfterValidator(_identifier)]


class Field(Record):
    """A column of a table.

    Attributes:
        name: Small letters, digits and `_`.
        type: `string` or `number`.
        unit: Of a number; `1` for a pure one. A text has none.
        required: Whether a row must have it. A number that is not there is None, never 0.
        description: What it is.
    """

    name: Identifier
    type: Literal["string", "number"]
    unit: str = ""
    required: bool = True
    description: Line = ""

    @model_validator(mode="after")
    def _sensible(self) -> Field:
        if self.name in OWN_COLUMNS:
            raise BadInput(f"the field {self.name!r} has the name of a column that every table has; rename it.")
        if self.type == "string" and self.unit:
            raise BadInput(f"the field {self.name!r} is a text and has the unit {self.unit!r}; leave it out.")
        if self.type == "number" and not self.unit:
            raise BadInput(
                f"the field {self.name!r} is a number without a unit; give one ('1' for a pure number)."
            )
        if self.unit:
            factor(self.unit, self.unit)
        return self


class Identity(Record):
    """Which resource it is.

    Attributes:
        name: Of its folder.
        type: `database` (a table), `object_store` (JSON and files by key) or `document` (entries in order).
        uri: By which records speak of it; `resource:NAME` if not given.
        description: What is in it.
    """

    name: Identifier
    type: Literal["database", "object_store", "document"]
    uri: Word = ""
    description: Line = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: object) -> object:
        if isinstance(data, dict) and not data.get("uri") and isinstance(data.get("name"), str):
            return {**data, "uri": f"resource:{data['name']}"}
        return data


class Access(Record):
    """Who may do what.

    Attributes:
        access: `read`, `read_write`, or `append`: what is there is never changed or removed, whoever asks.
        permissions: Role -> what it may do.
        must_name_run: Roles that have to say which run made what they write.
        auth_scope: Accounts of the machine that its files let in: `user` (the one who made it), `group` (its
            group, too, to read and write) or `all` (everybody may read).
    """

    access: Literal["read", "read_write", "append"] = "read_write"
    permissions: dict[Identifier, tuple[Action, ...]]
    must_name_run: tuple[Identifier, ...] = ("executor",)
    auth_scope: Literal["user", "group", "all"] = "user"

    @model_validator(mode="after")
    def _sensible(self) -> Access:
        for role, actions in self.permissions.items():
            wrong = [one for one in actions if not self.lets(one)]
            if wrong:
                raise BadInput(
                    f"the role {role!r} is permitted to {wrong[0]}, but access = {self.access!r} lets nobody do "
                    "so; take it out of the permissions or change the access.",
                    value=role,
                )
        return self

    def may(self, role: str, action: Action) -> bool:
        """Whether a role has a permission."""
        return action in self.permissions.get(role, ())

    def lets(self, action: Action) -> bool:
        """Whether it is open to anybody at all; `read` and `append` keep even an owner from some actions."""
        never: Mapping[str, tuple[Action, ...]] = {
            "read": ("add", "replace", "expire"),
            "append": ("replace", "expire"),
        }
        return action not in never.get(self.access, ())

    def roles_that_may(self, action: Action) -> tuple[str, ...]:
        """Every role with a permission."""
        return tuple(role for role, actions in self.permissions.items() if action in actions)


class Content(Record):
    """What may be in it.

    Attributes:
        format: `table`, `json_or_file`, `json_lines`; of a proxy of another system `ase` or `optimade`.
        fields: Columns of a table.
        required_keys: Keys that each JSON object or entry must have.
        max_mb: Largest size of one object or entry, in MB (10**6 bytes).
    """

    format: Literal["table", "json_or_file", "json_lines", "ase", "optimade"]
    fields: tuple[Field, ...] = ()
    required_keys: tuple[Line, ...] = ()
    max_mb: float = Given(default=64.0, gt=0, le=100_000, allow_inf_nan=False)

    @model_validator(mode="after")
    def _sensible(self) -> Content:
        names = [f.name for f in self.fields]
        if len(set(names)) < len(names):
            raise BadInput(f"fields of the same name: {', '.join(names)}; give each its own.")
        return self


class Storage(Record):
    """Where it is, and for how long.

    Attributes:
        backend: `sqlite`, `files` or `jsonl`; `proxy`: it is somewhere else.
        persistence: `project`: one for all who use the folder. `session`: one for each session, gone at its end.
        retention_days: Content of this age is not shown any more, and removed or archived by `expire`; None:
            kept for ever.
        target: Of a proxy: `FOLDER#NAME` of another folder of resources, the file of an ASE database, or the
            address of an OPTIMADE provider.
    """

    backend: Literal["sqlite", "files", "jsonl", "proxy"]
    persistence: Literal["project", "session"] = "project"
    retention_days: float | None = Given(default=90.0, gt=0, le=1e6, allow_inf_nan=False)
    target: Line = ""


class Lifecycle(Record):
    """How it comes and goes.

    Attributes:
        create_on_demand: It is made when it is used first, by a role that may add; else by `provision`.
        snapshot: Whether all of it may be copied by `snapshot`.
        archive: What `expire` takes out goes to the folder's `archive`; else it is deleted.
    """

    create_on_demand: bool = True
    snapshot: bool = True
    archive: bool = True


class Provenance(Record):
    """What is kept of its past.

    Attributes:
        versioning: Replacing keeps the version before; else it is overwritten (and recorded as such).
        checksum: Of each row, object and entry, looked at whenever it is read.
        created_by: Who has made it; written when it is provisioned.
        created_at: When: Unix time, in seconds; likewise.
    """

    versioning: bool = True
    checksum: Literal["sha256"] = "sha256"
    created_by: Line = ""
    created_at: float | None = None


_BACKENDS = {"database": "sqlite", "object_store": "files", "document": "jsonl"}
_FORMATS = {"database": "table", "object_store": "json_or_file", "document": "json_lines"}


class Resource(Record):
    """One resource as it was defined; stands in its folder as `resource.json`.

    Raises:
        BadInput: Its parts contradict each other.

    Example:
        >>> CATALYST_DB.identity.uri, CATALYST_DB.storage.retention_days, CATALYST_DB.provisioning
        ('resource:catalyst_db', 90.0, 'on_demand')
        >>> CATALYST_DB.access.may("executor", "add"), CATALYST_DB.access.may("executor", "replace")
        (True, False)
    """

    identity: Identity
    access: Access
    content: Content
    storage: Storage
    lifecycle: Lifecycle = Lifecycle()
    provenance: Provenance = Provenance()

    @property
    def name(self) -> str:
        """Its name."""
        return self.identity.name

    @property
    def provisioning(self) -> Literal["static", "on_demand", "proxy"]:
        """How it comes into being: made by `provision`, when it is used first, or it stands for another."""
        if self.storage.backend == "proxy":
            return "proxy"
        return "on_demand" if self.lifecycle.create_on_demand else "static"

    @model_validator(mode="after")
    def _sensible(self) -> Resource:
        kind, storage, content = self.identity.type, self.storage, self.content
        proxy = storage.backend == "proxy"
        if proxy != bool(storage.target):
            raise BadInput(f"{self.name}: a target is given with backend = 'proxy', and only with it.")
        if not proxy and storage.backend != _BACKENDS[kind]:
            raise BadInput(f"{self.name}: a {kind} has the backend {_BACKENDS[kind]!r}, not {storage.backend!r}.")
        outside = content.format in ("ase", "optimade")
        if outside and not (proxy and kind == "database" and self.access.access == "read"):
            raise BadInput(
                f"{self.name}: format {content.format!r} is for a proxy of a database with access 'read'."
            )
        if not outside and content.format != _FORMATS[kind]:
            raise BadInput(f"{self.name}: a {kind} has the format {_FORMATS[kind]!r}, not {content.format!r}.")
        if (kind == "database" and not proxy) != bool(content.fields):
            raise BadInput(f"{self.name}: a table of this folder has fields, and nothing else has.")
        if kind == "document" and (self.access.access == "read_write" or storage.retention_days is not None):
            raise BadInput(
                f"{self.name}: a document is append only and kept for ever: access = 'append' (or 'read') and "
                "retention_days = None."
            )
        if not proxy and not self.access.roles_that_may("add"):
            raise BadInput(f"{self.name}: no role may add to it, so it would stay empty; permit it to one.")
        return self


def _permissions(*, append_only: bool = False) -> dict[str, tuple[Action, ...]]:
    whole: tuple[Action, ...] = ("read", "add", "snapshot", "provision")
    if append_only:
        return {
            "owner": whole,
            "planner": ("read", "add", "provision"),
            "executor": ("read", "add"),
            "reader": ("read",),
        }
    return {
        "owner": ACTIONS,
        "planner": ("read", "add", "replace", "provision"),
        # It stores the results of its runs, so it adds; what is there it can neither change nor remove.
        "executor": ("read", "add"),
        "reader": ("read",),
    }


CATALYST_DB = Resource(
    identity=Identity(name="catalyst_db", type="database", description="catalysts and how strongly they bind"),
    access=Access(permissions=_permissions()),
    content=Content(
        format="table",
        fields=(
            Field(name="metal", type="string", description="the active element or alloy, e.g. Cu"),
            Field(
                name="support", type="string", description="what it lies on, e.g. ZnO; none where there is none"
            ),
            Field(name="adsorbate", type="string", description="what adsorbs, e.g. CO"),
            Field(name="surface_area", type="number", unit="m^2/g", required=False, description="specific"),
            Field(name="adsorption_energy", type="number", unit="eV", description="below 0 where it binds"),
            Field(name="reference", type="string", description="where it comes from: a DOI, or a result's URI"),
            Field(name="method", type="string", description="how it was found, e.g. the engine and the app"),
            Field(
                name="energy_reference",
                type="string",
                required=False,
                description="what the energy is counted from: 0.5 O2, or 1 O for a free atom",
            ),
            Field(name="facet", type="string", required=False, description="lattice and face, e.g. fcc111"),
            Field(name="site", type="string", required=False, description="where it adsorbs, e.g. ontop"),
            Field(
                name="relax", type="string", required=False, description="what was relaxed: none, adsorbed or all"
            ),
        ),
    ),
    storage=Storage(backend="sqlite"),
)
"""Catalysts: what they are made of, and the adsorption energy."""

DFT_RESULTS = Resource(
    identity=Identity(name="dft_results", type="object_store", description="results of calculations"),
    access=Access(permissions=_permissions()),
    content=Content(format="json_or_file"),
    storage=Storage(backend="files"),
)
"""Results by key, e.g. `CuZnO_CO2_run47.json`."""

LAB_NOTEBOOK = Resource(
    identity=Identity(name="lab_notebook", type="document", description="an entry for each experiment"),
    access=Access(access="append", permissions=_permissions(append_only=True)),
    content=Content(format="json_lines", required_keys=("experiment_id", "inputs", "output_uri"), max_mb=0.1),
    storage=Storage(backend="jsonl", retention_days=None),
)
"""Experiments in order; append only."""

BUILT_IN = (CATALYST_DB, DFT_RESULTS, LAB_NOTEBOOK)
