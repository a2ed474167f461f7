"""The command line: parses, calls, prints. What it can do, Python can do first."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from hpcagent.errors import BadInput, HpcAgentError, Interrupted

__all__ = ["main"]

EXIT_CODES = """Exit codes: 0 done; 1 something broke (site, disk), or no run completed; 2 bad input, nothing
was started; 3 the campaign ended without a feasible point; 130 stopped by Ctrl-C or SIGTERM (resume goes on)."""

NOTHING_WORKED = 1
NO_ANSWER = 3

cli = typer.Typer(
    name="hpcagent",
    help="Steered campaigns of simulations: from an input script and a question to an answer with an error bar.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SiteOption = Annotated[str | None, typer.Option("--site", help="Name or path of a site profile.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Runs at the same time.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
RunDirArgument = Annotated[Path, typer.Argument(help="A folder that `hpcagent run` wrote.", metavar="RUN_DIR")]


@cli.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show tracebacks.")] = False,
) -> None:
    if version:
        from hpcagent import __version__

        print(f"hpcagent {__version__}")
        raise typer.Exit


@cli.command()
def run(
    campaign: Annotated[str, typer.Argument(help="A campaign's TOML, or the name of a packaged one.")],
    site: SiteOption = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="The campaign's folder (runs/NAME by default).")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change the campaign, e.g. until.max_runs=12."),
    ] = None,
    workers: WorkersOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; submit nothing.")] = False,
    as_json: JsonOption = False,
    plots: Annotated[bool, typer.Option(help="Write the report with plots at the end.")] = True,
) -> None:
    """Run a campaign to its end, or go on with it if its folder is there."""
    from hpcagent.campaign.record import load_campaign

    loaded = load_campaign(campaign, changes=_parse_changes(changes or []))
    if dry_run:
        _show_plan(loaded, site, workers, run_dir, as_json)
    else:
        _run(loaded, site=site, run_dir=run_dir, workers=workers, as_json=as_json, plots=plots)


@cli.command()
def resume(
    run_dir: RunDirArgument,
    site: SiteOption = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change what may change: until, site, batch_size, retries."
        ),
    ] = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
    plots: Annotated[bool, typer.Option(help="Write the report with plots at the end.")] = True,
) -> None:
    """Go on with a campaign where it stopped; finished runs are not repeated."""
    from hpcagent.campaign.coordinator import load_run

    campaign = load_run(run_dir, changes=_parse_changes(changes or []))
    _run(campaign, site=site, run_dir=run_dir, workers=workers, as_json=as_json, plots=plots)


def _run(
    campaign: Any, *, site: str | None, run_dir: Path | None, workers: int | None, as_json: bool, plots: bool
) -> None:
    from hpcagent.campaign.coordinator import run as run_campaign
    from hpcagent.campaign.report import report as write_report
    from hpcagent.campaign.view import JsonLines, View, watch

    view: View = JsonLines(campaign, sys.stdout) if as_json else watch(campaign)
    with contextlib.closing(view):
        result = run_campaign(campaign, site=site, run_dir=run_dir, workers=workers, watch=view)
    written = write_report(result.run_dir, plots=plots)
    if as_json:
        print(json.dumps({"event": "answer", **_answer_data(result), "report": str(written.path)}))
    else:
        if result.points:
            print(f"{result.table()}\n")
        print(result)
        print(f"report: {written}")
    if result.best is None:
        raise typer.Exit(NOTHING_WORKED)
    if not result.best.feasible:
        raise typer.Exit(NO_ANSWER)


@cli.command()
def status(run_dir: RunDirArgument, as_json: JsonOption = False) -> None:
    """Say how far a campaign is; does not touch it."""
    from hpcagent.campaign.coordinator import read_run

    result = read_run(run_dir)
    if as_json:
        print(json.dumps(_answer_data(result)))
        return
    print(result)
    if result.reason is None:
        print(f"not finished; `hpcagent resume {run_dir}` goes on unless a coordinator is at it")


@cli.command()
def report(
    run_dir: RunDirArgument, plots: Annotated[bool, typer.Option(help="Draw the plots as well.")] = True
) -> None:
    """Write report/report.md and its plots anew from the recorded events."""
    from hpcagent.campaign.report import report as write_report

    print(write_report(run_dir, plots=plots))


@cli.command()
def export(
    run_dir: RunDirArgument,
    to: Annotated[str, typer.Option("--to", help="csv or parquet.")] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file (RUN_DIR/results.TO by default).")
    ] = None,
) -> None:
    """Write all results as a table, with units in the header."""
    from hpcagent.campaign.coordinator import read_run
    from hpcagent.store.export import FORMATS, export_table
    from hpcagent.store.metrics_file import table_of, units_of

    if to not in FORMATS:
        raise BadInput(f"--to {to!r}: known formats are {', '.join(FORMATS)}.", value=to)
    result = read_run(run_dir)
    contract = result.campaign.app.contract
    path = output or run_dir / f"results.{to}"
    export_table(table_of(result.results, contract), units_of(result.results, contract), path, to=to)
    print(path)


@cli.command()
def sites(name: Annotated[str | None, typer.Argument(help="Show this profile.")] = None) -> None:
    """List the site profiles, or show one."""
    from hpcagent.sites.profile import find_profile, list_profiles

    if name is None:
        for entry in list_profiles():
            print(f"{entry.name:12} {entry.description}  ({entry.source})")
        return
    print(find_profile(name).model_dump_json(indent=2, exclude_none=True))


@cli.command()
def apps(
    name: Annotated[str | None, typer.Argument(help="Show this app: a name, a script or a contract.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="The JSON Schema of its parameters.")] = False,
) -> None:
    """List the apps, or show one's contract."""
    from hpcagent.apps.catalog import find_app, list_apps

    if name is None:
        for found in list_apps():
            print(f"{found.name:12} {found.contract.description}")
        print("lammps       your own input script: name its path (`apps lammps --schema`: its contract's TOML)")
        return
    if name == "lammps":
        from hpcagent.apps.lammps.contract import ContractFile

        print(json.dumps(ContractFile.model_json_schema(), indent=2))
        return
    contract = find_app(name).contract
    print(json.dumps(contract.space.json_schema(), indent=2) if schema else contract.model_dump_json(indent=2))


