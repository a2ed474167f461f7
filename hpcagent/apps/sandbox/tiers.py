"""Which tiers a machine has, and why one is not there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hpcagent.apps.sandbox.record import Sandbox, Tier
from hpcagent.errors import AppFailed

__all__ = ["TierState", "chosen_tier", "system_binds", "tiers"]

ORDER: tuple[Tier, ...] = ("limits", "bubblewrap")
HOLDS: dict[Tier, tuple[str, ...]] = {
    "limits": ("memory", "CPU time", "processes", "file and disk size", "no core files", "clean environment"),
    "bubblewrap": (
        "memory",
        "CPU time",
        "processes",
        "file and disk size",
        "no core files",
        "clean environment",
        "no network",
        "no files but its own and the system's",
        "no other processes",
    ),
}
_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class TierState:
    """A tier on this machine.

    Attributes:
        name: `limits` or `bubblewrap`.
        available: Whether it works here.
        why: Why not, and what to do; empty where it works.
        holds: What it keeps a program from, in words.
    """

    name: Tier
    available: bool
    why: str
    holds: tuple[str, ...]


def tiers() -> tuple[TierState, ...]:
    """The tiers, the weakest first, each tried once by a process.

    Example:
        >>> [tier.name for tier in tiers()]
        ['limits', 'bubblewrap']
    """
    program = shutil.which("bwrap")
    whys = {"limits": _limits(), "bubblewrap": _bubblewrap(program)}
    return tuple(TierState(name, not whys[name], whys[name], HOLDS[name]) for name in ORDER)


def chosen_tier(asked: Sandbox) -> Tier:
    """The best tier that is here.

    Raises:
        AppFailed: `NoSandbox`: the required one is not. Nothing weaker is taken in its place.
    """
    states = {state.name: state for state in tiers()}
    required = states[asked.require]
    if not required.available:
        raise AppFailed(
            f'the run requires the sandbox "{asked.require}", which is not here: {required.why}.',
            kind="infrastructure",
            name="NoSandbox",
            repair='install it where the workers run, or say require = "limits" if that will do for it',
        )
    return next(name for name in reversed(ORDER) if states[name].available)


def _limits() -> str:
    return "" if sys.platform.startswith("linux") else f"it needs Linux; this is {sys.platform}"


def system_binds() -> list[str]:
    """Words for bwrap: the system's programs and libraries, read-only, and a few files of /etc and /sys."""
    words: list[str] = []
    for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        path = Path(name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            words += ["--ro-bind", name, name]
    for name in ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime"):
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # Which cores share what: OpenMP and MPI pin by it. MPI looks for network devices, too, and finds none.
    for name in ("cpu", "node"):
        words += ["--ro-bind-try", f"/sys/devices/system/{name}", f"/sys/devices/system/{name}"]
    return [*words, "--dir", "/sys/class/net"]


@lru_cache(maxsize=8)
def _bubblewrap(program: str | None) -> str:
    if _limits():
        return _limits()
    if program is None:
        return (
            "there is no bwrap on the PATH; install the package bubblewrap (or a build of it in your own folder)"
        )
    words = [
        program,
        "--unshare-all",
        "--die-with-parent",
        *system_binds(),
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "true",
    ]
    try:
        tried = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
            env={"PATH": "/usr/bin:/bin"},
        )
    except subprocess.TimeoutExpired:
        return f"{program} did not answer within {_LIMIT_S:g} s"
    except OSError as error:
        return f"{program} cannot be started: {error.strerror}"
    if tried.returncode == 0:
        return ""
    said = tried.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {tried.returncode}"]
    return f"{program} does not work here ({said[0][:200]}){_of_namespaces()}"


def _of_namespaces() -> str:
    """What the kernel's settings say of user namespaces, as a clause."""
    switches = {
        "/proc/sys/kernel/unprivileged_userns_clone": "0",
        "/proc/sys/user/max_user_namespaces": "0",
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
    }
    for path, off in switches.items():
        try:
            if Path(path).read_text().strip() == off:
                return f"; user namespaces are switched off ({path} is {off}): ask the administrators"
        except OSError:
            continue
    return "; in a container user namespaces may be forbidden by its settings"
