"""A started program until its end: its limit, what it prints, how it is stopped. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcagent.apps.launch import Launch, planned
from hpcagent.apps.printed import Printed, read_tail
from hpcagent.apps.run import Run, note
from hpcagent.errors import AppFailed
from hpcagent.lifeline import FORKS, die_with_parent

__all__ = ["Finished", "Limit", "finish", "not_started", "prepared", "run_mpi"]

DEFAULT_WALLTIME_S = 3600.0
"""Limit of a run that has none of its own, outside a block."""


@dataclass(frozen=True, slots=True)
class Limit:
    """When a run is stopped.

    Attributes:
        seconds: From now.
        by: `walltime`: its own limit; `default`: none was given; `block`: the usable time of its block.
    """

    seconds: float
    by: Literal["walltime", "default", "block"]

    @staticmethod
    def of(run: Run, *, timeout_s: float | None = None, environ: Mapping[str, str] | None = None) -> Limit:
        """What ends first: the run's own limit (an hour outside a block, if it has none) or its block."""
        environ = os.environ if environ is None else environ
        own = timeout_s if timeout_s is not None else run.resources.get("walltime_s")
        ends = environ.get("HPCAGENT_BLOCK_ENDS")
        if ends:
            left = float(ends) - time.time()
            if own is None or left < float(own):
                return Limit(left, "block")
        return Limit(DEFAULT_WALLTIME_S, "default") if own is None else Limit(float(own), "walltime")

    def failure(self, *, wall_s: float, log_tail: str = "", repair: str | None = None) -> AppFailed:
        """The failure of a run that was stopped by it.

        Args:
            wall_s: How long it ran, in seconds.
            log_tail: Last lines of its output.
            repair: What would help, where more is known than here.
        """
        if self.by == "block":
            ran = f"after {wall_s:.3g} s" if self.seconds > 0 else "before it began"
            return AppFailed(
                f"stopped {ran}: the usable time of its block is over. What it wrote is kept; a fresh block has "
                "the time for it if its walltime suffices.",
                kind="infrastructure",
                name="BlockEnded",
                log_tail=log_tail,
                repair=repair or "a longer walltime of the blocks, if it happens again",
            )
        whose = " (there is no walltime_s: the default outside a block)" if self.by == "default" else ""
        return AppFailed(
            f"stopped at its walltime limit of {self.seconds:g} s{whose}; what it wrote is kept.",
            kind="infrastructure",
            name="Walltime",
            log_tail=log_tail,
            repair=repair or "raise walltime_s, or make the run shorter",
        )


@dataclass(frozen=True, slots=True)
class Finished:
    """How a started command ended.

    Attributes:
        returncode: Exit code; negative for a signal.
        stopped: The limit that stopped it, or None.
        wall_s: How long it ran, in seconds.
    """

    returncode: int
    stopped: Limit | None = None
    wall_s: float = 0.0


def finish(
    launch: Launch,
    *,
    cwd: Path,
    output: Path,
    limit: Limit,
    given: Path | None = None,
    errors: Path | None = None,
    begun: Callable[[Callable[[], None]], None] | None = None,
) -> Finished:
    """Start a command, wait for its end or for its limit, and end whatever it has started.

    Its stdout and stderr go to the file `output`, of which the middle is left out where it grows too large; the
    run's notes say so.

    Args:
        launch: What is started.
        cwd: Where.
        output: Takes what it prints.
        limit: When it is stopped.
        given: File that it reads as its standard input; nothing without.
        errors: Takes what goes to stderr, where that shall not be among the rest.
        begun: Called once it is started, with what ends it before its limit.

    Raises:
        AppFailed: `NoExecutable`: it cannot be started.
        OSError: What it prints cannot be written (a full disk).
    """
    if limit.seconds <= 0:
        output.touch()
        return Finished(-signal.SIGTERM, limit)
    stopped = False
    started = time.monotonic()
    setting = f"max_output_mb = {launch.keeps / 1e6:g} in the site profile"
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(output.open("wb", buffering=0))
        printed = opened.enter_context(Printed(file, most=launch.keeps, said=setting))
        apart = None
        if errors is not None:
            said = opened.enter_context(errors.open("wb", buffering=0))
            apart = opened.enter_context(Printed(said, most=launch.keeps, said=setting))
        stdin = subprocess.DEVNULL if given is None else opened.enter_context(given.open("rb"))
        try:
            # A session of its own, so that the walltime limit reaches every process of the run.
            with FORKS:
                process = subprocess.Popen(
                    launch.words,
                    cwd=cwd,
                    env=launch.env,
                    stdin=stdin,
                    stdout=printed.end,
                    stderr=subprocess.STDOUT if apart is None else apart.end,
                    start_new_session=True,
                    preexec_fn=prepared(launch),
                )
        except OSError as error:
            raise not_started(launch, error) from None
        try:
            printed.begin()
            if apart is not None:
                apart.begin()
            if begun is not None:
                begun(functools.partial(_terminate, process))
            process.wait(timeout=limit.seconds)
        except subprocess.TimeoutExpired:
            stopped = True
        finally:
            # A launcher has the ranks of other hosts to end first.
            _end_group(process, grace_s=5 if launch.launcher is None else 10)
            if process.returncode != 0:
                # What MPICH leaves in memory, 1 MB, of a single rank that was killed (seen with 4.3).
                Path(f"/dev/shm/mpich_shm_{process.pid:x}_0").unlink(missing_ok=True)
    for taken, path in ((printed, output), (apart, errors)):
        if taken is not None and path is not None and taken.left_out:
            note(
                f"{taken.left_out:,} of the {taken.total:,} bytes that {Path(launch.words[0]).name} printed are "
                f"left out of {path.name}, before its end ({setting})"
            )
    return Finished(process.returncode, limit if stopped else None, time.monotonic() - started)


