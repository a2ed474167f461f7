"""Runs LAMMPS in the run's own directory and turns its log into metrics."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.apps.deciding import used
from hpcagent.apps.ending import Finished, Limit, finish
from hpcagent.apps.launch import planned
from hpcagent.apps.made_with import OtherFile
from hpcagent.apps.printed import read_text
from hpcagent.apps.ranks.warm import inside_lammps, warm_lammps
from hpcagent.apps.run import Outcome, Run, note
from hpcagent.apps.sandbox.boxed import Box
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.failures import CONTINUES
from hpcagent.regular import read_regular
from hpcagent.science.lammps.accuracy import force_errors
from hpcagent.science.lammps.boxed import fill, lammps_box, recover, take_out
from hpcagent.science.lammps.collected import begun_anew
from hpcagent.science.lammps.executable import command, variables
from hpcagent.science.lammps.extended import ends_of, gone, taken_over
from hpcagent.science.lammps.failures import Ended, failure_of, no_room
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.log_records import Log
from hpcagent.science.lammps.log_records import Run as Leg
from hpcagent.science.lammps.metrics import Measured, measure
from hpcagent.science.lammps.mode import way_of
from hpcagent.science.lammps.potentials import elsewhere, undecided
from hpcagent.science.lammps.production import discarded_share, production_run
from hpcagent.science.lammps.reduced import reduced
from hpcagent.science.lammps.restart import SOURCE, Earlier, continued, earlier, joined, progress, read_logs
from hpcagent.science.lammps.restart_file import END, restart_step
from hpcagent.science.lammps.restart_rows import gaps
from hpcagent.science.lammps.restart_script import NONE, steps_in_all
from hpcagent.science.lammps.structure import given, taken
from hpcagent.science.lammps.watch import LammpsWatch, watch_of

__all__ = ["lammps_run"]

COPY_BELOW_BYTES = 1_000_000


def lammps_run(run: Run, **params: float | int | str) -> Outcome:
    """Run the app's input script with these variables and measure the result.

    Writes `in.lammps` (the script), `params.vars` (the variables) and links or copies the files that the
    script reads, so that `lmp -in in.lammps` in the run's directory repeats the run by hand.

    Args:
        run: Directory, seed, settings (`script`, `files`, `paths`, `logs`, `structure`, ...).
        params: Values of the script's variables, already checked against the contract.

    Returns:
        Metrics with units and standard errors; the log, the printed output and the inputs as artifacts.

    Raises:
        AppFailed: One of `FAILURE_MODES`.
    """
    with lammps_box(run) as box:
        return _outcome(run, params, box)


def _outcome(run: Run, params: Mapping[str, float | int | str], box: Box | None) -> Outcome:
    settings = run.settings
    if box is not None:
        recover(run)
    source, refused = _source(run)
    watch = watch_of(run, source, run.workdir if box is None else box.folder)
    _write_inputs(run, params, source, run.settings["script"] if watch is None else watch.script)
    potentials = elsewhere(settings, run.site, params)
    files, unseen = used(potentials, run)
    said_of_input = (*taken(run), *unseen, *undecided(settings, params))
    if box is not None:
        fill(box, source, potentials)
    ended = _launched(run, source, watch, box)
    settled = None if watch is None else watch.settle(ended)
    early: Mapping[str, Any] = {}
    if settled is None:
        failure = failure_of(ended)
        if failure is not None:
            raise failure
        log = _whole_log(ended, run.workdir)
        if watch is not None:
            watch.check_whole(log, ended)
    else:
        log, early = settled
    ranks = _check_ranks(log, run, ended)
    distrusted = None
    notes = [*said_of_input, *filter(None, (refused, ranks))]
    if source is not None:
        log, said, distrusted = joined(log, source, ended.log[-2000:])
        notes += said + begun_anew(settings, source.step)
    _check_atoms(log, ended, change=bool(settings.get("atoms_change")))
    production = _production(log, settings["production"], ended, needed=not settings["columns"])
    _check_numeric(production, ended)
    measured = measure(log, production=settings["production"], discard=settings["discard"])
    metrics, uncertainty = dict(measured.values), dict(measured.uncertainty)
    notes += measured.notes
    notes += [doubt for doubt in production.doubts if doubt not in measured.notes]
    _check_energy(measured, production, settings, ended)
    share = discarded_share(log, settings["discard"])
    for name, how in settings["columns"].items():
        metrics[name], error = _reduced(production, how, share)
        if math.isfinite(error):
            uncertainty[name] = error
    if settings.get("forces"):
        found = force_errors(run.workdir, settings["forces"])
        metrics |= found.values
        uncertainty |= found.uncertainty
    artifacts = given(run)
    extendable_s = math.nan if early else _extendable_s(run, params, production)
    goes_on = _has_length(settings) and (extendable_s is None or math.isfinite(extendable_s))
    return Outcome(
        metrics=metrics,
        units=dict(measured.units)
        | {n: "1" for n in ("force_error", "force_error_ratio") if n in metrics}
        | {n: how["unit"] for n, how in settings["columns"].items()},
        uncertainty=uncertainty,
        artifacts={
            "log": _JOINED if settings["logs"] else "log.lammps",
            "input": "in.lammps",
            "variables": "params.vars",
        }
        | _printed(run.workdir)
        | _artifacts_before(source)
        | artifacts,
        notes=tuple(notes),
        files=files,
        distrusted=distrusted or _distrusted(metrics, settings),
        extendable_s=extendable_s,
        ends_with=ends_of(run.workdir, settings["logs"]) if goes_on else {},
        **early,
    )


def _printed(folder: Path) -> dict[str, str]:
    """The file of what LAMMPS has printed beside its log; an empty one is an inode that nobody reads."""
    path = folder / "output.txt"
    if path.is_file() and path.stat().st_size:
        return {"output": path.name}
    path.unlink(missing_ok=True)
    return {}


def _source(run: Run) -> tuple[Earlier | None, str | None]:
    """What the run goes on from: an attempt of its own, or the run that it extends."""
    settings = run.settings
    if not settings.get("restart") or settings.get("anew"):  # one that was repaired begins anew
        return None, None
    if run.extends is not None:
        ends = run.extends.get("ends_with")
        taken_over(Path(run.extends["workdir"]), run.workdir, settings["logs"], ends)
        if not ends:
            note(
                "it could not be checked whether the files that it goes on from are as they were when that run "
                "ended: its record is older than that"
            )
    source, refused = earlier(run.workdir, settings["logs"])
    if run.extends is not None and source is None:
        raise gone(Path(run.extends["workdir"]), refused or "its log lacks rows")
    return source, refused


def _has_length(settings: Mapping[str, Any]) -> bool:
    return (settings.get("restart") or {}).get("steps") is not None


def _extendable_s(run: Run, params: Mapping[str, Any], production: Leg) -> float | None:
    """Seconds that an ordinary run's length more would take; NaN where there is nothing to go on from."""
    if not _has_length(run.settings):
        return None
    steps = run.settings["restart"]["steps"]
    ended = int(production["Step"][-1]) if "Step" in production and len(production) else None
    if ended is None or restart_step(run.workdir / END) != ended or not production.steps or gaps(production):
        return math.nan
    if production.loop_time_s is None:
        return None
    return float(production.loop_time_s) / production.steps * float(params[steps])


