"""A service as an app: the parameters go to it by HTTP POST, its answer has the numbers."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, field_validator, model_validator

from hpcagent.apps.base import App, check_names
from hpcagent.apps.executable.contract import described_metric, parameters_of
from hpcagent.apps.executable.record import PRINTED, Reading
from hpcagent.errors import BadInput
from hpcagent.model.base import Record, Scalar, build, read_toml
from hpcagent.model.contract import Contract, Resources
from hpcagent.model.space import Space
from hpcagent.model.texts import Line, Name, Variable
from hpcagent.redacted import looks_secret
from hpcagent.shown import is_secret

__all__ = ["FUNCTION", "Credential", "Http", "ServiceFile", "is_loopback", "service_file"]

FUNCTION = "hpcagent.apps.executable.post:service_run"

FAILURE_MODES = (
    "ServiceUnreachable",
    "ServiceTimeout",
    "ServiceBusy",
    "ServiceFailed",
    "ServiceDenied",
    "ServiceRefused",
    "Redirected",
    "NoCredential",
    "AnswerTooLarge",
    "BadOutput",
    "ReportedError",
    "MissingMetric",
    "NotFinite",
    "WrongUnit",
    "OutOfRange",
    "Walltime",
    "BlockEnded",
    "DiskFull",
)
"""Failures of every service."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_OWN_HEADERS = ("host", "content-type", "content-length", "accept", "accept-encoding", "idempotency-key")


class Credential(Record):
    """Where the credential of a service is, on the machine that calls it; itself it stands in no record.

    Attributes:
        env: Name of an environment variable that has it.
        file: Path of a file that has it, which only its owner may read.
        header: Header that it is sent in.
        scheme: Word before it in that header; empty for none.
    """

    env: Variable | None = None
    file: Line | None = None
    header: Annotated[str, Field(min_length=1, max_length=100)] = "Authorization"
    scheme: Literal["Bearer", "Basic", "Token", ""] = "Bearer"

    @model_validator(mode="after")
    def _check(self) -> Credential:
        if (self.env is None) == (self.file is None):
            raise BadInput("credential: name env (a variable) or file (a path), where it is read at each call.")
        if self.file is not None and looks_secret(self.file):
            raise BadInput("credential: file is the path of a file, and not the credential itself.")
        _check_header(self.header)
        return self


def _check_header(name: str) -> None:
    if not _TOKEN.match(name) or name.lower() in _OWN_HEADERS:
        raise BadInput(f"header {name!r} is none that can be set here.", value=name)


