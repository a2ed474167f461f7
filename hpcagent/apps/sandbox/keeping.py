"""Keeps a program within its limits, and leaves no process of it behind. A script of the standard library only.

    python -I -S keeping.py SPEC.json REPORT.json WORDS...

It sets the limits, starts the words, looks at all their processes ten times a second, ends them where they are
too many, take too much memory or write too much, and ends whatever is left when the first one has ended. Then it
writes the report, which the program cannot do in its place: nothing of it lives any longer.
"""

# pathlib would take longer to import than all else here.
# ruff: noqa: PTH108, PTH116, PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from typing import Any

EVERY_S = 0.1
_MOST_FILES = 100_000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 4, 38, 36
_ROUNDS = 200


def descendants(root: int) -> list[int]:
    """Ids of all processes below one; those that have ended are not among them."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of a program, in parentheses, may have anything in it.
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    below.setdefault(int(fields[1]), []).append(int(name))
    found, unseen = [], [root]
    while unseen:
        children = below.get(unseen.pop(), [])
        found += children
        unseen += children
    return found


def resident_bytes(pids: list[int]) -> int:
    """Memory of processes, without what they share with others (`statm`: resident less shared pages)."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
            pages += max(0, int(fields[1]) - int(fields[2]))
    return pages * os.sysconf("SC_PAGE_SIZE")


def written_bytes(folder: str, most: int) -> int:
    """Bytes on disk below a folder, links not followed; counting stops where they are more than `most`."""
    total = count = 0
    unseen = [folder]
    while unseen and total <= most:
        with contextlib.suppress(OSError), os.scandir(unseen.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        unseen.append(entry.path)
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                count += 1
                if count > _MOST_FILES:
                    return most + 1
    return total


def end_all() -> int:
    """Kill every descendant of this process, orphans too: they are its children."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = descendants(os.getpid())
        if not found:
            break
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        reap()
        time.sleep(0.005)
    reap()
    return len(killed)


def reap() -> dict[int, int]:
    """Take the ends of children that have ended: id -> status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended[pid] = status


def tasks_of_user() -> int:
    """Processes and threads of this user: what the kernel's limit counts."""
    count, me = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == me:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def set_limits(limits: dict[str, Any]) -> None:
    """What the kernel keeps, of every process by itself."""
    wanted = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: limits["tasks_there"] + limits["processes"],
        resource.RLIMIT_CORE: 0,
    }
    for what, value in wanted.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # SIGXCPU at the soft limit can be caught; a second later the hard one kills.
        above = value + 1 if what == resource.RLIMIT_CPU and hard == resource.RLIM_INFINITY else value
        resource.setrlimit(what, (value, above))


def too_much(spec: dict[str, Any], pids: list[int], looked: int) -> dict[str, Any] | None:
    """The limit of all processes together that is broken, or None."""
    limits = spec["limits"]
    if len(pids) > limits["processes"] + spec["own_processes"]:
        return {"limit": "processes", "allowed": limits["processes"], "found": len(pids) - spec["own_processes"]}
    memory = resident_bytes(pids)
    if memory > limits["memory_bytes"]:
        return {"limit": "memory", "allowed": limits["memory_bytes"], "found": memory}
    if looked % 3 == 0:
        written = written_bytes(spec["folder"], limits["disk_bytes"])
        if written > limits["disk_bytes"]:
            return {"limit": "disk", "allowed": limits["disk_bytes"], "found": written}
    return None


class _Ended(Exception):
    """SIGTERM: the walltime is over."""


def _ended(number: int, frame: object) -> None:
    raise _Ended


def main() -> int:
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    report_path, words = sys.argv[2], sys.argv[3:]
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getppid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # /proc/PID of this process is not for the program
    signal.signal(signal.SIGTERM, _ended)
    spec["limits"]["tasks_there"] = tasks_of_user()
    environment = {name: os.environ[name] for name in spec["pass"] if name in os.environ} | spec["env"]
    child, broken, looked, status = 0, None, 0, None
    try:
        child = os.fork()
        if not child:
            _become(words, environment, spec["limits"], prctl, no_new_rights=spec["no_new_rights"])
        while status is None:
            time.sleep(0.01 if looked < 10 else EVERY_S)
            status = reap().get(child)
            if status is not None:
                break
            broken = too_much(spec, descendants(os.getpid()), looked)
            looked += 1
            if broken is not None or os.getppid() != parent:
                break
    except _Ended:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    left = end_all()
    code = 125 if status is None else os.waitstatus_to_exitcode(status)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    broken = broken or _full(spec) or of_kernel(spec["limits"], code, usage.ru_utime + usage.ru_stime)
    report = {
        "code": code,
        "broken": broken,
        "ended": status is not None,
        "left": left if status is not None else 0,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "largest_bytes": usage.ru_maxrss * 1024,
    }
    with contextlib.suppress(FileNotFoundError):
        os.unlink(report_path)
    handle = os.open(report_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(report, file)
    if code < 0:  # as the program would have ended
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        return 128 - code
    return code


def of_kernel(limits: dict[str, Any], code: int, cpu_s: float) -> dict[str, Any] | None:
    """The limit of one process for which the kernel has ended the program, or None.

    Args:
        limits: What is allowed.
        code: Of its end; negative for a signal, or above 128 where bwrap hands it on.
        cpu_s: Used by all of its processes, in seconds.
    """
    number = -code if code < 0 else code - 128
    # A program that goes on after SIGXCPU is killed. The kernel counts finer than it tells.
    if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_s >= 0.9 * limits["cpu_s"]):
        return {"limit": "CPU time", "allowed": limits["cpu_s"], "found": cpu_s}
    if number == signal.SIGXFSZ:
        return {"limit": "one file", "allowed": limits["file_bytes"], "found": limits["file_bytes"]}
    return None


def _full(spec: dict[str, Any]) -> dict[str, Any] | None:
    written = written_bytes(spec["folder"], spec["limits"]["disk_bytes"])
    if written <= spec["limits"]["disk_bytes"]:
        return None
    return {"limit": "disk", "allowed": spec["limits"]["disk_bytes"], "found": written}


def _become(
    words: list[str], env: dict[str, str], limits: dict[str, Any], prctl: Any, *, no_new_rights: bool
) -> None:
    """Never returns: this process becomes the program."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if no_new_rights:
            prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # no program with another user's rights (sudo)
        os.umask(0o077)
        os.closerange(3, 4096)
        set_limits(limits)
        os.execvpe(words[0], words, env)
    except OSError as error:
        os.write(2, f"{words[0]} cannot be started: {error.strerror}.\n".encode())
        os._exit(127)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(126)


if __name__ == "__main__":
    sys.exit(main())
