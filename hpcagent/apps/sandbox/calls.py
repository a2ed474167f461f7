"""Runs a command, or a Python function that came as text, in a sandbox and takes out what was declared."""

from __future__ import annotations

import ast
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.ending import Limit, finish
from hpcagent.apps.launch import Launch
from hpcagent.apps.printed import read_tail
from hpcagent.apps.sandbox.confined import confined
from hpcagent.apps.sandbox.outputs import Left, taken_out
from hpcagent.apps.sandbox.record import Sandbox, Tier
from hpcagent.errors import AppFailed, BadInput
from hpcagent.redacted import clean_environment, redacted

__all__ = ["Boxed", "call_text", "refuse_of_sandbox", "run_boxed"]

_ANSWER = "hpcagent-answer.json"
_CODE = "hpcagent-code.py"
_ASKED = "hpcagent-asked.json"
_LARGEST_ANSWER = 16_000_000
_CALLING = """
import json, sys
code, asked, answer = sys.argv[1:]
with open(asked) as file:
    asked = json.load(file)
space = {"__name__": "sandboxed"}
with open(code, encoding="utf-8") as file:
    exec(compile(file.read(), asked["file"], "exec"), space)
value = space[asked["function"]](**asked["arguments"])
with open(answer, "w") as file:
    json.dump({"value": value}, file)
"""


@dataclass(frozen=True, slots=True)
class Boxed:
    """How a program in a sandbox has ended.

    Attributes:
        tier: The tier it ran in.
        returncode: Its exit code; above 128 for a signal.
        stdout: What it printed, without secrets; its last part where that is much.
        stderr: Likewise.
        left: Which of its files were taken, and which not.
        wall_s: In seconds.
        cpu_s: In seconds, of all its processes that have been waited for.
        value: Of a Python function: what it returned.
    """

    tier: Tier
    returncode: int
    stdout: str
    stderr: str
    left: Left
    wall_s: float
    cpu_s: float
    value: Any = None


def refuse_of_sandbox(code: int, stderr: str) -> None:
    """Refuse the end of a program that the sandbox has not started.

    Raises:
        AppFailed: `SandboxFailed`.
    """
    if code == 1 and stderr.lstrip().startswith("bwrap: "):
        raise AppFailed(
            f"the sandbox could not be set up: {stderr.strip().splitlines()[0][:300]}",
            kind="infrastructure",
            name="SandboxFailed",
            repair="look whether the paths under read of [sandbox] are there where the run is",
        )


def run_boxed(
    words: Sequence[str],
    *,
    folder: str | Path,
    sandbox: Sandbox | None = None,
    files: Mapping[str, str | bytes] | None = None,
    outputs: Sequence[str] = (),
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    read: Sequence[str] = (),
    timeout_s: float = 3600.0,
) -> Boxed:
    """Run a command in a sandbox; only declared outputs leave it.

    Args:
        words: The program and its arguments; no shell takes part.
        folder: Takes the outputs, and what is printed (`output.txt`, `errors.txt`); it is there.
        sandbox: What it needs and may use; by default bubblewrap, without network.
        files: Files that it finds in its directory: name -> content.
        outputs: Names or patterns of files that may leave, relative to its directory.
        stdin: What it reads as standard input.
        env: Variables that it is given beside the usual ones.
        read: Files and folders that it may read beside those of `sandbox`.
        timeout_s: Wall time, in seconds.

    Returns:
        Exit code, what it printed, what was taken out and what not. A program that failed has an exit code.

    Raises:
        AppFailed: `NoSandbox`: the tier that is required is not here; `SandboxLimit`; `SandboxFailed`;
            `SandboxLost`; `OutputsTooLarge`; `Walltime`.

    Example:
        >>> import tempfile
        >>> done = run_boxed(["echo", "hello"], folder=tempfile.mkdtemp(), sandbox=Sandbox(require="limits"))
        >>> done.returncode, done.stdout
        (0, 'hello\\n')
    """
    asked, target = sandbox or Sandbox(), Path(folder).absolute()
    given, environ = dict(files or {}), dict(env or {})
    box = confined(target / f"sandbox-{time.time_ns():x}", asked)
    try:
        for name, content in given.items():
            path = box.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        source = None
        if stdin is not None:
            source = box.folder / "stdin"
            source.write_text(stdin)
        launch = Launch(box.words(words, env=environ, read=read), clean_environment(allow=asked.pass_env))
        output, errors = target / "output.txt", target / "errors.txt"
        limit = Limit(timeout_s, "walltime")
        finished = finish(launch, cwd=box.work, output=output, errors=errors, given=source, limit=limit)
        said, complained = (redacted(read_tail(path, 1_000_000)) for path in (output, errors))
        tail = "\n".join([*said.splitlines()[-20:], *complained.splitlines()[-20:]])
        if finished.stopped is not None:
            raise finished.stopped.failure(wall_s=finished.wall_s, log_tail=tail)
        report = box.ended(log_tail=tail)
        refuse_of_sandbox(report["code"], complained)
        left = taken_out(box.work, target, tuple(outputs), given=given, most_bytes=int(1e6 * asked.output_mb))
        code = report["code"] if report["code"] >= 0 else 128 - report["code"]
        return Boxed(box.tier, code, said, complained, left, finished.wall_s, float(report["cpu_s"]))
    finally:
        box.remove()


