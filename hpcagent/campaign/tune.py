"""How is this script run fastest on this machine, as accurately as it came? A campaign that is written and run."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from hpcagent.apps.base import App
from hpcagent.apps.lammps.contract import lammps
from hpcagent.apps.lammps.executable import installed_styles
from hpcagent.apps.lammps.knobs import Knob, System, knobs, pair_names, rank_counts, room_for, system_of
from hpcagent.apps.lammps.rewritten import CONVERGED, FORCES, OWN, rewritten
from hpcagent.apps.lammps.settings import Settings, read_settings
from hpcagent.campaign.coordinator import run as run_campaign
from hpcagent.campaign.record import Campaign, load_campaign
from hpcagent.campaign.tuned import Tuned, settings_rows
from hpcagent.campaign.tuned_checks import Confirmed, agreement, averages_differ, confirmed, timed
from hpcagent.campaign.tuned_site import alone, cores_of, written_site
from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.contract import Resources
from hpcagent.model.records import Result
from hpcagent.model.texts import as_name
from hpcagent.policies.recommend import Estimate
from hpcagent.sites.profile import Profile
from hpcagent.sites.site import open_site
from hpcagent.store.files import write_whole

__all__ = ["tune"]

SPEED = "timesteps_per_s"

# How much larger than the script's own an error of the forces may be measured to be: so well is it known.
FORCES_ALIKE = 1.05
# Copied below, linked above: data files of large systems.
_COPY_BELOW_BYTES = 10_000_000
_PROBE_STEPS = 50
_LEAST_STEPS = 20
_LEAST_RUNS = 6


def tune(
    script: str | Path,
    *,
    site: str | Path | Profile = "laptop",
    ranks: Sequence[int] = (),
    runs: int = 24,
    steps: int | None = None,
    earlier: int = 1000,
    seconds: float = 4.0,
    ranks_now: int = 1,
    threads_now: int = 1,
    variables: Mapping[str, Scalar] | None = None,
    repeats: int = 3,
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
    changed.

    Args:
        script: The input script; files that it reads lie beside it.
        site: Name or path of a site profile. One run goes at a time, on one node.
        ranks: Numbers of MPI ranks to try; powers of two up to a node's cores by default.
        runs: Runs of the campaign.
        steps: Steps of the timed run; by default as many as take `seconds`, no more than the script's own.
        earlier: The most steps of each run before it.
        seconds: Wall time that a run of the script as it came is to take.
        ranks_now: On how many ranks it was run up to now.
        threads_now: With how many OpenMP threads each.
        variables: Values of variables that the script is given on the command line (`-var`).
        repeats: How often the tuned script is timed beside the script as it came at the end.
        folder: Where everything is written; `tuned/NAME` by default.
        seed: Of the policy.
        dry_run: Read the script, and run nothing.
        say: Called with a line whenever something begins.
        progress: As of `hpcagent.run`.

    Returns:
        What was found, and where it is written.

    Raises:
        BadInput: Something of the script cannot be measured, the site has no place for it, or the folder is taken.
    """
    path = Path(script).expanduser()
    settings = read_settings(path)
    name = as_name(path.name.removeprefix("in."))
    _refuse(runs=runs, steps=steps, earlier=earlier, seconds=seconds, repeats=repeats, variables=variables or {})
    profile = alone(site)
    cores = cores_of(profile)
    counts = _rank_counts(tuple(ranks), cores, ranks_now, threads_now, profile)
    told = say or (lambda line: None)
    if dry_run:
        return Tuned(path=path, name=name, settings=settings_rows(settings, ()), left=settings.left)
    where = _own_folder(Path(folder) if folder is not None else Path("tuned") / name)
    work = _Work(settings, where, name, profile, dict(variables or {}), told)
    work.copy_files()
    with open_site(profile, run_dir=where / "checks") as opened:
        told(f"{path}: a first short run of the script as it came, on {ranks_now} rank(s)")
        probe = work.probe(steps, ranks_now, threads_now, earlier, seconds)
        made = knobs(
            settings,
            probe.system,
            ranks=counts,
            cores=cores,
            ranks_now=ranks_now,
            threads_now=threads_now,
            accelerators=_accelerators(settings, profile),
        )
        campaign = work.write(made, probe, cores=cores, earlier=earlier, runs=runs, seed=seed)
        told(f"{where}: {runs} runs of {probe.steps} steps, one at a time")
        result = run_campaign(campaign, site=opened, run_dir=where / "runs", progress=progress)
        contenders = _contenders(campaign, result.points)
        found: Estimate | None = None
        said: list[str] = []
        values: dict[str, Scalar] = {}
        for point in contenders[:3]:
            values = campaign.complete(point.params)
            differ = work.agrees(made, values, ranks_now, threads_now)
            if not differ.refused:
                found = point
                said += [*differ.said, *averages_differ(campaign, result.results, point.params)]
                break
            said.append(f"{_brief(made, values)}: not taken, {differ.refused}")
        if found is None:
            return Tuned(
                path=path, name=name, folder=where, settings=settings_rows(settings, made), left=settings.left,
                result=result, knobs=made, checks=tuple(said), probe=probe.said,
            )  # fmt: skip
        tuned_script, command = work.write_tuned(made, values, ranks_now, threads_now)
        told(f"{tuned_script.name}: timed beside the script as it came, {repeats} times each")
        timing = work.confirm(made, values, tuned_script, probe.steps, earlier, ranks_now, threads_now, repeats)
    return Tuned(
        path=path,
        name=name,
        folder=where,
        settings=settings_rows(settings, made),
        left=settings.left,
        result=result,
        knobs=made,
        best=found,
        script=tuned_script,
        command=command,
        confirmed=timing,
        checks=tuple(said),
        probe=probe.said,
    ).written()


