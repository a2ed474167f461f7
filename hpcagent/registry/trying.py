"""Tries a tool: runs its tests, or calls it with valid values; in the sandbox, beside `runner.py`.

    python -I trying.py FUNCTION SHA256 SPEC < plan.json

The plan is `{"tests": [names], "examples": bool, "calls": [arguments, ...]}`. `trial.json` has what came of it.
"""

from __future__ import annotations

import doctest
import importlib
import io
import json
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

TRIAL = "trial.json"


def said(error: BaseException) -> str:
    """The last lines of what went wrong."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return "".join(lines)[-1500:]


def test(module: ModuleType, name: str) -> dict[str, Any]:
    """One function `test_*`."""
    try:
        getattr(module, name)()
    except BaseException as error:
        return {"name": name, "passed": False, "said": said(error)}
    return {"name": name, "passed": True, "said": ""}


def examples(module: ModuleType, function: str) -> dict[str, Any]:
    """The examples of a docstring."""
    found = doctest.DocTestFinder(recurse=False).find(
        getattr(module, function), function, globs=dict(vars(module))
    )
    out = io.StringIO()
    failed = tried = 0
    for one in found:
        done = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(one, out=out.write, clear_globs=False)
        failed, tried = failed + done.failed, tried + done.attempted
    name = "examples of the docstring (" + str(tried) + ")"
    return {"name": name, "passed": failed == 0 and tried > 0, "said": out.getvalue()[-1500:]}


def call(
    runner: Any, function: Any, arguments: dict[str, Any], spec: dict[str, Any], number: int
) -> dict[str, Any]:
    """One call with valid values, twice: what was promised comes, and the same both times."""
    name = "call " + str(number) + ": " + json.dumps(arguments)[:200]
    try:
        first = runner.result(function(**runner.given(arguments, spec)), function.__name__, spec)
        again = runner.result(function(**runner.given(arguments, spec)), function.__name__, spec)
    except BaseException as error:
        return {"name": name, "passed": False, "said": said(error)}
    infinite = [one for one, value in first.items() if value != value or abs(value) == float("inf")]
    if infinite:
        return {"name": name, "passed": False, "said": ", ".join(infinite) + " is not finite"}
    differ = [one for one, value in first.items() if abs(value - again[one]) > 1e-9 * abs(value)]
    if differ:
        values = ", ".join(one + " " + repr(first[one]) + " and " + repr(again[one]) for one in differ)
        return {"name": name, "passed": False, "said": "the same arguments gave two results: " + values}
    return {"name": name, "passed": True, "said": json.dumps(first)[:300]}


def main() -> None:
    """Try it, and write down what came of it."""
    function, sha256, spec = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path.cwd()))  # -I leaves it out, and runner.py lies here
    runner: Any = importlib.import_module("runner")
    plan = json.load(sys.stdin)
    cases = []
    with redirect_stdout(sys.stderr):
        try:
            module = runner.loaded(sha256)
            named = getattr(module, function)
            if not isinstance(getattr(named, "__wrapped__", named), FunctionType):
                raise runner.Refused(function + " is no function when the text is loaded")
        except BaseException as error:
            cases.append({"name": "loading the text", "passed": False, "said": said(error)})
        else:
            cases += [test(module, name) for name in plan["tests"]]
            cases += [examples(module, function)] if plan["examples"] else []
            cases += [call(runner, named, one, spec, i + 1) for i, one in enumerate(plan["calls"])]
    Path(TRIAL).write_text(json.dumps(cases))


if __name__ == "__main__":
    main()
