"""A first profile of an endpoint, from a few answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.sites.endpoint_settings import ENDPOINT_REQUIRED, KIND
from hpcagent.sites.endpoint_templates import templates
from hpcagent.sites.new_profile import target
from hpcagent.sites.profiles import find_profile

__all__ = ["EndpointAnswers", "write_endpoint_profile"]


class EndpointAnswers(NamedTuple):
    """What a profile of an endpoint is written from.

    Attributes:
        name: Of the site, and of its file.
        endpoint_id: The endpoint's UUID.
        work_dir: The folder there for runs.
        runs_at_once: Runs of one core at once there.
        template: The packaged template that the endpoint has; None: another one, whose values are not known here.
        config: Values for it.
        lammps: The command that starts LAMMPS there; None: it is looked for there.
    """

    name: str
    endpoint_id: str
    work_dir: str
    runs_at_once: int | None
    template: str | None = None
    config: tuple[tuple[str, Any], ...] = ()
    lammps: str | None = None


def write_endpoint_profile(answers: EndpointAnswers, *, folder: Path) -> Path:
    """Write a profile of an endpoint and read it back.

    Args:
        answers: What goes into it.
        folder: Where it goes, as NAME.toml.

    Raises:
        BadInput: A value is missing or wrong, or the file is there already; nothing is left.
    """
    options = {"endpoint_id": "--endpoint-id", "work_dir": "--work-dir", "runs_at_once": "--runs-at-once"}
    for key, option in options.items():
        if not getattr(answers, key):
            raise BadInput(f"{option} is missing: {ENDPOINT_REQUIRED[key]}.")
    if answers.template is not None and answers.template not in templates():
        known = ", ".join(templates())
        raise BadInput(f"--template {answers.template!r} is not known; known: {known}.", value=answers.template)
    path = target(answers.name, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(_toml(answers))
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}; name another folder with --to.") from None
    try:
        find_profile(str(path) if "/" in str(path) else f"./{path}")
    except HpcAgentError:
        path.unlink()
        raise
    return path


def _toml(answers: EndpointAnswers) -> str:
    ours = answers.template is not None
    lines = [
        f"# {answers.name}: written by `hpcagent site new`; every key is in the docs, reference/site_profile.",
        f"# Check it with `hpcagent doctor --site {answers.name}`.",
        _line("description", f"{answers.name}, a Globus Compute endpoint"),
        _line("kind", KIND),
        _line("endpoint_id", answers.endpoint_id),
        _line("work_dir", answers.work_dir) + "  # on the endpoint",
        _line("runs_at_once", answers.runs_at_once) + "  # workers of a node times nodes",
        'at_close = "cancel"  # Ctrl-C ends what runs there; "leave" lets it end by itself',
        "offline_wait_s = 3600  # how long a campaign waits for the endpoint when it is offline",
        "",
        "[user_endpoint_config]  # values of the endpoint's template",
        *(_line(key, value) for key, value in answers.config),
    ]
    if ours:
        lines += ["", "[control.user_endpoint_config]  # errands do not wait for the runs", 'role = "control"']
        lines += ["", "[executors.workers]  # runs of one rank"]
        lines += [
            "",
            "[executors.mpi]  # runs of several ranks",
            'mode = "mpi"',
            'user_endpoint_config.role = "mpi"',
        ]
    else:
        lines += ["", '[executors.workers]  # runs of one rank; one with mode = "mpi" needs a GlobusMPIEngine']
    if answers.lammps:
        lines += ["", "[apps.lammps]", _line("command", shlex.split(answers.lammps))]
    else:
        lines += ["", "# [apps.lammps]", '# command = ["lmp"]  # there']
    return "\n".join([*lines, ""])


def _line(key: str, value: Any) -> str:
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"  # TOML's basic strings are JSON's
