"""A run on its way to another machine: plain JSON for each run, and what all of them share once, by its content.

What a run is computed with either travels or lies there already:

- files that the app names (beside a script, `files=` of a program, settings, chosen ones) travel by their content;
- the user's own Python modules travel as files, functions of a script or notebook as source;
- what `[apps.*]` of the profile names, and what belongs to installed software, is there.

Imports only the standard library at the top, for workers do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.brought import bring, brought
from hpcagent.apps.carried import Carried
from hpcagent.apps.luggage import LARGEST, Luggage, is_inside, json_text, unchanged
from hpcagent.apps.modules import file_in_tree, own_modules
from hpcagent.apps.placing import Fetch, content, fetch_all, place, place_in
from hpcagent.apps.rebuilt import Travelled
from hpcagent.errors import BadInput
from hpcagent.shown import plain

__all__ = ["LARGEST", "Packed", "pack", "unpack"]

_INLINE = 16 * 1024
"""An input run of more JSON than so many bytes travels by its content."""
_NAMED_AT_ONCE = 16
"""So many inputs are named in each run; of more only the one that names the others."""
_MOST_COMMON = 16
# What the orders of an app have in common, as a rule; whether they do is looked at.
_SHARED = ("settings", "promises", "site", "modules", "files", "left_out", "speeds", "mpi")
# Of workers that share our file system: runs on an endpoint have directories there, which keep their results.
_STAYS = ("records", "again", "ended")
_OWN = ("manifest", "attempt", "outdated", "shared", "chosen", "guard")


@dataclass(frozen=True, slots=True)
class Packed:
    """A run, ready to be sent.

    Attributes:
        order: JSON: what is this run's own, and the SHA-256 of what it needs (`inputs`).
        upstream: JSON: the results that it takes as input.
        blobs: SHA-256 -> content, or the file that has it; all that `order` and `upstream` name.
    """

    order: dict[str, Any]
    upstream: list[dict[str, Any]]
    blobs: dict[str, bytes | Path]


# ---- here


def pack(order: Mapping[str, Any], upstream: Sequence[Any] = (), *, endpoint_id: str = "") -> Packed:
    """Make an order (`App.order`) and its input runs ready to be sent.

    What orders of one app share is packed once and found again: a run costs its own few hundred bytes.

    Args:
        order: Of a run; not of a chain, whose function runs where Python is.
        upstream: Results, or what stands for them, of the runs that it takes as input.
        endpoint_id: Where it goes: files of runs that ran there are there. Empty: wherever those ran.

    Raises:
        BadInput: Something in it cannot be sent: what, and what to do.
        AppFailed: A file of it is gone, or was edited.
    """
    if "account" in order:
        raise BadInput("the function of a chain runs here; its inner runs are sent one by one.")
    common = _common_of(order)
    luggage = Luggage(dict(common.blobs))
    own: dict[str, Any] = {name: order[name] for name in _OWN if order.get(name)}
    unknown = order.keys() - {*_SHARED, *_OWN, *_STAYS, "function", "workdir"}
    if unknown:
        raise BadInput(f"an order has {', '.join(sorted(unknown))}, which nobody knows how to send.")
    if "chosen" in own:
        own["chosen"] = {
            name: {**file, "path": "", "travels": luggage.file(Path(file["path"]), name, file["sha256"])}
            for name, file in own["chosen"].items()
        }
    chosen_names = order["settings"].get("chosen")
    if chosen_names:
        own["names"] = list(chosen_names)
    results = [_result(one, luggage, endpoint_id) for one in upstream]
    named = list(luggage.blobs)
    own |= {"common": common.digest, "inputs": named if len(named) <= _NAMED_AT_ONCE else [common.digest]}
    # Checked here, and what it becomes on the way is what comes out.
    return Packed(json.loads(json_text(own, "the order")), results, luggage.blobs)


@dataclass(frozen=True, slots=True)
class _Common:
    function: Any
    parts: dict[str, Any]
    digest: str
    blobs: dict[str, bytes | Path]


_known: list[_Common] = []
# Made once by a process, as it imports a module once.
_functions: dict[tuple[str, str], Travelled] = {}


def _common_of(order: Mapping[str, Any]) -> _Common:
    parts = {name: order[name] for name in _SHARED if order.get(name)}
    parts["settings"] = {name: value for name, value in order["settings"].items() if name != "chosen"}
    parts["for"] = _deciding_params(order)
    for one in list(_known):
        # Values that are the same objects are not looked into.
        if (one.function is order["function"] or one.function == order["function"]) and one.parts == parts:
            unchanged(one.blobs)
            return one
    made = _made_common(order, parts)
    _known.append(made)
    del _known[:-_MOST_COMMON]
    return made


def _made_common(order: Mapping[str, Any], parts: Mapping[str, Any]) -> _Common:
    luggage = Luggage()
    shared = {name: value for name, value in parts.items() if name != "for"}
    shared["function"] = _function(order["function"])
    shared["placed"] = _placed_settings(order["settings"], luggage)
    shared["sources"] = _sources(_modules_of(order), luggage)
    shared["brought"] = brought(order, luggage)
    digest = luggage.text(shared, "what all runs share")
    return _Common(order["function"], dict(parts), digest, luggage.blobs)


def _function(function: Any) -> Any:
    """The function as it travels: by its name, or as source."""
    if isinstance(function, str):
        return function
    from hpcagent.apps.sourced import described

    return described(function.function() if isinstance(function, Carried) else function)


def _modules_of(order: Mapping[str, Any]) -> dict[str, str]:
    modules = dict(order.get("modules") or {})
    if "calculator" in (order.get("files") or {}):  # of ASE, by a dotted path to a module of the user's
        said = str(order["settings"].get("calculator") or "")
        modules |= own_modules([said.partition(":")[0] if ":" in said else said.rpartition(".")[0]])
    return modules


def _sources(modules: Mapping[str, str], luggage: Luggage) -> dict[str, Any]:
    """The files of the user's own modules, which can be imported there during the run."""
    found = {}
    for name, recorded in modules.items():
        path, place_there = file_in_tree(name)
        if path is None or not place_there:
            raise BadInput(
                f"the app's function is made of {name} ({path or 'not found any more'}), a module in an archive, "
                "or loaded from a path: it does not travel to an endpoint. Import it by its name, from a file.",
                value=name,
            )
        found[name] = luggage.file(path, f"module {name}", recorded) | {"name": place_there}
    return found


