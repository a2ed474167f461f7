"""Runs a program in the run's own directory and reads its numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpcagent.apps.ending import Finished, Limit, finish
from hpcagent.apps.executable.answers import Answer, answer_of, in_units, refuse_reported
from hpcagent.apps.executable.contract import PROGRAM, settings_records
from hpcagent.apps.executable.matching import LARGEST, LIMIT_S, Found, Wanted, found_in
from hpcagent.apps.executable.places import place_of
from hpcagent.apps.executable.reading import from_match, json_text, number_of
from hpcagent.apps.executable.reads import read_by
from hpcagent.apps.executable.record import OUTPUT, PRINTED, Failing, Reading
from hpcagent.apps.executable.words import filled, missing, pieces, text_filled
from hpcagent.apps.launch import Launch, planned
from hpcagent.apps.made_with import OtherFile, sha256
from hpcagent.apps.printed import read_tail, too_large
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.base import canonical_json
from hpcagent.regular import read_regular

__all__ = ["command_of", "executable_run"]

ERRORS = "errors.txt"
_ITS_OUTPUT = "what the program printed"
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP)


def executable_run(run: Run, **params: float | int | str) -> Outcome:
    """Run the program with these parameters and read its numbers.

    Writes the input files, `command.txt` (the command, to repeat it by hand in that directory) and what it prints
    (`output.txt`; `errors.txt` for stderr where stdout is JSON).

    Args:
        run: Directory, seed, settings.
        params: Values of the parameters, already checked against the contract.

    Returns:
        Metrics with their standard errors.

    Raises:
        AppFailed: One of `FAILURE_MODES`, or of the app's own failures.
    """
    settings = run.settings
    values = _values(run, params)
    with place_of(run) as place:
        read = read_by(run, params)
        place.read += read.paths
        there = run if place.folder == run.workdir else replace(run, workdir=place.folder)
        _place_files(there, values)
        contained = settings.get("container") is not None
        program = [str(settings["command"][0])] if contained else _of_site(run) or [_program(run)]
        words = [*program, *_arguments(settings, values)]
        env = {
            name: filled(text, values, option=False)
            for name, text in settings["env"].items()
            if not missing(text, values)
        }
        launch = planned(run, words, app=settings["name"], env=env)
        started = place.started_by(launch)
        (run.workdir / "command.txt").write_text(f"{shlex.join(started.words)}\n")
        given = _given(run, there, values)
        metrics, failures = _records(canonical_json([settings["metrics"], settings["failures"]]))
        before = _there_already(run, metrics)
        finished = place.finished = finish(
            started,
            cwd=place.folder,
            output=run.workdir / OUTPUT,
            limit=Limit.of(run),
            given=given,
            errors=run.workdir / ERRORS if settings["stdout"] == "json" else None,
        )
        if finished.stopped is not None:
            raise finished.stopped.failure(wall_s=finished.wall_s, log_tail=_tail(run))
        place.ended(errors=read_tail(run.workdir / ERRORS), log_tail=_tail(run))
        read.look_again()
    found = _found(run, metrics, failures)
    _refuse_failed(run, finished, launch, failures, found)
    answer = _answer(run) if settings["stdout"] == "json" else None
    outcome = _read(run, metrics, found, answer, before)
    artifacts = _artifacts(run) | {"output": OUTPUT, "command": "command.txt"}
    _remove(run, artifacts)
    return Outcome(
        metrics=outcome.metrics,
        uncertainty=outcome.uncertainty,
        artifacts=artifacts,
        notes=(*outcome.notes, *read.notes),
        versions=_versions(run, launch),
        files=read.files,
    )


@lru_cache(maxsize=64)
def _records(text: str) -> tuple[dict[str, Reading], dict[str, Failing]]:
    metrics, failures = json.loads(text)
    return settings_records({"metrics": metrics, "failures": failures})


# ---- what it is given


def _values(run: Run, params: Mapping[str, Any]) -> dict[str, Any]:
    # Drawn from the run's own id: one seed for all runs would move all points together.
    digest = hashlib.sha256(f"seed/{run.execution_id}".encode()).digest()
    resources = run.resources
    ranks = int(resources.get("nodes") or 1) * int(resources.get("ranks_per_node") or 1)
    of_run = {
        "seed": int.from_bytes(digest[:4]) % 2_147_483_647 + 1,
        "ranks": ranks,
        "threads": int(resources.get("threads_per_rank") or 1),
    }
    return of_run | dict(run.settings["constants"]) | dict(params)


def _place_files(run: Run, values: Mapping[str, Any]) -> None:
    settings = run.settings
    for name in (*settings["templates"], *settings["copies"], *settings["links"]):
        source, target = Path(settings["paths"][name]), run.workdir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if name in settings["links"]:
                target.symlink_to(source)
            elif name in settings["templates"]:
                text = _unchanged(name, source, settings["files"][name]).decode()
                parts = pieces(text, name, template=True)
                # In bytes: newlines stay as they are.
                target.write_bytes(text_filled(parts, values).encode())
                shutil.copymode(source, target)
            else:
                shutil.copy(source, target)
        except FileNotFoundError:
            raise AppFailed(
                f"{source}, a file of the app, is gone.",
                kind="contract",
                name="MissingFile",
                repair="put it back; the workers must see it where the app was made",
            ) from None


def _arguments(settings: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """The words behind the program; without those of parameters that do not apply."""
    groups = ([word] if isinstance(word, str) else word for word in settings["command"][1:])
    kept = (group for group in groups if not any(missing(word, values) for word in group))
    return [filled(word, values) for group in kept for word in group]


def _unchanged(name: str, source: Path, recorded: str) -> bytes:
    """The content of a file; what is read, and not what lay there a moment ago, is what is recorded."""
    content = read_regular(source)
    now = hashlib.sha256(content).hexdigest()
    if now != recorded:
        raise AppFailed(
            f"{OtherFile(name, str(source), recorded, now)}.",
            kind="infrastructure",
            name="FilesChanged",
            repair="put the old content back and resume, or start a new campaign in another folder",
        )
    return content


def _given(run: Run, there: Run, values: Mapping[str, Any]) -> Path | None:
    stdin = run.settings["stdin"]
    if stdin is None:
        return None
    if stdin != "json":
        return there.workdir / str(stdin)
    path = run.workdir / "stdin.json"
    of_run = ("seed", "ranks", "threads")
    asked = {n: v for n, v in values.items() if n not in of_run or n in run.settings["constants"]}
    path.write_text(json.dumps(asked) + "\n")
    return path


def _of_site(run: Run) -> list[str]:
    """The words in place of the program's name that the site's profile has."""
    of_app = (run.site.get("apps") or {}).get(run.settings["name"]) or {}
    return [] if PROGRAM in run.settings["paths"] else list(of_app.get("command") or ())


def _program(run: Run) -> str:
    own = run.settings["paths"].get(PROGRAM)
    if own:
        return str(own)
    name = str(run.settings["command"][0]).replace("{{", "{").replace("}}", "}")
    found = name if _of_site(run) else shutil.which(name)
    if found is None:
        raise AppFailed(
            f"the program {name!r} is not on the PATH of the worker.",
            kind="infrastructure",
            name="NoExecutable",
            repair=f"install it there, load its module (worker_init of the site profile), or name it there: "
            f"[apps.{run.settings['name']}] command = [...]",
        )
    return found


def command_of(
    settings: Mapping[str, Any], params: Mapping[str, Any], resources: Mapping[str, Any], execution_id: str
) -> str:
    """The command of a run as it would be started, without the words of a launcher; for a person to read.

    Raises:
        AppFailed: `BadParameter`.
    """
    run = Run(workdir=Path(), execution_id=execution_id, settings=settings, resources=resources)
    values = _values(run, params)
    program = settings["paths"].get(PROGRAM) or settings["command"][0]
    return shlex.join([program, *_arguments(settings, values)])


def _versions(run: Run, launch: Launch) -> dict[str, str]:
    """Content of a program that is found where the run is; one of the app's own files is part of its digest."""
    if run.settings.get("container") is not None:
        return {str(run.settings["name"]): str(run.settings["container"]["digest"])}
    if PROGRAM in run.settings["paths"]:
        return {}
    words = [word for word in launch.words if Path(word).is_absolute() and Path(word).is_file()]
    names = [word for word in words if Path(word).name == Path(run.settings["command"][0]).name] or words
    if not names:
        return {}
    try:
        return {str(run.settings["name"]): f"SHA-256 {sha256(names[0])[:12]}"}
    except OSError:  # executable, but not readable
        return {}