@cli.command()
def inputs(
    name: Annotated[str | None, typer.Argument(help="Copy this input to a folder of your own.")] = None,
    to: Annotated[Path, typer.Option("--to", help="Where the copy goes.")] = Path(),
) -> None:
    """List the LAMMPS inputs that come along, or copy one to work on."""
    import shutil

    from hpcagent.apps.lammps.contract import lammps, packaged_inputs
    from hpcagent.store.files import refusing_clearly

    known = packaged_inputs()
    if name is None:
        for found, path in known.items():
            print(f"{found:12} {lammps(found).contract.description}  ({path.parent})")
        return
    if name not in known:
        from hpcagent.errors import nearest

        raise BadInput(f"no packaged input {name!r}; {nearest(name, known)}", value=name)
    copies = [(path, to / path.name) for path in sorted(known[name].parent.iterdir()) if path.is_file()]
    for _, target in copies:
        if target.exists():
            raise BadInput(f"{target} is there already; name another folder with --to.", value=str(target))
    with refusing_clearly(to):
        to.mkdir(parents=True, exist_ok=True)
        for path, target in copies:
            shutil.copyfile(path, target)
            print(target)


def _parse_changes(changes: list[str]) -> dict[str, Any]:
    """`key=value` with a TOML value; a bare word is taken as a string."""
    parsed: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise BadInput(f"--set {change!r}: write KEY=VALUE, e.g. --set until.max_runs=12.", value=change)
        try:
            parsed[key.strip()] = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            parsed[key.strip()] = text.strip()
    return parsed


def _show_plan(campaign: Any, site: str | None, workers: int | None, run_dir: Path | None, as_json: bool) -> None:
    from hpcagent.campaign.answer import point_text
    from hpcagent.campaign.plan import plan
    from hpcagent.campaign.view import duration

    made = plan(campaign, site=site, workers=workers)
    if as_json:
        for manifest in made.manifests:
            print(manifest.model_dump_json())
        return
    units = {p.name: p.unit for p in campaign.app.contract.space.parameters}
    print(f"{campaign.name}: {campaign.objective}")
    print(
        f"app {campaign.app.name} {campaign.app.contract.version}, policy {campaign.policy.name}, "
        f"seed {campaign.seed}"
    )
    print(
        f"site {made.profile.name}: {made.workers} run(s) at a time; "
        f"folder {run_dir or Path('runs') / campaign.name}"
    )
    if made.runs is not None:
        assert made.expected_s is not None
        print(
            f"{made.runs} runs at most; expected about {duration(made.expected_s)} and "
            f"{made.expected_node_hours:.2g} node-hours, at worst {made.worst_node_hours:.2g} node-hours"
        )
    print(f"first batch ({len(made.manifests)} runs):")
    for manifest in made.manifests:
        shown = {n: manifest.params[n] for n in campaign.search.names}
        print(f"  {manifest.execution_id}  {point_text(shown, units)}")
    print("dry run: nothing was written or submitted")


def _answer_data(result: Any) -> dict[str, Any]:
    """An answer as plain data."""
    best = result.best
    return {
        "name": result.campaign.name,
        "runs": len(result.results),
        "completed": sum(r.ok for r in result.results),
        "failures": result.failures,
        "distrusted": result.distrusted,
        "node_hours": result.node_hours,
        "reason": result.reason,
        "run_dir": str(result.run_dir),
        "best": None
        if best is None
        else {
            "params": best.params,
            "metrics": best.metrics,
            "uncertainty": best.uncertainty,
            "feasible": best.feasible,
            "probability_feasible": best.probability_feasible,
            "runs": best.runs,
        },
        "speedups": [{"over": s.over, "factor": s.factor, "error": s.error} for s in result.speedups],
    }


@contextlib.contextmanager
def _one_clear_error(verbose: bool) -> Iterator[None]:
    try:
        yield
    except Interrupted as error:
        print(str(error), file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except HpcAgentError as error:
        if verbose:
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # `hpcagent ... | head`: the reader has gone; keep Python from complaining while it exits.
        with contextlib.suppress(OSError):
            sys.stdout = open("/dev/null", "w")  # noqa: SIM115, PTH123
        raise SystemExit(141) from None


def main() -> None:
    """Entry point of the `hpcagent` command."""
    # Anywhere on the line, like --help.
    words = [word for word in sys.argv[1:] if word not in ("-v", "--verbose")]
    verbose = len(words) < len(sys.argv) - 1
    _know_the_working_directory()
    with _one_clear_error(verbose):
        cli(args=words)


def _know_the_working_directory() -> None:
    """Apps and policies of one's own lie where one stands: let this process and the workers import them."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = here if not before else f"{here}{os.pathsep}{before}"


if __name__ == "__main__":
    main()
