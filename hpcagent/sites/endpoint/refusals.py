"""What went wrong on the way to an endpoint, told apart: network, login, a request, the endpoint, a worker."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from hpcagent.errors import AppFailed, HpcAgentError, SiteFailed
from hpcagent.shown import plain
from hpcagent.sites.endpoint.credentials import CLIENT_ID, expired, hidden

__all__ = [
    "LARGEST_BATCH",
    "Outage",
    "RequestRefused",
    "Stale",
    "Trouble",
    "bad_answer",
    "never_taken",
    "of_service",
    "of_task",
    "pause",
    "refused",
    "too_large",
]

LARGEST_BATCH = 9 * 1024 * 1024
"""Bytes of one submission as JSON; the service takes 10 MiB."""

_LONGEST = 600


class Outage(HpcAgentError):
    """The service does not answer, or asks for patience: the same again later. It may have taken what was sent."""


class RequestRefused(HpcAgentError):
    """The service does not take a submission as it is; one request in it may be the reason.

    Args:
        message: In the service's words.
        too_large: It has too many bytes.
    """

    def __init__(self, message: str, *, too_large: bool = False, **details: Any) -> None:
        super().__init__(message, too_large=too_large, **details)


class Stale(HpcAgentError):
    """What was known of the service is not so any more: `what` is `function` or `group`."""

    def __init__(self, message: str, *, what: str, **details: Any) -> None:
        super().__init__(message, what=what, **details)


def pause(failures: int, longest_s: float) -> float:
    """How long to wait after so many failures one after the other, in seconds."""
    return float(min(longest_s, 0.5 * 2 ** min(failures, 10))) * random.uniform(0.7, 1.0)


def too_large(size: int, limit: int = LARGEST_BATCH) -> AppFailed:
    """A request that is too large to be sent at all."""
    return AppFailed(
        f"The request has {size / 2**20:.1f} MiB, and {limit / 2**20:.0f} MiB is the most that is sent to Globus "
        "Compute at once. Put large files on the endpoint's file system, and name them by their path "
        "there.",
        kind="infrastructure",
        name="RequestTooLarge",
        size=size,
        limit=limit,
    )


def refused(error: RequestRefused, size: int) -> AppFailed:
    """A request that was submitted alone, and refused."""
    if error.details["too_large"]:
        return too_large(size, min(size, LARGEST_BATCH))
    return AppFailed(
        f"{error.message} Compare [user_endpoint_config] and the run's nodes and ranks with what the endpoint "
        "takes.",
        kind="infrastructure",
        name="SubmissionRefused",
    )


def never_taken(error: Outage) -> AppFailed:
    """A request that the service never took, while it took others."""
    return AppFailed(
        f"The service did not take this request, time and again, while it took others: {error.message}",
        kind="infrastructure",
        name="SubmissionRefused",
    )


def bad_answer(words: str) -> AppFailed:
    """What came back is not the answer to a request: nothing of it was used, nor unpickled."""
    return AppFailed(
        f"What the endpoint sent back is no answer in JSON to this request ({words}): another version of hpcagent "
        "there, or something else answers in its place.",
        kind="infrastructure",
        name="BadResult",
    )


class Trouble:
    """Tells of an outage once, again every few minutes, and of its end.

    Args:
        tell: Told in a sentence; None: nobody.
    """

    def __init__(self, tell: Callable[[str], None] | None, *, every_s: float = 300.0) -> None:
        self._tell = tell or (lambda _: None)
        self._every_s = every_s
        self._lock = threading.Lock()
        self._since: float | None = None
        self._told = 0.0

    def told(self, error: HpcAgentError) -> None:
        """It does not work (still)."""
        now = time.monotonic()
        with self._lock:
            again = self._since is not None
            if again and now - self._told < self._every_s:
                return
            self._since, self._told = self._since or now, now
            minutes = round((now - self._since) / 60)
        waiting = (
            f"for {minutes} minutes now; still trying" if again else "what is under way goes on; trying again"
        )
        self._tell(f"{error.message.rstrip('.')}: {waiting}")

    def over(self) -> None:
        """It works."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            self._tell(f"Globus Compute can be reached again, after {time.monotonic() - since:.0f} s")


def of_service(error: Exception, endpoint_id: str) -> HpcAgentError:
    """What an exception of Globus's client means.

    Args:
        error: From a request to the service.
        endpoint_id: Of the endpoint that it was about.

    Returns:
        `Outage`, `RequestRefused`, `Stale`, or `SiteFailed` where no other request would fare better.
    """
    import globus_sdk

    if isinstance(error, HpcAgentError):
        return error
    words = _words(error)
    if isinstance(error, globus_sdk.NetworkError):
        return Outage(f"Globus cannot be reached: {words}.")
    if isinstance(error, globus_sdk.GlobusAPIError):
        if isinstance(error, globus_sdk.AuthAPIError):
            return Outage(f"Globus Auth: {words}.") if _later(error.http_status) else expired(words)
        return _of_status(error.http_status, _code(error), words, endpoint_id)
    if _about_tokens(error):
        return expired(words)
    if isinstance(error, OSError):  # those of requests, certificates and sockets are, too
        return Outage(f"Globus does not answer as it should: {words}.")
    return RequestRefused(f"It could not be submitted: {words}.")


def _later(status: int) -> bool:
    return status in (408, 423, 425, 429) or status >= 500


