"""One call of an app as an agent hands it over: what is to be run, asked by whom, with a digest of it all."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import to_jsonable_python

from hpcagent.apps.base import App
from hpcagent.apps.document import json_object
from hpcagent.errors import BadInput, in_brief, nearest
from hpcagent.html import Card, Displayed
from hpcagent.model.base import Record, build, canonical_json
from hpcagent.model.contract import SEMVER, Contract, Resources
from hpcagent.model.records import LARGEST_WHOLE, Manifest
from hpcagent.model.texts import Line

__all__ = ["Invocation"]

Priority = Literal["low", "normal", "high"]
ResourceClass = Literal["cpu", "gpu", "hpc"]

# Smaller runs earlier (`Manifest.priority`).
_PRIORITY: dict[Priority, int] = {"high": -1, "normal": 0, "low": 1}
# What of a manifest has a place of its own here.
_SAID = {
    "execution_id",
    "app",
    "app_version",
    "params",
    "upstream",
    "seed",
    "requested_by",
    "created_at",
}


# Where a new manifest is not as `Manifest` is by default.
_OF_APP = {"input_digest", "role", "resources", "estimated_runtime_s"}


class Invocation(Displayed, Record):
    """A call of an app, written once: whatever is changed in it afterwards, its `digest` tells.

    Attributes:
        execution_id: UUID of the run, derived from what decides its result: the same call has the same one.
        tool_name: The app's name.
        tool_version: Its exact version.
        inputs: Parameters by name, in the units of the contract, and the ids of the runs it takes.
        requested_by: Role or name of who asked.
        random_seed: Seed of the run, also where the app needs none.
        resource_class: `gpu` with GPUs, `hpc` on several ranks or nodes, else `cpu`.
        priority: low, normal or high.
        created_at: Unix time, in seconds.
        approval: Reference of the approval under which it may run; empty where none was needed.
        budget: Node-hours that it may take at most; None: no limit of its own.
        record: The rest of our manifest, so that nothing is lost; what of it is not said is as a new run has it.
        digest: SHA-256 of the canonical JSON of all this without itself: keys sorted, no spaces, ASCII, whole
            numbers without a point.

    Raises:
        BadInput: The digest is not that of the content: it was changed, or was made otherwise.

    Example:
        >>> import hpcagent as ha
        >>> call = Invocation.make(ha.apps.synthetic, {"x": 0.2}, requested_by="planner", random_seed=7)
        >>> call.tool_name, call.resource_class, call.priority
        ('synthetic', 'cpu', 'normal')
        >>> Invocation.from_json(call.model_dump_json()).manifest(ha.apps.synthetic).params["x"]
        0.2
    """

    execution_id: str
    tool_name: str
    tool_version: str
    inputs: dict[str, Any] = {}
    requested_by: Line
    random_seed: int = Field(ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)
    resource_class: ResourceClass = "cpu"
    priority: Priority = "normal"
    created_at: float = Field(ge=0.0, allow_inf_nan=False)
    approval: Line = ""
    budget: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    record: dict[str, Any] = {}
    digest: str

    @field_validator("tool_version")
    @classmethod
    def _semantic(cls, version: str) -> str:
        if not SEMVER.match(version):
            raise BadInput(f"tool_version {version!r} is not a semantic version like 1.0.0.", value=version)
        return version

    @model_validator(mode="after")
    def _unchanged(self) -> Invocation:
        self.check()
        return self

    def check(self) -> None:
        """Hold the digest against the content.

        Raises:
            BadInput: Something was changed after it was written.
        """
        found = _digest(self.model_dump(mode="json"))
        if self.digest != found:
            raise BadInput(
                f"invocation {self.execution_id}: its digest is {in_brief(self.digest)}, that of what it says is "
                f"{found}: it was changed after it was written. Write a new one.",
                value=self.digest,
            )

    @classmethod
    def make(
        cls,
        app: App,
        inputs: Mapping[str, Any],
        *,
        requested_by: str,
        random_seed: int,
        priority: Priority = "normal",
        replicate: int = 0,
        approval: str = "",
        budget: float | None = None,
        allow_deprecated: bool = False,
        site: Mapping[str, Any] | None = None,
    ) -> Invocation:
        """Write down a call of an app, checked against its contract.

        Args:
            app: The app, with its settings.
            inputs: Parameters by name; where it takes runs, their execution ids by the names of `contract.inputs`
                (a list where it takes several).
            requested_by: Role or name of who asks.
            random_seed: Seed of the run, also where the app needs none.
            priority: low, normal or high.
            replicate: 0, or a counter for deliberate repetitions.
            approval: Reference of an approval.
            budget: Node-hours that it may take at most.
            allow_deprecated: Whether the app may be one that is deprecated.
            site: Environment of engines where it will run, see `App.manifest`.

        Raises:
            BadInput: An input is unknown, missing or not allowed, or the app is deprecated.
        """
        _refuse_deprecated(app.contract, allow_deprecated)
        if not requested_by.strip():
            raise BadInput("requested_by is empty; say which role or person asks.", value=requested_by)
        if priority not in _PRIORITY:
            raise BadInput(f"priority={in_brief(priority)} must be low, normal or high.", value=priority)
        params, upstream = _split(app.contract, inputs)
        manifest = app.manifest(
            params,
            seed=random_seed,
            replicate=replicate,
            upstream=upstream,
            requested_by=requested_by,
            priority=_PRIORITY[priority],
            site=site,
        )
        return cls.of(manifest, app.contract, approval=approval, budget=budget)

    @classmethod
    def of(
        cls, manifest: Manifest, contract: Contract, *, approval: str = "", budget: float | None = None
    ) -> Invocation:
        """A manifest of ours in this form.

        Args:
            manifest: Of a run.
            contract: Of its app, for the names of the runs that it takes.
            approval: Reference of an approval.
            budget: Node-hours that the run may take at most.

        Raises:
            BadInput: The contract is of another app or version, or the budget is no positive number.
        """
        _refuse_other(manifest.app, manifest.app_version, contract)
        if budget is not None and not 0 < budget < math.inf:
            raise BadInput(f"budget={in_brief(budget)} must be a positive number of node-hours.", value=budget)
        priority: Priority = "normal" if manifest.priority == 0 else "high" if manifest.priority < 0 else "low"
        whole = manifest.model_dump(mode="json", exclude=_SAID)
        said = _OF_APP | manifest.model_dump(exclude=_SAID, exclude_defaults=True).keys()
        rest = {name: value for name, value in whole.items() if name in said}
        if manifest.priority == _PRIORITY[priority]:
            rest.pop("priority", None)
        plain = {
            "execution_id": manifest.execution_id,
            "tool_name": manifest.app,
            "tool_version": manifest.app_version,
            "inputs": {**manifest.params, **_named(contract, manifest.upstream)},
            "requested_by": manifest.requested_by,
            "random_seed": manifest.seed,
            "resource_class": _class_of(manifest.resources),
            "priority": priority,
            "created_at": manifest.created_at,
            "approval": approval,
            "budget": budget,
            "record": rest,
        }
        return build(cls, {**plain, "digest": _digest(plain)}, where="the invocation")

    @classmethod
    def from_json(cls, text: str | bytes) -> Invocation:
        """Read one back.

        Raises:
            BadInput: It is no JSON object, a key is unknown, missing or wrong, or it was changed after it was
                written.
        """
        return build(cls, json_object(text, "the invocation"), where="the invocation")

    def manifest(
        self, app: App, *, allow_deprecated: bool = False, site: Mapping[str, Any] | None = None
    ) -> Manifest:
        """The manifest to run, checked against the app as it is here.

        Args:
            app: The app that is to do it.
            allow_deprecated: Whether it may be one that is deprecated.
            site: Environment of engines where it will run, see `App.manifest`.

        Raises:
            BadInput: It was changed; the app has another name or version, or is deprecated; an input is not
                allowed; or its execution id is not that of this call here: code, settings or files are others.
        """
        self.check()
        _refuse_other(self.tool_name, self.tool_version, app.contract)
        _refuse_deprecated(app.contract, allow_deprecated)
        params, upstream = _split(app.contract, self.inputs)
        rest = self._rest()
        made = app.manifest(
            params,
            seed=self.random_seed,
            replicate=rest.replicate,
            upstream=upstream,
            extends=rest.extends,
            times=rest.times,
            site=site,
        )
        if rest.origin:  # told, not run: what it was told of stands in its record
            made = made.model_copy(update={"input_digest": rest.input_digest})
        if made.identity != self.execution_id:
            why = ""
            if rest.input_digest and rest.input_digest != made.input_digest:
                why = f" Its code, settings or files are others: {rest.input_digest[:12]} there, "
                why += f"{made.input_digest[:12]} here."
            raise BadInput(
                f"invocation {self.execution_id}: the same call of {self.tool_name} {self.tool_version} is "
                f"{made.identity} here.{why} Write it anew with Invocation.make.",
                value=self.execution_id,
            )
        taken = {name: getattr(rest, name) for name in Manifest.model_fields.keys() - _SAID if name in self.record}
        if self.resource_class != _class_of(taken.get("resources", made.resources)):
            raise BadInput(
                f"invocation {self.execution_id}: resource_class {self.resource_class!r}, but the run takes "
                f"{taken.get('resources', made.resources).layout}: that is "
                f"{_class_of(taken.get('resources', made.resources))!r}.",
                value=self.resource_class,
            )
        taken.setdefault("priority", _PRIORITY[self.priority])
        return made.model_copy(
            update={
                **taken,
                "execution_id": self.execution_id,
                "requested_by": self.requested_by,
                "created_at": self.created_at,
            }
        )

    def _rest(self) -> Manifest:
        known = Manifest.model_fields.keys() - _SAID
        for name in self.record:
            if name not in known:
                raise BadInput(f"the invocation, record: unknown key {name!r}; {nearest(name, known)}", value=name)
        first = {"execution_id": self.execution_id, "app": self.tool_name, "app_version": self.tool_version}
        return build(Manifest, first | self.record, where="the invocation, record")

    def _card(self) -> Card:
        facts = [
            ("tool", f"{self.tool_name} {self.tool_version}"),
            ("inputs", ", ".join(f"{n} = {v}" for n, v in self.inputs.items())),
            ("asked by", self.requested_by),
            ("seed", self.random_seed),
            ("resources", self.resource_class),
            ("priority", self.priority),
            ("approval", self.approval),
            ("at most", "" if self.budget is None else f"{self.budget:g} node-hours"),
            ("digest", self.digest),
        ]
        return Card("Invocation", self.execution_id, facts)


def _digest(content: Mapping[str, Any]) -> str:
    plain = to_jsonable_python({k: v for k, v in content.items() if k != "digest"})
    return hashlib.sha256(canonical_json(_whole(plain)).encode()).hexdigest()


def _whole(value: Any) -> Any:
    """With 1 in place of 1.0: programs in other languages know one kind of number, and write it so."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {k: _whole(v) for k, v in value.items()}
    return [_whole(v) for v in value] if isinstance(value, (list, tuple)) else value