# ---- how it ended


def _state_of(path: Path) -> tuple[int, int] | None:
    try:
        now = path.stat()
    except OSError:
        return None
    return now.st_mtime_ns, now.st_size


def _there_already(run: Run, metrics: Mapping[str, Reading]) -> dict[str, tuple[tuple[int, int], str]]:
    """Files of metrics that are there before the program begins: their time, size and digest."""
    found = {}
    for file in {how.file for how in metrics.values()} - {PRINTED, OUTPUT, ERRORS}:
        path = run.workdir / file
        state = _state_of(path)
        if state is not None and path.is_file():
            found[file] = (state, sha256(path))
    return found


def _refuse_unwritten(run: Run, metric: str, file: str, before: Mapping[str, tuple[tuple[int, int], str]]) -> None:
    """Refuse a number that stood there before: it is not the program's."""
    if file not in before:
        return
    state, digest = before[file]
    path = run.workdir / file
    # Clocks of file systems tick in milliseconds: a quick program may have written within the same one.
    if _state_of(path) == state and sha256(path) == digest:
        raise AppFailed(
            f"the program ended well, but has not written {file}, from which the metric {metric!r} is read: the "
            "file was there before the program began and is unchanged.",
            kind="contract",
            name="NoOutput",
            repair="let the program write its numbers into a file of another name than its input",
        )


