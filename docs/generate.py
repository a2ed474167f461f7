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
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hpcagent import packaged
from hpcagent.apps import BUILT_IN as BUILT_IN_APPS
from hpcagent.apps.base import App
from hpcagent.apps.executable.container import Container
from hpcagent.apps.executable.record import Failing, Local, ProgramFile, Reading
from hpcagent.apps.executable.service import Credential, Http, ServiceFile
from hpcagent.apps.launch import FIELDS
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.catalog import list_apps
from hpcagent.cli import EXIT_CODES
from hpcagent.model import failures
from hpcagent.model.parameter import Parameter
from hpcagent.policies.base import BUILT_IN
from hpcagent.science.engines.base import ENGINES, LEVEL
from hpcagent.science.engines.isolated import _WITH_RANKS as WITH_RANKS
from hpcagent.science.engines.registry import SETTINGS as ENGINE_SETTINGS
from hpcagent.science.engines.registry import engine as engine_of
from hpcagent.science.engines.task import FILES as TASK_FILES
from hpcagent.science.engines.task import SETTINGS as TASK_SETTINGS
from hpcagent.science.lammps.frames import READING
from hpcagent.science.lammps.metric_table import METRICS
from hpcagent.sites import profile as site
from hpcagent.sites import tables
from hpcagent.sites.endpoint_settings import ENDPOINT_ONLY, ControlSettings, TransferSettings
from hpcagent.sites.profiles import find_profile

REFERENCE = Path(__file__).resolve().parent / "reference"
KINDS = {
    "structures": "building",
    "dft": "calculation",
    "mlip": "calculation",
    "micromagnetics": "calculation",
    "chemistry": "calculation",
    "arithmetic": "calculation",
    "as_app": "analysis",
    "plot_numbers": "plot",
    "landscape": "stand-in",
    "spring": "stand-in",
    "ml": "learning",
    "plots": "plot",
}
# What of hpcagent's extras an app needs beyond what its kind does.
NEEDS = {
    "query_materials_database": "`ase`; for OPTIMADE `hpcagent[optimade]`",
    "smiles_to_xyz": "`build`",
    "cut_slab": "`dft`",
    "point_defect": "`dft`",
    "magnetic_ordering": "`dft`",
    "adsorption_sites": "`dft`",
    "place_adsorbate": "`dft`",
    "packmol_box": "`ase`, the program `packmol`",
    "rdf": "`analysis`",
    "coordination": "`analysis`",
    "msd": "`ase`",
    "vacf": "`ase`",
    "eos_fit": "`ase`",
    "elastic_constants": "`ase`",
    "adsorption_energy_of": "`ase`",
    "vibration_modes": "`ase`",
    "band_path": "`ase`",
    "phonon_properties": "`phonons`",
    "phonons": "`phonons`, and [the engine](../howto/dft.md#engines)",
    "crystal_phonons": "`phonons`, and [the engine](../howto/dft.md#engines)",
    "ml_train_surrogate": "`ml`; nothing with the model `gp`, columns and fractions",
    "ml_predict_property": "`ml`, where the model was trained with matminer or dscribe",
    "train_pod_potential": "`lammps`, `ase`",
    "pod_frames": "`lammps`, `ase`",
    "active_learning": "`lammps`, and [the engine](../howto/dft.md#engines)",
    "melt_quench": "`lammps`, `analysis`",
    "argon_diffusion": "`lammps`, `analysis`",
    "water_box": "`lammps`, `build`, `analysis`, the program `packmol`",
}
# Parameters that many apps have: shown once.
SHARED = {
    "The level of theory": {n: p.model_copy(update={"name": n}) for n, p in LEVEL.items()},
    "Reading a trajectory": {n: p.model_copy(update={"name": n}) for n, p in READING.items()},
}
SHARED_ON = {"The level of theory": "engines.md", "Reading a trajectory": "analyses.md"}
# Kind of an app -> its page in reference/apps/.
APP_PAGES = {
    "building": "building",
    "calculation": "calculations",
    "stand-in": "calculations",
    "learning": "learning",
    "analysis": "analyses",
    "plot": "plots",
    "chain": "chains",
    "LAMMPS": "lammps",
}
STYLES = {"all": "all", "physical": "all but `lj`", "lj": "`lj`"}