def _class_of(resources: Resources) -> ResourceClass:
    if resources.gpus_per_node:
        return "gpu"
    return "hpc" if resources.nodes * resources.ranks_per_node > 1 else "cpu"


def _refuse_other(name: str, version: str, contract: Contract) -> None:
    if (name, version) != (contract.name, contract.version):
        raise BadInput(
            f"the call is of {name} {version}; what is here is {contract.name} {contract.version}. Ask for that, "
            f"or install {name} {version}.",
            value=f"{name} {version}",
        )


def _refuse_deprecated(contract: Contract, allowed: bool) -> None:
    if contract.deprecated is not None and not allowed:
        raise BadInput(
            f"{contract.name} {contract.version} is deprecated: {contract.deprecated.rstrip('.')}. With "
            "allow_deprecated=True it is called all the same.",
            value=contract.name,
        )


def _named(contract: Contract, upstream: tuple[str, ...]) -> dict[str, Any]:
    """The ids of the runs that a run takes, by the names of the contract's inputs."""
    found: dict[str, Any] = {}
    for i, name in enumerate(contract.inputs):
        several = name.endswith("...")
        found[name.removesuffix("...")] = list(upstream[i:]) if several else upstream[i]
    return found


def _split(contract: Contract, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parameters, and the ids of the runs that it takes, in their order."""
    params, upstream = dict(inputs), []
    for name in contract.inputs:
        plain, several = name.removesuffix("..."), name.endswith("...")
        if plain not in params:
            wanted = "a list of ids of runs" if several else "the id of a run"
            raise BadInput(f"input {plain!r} of app {contract.name} is missing; give {wanted}.", value=plain)
        given = params.pop(plain)
        ids = list(given) if several and isinstance(given, (list, tuple)) else [given]
        if (several and not isinstance(given, (list, tuple))) or not ids:
            raise BadInput(f"input {plain!r} of app {contract.name} is a list of ids; got {in_brief(given)}.")
        for one in ids:
            if not isinstance(one, str) or not one:
                raise BadInput(
                    f"input {plain!r} of app {contract.name} is the id of a run; got {in_brief(one)}.", value=one
                )
        upstream += ids
    return params, tuple(upstream)
