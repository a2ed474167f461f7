"""Secrets are taken out of texts: by value, those of this process's environment, and by what they look like.

Standard library only, for workers use it. What is not known by value and looks like nothing cannot be found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hpcagent.shown import HIDDEN, is_secret

__all__ = ["clean_environment", "is_credential", "looks_secret", "redacted", "redacted_data", "secret_values"]

SHORTEST = 6
"""Characters of a value that is looked for; a shorter one (`1`, `true`) would be found in everything."""

_NAMES = re.compile(
    r"(?:^|_)(?:KEY|KEYS|SECRETS?|TOKENS?|COOKIE|SESSION_?ID|DSN|PRIVATE|BEARER|SIGNATURE|SAS|PAT|PWD_FILE|NETRC)"
    r"(?:_|$)|PASSW|PASSPHRASE|CREDENTIAL|SECRET|TOKEN|^(?:AWS|AZURE|GCP|GOOGLE|GLOBUS|VAULT|OPENAI|ANTHROPIC|HF)_"
    r"|^SLURM_JWT$|^SSH_A|^GPG_|^KRB5|^XDG_RUNTIME_DIR$|^DBUS_",
    re.IGNORECASE,
)
# (words of which every match has one, case-folded: most texts have none, and the pattern is slow; pattern; what is
# written in its place)
_SHAPES: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (
        ("private key",),
        re.compile(
            r"-----BEGIN ([A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?)-----"
            r"(?:.{0,20000}?-----END \1-----|[A-Za-z0-9+/=\s]*)",
            re.DOTALL,
        ),
        HIDDEN,
    ),
    # RFC 7519: two objects in base64url (`{"` is `eyJ`), and a signature.
    (("eyj",), re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?"), HIDDEN),
    (("://",), re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"), HIDDEN),
    (
        ("bearer", "basic", "token"),
        re.compile(r"(?i)\b(bearer|basic|token)(\s+)(?=[\w.~+/-]*[\d._~+/-])[\w.~+/-]{12,}=*"),
        rf"\1\2{HIDDEN}",
    ),
    (
        ("passw", "passphrase", "secret", "key", "token"),
        re.compile(
            r"(?i)([\"']?\b[\w-]*(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|auth[_-]?token|"
            r"access[_-]?token|refresh[_-]?token|id[_-]?token)[\"']?\s{0,3}[=:]\s{0,3})(?:\"[^\"\n]+\"|'[^'\n]+'|"
            r"(?!\(hidden\))[^\s,;&\"'}]{4,})"
        ),
        rf"\1{HIDDEN}",
    ),
    # As their makers document them: access keys of AWS, tokens of GitHub, GitLab, Slack, Hugging Face, OpenAI.
    (("akia", "asia"), re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (
        ("gh", "glpat-", "xox", "hf_", "sk-", "github_pat_"),
        re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_|sk-)(?=[\w-]*\d)[\w-]{16,}"),
        HIDDEN,
    ),
)


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


def secret_values(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The values of an environment that nobody else is to know, the longest first.

    Paths and plain words in a variable with such a name (`SSH_AUTH_SOCK`, `AWS_PROFILE=default`) are none.

    Args:
        environ: This process's own by default.

    Example:
        >>> secret_values({"API_TOKEN": "s3cr3t-value", "HOME": "/home/ann", "KEY_FILE": "/home/ann/key"})
        ('s3cr3t-value',)
    """
    found = set()
    for name, value in (os.environ if environ is None else environ).items():
        if len(value) < SHORTEST:
            continue
        if is_secret(name) or (is_credential(name) and not _is_plain(value)):
            found |= {value, value.strip()}
            # A line of several may be printed alone.
            found |= {line for line in value.splitlines() if len(line) >= 2 * SHORTEST}
    return tuple(sorted((v for v in found if len(v) >= SHORTEST), key=lambda v: (-len(v), v)))


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
    for words, pattern, instead in _SHAPES:
        if any(word in folded for word in words):
            text = pattern.sub(instead, text)
    return text


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
