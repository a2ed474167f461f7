"""A provider of materials that speaks OPTIMADE, as a database of materials.

The protocol: https://github.com/Materials-Consortia/OPTIMADE, version 1.2. Nothing is asked before `find`, and
nobody but the provider whose address was given.
"""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from hpcagent.errors import BadInput, SourceFailed, in_brief
from hpcagent.materials.answer import Answer, Found
from hpcagent.materials.filters import Asked
from hpcagent.materials.formulas import ELEMENTS, counts_of, reduced_text
from hpcagent.shown import plain
from hpcagent.units import measure

__all__ = ["Optimade"]

_FIELDS = (
    "id",
    "type",
    "chemical_formula_reduced",
    "elements",
    "nelements",
    "nsites",
    "last_modified",
    "immutable_id",
)
_UNITS = {"nelements": "1", "nsites": "1"}
_AGAIN = (429, 500, 502, 503, 504)
_LONGEST_WAIT_S = 60.0
_MOST_SKIPPED = 10_000
_PIECE = 1 << 16
_WARNED = 20


class Optimade:
    """The structures of one provider.

    `ranges` and `texts` are about its properties: `nsites`, `nelements`, and its own `_PREFIX_NAME` as it
    describes them, with their unit; one that it does not describe is refused here, as
    providers would take it for unknown.

    Args:
        address: Base URL, with or without `/v1`. No user and password in it.
        timeout_s: Of each request from beginning to end, in seconds.
        tries: How often a request is sent in all where the provider is out of reach or asks to wait.
        pause_s: Before the second try, in seconds; doubled each time. What the provider asks for goes before.
        max_mb: Largest answer to one request, in MB (10**6 bytes).

    Raises:
        BadInput: The address is none, or the package `optimade` is not installed (extra `optimade`).
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 30.0,
        tries: int = 3,
        pause_s: float = 1.0,
        max_mb: float = 20.0,
    ) -> None:
        try:
            parts = urllib.parse.urlsplit(str(address))
            port = parts.port
        except (ValueError, AttributeError, TypeError):
            raise BadInput(f"{in_brief(address)} is no address of a provider.", value=in_brief(address)) from None
        if parts.username or parts.password or "@" in parts.netloc:
            raise BadInput("the address of the provider has a user or password in it, which would end in records.")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise BadInput(
                f"{in_brief(address)} is no address of a provider: http(s)://HOST/PATH, without anything behind.",
                value=in_brief(address),
            )
        for name, value, low, high in (
            ("timeout_s", timeout_s, 0.0, 3600.0),
            ("pause_s", pause_s, 0.0, _LONGEST_WAIT_S),
            ("max_mb", max_mb, 0.0, 1000.0),
        ):
            if not low <= value <= high or (name != "pause_s" and value == 0):
                raise BadInput(f"{name}={value!r} is outside of {low:g} to {high:g}.", value=value)
        if isinstance(tries, bool) or not isinstance(tries, int) or not 1 <= tries <= 10:
            raise BadInput(f"tries={tries!r} must be a whole number, 1 to 10.", value=tries)
        base = address.rstrip("/")
        self.address = base if base.endswith(("/v1", "/v1.0", "/v1.1", "/v1.2")) else f"{base}/v1"
        self._origin = parts.scheme, parts.hostname, port
        self._timeout_s, self._tries, self._pause_s, self._most = timeout_s, tries, pause_s, int(max_mb * 1e6)

    def __repr__(self) -> str:
        return f"Optimade({self.address!r})"

    def find(self, asked: Asked) -> Answer:
        """See `Source`."""
        _needs_optimade()
        if asked.offset > _MOST_SKIPPED:
            raise BadInput(
                f"offset={asked.offset}: pages of a provider are gone through from the first; at most "
                f"{_MOST_SKIPPED} records are. Narrow the filters.",
                value=asked.offset,
            )
        about = self._described() if asked.filters.ranges or asked.filters.texts else {}
        text = _filter_text(asked, about, self.address)
        names = [*_FIELDS, *asked.filters.ranges, *asked.filters.texts]
        wanted = asked.offset + asked.limit
        query = {"response_fields": ",".join(dict.fromkeys(names)), "page_limit": str(min(asked.limit, 100))}
        if text:
            query["filter"] = text
        first = f"{self.address}/structures?{urllib.parse.urlencode(query)}"
        entries: list[dict[str, Any]] = []
        meta: Any = None
        warned: list[str] = []
        more = False
        for answer in self._pages(first):
            meta = answer["meta"]
            warned += _warnings(meta)
            entries += answer["data"]
            more = bool(meta["more_data_available"])
            if len(entries) >= wanted:
                break
        _refuse_doubled(entries, self.address)
        total = meta.get("data_returned")
        if not isinstance(total, int) or total < len(entries):
            total = None if more or len(entries) > wanted else len(entries)
        units = {**_UNITS, **{n: u for n, (_, u) in about.items() if u is not None}}
        said = self._version(meta)
        return Answer(
            source=f"optimade:{self.address}",
            version=said,
            asked_at=time.time(),
            query=text,
            records=tuple(_record(e, names, units, self.address) for e in entries[asked.offset : wanted]),
            total=total,
            offset=asked.offset,
            notes=tuple(dict.fromkeys(warned))[:_WARNED],
        )

    def _version(self, meta: Mapping[str, Any]) -> str:
        software = meta.get("implementation") or {}
        provider = meta.get("provider") or {}
        made = " ".join(str(software[k]) for k in ("name", "version") if software.get(k))
        parts = [f"OPTIMADE {meta['api_version']}", made, str(provider.get("name") or "")]
        stamp = f"answered at {meta['time_stamp']}" if meta.get("time_stamp") else ""
        return plain(", ".join(p for p in (*parts, stamp) if p))

    def _described(self) -> dict[str, tuple[str, str | None]]:
        """Property of a structure -> its type, and its unit where there is one that is understood."""
        url = f"{self.address}/info/structures"
        answer = self._fetched(url)
        _checked_meta(answer, url)
        data = answer.get("data")
        properties = data.get("properties") if isinstance(data, dict) else None
        if not isinstance(properties, dict):
            raise self._against(url, "it describes no properties of structures")
        found: dict[str, tuple[str, str | None]] = {}
        for name, about in properties.items():
            about = about if isinstance(about, dict) else {}
            unit = about.get("unit")
            try:
                measure(str(unit))
            except BadInput:
                unit = None
            if unit is None and name in _UNITS:
                unit = _UNITS[name]
            found[name] = str(about.get("type") or ""), None if unit is None else str(unit)
        return found

    def _pages(self, url: str) -> Iterator[dict[str, Any]]:
        """The answers of one request and of those that it links to, each checked."""
        seen = {url}
        while True:
            answer = self._fetched(url)
            _checked_meta(answer, url)
            _checked_entries(answer, url)
            yield answer
            link = (answer.get("links") or {}).get("next")
            link = link.get("href") if isinstance(link, dict) else link
            if not link:
                if answer["meta"]["more_data_available"]:
                    raise self._against(url, "there is more data, and no link to it")
                return
            if not isinstance(link, str) or link in seen or not answer["data"]:
                raise self._against(url, f"its link to the next page leads nowhere new: {in_brief(link)}")
            self._same_host(link, url)
            seen.add(link)
            url = link

    def _same_host(self, link: str, url: str) -> None:
        try:
            parts = urllib.parse.urlsplit(link)
            same = (parts.scheme, parts.hostname, parts.port) == self._origin
        except ValueError:
            same = False
        if not same:
            raise self._against(url, f"it leads to another host, which is not followed: {in_brief(link)}")

    def _fetched(self, url: str) -> dict[str, Any]:
        """The JSON object at an address, after some tries."""
        pause = self._pause_s
        for tries_left in reversed(range(self._tries)):
            try:
                return self._once(url)
            except _Again as error:
                if not tries_left:
                    raise SourceFailed(
                        f"{self.address} has not answered in {self._tries} tries: {error}. Is the address right, "
                        "and is there a way to it from here?",
                        source=self.address,
                    ) from None
                time.sleep(min(_LONGEST_WAIT_S, pause if error.wait_s is None else error.wait_s))
                pause *= 2
        raise AssertionError

    def _once(self, url: str) -> dict[str, Any]:
        until = time.monotonic() + self._timeout_s
        asked = urllib.request.Request(url, headers={"Accept": "application/vnd.api+json, application/json"})
        opener = urllib.request.build_opener(_SameHost(self, url))
        try:
            with opener.open(asked, timeout=self._timeout_s) as response:
                data = self._body(response, until)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _AGAIN:
                    raise _Again(f"HTTP {error.code}", _seconds(error.headers.get("Retry-After"))) from None
                said = _errors_in(error.read(_PIECE))
            raise SourceFailed(
                f"{self.address} refuses the question (HTTP {error.code}{said}); sent was {_unquoted(url)}.",
                source=self.address,
            ) from None
        except (TimeoutError, OSError) as error:  # URLError is one
            reason = getattr(error, "reason", None) or error
            raise _Again(str(reason) or type(error).__name__, None) from None
        try:
            found = json.loads(data, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise self._against(url, f"it is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise self._against(url, "it is no JSON object")
        return found

    def _body(self, response: Any, until: float) -> bytes:
        pieces, size = [], 0
        while piece := response.read1(_PIECE):
            size += len(piece)
            if size > self._most:
                raise SourceFailed(
                    f"{self.address} answers with more than {self._most / 1e6:g} MB; ask for less (limit), or "
                    "raise max_mb.",
                    source=self.address,
                )
            if time.monotonic() > until:
                raise _Again(f"the answer took longer than {self._timeout_s:g} s", None)
            pieces.append(piece)
        return b"".join(pieces)

    def _against(self, url: str, what: str) -> SourceFailed:
        return _against(url, what)


class _Again(Exception):
    """A request that may be sent again."""

    def __init__(self, why: str, wait_s: float | None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to the provider's own host only."""

    def __init__(self, provider: Optimade, url: str) -> None:
        self._provider = provider
        self._url = url

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        """See `HTTPRedirectHandler`."""
        self._provider._same_host(newurl, self._url)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _against(url: str, what: str) -> SourceFailed:
    return SourceFailed(f"the answer to {_unquoted(url)} is not by the protocol: {what}.", source=url)


