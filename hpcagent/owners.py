"""Whose a file is: nothing that another user wrote, or may write, decides what is run as this one."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from hpcagent.errors import BadInput

__all__ = [
    "EVERYONE",
    "TRUST",
    "own_link",
    "require_own",
    "require_own_links",
    "stranger",
    "trusting",
    "user_name",
]

TRUST = "HPCAGENT_TRUST"
"""Users, and groups as `@NAME`, whose files may decide what is run; with colons or commas between them."""
EVERYONE = "everyone"

_OVERFLOW = 65534
"""`nobody`: what Linux and NFS show in place of an owner that has no number here."""


def require_own(*paths: Path, what: str) -> None:
    """Refuse files and folders that belong to another user, or that every user may write.

    One that is not there is nobody's. Root's are trusted: root can do everything anyway. One's own that a group
    may write are one's own: folders of projects are made so (setgid, umask 002 or 007) on most clusters, and who
    is in such a group is the project's affair.

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
    if found.st_mode & stat.S_IWOTH:
        # A folder that everybody shares, /tmp, is to stay as it is.
        end = "use another folder" if found.st_mode & stat.S_ISVTX else f"`chmod o-w {path}` ends that"
        return (
            f"{path} can be written by every user of the machine "
            f"({end}; --trust {EVERYONE} or ${TRUST} accepts it)"
        )
    if not _own(found, trusted):
        owner = user_name(found.st_uid)
        return (
            f"{path} belongs to {owner}, not to {user_name()} (--trust {owner} or ${TRUST} accepts it"
            f"{_why_not_own(found.st_uid)})"
        )
    return ""


def require_own_links(*folders: Path) -> None:
    """Refuse a folder that is another user's symbolic link: who made it would choose where one writes.

    Raises:
        BadInput: With the folder, and where it leads.
    """
    for folder in folders:
        if folder.is_symlink() and not own_link(folder):
            owner = user_name(folder.lstat().st_uid)
            raise BadInput(
                f"{folder} is a symbolic link of {owner}, to {folder.readlink()}, and what is written there "
                f"would be written as you. Remove it, or accept it by --trust {owner} or ${TRUST}.",
                value=str(folder),
                trust=True,
            )


def own_link(path: Path) -> bool:
    """Whether a symbolic link is one's own, root's, or of somebody who is trusted.

    Raises:
        OSError: There is none.
    """
    return _own(os.lstat(path), _trusted())


def _own(found: os.stat_result, trusted: set[str]) -> bool:
    if found.st_uid in (0, os.geteuid()) or EVERYONE in trusted:
        return True
    names = {user_name(found.st_uid), str(found.st_uid), f"@{_group(found.st_gid)}", f"@{found.st_gid}"}
    return bool(names & trusted)


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


def _why_not_own(uid: int) -> str:
    """What else may be behind another owner than another user."""
    if uid == _OVERFLOW:
        return "; file systems and containers show so whose owner they do not know, which may be yourself"
    if os.geteuid() == 0:
        return "; as root in a container, also of your own files that are mounted there"
    return ""


def user_name(uid: int | None = None) -> str:
    """The login name of a user; the number of one without an entry in the passwd database, as in a container.

    Args:
        uid: The user's number; None: of whoever this process runs as.
    """
    uid = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