class Http(Record):
    """A service that takes JSON by POST and answers JSON.

    Attributes:
        url: `https://...`; `http://` only for an address of the loopback (127.0.0.1, ::1, localhost).
        timeout_s: For one whole answer, in seconds.
        retries: How often a request is sent again that met no connection, a broken one, or 502, 503, 504, or 429
            with Retry-After.
        first_wait_s: Before the first of these, in seconds; doubled each time, less a random part of at most half.
        most_wait_s: Longest wait, in seconds; a service that asks for more (Retry-After) has failed the run.
        most_mb: Size of an answer that is read, in MB of 10^6 bytes.
        send: `arguments`: an object of the parameters and constants; `call`: `{"app", "version", "execution_id",
            "seed", "arguments", "units"}`.
        units: `checked`: a unit that the answer names is converted, or refused; `required`: it must name all.
        headers: Headers to send; none of a credential.
        credential: Where the credential is.
        ca_file: Certificates to trust in place of the system's.
    """

    url: Line
    timeout_s: float = Field(default=60.0, gt=0.0, le=86400.0, allow_inf_nan=False)
    retries: int = Field(default=3, ge=0, le=20)
    first_wait_s: float = Field(default=1.0, gt=0.0, le=3600.0, allow_inf_nan=False)
    most_wait_s: float = Field(default=60.0, gt=0.0, le=3600.0, allow_inf_nan=False)
    most_mb: float = Field(default=16.0, gt=0.0, le=64.0, allow_inf_nan=False)
    send: Literal["arguments", "call"] = "arguments"
    units: Literal["checked", "required"] = "checked"
    headers: dict[str, Line] = {}
    credential: Credential | None = None
    ca_file: Line | None = None

    @field_validator("url")
    @classmethod
    def _safe(cls, url: str) -> str:
        check_url(url)
        return url

    @model_validator(mode="after")
    def _check(self) -> Http:
        for name, value in self.headers.items():
            _check_header(name)
            if (
                is_secret(name.replace("-", "_"))
                or name.lower() in ("authorization", "cookie")
                or looks_secret(value)
            ):
                raise BadInput(
                    f"headers: {name!r} would write a credential into every record; name where it is under "
                    "[http.credential].",
                    value=name,
                )
            if not value.isascii():
                raise BadInput(f"headers: the value of {name!r} is not ASCII.", value=name)
        return self


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own.

    Example:
        >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "localhost.example.org")]
        [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_url(url: str) -> None:
    """Refuse an address that nothing may be posted to.

    Raises:
        BadInput: It is neither https nor http on the loopback, or has a user, a password or a credential in it.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadInput(f"url: it is no address: {error}.") from None
    if parts.username is not None or parts.password is not None:
        raise BadInput("url: it has a user or a password in it; name where they are under [http.credential].")
    secret = [name for name, value in parse_qsl(parts.query) if is_secret(name) or looks_secret(f"{name}={value}")]
    if secret or looks_secret(url):
        raise BadInput(
            f"url: {', '.join(secret) or 'a part of it'} is a credential; name it under [http.credential]."
        )
    if parts.scheme not in ("https", "http") or not host:
        raise BadInput(f"url = {url!r}: an address begins with https://.", value=url)
    if parts.scheme == "http" and not is_loopback(host):
        raise BadInput(
            f"url = {url!r}: http is for this machine only (127.0.0.1, ::1, localhost): others could read along "
            "and answer in its place. Write https.",
            value=url,
        )
    if parts.fragment or not url.isascii() or any(c.isspace() or c in '\\<>"' for c in url):
        raise BadInput(f"url = {url!r}: write it in ASCII, without blanks and #.", value=url)


class ServiceFile(Record):
    """The TOML of a service.

    Attributes:
        name: The app's name.
        version: Semantic version; raise it when the meaning of a result changes.
        description: One or two sentences.
        http: Where it is, and how it is asked.
        parameters: What may be set: bounds, unit, default.
        constraints: Conditions that every point keeps.
        constants: Values that no campaign changes; sent with the parameters.
        vary: Names of the parameters that a campaign varies if it does not say.
        metrics: The numbers of the answer: `unit`, and `key` in its result (the metric's name by default).
        deterministic: Whether the same request always has the same answer.
        resources: What one run occupies of the site.
        estimated_runtime_s: Expected wall time of one run, in seconds.
    """

    name: Name
    version: str = "0.1.0"
    description: str = ""
    http: Http
    parameters: dict[str, dict[str, Any]] = {}
    constraints: tuple[str, ...] = ()
    constants: dict[str, Scalar] = {}
    vary: tuple[str, ...] = ()
    metrics: dict[str, Reading]
    deterministic: bool = False
    resources: Resources = Resources()
    estimated_runtime_s: float = 1.0

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("metrics"), dict):
            return data
        ways = ("key", "regex", "column", "array")
        metrics = {
            name: {"key": (name,), **how} if isinstance(how, dict) and not set(how) & set(ways) else how
            for name, how in data["metrics"].items()
        }
        return data | {"metrics": metrics}

    @model_validator(mode="after")
    def _check(self) -> ServiceFile:
        if not self.metrics:
            raise BadInput("metrics: name at least one number that the service answers.")
        for name, how in self.metrics.items():
            if how.way != "key" or how.file != PRINTED:
                raise BadInput(f"metrics.{name}: a service answers JSON; give a key, and no file.", value=name)
        for name, value in self.constants.items():
            if is_secret(name) or (isinstance(value, str) and looks_secret(value)):
                raise BadInput(
                    f"constants: {name!r} is a credential; name it under [http.credential].", value=name
                )
        return self


def service_file(path: str | Path) -> App:
    """The app of a TOML file with a table `[http]`: a service that computes numbers.

    Args:
        path: The file.

    Raises:
        BadInput: A key is unknown or missing, an address may not be posted to, a credential stands in it.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "solubility.toml")
        >>> _ = file.write_text('''
        ... name = "solubility"
        ... [http]
        ... url = "https://models.example.org/solubility"
        ... [parameters]
        ... temperature = { low = 273.0, high = 373.0, unit = "K" }
        ... [metrics]
        ... solubility = { unit = "mol/L", low = 0 }
        ... ''')
        >>> service_file(file).contract.metric("solubility").unit
        'mol/L'
    """
    path = Path(path)
    where = str(path)
    said = build(ServiceFile, read_toml(path), where=where)
    space = Space.made(parameters_of(said.parameters, where, path.parent), said.constraints)
    check_names(space, where, 'say send = "call"')
    both = sorted(set(space.names) & set(said.constants))
    if both:
        raise BadInput(f"{where}: {both[0]!r} is a parameter and a constant; drop one of them.", value=both[0])
    files = [parameter.name for parameter in space.parameters if parameter.files]
    if files:
        raise BadInput(f"{where}: {files[0]!r} chooses files, which are not sent to a service.", value=files[0])
    settings: dict[str, Any] = {
        "name": said.name,
        "version": said.version,
        "http": said.http.model_dump(mode="json", exclude_none=True),
        "constants": said.constants,
        "metrics": {n: how.model_dump(mode="json", exclude_defaults=True) for n, how in said.metrics.items()},
        "input_units": {p.name: p.unit for p in space.parameters if p.unit},
    }
    json.dumps(settings, allow_nan=False)
    contract = build(
        Contract,
        {
            "name": said.name,
            "version": said.version,
            "description": said.description or f"The service at {urlsplit(said.http.url).hostname}.",
            "space": space,
            "metrics": tuple(described_metric(name, how) for name, how in said.metrics.items()),
            "resources": said.resources,
            "deterministic": said.deterministic,
            "seeded": said.http.send == "call",
            "estimated_runtime_s": said.estimated_runtime_s,
            "failure_modes": FAILURE_MODES,
        },
        where=where,
    )
    for name in said.vary:
        space[name]
    return App(contract=contract, function=FUNCTION, settings=settings, source=str(path), vary=said.vary)


def url_shown(http: Mapping[str, Any]) -> str:
    """The address without its query, for messages."""
    return str(http["url"]).partition("?")[0]