def metrics() -> str:
    """Every metric of a LAMMPS log."""
    rows = []
    for name, info in METRICS.items():
        unit = "the style's unit of time" if info.unit == "time" else info.unit
        rows.append([f"`{name}`", unit, STYLES[info.styles], info.description, info.formula])
    return _table(["metric", "unit", "`units` styles", "what it is", "formula, or the line it is read from"], rows)


def app_overview() -> str:
    """Every app that comes along, a line each."""
    rows = []
    for app in _apps():
        gives = ", ".join(
            f"`{m.name}`" + ("" if m.unit == "1" else f" {m.unit}") for m in app.contract.metrics if m.required
        )
        takes = ", ".join(_input(name) for name in app.contract.inputs)
        anchor = f"{app.name}-{app.contract.version.replace('.', '')}"
        link = f"[`{app.name}`](apps/{APP_PAGES[_kind(app)]}.md#{anchor})"
        rows.append([link, _kind(app), takes, gives or "by the script", _needs(app)])
    return _table(["app", "kind", "takes", "gives", "needs"], rows)


def apps(page: str) -> str:
    """Every app of one page: parameters, metrics, failures, settings."""
    parts = []
    for app in (app for app in _apps() if APP_PAGES[_kind(app)] == page):
        contract = app.contract
        parts.append(f"## `{app.name}` {contract.version}\n\n{contract.description}")
        lines = [f"*{_kind(app)}*"]
        if contract.inputs:
            lines.append(f"takes {', '.join(_input(name) for name in contract.inputs)}")
        lines += [] if contract.seeded else ["does not depend on the seed"]
        if app.vary:
            lines.append(f"a campaign varies {', '.join(f'`{n}`' for n in app.vary)} if it does not say")
        parts.append("; ".join(lines) + ".")
        space = list(contract.space.parameters)
        for title, shared in SHARED.items():
            of_it = [p for p in space if p == shared.get(p.name)]
            if len(of_it) > len(shared) // 2:
                space = [p for p in space if p not in of_it]
                known = {p.name for p in of_it}
                other = ", ".join(f"`{name}`" for name in shared if name not in known)
                but = f" (except {other})" if other else ""
                rest = ", and:" if space else "."
                parts.append(f"Parameters of [{title.lower()}]({SHARED_ON[title]}#{_anchor(title)}){but}{rest}")
        if space:
            parts.append(_parameters(space))
        parts.append(_metrics_of(app))
        own = [name for name in app.settings if name not in ("files", "paths")]
        if _kind(app) != "LAMMPS":
            if contract.failure_modes:
                parts.append(f"Failures: {', '.join(f'`{name}`' for name in contract.failure_modes)}.")
            if own and set(own) != {*TASK_SETTINGS, *TASK_FILES}:
                parts.append(f"Settings: {', '.join(f'`{name}`' for name in own)}.")
            elif own:
                parts.append("Settings: those of [the engines](engines.md#engines).")
    return "\n\n".join(parts)


def level() -> str:
    """The parameters by which an app is told what to compute with."""
    return _parameters(LEVEL[name].model_copy(update={"name": name}) for name in LEVEL)


def reading() -> str:
    """The parameters by which an analysis is told how to read a trajectory."""
    return _parameters(READING[name].model_copy(update={"name": name}) for name in READING)


def engines() -> str:
    """Every engine: what it is, what it takes into account."""
    rows = []
    for name in ENGINES:
        found = engine_of(name)
        takes = ", ".join(f"`{n}`" for n in LEVEL if n in found.takes) or "none"
        settings = ENGINE_SETTINGS.get(name) or re.findall(r"`(\w+)`", _options(found))
        said = ", ".join(f"`{n}`" for n in dict.fromkeys(settings))
        where = "a child" if found.isolated else "its own program" if name in WITH_RANKS else "the worker's"
        rows.append([f"`{name}`", found.kind, takes, said, where])
    return _table(["engine", "kind", "takes", "settings", "process"], rows)


def _options(engine: Any) -> str:
    """The sentence of `calculator` that names its options."""
    doc = inspect.getdoc(engine.calculator) or ""
    found = re.search(r"Options: (.*?)(?:\n\n|\Z)", doc, re.DOTALL)
    names = re.findall(r"`(\w+)`", found[1]) if found else []
    return " ".join(f"`{name}`" for name in names if name in TASK_SETTINGS)


def _apps() -> list[App]:
    return list_apps()


def _kind(app: App) -> str:
    if app.chain:
        return "chain"
    if app.name not in BUILT_IN_APPS:
        return "LAMMPS"
    package = BUILT_IN_APPS[app.name].split(".")[2]
    return KINDS.get(package, package)


