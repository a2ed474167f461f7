"""An app from a program: its command, parameters, files, and how its numbers are read."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hpcagent.apps.base import App, check_names
from hpcagent.apps.executable.checks import (
    OWN,
    check_choices,
    check_left_out,
    check_places,
    check_words,
    flat,
    known_names,
    used_names,
    words_of,
)
from hpcagent.apps.executable.container import IMAGE, Container, resolved
from hpcagent.apps.executable.record import ENTRY_POINT, PRINTED, Failing, ProgramFile, Reading
from hpcagent.apps.hooks import PROGRAMS
from hpcagent.apps.made_with import sha256
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.apps.sandbox.setting import FAILURES as SANDBOX_FAILURES
from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar, build, read_toml
from hpcagent.model.contract import OUTPUTS_ONLY, Contract, Metric, Resources
from hpcagent.model.files import with_file_choices
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space

__all__ = [
    "FAILURE_MODES",
    "FUNCTION",
    "PROGRAM",
    "described_metric",
    "executable",
    "executable_file",
    "parameters_of",
    "settings_records",
]

FUNCTION = PROGRAMS
PROGRAM = "program"
"""Name of the program itself among the files of an app."""

FAILURE_MODES = (
    "NoExecutable",
    "LibraryMissing",
    "NonzeroExit",
    "Crashed",
    "Killed",
    "ReportedError",
    "NoOutput",
    "BadOutput",
    "MissingMetric",
    "NotFinite",
    "MissingArtifact",
    "MissingFile",
    "BadParameter",
    "SlowPattern",
    "FilesChanged",
    "FileTooLarge",
    "Walltime",
    "BlockEnded",
    "NoPlace",
    "NoLauncher",
    "LaunchFailed",
    "OutOfMemory",
    "DiskFull",
)
"""Failures of every executable, beside those that its own table names."""


def executable(
    command: str | Sequence[str | Sequence[str]],
    *,
    parameters: Mapping[str, Parameter],
    metrics: Mapping[str, Reading],
    name: str | None = None,
    version: str = "0.1.0",
    description: str = "",
    constraints: Sequence[str] = (),
    constants: Mapping[str, Scalar] | None = None,
    templates: Sequence[str | Path] | Mapping[str, str | Path] = (),
    files: Sequence[str | Path] | Mapping[str, str | Path] = (),
    links: Sequence[str | Path] | Mapping[str, str | Path] = (),
    stdin: str | None = None,
    stdout: str = "text",
    env: Mapping[str, str] | None = None,
    failures: Mapping[str, Any] | None = None,
    success: Sequence[int] = (0,),
    artifacts: Mapping[str, str] | None = None,
    remove: Sequence[str] = (),
    reads: Sequence[str] = (),
    resources: Resources | None = None,
    resources_from: Mapping[str, str] | None = None,
    estimated_runtime_s: float = 1.0,
    vary: Sequence[str] = (),
    side_effects: str = OUTPUTS_ONLY,
    deprecated: str | None = None,
    relative_to: str | Path | None = None,
    sandbox: Sandbox | Mapping[str, Any] | str | None = None,
    container: Container | Mapping[str, Any] | None = None,
) -> App:
    """Make an app of a program: any command that computes numbers from its arguments or input files.

    Args:
        command: The program and its arguments, as one text or word by word, with `{name}` (`{x:.3f}`) in place
            of parameters and constants, of `{seed}`, `{ranks}` and `{threads}`; `{{` and `}}` are braces. No shell
            takes part: a value is one word, or part of one, whatever is in it. A program with `/` in its name is a
            file, whose content counts; any other is looked for on the PATH of the worker. A word with a parameter
            that does not apply (`when`) is left out; words in a list of their own are left out together.
        parameters: Name -> `Float(...)`, `Int(...)`, `Choice(...)` or `Text(...)`.
        metrics: Name -> `from_json(...)`, `from_regex(...)`, `from_column(...)` or `from_array(...)`.
        name: The app's name; that of the program by default.
        version: Semantic version; change it when the meaning of a result changes.
        description: One or two sentences.
        constraints: Conditions that every point keeps, e.g. `["nx * ny <= 4096"]`.
        constants: Values beside the parameters that no campaign changes.
        templates: Input files in which `${name}` (`${x:.3f}`) stands in place of values; `$${` means `${`. A list
            of paths, or name in the run's directory -> path.
        files: Files that are copied into each run's directory; likewise.
        links: Large files that the program only reads: linked; likewise.
        stdin: What it reads as standard input: one of its files, or `"json"`: an object of parameters and
            constants.
        stdout: `"json"`: it prints one JSON object, `{"status": "success", "result": {...}}` or
            `{"status": "error", "message": ...}`; metrics with a `key` and no file are read from `result`.
        env: Environment variables of the program; values may have `{name}` in them.
        failures: Name of a failure -> a pattern in what it prints, an exit code, or a dict with `regex`, `file`,
            `exit_codes`, `kind`, `repair`.
        success: Exit codes that mean success.
        artifacts: Name -> file, or pattern of files, that a run must have written.
        remove: Patterns of files that are removed when a run has succeeded; artifacts stay.
        reads: Parameters that are paths of files, which the program may read also in a sandbox; what is in them
            decides the run.
        resources: What one run occupies: ranks, threads, walltime.
        resources_from: Resource -> the parameter that decides it, e.g. `{"ranks_per_node": "ranks"}`.
        estimated_runtime_s: Expected wall time of one run, in seconds.
        vary: Parameters that a campaign varies if it does not say.
        side_effects: What a run touches beside its own directory; see `@ha.app`.
        deprecated: Why it should not be used any more; see `@ha.app`.
        relative_to: Folder that paths start from; the working directory by default.
        sandbox: Confines the program: the keys of `[sandbox]`, or the name of a tier.
        container: The image that it runs in: the keys of `[container]`.

    Raises:
        BadInput: The program or a file is not there, a name is unknown, a parameter is never used, a pattern is
            none, or something else makes no sense.

    Example:
        >>> from hpcagent.apps.executable.record import from_regex
        >>> from hpcagent.model.parameter import Int
        >>> app = executable(
        ...     "seq {n}", parameters={"n": Int(1, 9)}, metrics={"last": from_regex("^([0-9]+)$", unit="1")}
        ... )
        >>> app.name, app.contract.metric("last").unit
        ('seq', '1')
    """
    data = {
        "name": name,
        "version": version,
        "description": description,
        "command": command if isinstance(command, str) else _listed(command),
        "constraints": constraints,
        "constants": _given(constants),
        "templates": _texts(templates),
        "files": _texts(files),
        "links": _texts(links),
        "stdin": stdin,
        "stdout": stdout,
        "env": _given(env),
        "metrics": metrics,
        "failures": _given(failures),
        "success": success,
        "artifacts": _given(artifacts),
        "remove": remove,
        "reads": tuple(reads),
        "resources": resources or Resources(),
        "resources_from": _given(resources_from),
        "estimated_runtime_s": estimated_runtime_s,
        "side_effects": side_effects,
        "deprecated": deprecated,
        "vary": vary,
        "sandbox": sandbox,
        "container": container,
    }
    for what, given in (("parameters", parameters), ("metrics", metrics)):
        if not isinstance(given, Mapping):
            raise BadInput(f"{what}={given!r}: give a dict of them by name.", value=given)
    for metric, how in metrics.items():
        if not isinstance(how, Reading):
            raise BadInput(
                f"metrics={{{metric!r}: {how!r}}}: say how it is read: ha.output.from_json(file, key, unit=...), "
                "ha.output.from_regex(...), ha.output.from_column(...) or ha.output.from_array(...).",
                value=how,
            )
    where = f"executable {_shown(command)}"
    said = build(ProgramFile, data, where=where)
    space = Space.of(constraints=said.constraints, **parameters)
    return _app(said, space, Path(relative_to or "").expanduser(), where, source=_shown(command))


def _given(table: Mapping[str, Any] | None) -> Any:
    """What was given for a table; what is none is refused with the others."""
    return {} if table is None else table


def _listed(command: Sequence[str | Sequence[str]]) -> tuple[str | tuple[str, ...], ...]:
    if not isinstance(command, Sequence) or not all(isinstance(w, (str, Path, list, tuple)) for w in command):
        raise BadInput(
            f"the command {command!r:.100} is neither a text nor a list of words; write it as one text.",
            value=command,
        )
    return tuple(str(word) if isinstance(word, (str, Path)) else tuple(map(str, word)) for word in command)


def executable_file(path: str | Path) -> App:
    """The app of a TOML file with a key `command`; its keys are the arguments of `executable`.

    Raises:
        BadInput: As `executable`, naming the file.
    """
    path = Path(path)
    where = str(path)
    said = build(ProgramFile, read_toml(path), where=where)
    parameters = parameters_of(said.parameters, where, path.parent)
    return _app(said, Space.made(parameters, said.constraints), path.parent, where, source=str(path))


def _texts(given: Sequence[str | Path] | Mapping[str, str | Path]) -> dict[str, str] | tuple[str, ...]:
    if isinstance(given, (str, Path)):
        raise BadInput(f"{str(given)!r}: give a list of files, as [{str(given)!r}].", value=str(given))
    if isinstance(given, Mapping):
        return {name: str(path) for name, path in given.items()}
    return tuple(map(str, given))


def _shown(command: str | Sequence[str | Sequence[str]]) -> str:
    text = command if isinstance(command, str) else shlex.join(flat(_listed(command)))
    return text if len(text) <= 80 else f"{text[:77]}..."


def parameters_of(tables: Mapping[str, Mapping[str, Any]], where: str, folder: Path) -> tuple[Parameter, ...]:
    """The parameters of the tables `[parameters.NAME]`."""
    return tuple(_parameter(name, data, where, folder) for name, data in tables.items())


def _parameter(name: str, data: Mapping[str, Any], where: str, folder: Path) -> Parameter:
    """One `[parameters.NAME]` table: the keys of a parameter; its kind may be left out where it is clear."""
    place = f"{where}, parameters.{name}"
    given = with_file_choices(data, folder, place)
    if "kind" not in given:
        bounds = [given.get("low"), given.get("high")]
        if "choices" in given:
            given["kind"] = "choice"
        elif all(type(bound) is int for bound in bounds):
            raise BadInput(
                f'{place}: the bounds {bounds[0]} and {bounds[1]} are whole numbers; write kind = "int" if only '
                'whole numbers are meant, kind = "float" if not.',
                value=bounds,
            )
    if given.get("kind", "float") in ("float", "int") and "unit" not in given:
        raise BadInput(f"{place}: the key 'unit' is missing; write '1' for a pure number.")
    return build(Parameter, {**given, "name": name}, where=place)


def settings_records(settings: Mapping[str, Any]) -> tuple[dict[str, Reading], dict[str, Failing]]:
    """The readings and failures of an app, from its settings."""
    metrics = {name: Reading(**how) for name, how in settings["metrics"].items()}
    return metrics, {name: Failing(**how) for name, how in settings["failures"].items()}


def _app(said: ProgramFile, space: Space, folder: Path, where: str, *, source: str) -> App:
    command = words_of(said.command, where)
    words = flat(command)
    check_names(space, where, "write {seed} in the command")
    known = known_names(space, said.constants, where)
    used = used_names(said, words, space, folder, known, where)
    check_left_out(command, space, where)
    given_all = said.stdin == "json"
    for name in (*space.names, *said.constants):
        if name not in used and not given_all and name not in said.resources_from.values():
            raise BadInput(
                f"{where}: {name!r} is never used: neither the command nor a template nor the environment has a "
                f"place for it. Write {{{name}}} in the command or ${{{name}}} in a template, or drop it.",
                value=name,
            )
    program = words[0]
    if said.command == (ENTRY_POINT,) and said.name is None:
        raise BadInput(f"{where}: give the app a name; its image says what is run, and no command does.")
    paths, settings_files = _files(said, program, folder, where)
    check_choices(space, paths, where)
    check_places(said, {name: path for name, path in paths.items() if name != PROGRAM}, space, where)
    check_words(said, words[1:], folder, paths, where)
    settings: dict[str, Any] = {
        "name": said.name or _name(program),
        "command": command,
        "stdin": said.stdin,
        "stdout": said.stdout,
        "env": said.env,
        "constants": said.constants,
        "metrics": {n: how.model_dump(mode="json", exclude_defaults=True) for n, how in said.metrics.items()},
        "failures": {n: f.model_dump(mode="json") for n, f in said.failures.items()},
        "success": list(said.success),
        "artifacts": said.artifacts,
        "remove": list(said.remove),
        **settings_files,
    }
    # Absent where there is none: the digests of other apps stay as they were.
    for name in said.reads:
        if name not in space or space[name].kind not in ("text", "choice"):
            raise BadInput(f"{where}, reads: {name!r} is no parameter that is a text or a file.", value=name)
    if said.reads:
        settings["reads"] = list(said.reads)
    if said.sandbox is not None:
        settings["sandbox"] = said.sandbox.model_dump(mode="json")
    if said.container is not None:
        settings["container"] = _container(said, folder, paths, settings, where)
    if PROGRAM in paths:
        settings[PROGRAM] = Path(paths[PROGRAM]).name
    contract = build(
        Contract,
        {
            "name": settings["name"],
            "version": said.version,
            "description": said.description or f"The program {Path(program).name}.",
            "space": space,
            "metrics": tuple(described_metric(name, how) for name, how in said.metrics.items()),
            "resources": said.resources,
            "resources_from": said.resources_from,
            "deterministic": False,
            # Nothing else of a run differs from replicate to replicate.
            "seeded": "seed" in used,
            "estimated_runtime_s": said.estimated_runtime_s,
            "failure_modes": tuple(dict.fromkeys((*FAILURE_MODES, *_of_place(said), *said.failures))),
            "side_effects": said.side_effects,
            "deprecated": said.deprecated,
        },
        where=where,
    )
    for name in said.vary:
        space[name]
    return App(contract=contract, function=FUNCTION, settings=settings, source=source, vary=said.vary)


def _container(
    said: ProgramFile, folder: Path, paths: dict[str, str], settings: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """The settings of a container; its image's file is one of the app's files."""
    assert said.container is not None
    found, file = resolved(said.container, folder, f"{where}, container")
    if file is not None:
        if IMAGE in paths:
            raise BadInput(f"{where}: the name {IMAGE!r} is that of the container's image; rename the file.")
        paths[IMAGE] = file
        settings["files"][IMAGE] = found["digest"].removeprefix("sha256:")
    entry_point = said.command == (ENTRY_POINT,)
    return found | ({"entrypoint": True} if entry_point else {})


def _of_place(said: ProgramFile) -> tuple[str, ...]:
    """Failures of the place where it runs, and of an answer."""
    found: tuple[str, ...] = ()
    if said.stdout == "json":
        found += ("WrongUnit",)
    if any(how.low is not None or how.high is not None for how in said.metrics.values()):
        found += ("OutOfRange",)
    if said.sandbox is not None:
        found += SANDBOX_FAILURES
    if said.container is not None:
        found += ("NoRuntime", "ImageMissing", "ContainerFailed", "OutputsTooLarge")
    return found


def described_metric(name: str, how: Reading) -> Metric:
    """The metric of a reading."""
    data = {
        "name": name,
        "unit": how.unit,
        "description": how.description or _described(how),
        "direction": how.direction,
        "required": how.required,
        "noise": how.noise,
    }
    return build(Metric, data, where=f"metrics.{name}")


def _described(how: Reading) -> str:
    file = "what it prints" if how.file == PRINTED else how.file
    if how.key is not None:
        return f"{how.key if isinstance(how.key, str) else list(how.key)} of {file}"
    if how.regex is not None:
        return f"{how.match} match of {how.regex} in {file}"
    return f"{how.reduce} of {how.array or 'column'} {'' if how.column is None else how.column} of {file}".replace(
        "  ", " "
    )


def _name(program: str) -> str:
    stem = Path(program).name.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "_", stem).strip("-_") or "program"


def _files(said: ProgramFile, program: str, folder: Path, where: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Paths by name, and what the settings say of the files."""
    paths: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for what in ("templates", "files", "links"):
        placed = said.placed(what)
        groups["copies" if what == "files" else what] = list(placed)
        for name, given in placed.items():
            if name in OWN or name == PROGRAM:
                raise BadInput(
                    f"{where}, {what}: {name!r} is a name of the library's own; choose another.", value=name
                )
            if name in paths:
                raise BadInput(f"{where}: two files are called {name!r} in the run's directory.", value=name)
            paths[name] = _there(folder, given, f"{where}, {what}")
    if str(PurePosixPath(program)) in paths:
        raise BadInput(
            f"{where}: the program {program!r} is one of the files that each run gets; name what runs it, as "
            f"`sh {PurePosixPath(program)}`.",
            value=program,
        )
    if said.container is not None:
        pass  # the program is one of the image's
    elif "/" in program:
        paths[PROGRAM] = _there(folder, program, f"{where}, the program")
        if not os.access(paths[PROGRAM], os.X_OK):
            raise BadInput(
                f"{where}: {paths[PROGRAM]} is not executable; `chmod +x {shlex.quote(program)}`, or name what "
                "runs it as the program, and list it under files.",
                value=program,
            )
    elif (folder / program).is_file() and os.access(folder / program, os.X_OK):
        raise BadInput(
            f"{where}: a program called {program!r} lies in {folder.absolute()}, but one without '/' in its name "
            f"is looked for on the PATH; write ./{program} if that one is meant, or its whole path.",
            value=program,
        )
    if said.stdin not in (None, "json", *paths):
        raise BadInput(
            f"{where}: stdin = {said.stdin!r} is none of its files; list it under templates or files, or write "
            "'json'.",
            value=said.stdin,
        )
    listed = {"files": {name: sha256(path) for name, path in paths.items()}, "paths": paths}
    return paths, {**groups, **listed}


def _there(folder: Path, given: str, where: str) -> str:
    path = (folder / Path(given).expanduser()).absolute()
    if not path.is_file():
        raise BadInput(f"{where}: {path}: no such file.", value=given)
    return str(path)
