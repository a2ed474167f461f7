"""What may stand in a context, an event or a rule: plain data of bounded size, and no secret."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from hpcagent.errors import BadInput, in_brief
from hpcagent.model.texts import LONGEST_NAME
from hpcagent.redacted import has_web_token
from hpcagent.shown import CONTROL, HIDDEN, is_secret, size_text

__all__ = ["LARGEST_VALUE", "admitted", "admitted_entry", "admitted_key", "admitted_word", "secret_in", "unsecret"]

LARGEST_VALUE = 16 << 10
"""Bytes of one value, as JSON."""
_DEEPEST = 32
_LARGEST_WHOLE = 10**300

# `maxTokens` is `max_tokens`, `API-Key` is `API_Key`.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")
_ALSO_SECRET = re.compile(
    r"(?:^|_)(?:authorization|bearer|cookies?|tokens|passwords|session_key|auth_key)(?:_|$)", re.IGNORECASE
)
# Of a secret, but not the secret: which one, since when, for what.
_ABOUT = re.compile(
    r"_(?:name|ref|scopes?|kinds?|types?|expires|expires_at|expires_in_s|required|id)\Z", re.IGNORECASE
)

# Forms that the issuers document, or that formats define. What fits none of them is not recognised.
_FORMS = (
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY")),
    ("an authorization header", re.compile(r"\b(?:bearer|basic)\s+[\w.~+/=-]{12,}", re.IGNORECASE)),
    ("a URL with a password", re.compile(r"\w://[^\s/?#@:]*:[^\s/?#@]+@")),
    (
        "a URL with a key in it",
        re.compile(
            r"[?&#;](?:access_token|id_token|refresh_token|token|api_?key|key|sig|signature|password|passwd|pwd|secret"
            r"|client_secret|X-Amz-(?:Signature|Security-Token|Credential)|X-Goog-Signature)=[^&\s]{4,}",
            re.IGNORECASE,
        ),
    ),
    (
        "a password",
        re.compile(
            r"(?:^|[\s;,{\"'(&])(?:password|passwd|pwd|passphrase|client_secret|api_?key|secret_?key|access_?token"
            r"|auth_?token|token)[\"']?\s*[=:]\s*[\"']?(?!None\b|null\b|true\b|false\b|\d+(?:\.\d+)?(?:\W|$))[^\s\"',;]{4,}",
            re.IGNORECASE,
        ),
    ),
    (
        "a token",
        re.compile(
            r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[A-Za-z0-9_-]{20,}"
            r"|xox[abposr]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|hf_[A-Za-z0-9]{20,}"
            r"|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{40,}|dop_v1_[a-f0-9]{40,}|SG\.[\w-]{16,}\.[\w-]{16,})"
        ),
    ),
)


def secret_in(text: str) -> str:
    """What kind of secret a text has in it; empty where none is recognised.

    Tokens, keys and passwords are known by their documented forms, so one without any form is not seen.

    Example:
        >>> secret_in("postgresql://reader:hunter2@db.example.org/catalysts")
        'a URL with a password'
        >>> secret_in("https://example.org/results/47.json?version=3")
        ''
    """
    if has_web_token(text):
        return "a JSON Web Token"
    return next((what for what, form in _FORMS if form.search(text)), "")


def unsecret(text: str) -> str:
    """A text to be recorded; of one with a secret in it only what it was.

    Example:
        >>> unsecret("refused: Bearer abcdefghijklmnop")
        '(hidden: an authorization header)'
    """
    what = secret_in(text)
    return f"({HIDDEN[1:-1]}: {what})" if what else text


def _secret_name(name: str) -> bool:
    snake = _HUMP.sub("_", name)
    return bool(is_secret(snake) or _ALSO_SECRET.search(snake)) and not _ABOUT.search(snake)


def admitted_key(key: object, where: str) -> str:
    """A name in a context: a short text of one line.

    Raises:
        BadInput: It is none, or a secret.
    """
    if not isinstance(key, str):
        raise BadInput(f"{where}: a name is a text; got {in_brief(key)}.")
    what = secret_in(key)
    if what:
        raise BadInput(f"{where}: a name in it is {what}, which must not stand in any record.", value=HIDDEN)
    if not key.strip() or len(key) > LONGEST_NAME or CONTROL.search(key) or "\n" in key:
        raise BadInput(
            f"{where}: {in_brief(key)} is no name; a name has 1 to {LONGEST_NAME} visible characters on one line.",
            value=key[:LONGEST_NAME],
        )
    return key


def admitted_word(value: object, where: str) -> str:
    """A short text that names something: who wrote, which app.

    Raises:
        BadInput: It is no such text, or a secret.
    """
    return admitted_key(value, where)


def admitted(value: object, where: str, *, most: int = LARGEST_VALUE) -> Any:
    """A value as plain data, copied: numbers, texts, lists and tables of them.

    Args:
        value: The value; tuples become lists.
        where: What it is, for messages.
        most: Bytes of JSON that are allowed.

    Raises:
        BadInput: It is no plain data, not finite, too large (with what to do), or has a secret in it. The message
            has no secret.

    Example:
        >>> admitted({"metal": "Cu", "energies": (1, 2.5)}, "shared.best")
        {'metal': 'Cu', 'energies': [1, 2.5]}
    """
    made = _plain(value, where, 0, most)
    size = len(to_json(made))
    if size > most:
        raise _too_large(where, size, most)
    return made


def admitted_entry(key: object, value: object, where: str, *, most: int = LARGEST_VALUE) -> Any:
    """As `admitted`, of the value of a name, which may say that it is a secret.

    Raises:
        BadInput: See `admitted`.
    """
    name = admitted_key(key, where)
    _refuse_secret_name(name, value, f"{where}.{name}")
    return admitted(value, f"{where}.{name}", most=most)


def _too_large(where: str, size: int, most: int) -> BadInput:
    return BadInput(
        f"{where} has {size_text(size)}; at most {size_text(most)} stand in a record. Write it to a file of the "
        "run and give its URI, e.g. {'uri': 'file:///...', 'sha256': ..., 'bytes': ...} "
        "(`hpcagent.contexts.refer(path)` makes it).",
        bytes=size,
        most=most,
    )


def _plain(value: object, where: str, depth: int, most: int) -> Any:
    if depth > _DEEPEST:
        raise BadInput(f"{where} is nested more than {_DEEPEST} deep; flatten it.")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where, most)
    if isinstance(value, int):
        if not -_LARGEST_WHOLE < value < _LARGEST_WHOLE:
            raise BadInput(f"{where}: a whole number has hundreds of digits; give it as a text.")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadInput(f"{where}={value} is not finite; leave it out, and say why.", value=value)
        return float(value)
    if isinstance(value, Mapping):
        return _table(value, where, depth, most)
    if isinstance(value, (list, tuple)):
        if len(value) > most:  # each takes two bytes or more
            raise _too_large(where, 2 * len(value), most)
        return [_plain(one, where, depth + 1, most) for one in value]
    raise BadInput(
        f"{where} is a {type(value).__name__}; plain data is None, true or false, numbers, texts, and lists and "
        "tables of them. Write anything else to a file and give its URI.",
    )


def _text(value: str, where: str, most: int) -> str:
    if len(value) > most:  # not searched either
        raise _too_large(where, len(value.encode("utf-8", "replace")), most)
    what = secret_in(value)
    if what:
        raise BadInput(
            f"{where} has {what} in it, which must not stand in any record. Leave it out, and let the program "
            "that needs it read it from where it is kept.",
            value=HIDDEN,
        )
    found = CONTROL.search(value)
    if found is not None:
        raise BadInput(
            f"{where}: the character {found[0]!r} at position {found.start()} is not allowed in a text."
        )
    return value


def _table(value: Mapping[Any, Any], where: str, depth: int, most: int) -> dict[str, Any]:
    if len(value) > most:
        raise _too_large(where, 4 * len(value), most)
    made = {}
    for key, inner in value.items():
        name = admitted_key(key, where)
        place = f"{where}.{name}"
        _refuse_secret_name(name, inner, place)
        made[name] = _plain(inner, place, depth + 1, most)
    return made


def _refuse_secret_name(name: str, value: object, place: str) -> None:
    if _secret_name(name) and _has_text(value):
        raise BadInput(
            f"{place}: by its name it is a secret, which must not stand in any record. Leave it out; the name of "
            f"a secret that is kept elsewhere may be given as {name + '_name'!r}.",
            value=HIDDEN,
        )


def _has_text(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_text, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_text, value))
    return isinstance(value, str) and value.strip() not in ("", HIDDEN)
