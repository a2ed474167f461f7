"""What the endpoint's workers do: `answer` takes a request and gives an answer, both JSON, whatever happens.

Works in a worker process of any engine, and in any thread of it. Never raises.
"""

from __future__ import annotations

import platform
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hpcagent
from hpcagent.apps.calling import os_name
from hpcagent.apps.finished import read_result
from hpcagent.errors import AppFailed, BadInput
from hpcagent.lifeline import node_name
from hpcagent.sites.endpoint import files_there, running_there
from hpcagent.sites.endpoint.control import Control, campaign_root
from hpcagent.sites.endpoint.probing import LIMIT_S
from hpcagent.sites.endpoint.protocol import PROTOCOL, OtherProtocol, checked

__all__ = ["answer"]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request of a client.

    Args:
        request: As the functions of `protocol` make it; looked through before anything is done.

    Returns:
        Plain data: what the operation gives, or `error` (`name`, `kind`, `message`, `log_tail`).

    Example:
        >>> answer({"protocol": 0})["error"]["name"]
        'OtherProtocol'
    """
    told: dict[str, Any] = {
        "protocol": PROTOCOL,
        "key": _key(request),
        "host": node_name(),
        "python": platform.python_version(),
        "hpcagent": hpcagent.__version__,
    }
    try:
        checked(request)
        root = campaign_root(request["root"])
        return told | _DOES[request["op"]](request, root)
    except OtherProtocol as error:
        return told | _failed(error.message, kind="infrastructure", name="OtherProtocol")
    except BadInput as error:
        return told | _failed(error.message, kind="contract", name="BadRequest")
    except AppFailed as error:
        details = error.details
        return told | _failed(
            error.message, kind=details["kind"], name=details["name"], log_tail=details["log_tail"]
        )
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return told | _failed(f"{place}{error.strerror or error}.", kind="infrastructure", name=os_name(error))
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"[:2000]
        return told | _failed(said, kind="infrastructure", name="EndpointFailed", log_tail=traceback.format_exc())


def _key(request: Any) -> str:
    key = request.get("key") if isinstance(request, Mapping) else None
    return key[:64] if isinstance(key, str) else ""


def _failed(message: str, *, kind: str, name: str, log_tail: str = "") -> dict[str, Any]:
    return {"error": {"name": name, "kind": kind, "message": message, "log_tail": log_tail[-4000:]}}


def _cancel(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    control = Control(root).made()
    now = control.now()
    return {"states": {key: control.task(key).cancel(now) for key in request["keys"]}}


def _look(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    control = Control(root).made()
    now = control.now()
    states = {key: control.task(key).stands(now) for key in request.get("keys", ())}
    return {"states": states, "executions": {e: _run_stands(root, e) for e in request.get("executions", ())}}


def _probe(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    Control(root).made()
    return running_there.in_child({"do": "probe", "site": request.get("site") or {}}, root, limit_s=LIMIT_S)


def _run_stands(root: Path, execution: str) -> str:
    workdir = root / "work" / execution
    if read_result(workdir) is not None:
        return "finished"
    return "begun" if workdir.is_dir() else "unknown"


_DOES: dict[str, Callable[[Mapping[str, Any], Path], dict[str, Any]]] = {
    "run": running_there.run,
    "put": files_there.put,
    "get": files_there.get,
    "list": files_there.list_files,
    "cancel": _cancel,
    "look": _look,
    "probe": _probe,
    "remove": files_there.remove,
}