def _needs(app: App) -> str:
    if app.name in NEEDS:
        return NEEDS[app.name]
    if "engine" in app.contract.space:
        return "`ase`, and [the engine](../howto/dft.md#engines)"
    if _kind(app) == "LAMMPS":
        return "`lammps`, `ase`" if app.contract.inputs else "`lammps`"
    return {"building": "`ase`", "plot": "`plots`"}.get(_kind(app), "")


def _input(name: str) -> str:
    return f"one or more `{name[:-3]}`" if name.endswith("...") else f"`{name}`"


def _parameters(space: Iterable[Parameter]) -> str:
    return _table(
        ["parameter", "allowed", "scale", "default", "what it is"],
        (
            [
                f"`{p.name}`",
                p.range.removesuffix(" 1"),
                "log" if p.log else "",
                "required" if p.default is None else '""' if p.default == "" else f"{p.default}",
                p.description,
            ]
            for p in space
        ),
    )


def _metrics_of(app: App) -> str:
    metrics = app.contract.metrics
    if _kind(app) == "LAMMPS":
        promised = ", ".join(f"`{m.name}` ({m.unit})" for m in metrics if m.required)
        return f"Promised metrics: {promised}; [all others](../metrics.md) as the log allows."
    rows = ([f"`{m.name}`", m.unit, "" if m.required else "where there is one", m.description] for m in metrics)
    return _table(["metric", "unit", "", "what it is"], rows)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


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
        found = find_profile(path)
        executors = ", ".join(f"`{label}`" for label in found.executors)
        queues = ", ".join(f"`{queue}`" for queue in found.queues)
        rows.append([f"`{found.name}`", f"`{found.kind}`", found.description, executors, queues])
    return _table(["profile", "kind", "what it is", "executors", "queues known"], rows)


def site_keys(model: type[BaseModel], only: Collection[str] = (), but: Collection[str] = ()) -> str:
    """The keys of one table of a site profile: all, or only some, or all but some."""
    texts = _attribute_texts(model)
    rows = []
    for name, field in model.model_fields.items():
        if (name in only or not only) and name not in but:
            kind, default = _type(field.annotation, field), _key_default(name, field)
            rows.append([f"`{name}`", kind, _unit(name), default, texts[name]])
    return _table(["key", "type", "unit", "default", "meaning"], rows)


def attributes(model: type[BaseModel]) -> str:
    """The keys of a record whose docstring says what they are."""
    rows = []
    for name, text in _arguments(model, "Attributes").items():
        field = model.model_fields[name]
        default = "required" if field.is_required() else _of_toml(field.default)
        rows.append([f"`{name}`", default, text])
    return _table(["key", "default", "meaning"], rows)


def _of_toml(value: object) -> str:
    if isinstance(value, (tuple, dict)):
        return f"`{json.dumps(value)}`" if value else "none"
    return "" if isinstance(value, BaseModel) else _default(value)


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


def failure_kinds() -> str:
    """Every kind of failure."""
    return _table(
        ["kind", "means", "what happens"], ([f"`{k.kind}`", k.means, k.happens] for k in failures.KINDS.values())
    )


def run_states() -> str:
    """What the state of a run is called."""
    rows = ([f"**{s.state}**", s.means, s.on_resume] for s in failures.RUN_STATES.values())
    return _table(["state", "means", "when the campaign is resumed"], rows)


def failure_modes(heading: str) -> str:
    """The failures that stand under a heading, and what to do."""
    rows = [[_names(m.names), m.which, m.do] for m in failures.MODES if m.heading == heading]
    if heading == "any":
        jobs = [name for m in failures.MODES if m.heading == "jobs" for name in m.names]
        rows = [
            ["the exception's name", "contract", "correct the function; the traceback is in `log_tail`"],
            ["the name of an `OSError`", "infrastructure", "the file system or the network: read `message`"],
            *rows,
            [
                _names(jobs),
                "infrastructure",
                "its job or worker ended: [when the cluster misbehaves](when_the_cluster_misbehaves.md)",
            ],
        ]
    return _table(["name", "kind", "do"], rows)


def not_retried() -> str:
    """The names that are not started again."""
    names = [name for m in failures.MODES if not m.again for name in m.names]
    return (
        f"Not started again, because the same would happen again: {_names(names)}. On resume they do run again, "
        "so correct the cause and resume. A run with a [restart file](restart.md) that was stopped at its "
        "walltime is started again, and goes on where it was."
    )


