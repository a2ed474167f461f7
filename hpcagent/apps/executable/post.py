"""Posts the parameters of a run to a service and reads its answer."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import math
import os
import random
import re
import socket
import ssl
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpcagent.apps.ending import Limit
from hpcagent.apps.executable.answers import answer_of, in_units
from hpcagent.apps.executable.reading import number_of
from hpcagent.apps.executable.record import Reading
from hpcagent.apps.executable.service import is_loopback, url_shown
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.redacted import redacted, secret_values

__all__ = ["service_run"]

ANSWER = "answer.json"
_AGAIN = (429, 502, 503, 504)
_DENIED = (401, 403, 407)
_PIECE = 1 << 16
_AGENT = "hpcagent"
_THE_ANSWER = "the answer"


def service_run(run: Run, **params: float | int | str) -> Outcome:
    """Post these parameters to the service and read its answer, which is kept as `answer.json`.

    A request has the run's execution id as its Idempotency-Key: a service that knows it does the work once,
    however often the request is sent.

    Args:
        run: Directory, execution id, settings.
        params: Values of the parameters, already checked against the contract.

    Returns:
        Metrics with their standard errors.

    Raises:
        AppFailed: One of the service's `FAILURE_MODES`.
    """
    asked = run.settings["http"]
    call = _Call(asked, run.execution_id, _body(run, params), Limit.of(run), _credential(asked))
    text = call.answered()
    (run.workdir / ANSWER).write_text(call.clean(text.decode(errors="replace")))
    metrics = {name: Reading(**how) for name, how in run.settings["metrics"].items()}
    try:
        answer = answer_of(text, "the answer", url_shown(asked))
        outcome = _read(run, metrics, answer.result, answer.units, required=asked["units"] == "required")
    except AppFailed as error:
        raise call.cleaned(error) from None
    notes = tuple(call.clean(note) for note in (*call.notes, *outcome.notes))
    return Outcome(
        metrics=outcome.metrics, uncertainty=outcome.uncertainty, notes=notes, artifacts={"answer": ANSWER}
    )


def _body(run: Run, params: Mapping[str, Any]) -> bytes:
    settings = run.settings
    arguments = dict(settings["constants"]) | dict(params)
    if settings["http"]["send"] == "arguments":
        return json.dumps(arguments, allow_nan=False).encode()
    whole = {
        "app": settings["name"],
        "version": settings["version"],
        "execution_id": run.execution_id,
        "seed": run.seed,
        "arguments": arguments,
        "units": {name: unit for name, unit in settings["input_units"].items() if name in arguments},
    }
    return json.dumps(whole, allow_nan=False).encode()


def _read(
    run: Run, metrics: Mapping[str, Reading], result: Any, units: Mapping[str, str], *, required: bool
) -> Outcome:
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    notes: list[str] = []
    documents = {_THE_ANSWER: result}
    for name, how in metrics.items():
        key = how.key if isinstance(how.key, str) else ".".join(map(str, how.key or ()))
        try:
            number = in_units(name, how, number_of(name, _in_the_answer(how), run.workdir, documents), units)
            if required and key not in units:
                raise AppFailed(
                    f"the answer has no unit for {key!r}, and units are required.",
                    kind="contract",
                    name="WrongUnit",
                )
        except AppFailed as error:
            if how.required:
                raise
            notes.append(f"{error.message} It is left out, as it may be absent.")
            continue
        if not math.isfinite(number.value):
            raise AppFailed(
                f"the metric {name!r} is {number.value:g} in the answer.", kind="simulation", name="NotFinite"
            )
        values[name] = number.value
        if number.error == number.error:
            errors[name] = number.error
    return Outcome(metrics=values, uncertainty=errors, notes=tuple(notes))


def _in_the_answer(how: Reading) -> Reading:
    """As it is, for messages that do not speak of a file."""
    return how.model_copy(update={"file": _THE_ANSWER})


# ---- the credential


def _credential(asked: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """(header, its value, the credential), read now; nobody else keeps it."""
    where = asked.get("credential")
    if where is None:
        return None
    if where.get("env") is not None:
        value, place = os.environ.get(where["env"], ""), f"the variable {where['env']}"
    else:
        value, place = _from_file(Path(where["file"]).expanduser()), f"the file {where['file']}"
    value = value.strip()
    if not value or not value.isascii() or any(ord(c) < 33 for c in value):
        why = "is not set" if not value else "has more than one line or word, or is not ASCII"
        raise _no_credential(f"{place}, in which the credential of the service is, {why}.")
    scheme = where["scheme"]
    return where["header"], f"{scheme} {value}" if scheme else value, value


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_mode & 0o077:
                raise _no_credential(f"others than its owner may read {path}: chmod 600 it.")
            return file.read(100_000).decode()
    except OSError as error:
        raise _no_credential(
            f"the file {path}, in which the credential is, cannot be read: {error.strerror}."
        ) from None
    except UnicodeDecodeError:
        raise _no_credential(f"the file {path} is no text.") from None


def _no_credential(message: str) -> AppFailed:
    return AppFailed(
        message,
        kind="infrastructure",
        name="NoCredential",
        repair="put it where the runs are: a variable of the workers, or a file that only you may read",
    )


# ---- the request


class _Broken(Exception):
    """No connection, or one that ended before the whole answer was there."""


@dataclass(slots=True)
class _Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes


@dataclass(slots=True)
class _Call:
    """One request, sent until it is answered."""

    asked: Mapping[str, Any]
    key: str
    body: bytes
    limit: Limit
    credential: tuple[str, str, str] | None
    notes: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def clean(self, text: str) -> str:
        """A text of the service's without the credential that it was sent."""
        own = (self.credential[1], self.credential[2]) if self.credential else ()
        return redacted(text, secrets=(*own, *secret_values()))

    def cleaned(self, error: AppFailed) -> AppFailed:
        details: dict[str, Any] = {k: self.clean(v) if isinstance(v, str) else v for k, v in error.details.items()}
        return AppFailed(self.clean(error.message), **details)

    def answered(self) -> bytes:
        """The body of an answer with status 200 or 201.

        Raises:
            AppFailed: There is none.
        """
        where = url_shown(self.asked)
        for attempt in range(self.asked["retries"] + 1):
            wait: float | None = None
            tries = f", {attempt + 1} times" if attempt else ""
            try:
                reply = self._sent()
            except _Broken as error:
                said = f"{where}: {error}"
                failure = AppFailed(f"{said}{tries}.", kind="infrastructure", name="ServiceUnreachable")
            else:
                again = reply.status in _AGAIN and (reply.status != 429 or "Retry-After" in reply.headers)
                if not again:
                    return self._accepted(reply)
                said = f"{where} answered {_status(reply)}"
                failure = AppFailed(f"{said}{tries}.", kind="infrastructure", name="ServiceBusy")
                wait = _retry_after(reply.headers.get("Retry-After"))
            if attempt == self.asked["retries"]:
                break
            if wait is not None and wait > self.asked["most_wait_s"]:
                asks = f"asks to wait {wait:.0f} s; most_wait_s is {self.asked['most_wait_s']:g} s"
                failure = AppFailed(f"{said}, and {asks}.", kind="infrastructure", name="ServiceBusy")
                break
            self._wait(wait, attempt)
            self.notes.append(f"sent again (number {attempt + 2}): {said}")
        raise self.cleaned(failure)

    def _wait(self, asked_s: float | None, attempt: int) -> None:
        most = min(self.asked["first_wait_s"] * 2.0**attempt, self.asked["most_wait_s"])
        # Not all at once: many runs may have met the same restart of the service.
        wait = asked_s if asked_s is not None else most * random.uniform(0.5, 1.0)
        left = self._left()
        if wait >= left:
            raise self.limit.failure(wall_s=time.monotonic() - self.begun)
        time.sleep(wait)

    def _left(self) -> float:
        return self.limit.seconds - (time.monotonic() - self.begun)

    def _accepted(self, reply: _Reply) -> bytes:
        where, status = url_shown(self.asked), reply.status
        said = f"{where} answered {_status(reply)}"
        if status in (200, 201):
            kind = reply.headers.get_content_type()
            if kind != "application/json" and not kind.endswith("+json"):
                raise self.cleaned(
                    AppFailed(
                        f"{said} with {kind}, and JSON (application/json) is expected: {_beginning(reply.body)}",
                        kind="contract",
                        name="BadOutput",
                    )
                )
            encoding = reply.headers.get("Content-Encoding", "identity").lower()
            if encoding != "identity":
                raise self.cleaned(
                    AppFailed(
                        f"{said} packed with {encoding}, which was not asked for.",
                        kind="contract",
                        name="BadOutput",
                    )
                )
            return reply.body
        if 300 <= status < 400:
            there = reply.headers.get("Location", "no address")[:200]
            raise self.cleaned(
                AppFailed(
                    f"{said} and sends us to {there}, where nothing is posted to.",
                    kind="contract",
                    name="Redirected",
                    repair="write the other address into url, if it is right",
                )
            )
        body = _beginning(reply.body)
        if status in _DENIED:
            raise self.cleaned(
                AppFailed(
                    f"{said}: it does not take the credential: {body}", kind="infrastructure", name="ServiceDenied"
                )
            )
        if status in (408, 425, 429):
            raise self.cleaned(AppFailed(f"{said}: {body}", kind="infrastructure", name="ServiceBusy"))
        if status >= 500:
            raise self.cleaned(AppFailed(f"{said}: {body}", kind="infrastructure", name="ServiceFailed"))
        if 400 <= status < 500:
            raise self.cleaned(AppFailed(f"{said}: {body}", kind="contract", name="ServiceRefused"))
        raise self.cleaned(AppFailed(f"{said}, where 200 is expected: {body}", kind="contract", name="BadOutput"))

    def _sent(self) -> _Reply:
        """Send it once.

        Raises:
            _Broken: It may be sent again.
            AppFailed: It took too long, or the answer is too large.
        """
        left = self._left()
        if left <= 0:
            raise self.limit.failure(wall_s=time.monotonic() - self.begun)
        limit_s = min(self.asked["timeout_s"], left)
        parts = urlsplit(self.asked["url"])
        host, secure = parts.hostname or "", parts.scheme == "https"
        connection: http.client.HTTPConnection
        if secure:
            context = ssl.create_default_context(cafile=self.asked.get("ca_file"))
            connection = http.client.HTTPSConnection(host, parts.port, timeout=limit_s, context=context)
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=limit_s)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with _Deadline(connection, limit_s) as deadline:
            try:
                connection.connect()
                deadline.sock = connection.sock
                there = connection.sock.getpeername()[0]
                if not secure and not is_loopback(there):
                    raise self.cleaned(
                        AppFailed(
                            f"{host} is not on this machine ({there}); nothing was sent.",
                            kind="contract",
                            name="ServiceRefused",
                        )
                    )
                connection.request("POST", target, body=self.body, headers=self._headers())
                response = connection.getresponse()
                reply = _Reply(response.status, response.headers, self._whole(response))
                if deadline.over:  # the end of what was cut off
                    raise self._timeout(limit_s)
                return reply
            except ssl.SSLCertVerificationError as error:
                raise self.cleaned(
                    AppFailed(
                        f"{url_shown(self.asked)}: its certificate is not trusted: {error.verify_message}.",
                        kind="infrastructure",
                        name="ServiceDenied",
                        repair="name the certificates of your organisation as ca_file",
                    )
                ) from None
            except (OSError, http.client.HTTPException) as error:
                if deadline.over or isinstance(error, TimeoutError):
                    raise self._timeout(limit_s) from None
                raise _Broken(_words_of(error)) from None

    def _headers(self) -> dict[str, str]:
        headers = {
            **self.asked["headers"],
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": _AGENT,
            "Idempotency-Key": self.key,
            "Connection": "close",
        }
        if self.credential is not None:
            headers[self.credential[0]] = self.credential[1]
        return headers

    def _whole(self, response: http.client.HTTPResponse) -> bytes:
        most = int(1e6 * self.asked["most_mb"])
        promised = response.length
        body = bytearray()
        while len(body) <= most and (promised is None or promised <= most):
            piece = response.read(_PIECE)
            if not piece:
                # read(n) says nothing of a body that ends early.
                if promised is not None and len(body) < promised:
                    raise http.client.IncompleteRead(b"", promised - len(body))
                return bytes(body)
            body += piece
        size = f"{promised / 1e6:.4g} MB" if promised is not None else f"more than {most / 1e6:g} MB"
        raise self.cleaned(
            AppFailed(
                f"the answer of {url_shown(self.asked)} has {size}; most_mb is {self.asked['most_mb']:g} MB.",
                kind="contract",
                name="AnswerTooLarge",
            )
        )

    def _timeout(self, limit_s: float) -> AppFailed:
        if limit_s < self.asked["timeout_s"]:
            return self.limit.failure(wall_s=time.monotonic() - self.begun)
        return self.cleaned(
            AppFailed(
                f"{url_shown(self.asked)} gave no whole answer within {limit_s:g} s (timeout_s).",
                kind="infrastructure",
                name="ServiceTimeout",
                repair="raise timeout_s, if the service takes that long",
            )
        )


