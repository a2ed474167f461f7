"""A site on which one run has a whole node at a time, so that measured speeds do not disturb each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from hpcagent.errors import BadInput
from hpcagent.model.base import build
from hpcagent.sites.block import block_of
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.site import usable_cores
from hpcagent.store.files import write_whole

__all__ = ["alone", "cores_of", "written_site"]


def alone(site: str | Path | Profile) -> Profile:
    """The profile of a site with one executor of mode `mpi`, on which one run goes at a time.

    Raises:
        BadInput: There is no such site, it is several, or it has no place for runs of several ranks.
    """
    profile = find_profile(site)
    if not isinstance(profile, Profile):
        raise BadInput(f"site {site}: speeds of several sites are not comparable; name one.", value=str(site))
    if profile.remote:
        raise BadInput(
            f"site {profile.name}: an endpoint shares its nodes as it is set up, so runs cannot be timed alone "
            "from here; tune on the cluster itself, or in a job of it.",
            value=profile.name,
        )
    found = [label for label, executor in profile.executors.items() if executor.mode == "mpi"]
    if not found:
        raise BadInput(
            f"site {profile.name}: tuning varies MPI ranks, and the site has no executor for them; add to its "
            "profile "
            '[executors.mpi] with mode = "mpi".',
            value=profile.name,
        )
    data: dict[str, Any] = profile.model_dump(mode="json", exclude_unset=True)
    executor = data["executors"][found[0]] | {"max_workers_per_node": 1}
    data["name"] = f"{profile.name}_alone"
    data["description"] = f"{profile.name}, one run at a time on the whole of a node"
    data["executors"] = {found[0]: executor}
    return build(Profile, _without_none(data), where=f"site {profile.name}")


def cores_of(profile: Profile) -> int:
    """Cores that one run may have on one node.

    Raises:
        BadInput: The profile of a cluster does not say.
    """
    if not profile.batch:
        return min(len(usable_cores()), profile.node_cores or len(usable_cores()))
    cores = block_of(profile, next(iter(profile.executors))).usable_cores or profile.node_cores
    if cores is None:
        raise BadInput(
            f"site {profile.name}: how many cores a node has is not in its profile, so how many ranks are safe "
            "cannot be told; set node_cores, or describe its nodes in [nodes].",
            value=profile.name,
        )
    return cores


def written_site(profile: Profile, path: Path) -> None:
    """Write a profile as a TOML file that `--site` takes."""
    data = _without_none(profile.model_dump(mode="json", exclude_unset=True))
    write_whole(path, tomli_w.dumps(data).encode())


def _without_none(data: Any) -> Any:  # plain data of any depth
    if isinstance(data, dict):
        return {str(k): _without_none(v) for k, v in data.items() if v is not None}
    return [_without_none(v) for v in data] if isinstance(data, list) else data
