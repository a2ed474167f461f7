"""Finds site profiles: by a name, a path, the machine it is on; several at once."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hpcagent import packaged
from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import build, parse_toml, read_text
from hpcagent.offered import offers
from hpcagent.owners import require_own
from hpcagent.sites.profile import Profile
from hpcagent.sites.schedulers.present import who_answers
from hpcagent.sites.several_profiles import Several

__all__ = ["ProfileEntry", "find_profile", "identify_site", "list_profiles", "several", "shared_profile"]

MOST = 16
"""More sites than this in one campaign are a slip of the pen."""
YOUNG_NS = 2_000_000_000
"""A file of less than so many ns may be written again and look the same: clocks of disks are coarse."""


class ProfileEntry(NamedTuple):
    """One line of `hpcagent sites`."""

    name: str
    source: Path
    description: str


def find_profile(profile: str | Path | Profile | Sequence[str | Path | Profile] = "laptop") -> Profile:
    """Read a site profile.

    Args:
        profile: The path of a TOML file, or a name, which is looked for in this order: `site_profiles/` and
            the working directory itself, each directory of `$HPCAGENT_SITE_PATH`, the user's configuration
            (`$XDG_CONFIG_HOME` or `~/.config`, then `hpcagent/sites/`), the profiles that come with hpcagent, the
            folders of packages that entry points in the group `hpcagent.sites` name.
            `auto` is the one that knows this machine, see `identify_site`. A `Profile` is returned as it is.
            Several, with commas between their names or as a list, are found as one: a campaign runs on them all.

    Returns:
        The profile. Its name is the file's, if the file gives none.

    Raises:
        BadInput: There is no such profile, or the file is wrong; the message names file, key and value.

    Example:
        >>> find_profile("threads").kind
        'threads'
    """
    if isinstance(profile, Profile):
        return profile
    if not isinstance(profile, str | Path):
        return several(profile)
    text = str(profile)
    names = names_of(text) if "," in text else None
    if names is not None:
        return several(names)
    path = _file_of(text)
    if path is not None:
        return _read(path)
    if text == "auto":
        return identify_site()
    raise BadInput(
        f"There is no site profile {text!r}; {nearest(text, ['auto', *(e.name for e in list_profiles())])} "
        f"Looked in {', '.join(str(folder) for folder in _folders())}.",
        value=text,
    )


def shared_profile(profile: str) -> Profile:
    """As `find_profile`, one object for all who ask as long as the file is the same: to be looked at only.

    Raises:
        BadInput: As `find_profile`.
    """
    path = None if "," in profile else _file_of(profile)
    return find_profile(profile) if path is None else _shared(_pickled(path))


def identify_site(environ: Mapping[str, str] = os.environ, hostname: str | None = None) -> Profile:
    """Return the profile of the site this machine belongs to.

    Args:
        environ: Is compared with the `identify.env` of every profile that `list_profiles` finds.
        hostname: The full name, compared with `identify.hostname`; not given: this machine's.

    Returns:
        The profile that matches; one of the user's own goes before the packaged ones. If none does: `slurm` or
        `pbs`, whichever answers or has this process in a job, for on a login node `laptop` would be wrong;
        otherwise `laptop`.

    Raises:
        BadInput: Several match, both schedulers answer, or the one that is there does not.

    Example:
        >>> identify_site({"TACC_SYSTEM": "frontera", "PATH": ""}, "login1").name
        'frontera'
    """
    host = socket.getfqdn() if hostname is None else hostname
    matching: dict[bool, list[Profile]] = {False: [], True: []}
    for entry in list_profiles():
        try:
            found = _read(entry.source)
        except BadInput:
            continue
        if found.identify.matches(environ, host):
            matching[entry.source.resolve().parent == packaged.folder("site_profiles").resolve()].append(found)
    matches = matching[False] or matching[True]
    if len(matches) > 1:
        names = " and ".join(repr(found.name) for found in matches)
        raise BadInput(
            f"The site profiles {names} both know this machine ({host}); say which one is meant.",
            value=[found.name for found in matches],
        )
    return matches[0] if matches else find_profile(who_answers(environ) or "laptop")


def list_profiles() -> list[ProfileEntry]:
    """Return the profiles that `find_profile` finds by name, sorted; one that hides another counts once.

    A file that cannot be read is listed with what is wrong as its description.

    Example:
        >>> {"laptop", "threads"} <= {entry.name for entry in list_profiles()}
        True
    """
    entries: dict[str, ProfileEntry] = {}
    for folder in _folders():
        for path in sorted(folder.glob("*.toml")):
            if path.stem not in entries and (entry := _entry(path, folder)) is not None:
                entries[path.stem] = entry
    return sorted(entries.values())


def _entry(path: Path, folder: Path) -> ProfileEntry | None:
    try:
        return ProfileEntry(path.stem, path, _read(path).description)
    except BadInput as error:
        # the working directory has TOML files that are no profiles: campaigns, pyproject.toml
        return None if folder == Path() else ProfileEntry(path.stem, path, f"not usable: {error.message}")


def _file_of(text: str) -> Path | None:
    """The file of a profile by its path or name; None: no place has one of that name."""
    if text.endswith(".toml") or "/" in text or os.sep in text:
        return Path(text).expanduser()
    found = next((path for path in _files_named(text, *_own_folders()) if path.is_file()), None)
    if found is None:
        found = next((f / f"{text}.toml" for f in _offered_folders() if (f / f"{text}.toml").is_file()), None)
    return found


@lru_cache(maxsize=64)
def _files_named(name: str, *folders: str | Path) -> tuple[Path, ...]:
    return tuple(Path(folder) / f"{name}.toml" for folder in folders)


def _read(path: Path) -> Profile:
    made: Profile = pickle.loads(_pickled(path))  # its tables are the caller's
    return made


def _pickled(path: Path) -> bytes:
    """The profile of a file as it is at this moment; the same bytes for the same text."""
    if not _told_to_trust(path):
        require_own(path, what="the commands it names")
    try:
        now = path.stat()
    except OSError:
        return _made(read_text(path), str(path))
    changed_ns = max(now.st_mtime_ns, now.st_ctime_ns)
    if time.time_ns() - changed_ns < YOUNG_NS:
        return _made(read_text(path), str(path))
    return _made(_text(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)), str(path))


@lru_cache(maxsize=64)
def _text(path: Path, state: tuple[int, ...]) -> str:
    """The text of a file whose state, looked at before it is read, is this one."""
    return read_text(path)


@lru_cache(maxsize=64)
def _shared(pickled: bytes) -> Profile:
    made: Profile = pickle.loads(pickled)
    return made


@lru_cache(maxsize=64)
def _made(text: str, path: str) -> bytes:
    """The profile that a text is, pickled: a service asks for each run, and TOML and checks take a millisecond."""
    data = parse_toml(text, path)
    if "members" in data:  # site.toml of a campaign on several sites
        return pickle.dumps(read_several(data, path))
    return pickle.dumps(build(Profile, {"name": Path(path).stem, **data}, where=path))


def _told_to_trust(path: Path) -> bool:
    """Whether a profile came with hpcagent, or lies in $HPCAGENT_SITE_PATH, which is trusted as the PATH is."""
    here = path.absolute().parent
    if here == packaged.folder("site_profiles"):
        return True
    known = (packaged.folder("site_profiles"), *_site_path())
    return any(here == folder.absolute() for folder in known) or here in _offered_folders()


def _site_path() -> list[Path]:
    return [Path(f).expanduser() for f in os.environ.get("HPCAGENT_SITE_PATH", "").split(os.pathsep) if f]


def _folders() -> Iterator[Path]:
    yield from map(Path, _own_folders())
    yield from _offered_folders()


def _own_folders() -> tuple[str | Path, ...]:
    # Not Path.home(): a user may have no entry in the passwd database, e.g. in a container.
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    user = f"{config}/hpcagent/sites"
    return "site_profiles", "", *_site_path(), user, packaged.folder("site_profiles")


def _offered_folders() -> Iterator[Path]:
    """Folders of the packages that entry points name; they are trusted as their code is."""
    for offer in offers("sites"):
        try:
            spec = find_spec(offer.path)
        except (ImportError, ValueError):
            spec = None
        yield from map(Path, (spec.submodule_search_locations or ()) if spec is not None else ())


def several(sites: Sequence[str | Path | Profile]) -> Profile:
    """Return the profiles of these sites as one; that of a single one as it is.

    Raises:
        BadInput: There is none, one is unknown, or one is named twice.

    Example:
        >>> several(["laptop", "threads"]).name
        'laptop,threads'
    """
    if not sites or len(sites) > MOST:
        raise BadInput(f"site: name one site, or several, at most {MOST}; got {len(sites)}.", value=len(sites))
    found = [find_profile(site) for site in sites]
    for profile in found:
        if isinstance(profile, Several):
            raise BadInput(f"site: {profile.name} is several sites already; name each by itself.")
    names = [profile.name for profile in found]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(
                f"site: {name} is named {names.count(name)} times ({', '.join(map(_given, sites))}); each site "
                "takes part once. To run more at once on it, change its profile, or --workers.",
                value=name,
            )
    return found[0] if len(found) == 1 else _of(found)


def names_of(text: str) -> list[str] | None:
    """The names in `laptop,endpoint-a`; None where it is one name, or the path of a file with a comma in it."""
    if "," not in text or Path(text).is_file():
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise BadInput(f"site: {text!r} has an empty name; write e.g. laptop,endpoint-a.", value=text)
    return names


def read_several(data: Any, where: str) -> Profile:
    """Return what `site.toml` of a campaign on several sites says.

    Raises:
        BadInput: A profile in it is wrong.
    """
    from hpcagent.model.base import build

    members = data["members"]
    if not isinstance(members, list) or not all(isinstance(m, dict) for m in members):
        raise BadInput(f"{where}: members is a list of tables, one for each site.", value=members)
    return several([build(Profile, m, where=f"{where}: members") for m in members])


def _given(site: str | Path | Profile) -> str:
    return site.name if isinstance(site, Profile) else os.fspath(site)


def _of(members: Sequence[Profile]) -> Several:
    # What one machine's profile says (executors, apps) is each member's own; the kind is that of no scheduler.
    return Several(name=",".join(m.name for m in members), kind="local", members=tuple(members))
