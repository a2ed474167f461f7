"""What a function finds of its process, given back after each run: the next run is to find nothing of it.

Every call of an app's function is in an `AsFound`: on a worker, on the ranks of a launch, in the slots of an
ensemble. What cannot be given back is named in a note of the run, and a process of ours is replaced after it
(`ours`). Standard library only; where nothing was changed it takes some 20 us.

Not looked after: what a function changes in modules (also by importing them) and the state of `random` and
`numpy.random`: given back, all runs of a worker would draw the same numbers. Nor its cores and its priority.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without enums its functions are much faster
import contextlib
import gc
import locale
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from hpcagent.apps.run import note

__all__ = ["AsFound", "cannot_be_given_back", "flush_streams", "leave_behind", "ours", "set_while_imported"]

_Value = TypeVar("_Value")

_STREAMS = ("stdin", "stdout", "stderr")
_SIGNALS: tuple[int, ...] = tuple(
    n for n in sorted(signal.valid_signals()) if n < 32 and n not in (signal.SIGKILL, signal.SIGSTOP)
)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_MOMENT_S = 0.1
"""So long a thread that a run has left may take to its end, in seconds."""
_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


# ---- the process


class _Process:
    """What is known of this process, until it is forked."""

    ours = False
    left: tuple[str, ...] = ()
    begun: _Begun | None = None


def ours() -> None:
    """Say that this process is there for runs only, and is replaced after one that leaves something behind."""
    _Process.ours = True


def cannot_be_given_back() -> tuple[str, ...]:
    """What runs have left in this process for good; if anything, it is to be replaced."""
    return _Process.left


def leave_behind(*what: str) -> None:
    """Say that something of a run is left in this process, or in one that is replaced with it."""
    _Process.left = tuple(dict.fromkeys([*_Process.left, *what]))


def _forked() -> None:
    _Process.begun, _Process.left, _Process.ours = None, (), False


os.register_at_fork(before=lambda: flush_streams(), after_in_child=_forked)


# ---- the environment that an import has set

_by_import: dict[bytes, bytes] = {}
_putenv = os.putenv


def _noticing(name: Any, value: Any, /) -> None:
    """Stands in for `os.putenv`, which `os.environ` calls: a module that is imported once sets a variable once."""
    _putenv(name, value)
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _CALL:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _by_import[os.fsencode(name)] = os.fsencode(value)
            return
        frame = frame.f_back  # type: ignore[assignment]  # of the outermost it is None


os.putenv = _noticing


def set_while_imported() -> dict[bytes, bytes]:
    """The variables that modules have set while a run imported them, since it began: they stay."""
    return dict(_by_import)


# ---- what can be read, and set again


def _directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  (plain and quick)
    except OSError:
        return ""


def _numpy_errors() -> Any:
    """How numpy before version 2 treats an overflow; since then it is part of the context that a call has."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not getattr(numpy, "__version__", "2").startswith("1."):
        return None
    return numpy.geterr()


def _set_numpy_errors(before: Any) -> None:
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.seterr(**(before or _NUMPY_ERRORS))


def _set_collecting(on: bool) -> None:
    (gc.enable if on else gc.disable)()


