"""Runs one order on a worker. Imports only the standard library, so that a worker starts quickly.

An order is plain data: the manifest, the function, its settings and the directory. Whatever happens, the answer is
a plain dict (a `Result` without its manifest). The same dict is in `result.json` of the run's directory. A run
that wrote no file has no directory; its result is a line in the worker's records (`hpcagent.apps.run_records`).
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcagent.apps.calling import called, function_of, is_confined, of_numbers, os_name, refuse_others
from hpcagent.apps.chosen import placed
from hpcagent.apps.finished import checked_result, final_result, read_result, with_reuse_said, without_other_speeds
from hpcagent.apps.guard import as_recorded, checked
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.made_with import changed_files
from hpcagent.apps.modes import LAMMPS_MODES, MODE
from hpcagent.apps.modules import loaded
from hpcagent.apps.printed import reading
from hpcagent.apps.repairs import with_repairs
from hpcagent.apps.run import LazyRun, Outcome, Run, note, noted, noting, repairs_made, spent_cpu_s
from hpcagent.apps.run_folder import LazyFolder, locked, make_dir, opened, set_aside, sole_owner, write_json
from hpcagent.apps.run_records import record_file
from hpcagent.errors import AppFailed
from hpcagent.lifeline import end_detached, node_name
from hpcagent.model.failures import KINDS, known_kind
from hpcagent.redacted import redacted_data
from hpcagent.shown import writable

__all__ = ["broken_off", "execute", "execute_as_result", "execute_each"]


def execute(order: Mapping[str, Any], *upstream: Any) -> dict[str, Any]:
    """Run an order in its own directory and return the result's fields as plain data.

    Finished work is not repeated: a directory whose `result.json` is final answers at once, unless a file that
    decided its numbers has another content now.

    Args:
        order: `manifest`, `function` ("module:name", a `Carried` or a callable), `settings`, `workdir`, `promises`
            (name -> (unit, required)), `site` and `attempt`. With `shared` the answer of a run that was found
            finished says so (`found`); `account` says what a chain's inner runs were. With `records`, the folder
            of the workers' records, the run has a directory only if it asks for one, and a directory that is there
            is looked at only where the run was sent before (`again`); `ended` is what the records had of its end
            then.
        upstream: Results (or their dicts) of the runs this one takes as input.
    """
    workdir = Path(order["workdir"])
    try:
        refused = ""
        if "records" in order:
            done = _ended_before(order)
            if done is not None:
                return done
            refused = _begun_on_record(order)
            if not refused and not (order.get("again") and os.path.lexists(workdir)):
                return _on_record(order, workdir, upstream)
        new = make_dir(workdir)
        with sole_owner(workdir), noting(), reading(order["site"]):
            done, wrong = final_result(workdir)
            if done is not None and not changed_files(done.get("files") or {}):
                done = without_other_speeds(with_reuse_said(done), order, workdir)
                return {**done, "found": True} if order.get("shared") else done
            if not new:
                set_aside(workdir)
            write_json(f"{workdir}/manifest.json", order["manifest"])
            if refused:
                note(refused)
            fields = _run(order, partial(Run, workdir=workdir), upstream, wrong)
            write_json(f"{workdir}/result.json", fields)
            return fields
    except OSError as error:
        now = time.time()
        where = workdir if error.filename is None else os.fsdecode(error.filename)
        failure = _failure("infrastructure", os_name(error), f"{where}: {error.strerror or error}.")
        return _fields(order, "FAILED", now, now, failure=failure)


def _ended_before(order: Mapping[str, Any]) -> dict[str, Any] | None:
    """The final result on record of a run that was sent before; its worker was lost before the answer came."""
    if order.get("ended") is None:
        return None
    done, _ = checked_result(order["ended"], order["manifest"]["execution_id"])
    return None if done is None or changed_files(done.get("files") or {}) else with_reuse_said(done)


def _begun_on_record(order: Mapping[str, Any]) -> str:
    """Write into the worker's records that a run begins; what is refused there, for a run that goes on without.

    Raises:
        OSError: The disk is full, also for a directory.
    """
    try:
        record_file(order["records"]).begun(order["manifest"], order["attempt"])
    except OSError as error:
        return _refused(error)
    return ""


def _refused(error: OSError) -> str:
    """What the records do not take, in a sentence: the run then has a directory, as if it wrote files."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise error
    return f"{error.filename} cannot be written ({error.strerror}): so it has a directory of its own"


