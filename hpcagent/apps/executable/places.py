"""Where a program of a run is: in the run's own directory, in a sandbox, or in a container."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcagent.apps.ending import Finished
from hpcagent.apps.executable.container import (
    IMAGE,
    container_words,
    refuse_of_runtime,
    remove_container,
)
from hpcagent.apps.executable.record import OUTPUT, PRINTED
from hpcagent.apps.launch import Launch
from hpcagent.apps.run import Run, note
from hpcagent.apps.sandbox.boxed import Box, box_of, given_variables, refuse_ranks
from hpcagent.apps.sandbox.outputs import taken_out
from hpcagent.errors import AppFailed

__all__ = ["Place", "place_of"]


@dataclass(slots=True)
class Place:
    """The run's own directory: nothing is kept from the program.

    Attributes:
        run: The run.
        folder: The program's directory.
        read: Files that it must be able to read beside what lies there.
        finished: How it has ended; None before.
    """

    run: Run
    folder: Path
    read: list[str] = field(default_factory=list)
    finished: Finished | None = None

    def started_by(self, launch: Launch) -> Launch:
        """What is started in place of the command."""
        return launch

    def ended(self, *, errors: str, log_tail: str) -> None:
        """Take the outputs out, when the program has ended.

        Raises:
            AppFailed: It was ended by what confines it, or was never started.
        """

    def left(self) -> None:
        """Tidy up; whatever has happened."""


@dataclass(slots=True)
class _InBox(Place):
    box: Box | None = None

    def started_by(self, launch: Launch) -> Launch:
        assert self.box is not None
        self.box.read += self.read
        return self.box.started_by(launch)

    def ended(self, *, errors: str, log_tail: str) -> None:
        assert self.box is not None
        assert self.finished is not None
        declared, given = _declared(self.run.settings)
        self.box.ended(self.finished, declared, given=given, errors=errors, log_tail=log_tail)


@dataclass(slots=True)
class _InContainer(Place):
    name: str = ""
    runtime: str = ""

    def started_by(self, launch: Launch) -> Launch:
        settings = self.run.settings["container"]
        file = self.run.settings["paths"].get(IMAGE)
        if file is not None and not Path(file).is_file():  # one of another content is refused before
            raise AppFailed(f"the image {file} is gone.", kind="contract", name="MissingFile")
        words = [] if settings.get("entrypoint") else launch.words
        given = given_variables(launch.env)
        words, env, self.runtime = container_words(
            settings, words, work=self.folder, name=self.name, env=given, file=file, read=self.read
        )
        return replace(launch, words=words, env=env)

    def ended(self, *, errors: str, log_tail: str) -> None:
        assert self.finished is not None
        refuse_of_runtime(self.runtime, self.finished.returncode, errors or log_tail)
        settings = self.run.settings["container"]
        declared, given = _declared(self.run.settings)
        most_bytes = int(1e6 * settings["output_mb"])
        left = taken_out(self.folder, self.run.workdir, declared, given=given, most_bytes=most_bytes)
        if left.said():
            note(left.said())
        network = "with" if settings["network"] else "without"
        note(f"ran in a container of {self.runtime}, {network} network; image {settings['digest']}")

    def left(self) -> None:
        ended = self.finished
        if self.runtime and (ended is None or ended.stopped is not None or ended.returncode < 0):
            remove_container(self.runtime, self.name)
        shutil.rmtree(self.folder.parent, ignore_errors=True)


def _declared(settings: Mapping[str, Any]) -> tuple[list[str], tuple[str, ...]]:
    """Names or patterns of the files that may leave, and names of those that were put there."""
    files = {how.get("file", PRINTED) for how in (*settings["metrics"].values(), *settings["failures"].values())}
    declared = [*sorted(files - {PRINTED, OUTPUT}), *settings["artifacts"].values()]
    return declared, (*settings["templates"], *settings["copies"], *settings["links"])


@contextmanager
def place_of(run: Run) -> Iterator[Place]:
    """The place of a run's program; what was made for it is gone afterwards.

    Raises:
        AppFailed: `NoSandbox`, or it has several ranks in a sandbox or container.
    """
    settings = run.settings
    with ExitStack() as opened:
        place: Place
        if settings.get("sandbox") is not None:
            box = opened.enter_context(box_of(run))
            place = _InBox(run, box.folder, box=box)
        elif settings.get("container") is not None:
            refuse_ranks(run, "container")
            folder = run.workdir.absolute() / "container" / "work"
            folder.mkdir(parents=True)
            place = _InContainer(run, folder, name=f"hpcagent-{run.execution_id or os.getpid()}")
        else:
            place = Place(run, run.workdir)
        place.read = [] if type(place) is Place else [settings["paths"][name] for name in settings["links"]]
        opened.callback(place.left)
        yield place
