"""Several site profiles in one campaign's hands: `--site laptop,endpoint-a`, a list in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from pydantic import SerializeAsAny, StringConstraints

from hpcagent.errors import BadInput
from hpcagent.sites.profile import Profile

if TYPE_CHECKING:
    from hpcagent.sites.site import Site

__all__ = ["AnySite", "Several", "one_site"]

AnySite: TypeAlias = Union[str, Path, "Site", Profile, Sequence[str | Path | Profile]]
"""What may be given as a campaign's site: a name, a path, a profile, an open site, or several."""


class Several(Profile):
    """The profiles of the sites that a campaign runs on, in their order; a profile by itself where one is shown.

    Attributes:
        members: One each.
    """

    name: Annotated[str, StringConstraints(min_length=1)]
    members: tuple[SerializeAsAny[Profile], ...] = ()


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