def _artifacts_before(source: Earlier | None) -> dict[str, str]:
    return {} if source is None else {"log_before": f"attempt-{source.attempt}/log.lammps", "restart": source.file}


def _write_inputs(run: Run, params: Mapping[str, float | int | str], source: Earlier | None, script: str) -> None:
    values: dict[str, float | int | str] = dict(params)
    if run.settings.get("restart"):
        values[run.settings["restart"]["variable"]] = NONE if source is None else SOURCE
        length = steps_in_all(run.settings, params, run.times)
        if length is not None:
            values[run.settings["restart"]["steps"]] = length
    for name in run.settings["seed_variables"]:
        # Every run starts from velocities of its own, so that what their choice does to a metric averages out
        # over the points of a campaign; the same manifest has the same ones.
        digest = hashlib.sha256(f"{name}/{run.execution_id}".encode()).digest()
        values[name] = int.from_bytes(digest[:4]) % 899_999_999 + 1  # LAMMPS wants 1 to 900 million
    lines = [f"variable {name} index {_word(name, value)}" for name, value in values.items()]
    (run.workdir / "params.vars").write_text("\n".join(lines) + "\n")
    (run.workdir / "in.lammps").write_text(f"include params.vars\n{script}")
    continued(run.workdir, source)
    for name in run.settings["folders"]:
        (run.workdir / name).mkdir(parents=True, exist_ok=True)
    for name, path in run.settings["paths"].items():
        target = run.workdir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            small = Path(path).stat().st_size < COPY_BELOW_BYTES
        except OSError as error:
            raise AppFailed(
                f"the file {name!r} that the script reads is gone: {error}.", kind="contract", name="MissingFile"
            ) from None
        # A link to what the script may write would let it write beside the user's script.
        if small:
            _copy(name, Path(path), target, run.settings["files"].get(name))
        elif name not in run.settings["only_read"]:
            shutil.copyfile(path, target)
        else:
            target.symlink_to(path)


def _copy(name: str, source: Path, target: Path, recorded: str | None) -> None:
    """Copy a small file; what is copied, and not what lay there a moment ago, has the content that is recorded."""
    content = read_regular(source)
    now = hashlib.sha256(content).hexdigest()
    if recorded and now != recorded:
        raise AppFailed(
            f"{OtherFile(name, str(source), recorded, now)}.",
            kind="infrastructure",
            name="FilesChanged",
            repair="put the old content back and resume, or start a new campaign in another folder",
        )
    target.write_bytes(content)


