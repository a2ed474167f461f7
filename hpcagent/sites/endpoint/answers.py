"""What an endpoint answers, looked at as if a stranger had written it, before it becomes a result.

Numbers are finite, names are names, sizes have limits, and the answer is that of the run that was asked for. What
does not fit is a failed attempt (`BadResult`), never an exception in the coordinator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from hpcagent.errors import AppFailed, in_brief
from hpcagent.model.failures import known_kind
from hpcagent.model.records import Manifest, Remote, Result
from hpcagent.shown import plain

__all__ = ["answers_of", "error_of", "result_fields"]

MOST_BYTES = 4 * 2**20
"""Of one run's answer as JSON; its metrics, notes and list of files. Large things stay in files there."""
_LONGEST = 20_000
_FIELDS = frozenset(Result.model_fields) - {"manifest", "parts", "site"}


def answers_of(answer: Mapping[str, Any], runs: Sequence[str]) -> list[Any]:
    """The answers of a task's runs, one for each.

    Args:
        answer: Of the task.
        runs: Execution ids, in the order in which they were sent.

    Raises:
        AppFailed: `BadResult`: they are not as many as were asked for.
    """
    answers = answer.get("answers")
    if not isinstance(answers, list) or len(answers) != len(runs):
        count = len(answers) if isinstance(answers, list) else in_brief(answers)
        raise _bad(f"{len(runs)} run(s) were sent in one task, and it answered {count}")
    return answers


def error_of(answer: Mapping[str, Any]) -> AppFailed | None:
    """What kept a task from running at all, as the endpoint says it; None if nothing did."""
    error = answer.get("error")
    if error is None:
        return None
    if not isinstance(error, Mapping):
        return _bad(f"its error is {in_brief(error)}")
    kind = error.get("kind")
    return AppFailed(
        _text(error.get("message")) or "the endpoint answered with an error without words.",
        kind=known_kind(kind) if isinstance(kind, str) else "infrastructure",
        name=_word(error.get("name")),
        log_tail=_text(error.get("log_tail")),
        repair=_text(error.get("repair")) or None,
    )


def result_fields(
    answer: Any,  # whatever came
    manifest: Mapping[str, Any],
    *,
    attempt: int,
    workdir: str,
    site: str,
    endpoint_id: str,
) -> dict[str, Any]:
    """One run's answer as the fields of a `Result`: those of `apps.worker.execute`, with `remote`.

    Args:
        answer: As it came.
        manifest: Of the run that was sent.
        attempt: Which one.
        workdir: The run's directory here, which is not made.
        site: Name of the site.
        endpoint_id: The endpoint.

    Raises:
        AppFailed: `BadResult`, with what does not fit.
    """
    if not isinstance(answer, dict):
        raise _bad(f"the answer is {in_brief(answer)} and no object")
    size = len(json.dumps(answer))
    if size > MOST_BYTES:
        raise _bad(f"the answer has {size} bytes, where {MOST_BYTES} are taken")
    fields = {name: value for name, value in answer.items() if name in _FIELDS and name != "remote"}
    for name in ("metrics", "uncertainty"):
        _finite(name, fields.get(name, {}))
    for name in ("started_at", "ended_at"):
        _finite(name, {"": fields.get(name, 0.0)})
    said = answer.get("remote")
    artifacts = fields.get("artifacts")
    named = artifacts.values() if isinstance(artifacts, dict) else ()
    remote, notes = Remote.of(
        said if isinstance(said, Mapping) else {},
        site=site,
        endpoint_id=endpoint_id,
        named=[name for name in named if isinstance(name, str)],
    )
    left_out = sorted(in_brief(str(name)) for name in answer.keys() - _FIELDS - {"found", "site"})
    if left_out:
        notes = (
            *notes,
            f"the endpoint's answer had fields that no result has, left out: {', '.join(left_out[:5])}",
        )
    if notes:
        before = fields.get("notes")
        fields["notes"] = [*(before if isinstance(before, list) else ()), *notes]
    fields |= {"site": site, "workdir": workdir, "attempt": attempt, "remote": remote.model_dump(mode="json")}
    try:
        checked = Result.model_validate({"manifest": Manifest.model_validate(manifest), **fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _bad(f"{where} is {in_brief(first.get('input'))}: {first['msg']}") from None
    early = checked.status == "STOPPED" and checked.stopped is not None
    if checked.failure is None and checked.status != "COMPLETED" and not early:
        raise _bad(f"its status is {checked.status}, and it has no failure")
    if answer.get("found") is True:
        fields["found"] = True
    return fields


def _finite(where: str, numbers: Any) -> None:
    if not isinstance(numbers, dict):
        raise _bad(f"{where} is {in_brief(numbers)}")
    for name, value in numbers.items():
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        try:
            known = known and math.isfinite(value)
        except OverflowError:
            known = False
        if not known:
            raise _bad(
                f"{where}{'.' if name else ''}{in_brief(name) if name else ''} is {in_brief(value)} and no number"
            )


def _text(given: Any) -> str:
    return plain(given)[:_LONGEST] if isinstance(given, str) else ""


def _word(given: Any) -> str:
    good = isinstance(given, str) and given.isidentifier() and len(given) <= 80
    return given if good else "EndpointError"


def _bad(words: str) -> AppFailed:
    return AppFailed(
        f"what the endpoint answered is no result: {words}. Does it have another version of hpcagent? "
        "`hpcagent doctor --site SITE` compares them.",
        kind="infrastructure",
        name="BadResult",
    )
