"""Rewrites the tables of the reference that come from the code, in place between their markers.

    python docs/generate.py            rewrite
    python docs/generate.py --check    only say what is out of date (exit code 1)

A table stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hpcagent import packaged
from hpcagent.apps.catalog import list_apps
from hpcagent.apps.lammps.metrics import METRICS
from hpcagent.apps.launch import FIELDS
from hpcagent.policies.base import BUILT_IN
from hpcagent.sites import profile as site

REFERENCE = Path(__file__).resolve().parent / "reference"
STYLES = {"all": "all", "physical": "all but `lj`", "lj": "`lj`"}


def metrics() -> str:
    """Every metric of a LAMMPS log."""
    rows = []
    for name, info in METRICS.items():
        unit = "the style's unit of time" if info.unit == "time" else info.unit
        rows.append([f"`{name}`", unit, STYLES[info.styles], info.description, info.formula])
    return _table(["metric", "unit", "`units` styles", "what it is", "formula, or the line it is read from"], rows)


def apps() -> str:
    """Every app that comes along: parameters and metrics."""
    parts = []
    for app in list_apps():
        contract = app.contract
        parts.append(f"### `{app.name}` {contract.version}\n\n{contract.description}")
        if contract.inputs:
            parts.append(f"Takes as input: {', '.join(f'`{name}`' for name in contract.inputs)}.")
        parts.append(
            _table(
                ["parameter", "allowed", "scale", "default", "what it is"],
                (
                    [
                        f"`{p.name}`",
                        p.range.removesuffix(" 1"),
                        "log" if p.log else "",
                        "" if p.default is None else f"{p.default}",
                        p.description,
                    ]
                    for p in contract.space.parameters
                ),
            )
        )
        promised = ", ".join(f"`{m.name}` ({m.unit})" for m in contract.metrics if m.required)
        parts.append(f"Promised metrics: {promised}.")
    return "\n\n".join(parts)


def policies() -> str:
    """Every built-in policy and its options."""
    rows = []
    for name, path in BUILT_IN.items():
        factory = _imported(path)
        says = _arguments(factory)
        options = [
            p for p in inspect.signature(factory).parameters.values() if p.name not in ("space", "objective")
        ]
        for option in options:
            if option.name != "seed":
                text = says.get(option.name, "")
                if text.startswith("See "):
                    text = _arguments(factory.__mro__[1])[option.name]
                rows.append([f"`{name}`", f"`{option.name}`", _default(option.default), text])
        if all(option.name == "seed" for option in options):
            rows.append([f"`{name}`", "none", "", ""])
    return _table(["policy", "option", "default", "meaning"], rows)


def packaged_sites() -> str:
    """Every site profile that comes along."""
    rows = []
    for path in sorted(packaged.folder("site_profiles").glob("*.toml")):
        found = site.find_profile(path)
        executors = ", ".join(f"`{label}`" for label in found.executors)
        queues = ", ".join(f"`{queue}`" for queue in found.queues)
        rows.append([f"`{found.name}`", f"`{found.kind}`", found.description, executors, queues])
    return _table(["profile", "kind", "what it is", "executors", "queues known"], rows)


def site_keys(model: type[BaseModel], batch: bool | None = None) -> str:
    """The keys of one table of a site profile; with `batch`, those that only batch systems have, or the others."""
    texts = _attribute_texts(model)
    rows = []
    for name, field in model.model_fields.items():
        if batch is None or (name in site.BATCH_ONLY) == batch:
            kind, default = _type(field.annotation, field), _key_default(name, field)
            rows.append([f"`{name}`", kind, _unit(name), default, texts[name]])
    return _table(["key", "type", "unit", "default", "meaning"], rows)


def launcher_fields() -> str:
    """The fields of a launcher's template."""
    return _table(["field", "what it becomes"], ([f"`{{{name}}}`", text] for name, text in FIELDS.items()))


