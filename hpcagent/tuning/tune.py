"""How is this script run fastest on this machine, as accurately as it came? A campaign that is written and run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcagent.apps.sandbox.setting import SANDBOX
from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.result import CampaignResult
from hpcagent.errors import AppFailed, BadInput, Interrupted
from hpcagent.model import failures
from hpcagent.model.base import Scalar, read_toml
from hpcagent.model.texts import as_name
from hpcagent.runs.run import run as run_campaign
from hpcagent.science.lammps.contract import contract_beside, packaged_inputs, stem_of
from hpcagent.science.lammps.executable import installed_styles
from hpcagent.science.lammps.knobs import UNKNOWN, Knob, System, knobs, pair_names, rank_counts
from hpcagent.science.lammps.rewritten import PHYSICAL
from hpcagent.science.lammps.settings import Settings
from hpcagent.science.lammps.timeable import read_settings
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile
from hpcagent.sites.site import Site
from hpcagent.statistics.recommend import Estimate
from hpcagent.tuning.asked import CAMPAIGN, digest, taken
from hpcagent.tuning.checks import averages_differ
from hpcagent.tuning.probe import Probe, read_probe
from hpcagent.tuning.quiet import wait_quiet as until_quiet
from hpcagent.tuning.site import alone, cores_of
from hpcagent.tuning.tuned import SURE, Tuned, contenders, judged, settings_rows
from hpcagent.tuning.work import Place, Work, brief

__all__ = ["tune"]

_LEAST_RUNS = 6
_CONTENDERS = 3


def tune(
    script: str | Path,
    *,
    site: str | Path | Profile = "laptop",
    ranks: Sequence[int] = (),
    runs: int = 24,
    steps: int | None = None,
    earlier: int = 1000,
    seconds: float = 4.0,
    longest: float = 900.0,
    ranks_now: int | None = None,
    threads_now: int | None = None,
    variables: Mapping[str, Scalar] | None = None,
    repeats: int = 5,
    same_forces: bool = False,
    wait_quiet: float = 0.0,
    folder: str | Path | None = None,
    seed: int = 1,
    dry_run: bool = False,
    say: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> Tuned:
    """Find the settings with which an input script runs fastest on a site, as accurately as it came.

    A folder is written with the script whose settings are parameters, its contract, the campaign and the site,
    all to be read, changed and run again by `hpcagent run`. The campaign is run, its best points are checked
    against the script as it came, and the tuned script is written and timed beside it. The timestep is never
    changed. Called again after an interruption, it goes on where it was.

    Args:
        script: The input script; files that it reads lie beside it. Or the name of a packaged one.
        site: Name or path of a site profile. One run goes at a time, on one node.
        ranks: Numbers of MPI ranks to try; powers of two up to a node's cores by default, those that the script's
            own `processors` grid takes.
        runs: Runs of the campaign.
        steps: Steps of the timed run; by default as many as take `seconds`, no more than the script's own.
        earlier: The most steps of each run before it.
        seconds: Wall time that a run of the script as it came is to take.
        longest: Wall time after which any run is ended, in seconds.
        ranks_now: On how many ranks it was run up to now; by default one, or those of its `processors` grid.
        threads_now: With how many OpenMP threads each; by default one, or those of its `package omp`.
        variables: Values of variables that the script is given on the command line (`-var`).
        repeats: How often the tuned script is timed beside the script as it came at the end.
        same_forces: Whether only settings are tried that change no force; those of k-space and the Coulomb cutoff
            stay as they came.
        wait_quiet: The longest time that is waited, before the first run and before the timing at the end, until
            nothing else runs on this machine, in seconds. Not on a cluster, whose runs are on other machines.
        folder: Where everything is written; `tuned/NAME` by default.
        seed: Of the policy.
        dry_run: Read the script, and run nothing.
        say: Called with a line whenever something begins.
        progress: As of `hpcagent.run`.

    Returns:
        What was found, and where it is written.

    Raises:
        BadInput: Something of the script cannot be measured, it fails as it came, the site has no place for it, or
            the folder is taken.
        Interrupted: Ctrl-C; the same call goes on.
    """
    path = _script(script)
    _refuse(runs=runs, steps=steps, earlier=earlier, seconds=seconds, longest=longest, repeats=repeats)
    if not 0 <= wait_quiet < math.inf:
        raise BadInput(f"tune: wait_quiet={wait_quiet} must be 0 or more seconds.", value=wait_quiet)
    given = _given(variables or {})
    settings = read_settings(path, given)
    _refuse_confined(path)
    name = as_name(stem_of(path))
    profile = alone(site)
    cores = cores_of(profile)
    now = Place(settings.grid_of if ranks_now is None else ranks_now, threads_now or settings.threads or 1)
    counts = _rank_counts(settings, tuple(ranks), cores, now, profile)
    ways = _accelerators(settings, profile)

    def made_of(system: System) -> tuple[Knob, ...]:
        made = knobs(
            settings, system, ranks=counts, cores=cores,
            ranks_now=now.ranks, threads_now=now.threads, accelerators=ways,
        )  # fmt: skip
        return tuple(k for k in made if not (same_forces and k.setting in PHYSICAL))

    if dry_run:
        made = made_of(UNKNOWN)
        return Tuned(path=path, name=name, settings=settings_rows(settings, made), left=settings.left, knobs=made)
    asked = {
        "script": digest(settings), "variables": given, "site": profile.name, "ranks": counts, "runs": runs,
        "steps": steps, "earlier": earlier, "seconds": seconds, "ranks_now": now.ranks, "threads_now": now.threads,
        "seed": seed, "same_forces": same_forces,
    }  # fmt: skip
    told = say or (lambda line: None)
    wanted = Path(folder) if folder is not None else Path("tuned") / name
    with taken(wanted, asked) as where:
        work = Work(settings, where, name, profile, now, cores, earlier, longest)
        work.copy_files()
        with open_site(profile, run_dir=where / "checks") as opened:
            try:
                until_quiet(profile, wait_quiet, told)
                probe = _probe(work, steps, seconds, told)
                made = made_of(probe.system)
                found = _found(work, opened, made, probe, runs=runs, seed=seed, told=told, progress=progress)
                return _checked(work, found, repeats=repeats, told=told, wait_quiet=wait_quiet).written()
            except Interrupted as error:
                if not (where / CAMPAIGN).exists():
                    raise
                raise type(error)(f"{path}: interrupted; the same `hpcagent tune` goes on in {where}.") from None


def _script(script: str | Path) -> Path:
    path = Path(script).expanduser()
    packaged = packaged_inputs().get(str(script)) if not path.exists() else None
    return path if packaged is None else packaged.parent / f"in.{script}"


def _refuse_confined(script: Path) -> None:
    """Refuse a script that its contract confines: what is tried has several ranks, and no sandbox."""
    contract = contract_beside(script)
    if contract is not None and SANDBOX in read_toml(contract):
        raise BadInput(
            f"tune: {script} is confined to a sandbox by {contract}, and tuning runs it without one, on several "
            "ranks. Tune a script that you trust: drop [sandbox] there, or copy the script alone.",
            value=str(script),
        )


def _refuse(*, runs: int, steps: int | None, earlier: int, seconds: float, longest: float, repeats: int) -> None:
    for what, count, least in (("runs", runs, _LEAST_RUNS), ("earlier", earlier, 0), ("repeats", repeats, 1)):
        if count < least:
            raise BadInput(f"tune: {what}={count} is too few; at least {least}.", value=count)
    if steps is not None and steps < 1:
        raise BadInput(f"tune: steps={steps}: a run has at least one step.", value=steps)
    for what, time in (("seconds", seconds), ("longest", longest)):
        if not 0 < time < math.inf:
            raise BadInput(f"tune: {what}={time} must be more than 0.", value=time)


def _given(variables: Mapping[str, Scalar]) -> dict[str, str]:
    for name, value in variables.items():
        if not name.isidentifier() or any(c.isspace() or c in "\"'&#$" for c in str(value)) or not str(value):
            raise BadInput(f"tune: variable {name}={value!r}: give a plain name and one plain word.", value=value)
    return {name: str(value) for name, value in variables.items()}


def _rank_counts(
    settings: Settings, ranks: tuple[int, ...], cores: int, now: Place, profile: Profile
) -> tuple[int, ...]:
    if now.threads < 1 or now.ranks < 1:
        raise BadInput(
            f"tune: ranks_now={now.ranks}, threads_now={now.threads}: at least 1 each.", value=now.ranks
        )
    for count in (*ranks, now.ranks * now.threads):
        if not 1 <= count <= cores:
            raise BadInput(
                f"tune: {count} rank(s) x threads do not fit a node of {profile.name}, which has {cores} usable "
                f"core(s): give 1 to {cores}.",
                value=count,
            )
    for count in (*ranks, now.ranks):
        if not settings.fits(count):
            raise BadInput(
                f"{settings.path}: its `processors {' '.join(settings.grid)}` does not take {count} rank(s); give "
                "--ranks and --ranks-now that fit it, or `*` in the script.",
                value=count,
            )
    if any("$" in word for word in settings.grid) and not ranks:
        return (now.ranks,)
    return tuple(sorted({*(ranks or filter(settings.fits, rank_counts(cores))), now.ranks}))


def _accelerators(settings: Settings, profile: Profile) -> tuple[str, ...]:
    """Those that this machine's LAMMPS has for the script's pair styles; all where it cannot be asked here."""
    styles = None if profile.batch else installed_styles(profile.model_dump(mode="json"))
    ways = ("opt", "omp")
    if styles is None:
        return ways
    pairs = pair_names(settings)
    return tuple(way for way in ways if any(f"{pair}/{way}" in styles for pair in pairs))


def _probe(work: Work, steps: int | None, seconds: float, told: Callable[[str], None]) -> Probe:
    """What the script as it came tells, by its runs now or by those before an interruption."""
    file = work.folder / "probe.json"
    probe = read_probe(file)
    if probe is not None:
        return probe
    path = work.settings.path
    told(f"{path}: a first short run of the script as it came, on {work.now.ranks} rank(s)")
    try:
        probe = work.probe(steps, seconds)
    except AppFailed as error:
        row = failures.mode(error.name)
        if failures.meaning(error.kind, error.name).machine and not (row is not None and row.timed):
            raise
        last = "".join(f"\n{line}" for line in (error.log_tail or "").strip().splitlines()[-3:])
        raise BadInput(
            f"{path}: fails as it came, so there is nothing to tune ({error.name}): {error.message}{last}",
            value=str(path),
        ) from None
    probe.write(file)
    return probe


@dataclass(frozen=True)
class _Found:
    """What the campaign found."""

    campaign: Campaign
    result: CampaignResult
    made: tuple[Knob, ...]
    probe: Probe


def _found(
    work: Work,
    opened: Site,
    made: tuple[Knob, ...],
    probe: Probe,
    *,
    runs: int,
    seed: int,
    told: Callable[[str], None],
    progress: bool | None,
) -> _Found:
    """Run the campaign, or go on with it."""
    file = work.folder / CAMPAIGN
    campaign = load_campaign(file) if file.exists() else work.write(made, probe, runs=runs, seed=seed)
    told(f"{work.folder}: {runs} runs of {probe.steps} steps, one at a time")
    result = run_campaign(campaign, site=opened, run_dir=work.folder / "runs", progress=progress)
    return _Found(campaign, result, made, probe)


def _checked(work: Work, found: _Found, *, repeats: int, told: Callable[[str], None], wait_quiet: float) -> Tuned:
    """Hold the best points against the script as it came; write the first that agrees and time it."""
    campaign, made = found.campaign, found.made
    said: list[str] = []
    tuned = Tuned(
        path=work.settings.path,
        name=work.name,
        folder=work.folder,
        settings=settings_rows(work.settings, made),
        left=work.settings.left,
        result=found.result,
        knobs=made,
        probe=found.probe.said,
    )
    points = judged(found.result.points, campaign.objective, made)

    def as_it_came(p: Estimate) -> bool:
        values = campaign.complete(p.params)
        return not work.words(made, values) and Place.of(made, values, work.now) == work.now

    sure = [p for p in points if p.runs and p.probability_feasible >= SURE and campaign.full(p.params)]
    for point in contenders(sure, as_it_came, tuned.order)[:_CONTENDERS]:
        values = campaign.complete(point.params)
        if as_it_came(point):
            said.append("nothing that was tried is faster than the script as it came")
            break
        differ = work.agrees(made, values)
        if differ.refused:
            said.append(f"{brief(made, values)}: not taken, {differ.refused}")
            continue
        said += differ.said
        said += averages_differ(
            campaign, found.result.results, point.params, constant_energy=work.settings.constant_energy
        )
        script, command = work.write_tuned(made, values)
        until_quiet(work.profile, wait_quiet, told)
        told(f"{script.name}: timed beside the script as it came, {repeats} times each")
        timing = work.confirm(made, values, script, found.probe.steps, repeats)
        command = command if timing.faster else ""
        return replace(tuned, best=point, script=script, command=command, confirmed=timing, checks=tuple(said))
    return replace(tuned, checks=tuple(said))
