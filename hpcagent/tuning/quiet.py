"""Waiting until nothing else runs on this machine, so that speeds measured then are those of the script."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hpcagent.campaign.where import crowded, machine_load
from hpcagent.sites.profile import Profile

__all__ = ["wait_quiet"]

_LOOK_S = 5.0


def wait_quiet(
    profile: Profile,
    seconds: float,
    told: Callable[[str], None],
    *,
    load: Callable[[], Mapping[str, float]] = machine_load,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait for a quiet machine, no longer than so long; it goes on then in any case, and says so.

    Args:
        profile: The site; on a cluster the runs are on other machines, and nothing is waited for.
        seconds: The longest.
        told: Called with a line when the waiting begins, and when it ends.
        load: How busy this machine is.
        sleep: Called with seconds between two looks.
        clock: Tells seconds.
    """
    if seconds <= 0 or profile.batch:
        return
    crowd = crowded(load())
    if not crowd:
        return
    began = clock()
    told(f"this machine is busy ({crowd}): waiting until it is quiet, up to {seconds:g} s")
    while crowd and clock() - began < seconds:
        sleep(max(0.1, min(_LOOK_S, seconds - (clock() - began))))
        crowd = crowded(load())
    waited = f"after {clock() - began:.0f} s"
    told(
        f"this machine is still busy {waited} ({crowd}): going on" if crowd else f"this machine is quiet {waited}"
    )
