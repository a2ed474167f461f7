"""Several site profiles in one campaign's hands: `--site laptop,endpoint-a`, a list in Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union

from pydantic import SerializeAsAny, StringConstraints

from hpcagent.errors import BadInput
from hpcagent.sites.profile import Profile, find_profile

if TYPE_CHECKING:
    from hpcagent.sites.site import Site

__all__ = ["AnySite", "Several", "names_of", "one_site", "read_several", "several"]

AnySite: TypeAlias = Union[str, Path, "Site", Profile, Sequence[str | Path | Profile]]
"""What may be given as a campaign's site: a name, a path, a profile, an open site, or several."""

MOST = 16
"""More sites than this in one campaign are a slip of the pen."""


class Several(Profile):
    """The profiles of the sites that a campaign runs on, in their order; a profile by itself where one is shown.

    Attributes:
        members: One each.
    """

    name: Annotated[str, StringConstraints(min_length=1)]
    members: tuple[SerializeAsAny[Profile], ...] = ()


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


def one_site(profile: Profile, what: str) -> Profile:
    """Return a profile that is of one site.

    Args:
        profile: Whatever was chosen.
        what: What is for one site at a time, as the beginning of a sentence.

    Raises:
        BadInput: It is several.
    """
    if isinstance(profile, Several):
        raise BadInput(
            f"{what} for one site at a time, and these are several ({profile.name}); name one with --site.",
            value=profile.name,
        )
    return profile


def _given(site: str | Path | Profile) -> str:
    return site.name if isinstance(site, Profile) else os.fspath(site)


def _of(members: Sequence[Profile]) -> Several:
    # What one machine's profile says (executors, apps) is each member's own; the kind is that of no scheduler.
    return Several(name=",".join(m.name for m in members), kind="local", members=tuple(members))
