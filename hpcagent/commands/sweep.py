"""`hpcagent sweep`: every point of a design, without a file; `hpcagent run` takes a sweep's TOML."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from hpcagent.commands.axes import axis, listed_points, named_values
from hpcagent.commands.common import (
    AccountOption,
    BlocksOption,
    DetachOption,
    InsideOption,
    JsonOption,
    NodesOption,
    QueueOption,
    SiteOption,
    WalltimeOption,
    WorkersOption,
    say,
)
from hpcagent.commands.running import (
    How,
    parse_changes,
    profile_of,
    run_detached,
    run_to_its_end,
    show_plan,
)
from hpcagent.errors import BadInput

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command(name="sweep")(sweep)


def sweep(
    app: Annotated[
        str, typer.Argument(help="A LAMMPS script, an app, or the folder of a sweep.", metavar="APP|RUN_DIR")
    ],
    axes: Annotated[
        list[str] | None,
        typer.Argument(help="T=100:500:9 (low:high:n; then :log), T=100,200,400, style=a,b.", metavar="NAME=..."),
    ] = None,
    design: Annotated[
        str | None, typer.Option("--design", help="grid (default), latin_hypercube, sobol or list (by --from).")
    ] = None,
    replicates: Annotated[int | None, typer.Option("--replicates", min=1, help="Runs at each point (3).")] = None,
    points: Annotated[
        int | None, typer.Option("--points", min=1, help="Points of latin_hypercube and sobol.")
    ] = None,
    listed: Annotated[
        Path | None, typer.Option("--from", help="A CSV file of points; its first line names the parameters.")
    ] = None,
    metrics: Annotated[str | None, typer.Option("--metrics", help="What is shown and drawn: a,b,c.")] = None,
    units: Annotated[
        list[str] | None,
        typer.Option("--unit", metavar="NAME=UNIT", help="Unit of a variable that no contract declares."),
    ] = None,
    seed_variables: Annotated[
        list[str] | None,
        typer.Option("--seed-variable", help="Variable of the script that takes the random seed."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the sweep, and of its folder in runs.")] = None,
    site: SiteOption = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", help="Its folder (runs/NAME by default).")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another key of the campaign, e.g. until.node_hours=2."),
    ] = None,
    workers: WorkersOption = None,
    account: AccountOption = None,
    queue: QueueOption = None,
    walltime: WalltimeOption = None,
    nodes: NodesOption = None,
    blocks: BlocksOption = None,
    inside: InsideOption = False,
    detach: DetachOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; submit nothing.")] = False,
    as_json: JsonOption = False,
    plots: Annotated[bool, typer.Option(help="Write the report with plots at the end.")] = True,
) -> None:
    """Run every point of a design several times; no objective. Name its folder to add more; the rest stays."""
    from hpcagent.campaign.where import chosen_site
    from hpcagent.store.rundir import RunDir

    asked = _Asked(
        axes=_axes(axes or []),
        design=design,
        replicates=replicates,
        points=points if listed is None else listed_points(listed),
        units=named_values(units, "--unit"),
        seed_variables=seed_variables,
        changes=parse_changes(changes or []) | ({"name": name} if name is not None else {}),
        metrics=None if metrics is None else [m.strip() for m in metrics.split(",")],
    )
    if points is not None and listed is not None:
        raise BadInput("--points and --from exclude each other: the points of a list are those of its file.")
    begun = RunDir(app).exists
    if begun and run_dir is None:
        run_dir = Path(app)
    made = _gone_on(app, asked) if begun else _begun(app, asked)
    profile = profile_of(
        chosen_site(made, run_dir, site),
        account=account,
        queue=queue,
        walltime=walltime,
        nodes=nodes,
        blocks=blocks,
    )
    if dry_run:
        show_plan(made, profile, workers, run_dir, as_json)
        if not as_json:
            _say_what_is_new(made, run_dir)
        return
    how = How(profile, workers=workers, inside=inside, as_json=as_json, plots=plots)
    run_detached(made, run_dir, how) if detach else run_to_its_end(made, run_dir, how)


class _Asked(NamedTuple):
    """What the command line names; None and empty where it does not."""

    axes: dict[str, Any]
    design: str | None
    replicates: int | None
    points: int | list[dict[str, Any]] | None
    units: dict[str, str]
    seed_variables: list[str] | None
    changes: dict[str, Any]
    metrics: list[str] | None


def _axes(texts: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, of in map(axis, texts):
        if name in given:
            raise BadInput(f"{name} is given twice; write all of its values in one.", value=name)
        given[name] = of
    return given


def _begun(reference: str, asked: _Asked) -> Any:
    """A new sweep."""
    from hpcagent.campaign.sweep import Sweep
    from hpcagent.policies.design import REPLICATES

    options = _options(asked.changes)
    fixed = {n: of for n, of in asked.axes.items() if not isinstance(of, (list, dict))}
    if fixed:
        options["fixed"] = {**options.get("fixed", {}), **fixed}
    return Sweep(
        _app(reference, asked),
        {n: of for n, of in asked.axes.items() if n not in fixed},
        design=asked.design or ("list" if isinstance(asked.points, list) else "grid"),  # type: ignore[arg-type]
        replicates=REPLICATES if asked.replicates is None else asked.replicates,
        points=asked.points,
        metrics=asked.metrics or (),
        **options,
    )


def _gone_on(folder: str, asked: _Asked) -> Any:
    """The campaign of a folder, with what is named changed and everything else as it is."""
    from hpcagent.campaign.loading import load_run
    from hpcagent.campaign.sweep_runs import design_of, grown

    written = load_run(folder)
    app = _wider(written, asked)
    changes = grown(
        written, app, asked.axes, design=asked.design, replicates=asked.replicates, points=asked.points
    )
    changes |= {} if asked.metrics is None else {"show": asked.metrics}
    made = load_run(folder, changes=changes | asked.changes, app=app)
    design_of(made)  # what is wrong with the design is said before the site is opened
    return made


def _say_what_is_new(made: Any, run_dir: Path | None) -> None:
    """How much of a design there is already, in the folder where it would be run."""
    from hpcagent.campaign.recorded import snapshot
    from hpcagent.campaign.sweep_runs import PlannedRuns
    from hpcagent.store.rundir import RunDir

    folder = run_dir or Path("runs") / made.name
    if RunDir(folder).exists:
        new = PlannedRuns(made).text([r.manifest for r in snapshot(folder).results])
        say(f"{folder} is there: {new}. Only what is new would be run; the batch above is that of an empty folder")


def _wider(written: Any, asked: _Asked) -> Any:
    """The app of a folder's campaign; of a bare script of LAMMPS with the ranges that are asked for now."""
    from hpcagent.science.lammps.contract import packaged_inputs

    app, space = written.app, written.app.contract.space
    bare = app.source
    script = "seed_variables" in app.settings and bare and bare not in packaged_inputs() and Path(bare).is_file()
    if not script:
        _refuse_for_scripts(asked)
        return app
    values = _values(asked)
    if not asked.units and not asked.seed_variables and all(_within(space, n, of) for n, of in values.items()):
        return app
    if not values:
        _refuse_for_scripts(asked)
    units = {p.name: p.unit for p in space.parameters} | asked.units
    # What ran before stays inside: the ranges of then, and what is asked for now.
    known = {p.name: [c for c in (*p.choices, p.low, p.high) if c is not None] for p in space.parameters}
    floats = {p.name for p in space.parameters if p.kind == "float"}
    for n in known:
        of = values.get(n, [])
        of = [of["low"], of["high"]] if isinstance(of, dict) else of if isinstance(of, list) else [of]
        known[n] += of
    known |= {n: of for n, of in values.items() if n not in known}
    return _script(bare, known, units, asked.seed_variables or app.settings["seed_variables"], floats)


