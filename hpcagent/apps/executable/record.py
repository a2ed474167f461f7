"""What is said of a program: how each number is read, what its failures are called; the TOML of an app.

Records only: `contract` makes an app of them, `run` and `reading` do what they say on a worker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hpcagent.apps.executable.container import Container
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.errors import BadInput
from hpcagent.model.base import Record, Scalar, build
from hpcagent.model.contract import OUTPUTS_ONLY, Resources
from hpcagent.model.failures import mode
from hpcagent.model.texts import Line, Lines, Name, Variable

__all__ = [
    "Failing",
    "ProgramFile",
    "Reading",
    "Reduction",
    "from_array",
    "from_column",
    "from_json",
    "from_regex",
    "inside",
]

Reduction = Literal["mean", "last", "first", "min", "max", "std", "sum"]
Key = Line | tuple[Line | int, ...]

PRINTED = "stdout"
"""Name of what a program printed, where a file is named."""

OUTPUT = "output.txt"
"""The file that it is in."""

ENTRY_POINT = "entrypoint"
"""In place of the program of a container whose image says itself what is run."""

_LONGEST_PATTERN = 1000
_FAILURE = re.compile(r"[A-Z][A-Za-z0-9]{2,79}\Z")


def inside(name: str, what: str) -> str:
    """The name of a file in a run's directory; sub-folders are allowed, ways out of it are not.

    Raises:
        BadInput: It is none.

    Example:
        >>> inside("out/./data.csv", "file")
        'out/data.csv'
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or str(path) == "." or len(name) > 1000:
        raise BadInput(f"{what}: {name!r} is not the name of a file in the run's directory.", value=name)
    if any(ord(c) < 32 for c in name):
        raise BadInput(f"{what}: {name!r} has a control character in it.", value=name)
    return str(path)


def _pattern(text: str) -> re.Pattern[str]:
    if len(text) > _LONGEST_PATTERN:
        raise BadInput(f"a pattern of {len(text)} characters; at most {_LONGEST_PATTERN} are allowed.")
    try:
        return re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(f"{text!r} is no regular expression: {error}.", value=text) from None