def _set_mask(before: Any) -> None:
    # What has waited behind the run's mask is the run's: by a handler of the process it might end it.
    waiting = signal.sigpending() - set(before)
    while waiting and signal.sigtimedwait(waiting, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_limit(which: int, before: tuple[int, int]) -> None:
    resource.setrlimit(which, before)


def _rows() -> list[tuple[str, Callable[[], Any], Callable[[Any], object]]]:
    """(its name, how it is read, how it is set) of what the system has of a process, where it has it."""
    rows: list[tuple[str, Callable[[], Any], Callable[[Any], object]]] = [
        ("the working directory", _directory, os.chdir),
        ("the signal mask", partial(_signal.pthread_sigmask, signal.SIG_BLOCK, ()), _set_mask),
        ("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
        ("the garbage collector", gc.isenabled, _set_collecting),
        ("the timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
        ("the error state of numpy", _numpy_errors, _set_numpy_errors),
    ]
    if hasattr(resource, "RLIMIT_AS"):  # the others are rarely set by a function, and each costs as much to read
        which = resource.RLIMIT_AS
        rows.append(("RLIMIT_AS", partial(resource.getrlimit, which), partial(_set_limit, which)))
    return rows


_NAMES, _READ, _SET = zip(*_rows(), strict=True)


class _Begun:
    """What the process was when its run began; of a process of ours, which has nothing else to do, its first."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.main = threading.current_thread() is threading.main_thread()
        if not self.main:  # nothing is given back
            return
        self.rows = [read() for read in _READ]
        self.mask = os.umask(0o077)
        os.umask(self.mask)
        self.locale = locale.setlocale(locale.LC_ALL)
        self.handlers = list(map(_signal.getsignal, _SIGNALS))
        self.streams = [getattr(sys, name) for name in _STREAMS]
        self.written = [_written(stream) for stream in self.streams]
        self.places = [_place(stream, number) for number, stream in enumerate(self.streams)]
        self.threads = threading.enumerate()
        self.at = (time.monotonic(), time.process_time())
        self.timers = [_signal.getitimer(timer) for timer in _TIMERS]
        self.descriptors: list[tuple[int, tuple[int, int]]] = []
        self.numbers = range(0)

    def keep_descriptors(self) -> None:
        """Keep copies of the standard streams' descriptors: a function may close them, or turn them elsewhere."""
        for number in range(3):
            file = _file(number)
            if file is not None:
                self.descriptors.append((os.dup(number), file))
            else:  # `open_closed_streams` leaves none of these
                break
        # Looked at after each run; the descriptor of stdin only where one of these is another one.
        self.numbers = range(1, len(self.descriptors))

    def let_go(self) -> None:
        for kept, file in self.descriptors:
            if _file(kept) == file:
                os.close(kept)


def _file(descriptor: int) -> tuple[int, int] | None:
    try:
        about = os.fstat(descriptor)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _lead_as_kept(begun: _Begun) -> bool:
    """Whether standard output and error lead where their copies do, by their names in /proc; False if not known.

    `fstat` asks the file system, and after each run: where a log lies on a network, its server.
    """
    try:
        return all(_name(number) == _name(begun.descriptors[number][0]) for number in begun.numbers)
    except OSError:
        return False


def _name(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - four times a run


def _written(stream: Any) -> tuple[Any, ...]:
    try:
        return stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.closed
    except Exception:  # another kind of stream, or none, or one without what it wrote to
        return None, None, None, None, None


def _place(stream: Any, number: int) -> tuple[int, Any]:
    """Descriptor and name of a stream; a forked process reads elsewhere than from 0."""
    try:
        return stream.fileno(), stream.name
    except Exception:  # a stream of another kind
        return number, f"<{_STREAMS[number]}>"


def _is_closed(stream: Any) -> bool:
    try:
        return bool(getattr(stream, "closed", False))
    except ValueError:  # detached
        return True


def flush_streams(*streams: Any) -> None:
    """Write out what Python still holds of what was printed; a stream that is closed or broken is passed over.

    Args:
        streams: By default `sys.stdout` and `sys.stderr`.
    """
    for stream in streams or (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


# ---- a run


class AsFound:
    """A run is inside; afterwards the process is as the run has found it.

    A process that the run has forked, and that comes to the end of the block, ends there: the answer is its
    parent's. In another thread than the main one only that is looked at: a process belongs to all its threads.

    Args:
        descriptors: Whether the descriptors 0 to 2 are given back as well; not where the caller does that.
        lasts: Whether further runs come in this process.

    Example:
        >>> with AsFound():
        ...     os.environ["LEFT_BY_A_RUN"] = "yes"
        >>> "LEFT_BY_A_RUN" in os.environ
        False
    """

    __slots__ = ("_begun", "_descriptors", "_done", "_environ", "_lasts", "_modules", "_path", "_warnings")

    def __init__(self, *, descriptors: bool = True, lasts: bool = True) -> None:
        self._descriptors, self._lasts, self._done = descriptors, lasts, True

    def __enter__(self) -> AsFound:
        if _Process.left and self._lasts:
            note(f"ran in a process in which an earlier run had left behind {', '.join(_Process.left)}")
        begun = _Process.begun if _Process.ours else None
        if begun is None:
            begun = _Begun()
            if self._descriptors and begun.main:
                begun.keep_descriptors()
            if _Process.ours:
                _Process.begun = begun
        self._begun, self._done = begun, False
        self._environ: dict[bytes, bytes] = os.environ._data.copy()  # type: ignore[attr-defined]
        self._modules = len(sys.modules)
        self._path, self._warnings = list(sys.path), list(warnings.filters)
        _by_import.clear()
        return self

    def call(self, function: Callable[..., _Value], /, **given: Any) -> _Value:
        """Call it as a run, in a context of its own: what it sets in context variables, as numpy does, ends."""
        try:
            with self:
                return copy_context().run(_called, function, given)
        finally:
            # A signal that the run has asked for may come when `__exit__` is called, before it can do anything.
            if not self._done:
                self.__exit__(*sys.exc_info())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        begun = self._begun
        if os.getpid() != begun.pid:
            _leave(error)
        if not begun.main:
            self._done = True
            return
        left: list[str] = []
        for again in range(5):  # a signal that the run has asked for may come in the middle of it
            try:
                self._give_back(begun, left)
                self._done = True
                break
            except BaseException:
                if again == 4:
                    raise
        if begun is not _Process.begun:
            begun.let_go()
        if left and self._lasts:
            leave_behind(*left)
            then = "its process is replaced after it" if _Process.ours else "later runs in its process find it"
            note(f"the run has left behind {', '.join(_Process.left)}: {then}")

    def _give_back(self, begun: _Begun, left: list[str]) -> None:
        left.clear()
        _disarm(begun)
        handlers = list(map(_signal.getsignal, _SIGNALS))
        if handlers != begun.handlers:
            for number, before, now in zip(_SIGNALS, begun.handlers, handlers, strict=True):
                if now != before and before is not None:
                    signal.signal(number, before)
                elif now != before:  # set by another than Python, which cannot set it again
                    left.append(f"a handler of {signal.Signals(number).name}")
        os.umask(begun.mask)
        if self._descriptors and not _lead_as_kept(begun):
            for number, (kept, file) in enumerate(begun.descriptors):
                if _file(number) != file:
                    _turn_back(kept, file, number, left)
        stdin, stdout, stderr = begun.streams
        if (
            sys.stdout is not stdout
            or sys.stderr is not stderr
            or sys.stdin is not stdin
            or _is_closed(stdin)
            or _written(stdout) != begun.written[1]
            or _written(stderr) != begun.written[2]
        ):
            _give_streams_back(begun)
        if os.environ._data != self._environ:  # type: ignore[attr-defined]
            _set_environ(self._environ | _by_import)
        if sys.path != self._path:
            # What was added with an import may be where that module finds others; at the end it hides nothing.
            added = [entry for entry in sys.path if entry not in self._path]
            sys.path[:] = [*self._path, *(added if len(sys.modules) > self._modules else ())]
        if warnings.filters != self._warnings:
            warnings.filters[:] = self._warnings  # type: ignore[index]
            getattr(warnings, "_filters_mutated", lambda: None)()
        if locale.setlocale(locale.LC_ALL) != begun.locale:
            locale.setlocale(locale.LC_ALL, begun.locale)
        rows = [read() for read in _READ]
        if rows != begun.rows:
            _set_again(begun, rows, left)
        threads = threading.enumerate()
        if threads != begun.threads:
            left.extend(_going_on([thread for thread in threads if thread not in begun.threads]))


def _called(function: Callable[..., _Value], given: dict[str, Any]) -> _Value:
    decimal = sys.modules.get("decimal")
    if decimal is not None:
        decimal.setcontext(decimal.getcontext().copy())  # a context variable holds it, and it can be changed
    return function(**given)


_CALL = _called.__code__


def _leave(error: BaseException | None) -> NoReturn:
    """End a process that the function has forked, as Python would, but for all that is its parent's."""
    code: Any = 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            with contextlib.suppress(Exception):
                print(code, file=sys.stderr)
            code = 1
    elif error is not None:
        code = 1
        with contextlib.suppress(Exception):
            traceback.print_exception(error)
    flush_streams()
    os._exit((code or 0) & 0xFF)


def _disarm(begun: _Begun) -> None:
    """Stop the run's timers; those that went before go on."""
    _signal.alarm(0)  # ITIMER_REAL as well
    for timer in _TIMERS[1:]:
        if _signal.getitimer(timer)[0]:
            _signal.setitimer(timer, 0)
    for timer, (seconds, interval) in zip(_TIMERS, begun.timers, strict=True):
        if seconds:
            clock, at = (time.monotonic, 0) if timer == signal.ITIMER_REAL else (time.process_time, 1)
            rest = seconds - (clock() - begun.at[at])
            if rest > 0 or interval:
                _signal.setitimer(timer, max(rest, 1e-3), interval)


def _turn_back(kept: int, file: tuple[int, int], number: int, left: list[str]) -> None:
    if _file(kept) == file:
        os.dup2(kept, number)
    else:  # the run has closed all that is open, and may have opened something else under that number
        left.append(f"{'no' if _file(number) is None else 'another'} file as descriptor {number}")


def _give_streams_back(begun: _Begun) -> None:
    for number, (name, stream) in enumerate(zip(_STREAMS, begun.streams, strict=True)):
        now = getattr(sys, name, None)
        if now is not stream:
            flush_streams(now)
            setattr(sys, name, stream)
        if stream is None:
            continue
        if _is_closed(stream):
            begun.streams[number] = anew = _opened(number, *begun.places[number], begun.written[number])
            if getattr(sys, f"__{name}__") is stream:
                setattr(sys, f"__{name}__", anew)
            setattr(sys, name, anew)
        elif _written(stream) != begun.written[number]:
            encoding, errors, lines, through, _ = begun.written[number]
            with contextlib.suppress(Exception):
                stream.reconfigure(encoding=encoding, errors=errors, line_buffering=lines, write_through=through)


def _opened(number: int, descriptor: int, name: Any, written: tuple[Any, ...]) -> Any:
    """A stream in the place of one that was closed, on its descriptor; where that is gone, on none."""
    encoding, errors, lines, through, _ = written
    mode = "w" if number else "r"
    stream: Any
    try:
        stream = open(descriptor, mode, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    except OSError:
        stream = open(os.devnull, mode, encoding=encoding, errors=errors)  # noqa: SIM115, PTH123
    stream.buffer.raw.name = name
    if number:
        stream.reconfigure(line_buffering=bool(lines), write_through=bool(through))
    return stream


def _set_environ(before: dict[bytes, bytes]) -> None:
    for name in os.environb.keys() - before.keys():
        del os.environb[name]
    for name, value in before.items():
        if os.environb.get(name) != value:
            os.environb[name] = value


def _set_again(begun: _Begun, rows: list[Any], left: list[str]) -> None:
    for index, (before, now) in enumerate(zip(begun.rows, rows, strict=True)):
        if now != before:
            try:
                _SET[index](before)
            except Exception:
                left.append(f"another value of {_NAMES[index]}")


def _going_on(threads: list[threading.Thread]) -> list[str]:
    """Which threads a run has left behind that Python itself would wait for; helpers and pools are kept."""
    pools: list[Any] = []
    for module, name in (("thread", "_threads_queues"), ("process", "_threads_wakeups")):
        pools += getattr(sys.modules.get(f"concurrent.futures.{module}"), name, ())
    until = time.monotonic() + _MOMENT_S
    found = []
    for thread in threads:
        if not thread.daemon and thread not in pools:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                found.append(f"the thread {thread.name!r}")
    return found
