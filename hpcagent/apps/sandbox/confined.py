"""The words and the environment with which a program is started in a sandbox, and what its end says."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.sandbox.record import Sandbox, Tier
from hpcagent.apps.sandbox.tiers import chosen_tier, system_binds
from hpcagent.errors import AppFailed
from hpcagent.redacted import clean_environment

__all__ = ["Confined", "confined"]

_KEEPING = Path(__file__).with_name("keeping.py")
_OWN_PROCESSES: dict[Tier, int] = {"limits": 0, "bubblewrap": 2}
# What the keeper calls a limit: the key of `[sandbox]`, what a unit of it is, and its name.
_KEYS = {
    "processes": ("processes", 1, ""),
    "memory": ("memory_mb", 1e6, " MB"),
    "disk": ("disk_mb", 1e6, " MB"),
    "one file": ("file_mb", 1e6, " MB"),
    "CPU time": ("cpu_s", 1, " s"),
}


@dataclass(frozen=True, slots=True)
class Confined:
    """A program that is ready to be started in a sandbox.

    Attributes:
        tier: The one it runs in.
        asked: What it may use.
        folder: Where the sandbox is: `work` (the program's directory), `tmp`.
    """

    tier: Tier
    asked: Sandbox
    folder: Path

    @property
    def work(self) -> Path:
        """The program's directory; the only one that it can write, but for its `/tmp`."""
        return self.folder / "work"

    @property
    def _report(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.report.json")

    @property
    def _spec(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.spec.json")

    def words(self, words: Sequence[str], *, env: Mapping[str, str], read: Sequence[str] = ()) -> list[str]:
        """The whole command.

        Args:
            words: The program and its arguments.
            env: Variables that it is given, beside those of `clean_environment`.
            read: Files and folders that it may read, beside those of the record.
        """
        given = {**env, "HOME": str(self.work), "TMPDIR": "/tmp" if self.tier == "bubblewrap" else str(self._tmp)}
        spec = {
            "limits": self._limits(),
            "env": given,
            "pass": sorted(clean_environment(allow=self.asked.pass_env)),
            "folder": str(self.folder),
            "own_processes": _OWN_PROCESSES[self.tier],
            # bwrap itself may need the rights of its file's owner to begin with; it drops them.
            "no_new_rights": self.tier == "limits",
        }
        self._spec.write_text(json.dumps(spec))
        keeper = [sys.executable, "-I", "-S", str(_KEEPING), str(self._spec), str(self._report)]
        inner = (
            [*self._bubblewrap([*self.asked.read, *read]), *words] if self.tier == "bubblewrap" else list(words)
        )
        return [*keeper, *inner]

    @property
    def _tmp(self) -> Path:
        return self.folder / "tmp"

    def _limits(self) -> dict[str, int]:
        asked = self.asked
        return {
            "memory_bytes": int(1e6 * asked.memory_mb),
            "cpu_s": asked.cpu_s,
            "processes": asked.processes,
            "file_bytes": int(1e6 * asked.file_mb),
            "disk_bytes": int(1e6 * asked.disk_mb),
            "open_files": asked.open_files,
        }

    def _bubblewrap(self, read: Sequence[str]) -> list[str]:
        program = shutil.which("bwrap")
        if program is None:  # it was there a moment ago
            raise AppFailed("bwrap is gone from the PATH.", kind="infrastructure", name="NoSandbox")
        words = [program, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        words += ["--hostname", "sandbox", *system_binds()]
        if self.asked.network:
            words += ["--share-net"]
            for name in ("resolv.conf", "hosts", "nsswitch.conf", "services", "ssl", "pki", "ca-certificates"):
                words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        words += ["--proc", "/proc", "--dev", "/dev", "--bind", str(self._tmp), "/tmp"]
        for path in _outermost([*_python(), *read]):
            words += ["--ro-bind", path, path]
        # Last, as it may lie in a folder that is bound read-only.
        return [*words, "--bind", str(self.work), str(self.work), "--chdir", str(self.work), "--"]

    def ended(self, *, log_tail: str = "") -> dict[str, Any]:
        """What the keeper has found; call it when the program has ended.

        Raises:
            AppFailed: `SandboxLimit`: a limit was broken; `SandboxLost`: there is no report.
        """
        report, broken = self.found(log_tail=log_tail)
        if broken is not None:
            raise broken
        return report

    def found(self, *, log_tail: str = "") -> tuple[dict[str, Any], AppFailed | None]:
        """As `ended`: the report, and the failure that a broken limit is, or None.

        Raises:
            AppFailed: `SandboxLost`.
        """
        try:
            report: dict[str, Any] = json.loads(self._report.read_text())
        except (OSError, ValueError) as error:
            raise AppFailed(
                f"the sandbox has ended without a report ({type(error).__name__}): it was killed from outside.",
                kind="infrastructure",
                name="SandboxLost",
                log_tail=log_tail,
            ) from None
        broken = report["broken"]
        if broken is None:
            return report, None
        key, scale, unit = _KEYS[broken["limit"]]
        return report, AppFailed(
            f"ended by the sandbox: {broken['found'] / scale:.4g}{unit} of {broken['limit']} where "
            f"{broken['allowed'] / scale:.4g}{unit} are allowed.",
            kind="simulation",
            name="SandboxLimit",
            log_tail=log_tail,
            repair=f"raise {key} of [sandbox] if the program needs that much",
        )

    def said(self) -> str:
        """The tier, in a sentence for the notes of a run."""
        if self.tier == "bubblewrap":
            return f"ran in the sandbox bubblewrap, {'with' if self.asked.network else 'without'} network"
        return "ran in the sandbox limits: the network and your files were open to it"

    def remove(self) -> None:
        """Remove the folder, whatever modes the program has given to what is in it, and the files beside it."""

        def again(function: Any, path: str, _: Any) -> None:
            for one in (Path(path).parent, Path(path)):
                if not one.is_symlink():
                    one.chmod(0o700)
            function(path)

        shutil.rmtree(self.folder, onerror=again)
        for path in (self._spec, self._report):
            path.unlink(missing_ok=True)


def _python() -> list[str]:
    """Folders of this Python and of its packages, outside of the system's."""
    paths = [sys.prefix, sys.base_prefix, *(sysconfig.get_path(p) for p in ("stdlib", "purelib", "platlib"))]
    paths += [str(Path(sys.executable).resolve().parent.parent)]
    # A Python that was installed into the home folder itself: of that only what is Python's.
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - a user without an entry has no home
    paths = [
        part
        for path in paths
        for part in ([f"{path}/bin", f"{path}/lib"] if _holds(os.path.realpath(path), home) else [path])
    ]
    found: list[str] = []
    for path in paths:
        for one in (path, os.path.realpath(path)):
            outside = not one.startswith("/usr/lib") and one not in ("/", "/usr", *found)
            if outside and Path(one).is_dir():
                found.append(one)
    return sorted(found)


def _holds(folder: str, path: str) -> bool:
    """Whether a path is a folder, or lies in it; the root holds nothing here, as it is not bound."""
    return folder != "/" and Path(path).is_relative_to(folder)


def _outermost(paths: Iterable[str]) -> list[str]:
    """The paths without those that lie in another, or in the system's folders: these are there with it.

    Example:
        >>> _outermost(["/opt/py", "/opt/py/bin/python", "/usr/bin/env", "/home/ann/a.dat", "/opt/py"])
        ['/opt/py', '/home/ann/a.dat']
    """
    asked = [Path(path) for path in dict.fromkeys(paths)]
    there = {Path(word) for word in system_binds() if word.startswith("/")} | set(asked)
    return [str(path) for path in asked if there.isdisjoint(path.parents)]


def confined(folder: Path, asked: Sandbox) -> Confined:
    """Make the folders of a sandbox, in the best tier that is here.

    Args:
        folder: Is made; nothing may be there.
        asked: What is required and allowed.

    Raises:
        AppFailed: `NoSandbox`.
        OSError: The folder cannot be made.
    """
    tier = chosen_tier(asked)
    folder = folder.absolute()
    for path in (folder, folder / "work", folder / "tmp"):
        path.mkdir(mode=0o700)
    return Confined(tier, asked, folder)