def not_started(launch: Launch, error: OSError) -> AppFailed:
    """The failure of a command that the system does not start."""
    return AppFailed(
        f"{launch.words[0]} cannot be started: {error.strerror}.",
        kind="infrastructure",
        name="NoExecutable" if launch.launcher is None else "NoLauncher",
    )


def run_mpi(
    run: Run,
    words: Sequence[str],
    *,
    app: str = "",
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    output: str = "output.txt",
) -> subprocess.CompletedProcess[str]:
    """Run a program in the run's directory, with the ranks and threads of its resources, where it was placed.

    Args:
        run: The run, as the app's function got it.
        words: The program and its arguments, without a launcher.
        app: Name of the table `[apps.NAME]` of the site profile that has a say in it.
        env: Variables for the program, beyond those of this process.
        timeout_s: Limit in place of the run's `walltime_s`, in seconds.
        output: File in the run's directory that takes what the program prints.

    Returns:
        As from `subprocess.run`: `returncode` (look at it, or call `check_returncode()`) and `stdout`, with
        what went to stderr in it. Of a program that prints more than the site's `max_output_mb` the first part
        and the end, with a line between them that says so; the run's notes say it, too.

    Raises:
        AppFailed: `Walltime` or `BlockEnded` when it was stopped, `NoExecutable`, `NoLauncher`, `NoPlace`.

    Example:
        >>> import tempfile
        >>> run_mpi(Run(workdir=Path(tempfile.mkdtemp())), ["echo", "hello"]).stdout
        'hello\\n'
    """
    launch = planned(run, words, app=app, env=env)
    path = run.workdir / output
    finished = finish(launch, cwd=run.workdir, output=path, limit=Limit.of(run, timeout_s=timeout_s))
    if finished.stopped is not None:
        raise finished.stopped.failure(wall_s=finished.wall_s, log_tail=read_tail(path))
    printed = path.read_text(errors="replace")  # no larger than what is kept
    return subprocess.CompletedProcess(launch.words, finished.returncode, printed, None)


def prepared(launch: Launch) -> Callable[[], None]:
    """What the child does before it becomes the program: pin itself, and ask to end with its parent."""
    cores = launch.cores if hasattr(os, "sched_setaffinity") else None
    polite = launch.launcher is not None

    def prepare() -> None:
        if cores:
            # Where a site's rules allow the worker fewer cores than its place says, it runs on those.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cores)
        if polite:
            _terminated_with_parent()
        else:
            die_with_parent()

    return prepare


# Loaded here: between fork and exec that could deadlock.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


_PR_SET_PDEATHSIG = 1


def _terminated_with_parent() -> None:
    """As `die_with_parent`, but by SIGTERM: a launcher then ends its ranks on other hosts, killed it could not."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _end_group(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    """End whatever is left of the process group: politely, then for good."""
    _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
    deadline = time.monotonic() + 1.0
    while _signal_group(process, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _terminate(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        _signal_group(process, signal.SIGTERM)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal what is left of the process group; says whether anything is."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
