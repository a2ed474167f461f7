"""Secrets are taken out of texts: by value, those of this process's environment, and by what they look like.

Standard library only, for workers use it. What is not known by value and looks like nothing cannot be found.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hpcagent.shown import HIDDEN, is_secret

__all__ = [
    "clean_environment",
    "has_web_token",
    "is_credential",
    "looks_secret",
    "redacted",
    "redacted_bytes",
    "redacted_data",
    "secret_values",
]

SHORTEST = 6
"""Characters of a value that is looked for; a shorter one (`1`, `true`) would be found in everything."""

_NAMES = re.compile(
    r"(?:^|_)(?:KEY|KEYS|SECRETS?|TOKENS?|COOKIE|SESSION_?ID|DSN|PRIVATE|BEARER|SIGNATURE|SAS|PAT|PWD_FILE|NETRC)"
    r"(?:_|$)|PASSW|PASSPHRASE|CREDENTIAL|SECRET|TOKEN|^(?:AWS|AZURE|GCP|GOOGLE|GLOBUS|VAULT|OPENAI|ANTHROPIC|HF)_"
    r"|^SLURM_JWT$|^SSH_A|^GPG_|^KRB5|^XDG_RUNTIME_DIR$|^DBUS_",
    re.IGNORECASE,
)
# What is looked at was written by others and may be megabytes: each of these takes time in proportion to the text.
# No pattern begins with, or looks ahead over, what can be repeated without end and may then fail; what needs that
# is a function that looks at each character once.
_Span = tuple[int, int]

_RUN = re.compile(r"[\w-]*")
_KEY_BEGINS = re.compile(r"-----BEGIN ([A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?)-----")
_KEY_ENDS = re.compile(r"-----END ([A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?)-----")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=\s]*")
LONGEST_KEY = 20_000
_OBJECT = re.compile(r"\beyJ")
_LAST_PART = re.compile(r"(?:\.[\w-]*)?")
# As their makers document them: tokens of GitHub, GitLab, Slack, Hugging Face, OpenAI.
_PREFIX = re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_|sk-)")
_DIGIT = re.compile(r"\d")


def _private_keys(text: str) -> Iterator[_Span]:
    ends: dict[str, list[_Span]] = {}
    for found in reversed(list(_KEY_ENDS.finditer(text))):
        ends.setdefault(found[1], []).append(found.span())  # the next one is the last of the list
    done = 0
    for begin in _KEY_BEGINS.finditer(text):
        if begin.start() < done:
            continue
        of_it = ends.get(begin[1], [])
        while of_it and of_it[-1][0] < begin.end():
            of_it.pop()
        ended = of_it and of_it[-1][0] - begin.end() <= LONGEST_KEY
        done = of_it[-1][1] if ended else _end(_KEY_BODY, text, begin.end())
        yield begin.start(), done


def _web_tokens(text: str) -> Iterator[_Span]:
    """RFC 7519: two objects in base64url (`{"` is `eyJ`), and a signature."""
    done = 0
    for begin in _OBJECT.finditer(text):
        if begin.start() < done:
            continue
        done = _end(_RUN, text, begin.end())
        if done - begin.end() < 8 or not text.startswith(".eyJ", done):
            continue
        second = _end(_RUN, text, done + 4)
        if second - (done + 4) >= 8:
            done = _end(_LAST_PART, text, second)
            yield begin.start(), done


def _prefixed(text: str) -> Iterator[_Span]:
    """A prefix and sixteen characters, one of them a digit. Where the first of a run is none, no later one is."""
    done = 0
    for begin in _PREFIX.finditer(text):
        if begin.start() < done:
            continue
        done = _end(_RUN, text, begin.end())
        if done - begin.end() >= 16 and _DIGIT.search(text, begin.end(), done) is not None:
            yield begin.start(), done


def _end(pattern: re.Pattern[str], text: str, begin: int) -> int:
    found = pattern.match(text, begin)
    return begin if found is None else found.end()


def _matches(pattern: str) -> Callable[[str], Iterator[_Span]]:
    """What a pattern finds; where it has a group, that is the secret."""
    compiled = re.compile(pattern)

    def spans(text: str) -> Iterator[_Span]:
        return (found.span(compiled.groups) for found in compiled.finditer(text))

    return spans


# (words of which every match has one, case-folded: most texts have none, and looking is slow; what finds it)
_SHAPES: tuple[tuple[tuple[str, ...], Callable[[str], Iterator[_Span]]], ...] = (
    (("private key",), _private_keys),
    (("eyj",), _web_tokens),
    (("://",), _matches(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)")),
    (
        ("bearer", "basic", "token"),
        _matches(r"(?i)\b(?:bearer|basic|token)\s+((?=[\w.~+/-]*[\d._~+/-])[\w.~+/-]{12,}=*)"),
    ),
    (
        ("passw", "passphrase", "secret", "key", "token"),
        _matches(
            r"(?i)(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|auth[_-]?token|"
            r"access[_-]?token|refresh[_-]?token|id[_-]?token)[\"']?\s{0,3}[=:]\s{0,3}(\"[^\"\n]+\"|'[^'\n]+'|"
            r"(?!\(hidden\))[^\s,;&\"'}]{4,})"
        ),
    ),
    # Access keys of AWS.
    (("akia", "asia"), _matches(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")),
    (("gh", "glpat-", "xox", "hf_", "sk-", "github_pat_"), _prefixed),
)


_WORDS = tuple(dict.fromkeys(word for words, _ in _SHAPES for word in words))


def is_credential(name: str) -> bool:
    """Whether a variable of such a name may hold a credential: wider than what is hidden where it is shown.

    Example:
        >>> [is_credential(n) for n in ("SLURM_JWT", "AWS_PROFILE", "MY_KEY", "OMP_NUM_THREADS", "KEYBOARD")]
        [True, True, True, False, False]
    """
    return is_secret(name) or _NAMES.search(name) is not None


def looks_secret(text: str) -> bool:
    """Whether a text has a part that looks like a credential.

    Example:
        >>> looks_secret("postgresql://ann:pa55@db/x"), looks_secret("https://example.org/a")
        (True, False)
    """
    return _by_shape(text) != text


def has_web_token(text: str) -> bool:
    """Whether a text has a JSON web token in it.

    Example:
        >>> has_web_token("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ."), has_web_token("eyJ.eyJ")
        (True, False)
    """
    return "eyJ" in text and next(_web_tokens(text), None) is not None


def secret_values(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The values of an environment that nobody else is to know, the longest first.

    Paths and plain words in a variable with such a name (`SSH_AUTH_SOCK`, `AWS_PROFILE=default`) are none.

    Args:
        environ: This process's own by default.

    Example:
        >>> secret_values({"API_TOKEN": "s3cr3t-value", "HOME": "/home/ann", "KEY_FILE": "/home/ann/key"})
        ('s3cr3t-value',)
    """
    found: set[str] = set()
    for name, value in (os.environ if environ is None else environ).items():
        if len(value) >= SHORTEST:
            found.update(_secrets_of(name, value))
    return tuple(sorted(found, key=lambda v: (-len(v), v)))


