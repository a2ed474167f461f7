"""What came back from a worker, as a result: an answer, or the error that took its run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcagent.campaign.state import State, result_event
from hpcagent.errors import AppFailed
from hpcagent.model.base import explain
from hpcagent.model.failures import KINDS
from hpcagent.model.records import Failure, Manifest, Result
from hpcagent.sites.ended import failure_of

__all__ = ["Returned", "answers_of"]


def answers_of(manifests: Sequence[Manifest], future: Future[Any]) -> Iterator[tuple[Manifest, Any]]:
    """Each manifest of a pack with its worker's answer, or with the error that took the whole pack."""
    error = future.exception()
    if error is not None:
        return ((m, error) for m in manifests)
    answer = future.result()
    return zip(manifests, answer if isinstance(answer, list) else [answer], strict=True)


class Returned:
    """Makes results of answers.

    Args:
        state: What is known.
        place_of: Execution id -> the folder in which the run's own directory is.
        site_of: Execution id -> the name of the site where it ran.
        note_of: What is to be said of the files of a run; empty: nothing.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        state: State,
        *,
        place_of: Callable[[str], Path],
        site_of: Callable[[str], str],
        note_of: Callable[[Manifest], str],
        clock: Callable[[], float],
    ) -> None:
        self._state, self._clock = state, clock
        self._place_of, self._site_of, self._note_of = place_of, site_of, note_of
        self._versions: dict[str, str] | None = None

    def result(self, manifest: Manifest, answer: dict[str, Any] | BaseException) -> tuple[Result, dict[str, Any]]:
        """The result, and how it stands in the journal."""
        if isinstance(answer, dict):
            answer = self._with_note(manifest, self._with_versions_said(answer))
            fields = {k: v for k, v in answer.items() if k != "found"}
            try:
                result = Result.model_validate({"manifest": manifest, **fields})
            except ValidationError as error:
                answer = self._misfit(manifest, error)
            else:
                return result, {"execution_id": manifest.execution_id, **answer}
        kind, name, message = failure_of(answer)
        now, identity = self._clock(), manifest.execution_id
        result = Result(
            manifest=manifest,
            status=KINDS[kind].status,
            failure=Failure(kind=kind, name=name, message=message),
            started_at=now,
            ended_at=now,
            site=self._site_of(identity),
            workdir=str(self._place_of(identity) / identity),
            attempt=self._state.retried.get(identity, 1),
        )
        return result, result_event(result)

    def _misfit(self, manifest: Manifest, error: ValidationError) -> AppFailed:
        """What an answer means that is no result: a worker of another version, or a file that was changed."""
        path = self._place_of(manifest.execution_id) / manifest.execution_id / "result.json"
        with contextlib.suppress(OSError):  # else the next attempt would find it again
            path.rename(path.with_name("result.json.damaged"))
        return AppFailed(
            f"{explain(Result, error, str(path)).message} It is kept as result.json.damaged.",
            kind="infrastructure",
            name="BadResult",
        )

    def _with_versions_said(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer with a note, if a program has another version than in earlier runs of the campaign."""
        versions = answer.get("versions") or {}
        if self._versions is None:
            earlier = (*self._state.results.values(), *self._state.part_results.values())
            self._versions = {name: version for r in earlier for name, version in r.versions.items()}
        other = [
            f"{name} {version}, earlier runs of this campaign with {self._versions[name]}"
            for name, version in versions.items()
            if self._versions.setdefault(name, version) != version
        ]
        if not other:
            return answer
        return {**answer, "notes": [*answer.get("notes", ()), f"computed with {'; '.join(other)}"]}

    def _with_note(self, manifest: Manifest, answer: dict[str, Any]) -> dict[str, Any]:
        note = self._note_of(manifest)
        if not note or note in answer.get("notes", ()):
            return answer
        return {**answer, "notes": [*answer.get("notes", ()), note]}
