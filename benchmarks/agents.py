"""What a supervisor adds to a direct call: time and tokens, with a model on loopback that answers at once.

python benchmarks/agents.py [--asks 20]

The model is a script: what a real one takes to answer comes on top. Tokens are what is sent and received, in
characters over four.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hpcagent as ha

RULES = 'name = "group"\ndefault_site = "threads"\n'


def says(body: dict[str, Any], x: float) -> Any:
    """What the script says: the supervisor delegates once, the specialist runs once and waits."""
    tools = [one["function"]["name"] for one in body["tools"]]
    answers = [one for one in body["messages"] if one["role"] == "tool"]
    if "delegate" in tools:
        return (
            ("delegate", {"agent": "runner", "task": "run it"})
            if body["messages"][-1]["role"] != "tool"
            else "done"
        )
    if not answers:
        return "run_job", {"kind": "synthetic", "params": {"timestep": x, "skin": 2.0}}
    if len(answers) == 1:
        return "wait_for", {"id": json.loads(answers[0]["content"].splitlines()[2])["run_id"]}
    return "done"


class Model:
    """An OpenAI-compatible server; counts characters both ways."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.received: list[int] = []
        self.x = 0.001
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                said = says(json.loads(raw), model.x)
                data = _completion(said)
                model.sent.append(len(raw))
                model.received.append(len(json.dumps(said)))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


def _completion(said: Any) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
    if not isinstance(said, str):
        function = {"name": said[0], "arguments": json.dumps(said[1])}
        message["tool_calls"] = [{"id": "call_0", "type": "function", "function": function}]
    choice = {"index": 0, "finish_reason": "stop" if isinstance(said, str) else "tool_calls", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return json.dumps(
        {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    ).encode()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--asks", type=int, default=20)
    asks = options.parse_args().asks
    with tempfile.TemporaryDirectory() as folder:
        workspace = ha.Workspace(Path(folder) / "ws", create=True)
        (workspace.folder.root / "workspace.toml").write_text(RULES)
        model = Model()
        boss = ha.Supervisor(workspace, model="m", url=model.url)
        direct, asked = [], []
        boss.ask("what is the value?")  # imports, schemas
        model.sent.clear(), model.received.clear()
        for n in range(asks):
            began = time.perf_counter()
            run = workspace.run("synthetic", {"x": 0.3 + n * 1e-3, "y": 0.9})
            workspace.wait(run["id"])
            direct.append(time.perf_counter() - began)
            model.x = 0.002 + n * 1e-6
            began = time.perf_counter()
            reply = boss.ask("what is the value?")
            asked.append(time.perf_counter() - began)
            assert reply.state == "answered" and len(reply.calls) == 2, reply
        workspace.end(runs=True)
    a, b = statistics.median(direct), statistics.median(asked)
    requests = len(model.sent) / asks
    print(f"direct: run and wait   {1e3 * a:8.1f} ms (median of {asks})")
    print(f"by a supervisor        {1e3 * b:8.1f} ms, {1e3 * (b - a):.1f} ms more, in {requests:g} requests")
    print(f"sent                   {sum(model.sent) / asks / 4:8.0f} tokens an ask (characters / 4)")
    print(f"received               {sum(model.received) / asks / 4:8.0f} tokens an ask")


if __name__ == "__main__":
    main()