def exit_codes() -> str:
    rows = ([str(code), "; ".join(filter(None, words))] for code, words in EXIT_CODES.items())
    return _table(["code", "meaning"], rows)


def lost_attempts() -> str:
    """The failures of runs whose job or workers ended, and whether they are charged."""
    words = {"yes": "yes", "no": "no", "culprit": "where no other run can have been it"}
    rows = [[_names(m.names), m.do, words[m.charged]] for m in failures.MODES if m.heading == "jobs"]
    table = _table(["failure", "what happened", "counts against `retries`"], rows)
    return (
        f"{table}\n\nWhat does not count may happen {failures.MOST_LOST} times to one run before it is given up."
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


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
        return "table of strings" if arguments[1] is not Any else "table"
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
    return {"gb": "GB", "mb": "MB"}.get(name.rpartition("_")[2], "")


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
    "app_overview": ("apps.md", app_overview),
    "level": ("apps/engines.md", level),
    "reading": ("apps/analyses.md", reading),
    "engines": ("apps/engines.md", engines),
    **{f"apps_{page}": (f"apps/{page}.md", partial(apps, page)) for page in dict.fromkeys(APP_PAGES.values())},
    "policies": ("policies.md", policies),
    "packaged_sites": ("site_profile.md", packaged_sites),
    "site": ("site_profile.md", partial(site_keys, site.Profile, but=(*site.BATCH_ONLY, *ENDPOINT_ONLY))),
    "site_batch": ("site_profile.md", partial(site_keys, site.Profile, only=site.BATCH_ONLY)),
    "site_endpoint": ("site_profile.md", partial(site_keys, site.Profile, only=ENDPOINT_ONLY)),
    "control": ("site_profile.md", partial(site_keys, ControlSettings)),
    "transfer": ("site_profile.md", partial(site_keys, TransferSettings)),
    "executor": ("site_profile.md", partial(site_keys, tables.ExecutorProfile)),
    "site_app": ("site_profile.md", partial(site_keys, tables.AppSettings)),
    "launcher": ("site_profile.md", partial(site_keys, tables.LauncherSettings)),
    "launcher_fields": ("site_profile.md", launcher_fields),
    "identify": ("site_profile.md", partial(site_keys, tables.Identify)),
    "block": ("site_profile.md", partial(site_keys, tables.BlockSettings)),
    "node": ("site_profile.md", partial(site_keys, tables.NodeType)),
    "queue": ("site_profile.md", partial(site_keys, tables.QueueLimits)),
    "coordinator": ("site_profile.md", partial(site_keys, tables.CoordinatorSettings)),
    "run_states": ("../concepts.md", run_states),
    "failure_kinds": ("../howto/when_runs_fail.md", failure_kinds),
    "not_retried": ("../howto/when_runs_fail.md", not_retried),
    **{
        f"failures_{heading}": ("../howto/when_runs_fail.md", partial(failure_modes, heading))
        for heading in ("lammps", "programs", "engines", "building", "analyses", "sciences", "any")
    },
    "program_file": ("executable.md", partial(attributes, ProgramFile)),
    "program_reading": ("executable.md", partial(attributes, Reading)),
    "program_failing": ("executable.md", partial(attributes, Failing)),
    "program_local": ("executable.md", partial(attributes, Local)),
    "program_sandbox": ("executable.md", partial(attributes, Sandbox)),
    "program_container": ("executable.md", partial(attributes, Container)),
    "service_file": ("executable.md", partial(attributes, ServiceFile)),
    "program_http": ("executable.md", partial(attributes, Http)),
    "program_credential": ("executable.md", partial(attributes, Credential)),
    "exit_codes": ("cli.md", exit_codes),
    "lost_attempts": ("../howto/when_the_cluster_misbehaves.md", lost_attempts),
}


def _imported(path: str) -> type:
    module, _, name = path.partition(":")
    found: type = getattr(__import__(module, fromlist=[name]), name)
    return found


def _arguments(factory: type, heading: str = "Args") -> dict[str, str]:
    """Argument -> its text in the docstring."""
    doc = inspect.getdoc(factory) or ""
    section = re.search(rf"^{heading}:\n(.*?)(?=^\S|\Z)", doc, re.MULTILINE | re.DOTALL)
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
    return "\n".join("| " + " | ".join(" ".join(cell.split()) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text that neither ends the cell nor passes for HTML; in code nothing does, and `&lt;` would be seen."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


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