class Reading(Record):
    """How one number is read from what a program printed or wrote; of `key`, `regex`, `column`, `array` one.

    Attributes:
        file: A file in the run's directory; `stdout` is what the program printed (both streams).
        key: Of a JSON file: where the number is, as `"energy.total"` or `"runs[-1].error"`; a list of keys and
            numbers where a key has dots in it.
        error_key: Likewise, where its standard error is.
        regex: Regular expression; `^` and `$` are those of lines. The number is its group `value`, else its only
            group, else the whole match. A group `error` is its standard error, a group `unit` its unit.
        match: Which match of the expression counts.
        column: Of a table (CSV, or with blanks between): title of a column, or its number: 0 is the first, -1 the
            last. Of a two-dimensional `array` its number.
        array: Of an HDF5 file: path of a data set; of a `.npy` file empty.
        reduce: How a column or array becomes one number.
        discard: Share of its rows left out at the beginning, 0 to 1.
        series: Whether its rows follow each other in time at equal steps: a mean or standard deviation then has a
            standard error, with the correlation of the rows taken into account. Say false for other tables.
        unit: Unit of the number; `"1"` for a pure number.
        description: One sentence.
        direction: Which way is better, where that is clear.
        required: Whether a run without it has failed.
        noise: Relative standard deviation from run to run, if known; 0 for a number that is the same each time.
        low: Smallest value that it can have, in `unit`; a run with less has failed (`OutOfRange`).
        high: Likewise the largest.
    """

    file: Line = PRINTED
    key: Key | None = None
    error_key: Key | None = None
    regex: Lines | None = None
    match: Literal["first", "last"] = "last"
    column: Line | int | None = None
    array: Line | None = None
    reduce: Reduction = "mean"
    discard: float = Field(default=0.0, ge=0.0, lt=1.0, allow_inf_nan=False)
    series: bool = True
    unit: Line = Field(min_length=1)
    description: str = ""
    direction: Literal["maximize", "minimize"] | None = None
    required: bool = True
    noise: float | None = None
    low: float | None = Field(default=None, allow_inf_nan=False)
    high: float | None = Field(default=None, allow_inf_nan=False)

    @field_validator("file")
    @classmethod
    def _in_the_directory(cls, file: str) -> str:
        return inside(file, "file")

    @model_validator(mode="after")
    def _check(self) -> Reading:
        ways = [way for way in ("key", "regex", "array") if getattr(self, way) is not None]
        ways += ["column"] if self.column is not None and self.array is None else []
        if len(ways) != 1:
            raise BadInput(
                f"a metric is read in one way; got {', '.join(ways) or 'none'}. Give key (of a JSON file), regex "
                "(of any text), column (of a table) or array (of an HDF5 or .npy file).",
                value=ways,
            )
        only: dict[str, tuple[str, ...]] = {
            "key": ("error_key",),
            "regex": ("match",),
            "column": ("reduce", "discard", "series"),
            "array": ("column", "reduce", "discard", "series"),
        }
        for name in {name for names in only.values() for name in names} & self.model_fields_set:
            if name not in only[ways[0]] and name not in ways:
                raise BadInput(f"{name} does not go with {ways[0]}.", value=name)
        if ways[0] == "array" and self.file == PRINTED:
            raise BadInput("array needs a file.", value=self.file)
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise BadInput(f"low = {self.low:g} is not below high = {self.high:g}.", value=self.low)
        if isinstance(self.column, bool):
            raise BadInput(f"column={self.column} is neither a title nor a number.", value=self.column)
        if self.regex is not None:
            self._check_groups(self.regex)
        for key in (self.key, self.error_key):
            if key is not None and not json_path(key):
                raise BadInput("key is empty; name where the number is.", value=key)
        return self

    def _check_groups(self, regex: str) -> None:
        compiled = _pattern(regex)
        other = set(compiled.groupindex) - {"value", "error", "unit"}
        if other:
            raise BadInput(
                f"regex {regex!r} has a group called {sorted(other)[0]!r}; known: value, error, unit.", value=regex
            )
        if compiled.groups > 1 and "value" not in compiled.groupindex:
            raise BadInput(
                f"regex {regex!r} has {compiled.groups} groups; write (?P<value>...) for that of the number, and "
                "(?:...) for groups that are none.",
                value=regex,
            )

    @property
    def way(self) -> Literal["key", "regex", "column", "array"]:
        """What it is read by."""
        if self.key is not None:
            return "key"
        if self.regex is not None:
            return "regex"
        return "array" if self.array is not None else "column"


def json_path(key: Key) -> tuple[str | int, ...]:
    """The steps to a value of a JSON file.

    Raises:
        BadInput: A bracket without a whole number.

    Example:
        >>> json_path("runs[-1].error")
        ('runs', -1, 'error')
        >>> json_path(("a.b", 0))
        ('a.b', 0)
    """
    if not isinstance(key, str):
        return key
    steps: list[str | int] = []
    for part in key.split("."):
        name, *numbers = part.split("[")
        if name:
            steps.append(name)
        for number in numbers:
            if not re.fullmatch(r"-?\d{1,9}\]", number):
                raise BadInput(
                    f"key {key!r}: a bracket holds the number of an element and ends with ']'.", value=key
                )
            steps.append(int(number[:-1]))
    return tuple(steps)


def from_json(file: str, key: str | tuple[str | int, ...], *, unit: str, **more: Any) -> Reading:
    """A metric from a JSON file that the program writes.

    Args:
        file: Its name in the run's directory; `"stdout"` for what the program printed.
        key: Where the number is: `"energy.total"`, `"runs[-1].error"`, or a tuple of keys and numbers.
        unit: Unit of the number.
        more: `error_key`, and what every metric may have: `description`, `direction`, `required`, `noise`.

    Raises:
        BadInput: Something of it makes no sense.

    Example:
        >>> from_json("out.json", "error", unit="1").key
        'error'
    """
    return build(Reading, {"file": file, "key": key, "unit": unit, **more}, where="from_json")


