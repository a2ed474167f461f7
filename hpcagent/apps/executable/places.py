"""Where a program of a run is: in the run's own directory, in a sandbox, or in a container."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcagent.apps.executable.container import (
    IMAGE,
    container_words,
    refuse_of_runtime,
    remove_container,
)
from hpcagent.apps.executable.record import OUTPUT, PRINTED
from hpcagent.apps.launch import Finished, Launch
from hpcagent.apps.run import Run, note
from hpcagent.apps.sandbox.calls import refuse_of_sandbox
from hpcagent.apps.sandbox.confined import Confined, confined
from hpcagent.apps.sandbox.outputs import taken_out
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.errors import AppFailed
from hpcagent.redacted import clean_environment, is_credential

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
    box: Confined | None = None

    def started_by(self, launch: Launch) -> Launch:
        assert self.box is not None
        given = _given(launch.env)
        program = launch.words[0]
        read = [program] if Path(program).is_absolute() and Path(program).is_file() else []
        words = self.box.words(launch.words, env=given, read=[*self.read, *read])
        return replace(launch, words=words, env=clean_environment(allow=self.box.asked.pass_env))

    def ended(self, *, errors: str, log_tail: str) -> None:
        assert self.box is not None
        self.box.ended(log_tail=log_tail)
        assert self.finished is not None
        refuse_of_sandbox(self.finished.returncode, errors)
        _take(self, self.box.asked.output_mb)
        note(self.box.said())

    def left(self) -> None:
        assert self.box is not None
        self.box.remove()


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
        words, env, self.runtime = container_words(
            settings, words, work=self.folder, name=self.name, env=_given(launch.env), file=file, read=self.read
        )
        return replace(launch, words=words, env=env)

    def ended(self, *, errors: str, log_tail: str) -> None:
        assert self.finished is not None
        refuse_of_runtime(self.runtime, self.finished.returncode, errors or log_tail)
        settings = self.run.settings["container"]
        _take(self, settings["output_mb"])
        network = "with" if settings["network"] else "without"
        note(f"ran in a container of {self.runtime}, {network} network; image {settings['digest']}")

    def left(self) -> None:
        ended = self.finished
        if self.runtime and (ended is None or ended.stopped is not None or ended.returncode < 0):
            remove_container(self.runtime, self.name)
        shutil.rmtree(self.folder.parent, ignore_errors=True)


def _given(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that were set for this program, beside those that its worker has; a credential is none of them."""
    own = {name: value for name, value in env.items() if os.environ.get(name) != value}
    secret = sorted(name for name in own if is_credential(name))
    if secret:
        note(f"{', '.join(secret)} of the site profile did not reach the program, which is not trusted with it")
    return {name: value for name, value in own.items() if name not in secret}


def _take(place: Place, most_mb: float) -> None:
    settings = place.run.settings
    files = {how.get("file", PRINTED) for how in (*settings["metrics"].values(), *settings["failures"].values())}
    declared = [*sorted(files - {PRINTED, OUTPUT}), *settings["artifacts"].values()]
    given = (*settings["templates"], *settings["copies"], *settings["links"])
    left = taken_out(place.folder, place.run.workdir, declared, given=given, most_bytes=int(1e6 * most_mb))
    if left.said():
        note(left.said())


def _refuse_ranks(run: Run, what: str) -> None:
    ranks = int(run.resources.get("nodes") or 1) * int(run.resources.get("ranks_per_node") or 1)
    if ranks > 1:
        raise AppFailed(
            f"a program in a {what} has one rank, and the run asks for {ranks}; give it threads_per_rank.",
            kind="contract",
            name="BadParameter",
        )


@contextmanager
def place_of(run: Run) -> Iterator[Place]:
    """The place of a run's program; what was made for it is gone afterwards.

    Raises:
        AppFailed: `NoSandbox`, or it has several ranks in a sandbox or container.
    """
    settings = run.settings
    place: Place
    if settings.get("sandbox") is not None:
        _refuse_ranks(run, "sandbox")
        box = confined(run.workdir / "sandbox", Sandbox(**settings["sandbox"]))
        place = _InBox(run, box.work, box=box)
    elif settings.get("container") is not None:
        _refuse_ranks(run, "container")
        folder = run.workdir.absolute() / "container" / "work"
        folder.mkdir(parents=True)
        place = _InContainer(run, folder, name=f"hpcagent-{run.execution_id or os.getpid()}")
    else:
        place = Place(run, run.workdir)
    place.read = [] if type(place) is Place else [settings["paths"][name] for name in settings["links"]]
    try:
        yield place
    finally:
        place.left()