def _on_record(order: Mapping[str, Any], workdir: Path, upstream: tuple[Any, ...]) -> dict[str, Any]:
    """Run an order that gets a directory when its function first asks for one."""
    with contextlib.closing(LazyFolder(order["manifest"], workdir)) as folder, noting(), reading(order["site"]):
        made = partial(LazyRun, workdir=folder.path)  # type: ignore[arg-type]  # it makes the directory
        fields = _run(order, made, upstream)
        if not folder.made:
            try:
                record_file(order["records"]).ended(order["manifest"]["execution_id"], {**fields, "workdir": ""})
            except OSError as error:
                fields["notes"] = [*fields.get("notes", ()), _refused(error)]
                folder.path()
            else:
                return {**fields, "workdir": ""}
        write_json(f"{workdir}/result.json", fields)
        return fields


def execute_each(orders: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Run several orders one after the other: for runs so short that the way to a worker costs more.

    Each has its own directory and result; if the worker dies in between, those that were done are found there.
    """
    return [execute(order) for order in orders]


def execute_as_result(order: Mapping[str, Any], *upstream: Any) -> Any:
    """As `execute`, returning a `Result` record: what the future of an app called by hand holds."""
    from hpcagent.model.records import Result

    return Result.model_validate({"manifest": order["manifest"], **execute(order, *upstream)})


def broken_off(order: Mapping[str, Any], wall_s: float, failure: dict[str, Any]) -> dict[str, Any]:
    """The result of a run whose process ended in the middle of it, as whoever watched that process knows it.

    It is written into the run's directory, unless a result has come there meanwhile: that one counts then.

    Args:
        order: At least `manifest` with its resources, `site`, `workdir` and `attempt`.
        wall_s: How long it ran.
        failure: As in a result.
    """
    now, workdir = time.time(), Path(order["workdir"])
    fields = _fields(order, "FAILED", now - wall_s, now, wall_s=wall_s, failure=failure)
    with contextlib.suppress(OSError):
        descriptor = opened(workdir)
        try:
            locked(descriptor)
            done = read_result(workdir)
            if done is not None:
                return done
            write_json(f"{workdir}/result.json", fields)
        finally:
            os.close(descriptor)
    return fields


def _run(
    order: Mapping[str, Any], made: Callable[..., Run], upstream: tuple[Any, ...], wrong: str = ""
) -> dict[str, Any]:
    """Call the function of an order; the result is not written yet.

    Args:
        made: The run, from all of its fields but its directory.
        wrong: What is wrong with an earlier result of the run.
    """
    manifest = order["manifest"]
    started, clock, cpu = time.time(), time.perf_counter(), _cpu_s()
    failure: dict[str, Any] | None = None
    outcome = Outcome(metrics={})
    try:
        run = made(
            execution_id=manifest["execution_id"],
            seed=manifest["seed"],
            replicate=manifest["replicate"],
            settings=order["settings"],
            upstream=tuple(_plain_upstream(result) for result in upstream),
            resources=manifest["resources"],
            site=order["site"],
            files=order.get("files"),
            extends=order.get("extends"),
            times=manifest.get("times", 1.0),
            guard=order.get("guard"),
            expected_s=manifest.get("estimated_runtime_s"),
        )
        if order.get("outdated"):
            raise AppFailed(
                "files that decide its numbers (pseudopotentials, setups, a model, a file that it reads) have "
                "changed, or are gone, since the run was planned; its execution id stands for their content then.",
                kind="infrastructure",
                name="FilesChanged",
                repair="put the old files back, or start anew in another folder (run_dir)",
            )
        outcome, failure = _computed(order, run)
        outcome = of_numbers(outcome)
    except AppFailed as error:
        failure = _said(error)
        outcome = Outcome(metrics=error.details.get("reached", {}), stopped=_blown_up(error))
    except OSError as error:
        failure = _failure("infrastructure", os_name(error), _last_line(error), traceback.format_exc())
    except MemoryError as error:
        failure = _failure("infrastructure", "OutOfMemory", _last_line(error), traceback.format_exc())
    except (Exception, SystemExit) as error:  # an exit() of the user's would end the worker, or hang a thread
        failure = _failure("contract", type(error).__name__, _last_line(error), traceback.format_exc())
    if failure is None and outcome.stopped is None:
        failure = _broken_promise(order["promises"], outcome)
    left = end_detached()
    if left:
        note(f"{left} process(es) that the run had started and left running by themselves were ended with it")
    wall = time.perf_counter() - clock
    fields = _fields(
        order,
        "FAILED" if failure is not None else "COMPLETED" if outcome.stopped is None else "STOPPED",
        started,
        started + wall,
        wall_s=wall,
        cpu_s=max(0.0, _cpu_s() - cpu + spent_cpu_s()),
        outcome=outcome,
        failure=failure,
    )
    if wrong:
        fields["notes"] = [*fields.get("notes", ()), f"run again: {wrong} It is kept in attempt-N/."]
    return fields


def _computed(order: Mapping[str, Any], run: Run) -> tuple[Outcome, dict[str, Any] | None]:
    """Call the app's function; its modules and the files of its settings are those that the campaign began with.

    A module is looked at once by a process, when it is imported: from then on the process has its content. A file
    is looked at before the run and, as nobody knows when the function reads it, after it; LAMMPS has its own copy.

    Returns:
        What the function gave, and the failure of a run under which a file was edited: what it gave is kept, but
        not believed, nor is an error that it has raised.

    Raises:
        AppFailed: `FilesChanged`.
    """
    # Of a function that is confined nothing is imported here: its sandbox looks after its modules.
    modules: Mapping[str, str] = {} if is_confined(order) else order.get("modules") or {}
    settings = order["settings"]
    refuse_others(modules, settings)
    before = loaded(modules)
    call = _call_of(order)
    at_import = loaded(modules)
    refuse_others({name: modules[name] for name in at_import - before}, {})
    params = {**order.get("left_out", {}), **placed(order, run)}

    def edited() -> dict[str, Any] | None:
        """The failure of a run under which something was edited."""
        try:
            later = loaded(modules) - at_import
            refuse_others({name: modules[name] for name in later}, {} if "only_read" in settings else settings)
        except AppFailed as error:
            details = error.details
            said = f"{error.message} It was edited while the run went: which content was used is not known."
            return _failure(details["kind"], details["name"], said, repair=details["repair"])
        return None

    try:
        if "repairs" in settings:
            outcome = with_repairs(call, params, run, altering=order.get("altering"))
        else:
            outcome = call(params, run)
    except (Exception, SystemExit) as error:  # e.g. it has read half of a file that was being written
        failure = edited()
        if failure is None:
            raise
        failure["message"] += f" It failed with {_last_line(error)}"
        if not isinstance(error, AppFailed):
            return Outcome(metrics={}), {**failure, "log_tail": traceback.format_exc()[-4000:]}
        failure["log_tail"] = error.details["log_tail"]
        return Outcome(metrics=error.details.get("reached", {}), stopped=_blown_up(error)), failure
    return outcome, edited()


def _call_of(order: Mapping[str, Any]) -> Callable[[Mapping[str, Any], Run], Outcome]:
    """How the function of an order is called, with its parameters and the run."""
    if is_confined(order):
        return partial(_in_a_box, order)
    function = function_of(order["function"])
    return (
        partial(_over_ranks, order) if order.get("mpi") else partial(called, function, promises=order["promises"])
    )


def _in_a_box(order: Mapping[str, Any], params: Mapping[str, Any], run: Run) -> Outcome:
    from hpcagent.apps.sandbox.function import in_a_box  # which few runs need

    return in_a_box(order, params, run)


def _over_ranks(order: Mapping[str, Any], params: Mapping[str, Any], run: Run) -> Outcome:
    from hpcagent.apps.over_ranks import over_ranks  # which few runs need

    return over_ranks(order, params, run)


def _plain_upstream(result: Any) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = result if isinstance(result, Mapping) else result.model_dump(mode="json")
    if fields.get("status") != "COMPLETED":
        stopped = fields.get("stopped") or {}
        failure = fields.get("failure") or {"name": "stopped early", "message": stopped.get("sentence", "")}
        raise AppFailed(
            f"the run it takes as input failed: {failure.get('name', fields.get('status'))}: "
            f"{failure.get('message', '')}",
            kind=failure.get("kind", "contract"),
            name="UpstreamFailed",
        )
    return fields


def _broken_promise(promises: Mapping[str, Any], outcome: Outcome) -> dict[str, Any] | None:
    for name, (_, required) in promises.items():
        if not required:
            continue
        value = outcome.metrics.get(name)
        why = "".join(f" ({note})" for note in outcome.notes if name in note)
        if value is None:
            return _failure("contract", "MissingMetric", f"the run did not yield the metric {name!r}{why}.")
        if not math.isfinite(value):
            return _failure("simulation", "NotFinite", f"the metric {name!r} is {value}{why}.")
    return None


def _fields(
    order: Mapping[str, Any],
    status: str,
    started: float,
    ended: float,
    *,
    wall_s: float = 0.0,
    cpu_s: float | None = None,
    outcome: Outcome | None = None,
    failure: dict[str, Any] | None = None,
) -> dict[str, Any]:
    resources = order["manifest"]["resources"]
    cores = resources["nodes"] * resources["ranks_per_node"] * resources["threads_per_rank"]
    node_cores = order["site"].get("node_cores") or cores
    share = min(1.0, cores / resources["nodes"] / node_cores) if resources["nodes"] == 1 else 1.0
    fields: dict[str, Any] = {
        "status": status,
        "started_at": started,
        "ended_at": ended,
        "host": node_name(),
        "site": order["site"].get("name", ""),
        "cost": {
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "core_hours": cores * wall_s / 3600,
            "node_hours": resources["nodes"] * share * wall_s / 3600,
        },
        "workdir": order["workdir"],
        "attempt": order.get("attempt", 1),
    }
    if order.get("function") == LAMMPS:  # of a run that was lost there is less than a whole order
        fields["mode"] = order.get("settings", {}).get(MODE, LAMMPS_MODES[0])
    if "account" in order:
        fields |= order["account"]()
    if failure is not None:
        fields["failure"] = failure
    if outcome is not None and outcome.metrics:
        units = {name: unit for name, (unit, _) in order["promises"].items()} | dict(outcome.units)
        metrics = {k: v for k, v in outcome.metrics.items() if math.isfinite(v)}
        fields["metrics"] = metrics
        fields["units"] = {name: units[name] for name in metrics if name in units}
        errors = {k: v for k, v in outcome.uncertainty.items() if k in metrics}
        fields["uncertainty"] = {k: v for k, v in errors.items() if math.isfinite(v) and v >= 0}
        left_out = [
            f"the uncertainty of {k!r} is {v} and left out: a standard error is finite and not negative."
            for k, v in errors.items()
            if k not in fields["uncertainty"]
        ]
        if left_out:
            fields["notes"] = left_out
        fields["bounds"] = {k: v for k, v in outcome.bounds.items() if k in metrics and v in ("above", "below")}
    if outcome is not None and outcome.stopped is not None:
        held = resources["nodes"] * share
        fields["stopped"] = as_recorded(outcome.stopped, wall_s=wall_s, nodes=held)
    if outcome is not None:
        if outcome.artifacts:
            fields["artifacts"] = dict(outcome.artifacts)
        if outcome.notes:
            fields["notes"] = [*outcome.notes, *fields.get("notes", [])]
        if outcome.distrusted:
            fields["distrusted"] = outcome.distrusted
        if failure is None and _extendable_s(order, outcome, wall_s) is not None:
            fields["extendable_s"] = _extendable_s(order, outcome, wall_s)
            if outcome.ends_with:
                fields["ends_with"] = {name: list(file) for name, file in outcome.ends_with.items()}
        made_with = {name: getattr(outcome, name) for name in ("files", "versions", "level_of_theory")}
        for name, found in made_with.items():
            if found:
                fields[name] = {**fields.get(name, {}), **found}
    if repairs_made():
        fields["repairs"] = [dict(made) for made in repairs_made()]
    if noted():
        fields["notes"] = [*fields.get("notes", []), *noted()]
    # A program may print the environment that it has, and its last lines go into records, reports and messages.
    said = {name: fields[name] for name in ("failure", "notes") if name in fields}
    return writable(fields | redacted_data(said) if said else fields)


def _extendable_s(order: Mapping[str, Any], outcome: Outcome, wall_s: float) -> float | None:
    """Wall seconds of an ordinary run's length more; None where the app cannot go on from the run's end."""
    if not order["settings"].get("extendable"):
        return None
    if outcome.extendable_s is not None and math.isnan(outcome.extendable_s):
        return None
    if outcome.extendable_s is not None and math.isfinite(outcome.extendable_s):
        return max(0.0, outcome.extendable_s)
    before = float((order.get("extends") or {}).get("times", 0.0))
    return wall_s / max(float(order["manifest"].get("times", 1.0)) - before, 1e-3)


def _failure(kind: str, name: str, message: str, log_tail: str = "", repair: str | None = None) -> dict[str, Any]:
    return {"kind": kind, "name": name, "message": message, "log_tail": log_tail[-4000:], "repair": repair}


def _said(error: AppFailed) -> dict[str, Any]:
    """The failure that an app has raised itself."""
    details, message = error.details, error.message
    kind = known_kind(details["kind"])
    if kind != details["kind"]:
        message += f" (Its kind {details['kind']!r} is none of {', '.join(KINDS)}: taken as {kind!r}.)"
    return _failure(kind, details["name"], message, details["log_tail"], details["repair"])


def _blown_up(error: AppFailed) -> Mapping[str, Any] | None:
    """What a run that has blown up says of how early it was stopped; None where nobody watched it."""
    said = error.details.get("stopped")
    if not isinstance(said, Mapping):
        return None
    try:
        return checked(said)
    except AppFailed as wrong:
        note(wrong.message)
        return None


def _last_line(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return text[-1] if text else type(error).__name__


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