def from_regex(regex: str, *, unit: str, file: str = PRINTED, **more: Any) -> Reading:
    """A metric from a line that the program prints, or writes into a text file; the last match counts.

    Args:
        regex: Regular expression with a group around the number.
        unit: Unit of the number.
        file: Where it is looked for; what the program printed by default.
        more: `match`, and what every metric may have: `description`, `direction`, `required`, `noise`.

    Raises:
        BadInput: It is no regular expression, or which of its groups is the number is not clear.

    Example:
        >>> from_regex(r"took (\\S+) s", unit="s").match
        'last'
    """
    return build(Reading, {"file": file, "regex": regex, "unit": unit, **more}, where="from_regex")


def from_column(file: str, column: str | int, *, unit: str, reduce: Reduction = "mean", **more: Any) -> Reading:
    """A metric from a column of a table: CSV, or with blanks between.

    Args:
        file: Its name in the run's directory.
        column: Title of the column, or its number: 0 is the first, -1 the last.
        unit: Unit of the number.
        reduce: How the column becomes one number; a mean and a standard deviation have a standard error.
        more: `discard`, `series`, and what every metric may have: `description`, `direction`, `required`, `noise`.

    Raises:
        BadInput: Something of it makes no sense.

    Example:
        >>> from_column("data.csv", "T", unit="K", discard=0.2).reduce
        'mean'
    """
    data = {"file": file, "column": column, "unit": unit, "reduce": reduce, **more}
    return build(Reading, data, where="from_column")


def from_array(file: str, array: str = "", *, unit: str, reduce: Reduction = "mean", **more: Any) -> Reading:
    """A metric from an array in an HDF5 file, or in a `.npy` file.

    Args:
        file: Its name in the run's directory.
        array: Path of the data set in an HDF5 file.
        unit: Unit of the number.
        reduce: How the array becomes one number.
        more: `column` (a number) of a two-dimensional array, `discard`, `series`, and what every metric may have.

    Raises:
        BadInput: Something of it makes no sense.

    Example:
        >>> from_array("out.h5", "/energy", unit="eV", reduce="last").array
        '/energy'
    """
    data = {"file": file, "array": array, "unit": unit, "reduce": reduce, **more}
    return build(Reading, data, where="from_array")


class Failing(Record):
    """A failure of the program by name, and what tells of it.

    Attributes:
        regex: Found in what the program printed, or in `file`; also when it ended with a code of success.
        file: Where it is looked for.
        exit_codes: Codes with which the program then ends.
        kind: `simulation`: these parameters fail; `contract`: the input is wrong; `infrastructure`: the machine.
        repair: What would probably help.
    """

    regex: Lines | None = None
    file: Line = PRINTED
    exit_codes: tuple[Annotated[int, Field(ge=0, le=255)], ...] = ()
    kind: Literal["simulation", "contract", "infrastructure"] = "simulation"
    repair: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """Accept `Diverged = "did not converge"`, `Diverged = 3`."""
        if isinstance(data, str):
            return {"regex": data}
        return {"exit_codes": (data,)} if type(data) is int else data

    @model_validator(mode="after")
    def _check(self) -> Failing:
        if self.regex is None and not self.exit_codes:
            raise BadInput("a failure is known by regex or exit_codes; give one of them.")
        if self.regex is not None and _pattern(self.regex).search("") is not None:
            raise BadInput(
                f"regex {self.regex!r} is found in an empty text: every run would fail.", value=self.regex
            )
        inside(self.file, "file")
        return self


class Local(Record):
    """A program of this machine that takes JSON and answers JSON.

    Attributes:
        command: The program and its arguments.
        arguments: How the parameters reach it: `json`, an object on stdin; `env`, variables.
        env_prefix: What the names of these variables begin with; the parameter's name follows in capitals.
    """

    command: Lines | tuple[Line | tuple[Line, ...], ...]
    arguments: Literal["json", "env"] = "json"
    env_prefix: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = "ARG_"