def _brief(made: Sequence[Knob], values: Mapping[str, Scalar]) -> str:
    changed = [
        f"{k.setting} {_text(values[k.name])}" for k in made if k.name in values and values[k.name] != k.own
    ]
    return ", ".join(changed) or "as it came"


def _refuse(
    *, runs: int, steps: int | None, earlier: int, seconds: float, repeats: int, variables: Mapping[str, Scalar]
) -> None:
    for what, count, least in (("runs", runs, _LEAST_RUNS), ("earlier", earlier, 0), ("repeats", repeats, 1)):
        if count < least:
            raise BadInput(f"tune: {what}={count} is too few; at least {least}.", value=count)
    if steps is not None and steps < 1:
        raise BadInput(f"tune: steps={steps}: a run has at least one step.", value=steps)
    if not 0 < seconds < math.inf:
        raise BadInput(f"tune: seconds={seconds} must be more than 0.", value=seconds)
    for name, value in variables.items():
        if not name.isidentifier() or any(c.isspace() or c in "\"'&#$" for c in str(value)) or not str(value):
            raise BadInput(f"tune: variable {name}={value!r}: give a plain name and one plain word.", value=value)


def _rank_counts(
    ranks: tuple[int, ...], cores: int, ranks_now: int, threads_now: int, profile: Profile
) -> tuple[int, ...]:
    for count in (*ranks, ranks_now * threads_now):
        if not 1 <= count <= cores:
            raise BadInput(
                f"tune: {count} rank(s) x threads do not fit a node of {profile.name}, which has {cores} usable "
                f"core(s): give 1 to {cores}.",
                value=count,
            )
    if threads_now < 1 or ranks_now < 1:
        raise BadInput(
            f"tune: ranks_now={ranks_now}, threads_now={threads_now}: at least 1 each.", value=ranks_now
        )
    return tuple(sorted({*(ranks or rank_counts(cores)), ranks_now}))