def _attribute_texts(model: type[BaseModel]) -> dict[str, str]:
    """Attribute -> the text that stands below it in the source."""
    (tree,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for line, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(below, ast.Expr):
            texts[line.target.id] = ast.literal_eval(below.value)
    return texts


def _type(annotation: Any, field: FieldInfo | None = None) -> str:
    """A type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], next((a for a in arguments[1:] if isinstance(a, FieldInfo)), None))
    if origin in (Union, UnionType):
        return " or ".join(_type(a) for a in arguments if a is not type(None))
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin is tuple:
        inner = arguments[0]
        return f"list of {_type(inner)}" if get_origin(inner) is Literal else "list of strings"
    if origin is dict:
        if isinstance(arguments[1], type) and issubclass(arguments[1], BaseModel):
            return "tables"
        return "table of strings"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    word = {str: "string", bool: "true or false", int: "whole number", float: "number"}[annotation]
    for bound in field.metadata if field is not None else ():
        for sign, limit in ((">=", getattr(bound, "ge", None)), (">", getattr(bound, "gt", None))):
            word += "" if limit is None else f" {sign} {limit}"
    return word


def _unit(name: str) -> str:
    if name.endswith("_s") or name == "max_idletime":
        return "s"
    if "walltime" in name:
        return "`HH:MM:SS`"
    return "GB" if name.endswith("_gb") else ""


def _key_default(name: str, field: FieldInfo) -> str:
    if name == "name":
        return "the file's name"
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return ""
    if isinstance(value, dict):
        return "" if not value else f"one, `{next(iter(value))}`"
    return f"`{json.dumps(value)}`"


TABLES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "metrics": ("metrics.md", metrics),
    "apps": ("metrics.md", apps),
    "policies": ("policies.md", policies),
    "packaged_sites": ("site_profile.md", packaged_sites),
    "site": ("site_profile.md", partial(site_keys, site.Profile, batch=False)),
    "site_batch": ("site_profile.md", partial(site_keys, site.Profile, batch=True)),
    "executor": ("site_profile.md", partial(site_keys, site.ExecutorProfile)),
    "site_app": ("site_profile.md", partial(site_keys, site.AppSettings)),
    "launcher": ("site_profile.md", partial(site_keys, site.LauncherSettings)),
    "launcher_fields": ("site_profile.md", launcher_fields),
    "identify": ("site_profile.md", partial(site_keys, site.Identify)),
    "block": ("site_profile.md", partial(site_keys, site.BlockSettings)),
    "node": ("site_profile.md", partial(site_keys, site.NodeType)),
    "queue": ("site_profile.md", partial(site_keys, site.QueueLimits)),
    "coordinator": ("site_profile.md", partial(site_keys, site.CoordinatorSettings)),
}


def _imported(path: str) -> type:
    module, _, name = path.partition(":")
    found: type = getattr(__import__(module, fromlist=[name]), name)
    return found


def _arguments(factory: type) -> dict[str, str]:
    """Argument -> its text in the docstring."""
    doc = inspect.getdoc(factory) or ""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", doc, re.MULTILINE | re.DOTALL)
    if section is None:
        return {}
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", section[1], re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in entries}


def _default(value: object) -> str:
    if value is None:
        return ""
    text = (
        str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    )
    return f"`{text}`"


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *([_cell(text) for text in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text that neither ends the cell nor passes for HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def current(page: str, text: str) -> str:
    """The text of a page with its tables made new."""
    for name, (where, table) in TABLES.items():
        if where != page:
            continue
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"{page}: the markers of {name!r} are missing")
        text = f"{before}{begin}\n\n{table()}\n\n{end}{after}"
    return text


def main() -> int:
    """Rewrite, or check."""
    stale = []
    for page in sorted({where for where, _ in TABLES.values()}):
        path = REFERENCE / page
        text = path.read_text()
        made = current(page, text)
        if made != text:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(made)
    print(f"changed: {', '.join(stale)}" if stale else "everything is current")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    raise SystemExit(main())
