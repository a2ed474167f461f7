"""A server on loopback that speaks as OpenAI-compatible ones do, and says what a test has written down."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Says = Callable[[dict[str, Any]], Any]
"""Of the request: a text, or (tool, arguments), or a list of those."""


class OpenAiLike:
    """The server; `requests` has what came: headers and body."""

    def __init__(self, says: Says, *, status: int = 200) -> None:
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        turn = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with turn:
                    server.requests.append(({name.lower(): said for name, said in self.headers.items()}, body))
                    said = says(body)
                data = said if isinstance(said, bytes) else json.dumps(_completion(said)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    def __enter__(self) -> OpenAiLike:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"


def _completion(said: Any) -> dict[str, Any]:
    calls = [] if isinstance(said, str) else said if isinstance(said, list) else [said]
    tool_calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": said if isinstance(said, str) else None}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls" if calls else "stop",
                "message": message | ({"tool_calls": tool_calls} if calls else {}),
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


def tools_in(body: dict[str, Any]) -> list[str]:
    """Names of the tools that a request offers."""
    return [one["function"]["name"] for one in body.get("tools", ())]


def last_data(body: dict[str, Any]) -> dict[str, Any]:
    """The data of the newest tool's answer in a request."""
    said = next(one for one in reversed(body["messages"]) if one["role"] == "tool")
    found: dict[str, Any] = json.loads(said["content"].splitlines()[2])
    return found
