"""Calls the function of a tool's file, in the sandbox, where this is a file of its own: standard library only.

    python -I runner.py FUNCTION SHA256 SPEC < arguments.json

SPEC is JSON: `data` and `files` (names of arguments), `outputs` (name -> number, file or value), `table`. What the
function prints goes to stderr. The answer is the one line of stdout; `value.json` has all that it returned.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import traceback
import types
from pathlib import Path
from typing import Any

TOOL = "tool.py"
VALUE = "value.json"
FILES = "outputs"


class Refused(Exception):
    """What it returned, or was given, is not what its contract says."""


def loaded(sha256: str) -> types.ModuleType:
    """The module of the tool's file, if that is the text that was approved."""
    text = Path(TOOL).read_bytes()
    found = hashlib.sha256(text).hexdigest()
    if found != sha256:
        raise Refused("the text of the tool is another one than was approved (SHA-256 " + found[:12] + "...)")
    module = types.ModuleType("tool")
    module.__file__ = TOOL
    sys.modules["tool"] = module  # dataclasses look their module up
    exec(compile(text, TOOL, "exec", dont_inherit=True), module.__dict__)
    return module


def given(asked: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the function takes them."""
    found = dict(asked)
    for name in spec["data"]:
        if isinstance(found.get(name), str):
            try:
                found[name] = json.loads(found[name])
            except ValueError as error:
                raise Refused(name + " is no JSON: " + str(error)) from None
    for name in spec["files"]:
        if name in found:
            found[name] = Path(found[name])
            if not found[name].is_file():
                raise Refused(name + ": there is no such file in the sandbox")
    return found


def plain(value: Any) -> Any:
    """What was returned, as JSON has it; files by their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if hasattr(value, "tolist"):  # an array or a number of numpy
        return plain(value.tolist())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Refused(
        "a " + type(value).__name__ + " is no plain data: return numbers, texts, lists, tables and paths"
    )


def kept(name: str, value: object) -> int:
    """Put a file that was returned where files leave the sandbox; its size in bytes."""
    if not isinstance(value, str):
        raise Refused(name + " is no path of a file")
    path = Path(value)
    here = Path.cwd().resolve()
    if path.is_symlink() or not path.is_file() or not path.resolve().is_relative_to(here):
        raise Refused(name + ": " + value[:200] + " is no file of the tool's own folder")
    Path(FILES).mkdir(exist_ok=True)
    size = path.stat().st_size
    shutil.move(path, Path(FILES) / (name + (path.suffix or ".dat")))
    return size


def result(value: object, function: str, spec: dict[str, Any]) -> dict[str, float]:
    """The numbers of what was returned, by name; files and the whole value are written."""
    whole = plain(value)
    if spec["table"] and not isinstance(whole, dict):
        raise Refused("a table was promised, and a " + type(value).__name__ + " was returned")
    by_name: dict[str, Any] = whole if spec["table"] else {function: whole}
    numbers: dict[str, float] = {}
    size = 0
    for name, kind in spec["outputs"].items():
        unnamed = spec["table"] and list(spec["outputs"]) == [function] and kind == "value"
        if name not in by_name and not unnamed:
            raise Refused(name + " was promised, and is not among what was returned: " + ", ".join(by_name))
        one = by_name.get(name, whole)  # of a table of which no key is known all of it is the value
        if kind == "number":
            if not isinstance(one, (int, float)):
                raise Refused(name + " is no number: " + repr(one)[:100])
            numbers[name] = float(one)
        elif kind == "file":
            size += kept(name, one)
        else:
            size += len(one) if isinstance(one, (str, list, dict)) else 1
    if "size" in spec["numbers"]:
        numbers["size"] = size
    Path(VALUE).write_text(json.dumps(whole, indent=1) + "\n")
    return numbers


def main() -> None:
    """Call it once, and answer."""
    function, sha256, spec = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    sys.dont_write_bytecode = True
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the tool prints is no answer
    try:
        arguments = given(json.load(sys.stdin), spec)
        found = getattr(loaded(sha256), function)(**arguments)
        answer = {"status": "success", "result": result(found, function, spec)}
    except BaseException as error:  # also SystemExit: a tool that ends itself has no result
        traceback.print_exc()
        said = str(error) if isinstance(error, Refused) else type(error).__name__ + ": " + str(error)
        answer = {"status": "error", "message": said[:1000]}
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
