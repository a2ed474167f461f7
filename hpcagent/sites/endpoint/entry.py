"""The one function that runs on endpoints: its source is registered with the service, so it stands alone.

It takes a request and gives an answer, both JSON. Whatever goes wrong there comes back as an answer with an
`error` (its type's name, its words, the end of its traceback), never as a pickled exception.
"""

# No `from __future__ import annotations`: it is not part of the function's source, whose annotations are texts.
from typing import Any

__all__ = ["hpcagent_entry"]


def hpcagent_entry(request: "dict[str, Any]") -> "dict[str, Any]":
    """Answer a request of hpcagent's client with the hpcagent that is installed here."""
    import json
    import platform
    import sys
    import traceback
    from importlib import import_module

    def failed(name: str, message: str) -> "dict[str, Any]":
        return {
            "protocol": 1,
            "key": request.get("key") if isinstance(request, dict) else None,
            "host": platform.node(),
            "python": platform.python_version(),
            "hpcagent": getattr(sys.modules.get("hpcagent"), "__version__", None),
            "error": {
                "name": name,
                "kind": "infrastructure",
                "message": message.encode("utf-8", "replace").decode(),
                "log_tail": traceback.format_exc()[-4000:].encode("utf-8", "replace").decode(),
            },
        }

    try:
        answer = import_module("hpcagent.sites.endpoint.there").answer
    except (Exception, SystemExit) as error:
        where = f"Python {platform.python_version()} at {sys.executable} on {platform.node()}"
        message = (
            f"hpcagent cannot be imported where the endpoint's workers run ({where}): {type(error).__name__}: "
            f"{str(error)[:500]}. Install the client's version there (`pip install hpcagent`, Python 3.11 or "
            "later), or load its environment in the endpoint's worker_init."
        )
        return failed("AppNotImportable", message)
    try:
        found: "dict[str, Any]" = answer(request)  # noqa: UP037  (see above)
        json.dumps(found, allow_nan=False)
    except (Exception, SystemExit) as error:
        return failed(type(error).__name__, f"{type(error).__name__}: {str(error)[:4000]}")
    return found
