"""The token of one server, in its workspace's folder: on a login node every user reaches 127.0.0.1."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from hpcagent.errors import BadInput
from hpcagent.store.files import open_plain

__all__ = ["TOKEN_FILE", "own_token"]

TOKEN_FILE = "mcp-token"
_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def own_token(folder: Path) -> str:
    """The token, made if there is none yet: 256 random bits, in a file that only its owner can read.

    Args:
        folder: The workspace's.

    Raises:
        BadInput: The file is not the user's alone, or has something else in it.
    """
    path = folder / TOKEN_FILE
    try:
        made = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise BadInput(f"{path} cannot be made: {error.strerror}.", value=str(path)) from None
    else:
        with os.fdopen(made, "w") as file:
            file.write(secrets.token_urlsafe(_BYTES) + "\n")
    return _read(path)


def _read(path: Path) -> str:
    remedy = "Remove it: another is made at the next start, and clients need that one then."
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(200) if stat.S_ISREG(found.st_mode) else b""
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}. {remedy}", value=str(path)) from None
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BadInput(
            f"{path} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}; it has to be yours with "
            f"mode 600. {remedy}",
            value=str(path),
        )
    token = text.decode(errors="replace").strip()
    if not _TOKEN.fullmatch(token):
        raise BadInput(f"{path} has no token in it. {remedy}", value=str(path))
    return token