def call_text(
    code: str,
    function: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    folder: str | Path,
    sandbox: Sandbox | None = None,
    files: Mapping[str, str | bytes] | None = None,
    outputs: Sequence[str] = (),
    timeout_s: float = 600.0,
) -> Boxed:
    """Call a Python function of a text in a sandboxed process; this process only parses the text.

    Args:
        code: Python source. Its top-level code, too, runs in the sandbox only.
        function: Name of a function that it defines at the top.
        arguments: Arguments by name, plain data (JSON).
        folder: Takes the outputs; it is there.
        sandbox: What it needs and may use; by default bubblewrap, without network.
        files: Files that it finds in its directory.
        outputs: Names or patterns of files that may leave.
        timeout_s: Wall time, in seconds.

    Returns:
        As `run_boxed`, with what the function returned in `value`: plain data with finite numbers.

    Raises:
        BadInput: The text is no Python, defines no such function, or an argument is no plain data.
        AppFailed: `FunctionFailed`: it raised, with its last line; `BadOutput`: what it returned is no plain data;
            and what `run_boxed` raises.

    Example:
        >>> import tempfile
        >>> done = call_text(
        ...     "def double(x): return 2 * x", "double", {"x": 4}, folder=tempfile.mkdtemp(),
        ...     sandbox=Sandbox(require="limits"),
        ... )
        >>> done.value
        8
    """
    _check_code(code, function)
    try:
        asked = json.dumps(
            {"file": "<the code>", "function": function, "arguments": dict(arguments or {})}, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise BadInput(f"the arguments of {function} are no plain data with finite numbers: {error}.") from None
    target = Path(folder).absolute()
    own = {_CODE: code, _ASKED: asked, "hpcagent-call.py": _CALLING}
    done = run_boxed(
        [sys.executable, "-I", "hpcagent-call.py", _CODE, _ASKED, _ANSWER],
        folder=target,
        sandbox=sandbox,
        files={**(files or {}), **own},
        outputs=(*outputs, _ANSWER),
        timeout_s=timeout_s,
    )
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    answer = target / _ANSWER
    if done.returncode != 0:
        answer.unlink(missing_ok=True)
        raise AppFailed(
            f"{function} failed in the sandbox: {last[:300]}",
            kind="contract",
            name="FunctionFailed",
            log_tail=done.stderr[-4000:],
        )
    value = _value(answer, function, done.left)
    return Boxed(**{**{name: getattr(done, name) for name in Boxed.__slots__}, "value": value})


def _check_code(code: str, function: str) -> None:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"the code is no Python: {error}.") from None
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if function not in defined:
        raise BadInput(
            f"the code defines no function {function!r} at its top; it defines {', '.join(defined) or 'none'}.",
            value=function,
        )


def _value(answer: Path, function: str, left: Left) -> Any:
    """What the function returned, of a file that it could have written itself."""
    if _ANSWER not in left.taken:
        raise AppFailed(
            f"{function} ended without an answer{': ' + left.said() if left.refused else ''}.",
            kind="contract",
            name="BadOutput",
        )
    try:
        if answer.stat().st_size > _LARGEST_ANSWER:
            raise AppFailed(
                f"{function} returned {answer.stat().st_size / 1e6:.4g} MB; at most {_LARGEST_ANSWER / 1e6:g} MB "
                "are taken: let it write a file, and declare it.",
                kind="contract",
                name="BadOutput",
            )
        data = json.loads(answer.read_bytes(), parse_constant=_not_finite)
        if not isinstance(data, dict) or set(data) != {"value"}:
            raise ValueError("it has no value")
        _refuse_infinite(data["value"])
        return data["value"]
    except (ValueError, RecursionError) as error:
        raise AppFailed(
            f"what {function} returned is no plain data with finite numbers: {error}.",
            kind="contract",
            name="BadOutput",
        ) from None
    finally:
        answer.unlink(missing_ok=True)


def _not_finite(word: str) -> float:
    raise ValueError(f"{word} is no finite number")


def _refuse_infinite(value: Any) -> None:
    """1e999 is written with digits, and infinite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _refuse_infinite(part)
