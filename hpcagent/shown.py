"""How texts of others are shown: no commands to a terminal, no markup of a page, no secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

__all__ = [
    "CONTROL",
    "HIDDEN",
    "escaped",
    "is_secret",
    "markdown",
    "masked",
    "plain",
    "size_text",
    "without_secrets",
    "writable",
]

Data = TypeVar("Data")

# C0 but tab and newline, DEL, C1 (an 8-bit terminal takes U+009B for the beginning of a command), line and
# paragraph separators, what turns the direction of writing round (text then reads other than it is), what is
# not seen at all (two texts then look the same; tags can hold a whole text), lone surrogates (they cannot be
# encoded). The joiners U+200C and U+200D stay: letters of some languages, and emoji, are other ones without.
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_NEWLINES = re.compile("\r+\n?")

# What begins a tag, a comment or an entity in HTML and in Markdown (https://spec.commonmark.org/0.31.2/#raw-html).
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_ENTITY = re.compile(r"&(?=#?\w+;)")

HIDDEN = "(hidden)"
_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|SECRETS|PASS|PASSWD|PASSWORD|PASSPHRASE|PASSCODE|CREDENTIALS?|APIKEY|AUTH|JWT)(?:_|$)"
    r"|(?:^|_)(?:API|ACCESS|PRIVATE|SECRET|SIGNING|ENCRYPTION|ACCOUNT)_KEY(?:_|$)",
    re.IGNORECASE,
)
# (Blanks before it, but no empty lines: from each of them all that follow would be looked at.)
_EXPORT = re.compile(
    r"^([^\S\n]*(?:export\s+)?)([A-Za-z_]\w*)=(?=.)(?:'[^']*'|\"[^\"]*\"|[^\s;&|])+", re.MULTILINE
)


def plain(text: str) -> str:
    r"""A text that does nothing to a terminal: control characters are shown as `\x1b`, colours left out.

    Newlines and tabs stay; a carriage return is a newline.

    Example:
        >>> plain("Step 1\r\n\x1b[31mERROR\x1b[0m \x1b]0;title\x07")
        'Step 1\nERROR \\x1b]0;title\\x07'
    """
    if CONTROL.search(text) is None:
        return text
    return CONTROL.sub(escaped, _NEWLINES.sub("\n", _COLOUR.sub("", text)))


def escaped(found: re.Match[str]) -> str:
    """The character that was found, as `\\x1b`, `\\u200b` or `\\U000e0041`."""
    code = ord(found[0])
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def markdown(text: str, *, own: tuple[str, ...] = ()) -> str:
    """A page of Markdown in which no text from outside is HTML, an image or a link.

    Args:
        text: The page. It has no HTML of its own.
        own: Links and images that are its own.

    Example:
        >>> markdown("energy <= 3 <img src=x> ![plot](plot.png) [a](http://b)", own=("![plot](plot.png)",))
        'energy <= 3 &lt;img src=x> ![plot](plot.png) [a]\\\\(http://b)'
    """
    page = _TAG.sub("&lt;", _ENTITY.sub("&amp;", plain(text))).replace("](", "]\\(")
    for link in own:
        page = page.replace(link.replace("](", "]\\("), link)
    return page


def is_secret(name: str) -> bool:
    """Whether a variable of such a name holds what nobody else is to know.

    Example:
        >>> is_secret("WANDB_API_KEY"), is_secret("GITHUB_TOKEN"), is_secret("LM_LICENSE_FILE"), is_secret("KEYS")
        (True, True, False, False)
    """
    return _SECRET.search(name) is not None


def masked(script: str) -> str:
    """A shell script with the values of secret variables left out, to be shown.

    Example:
        >>> print(masked("export API_TOKEN='a b'; echo hello"))
        export API_TOKEN=(hidden); echo hello
    """
    return _EXPORT.sub(lambda m: f"{m[1]}{m[2]}={HIDDEN}" if is_secret(m[2]) else m[0], script)


def without_secrets(data: Any) -> Any:  # plain data of any depth
    """Plain data with the values of secret names left out, to be shown; scripts in it are masked, too.

    Example:
        >>> without_secrets({"env": {"API_TOKEN": "abc", "OMP_NUM_THREADS": "4"}})
        {'env': {'API_TOKEN': '(hidden)', 'OMP_NUM_THREADS': '4'}}
    """
    if isinstance(data, Mapping):
        return {
            key: HIDDEN if is_secret(str(key)) and isinstance(value, str) else without_secrets(value)
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [without_secrets(value) for value in data]
    return masked(data) if isinstance(data, str) else data


def size_text(size: float) -> str:
    """A number of bytes with a binary prefix (IEC 80000-13).

    Example:
        >>> size_text(512), size_text(1536), size_text(3 * 2**30)
        ('512 B', '1.5 KiB', '3.0 GiB')
    """
    if size < 1024:
        return f"{int(size)} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def writable(value: Data) -> Data:
    r"""Plain data whose texts can be written as UTF-8: a byte of a file's name that is none stands as `\udcff`.

    Example:
        >>> writable({"artifacts": {"data": "a.d\udcff"}, "metrics": {"x": 1.0}})
        {'artifacts': {'data': 'a.d\\udcff'}, 'metrics': {'x': 1.0}}
    """
    return value if _is_writable(value) else cast("Data", _written_otherwise(value))


def _is_writable(value: Any) -> bool:
    if isinstance(value, str):
        if value.isascii():
            return True
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return True
    if isinstance(value, dict):
        return all(map(_is_writable, value)) and all(map(_is_writable, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_writable, value))


def _written_otherwise(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_written_otherwise(key): _written_otherwise(one) for key, one in value.items()}
    return [_written_otherwise(one) for one in value] if isinstance(value, list | tuple) else value
