"""Calls an app's function in its sandbox: what the process there runs.

    python -P -s inside.py CALL.json ANSWER.json

It gets parameters, inputs and seed as JSON, and writes what the function gives, or what it raised, as JSON. What
reads the answer (`hpcagent.apps.sandbox.function`) does not trust it. At the top it imports the standard library
only: where hpcagent is the call says.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any


def main(call: Path, answer: Path) -> int:
    """Call the function, and say what it gave."""
    asked = json.loads(call.read_bytes())
    # The modules that the worker would find, in its order.
    sys.path[:] = asked["path"]
    from hpcagent.apps.as_found import flush_streams
    from hpcagent.apps.calling import as_failure
    from hpcagent.apps.run import noted, noting

    with noting():
        try:
            said = {"outcome": _outcome(asked)}
        except BaseException as error:
            traceback.print_exc()
            said = as_failure(error)
        part = answer.with_suffix(".part")
        part.write_text(json.dumps({**said, "noted": noted()}))
        part.rename(answer)
    flush_streams()
    return 0


def _outcome(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the function gives, as plain data."""
    from hpcagent.apps.calling import called, of_numbers
    from hpcagent.apps.printed import reading
    from hpcagent.apps.run import Run
    from hpcagent.beside import as_told

    as_told(asked["modules"])
    work = Path.cwd()
    given = {**asked["run"], "upstream": tuple(asked["run"]["upstream"])}
    run = Run(**given, workdir=work)
    params = {**asked["params"], **{name: work / file for name, file in asked["files"].items()}}
    with reading(run.site):
        outcome = of_numbers(called(_function(asked["function"]), params, run, asked["promises"], lasts=False))
    plain = asdict(outcome)
    plain["artifacts"] = {name: _within(work, file) for name, file in plain["artifacts"].items()}
    return plain


def _function(reference: Mapping[str, str]) -> Callable[..., Any]:
    from hpcagent.apps.calling import function_of

    if "name" in reference:
        return function_of(reference["name"])
    # Packed by the worker; here nothing else has had a hand in it yet.
    return function_of(pickle.loads(base64.b64decode(reference["packed"])))


def _within(work: Path, file: str) -> str:
    """The name of a file as it lies in the working directory."""
    return os.path.relpath(work / file, work)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
