"""Apps that run what a model has written: lines of a shell, Python. Off unless `workspace.toml` lets them run.

They are programs as registered tools are: in a sandbox, each call a run behind the gate, never in this process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.executable.contract import executable
from hpcagent.apps.executable.record import from_json
from hpcagent.apps.sandbox.record import Sandbox, Tier
from hpcagent.errors import BadInput
from hpcagent.gate.rules import Rules
from hpcagent.model.contract import Resources
from hpcagent.model.parameter import LONGEST_TEXT, Parameter
from hpcagent.registry.script import MADE, VALUES

__all__ = ["LINES", "SCRIPTS", "Script", "as_lines", "script_app", "scripts_on"]

LINES = "lines"
"""The parameter that has the script."""
WALLTIME_S = 600.0
VERSION = "1.0.0"
_FILE = Path(__file__).with_name("script.py")


@dataclass(frozen=True, slots=True)
class Script:
    """One of these apps.

    Attributes:
        name: Of the app.
        rule: Its key in `base_agents` of `workspace.toml`.
        description: For a person and a model.
        metric: The number that a run gives.
        about: What that number is.
    """

    name: str
    rule: str
    description: str
    metric: str
    about: str


SCRIPTS: Mapping[str, Script] = {
    one.name: one
    for one in (
        Script(
            "shell_command",
            "shell",
            "Run lines of a POSIX shell in a sandbox, and say what they printed. Files that they write are "
            f"artifacts below {MADE}/; $FILE is the file that was given.",
            "exit_code",
            "exit code of the last line; above 128 for a signal",
        ),
        Script(
            "python_code",
            "compute",
            "Run Python in a sandbox. The number that it leaves in `result` is the metric; files that it writes "
            f"are artifacts below {MADE}/; FILE is the path of the file that was given, or empty.",
            "result",
            "the number that the script has left in `result`, in whatever unit it computes",
        ),
    )
}


def scripts_on(rules: Rules) -> dict[str, Tier]:
    """Which of these apps a workspace lets run, and in which sandbox.

    Example:
        >>> scripts_on(Rules(base_agents={"compute": "bubblewrap"}))
        {'python_code': 'bubblewrap'}
    """
    tiers = {one.name: getattr(rules.base_agents, one.rule) for one in SCRIPTS.values()}
    return {name: tier for name, tier in tiers.items() if tier != "off"}


def script_app(name: str, rules: Rules) -> App:
    """One of these apps, as the rules of a workspace have it.

    Raises:
        BadInput: It is off.
    """
    one, tier = SCRIPTS[name], scripts_on(rules).get(name)
    if tier is None:
        raise BadInput(
            f"{name} is off here: it runs what a model has written. "
            f'`base_agents = {{ {one.rule} = "bubblewrap" }}` in '
            "workspace.toml lets it run in that sandbox.",
            value=name,
        )
    kind = "shell" if one.rule == "shell" else "python"
    sandbox = Sandbox(
        require=tier, memory_mb=2000, cpu_s=600, processes=64, file_mb=200, disk_mb=500, output_mb=200
    )
    return executable(
        [sys.executable, "-I", _FILE.name, kind],
        parameters={
            LINES: Parameter(
                name=LINES, kind="text", description="The script: a text, or a JSON list of its lines."
            ),
            "file": Parameter(
                name="file", kind="text", default="", description="A file that it may read: artifact:RUN/PATH."
            ),
        },
        metrics={one.metric: from_json(VALUES, (one.metric,), unit="1", description=one.about)},
        name=name,
        version=VERSION,
        description=one.description,
        files={_FILE.name: _FILE},
        stdin="json",
        artifacts={"made": f"{MADE}/*"},
        reads=("file",),
        resources=Resources(walltime_s=WALLTIME_S),
        sandbox=sandbox,
    )


def as_lines(app: App, params: Mapping[str, Any]) -> dict[str, Any]:
    r"""Parameters as the app takes them: a script of several lines is a JSON list.

    Raises:
        BadInput: It is too long.

    Example:
        >>> rules = Rules(base_agents={"shell": "limits"})
        >>> as_lines(script_app("shell_command", rules), {"lines": "cd /tmp\nls"})
        {'lines': '["cd /tmp", "ls"]'}
    """
    given = params.get(LINES)
    if app.name not in SCRIPTS or not isinstance(given, str) or given.isprintable():
        return dict(params)
    text = json.dumps(given.splitlines())
    if len(text) > LONGEST_TEXT:
        raise BadInput(
            f"the script has {len(text)} characters as JSON; at most {LONGEST_TEXT} are taken: register a tool, "
            "or take several steps."
        )
    return {**params, LINES: text}
