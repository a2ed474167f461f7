"""`hpcagent sweep`: every point of a design, without a file; `hpcagent run` takes a sweep's TOML."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

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
)
from hpcagent.errors import BadInput

__all__ = ["add"]

_MOST_VALUES = 100_000
_HOW = "write NAME=LOW:HIGH:N, NAME=LOW:HIGH:N:log, NAME=V1,V2,V3, or NAME=VALUE for one that is not varied"


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
        str, typer.Option("--design", help="grid, latin_hypercube, sobol or list (with --from).")
    ] = "grid",
    replicates: Annotated[int, typer.Option("--replicates", min=1, help="Runs at each point.")] = 3,
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
    """Run every point of a design several times; no objective. Run it again with more to add what is new."""
    from hpcagent import cli as shell
    from hpcagent.campaign.sweep import Sweep
    from hpcagent.campaign.where import chosen_site

    given, written = [_axis(text) for text in axes or []], None
    twice = [n for n, _ in given if [m for m, _ in given].count(n) > 1]
    if twice:
        raise BadInput(f"{twice[0]} is given twice; write all of its values in one.", value=twice[0])
    read = None if listed is None else _points(listed)
    found, written = _app(app, given, read, _named(units, "--unit"), seed_variables)
    options = _options(shell._parse_changes(changes or []))
    fixed = {n: of for n, of in given if not isinstance(of, (list, dict))}
    if fixed:
        options["fixed"] = {**options.get("fixed", {}), **fixed}
    if written is not None:
        run_dir = Path(app) if run_dir is None else run_dir
        options = {"seed": written.seed, "name": written.name, "site": written.site} | options
        options["fixed"] = {**written.fixed, **options.get("fixed", {})}
    if name is not None:
        options["name"] = name
    shown = [m.strip() for m in metrics.split(",")] if metrics is not None else []
    made = Sweep(
        found,
        {n: of for n, of in given if isinstance(of, (list, dict))},
        design=design,  # type: ignore[arg-type]  # checked by the design
        replicates=replicates,
        points=points if read is None else read,
        metrics=shown or (() if written is None else written.show),
        **options,
    )
    profile = shell._profile(
        chosen_site(made, run_dir, site),
        account=account,
        queue=queue,
        walltime=walltime,
        nodes=nodes,
        blocks=blocks,
    )
    if dry_run:
        shell._show_plan(made, profile, workers, run_dir, as_json)
        return
    how = shell._How(profile, workers=workers, inside=inside, as_json=as_json, plots=plots)
    shell._run_detached(made, run_dir, how) if detach else shell._run(made, run_dir, how)


def _axis(text: str) -> tuple[str, Any]:
    """A parameter, and its values (a list), its range (a dict), or the one value that it is fixed at.

    Example:
        >>> _axis("T=100:500:3"), _axis("p=1:100:3:log"), _axis("style=a,b"), _axis("steps=2000")
        (('T', [100, 300, 500]), ('p', [1, 10, 100]), ('style', ['a', 'b']), ('steps', 2000))
    """
    name, equals, of = text.partition("=")
    name, of = name.strip(), of.strip()
    if not equals or not name or not of:
        raise BadInput(f"{text!r}: {_HOW}.", value=text)
    if "," in of:
        return name, [_value(word) for word in of.split(",")]
    if ":" not in of:
        return name, _value(of)
    parts = of.split(":")
    log = parts[-1] == "log"
    numbers = [_value(word) for word in (parts[:-1] if log else parts)]
    if any(isinstance(n, str) for n in numbers) or len(numbers) not in (2, 3):
        raise BadInput(f"{text!r}: {_HOW}.", value=text)
    low, high = numbers[0], numbers[1]
    if log and low <= 0:
        raise BadInput(f"{text!r}: with log the values are > 0.", value=text)
    if len(numbers) == 2:
        return name, {"low": low, "high": high} | ({"log": True} if log else {})
    return name, _spread(text, low, high, numbers[2], log=log)


def _spread(text: str, low: float, high: float, n: Any, *, log: bool) -> list[float]:
    import numpy as np

    if not isinstance(n, int) or not 2 <= n <= _MOST_VALUES:
        raise BadInput(f"{text!r}: the third number is how many values, 2 to {_MOST_VALUES}.", value=text)
    values = (np.geomspace if log else np.linspace)(low, high, n)
    found = [low, *(float(f"{v:.10g}") for v in values[1:-1]), high]
    whole = all(float(v).is_integer() for v in found) and isinstance(low, int) and isinstance(high, int)
    return [int(v) for v in found] if whole else [float(v) for v in found]


def _value(word: str) -> Any:
    word = word.strip()
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    if not word:
        raise BadInput(f"an empty value; {_HOW}.", value=word)
    return {"true": True, "false": False}.get(word, word)


def _points(path: Path) -> list[dict[str, Any]]:
    """The points of a CSV file, in its order."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as CSV: {error}.", value=str(path)) from None
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise BadInput(f"{path}, line {number}: it has not as many values as the first line has names.")
    return [{str(n).strip(): _value(v) for n, v in row.items()} for row in rows]


def _named(given: Sequence[str] | None, option: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in given or ()]
    for name, equals, value in pairs:
        if not equals or not name or not value:
            raise BadInput(f"{option} {name}{equals}{value}: write {option} NAME=VALUE.", value=name)
    return {name: value for name, _, value in pairs}


def _app(
    reference: str,
    given: Sequence[tuple[str, Any]],
    read: Sequence[dict[str, Any]] | None,
    units: dict[str, str],
    seed_variables: list[str] | None,
) -> tuple[Any, Any]:
    """The app, and the campaign of the folder where one is named; variables of a bare script are declared."""
    from hpcagent.apps.catalog import find_app
    from hpcagent.apps.lammps.contract import lammps, packaged_inputs
    from hpcagent.campaign.record import load_run
    from hpcagent.store.rundir import RunDir

    if RunDir(reference).exists:
        written = load_run(reference)
        bare = written.app.source
        script = bare and bare not in packaged_inputs() and Path(bare).is_file()
        values = {n: of for n, of in given if n not in written.app.contract.space or script}
        if not values or not script:
            return written.app, written
        units = {p.name: p.unit for p in written.app.contract.space.parameters} | units
        return _script(bare, values, units, seed_variables or written.app.settings["seed_variables"]), written
    path = Path(reference).expanduser()
    if not path.is_file() and reference not in packaged_inputs():
        if units or seed_variables:
            raise BadInput("--unit and --seed-variable are for the script of LAMMPS; this app declares its own.")
        return find_app(reference), None
    values = dict(given)
    for point in read or ():
        for n, value in point.items():
            values.setdefault(n, [])
            values[n] = [*values[n], value]
    try:
        known = lammps(reference, seed_variables=seed_variables)
        if all(n in known.contract.space for n in values) and not units:
            return known, None
    except BadInput:
        pass  # it uses variables that are declared below
    return _script(reference, values, units, seed_variables), None


def _script(reference: str, values: dict[str, Any], units: dict[str, str], seed_variables: Any) -> Any:
    from hpcagent.apps.lammps.contract import lammps
    from hpcagent.model.space import Choice, Float, Int

    variables = {}
    for name, of in values.items():
        known = list(of.values())[:2] if isinstance(of, dict) else of if isinstance(of, list) else [of]
        unit = units.get(name, "1")
        if any(isinstance(v, (str, bool)) for v in known):
            variables[name] = Choice(*dict.fromkeys(known))
        elif all(isinstance(v, int) for v in known) and not isinstance(of, dict):
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