def _own_folder(folder: Path) -> Path:
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise BadInput(
            f"{folder}: is there already and not empty; give another --folder, or `hpcagent resume "
            f"{folder}/runs` to go on with its campaign.",
            value=str(folder),
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _accelerators(settings: Settings, profile: Profile) -> tuple[str, ...]:
    """Those that this machine's LAMMPS has for the script's pair styles; all where it cannot be asked here."""
    styles = None if profile.batch else installed_styles(profile.model_dump(mode="json"))
    ways = ("opt", "omp")
    if styles is None:
        return ways
    pairs = pair_names(settings)
    return tuple(way for way in ways if any(f"{pair}/{way}" in styles for pair in pairs))


def _contenders(campaign: Campaign, points: Sequence[Estimate]) -> list[Estimate]:
    """Points that were run and keep the limits, the fastest first."""
    sure = [p for p in points if p.runs and p.probability_feasible >= 0.9 and campaign.full(p.params)]
    return sorted(sure, key=lambda p: -p.score)


def _text(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Probe:
    """What the first runs of the script as it came tell."""

    def __init__(self, system: System, steps: int, result: Result) -> None:
        self.system, self.steps, self.result = system, steps, result

    @property
    def force_error(self) -> float | None:
        """The error of its forces, where it has long-range ones."""
        return self.result.metrics.get("force_error")

    @property
    def said(self) -> tuple[str, ...]:
        """In words."""
        m, s = self.result.metrics, self.system
        edges = " x ".join(f"{edge:.4g}" for edge in s.edges)
        lines = [f"{s.atoms} atoms, box {edges}, cutoff {s.cutoff:.4g}: {m[SPEED]:.4g} steps/s as it came"]
        if self.force_error is not None:
            lines.append(f"rms error of its forces: {self.force_error:.2e} of the rms force")
        if "dangerous_builds" not in m:
            lines.append(
                f"its {m.get('neighbor_builds', 0):.0f} neighbour builds are not checked (check no): whether any "
                "came too late is not known; every setting that is tried is checked"
            )
        elif m["dangerous_builds"]:
            lines.append(
                f"{m['dangerous_builds']:.0f} of its neighbour builds may have come too late (dangerous builds)"
            )
        return tuple(lines)


class _Work:
    """The folder: what is written into it, and the runs beside the campaign."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        name: str,
        profile: Profile,
        variables: dict[str, Scalar],
        told: Callable[[str], None],
    ) -> None:
        self.settings, self.folder, self.name, self.profile, self.told = settings, folder, name, profile, told
        self.head = [f"variable {n} index {v}" for n, v in variables.items()]
        self.given = variables

    def copy_files(self) -> None:
        """Put the files that the script reads beside the scripts that are made of it."""
        for file in self.settings.read.files:
            source, target = self.settings.path.absolute().parent / file, self.folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.stat().st_size < _COPY_BELOW_BYTES:
                shutil.copyfile(source, target)
            else:
                target.symlink_to(source)
        written_site(self.profile, self.folder / "site.toml")

    def app(self, name: str, text: str, ranks: int, threads: int, *, forces: bool = False) -> App:
        """A script of the folder as an app without parameters."""
        path = self.folder / f"in.{name}"
        write_whole(path, text)
        contract = None
        if forces:
            contract = self.folder / f"{name}.toml"
            write_whole(contract, tomli_w.dumps({"forces": {"computed": FORCES, "converged": CONVERGED}}))
        return lammps(
            path,
            contract=contract,
            resources=Resources(ranks_per_node=ranks, threads_per_rank=threads),
            checks={"min_cpu_use_percent": 0.0},
            # A column is there also where no step is made.
            columns={"last_step": {"column": "Step", "reduce": "last", "unit": "1"}},
            name=as_name(name),
        )

    def own(self, steps: int | None, earlier: int, *, forces: bool = False, atoms: int = 10**9) -> str:
        """The script as it came, its runs made shorter."""
        return rewritten(
            self.settings,
            {},
            steps=None if steps is None else str(steps),
            earlier=earlier,
            head=self.head,
            measure_forces=forces,
            atoms=atoms,
        )

    def probe(self, steps: int | None, ranks: int, threads: int, earlier: int, seconds: float) -> Probe:
        """Run the script as it came: briefly to learn how long it takes, then as long as the others will run."""
        most = self.settings.steps or 10**6
        first = timed(self.app(f"{self.name}.first", self.own(min(_PROBE_STEPS, most), earlier), ranks, threads))
        if steps is None:
            steps = min(most, max(_LEAST_STEPS, round(first.metrics[SPEED] * seconds)))
        system = system_of(_log(first), round(first.metrics["n_atoms"]), self.settings.skin or 0.0)
        forces = self.settings.kspace is not None and "kspace" not in dict(self.settings.left)
        name = f"{self.name}.as_it_came"
        text = self.own(steps, earlier, forces=forces, atoms=system.atoms)
        return Probe(system, steps, timed(self.app(name, text, ranks, threads, forces=forces)))

    def write(
        self, made: Sequence[Knob], probe: Probe, *, cores: int, earlier: int, runs: int, seed: int
    ) -> Campaign:
        """Write the script whose settings are parameters, its contract and the campaign."""
        values = {k.setting: f"${{{k.name}}}" for k in made if k.setting not in ("ranks", "threads")}
        taken = {*self.settings.read.used, *self.settings.read.defined}
        steps = "steps" if "steps" not in taken else "tune_steps"
        head = [
            f"# Written by `hpcagent tune` from {self.settings.path.name}: its settings of speed are parameters.",
            *self.head,
            *(f"variable {k.name} index {_text(k.own)}" for k in made if k.setting not in ("ranks", "threads")),
            f"variable {steps} index {probe.steps}",
        ]
        forces = probe.force_error is not None
        text = rewritten(
            self.settings,
            values,
            choices={k.setting: k.values for k in made},
            steps=f"${{{steps}}}",
            earlier=earlier,
            room=room_for(self.settings, probe.system, made),
            head=head,
            measure_forces=forces,
            atoms=probe.system.atoms,
        )
        write_whole(self.folder / f"in.{self.name}", text)
        contract = _contract(self.name, made, steps, probe, cores=cores, forces=forces)
        write_whole(self.folder / f"{self.name}.toml", tomli_w.dumps(contract))
        campaign = _campaign(self.name, self.folder, made, steps, probe, cores=cores, runs=runs, seed=seed)
        if not self.settings.checked:
            self._without_unchecked(campaign, made)
        write_whole(self.folder / "tune.toml", tomli_w.dumps(campaign))
        return load_campaign(self.folder / "tune.toml")

    def _without_unchecked(self, campaign: dict[str, Any], made: Sequence[Knob]) -> None:
        """Where the script builds its lists unchecked, nothing else may: only the reference does."""
        for knob in made:
            if knob.setting == "rebuild":
                campaign["space"][knob.name] = {"choices": [w for w in knob.values if w != OWN]}
                for point in campaign.get("points", ()):
                    point[knob.name] = next(w for w in knob.values if w != OWN)

    def words(
        self, made: Sequence[Knob], values: Mapping[str, Scalar], *, neutral: bool = False
    ) -> dict[str, str]:
        """Setting -> its word, of those that are not as the script came; `neutral`: that change no force."""
        physical = ("kspace", "accuracy", "order", "diff", "coulomb")
        return {
            k.setting: _text(values[k.name])
            for k in made
            if k.setting not in ("ranks", "threads")
            and k.name in values
            and values[k.name] != k.own
            and not (neutral and k.setting in physical)
        }

    def agrees(self, made: Sequence[Knob], values: Mapping[str, Scalar], ranks: int, threads: int) -> Any:
        """Whether the first steps have the same energies as those of the script as it came."""
        return agreement(
            self.settings,
            self.words(made, values, neutral=True),
            app=self.app,
            name=self.name,
            head=self.head,
            now=(ranks, threads),
            then=_place(made, values, ranks, threads),
        )

    def write_tuned(
        self, made: Sequence[Knob], values: Mapping[str, Scalar], ranks: int, threads: int
    ) -> tuple[Path, str]:
        """Write the user's script with the settings that were found, and the command that runs it."""
        then = _place(made, values, ranks, threads)
        path = self.folder / f"in.{self.name}.tuned"
        given = "".join(f" -var {n} {v}" for n, v in self.given.items())
        command = f"OMP_NUM_THREADS={then[1]} mpiexec -n {then[0]} lmp -in {path.name}{given}"
        head = [
            f"# {self.settings.path.name}, tuned by `hpcagent tune` on "
            f"{self.profile.name.removesuffix('_alone')}.",
            f"# Run it with: {command}",
        ]
        words = self.words(made, values)
        why = {k.setting: f"{k.setting} was {_text(k.own)}" for k in made if k.setting in words}
        write_whole(path, rewritten(self.settings, words, head=head, why=why))
        return path, command

    def confirm(
        self,
        made: Sequence[Knob],
        values: Mapping[str, Scalar],
        script: Path,
        steps: int,
        earlier: int,
        ranks: int,
        threads: int,
        repeats: int,
    ) -> Confirmed:
        """Time the tuned script as it was written, its runs made shorter, in turn with the script as it came."""
        tuned = read_settings(script)
        text = rewritten(tuned, {}, steps=str(steps), earlier=earlier, head=self.head)
        then = _place(made, values, ranks, threads)
        return confirmed(
            self.app(f"{self.name}.as_it_came_again", self.own(steps, earlier), ranks, threads),
            self.app(f"{self.name}.tuned_short", text, *then),
            repeats=repeats,
        )


def _place(made: Sequence[Knob], values: Mapping[str, Scalar], ranks: int, threads: int) -> tuple[int, int]:
    names = {k.setting: k.name for k in made}
    return (
        int(values.get(names.get("ranks", ""), ranks)),
        int(values.get(names.get("threads", ""), threads)),
    )


def _log(result: Result) -> str:
    return (Path(result.workdir) / result.artifacts["log"]).read_text(errors="replace")


def _contract(
    name: str, made: Sequence[Knob], steps: str, probe: Probe, *, cores: int, forces: bool
) -> dict[str, Any]:
    names = {k.setting: k.name for k in made}
    resources = {"ranks_per_node": names["ranks"]}
    if "threads" in names:
        resources["threads_per_rank"] = names["threads"]
    metrics = [SPEED, "loop_time_s", "unsafe_builds", "n_atoms"]
    table: dict[str, Any] = {
        "name": name,
        "description": f"The input {name} with its settings of speed as parameters.",
        "script": f"in.{name}",
        "metrics": [*metrics, "force_error"] if forces else metrics,
        "vary": [k.name for k in made if len(k.values) != 1],
        "estimated_runtime_s": max(1.0, round(2.0 * probe.steps / probe.result.metrics[SPEED], 1)),
        "resources_from": resources,
        # Ranks that wait for each other do not use their cores; what they take is what is measured.
        "checks": {"min_cpu_use_percent": 80.0},
        "variables": {k.name: k.table for k in made}
        | {
            steps: {
                "kind": "int", "low": 1, "high": 10**9, "default": probe.steps, "unit": "steps",
                "description": "length of the timed run",
            }
        },
    }  # fmt: skip
    if forces:
        table["forces"] = {"computed": FORCES, "converged": CONVERGED}
    return table


def _campaign(
    name: str, folder: Path, made: Sequence[Knob], steps: str, probe: Probe, *, cores: int, runs: int, seed: int
) -> dict[str, Any]:
    names = {k.setting: k.name for k in made}
    own = {k.name: k.own for k in made}
    limits: dict[str, Any] = {"unsafe_builds": {"at_most": 0.5}}
    if probe.force_error is not None:
        limits["force_error"] = {"at_most": FORCES_ALIKE * probe.force_error}
    rules = []
    if "threads" in names:
        rules.append(f"{names['ranks']} * {names['threads']} <= {cores}")
        rules.append(f"{names['threads']} == {own[names['threads']]} or {names['accelerator']} == 'omp'")
    if "grid" in names:
        rules.append(f"{names['grid']} == 'auto' or {names['ranks']} > 1")
    varied: dict[str, dict[str, Any]] = {k.name: {} for k in made if len(k.values) != 1}
    points = [dict(p) for p in _likely(made, cores, own) if all(n in p for n in varied)]
    table: dict[str, Any] = {
        "name": name,
        "description": f"Most steps per second of {name}, as accurately as it came.",
        "app": f"in.{name}",
        "seed": seed,
        "site": str(folder / "site.toml"),
        "batch_size": max(3, min(8, runs // 4)),
        "space": varied,
        "fixed": {steps: probe.steps} | {k.name: k.own for k in made if len(k.values) == 1},
        "constraints": rules,
        "points": [{n: p[n] for n in varied} for p in points],
        "objective": {"maximize": SPEED, "subject_to": limits},
        "until": {"max_runs": runs},
        "reference": {"params": own},
        "confirm": {"top": 2, "replicates": 1 if runs < 20 else 2},
    }
    return table


def _likely(made: Sequence[Knob], cores: int, own: Mapping[str, Scalar]) -> list[dict[str, Scalar]]:
    """Points that experience would try first: all cores, and each accelerator on them."""
    names = {k.setting: k.name for k in made}
    ranks = next(k for k in made if k.setting == "ranks")
    most = max(map(int, ranks.values))
    ways = next((k.values for k in made if k.setting == "accelerator"), ())
    threads = {names["threads"]: 1} if "threads" in names else {}
    found: list[dict[str, Scalar]] = [{**own, names["ranks"]: most, **threads}]
    found += [{**found[0], names["accelerator"]: way} for way in ways if way != own[names["accelerator"]]]
    if "threads" in names and "omp" in ways and most > 1:
        found.append({**own, names["ranks"]: 1, names["threads"]: most, names["accelerator"]: "omp"})
    mesh = {k.setting: k for k in made if k.setting in ("order", "diff", "coulomb")}
    if "coulomb" in mesh and "order" in mesh:
        # A shorter real-space part pays where the mesh makes up for it.
        shorter = {mesh["coulomb"].name: 0.85 * float(mesh["coulomb"].own), mesh["order"].name: 7}
        found.append({**found[min(1, len(found) - 1)], **shorter})
    if "diff" in mesh and "accuracy" in names:
        half = float(own[names["accuracy"]]) / 2
        found.append({**found[min(1, len(found) - 1)], mesh["diff"].name: "ad", names["accuracy"]: half})
    return [p for p in found if p != dict(own)]