def _found(
    run: Run, metrics: Mapping[str, Reading], failures: Mapping[str, Failing]
) -> dict[tuple[str, str], Found]:
    """What the patterns have found: (`metrics` or `failures`, name) -> match."""
    wanted: dict[tuple[str, str], Wanted] = {}
    for name, failing in failures.items():
        if failing.regex is not None:
            wanted["failures", name] = _wanted(run, failing.file, failing.regex, "first")
            if failing.file == PRINTED and run.settings["stdout"] == "json":
                wanted["errors", name] = {**wanted["failures", name], "file": ERRORS}
    for name, how in metrics.items():
        if how.regex is not None:
            wanted["metrics", name] = _wanted(run, how.file, how.regex, how.match)
    found = found_in(run.workdir, list(wanted.values()))
    if found is None:
        raise AppFailed(
            f"looking for the patterns of the app in what the program printed and wrote took more than "
            f"{LIMIT_S:g} s.",
            kind="contract",
            name="SlowPattern",
            log_tail=_tail(run),
            repair="a pattern without repeats inside of repeats, such as (a+)+; or let the program write JSON",
        )
    return dict(zip(wanted, found, strict=True))


def _wanted(run: Run, file: str, regex: str, match: Any) -> Wanted:
    return {"file": OUTPUT if file == PRINTED else file, "pattern": regex, "match": match}


def _refuse_failed(
    run: Run,
    finished: Finished,
    launch: Launch,
    failures: Mapping[str, Failing],
    found: Mapping[tuple[str, str], Found],
) -> None:
    code, tail = finished.returncode, _tail(run)
    for name, failing in failures.items():
        if (looked := found.get(("failures", name))) and looked["problem"] == "large":
            raise too_large(run.workdir / failing.file, LARGEST, most=LARGEST)
        match = next((f for key in ("failures", "errors") if (f := found.get((key, name))) and f["count"]), None)
        if match is not None or code in failing.exit_codes:
            said = f"exit code {code}" if match is None else _line_of(match)
            raise AppFailed(
                f"{Path(run.settings['command'][0]).name}: {said}.",
                kind=failing.kind,
                name=name,
                log_tail=tail,
                repair=failing.repair,
            )
    if code in run.settings["success"]:
        return
    _refuse_machine(run, code, launch, tail)
    number = _signal_of(code, launch, tail)
    program = Path(run.settings["command"][0]).name
    if number in _CRASHES:
        name = signal.Signals(number).name
        raise AppFailed(f"{program} crashed with {name}.", name="Crashed", log_tail=tail)
    if number:
        raise AppFailed(
            f"{program} was ended by {signal.Signals(number).name} from outside (out of memory, or the job was "
            "stopped).",
            kind="infrastructure",
            name="Killed",
            log_tail=tail,
        )
    if run.settings["stdout"] == "json":
        _answer(run, code)
    last = tail.strip().splitlines()[-1:] or ["it printed nothing"]
    raise AppFailed(
        f"{program} ended with exit code {code}: {last[0].strip()[:300]}",
        kind="simulation",
        name="NonzeroExit",
        log_tail=tail,
        repair="read output.txt; name what this code means under failures, or under success",
    )


def _line_of(match: Found) -> str:
    text = (match["groups"][0] or "").strip()
    return f"{text[:200]!r} in line {match['line']:,} of what it printed or wrote"