def _of_status(status: int, code: str, words: str, endpoint_id: str) -> HpcAgentError:
    if _later(status):
        return Outage(f"Globus Compute answers {status}: {words}.")
    if status == 413:
        return RequestRefused(f"Globus Compute says that the submission is too large ({words}).", too_large=True)
    if status == 401:
        return expired(words)
    if "FUNCTION" in code and status == 404:
        return Stale(f"The registered function is not there any more: {words}", what="function")
    if "GROUP" in code and status in (403, 404):
        return Stale(f"The task group cannot be used: {words}", what="group")
    if status in (403, 404) and not endpoint_id:
        return RequestRefused(f"Globus Compute answers {status}: {words}.")
    if status == 403 and "FUNCTION" in code:
        return SiteFailed(
            f"The endpoint {endpoint_id} runs only functions that its administrator has allowed, and hpcagent's "
            f"is not among them: {words}."
        )
    if status == 403:
        return SiteFailed(
            f"The endpoint {endpoint_id} may not be used with these credentials: {words}. Ask its owner, or use "
            f"another login (`hpcagent globus login`, {CLIENT_ID})."
        )
    if status == 404:
        return SiteFailed(
            f"The endpoint {endpoint_id} is not known to Globus Compute: {words}. Compare endpoint_id in the site "
            "profile with `globus-compute-endpoint list` there."
        )
    return RequestRefused(f"Globus Compute answers {status}: {words}.")


def _code(error: Any) -> str:
    return str(error.code or "").upper()


def _words(error: BaseException) -> str:
    from globus_sdk import GlobusAPIError

    if isinstance(error, GlobusAPIError):
        body = error.raw_json if isinstance(error.raw_json, dict) else {}
        said = next(
            (body[name] for name in ("reason", "error_description", "error") if body.get(name)), error.text
        )
        said = error.message or said
        code = f"{error.code} " if error.code and error.code != "Error" else ""
        text = f"{code}{said}"
    else:
        inner = getattr(error, "underlying_exception", None) or error
        text = f"{type(inner).__name__}: {inner}"
    return plain(hidden(text)).strip().rstrip(".")[:_LONGEST]


def _about_tokens(error: Exception) -> bool:
    from globus_sdk.token_storage import TokenValidationError

    return isinstance(error, TokenValidationError)


# ---- what a task that failed says

_TASK = (
    # (pattern, name, kind, what it means)
    (r"\bWorkerLost\b", "WorkerLost", "infrastructure", "the endpoint's worker died under it"),
    (r"\bManagerLost\b", "ManagerLost", "infrastructure", "the endpoint lost the node or the job it was on"),
    (
        r"\bMaxResultSizeExceeded\b",
        "MaxResultSizeExceeded",
        "contract",
        "its answer is larger than the endpoint may send; let it write to files, which are fetched in pieces",
    ),
    (
        r"\bInvalidResourceSpecification\b",
        "InvalidResourceSpecification",
        "infrastructure",
        "the endpoint's engine does not take its nodes and ranks: MPI runs need an executor of mode `mpi` whose "
        "endpoint has the GlobusMPIEngine",
    ),
    (
        r"\b(?:AppTimeout|TaskTimeout|GC_TASK_TIMEOUT)\b",
        "Walltime",
        "infrastructure",
        "the endpoint's own limit (GC_TASK_TIMEOUT) was over",
    ),
    (
        r"\b(?:BadStateException|ScalingFailed|SubmitException)\b",
        "EndpointCannotStart",
        "infrastructure",
        "the endpoint gets no workers from its scheduler",
    ),
    (
        r"\b(?:DeserializationError|CouldNotExecuteUserTaskError|serializer \w+ disabled)\b",
        "EndpointRefused",
        "infrastructure",
        "the endpoint does not run hpcagent's function: another version, or an engine that does not take JSON",
    ),
    (
        r"(?i)\b(?:ValidationError|jsonschema|schema|user_endpoint_config|user_opts|TemplateError|UndefinedError|"
        r"failed to start|failed to initialize|configuration error|could not start)\b",
        "EndpointCannotStart",
        "infrastructure",
        "the endpoint cannot start a user endpoint as it was asked to: compare [user_endpoint_config] (for "
        "errands that of [control]) with the template's schema",
    ),
)


_REASON = re.compile(r"(?m)^.*(?:ValidationError|is not (?:one )?of |does not match |is a required property).*$")


def of_task(text: str) -> AppFailed:
    """The failure of a task that came back without an answer.

    Args:
        text: The endpoint's, a traceback as a rule.

    Example:
        >>> failure = of_task("parsl.executors.high_throughput.errors.WorkerLost: loss of worker 3")
        >>> failure.kind, failure.name
        ('infrastructure', 'WorkerLost')
    """
    text = plain(hidden(text[-20_000:])).strip()
    # Of a traceback the lines that are not indented say what was raised; lines of code may name anything.
    said = [line for line in text.splitlines() if line[:1].strip() and not line.startswith("Traceback")]
    brief = (said[-1] if said else text or "no words")[:500].rstrip(".")
    for pattern, name, kind, means in _TASK:
        naming = [line for line in said if re.search(pattern, line)]
        if naming:  # of a schema the reason, and not where in the configuration it was
            brief = (_REASON.findall(text) or naming)[-1].strip()[:500].rstrip(".")
            message = f"The task failed on the endpoint ({brief}): {means}."
            return AppFailed(message, kind=kind, name=name, log_tail=text[-4000:])
    message = f"The task failed on the endpoint before hpcagent could answer: {brief}."
    return AppFailed(message, kind="infrastructure", name="EndpointFailed", log_tail=text[-4000:])