@functools.lru_cache(maxsize=1 << 10)
def _secrets_of(name: str, value: str) -> tuple[str, ...]:
    """What of a variable nobody is to know: each event that is told asks for all of them."""
    if not is_secret(name) and (not is_credential(name) or _is_plain(value)):
        return ()
    # A line of several may be printed alone.
    lines = (line for line in value.splitlines() if len(line) >= 2 * SHORTEST)
    return tuple(one for one in (value, value.strip(), *lines) if len(one) >= SHORTEST)


def _is_plain(value: str) -> bool:
    """A path, a word, a number: nothing that opens anything."""
    word = re.fullmatch(r"[a-z]+(?:[-_][a-z]+)*|[0-9.]+", value)
    return word is not None or value.startswith(("/", "~", "unix:"))


def redacted(text: str, *, secrets: Iterable[str] | None = None) -> str:
    """A text without secrets: `(hidden)` stands in their place.

    Args:
        text: A log, a message, a line of a record.
        secrets: Values to take out; those of this process's environment by default. What looks like a credential
            (JSON web token, bearer token, URL with a password, private key, `password=...`) goes always.

    Example:
        >>> redacted("login with hunter2-hunter2", secrets=["hunter2-hunter2"])
        'login with (hidden)'
        >>> redacted("postgresql://ann:pa55word@db/x")
        'postgresql://(hidden)@db/x'
    """
    values = secret_values() if secrets is None else sorted(filter(None, secrets), key=len, reverse=True)
    for value in values:
        if value in text:
            text = text.replace(value, HIDDEN)
    return _by_shape(text)


def _by_shape(text: str) -> str:
    folded = text.casefold()
    if not any(map(folded.__contains__, _WORDS)):
        return text
    for words, find in _SHAPES:
        if any(word in folded for word in words):
            text = _replaced(text, find(text))
    return text


