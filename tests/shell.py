"""The command `hpcagent` in a fork of this process, which has imported what it needs: a start costs no second of imports.

For what is read and refused. Runs, signals and what a shell does begin `hpcagent` as users do.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

__all__ = ["forked"]

LONGEST_S = 120.0

# What the commands import when they are asked for.
WARM = (
    *("numpy", "hpcagent.cli", "hpcagent.catalog", "hpcagent.campaign.loading", "hpcagent.campaign.dry_run"),
    *("hpcagent.science.lammps.contract", "hpcagent.sites.profiles", "hpcagent.model.remote"),
)


def forked(
    *words: object, cwd: Path, env: Mapping[str, str] | None = None, input: str = ""
) -> subprocess.CompletedProcess[str]:
    """What `hpcagent WORDS` prints, and its exit code; `env` and `input` as those of `subprocess.run`.

    Raises:
        TimeoutError: It did not end; it was killed.
    """
    for name in WARM:
        importlib.import_module(name)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(input.encode())
        given.seek(0)
        child = os.fork()
        if child == 0:
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            streams = given.fileno(), out.fileno(), err.fileno()
            os._exit(_command([str(word) for word in words], cwd, streams))
        end = time.monotonic() + LONGEST_S
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise TimeoutError(f"hpcagent {' '.join(map(str, words))}: not ended after {LONGEST_S:g} s")
            time.sleep(0.005)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess(list(words), os.waitstatus_to_exitcode(ended[1]), *texts)


def _command(words: list[str], cwd: Path, streams: tuple[int, int, int]) -> int:
    """The command line in this process, which is a fork of its own; returns its exit code."""
    try:
        os.setsid()
        os.chdir(cwd)
        for target, source in enumerate(streams):
            os.dup2(source, target)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["hpcagent", *words]
        from hpcagent.cli import main

        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code
