"""What a profile says of a Globus Compute endpoint, and what of it cannot be.

These texts go to a machine of which only the endpoint's owner knows how it takes them: into a template that
becomes a job script, and into paths. So they are checked here, before anything is sent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import AfterValidator

from hpcagent.errors import BadInput
from hpcagent.model.base import JSONValue, Record
from hpcagent.model.texts import Line, line, lines, variable
from hpcagent.shown import is_secret

if TYPE_CHECKING:
    from hpcagent.sites.profile import Profile

__all__ = [
    "ENDPOINT_ONLY",
    "ENDPOINT_REQUIRED",
    "EXECUTOR_KEYS",
    "LARGEST_CONFIG",
    "NOT_ON_ENDPOINTS",
    "ControlSettings",
    "Destination",
    "EndpointConfig",
    "EndpointId",
    "RemoteFolder",
    "TransferSettings",
    "destination",
]

KIND = "globus_compute"

ENDPOINT_ONLY = (
    "endpoint_id",
    "work_dir",
    "runs_at_once",
    "amqp_port",
    "at_close",
    "offline_wait_s",
    "user_endpoint_config",
    "control",
    "transfer",
)
"""Keys that only `kind = "globus_compute"` knows."""

ENDPOINT_REQUIRED = {
    "endpoint_id": "the endpoint's UUID, which `globus-compute-endpoint list` shows there",
    "work_dir": "the folder there for the runs, e.g. /scratch/me/hpcagent",
    "runs_at_once": "how many runs of one core go at once there: its workers on a node times its nodes",
}
"""Keys that a profile of that kind needs, and what they are."""

NOT_ON_ENDPOINTS = {
    "env": "write it into worker_init of the endpoint's template, or into [apps.NAME] as env",
    "identify": "an endpoint is another machine, so `auto` does not know it",
}
"""Keys of other profiles that cannot reach an endpoint, and what to do instead."""

EXECUTOR_KEYS = ("mode", "cores_per_worker", "available_accelerators", "user_endpoint_config")
"""Keys of `[executors.NAME]` with a meaning there; the others are the endpoint's own, in its template."""

LARGEST_CONFIG = 64 * 1024
"""Bytes of the JSON of `user_endpoint_config`: it goes with every submission."""
_DEEPEST = 8
_LARGEST_INTEGER = 2**63 - 1  # of TOML
_LONGEST_PATH = 1000
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def _endpoint_id(value: str) -> str:
    if value and not _UUID.match(value.lower()):
        raise BadInput(
            f"{value[:80]!r} is no UUID such as 4b116d3c-1703-4f8f-9f6f-39921e5864df; "
            "`globus-compute-endpoint list` shows an endpoint's, the Globus web app a collection's.",
            value=value[:80],
        )
    return value.lower()


def _remote_folder(value: str) -> str:
    if not value:
        return value
    line(value)
    if not value.startswith(("/", "~/")):
        raise BadInput(
            f"{value[:80]!r} is relative, and nobody knows to what on the endpoint; write /… or ~/… "
            "(your home directory there).",
            value=value[:200],
        )
    parts = value.removeprefix("~").split("/")
    if ".." in parts or not any(part not in ("", ".") for part in parts):
        raise BadInput(
            f"{value[:80]!r} must be a folder of its own, such as /scratch/me/hpcagent, without '..' in it.",
            value=value[:200],
        )
    if len(value) > _LONGEST_PATH:
        raise BadInput(f"a path of {len(value)} characters, where {_LONGEST_PATH} are allowed.")
    return value.rstrip("/")


def _config(value: dict[str, JSONValue]) -> dict[str, JSONValue]:
    for name in value:
        variable(name)  # a template can name nothing else
    _checked(value, "", 1)
    size = len(json.dumps(value).encode())
    if size > LARGEST_CONFIG:
        raise BadInput(
            f"it has {size} bytes as JSON, and it goes with every submission: at most {LARGEST_CONFIG}. Put what "
            "is long (worker_init) into the endpoint's template."
        )
    return value