class _Deadline:
    """Ends a connection when its time is over: one that sends a byte a second is never silent for long.

    Attributes:
        sock: The socket, once it is connected; http.client lets go of it while the answer is read.
        over: Whether the time was over.
    """

    def __init__(self, connection: http.client.HTTPConnection, seconds: float) -> None:
        self._connection, self.sock, self.over = connection, connection.sock, False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._connection.close()

    def _end(self) -> None:
        self.over = True
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


def _words_of(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended before the whole answer was there"
    if isinstance(error, http.client.HTTPException):
        return f"what it answered is no HTTP ({type(error).__name__})"
    strerror = getattr(error, "strerror", None)
    return f"no connection, or it broke ({strerror or type(error).__name__})"


def _status(reply: _Reply) -> str:
    return f"{reply.status} {http.client.responses.get(reply.status, '')}".rstrip()


def _beginning(body: bytes) -> str:
    return re.sub(r"\s+", " ", body[:300].decode(errors="replace")).strip() or "(nothing)"


def _retry_after(text: str | None) -> float | None:
    """Seconds that the service asks to wait (RFC 9110, 10.2.3: seconds, or a date); None if it does not say.

    Example:
        >>> _retry_after("7"), _retry_after(None), _retry_after("soon")
        (7.0, None, None)
    """
    if text is None:
        return None
    if re.fullmatch(r"\d{1,9}", text.strip()):
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None