def _with_json(data: dict[str, Any]) -> dict[str, Any]:
    """The whole table of a program of which only says where it runs; `{"status", "result"}` is its answer."""
    tables = [name for name in ("local", "container") if isinstance(data.get(name), dict)]
    if not tables or (tables == ["container"] and data.get("command")):
        if tables and {"arguments", "env_prefix", "command"} & set(data["container"]):
            raise BadInput(
                "container: arguments, env_prefix and command are of an image that takes and answers JSON; with a "
                "command of the file itself write stdin, stdout and env.",
            )
        return data
    place = data[tables[0]]
    taken = [name for name in ("command", "stdin", "stdout") if data.get(name) not in (None, "text")]
    if len(tables) > 1 or taken:
        raise BadInput(f"{' and '.join(tables)}: nothing else says how it is run; drop {(taken or tables)[-1]}.")
    by_env = place.get("arguments", "json") == "env"
    names = [*data.get("parameters", {}), *data.get("constants", {})] if by_env else []
    prefix = place.get("env_prefix", "ARG_")
    env = {f"{prefix}{name.upper()}": f"{{{name}}}" for name in names}
    if len(env) < len(names):
        raise BadInput(f"{tables[0]}: two parameters would be one variable in capitals; rename one of them.")
    ways = ("key", "regex", "column", "array")
    metrics = {
        name: {"key": (name,), **how} if isinstance(how, dict) and not set(how) & set(ways) else how
        for name, how in data.get("metrics", {}).items()
    }
    return data | {
        "command": place.get("command") or (ENTRY_POINT,),
        "stdin": None if by_env else "json",
        "stdout": "json",
        "env": {**env, **data.get("env", {})},
        "metrics": metrics,
    }