def redacted_bytes(data: bytes, *, secrets: Iterable[str] | None = None) -> bytes:
    """A file's bytes without secrets, as many as before: what is behind them stays where it is.

    Args:
        data: Text in an encoding that has ASCII in it, or anything else.
        secrets: As of `redacted`.

    Example:
        >>> redacted_bytes(b"\\0password=hunter2-x\\0", secrets=())
        b'\\x00password=(hidden)*\\x00'
    """
    made = bytearray(data)
    values = secret_values() if secrets is None else sorted(filter(None, secrets), key=len, reverse=True)
    coded = [one.encode(code, errors="surrogatepass") for one in values for code in ("utf-8", "utf-16-le")]
    for value in coded:
        at = made.find(value)
        while at >= 0:
            made[at : at + len(value)] = _mask(len(value))
            at = made.find(value, at + len(value))
    text = made.translate(_AS_TEXT).decode("ascii")
    folded = text.lower()
    for words, find in _SHAPES:
        if any(word in folded for word in words):
            for begin, end in find(text):
                made[begin:end] = _mask(end - begin)
            text = made.translate(_AS_TEXT).decode("ascii")
    return bytes(made)


# A byte as a character: what is no ASCII is no letter, what is no text ends a line.
_AS_TEXT = bytes(
    ord("%") if one > 127 else one if 32 <= one < 127 or one in b"\t\n\r" else ord("\n") for one in range(256)
)


def _mask(length: int) -> bytes:
    return HIDDEN.encode().ljust(length, b"*") if length >= len(HIDDEN) else b"*" * length


def _replaced(text: str, spans: Iterable[_Span]) -> str:
    parts, at = [], 0
    for begin, end in spans:
        parts += [text[at:begin], HIDDEN]
        at = end
    return "".join([*parts, text[at:]]) if parts else text


def redacted_data(data: Any, *, secrets: Iterable[str] | None = None) -> Any:  # plain data of any depth
    """Plain data without secrets: in its texts, and the values of names that hold credentials.

    Example:
        >>> redacted_data({"api_key": "abc", "log": ["Bearer abcdefghij.1234"], "steps": 3}, secrets=())
        {'api_key': '(hidden)', 'log': ['Bearer (hidden)'], 'steps': 3}
    """
    values = secret_values() if secrets is None else tuple(secrets)
    if isinstance(data, Mapping):
        return {
            redacted(key, secrets=values) if isinstance(key, str) else key: (
                HIDDEN if is_secret(str(key)) and isinstance(value, str) else redacted_data(value, secrets=values)
            )
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [redacted_data(value, secrets=values) for value in data]
    return redacted(data, secrets=values) if isinstance(data, str) else data


# ---- environments

_ALLOWED = frozenset(
    [
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "USER",
        "LOGNAME",
        "SHELL",
        "LD_LIBRARY_PATH",
        "LIBRARY_PATH",
        "PYTHONHASHSEED",
        "PYTHONUNBUFFERED",
        "PYTHONDONTWRITEBYTECODE",
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
        "SOURCE_DATE_EPOCH",
        "LAMMPS_POTENTIALS",
        "NO_COLOR",
    ]
)
_ALLOWED_BEGINNINGS = ("LC_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_")
_OF_LAUNCHES = ("PMI_", "PMIX_", "PALS_", "OMPI_", "MPI", "HYDRA_", "HYDI_", "I_MPI_", "FI_", "UCX_", "SLURM_")


def clean_environment(
    environ: Mapping[str, str] | None = None, *, allow: Iterable[str] = (), ranks: bool = False
) -> dict[str, str]:
    """The part of an environment that a program of somebody else may see: what is on a list, and no credential.

    Args:
        environ: This process's own by default.
        allow: Names to let through beside the list; one of a credential is refused by the caller's record.
        ranks: Whether it is started by a launcher of MPI ranks, whose variables it then needs.

    Returns:
        Variables of the list (`PATH`, `LANG`, `OMP_*`, ...) whose name and value look like no credential.

    Example:
        >>> clean_environment({"PATH": "/bin", "HOME": "/h", "API_TOKEN": "x", "LC_ALL": "p://a:b@c"})
        {'PATH': '/bin'}
    """
    environ = os.environ if environ is None else environ
    wanted, secret = frozenset(allow), secret_values(environ)
    beginnings = _ALLOWED_BEGINNINGS + (_OF_LAUNCHES if ranks else ())

    def passes(name: str, value: str) -> bool:
        listed = name in _ALLOWED or name in wanted or name.startswith(beginnings)
        if not listed or is_credential(name) or looks_secret(value):
            return False
        return not any(one in value for one in secret)

    return {name: value for name, value in environ.items() if passes(name, value)}
