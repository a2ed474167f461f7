"""An endpoint that is a folder of this machine: what it does with requests, and how often it has done it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from hpcagent.apps import travel
from hpcagent.apps.worker import execute
from hpcagent.sites.endpoint import protocol
from hpcagent.sites.profile import Profile
from hpcagent.testing.local_link import Faults, LocalLink

ENDPOINT = "8c1d4b0e-5f6a-4c3b-9d2e-1a2b3c4d5e6f"


def profile(folder: Path, **changes: Any) -> Profile:
    given = {
        "name": "far",
        "kind": "globus_compute",
        "endpoint_id": ENDPOINT,
        "work_dir": str(folder / "scratch"),
        "runs_at_once": 4,
    }
    return Profile.model_validate({**given, **changes})


class Endpoint:
    """Answers requests; `gate` holds runs back while it is not set."""

    def __init__(self) -> None:
        self.computed: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self.done = threading.Semaphore(0)
        self.taken = threading.Semaphore(0)
        self.states: dict[str, str] = {}
        self.cancel_says: str | None = None
        self.asked: Counter[str] = Counter()
        self.links: list[LocalLink] = []
        self.faults = Faults()

    def link(self, profile: Profile, label: str, *, on_sent: Any, tell: Any) -> LocalLink:
        """A link of a session; what an earlier one has sent is known to the service."""
        made = LocalLink(profile, label, on_sent=on_sent, tell=tell, answer=self.answer, faults=self.faults)
        if self.links:
            made.task_group_id = self.links[0].task_group_id
            made._answers = self.links[0]._answers
        self.links.append(made)
        return made

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        protocol.checked(request)
        self.asked[request["op"]] += 1
        given = getattr(self, f"_{request['op']}")(request)
        return {"protocol": 1, "key": request["key"], "host": "n1", "python": "3", "hpcagent": "0", **given}

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        root, key = Path(request["root"]), request["key"]
        if self.states.get(key) == "cancelled":
            return {"cancelled": True, "answers": []}
        self.states[key] = "running"
        self.taken.release()
        self.gate.wait(20)
        if self.states[key] == "cancelled":
            return {"cancelled": True, "answers": []}
        answers = []
        for packed, upstream in zip(request["orders"], request["upstream"], strict=True):
            lacks = [name for name in packed["inputs"] if not self._input(root, name).is_file()]
            if lacks:
                return {"missing": lacks}
            order, taken = travel.unpack(packed, upstream, lambda name: self._input(root, name), root=root)
            workdir = Path(order["workdir"])
            self.computed[workdir.name] += not (workdir / "result.json").exists()
            fields = json.loads(json.dumps(execute(order, *taken)))
            files = {
                str(p.relative_to(workdir)): [p.stat().st_size, None] for p in workdir.rglob("*") if p.is_file()
            }
            answers.append({**fields, "remote": {"workdir": str(workdir), "files": files}})
            self.done.release()
        self.states[key] = "finished"
        return {"answers": answers}

    def _input(self, root: Path, sha256: str) -> Path:
        return root.parent / "inputs" / sha256

    def _put(self, request: dict[str, Any]) -> dict[str, Any]:
        path = self._input(Path(request["root"]), request["sha256"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(protocol.unpacked_bytes(request["blob"], most=protocol.LARGEST_CHUNK))
        return {"stored": True}

    def _look(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"states": {key: {"state": self.states.get(key, "waiting")} for key in request["keys"]}}

    def _cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        said = {}
        for key in request["keys"]:
            before = self.states.get(key)
            if before != "finished":
                self.states[key] = "cancelled"
            ended = "finished" if before == "finished" else "never" if before is None else "ended"
            said[key] = self.cancel_says or ended
        return {"states": said}
