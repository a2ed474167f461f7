"""Whose a file is: nothing that another user wrote, or may write, decides what is run as this one."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from hpcagent.errors import BadInput

__all__ = ["EVERYONE", "TRUST", "require_own", "stranger", "trusting"]

TRUST = "HPCAGENT_TRUST"
"""Users, and groups as `@NAME`, whose files may decide what is run; with colons or commas between them."""
EVERYONE = "everyone"


def require_own(*paths: Path, what: str) -> None:
    """Refuse files and folders that belong to another user, or that others may write.

    One that is not there is nobody's. Root's are trusted: root can do everything anyway.

    Args:
        paths: Files and folders; of a link, what it leads to.
        what: What in them would be run, for the message.

    Raises:
        BadInput: With the owner, and the option by which one says that it is all right.
    """
    for path in paths:
        problem = stranger(path)
        if problem:
            raise BadInput(
                f"{problem}, and {what} would be run as you. Look at it first.", value=str(path), trust=True
            )


def stranger(path: Path) -> str:
    """Why a file or folder should not decide what is run, and what to do, in words; else empty."""
    try:
        found = os.stat(path)  # noqa: PTH116  (one call, of what a link leads to)
    except OSError:
        return ""
    trusted = _trusted()
    if EVERYONE in trusted:
        return ""
    folder = stat.S_ISDIR(found.st_mode)
    if found.st_mode & stat.S_IWOTH:
        return (
            f"{path} can be written by every user of the machine (`chmod o-w {path}` ends that; "
            f"--trust {EVERYONE} or ${TRUST} accepts it)"
        )
    if f"@{_group(found.st_gid)}" in trusted or f"@{found.st_gid}" in trusted:
        return ""
    if found.st_uid not in (0, os.geteuid()) and not {_user(found.st_uid), str(found.st_uid)} & trusted:
        owner = _user(found.st_uid)
        return f"{path} belongs to {owner}, not to {_user(os.geteuid())} (--trust {owner} or ${TRUST} accepts it)"
    if not folder and found.st_mode & stat.S_IWGRP and not _private(found.st_gid, found.st_uid):
        group = _group(found.st_gid)
        return (
            f"{path} can be written by the group {group} (`chmod g-w {path}` ends that; --trust @{group} or "
            f"${TRUST} accepts it)"
        )
    return ""


def trusting(names: Iterable[str], before: str = "") -> str:
    """The value of $HPCAGENT_TRUST with further names.

    Raises:
        BadInput: One of them is no name.
    """
    names = list(names)
    for name in names:
        if not name.strip("@") or any(c in name for c in ":, \t\n"):
            raise BadInput(f"--trust {name!r}: name a user, a group as @NAME, or {EVERYONE}.", value=name)
    return ":".join(filter(None, [before, *names]))


def _trusted() -> set[str]:
    return {name.strip() for name in os.environ.get(TRUST, "").replace(",", ":").split(":") if name.strip()}


def _private(gid: int, uid: int) -> bool:
    """Whether the group is the owner's alone: of the same name, as most systems make one for each user."""
    return _group(gid) == _user(uid)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
