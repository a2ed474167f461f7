"""The app of a function: a program that takes JSON and answers JSON, in a sandbox.

Numbers that it returns are metrics with units, files are artifacts, and all that it returned stands in the
artifact `value`. Lists and tables among its arguments are texts: JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.executable.contract import executable
from hpcagent.apps.executable.record import Reading, from_json
from hpcagent.apps.sandbox.record import Sandbox, Tier
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.model.base import canonical_json
from hpcagent.model.contract import Resources
from hpcagent.model.parameter import Parameter
from hpcagent.registry.findings import Finding
from hpcagent.registry.runner import FILES, TOOL, VALUE
from hpcagent.registry.signature import Argument, Output, Signature

__all__ = ["RUNNER", "SIZE", "app_of", "as_texts", "check_contract", "parameters_of", "spec_of", "tool_of"]

RUNNER = "runner.py"
"""Name of the script that calls the function, in a run's directory."""
SIZE = "size"
"""The metric of a function that returns no number: items, characters or bytes of what it returned."""
_RUNNER_FILE = Path(__file__).with_name("runner.py")


def parameters_of(signature: Signature) -> dict[str, Parameter]:
    """The parameters of a function's app.

    Raises:
        BadInput: A choice is no plain word, or another value makes no sense.
    """
    return {one.name: _parameter(one) for one in signature.arguments}


def _parameter(one: Argument) -> Parameter:
    description = one.description
    if one.kind == "data":
        description = f"JSON. {description}"
    elif one.kind == "file":
        description = f"A file: artifact:RUN/PATH. {description}"
    data: dict[str, Any] = {"name": one.name, "description": description, "default": one.default}
    if one.kind in ("float", "int"):
        data |= {"kind": one.kind, "low": one.low, "high": one.high, "unit": one.unit}
    elif one.kind == "bool":
        data |= {"kind": "choice", "choices": (False, True)}
    elif one.kind == "choice":
        data |= {"kind": "choice", "choices": one.choices}
    else:
        data |= {"kind": "text"}
    return Parameter(**data)


def _readings(outputs: tuple[Output, ...]) -> dict[str, Reading]:
    found = {}
    for one in outputs:
        if one.kind == "number":
            found[one.name] = from_json("stdout", (one.name,), unit=one.unit, description=one.description)
    if not found:
        about = "items, characters or bytes of what it returned, which is in the artifact `value`"
        found[SIZE] = from_json("stdout", (SIZE,), unit="1", description=about)
    return found


def spec_of(signature: Signature) -> dict[str, Any]:
    """What the script that calls the function must know of it."""
    return {
        "data": [one.name for one in signature.arguments if one.kind == "data"],
        "files": [one.name for one in signature.arguments if one.kind == "file"],
        "outputs": {one.name: one.kind for one in signature.outputs},
        "numbers": list(_readings(signature.outputs)),
        "table": signature.table,
    }


def app_of(
    signature: Signature, file: Path, *, sha256: str, version: str, sandbox: Tier | Sandbox = "bubblewrap"
) -> App:
    """The app of a function.

    Args:
        signature: What it takes and gives.
        file: The text, which stays as it is: each run gets a copy and compares its digest.
        sha256: Digest of the text.
        version: Semantic version.
        sandbox: The tier that every run needs at least.

    Raises:
        BadInput: A name or value makes no sense in a contract.
    """
    spec = canonical_json(spec_of(signature))
    words = (RUNNER, signature.name, sha256, spec.replace("{", "{{").replace("}", "}}"))
    files = [one.name for one in signature.outputs if one.kind == "file"]
    return executable(
        [sys.executable, "-I", *words],
        parameters=parameters_of(signature),
        metrics=_readings(signature.outputs),
        name=signature.name,
        version=version,
        description=_description(signature),
        files={RUNNER: _RUNNER_FILE, TOOL: file},
        stdin="json",
        stdout="json",
        artifacts={"value": VALUE} | {name: f"{FILES}/{name}.*" for name in files},
        reads=spec_of(signature)["files"],
        resources=Resources(walltime_s=signature.limit_s),
        sandbox=sandbox if isinstance(sandbox, Sandbox) else Sandbox(require=sandbox),
    )


def tool_of(app: App) -> tuple[str, str, str] | None:
    """Name, version and digest of the registered tool that an app is; None: it is none."""
    words: tuple[str, ...] = tuple(app.settings.get("command") or ())
    if len(words) < 5 or words[2] != RUNNER or words[3] != app.name:
        return None
    return app.name, app.contract.version, str(words[4])


def _description(signature: Signature) -> str:
    summary = signature.summary if signature.summary.endswith((".", "!", "?")) else f"{signature.summary}."
    values = [f"{one.name} ({one.description.rstrip('.')})" for one in signature.outputs if one.kind == "value"]
    if signature.table and values:
        summary += f" In the artifact value: {'; '.join(values)}."
    return summary


def check_contract(signature: Signature) -> list[Finding]:
    """What of a signature does not go into a contract."""
    found: list[Finding] = []
    for one in signature.arguments:
        try:
            _parameter(one)
        except HpcAgentError as error:
            found.append(Finding(rule="contract", says=error.message, tool=signature.name))
    if not signature.outputs or found:
        return found
    try:
        # The program itself stands in for the text, which is not kept yet.
        app_of(signature, _RUNNER_FILE, sha256="0" * 64, version="1.0.0")
    except HpcAgentError as error:
        found.append(Finding(rule="contract", says=error.message, tool=signature.name))
    return found


def as_texts(app: App, params: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as the app takes them: lists and tables as JSON.

    Raises:
        BadInput: A list or table has something that is no plain data.
    """
    found = dict(params)
    for name, value in params.items():
        known = name in app.contract.space and app.contract.space[name].kind == "text"
        if known and isinstance(value, list | tuple | dict):
            try:
                found[name] = json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise BadInput(f"{name} is no plain data with finite numbers: {error}.", value=name) from None
    return found