def _refuse_machine(run: Run, code: int, launch: Launch, tail: str) -> None:
    library = re.search(r"error while loading shared libraries: (\S+?):", tail)
    if library and code == 127:
        raise AppFailed(
            f"the program cannot start: its library {library[1]} is not found where the run was.",
            kind="infrastructure",
            name="LibraryMissing",
            log_tail=tail,
            repair="load its module in the site profile (worker_init), or set LD_LIBRARY_PATH in env",
        )
    if launch.launcher is not None and not (run.workdir / OUTPUT).stat().st_size:
        raise AppFailed(
            f"the launcher {launch.launcher} ended with exit code {code} before the program printed anything.",
            kind="infrastructure",
            name="LaunchFailed",
            log_tail=tail,
            repair="try the launcher of the site profile by hand inside a job",
        )


def _signal_of(code: int, launch: Launch, tail: str) -> int:
    """The signal that ended the program, or 0."""
    known = {s.value for s in signal.Signals}
    if code < 0:
        return -code
    if launch.launcher is not None:
        # "Killed (signal 9)" of hydra, whose own exit code is then 9; "exited on signal 9" of Open MPI.
        ranks = re.search(r"\bsignal (\d+)\b", tail)
        if ranks and int(ranks[1]) in known:
            return int(ranks[1])
    return code - 128 if code > 128 and code - 128 in known else 0


def _answer(run: Run, code: int = 0) -> Answer | None:
    """What a program printed as `{"status": ..., "result": ...}`; None where its exit code tells more."""
    text = json_text(run.workdir / OUTPUT)
    if code and not text.strip():
        return None
    who = Path(run.settings["command"][0]).name
    if not code:
        return answer_of(text, _ITS_OUTPUT, who, log_tail=_tail(run))
    with contextlib.suppress(ValueError, RecursionError):  # its exit code tells more
        refuse_reported(json.loads(text), who, log_tail=_tail(run))
    return None


def _tail(run: Run) -> str:
    texts = [read_tail(run.workdir / name) for name in (OUTPUT, ERRORS)]
    lines = "\n".join(text.rstrip() for text in texts if text.strip()).splitlines()
    return "\n".join(lines[-40:])


# ---- what it gave


def _read(
    run: Run,
    metrics: Mapping[str, Reading],
    found: Mapping[tuple[str, str], Found],
    answer: Answer | None,
    before: Mapping[str, tuple[tuple[int, int], str]],
) -> Outcome:
    documents: dict[str, Any] = {} if answer is None else {PRINTED: answer.result}
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    notes = []
    for name, how in metrics.items():
        try:
            _refuse_unwritten(run, name, how.file, before)
            match = found.get(("metrics", name))
            number = (
                number_of(name, how, run.workdir, documents) if match is None else from_match(name, how, match)
            )
            of_answer = answer is not None and how.file == PRINTED and how.key is not None
            number = in_units(name, how, number, answer.units if answer is not None and of_answer else {})
        except AppFailed as error:
            if not how.required:
                notes.append(f"{error.message} It is left out, as it may be absent.")
                continue
            error.details["log_tail"] = error.details["log_tail"] or _tail(run)
            raise
        values[name] = number.value
        if number.error == number.error:
            errors[name] = number.error
        notes += [number.said] if number.said else []
    return Outcome(metrics=values, uncertainty=errors, notes=tuple(notes))


def _artifacts(run: Run) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, pattern in run.settings["artifacts"].items():
        matches = sorted(str(p.relative_to(run.workdir)) for p in _matching(run, pattern))
        if not matches:
            raise AppFailed(
                f"the program ended well, but no file {pattern!r} (artifact {name}) is there.",
                kind="contract",
                name="MissingArtifact",
                log_tail=_tail(run),
            )
        single = len(matches) == 1
        found |= {name if single else f"{name}_{i}": file for i, file in enumerate(matches)}
    return found


def _matching(run: Run, pattern: str) -> list[Path]:
    """Files of the run's directory, without those of earlier attempts."""
    inside = (path for path in run.workdir.glob(pattern) if path.is_file() or path.is_symlink())
    return [p for p in inside if not p.relative_to(run.workdir).parts[0].startswith("attempt-")]


def _remove(run: Run, artifacts: Mapping[str, str]) -> None:
    kept = {OUTPUT, ERRORS, "command.txt", "manifest.json", *artifacts.values()}
    for pattern in run.settings["remove"]:
        for path in _matching(run, pattern):
            if str(path.relative_to(run.workdir)) not in kept and _within(run.workdir, path):
                path.unlink(missing_ok=True)


def _within(folder: Path, path: Path) -> bool:
    """Whether it lies in the folder, and not behind a link to a folder elsewhere."""
    return path.parent.resolve().is_relative_to(folder.resolve())