def _word(name: str, value: float | int | str) -> str:
    """A value as one word of LAMMPS input; the last line of defence against anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str) and _WORD.match(value) and ".." not in value:
        return value
    raise AppFailed(f"{name}={value!r} is not a number or a plain word.", kind="contract", name="BadParameter")


# As in `hpcagent.model.parameter`, which a worker need not import.
_WORD = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_+./-]*\Z")


def _launched(run: Run, source: Earlier | None, watch: LammpsWatch | None, box: Box | None) -> Ended:
    if watch is None:
        finished, launcher = _finished(run, box)
    else:
        with watch.thread:
            finished, launcher = _finished(run, box, begun=watch.thread.kill_with)
    if box is not None:
        take_out(box, finished)
    output = run.workdir / "output.txt"
    logs = run.settings["logs"]
    log = read_logs(run.workdir, logs)
    if logs:
        (run.workdir / _JOINED).write_text(log)
    step = progress(run.workdir, source) if run.settings.get("restart") else None
    return Ended(
        returncode=finished.returncode,
        log=log,
        printed=read_text(output),
        stopped=finished.stopped,
        wall_s=finished.wall_s,
        launcher=launcher,
        goes_on=None if step is None else f"{CONTINUES} at step {step} when it is started again",
    )


_WORDS = ("-in", "in.lammps", "-log", "log.lammps", "-screen", "none")


def _finished(
    run: Run, box: Box | None, begun: Callable[[Callable[[], None]], None] | None = None
) -> tuple[Finished, str | None]:
    """Run LAMMPS as the app's mode says; how it ended, and the launcher of its ranks."""
    way = way_of(run)
    if way == "warm":
        return warm_lammps(run, _WORDS, env=variables(run.site), limit=Limit.of(run), begun=begun)
    if way == "inside":
        return inside_lammps(run, _WORDS, env=variables(run.site), begun=begun), None
    launch = planned(run, [*command(run.site), *_WORDS], app="lammps", env=variables(run.site))
    output, limit = run.workdir / "output.txt", Limit.of(run)
    if box is None:
        return finish(launch, cwd=run.workdir, output=output, limit=limit, begun=begun), launch.launcher
    return finish(box.started_by(launch), cwd=box.folder, output=output, limit=limit, begun=begun), None


_JOINED = "log.joined"


def _production(log: Log, number: int, ended: Ended, *, needed: bool) -> Leg:
    """The run that is measured; where the script only minimises or evaluates, its last one, for the columns."""
    production = production_run(log, number)
    if production is not None:
        return production
    if not needed and number == -1:
        return [run for run in log.runs if run.complete][-1]
    which = "no run" if number == -1 else f"no run number {number} (the key production of [log])"
    raise AppFailed(
        f"there is nothing to measure: the script makes {which} of at least one step.",
        kind="contract",
        name="BadScript",
        log_tail=ended.log[-2000:],
        repair="correct `production`, or `run` at least one step",
    )


def _reduced(production: Leg, how: Mapping[str, Any], share: float) -> tuple[float, float]:
    try:
        return reduced(production, how["column"], how["reduce"], share)
    except BadInput as error:
        raise AppFailed(
            error.message,
            kind="contract",
            name="MissingMetric",
            repair="add the column to thermo_style, or correct the contract",
        ) from None


def _whole_log(ended: Ended, workdir: Path) -> Log:
    """The log of a run that ended well, unless it is not there or not whole."""
    try:
        _check_logged(ended)
        log = parse_log(ended.log)
        _check_complete(log, ended)
    except AppFailed as error:
        if not no_room(workdir):
            raise
        raise AppFailed(
            f"the disk of {workdir} is full: {error.message}",
            kind="infrastructure",
            name="DiskFull",
            log_tail=error.details["log_tail"],
            repair="make room where the runs are, or write fewer frames and restart files",
        ) from None
    return log


def _check_logged(ended: Ended) -> None:
    lines = ended.log.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise AppFailed(
            "LAMMPS ended with exit code 0 but wrote no log.lammps.", name="NoLog", log_tail=ended.printed
        )
    if lines[-1].split()[0] == "log":
        raise AppFailed(
            f"the log ends where the script sends it elsewhere: {lines[-1].strip()}.",
            name="NoLog",
            log_tail=ended.log[-2000:],
            repair="drop the `log` command, or write a plain file name after it",
        )


