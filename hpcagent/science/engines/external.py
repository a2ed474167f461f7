"""Programs that an engine starts: where they are, and running one within the run's limit."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcagent.apps.ending import Limit, finish
from hpcagent.apps.launch import planned
from hpcagent.apps.printed import read_text
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed

__all__ = ["Ended", "Program", "program"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended.

    Attributes:
        returncode: Exit code; negative for a signal.
        stopped: The limit that stopped it, or None.
        wall_s: How long it ran, in seconds.
        text: What it wrote, as far as it can be read.
        ranks: MPI ranks that were asked for.
    """

    returncode: int
    stopped: Limit | None
    wall_s: float
    text: str
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Program:
    """A program of an engine, ready to be started as often as the engine needs it.

    Its limit counts from when this was made, for all starts together: a relaxation has the walltime once, not for
    each of its steps.

    Attributes:
        run: Says how many ranks and threads, and with which launcher.
        app: The table `[apps.NAME]` of the site profile.
        words: The command, without a launcher.
    """

    run: Run
    app: str
    words: tuple[str, ...]
    limit: Limit
    since: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        """Until the run's limit."""
        return self.limit.seconds - (time.monotonic() - self.since)

    def start(self, *words: str, cwd: Path, output: str) -> Ended:
        """Start it with these words behind its command and wait for its end; what it prints goes to `output`."""
        launch = planned(self.run, [*self.words, *words], app=self.app)
        left = Limit(self.seconds_left, self.limit.by)
        finished = finish(launch, cwd=cwd, output=cwd / output, limit=left)
        text = read_text(cwd / output)
        ranks = int(self.run.resources.get("nodes") or 1) * int(self.run.resources.get("ranks_per_node") or 1)
        stopped = self.limit if finished.stopped else None
        return Ended(finished.returncode, stopped, finished.wall_s, text, ranks)


def program(
    run: Run, app: str, *, options: Mapping[str, Any], variables: Sequence[str], usual: Sequence[str], advice: str
) -> Program:
    """Find a program: the site's command, the setting `command`, an environment variable, or the PATH.

    Args:
        run: With the site's `[apps.NAME].command`.
        app: NAME, e.g. `espresso`.
        options: The level's options.
        variables: Environment variables that may hold the command, in order.
        usual: Names it usually has on the PATH.
        advice: How to get it.

    Raises:
        AppFailed: `NoExecutable`.
    """
    of_site = ((run.site.get("apps") or {}).get(app) or {}).get("command")
    places = [
        (f"the command of [apps.{app}] in the site profile", of_site),
        ("the setting `command`", options.get("command")),
        *((f"${name}", os.environ.get(name)) for name in variables),
    ]
    for place, given in places:
        if given:
            words = shlex.split(given) if isinstance(given, str) else [str(word) for word in given]
            found = shutil.which(words[0])
            if found is None:
                raise AppFailed(
                    f"no executable for {app}: {words[0]!r}, from {place}, is not there or not executable.",
                    kind="infrastructure",
                    name="NoExecutable",
                    repair=f"correct {place}",
                )
            # Absolute, for it is started in the run's directory.
            return Program(run, app, (str(Path(found).absolute()), *words[1:]), Limit.of(run))
    for name in usual:
        found = shutil.which(name)
        if found is not None:
            return Program(run, app, (found,), Limit.of(run))
    looked = [f"the site profile has no [apps.{app}] command", *(f"${name} is not set" for name in variables)]
    if usual:
        looked.append(f"PATH has no {' or '.join(usual)}")
    raise AppFailed(
        f"no executable for {app}: {', '.join(looked)}. {advice}", kind="infrastructure", name="NoExecutable"
    )