class ProgramFile(Record):
    """The TOML of an executable.

    Attributes:
        name: The app's name; that of the program by default.
        version: Semantic version; raise it when the meaning of a result changes.
        description: One or two sentences.
        command: The program and its arguments, with `{name}` in place of values; no shell takes part. One text,
            or a list of words; those in a list of their own are left out together where a parameter of theirs does
            not apply (`when`).
        parameters: What may be set: bounds, unit, default.
        constraints: Conditions that every point keeps, e.g. `["nx * ny <= 4096"]`.
        constants: Values that no campaign changes, by name, for the command and the templates.
        vary: Names of the parameters that a campaign varies if it does not say; all without a default, or all.
        templates: Input files with `${name}` in place of values: a list, or name in the run's directory -> path.
        files: Files that are copied into each run's directory: a list, or name there -> path.
        links: As `files`, linked: large ones that the program only reads.
        stdin: What the program reads as standard input: one of its files, or `json`: an object of all parameters
            and constants.
        stdout: `json`: the program prints one JSON object `{"status": ..., "result": ...}` and nothing else.
        env: Environment variables of the program; values may have `{name}` in them.
        metrics: The numbers, and how each is read.
        failures: Failures by name, and what tells of them.
        success: Exit codes that mean success.
        artifacts: Name -> file, or pattern of files, that a run must have written.
        remove: Patterns of files that are removed when a run has succeeded; artifacts stay.
        reads: Parameters that are paths of files, which the program may read also in a sandbox; what is in them
            decides the run.
        resources: What one run occupies.
        resources_from: Resource -> the parameter that decides it.
        estimated_runtime_s: Expected wall time of one run, in seconds.
        side_effects: What a run touches beside its own directory (see `Contract.side_effects`).
        deprecated: Why it should not be used any more; it is then found by its version only.
        sandbox: Confines the program: its tier, limits, what it may read; see `[sandbox]`.
        container: The image that the program runs in; see `[container]`.
        local: In place of `command`: a program that takes JSON and answers JSON; see `[local]`.
    """

    name: Name | None = None
    version: str = "0.1.0"
    description: str = ""
    command: Lines | tuple[Line | tuple[Line, ...], ...]
    parameters: dict[str, dict[str, Any]] = {}
    constraints: tuple[str, ...] = ()
    constants: dict[str, Scalar] = {}
    vary: tuple[str, ...] = ()
    templates: dict[str, str] | tuple[str, ...] = ()
    files: dict[str, str] | tuple[str, ...] = ()
    links: dict[str, str] | tuple[str, ...] = ()
    stdin: Line | None = None
    stdout: Literal["text", "json"] = "text"
    env: dict[Variable, Line] = {}
    metrics: dict[str, Reading]
    failures: dict[str, Failing] = {}
    success: tuple[Annotated[int, Field(ge=0, le=255)], ...] = (0,)
    artifacts: dict[str, str] = {}
    remove: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    resources: Resources = Resources()
    resources_from: dict[str, str] = {}
    estimated_runtime_s: float = 1.0
    side_effects: str = OUTPUTS_ONLY
    deprecated: str | None = None
    sandbox: Sandbox | None = None
    container: Container | None = None
    local: Local | None = None

    @model_validator(mode="before")
    @classmethod
    def _bound(cls, data: Any) -> Any:
        """A program that takes a JSON object and answers one: `[local]`, or `[container]` without a command."""
        return _with_json(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _check(self) -> ProgramFile:
        if not self.metrics:
            raise BadInput("metrics: name at least one number that the program gives.")
        if not self.success:
            raise BadInput("success: name at least one exit code; that of most programs is 0.")
        for name, failing in self.failures.items():
            _check_failure(name, failing)
            both = set(failing.exit_codes) & set(self.success)
            if both:
                raise BadInput(f"failures.{name}: exit code {min(both)} means success.", value=min(both))
        for name, file in self.artifacts.items():
            if not name.isidentifier():
                raise BadInput(f"artifacts: {name!r} is no name; use letters, digits and _.", value=name)
            inside(file, f"artifacts.{name}")
        for pattern in self.remove:
            inside(pattern, "remove")
        if self.sandbox is not None and self.container is not None:
            raise BadInput("sandbox and container: a container is confined by its runtime; write one of them.")
        if self.sandbox is not None or self.container is not None:
            for name, file in self.artifacts.items():
                if "**" in file:
                    raise BadInput(
                        f"artifacts.{name}: {file!r}: ** is not for what leaves a sandbox or container."
                    )
            ranks = self.resources.nodes * self.resources.ranks_per_node
            if ranks > 1 or {"nodes", "ranks_per_node"} & set(self.resources_from):
                raise BadInput("resources: a program in a sandbox or container has one rank.", value=ranks)
        return self

    def placed(self, what: Literal["templates", "files", "links"]) -> Mapping[str, str]:
        """Name in the run's directory -> path, of one of the three.

        Raises:
            BadInput: Two files would have one name there.
        """
        given = getattr(self, what)
        if isinstance(given, Mapping):
            return {inside(name, what): path for name, path in given.items()}
        placed: dict[str, str] = {}
        for path in given:
            parts = PurePosixPath(path)
            # Beside the file of the app it keeps its folder; from elsewhere only the name is left.
            target = parts.name if parts.is_absolute() or {"..", "~"} & set(parts.parts) else str(parts)
            if placed.setdefault(inside(target, what), path) != path:
                raise BadInput(f"{what}: {placed[target]} and {path} have one name; give name = path.", value=path)
        return placed


def _check_failure(name: str, failing: Failing) -> None:
    if not _FAILURE.match(name):
        raise BadInput(
            f"failures: {name!r} is no name of a failure; letters and digits, a capital first, as NotConverged.",
            value=name,
        )
    known = mode(name)
    if known is not None and failing.kind not in known.kinds:
        raise BadInput(
            f"failures.{name}: a failure of this name is of kind {' or '.join(known.kinds)} everywhere, not "
            f"{failing.kind}; choose another name or kind.",
            value=name,
        )