def _check_numeric(production: Leg, ended: Ended) -> None:
    """LAMMPS runs on with NaN where no atom is lost by it, and exits with 0."""
    for column in ("Temp", "PotEng", "KinEng", "TotEng"):
        if column not in production:
            continue
        values = production[column]
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise AppFailed(
                f"{column} is {values[bad[0]]:g} in row {bad[0] + 1} of the thermo output, although LAMMPS "
                "ended with exit code 0.",
                name="NonNumeric",
                log_tail=ended.log[-2000:],
                repair="smaller timestep, or minimise first",
            )


def _check_complete(log: Log, ended: Ended) -> None:
    if not any(run.complete for run in log.runs):
        raise AppFailed(
            "exit code 0, but no run in the log came to its end (no `Loop time` line).",
            name="TruncatedLog",
            log_tail=ended.log[-2000:],
        )
    if not log.finished:
        raise AppFailed(
            "exit code 0, but the log stops before `Total wall time`: it was cut off, or the script quit early.",
            name="TruncatedLog",
            log_tail=ended.log[-2000:],
        )


def _check_atoms(log: Log, ended: Ended, *, change: bool) -> None:
    """Atoms go lost without an error under `thermo_modify lost ignore`; what is left is another system."""
    for number, leg in enumerate(log.runs, start=1):
        if not leg.complete or leg.kind not in ("run", "minimize") or leg.n_atoms is None:
            continue
        counts = leg["Atoms"] if "Atoms" in leg else np.zeros(0)
        # Under `lost error` LAMMPS itself has checked the number against what its commands left.
        start = None if leg.lost == "error" else leg.n_atoms_start
        seen = {*(() if start is None else (start,)), *map(int, counts[np.isfinite(counts)]), leg.n_atoms}
        if leg.n_atoms == 0 or (len(seen) > 1 and not change and not leg.atoms_changed_by):
            begun = "" if start is None else f"begins with {start} atoms and "
            why = (
                "what the script says of that (thermo_modify lost, fixes that add or remove atoms) is not in the "
                "log, as its commands are not echoed."
                if leg.lost is None
                else f"atoms went lost (thermo_modify lost {leg.lost}), and nothing in the script adds or removes "
                "any."
            )
            raise AppFailed(
                f"run {number} of the log {begun}ends with {leg.n_atoms}, with exit code 0: {why}",
                name="LostAtoms",
                log_tail=ended.log[-2000:],
                repair="smaller timestep, or a start with less overlap; where atoms are meant to leave: "
                "atoms_change = true in the contract's [checks]",
            )


def _check_energy(measured: Measured, leg: Leg, settings: Mapping[str, Any], ended: Ended) -> None:
    """Exit code 0 is no evidence of physics: refuse energies that no conserving run can have."""
    if not settings["conserved_energy"]:
        return
    if leg.baths and "Econserve" not in leg:
        raise AppFailed(
            f"the contract says that energy is conserved, but fix {', '.join(leg.baths)} changes it, and "
            "thermo_style does not print `econserve`, which the dynamics conserve.",
            kind="contract",
            name="NotConserved",
            log_tail=ended.log[-2000:],
            repair="print econserve in thermo_style, or leave conserved_energy out of the contract's [checks]",
        )
    limit = settings["nonsense_above"]
    # Fluctuation of the conserved energy against that of the kinetic energy; a sound run is below 0.1.
    ratio = measured.values.get("energy_fluctuation_run")
    if ratio is not None and ratio > limit:
        raise AppFailed(
            f"energy nonsense with exit code 0: total energy fluctuates {ratio:.2g} times as much as kinetic "
            f"energy (limit {limit:g}) although the contract says that it is conserved.",
            name="EnergyNonsense",
            log_tail=ended.log[-2000:],
            repair="smaller timestep",
        )


def _check_ranks(log: Log, run: Run, ended: Ended) -> str | None:
    """Refuse a run on fewer ranks than asked for: most often copies of it, each alone, in each other's way."""
    asked = int(run.resources.get("nodes", 1)) * int(run.resources.get("ranks_per_node", 1))
    got = log.runs[-1].procs
    if got is None or got == asked:
        return None
    if got > asked:
        return f"LAMMPS ran on {got} MPI rank(s), {asked} were asked for"
    raise AppFailed(
        f"LAMMPS ran on {got} MPI rank(s), {asked} were asked for: the launcher "
        f"{ended.launcher or 'of the command'} and the MPI library of this LAMMPS do not know each other.",
        kind="infrastructure",
        name="WrongRanks",
        log_tail=ended.log[-2000:],
        repair="in the site profile, the launcher of its own MPI ([apps.lammps] launcher), or another LAMMPS",
    )


def _distrusted(metrics: Mapping[str, float], settings: Mapping[str, Any]) -> str | None:
    use = metrics.get("cpu_use_percent")
    least = settings["min_cpu_use_percent"]
    if use is None or least is None or use >= least:
        return None
    return f"CPU use {use:.0f} % is below {least:g} %: the run did not have its core, its speed means little"
