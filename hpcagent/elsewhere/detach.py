"""A coordinator that goes on in the background, after it has been seen to start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

from hpcagent.errors import HpcAgentError, SiteFailed
from hpcagent.shown import plain
from hpcagent.sites.launch import python_command
from hpcagent.store.files import open_plain, refusing_clearly

__all__ = ["TOLD", "Detached", "Spawned", "apart", "detach", "ordered", "said_by", "spawned", "started"]

_STARTED = b"started"

TOLD = 3
"""Descriptor by which a process that is `ordered` says that it has begun, or why not."""

# Of what a process has said, in bytes.
MOST_SAID = 1 << 24


@dataclass(frozen=True, slots=True)
class Detached:
    """A process that goes on by itself.

    Attributes:
        pid: The process; SIGTERM stops it as Ctrl-C would.
        host: The machine it is on.
        log: Where it prints.
    """

    pid: int
    host: str
    log: Path


def detach(work: Callable[[Callable[[], None]], int], *, log: Path) -> Detached:
    """Do some work in a process of its own, which is no longer tied to this terminal.

    Call it before any thread is started and before anything heavy is imported: it forks.

    Args:
        work: Is called in the new process with a function to call once it has begun; returns the exit code.
        log: What it prints is added to this file.

    Returns:
        The process, once it has begun.

    Raises:
        HpcAgentError: What kept it from beginning, as if it had been raised here.
        StoreFull: The log cannot be written.
    """
    fresh = not log.exists()
    folder_is_new = not log.parent.exists()
    with refusing_clearly(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        output = open_plain(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    heard, told = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None: it was closed before Python began
            stream.flush()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        apart(work, output, told)
    os.close(told)
    os.close(output)
    try:
        with os.fdopen(heard, "rb") as pipe:
            answer = pipe.read()
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)  # not begun yet: nobody knows of it
        os.waitpid(pid, 0)
        raise
    if answer != _STARTED:
        _, status = os.waitpid(pid, 0)
        if answer and fresh:
            log.unlink(missing_ok=True)
        if answer and folder_is_new:
            with contextlib.suppress(OSError):
                log.parent.rmdir()
        _not_begun(answer, os.waitstatus_to_exitcode(status), log)
    return Detached(pid, socket.gethostname(), log)


def ordered(module: str, order: bytes, *, log: Path) -> None:
    """Start a module's `main()` in a process of its own, which gets `apart`, and wait until it has begun.

    Not by a fork: a notebook's kernel has threads, of which a fork would take half.

    Args:
        module: Its `main()` reads its order from standard input, and says by descriptor TOLD that it has begun.
        order: Its order.
        log: What it prints is added to this file.

    Raises:
        HpcAgentError: What kept it from beginning, as if it had been raised here.
        StoreFull: The log cannot be written.
    """
    with refusing_clearly(log):
        output = open_plain(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    heard, told = os.pipe()
    source, order_in = os.pipe()
    try:
        process = started(module, [], [(source, 0), (output, 1), (output, 2), (told, TOLD)])
    finally:
        for descriptor in (source, output, told):
            os.close(descriptor)
    with contextlib.suppress(BrokenPipeError), os.fdopen(order_in, "wb") as pipe:
        pipe.write(order)
    try:
        with os.fdopen(heard, "rb") as pipe:
            answer = pipe.read()
    except KeyboardInterrupt:
        os.kill(process.pid, signal.SIGTERM)  # not begun yet: nobody knows of it
        process.wait()
        raise
    if answer != _STARTED:
        _not_begun(answer, process.wait() if not answer else 1, log)


def _not_begun(answer: bytes, code: int, log: Path) -> NoReturn:
    if answer:
        error: HpcAgentError = pickle.loads(answer)
        raise error
    words = log.read_text(errors="replace").strip().splitlines()[-1:]
    raise SiteFailed(
        f"The coordinator did not begin (exit code {code}): "
        f"{words[0] if words else 'it printed nothing'}; see {log}."
    )


def apart(work: Callable[[Callable[[], None]], int], output: int, told: int) -> None:
    """Leave the session, do the work, end this process with its exit code; never returns.

    Args:
        work: Is called with a function to call once it has begun.
        output: Descriptor that takes what is printed.
        told: Descriptor by which the process that started this one hears that it has begun, or why not.
    """
    code = 1
    begun = False

    def tell(words: bytes) -> None:
        nonlocal begun
        if not begun:
            begun = True
            with contextlib.suppress(OSError):  # whoever started it may be gone by now
                os.write(told, words)
            os.close(told)

    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        code = work(lambda: tell(_STARTED))
    except HpcAgentError as error:
        code = error.exit_code
        if begun:
            print(f"error: {error}" if code != 130 else str(error), file=sys.stderr)
        else:
            tell(pickle.dumps(error))
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        if not isinstance(error, SystemExit):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class Spawned:
    """A process that `started` has started.

    Attributes:
        pid: The process.
        code: How it ended, once it has: its exit code, negative for a signal.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        # Nobody else waits for it: without this it would stay a zombie of a long session.
        self._reaping = threading.Thread(target=self._reap, name="spawned", daemon=True)
        self._reaping.start()

    def wait(self) -> int:
        """Its code, when it has ended; -1 if that cannot be known."""
        self._reaping.join()
        return -1 if self.code is None else self.code

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)


def started(
    module: str, arguments: Sequence[str], moved: Sequence[tuple[int, int]], *, own_session: bool = False
) -> Spawned:
    """Start a module's `main()` in a process of its own.

    Args:
        module: Its name.
        arguments: Its arguments.
        moved: Descriptors of this process, and the numbers that they have in the new one.
        own_session: Whether the new one begins in a session of its own.
    """
    command = python_command(module, *arguments)
    behind = 1 + max(to for _, to in moved)
    # Out of the way of the numbers that they get: with standard input closed, one of them may be 0.
    lifted = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, behind) for descriptor, _ in moved]
    try:
        actions = [(os.POSIX_SPAWN_DUP2, a, to) for a, (_, to) in zip(lifted, moved, strict=True)]
        return Spawned(os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=own_session))
    finally:
        for descriptor in lifted:
            os.close(descriptor)


def spawned(module: str, *arguments: str, log: Path) -> Spawned:
    """Start a module's `main()` in a process and session of its own; what it prints is added to `log`."""
    with refusing_clearly(log):
        output = open_plain(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        return started(module, arguments, [(nothing, 0), (output, 1), (output, 2)], own_session=True)
    finally:
        os.close(output)
        os.close(nothing)


def said_by(module: str, *arguments: str) -> tuple[str, str]:
    """Run a module's `main()` in a process of its own to its end.

    Returns:
        The last line that it printed, and how it ended with the end of what it complained of.
    """
    with Path(os.devnull).open("rb") as nothing, TemporaryFile() as out, TemporaryFile() as err:
        code = started(module, arguments, [(nothing.fileno(), 0), (out.fileno(), 1), (err.fileno(), 2)]).wait()
        texts = [os.pread(file.fileno(), MOST_SAID, 0).decode(errors="replace").strip() for file in (out, err)]
    *_, last = ["", *texts[0].splitlines()]
    words = plain(texts[1][-300:]) or "no words"
    return last, f"exit code {code}, {words}"
