"""A site of a workspace in a process of its own: its jobs and runs go on when the service dies.

    python -m hpcagent.workspace.keeper FOLDER PROFILE RETRIES [PATH...]

The service speaks to it over a Unix socket in FOLDER (`sites/NAME` of the workspace), one JSON line each way at
any time:

    {"do": "wanted", "runs": ["EXECUTION_ID", ...]}     the first line: all else is ended
    {"do": "run", "app": "synthetic", "settings": {}, "code": "", "manifest": {}, "inputs": [], "owner": "ada"}
    {"do": "cancel", "run": "EXECUTION_ID"}
    {"do": "ping"}                                      answered by {"pong": true}
    {"do": "leave", "end": false}                       end once nothing goes; with `end` end what goes
    {"began": "EXECUTION_ID"}   {"ended": "EXECUTION_ID", "result": {...}, "lost_node_hours": 0.0}
    {"how": "EXECUTION_ID", "far": "ended"}   {"news": "a sentence of the site"}

What ends while no service is there lies in the run's folder, where the next one finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcagent.apps.base import App
from hpcagent.aside import Aside
from hpcagent.catalog import find_app
from hpcagent.errors import AppFailed, BadInput, HpcAgentError, RunDirLocked
from hpcagent.model.records import Manifest, Result
from hpcagent.shown import plain
from hpcagent.store.files import make_folder
from hpcagent.store.rundir import Lock
from hpcagent.workspace.app_store import STORED, AppStore
from hpcagent.workspace.configured import changed_since, configured
from hpcagent.workspace.desk import Desk, Job, failed
from hpcagent.workspace.folder import KEEPER
from hpcagent.workspace.sockets import Lines, Listening

__all__ = ["OTHER", "Keeper", "main"]

OTHER = 3
"""Exit code where another process keeps the site."""

# Without a service and with nothing to do it ends after so long.
IDLE_S = 60.0


class Keeper:
    """Has one site, and does what its service asks for.

    Args:
        folder: `sites/NAME` of a workspace.
        profile: The site's profile.
        retries: How often a run is started again after an infrastructure failure.

    Raises:
        RunDirLocked: Another process keeps the site.
    """

    def __init__(self, folder: Path, profile: str, *, retries: int) -> None:
        make_folder(folder)
        self._folder = folder
        self._lock_file = Lock(folder)
        self._lock_file.acquire()
        self._turn = threading.RLock()
        self._lines: Lines | None = None
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._going: set[str] = set()
        self._began: set[str] = set()
        self._ending = threading.Event()
        self._leaving = False
        root = folder.parent.parent
        self._store = AppStore(root / "apps")
        work = root / "work"
        self._desk = Desk(profile, folder, work, retries=retries, tell=lambda news: self._say(news=news))
        self._listening = Listening(folder, "keeper.sock", folder / KEEPER, most=4)

    def keep(self) -> None:
        """Work until it is told to leave, has had no service and nothing to do for long, or its folder is gone."""
        alone_since = time.monotonic()
        try:
            while not self._ending.is_set():
                lines = self._listening.accept()
                if lines is not None:
                    if lines.uid == os.getuid():
                        self._attend(lines)
                    else:
                        lines.close()
                self._listening.touch()
                if not self._folder.is_dir() or not self._listening.found:
                    return  # the workspace was removed: nobody finds this process any more
                with self._turn:
                    if self._going or self._lines is not None:
                        alone_since = time.monotonic()
                    if self._leaving and not self._going:
                        return
                if time.monotonic() - alone_since > IDLE_S:
                    return
        finally:
            self.close()

    def end(self) -> None:
        """Have `keep` return; what goes is ended."""
        self._ending.set()
        self._listening.stop()

    def close(self) -> None:
        """End what goes, and close the site."""
        self._listening.close()
        with contextlib.suppress(HpcAgentError):
            self._desk.close()
        self._lock_file.release()

    def _attend(self, lines: Lines) -> None:
        """Listen to a service; the one before it has gone, or will not be heard any more."""
        with self._turn:
            if self._lines is not None:
                self._said.put(None)
            self._lines, self._said, self._leaving = lines, queue.SimpleQueue(), False
        threading.Thread(target=self._listen, args=(lines,), name="service", daemon=True).start()
        threading.Thread(target=self._write, args=(lines, self._said), name="to service", daemon=True).start()

    def _listen(self, lines: Lines) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := lines.read():
                with self._turn:
                    if self._lines is not lines:
                        break
                self._obey(json.loads(line))
        with self._turn:
            if self._lines is lines:
                self._lines = None
                self._said.put(None)
        lines.close()

    @staticmethod
    def _write(lines: Lines, said: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        """Send what is said: in a thread of its own, so that a service which is slow to read holds up nothing."""
        with contextlib.suppress(OSError, ValueError):
            while (one := said.get()) is not None:
                lines.write(one)

    def _say(self, **said: Any) -> None:
        with self._turn:
            if self._lines is not None:
                self._said.put(said)

    def _obey(self, asked: Mapping[str, Any]) -> None:
        """Do what is asked; what goes wrong with it is that run's, and costs no other."""
        try:
            self._do(asked)
        except BaseException as error:  # code of somebody's own may raise anything, SystemExit too
            self._say(news=f"{asked.get('do')} went wrong: {type(error).__name__}: {plain(str(error))[:300]}")
            if asked.get("do") == "run":
                manifest = Manifest.model_validate(asked["manifest"])
                words = f"the app cannot be made here: {type(error).__name__}: {plain(str(error))[:500]}"
                told = AppFailed(words, kind="contract", name=type(error).__name__)
                self._ended(manifest.execution_id, failed(manifest, told))

    def _do(self, asked: Mapping[str, Any]) -> None:
        do = asked["do"]
        if do == "wanted":
            with self._turn:
                left = self._going - set(asked["runs"])
            for identity in left:
                self._cancel(identity)
        elif do == "run":
            self._run(asked)
        elif do == "cancel":
            self._say(how=asked["run"], far=self._cancel(asked["run"]))
        elif do == "ping":
            self._say(pong=True)
        elif do == "leave":
            with self._turn:
                self._leaving = True
            if asked.get("end"):
                self.end()

    def _cancel(self, identity: str) -> str:
        far = self._desk.cancel(identity)
        if far == "waiting":  # nothing will be heard of it
            with self._turn:
                self._going.discard(identity)
        return far

    def _run(self, asked: Mapping[str, Any]) -> None:
        manifest = Manifest.model_validate(asked["manifest"])
        identity = manifest.execution_id
        with self._turn:
            if identity in self._going:
                if identity in self._began:
                    self._say(began=identity)
                return
            self._going.add(identity)
        try:
            app = configured(self._app(asked["app"]), asked["settings"])
            changed = changed_since(app, manifest, asked["code"])
            if changed:
                raise BadInput(changed)
        except HpcAgentError as error:
            self._ended(identity, failed(manifest, error))
            return
        self._desk.add(
            Job(
                app,
                manifest,
                asked["inputs"],
                ended=lambda result, lost: self._ended(identity, result, lost),
                began=lambda: self._has_begun(identity),
                owner=asked["owner"],
            )
        )

    def _app(self, reference: str) -> App:
        return self._store.runnable(reference) if reference.startswith(STORED) else find_app(reference)

    def _has_begun(self, identity: str) -> None:
        with self._turn:
            self._began.add(identity)
        self._say(began=identity)

    def _ended(self, identity: str, result: Result, lost_node_hours: float = 0.0) -> None:
        with self._turn:
            self._going.discard(identity)
            self._began.discard(identity)
        try:
            fields = result.model_dump(mode="json")
        except (ValueError, ValidationError) as error:
            fields = failed(result.manifest, error).model_dump(mode="json")
        self._say(ended=identity, result=fields, lost_node_hours=lost_node_hours)


def main() -> None:
    """Keep the site that is named."""
    folder, profile, retries, *path = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:]
    sys.path[:0] = path
    if path:  # the workers', too
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*path, *([before] if before else [])])
    try:
        keeper = Keeper(folder, profile, retries=retries)
    except RunDirLocked:
        sys.exit(OTHER)
    except HpcAgentError as error:
        print(plain(str(error)), file=sys.stderr)
        sys.exit(error.exit_code)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: keeper.end())
    Aside().set()
    keeper.keep()


if __name__ == "__main__":
    main()
