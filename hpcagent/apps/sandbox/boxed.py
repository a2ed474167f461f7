"""The sandbox of a run: its program is started there, and what was declared is taken out into its directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcagent.apps.ending import Finished
from hpcagent.apps.launch import Launch
from hpcagent.apps.run import Run, note
from hpcagent.apps.sandbox.calls import refuse_of_sandbox
from hpcagent.apps.sandbox.confined import Confined, confined
from hpcagent.apps.sandbox.outputs import Left, taken_out
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.errors import AppFailed
from hpcagent.redacted import clean_environment, is_credential

__all__ = ["FOLDER", "Box", "box_of", "given_variables", "refuse_ranks"]

FOLDER = "sandbox"
"""Of a sandbox in the run's directory, while the run goes on."""


@dataclass(slots=True)
class Box:
    """A sandbox in the directory of a run.

    Attributes:
        run: The run.
        confined: The sandbox.
        read: Files and folders that the program must be able to read beside what lies in its own directory.
    """

    run: Run
    confined: Confined
    read: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The program's directory."""
        return self.confined.work

    def started_by(self, launch: Launch) -> Launch:
        """What is started in place of the command."""
        given = given_variables(launch.env)
        program = launch.words[0]
        read = [program] if Path(program).is_absolute() and Path(program).is_file() else []
        words = self.confined.words(launch.words, env=given, read=[*self.read, *read])
        return replace(launch, words=words, env=clean_environment(allow=self.confined.asked.pass_env))

    def ended(
        self,
        finished: Finished,
        declared: Sequence[str],
        *,
        given: Iterable[str] = (),
        errors: str = "",
        log_tail: str = "",
        whatever: bool = False,
    ) -> Left:
        """Take the outputs out, when the program has ended.

        Args:
            finished: How it has ended.
            declared: Names or patterns of the files that may leave.
            given: Names of files that were put there for it.
            errors: What it printed to stderr.
            log_tail: Last lines of what it printed.
            whatever: Whether they are taken of a program, too, that a limit has ended: it goes on from them.

        Raises:
            AppFailed: `SandboxLimit`, `SandboxLost`, `SandboxFailed`, `OutputsTooLarge`.
        """
        _, broken = self.confined.found(log_tail=log_tail)
        if broken is not None and not whatever:
            raise broken
        refuse_of_sandbox(finished.returncode, errors)
        most_bytes = int(1e6 * self.confined.asked.output_mb)
        try:
            left = taken_out(self.folder, self.run.workdir, declared, given=given, most_bytes=most_bytes)
        except AppFailed:
            if broken is not None:
                raise broken from None
            raise
        if left.said():
            note(left.said())
        note(self.confined.said())
        if broken is not None:
            raise broken
        return left


def given_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that were set for this program, beside those that its worker has; a credential is none of them."""
    own = {name: value for name, value in env.items() if os.environ.get(name) != value}
    secret = sorted(name for name in own if is_credential(name))
    if secret:
        note(f"{', '.join(secret)} of the site profile did not reach the program, which is not trusted with it")
    return {name: value for name, value in own.items() if name not in secret}


def refuse_ranks(run: Run, what: str) -> None:
    """Refuse a run of several MPI ranks.

    Args:
        run: The run.
        what: What confines it: `sandbox`, `container`.

    Raises:
        AppFailed: `BadParameter`.
    """
    ranks = int(run.resources.get("nodes") or 1) * int(run.resources.get("ranks_per_node") or 1)
    if ranks > 1:
        raise AppFailed(
            f"a program in a {what} has one rank, and the run asks for {ranks}; give it threads_per_rank.",
            kind="contract",
            name="BadParameter",
        )


@contextmanager
def box_of(run: Run) -> Iterator[Box]:
    """The sandbox of a run, as its setting `sandbox` says; its folder is gone afterwards.

    Raises:
        AppFailed: `NoSandbox`, or the run has several ranks.
    """
    refuse_ranks(run, "sandbox")
    made = confined(run.workdir / FOLDER, Sandbox.model_validate(run.settings["sandbox"]))
    try:
        yield Box(run, made)
    finally:
        made.remove()
