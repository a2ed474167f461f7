"""Where runs happen: a profile (TOML) becomes a Parsl configuration, opened and closed as a site.

The names below are loaded when they are first asked for: the processes of a site import this package too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcagent.sites.ended import failure_of
    from hpcagent.sites.opening import open_site
    from hpcagent.sites.profile import Profile
    from hpcagent.sites.profiles import ProfileEntry, find_profile, list_profiles
    from hpcagent.sites.site import Site, current_dfk, current_site, usable_cores
    from hpcagent.sites.tables import ExecutorProfile

__all__ = [
    "ExecutorProfile",
    "Profile",
    "ProfileEntry",
    "Site",
    "current_dfk",
    "current_site",
    "failure_of",
    "find_profile",
    "list_profiles",
    "open_site",
    "usable_cores",
]

_HOME = {
    "ExecutorProfile": "tables",
    "Profile": "profile",
    "ProfileEntry": "profiles",
    "Site": "site",
    "current_dfk": "site",
    "current_site": "site",
    "failure_of": "ended",
    "find_profile": "profiles",
    "list_profiles": "profiles",
    "open_site": "opening",
    "usable_cores": "site",
}


def __getattr__(name: str) -> Any:  # whatever the module has
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