def _checked(value: JSONValue, where: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise BadInput(f"{where}: tables within tables, more than {_DEEPEST} deep.")
    at = f"{where}: " if where else ""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise BadInput(f"{at}the key {name!r} is no text.", value=repr(name))
            line(name)
            path = f"{where}.{name}" if where else name
            if is_secret(name):
                raise BadInput(
                    f"{path}: a secret has no place here: it would be sent with every task and stand in the "
                    "run's records. Keep it on the endpoint, e.g. in a file that the template's worker_init reads."
                )
            _checked(inner, path, depth + 1)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _checked(inner, f"{where}[{index}]", depth + 1)
    elif isinstance(value, str):
        try:
            lines(value)
        except BadInput as error:
            raise BadInput(f"{at}{error.message}", **error.details) from None
    elif isinstance(value, bool):
        pass
    elif isinstance(value, int):
        if abs(value) > _LARGEST_INTEGER:
            raise BadInput(f"{at}{str(value)[:30]}… is too large a number.")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadInput(f"{at}{value} is no number in JSON.")
    else:
        hint = "leave the key out" if value is None else "write it as a text"
        raise BadInput(
            f"{at}{value!r} ({type(value).__name__}) cannot be sent as JSON; {hint}.", value=repr(value)
        )


EndpointId = Annotated[str, AfterValidator(_endpoint_id)]
"""The UUID of an endpoint or a collection."""
RemoteFolder = Annotated[str, AfterValidator(_remote_folder)]
"""A folder on an endpoint: absolute, or below the home directory there."""
EndpointConfig = Annotated[dict[str, JSONValue], AfterValidator(_config)]
"""Values for an endpoint's template: what JSON has, without secrets, of a size that can go with every task."""


class ControlSettings(Record):
    """Where errands go (put, get, cancel, look), so that they do not wait in a batch system's queue.

    Example:
        >>> ControlSettings(user_endpoint_config={"role": "control"}).endpoint_id
        ''
    """

    endpoint_id: EndpointId = ""
    """Another endpoint, which sees the same file system; not given: the same one."""
    user_endpoint_config: EndpointConfig | None = None
    """Values of its template, in place of the runs'; not given: on the same endpoint, those of the runs."""


class TransferSettings(Record):
    """Two Globus collections, between which large files go.

    Example:
        >>> collection = "4b116d3c-1703-4f8f-9f6f-39921e5864df"
        >>> TransferSettings(here=collection, there=collection, here_path="/data").there_path
        ''
    """

    here: EndpointId
    """The collection that has this machine's files (a Globus Connect Personal has one)."""
    there: EndpointId
    """The collection that has the endpoint's files."""
    here_path: Line = ""
    """The root of `here` as a folder of this machine, for a collection whose paths begin there; not given: `/`."""
    there_path: Line = ""
    """The root of `there` as a folder of the endpoint; not given: `/`."""


class Destination(NamedTuple):
    """Where tasks go.

    Attributes:
        endpoint_id: The endpoint.
        user_endpoint_config: Values for its template; each distinct set of them has processes of its own there.
    """

    endpoint_id: str
    user_endpoint_config: dict[str, Any]


def destination(profile: Profile, label: str, *, control: bool = False) -> Destination:
    """Say where the runs of an executor go, or its errands.

    Args:
        profile: With `kind = "globus_compute"`.
        label: Of one of its executors, whose own `user_endpoint_config` goes before the profile's, key by key. Of
            none (what only fetches has no executor): as for the first.
        control: Errands: what `[control]` says. Its configuration stands alone, for nothing of the runs' (nodes, a
            queue) is wanted for them.

    Example:
        >>> from hpcagent.sites.profile import Profile
        >>> from hpcagent.sites.tables import ExecutorProfile
        >>> mine = Profile(
        ...     name="mine",
        ...     kind="globus_compute",
        ...     endpoint_id="4b116d3c-1703-4f8f-9f6f-39921e5864df",
        ...     work_dir="~/hpcagent",
        ...     runs_at_once=8,
        ...     user_endpoint_config={"account": "m1234"},
        ...     executors={"workers": ExecutorProfile(user_endpoint_config={"queue": "debug"})},
        ...     control=ControlSettings(user_endpoint_config={"role": "control"}),
        ... )
        >>> destination(mine, "workers").user_endpoint_config
        {'account': 'm1234', 'queue': 'debug'}
        >>> destination(mine, "workers", control=True).user_endpoint_config
        {'role': 'control'}
    """
    executor = profile.executors.get(label) or next(iter(profile.executors.values()))
    runs = {**profile.user_endpoint_config, **executor.user_endpoint_config}
    if not control:
        return Destination(profile.endpoint_id, runs)
    to = profile.control.endpoint_id or profile.endpoint_id
    given = profile.control.user_endpoint_config
    if given is None:
        given = runs if to == profile.endpoint_id else {}
    return Destination(to, dict(given))