def _deciding_params(order: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that say which files decide the numbers: words; nothing where no files do."""
    if not order.get("files"):
        return {}
    params: Mapping[str, Any] = order["manifest"]["params"]
    return {name: value for name, value in params.items() if isinstance(value, str)}


def _placed_settings(settings: Mapping[str, Any], luggage: Luggage) -> dict[str, Any]:
    paths, files = settings.get("paths"), settings.get("files")
    if not isinstance(paths, Mapping):
        return {}
    recorded = files if isinstance(files, Mapping) else {}
    return {
        name: luggage.file(Path(path), name, str(recorded.get(name) or "")) for name, path in paths.items() if path
    }


def _result(given: Any, luggage: Luggage, endpoint_id: str) -> dict[str, Any]:
    """An input run as it travels: where it ran there, its directory is there; else its artifacts travel."""
    fields = _fields_of(given)
    remote = fields.pop("remote", None)
    if remote and endpoint_id in ("", remote["endpoint_id"]):
        fields["workdir"] = remote["workdir"]
    elif fields.get("workdir") and fields.get("artifacts") and fields.get("status") == "COMPLETED":
        fields["travels"] = _artifacts(fields, remote, luggage)
        fields["workdir"] = ""
    text = json_text(fields, "an input run")
    if len(text) <= _INLINE:
        return json.loads(text)  # type: ignore[no-any-return]
    return {"result": luggage.text(fields, "an input run")}


def _artifacts(fields: Mapping[str, Any], remote: Mapping[str, Any] | None, luggage: Luggage) -> dict[str, Any]:
    folder = Path(fields["workdir"])
    found = {}
    for name, path in fields["artifacts"].items():
        if not is_inside(path):
            raise BadInput(f"the artifact {plain(name)} of an input run is {plain(path)}, outside of it.")
        if remote and not (folder / path).exists():
            raise BadInput(
                f"{path}, artifact {name!r} of an input run, lies on the endpoint {plain(remote['endpoint_id'])} "
                f"({plain(remote['workdir'])}), and this run goes to another: bring it here first "
                f"(`hpcagent fetch RUN_DIR {folder.name} {path}`), or let both run on one site.",
                value=path,
            )
        found[name] = luggage.file(folder / path, f"{name} of an input run") | {"name": path}
    return found


def _fields_of(given: Any) -> dict[str, Any]:
    """Plain data of a `Result`, of its dict, or of what stands for one (`Given`)."""
    fields: Any = given if isinstance(given, Mapping) else getattr(given, "fields", None)
    return dict(fields if isinstance(fields, Mapping) else given.model_dump(mode="json"))


# ---- there


def unpack(
    packed: Mapping[str, Any], upstream: Sequence[Mapping[str, Any]], fetch: Fetch, *, root: str | Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The order and its input runs as `hpcagent.apps.worker.execute` takes them.

    Files get a name of their own below `root`/placed, are read-only and shared by the runs of the campaign; their
    content is the one that was recorded, which the worker looks at again.

    Args:
        packed: `Packed.order`, as it came.
        upstream: `Packed.upstream`, as it came.
        fetch: SHA-256 -> the file that has the content.
        root: The campaign's folder there.

    Raises:
        FileNotFoundError: From `fetch`, which was asked for everything that is known to be needed before.
        BadInput: It is no packed order.
    """
    root = Path(root)
    fetch_all(_text_list(packed.get("inputs")), fetch)
    common = content(packed["common"], fetch)
    fetch_all(_named(common), fetch)
    nothing: dict[str, Any] = {"files": {}, "modules": {}, "site": {}, "promises": {}}
    order: dict[str, Any] = {"attempt": 1, "outdated": False, **nothing}
    order |= {name: packed[name] for name in _OWN if name in packed}
    order |= {name: common[name] for name in _SHARED if name in common}
    settings = dict(order["settings"])
    if common["placed"]:
        places = {name: place(file, fetch, root) for name, file in common["placed"].items()}
        settings["paths"] = {**settings["paths"], **places}
    if packed.get("names"):
        settings["chosen"] = packed["names"]
    if "chosen" in order:
        order["chosen"] = {
            name: {"name": file["name"], "sha256": file["sha256"], "path": place(file["travels"], fetch, root)}
            for name, file in order["chosen"].items()
        }
    execution = order["manifest"]["execution_id"]
    if not is_inside(execution) or "/" in execution:
        raise BadInput(f"the execution id {plain(execution)!r:.100} names no folder.")
    order |= {"settings": settings, "workdir": f"{root}/work/{execution}"}
    order["function"] = _function_there(common, packed["common"], fetch, root)
    for files in common["brought"]:
        bring(order, files, fetch, root)
    return order, [_result_there(one, fetch, root) for one in upstream]


def _function_there(common: Mapping[str, Any], digest: str, fetch: Fetch, root: Path) -> Any:
    function, sources = common["function"], common["sources"]
    if isinstance(function, str) and function.startswith("hpcagent.") and not sources:
        return function
    folder = place_in(sources, fetch, root, "modules") if sources else ""
    key = digest, folder
    if key not in _functions:
        if len(_functions) >= _MOST_COMMON:
            _functions.clear()
        _functions[key] = Travelled(function, folder)
    return _functions[key]


def _text_list(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadInput("a packed order names its inputs as a list of SHA-256.")
    return value


def _named(common: Mapping[str, Any]) -> list[str]:
    groups = (common["placed"], common["sources"], *(files["files"] for files in common["brought"]))
    return [str(file["sha256"]) for group in groups for file in group.values()]


def _result_there(sent: Mapping[str, Any], fetch: Fetch, root: Path) -> dict[str, Any]:
    fields: dict[str, Any] = content(sent["result"], fetch) if "result" in sent else dict(sent)
    files = fields.pop("travels", None)
    if files:
        fields["workdir"] = place_in(files, fetch, root, "run")
    return fields