def _unquoted(url: str) -> str:
    return plain(urllib.parse.unquote_plus(url))[:500]


def _seconds(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None  # a date, or nothing
    return found if 0 <= found <= 1e6 else None


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _errors_in(body: bytes) -> str:
    try:
        errors = json.loads(body)["errors"]
        said = "; ".join(str(e.get("detail") or e.get("title") or "") for e in errors)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return f": {plain(said)[:500]}" if said else ""


def _needs_optimade() -> None:
    try:
        import optimade.models  # noqa: F401  (whether it is there)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "optimade"
        why = "is not installed" if absent else f"cannot be imported ({plain(str(error))})"
        raise BadInput(
            f"the package optimade, by which answers are checked, {why}: pip install 'hpcagent[optimade]'."
        ) from error


def _filter_text(asked: Asked, about: Mapping[str, tuple[str, str | None]], address: str) -> str:
    """The question in OPTIMADE's language of filters; made of checked parts only, and parsed once."""
    filters = asked.filters
    asked.refuse_unknown(address, numbers=about, texts=about)
    parts = []
    if asked.elements:
        parts.append("elements HAS ALL " + ", ".join(f'"{e}"' for e in sorted(asked.elements)))
    if filters.nelements is not None:
        parts.append(f"nelements = {filters.nelements}")
    if filters.formula is not None:
        parts.append(f'chemical_formula_reduced = "{reduced_text(counts_of(filters.formula))}"')
    for name, wanted in filters.ranges.items():
        kind, unit = about[name]
        if kind in ("string", "boolean", "timestamp", "list", "dictionary"):
            raise BadInput(f"{name} of {address} is a {kind}, not a number; it has no range.", value=name)
        if unit is None and wanted.unit is not None:
            raise BadInput(
                f"the range of {name} is in {wanted.unit}, but {address} gives no unit of it that is understood; "
                "leave the unit out to compare what is stored.",
                value=name,
            )
        low, high = (wanted.min, wanted.max) if unit is None else wanted.within(unit, name)
        parts += [f"{name} {op} {_number(v)}" for op, v in ((">=", low), ("<=", high)) if v is not None]
    for name, texts in filters.texts.items():
        if about[name][0] not in ("string", ""):
            raise BadInput(f"{name} of {address} is a {about[name][0]}, not a text.", value=name)
        either = [f"{name} = {_quoted(t)}" for t in ((texts,) if isinstance(texts, str) else texts)]
        parts.append(either[0] if len(either) == 1 else f"({' OR '.join(either)})")
    text = " AND ".join(parts)
    if text:
        from optimade.exceptions import BadRequest
        from optimade.filterparser import LarkParser, ParserError

        try:
            LarkParser().parse(text)
        except (ParserError, BadRequest) as error:
            raise BadInput(
                f"the filter {text[:200]!r} is none of OPTIMADE's: {error}.", value=text[:200]
            ) from None
    return text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _checked_meta(answer: Mapping[str, Any], url: str) -> None:
    """See that an answer says by which version of the protocol it is, and whether there is more.

    Raises:
        SourceFailed: It does not.
    """
    from optimade.models import ResponseMeta
    from pydantic import ValidationError

    if answer.get("errors"):
        raise SourceFailed(
            f"{_unquoted(url)} was answered with an error{_errors_in(json.dumps(answer).encode())}.", source=url
        )
    meta = answer.get("meta")
    if not isinstance(meta, dict):
        raise _against(url, "it has no meta")
    try:
        ResponseMeta.model_validate(meta)
    except ValidationError as error:
        first = error.errors()[0]
        raise _against(url, f"meta.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if not str(meta["api_version"]).startswith("1."):
        raise _against(url, f"it is of version {in_brief(meta['api_version'])}, and 1.x was asked for")
    if not isinstance(meta.get("more_data_available"), bool):
        raise _against(url, "meta.more_data_available is not true or false")


def _checked_entries(answer: Mapping[str, Any], url: str) -> None:
    """See that every entry is a structure that agrees with itself.

    Raises:
        SourceFailed: One is not.
    """
    data = answer.get("data")
    if not isinstance(data, list):
        raise _against(url, "its data is no list")
    for entry in data:
        if not isinstance(entry, dict) or entry.get("type") != "structures":
            raise _against(url, f"an entry is no structure: {in_brief(entry)}")
        name, attributes = entry.get("id"), entry.get("attributes")
        if not isinstance(name, str) or not name or not isinstance(attributes, dict):
            raise _against(url, f"a structure has no id, or no attributes: {in_brief(entry)}")
        elements, number = attributes.get("elements"), attributes.get("nelements")
        if elements is not None and (
            not isinstance(elements, list)
            or not all(isinstance(e, str) and (e in ELEMENTS or e in ("X", "vacancy")) for e in elements)
            or elements != sorted(set(elements))
            or (number is not None and number != len(elements))
        ):
            raise _against(url, f"{in_brief(name)}: elements {in_brief(elements)}, nelements {in_brief(number)}")
        formula = attributes.get("chemical_formula_reduced")
        if formula is not None:
            try:
                agrees = isinstance(formula, str) and reduced_text(counts_of(formula)) == formula
            except BadInput:
                agrees = False
            if not agrees or (elements is not None and set(counts_of(formula)) != set(elements)):
                raise _against(url, f"{in_brief(name)}: chemical_formula_reduced is {in_brief(formula)}")


def _refuse_doubled(entries: list[dict[str, Any]], address: str) -> None:
    names = [e["id"] for e in entries]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise _against(f"{address}/structures", f"its pages give {in_brief(twice)} twice")


def _warnings(meta: Mapping[str, Any]) -> list[str]:
    found = meta.get("warnings")
    return [
        f"the provider warns: {plain(str(w.get('detail') or w.get('title') or ''))[:300]}"
        for w in (found if isinstance(found, list) else [])
        if isinstance(w, dict)
    ]


def _record(entry: Mapping[str, Any], names: list[str], units: Mapping[str, str], address: str) -> Found:
    attributes = entry["attributes"]
    values: dict[str, float | str] = {}
    for name in dict.fromkeys(names):
        value = attributes.get(name)
        if isinstance(value, str):
            values[name] = plain(value)[:1000]
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            values[name] = float(value)
        elif name == "elements" and value is not None:
            values[name] = " ".join(value)
    place = f"{address}/structures/{urllib.parse.quote(entry['id'], safe='')}"
    return Found(
        artifact_id=f"optimade:{place}",
        formula=str(attributes.get("chemical_formula_reduced") or ""),
        values=values,
        units={n: u for n, u in units.items() if isinstance(values.get(n), float)},
        where=place,
    )