def _within(space: Any, name: str, of: Any) -> bool:
    """Whether an app takes these values as it is."""
    if name not in space:
        return False
    if isinstance(of, dict):
        of = [end for key, end in of.items() if key in ("low", "high")]
    try:
        return all(space[name].validated(v) == v for v in (of if isinstance(of, list) else [of]))
    except BadInput:
        return False


def _app(reference: str, asked: _Asked) -> Any:
    """What a new sweep runs; variables of a bare script of LAMMPS are declared by their values."""
    from hpcagent.catalog import find_app, is_executable, not_deprecated
    from hpcagent.science.lammps.contract import lammps, packaged_inputs

    path = Path(reference).expanduser()
    packaged = reference in packaged_inputs()
    if not packaged and (not path.is_file() or is_executable(path)):
        _refuse_for_scripts(asked)
        return find_app(reference)
    values, known = _values(asked), None
    with contextlib.suppress(BadInput):  # it uses variables that are declared below
        known = lammps(reference, seed_variables=asked.seed_variables)
    if known is None or asked.units or not all(n in known.contract.space for n in values):
        known = _script(reference, values, asked.units, asked.seed_variables)
    return not_deprecated(known, reference)


def _refuse_for_scripts(asked: _Asked) -> None:
    if asked.units or asked.seed_variables:
        raise BadInput(
            "--unit and --seed-variable are for variables of a LAMMPS script that are named here too "
            "(NAME=LOW:HIGH:N); this app declares its own."
        )


def _values(asked: _Asked) -> dict[str, Any]:
    """What is given of each parameter, on the line and in the list of points."""
    values = dict(asked.axes)
    for point in asked.points if isinstance(asked.points, list) else ():
        for n, value in point.items():
            known = values.setdefault(n, [])
            values[n] = [*(known if isinstance(known, list) else [known]), value]
    return values


def _script(
    reference: str,
    values: dict[str, Any],
    units: dict[str, str],
    seed_variables: Any,
    floats: Collection[str] = (),
) -> Any:
    from hpcagent.model.parameter import Choice, Float, Int
    from hpcagent.science.lammps.contract import lammps

    variables = {}
    for name, of in values.items():
        known = list(of.values())[:2] if isinstance(of, dict) else of if isinstance(of, list) else [of]
        unit = units.get(name, "1")
        if any(isinstance(v, (str, bool)) for v in known):
            variables[name] = Choice(*dict.fromkeys(known))
        elif all(isinstance(v, int) for v in known) and not isinstance(of, dict) and name not in floats:
            variables[name] = Int(min(known), max(known), unit=unit)
        else:
            variables[name] = Float(min(known), max(known), unit=unit)
    return lammps(reference, variables=variables, seed_variables=seed_variables)


def _options(changes: dict[str, Any]) -> dict[str, Any]:
    """Keys of the campaign from KEY=VALUE with dots."""
    options: dict[str, Any] = {}
    for dotted, value in changes.items():
        *folders, last = dotted.split(".")
        table = options
        for folder in folders:
            table = table.setdefault(folder, {})
            if not isinstance(table, dict):
                raise BadInput(f"--set {dotted}: {folder!r} is no table.", value=dotted)
        table[last] = value
    return options
