"""Rewrites the tables of the reference that come from the code, in place between their markers.

    python docs/generate.py            rewrite
    python docs/generate.py --check    only say what is out of date (exit code 1)

A table stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hpcagent.apps.catalog import list_apps
from hpcagent.apps.lammps.metrics import METRICS
from hpcagent.policies.base import BUILT_IN

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


TABLES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "metrics": ("metrics.md", metrics),
    "apps": ("metrics.md", apps),
    "policies": ("policies.md", policies),
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
