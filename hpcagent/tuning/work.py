"""The folder in which a script is tuned: what is written into it, and the runs beside the campaign."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from hpcagent.apps.base import App
from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.record import Campaign
from hpcagent.model.base import Scalar
from hpcagent.model.contract import Resources
from hpcagent.model.records import Result
from hpcagent.model.texts import as_name
from hpcagent.science.lammps.contract import lammps
from hpcagent.science.lammps.executable import variables
from hpcagent.science.lammps.knobs import Knob, room_for, system_of
from hpcagent.science.lammps.potentials import elsewhere
from hpcagent.science.lammps.rewritten import PHYSICAL, force_files, given_words, rewritten
from hpcagent.science.lammps.settings import Settings
from hpcagent.science.lammps.timeable import read_settings
from hpcagent.sites.profile import Profile
from hpcagent.store.files import write_whole
from hpcagent.tuning.checks import SPEED, Agreement, Confirmed, agreement, confirmed, timed
from hpcagent.tuning.probe import Probe
from hpcagent.tuning.site import written_site
from hpcagent.tuning.tables import campaign_table, contract_table

__all__ = ["Place", "Work", "brief"]

# Copied below, linked above: data files of large systems.
_COPY_BELOW_BYTES = 10_000_000
_PROBE_STEPS = 50
_LEAST_STEPS = 20
# A run of the campaign that takes so many times as long as the script as it came is no contender.
_HOPELESS = 10
_LEAST_WALLTIME_S = 60.0
# Settings that are words of how a run is started, not of the script, unless the script has a variable for them.
_STARTED_WITH = ("ranks", "threads")


@dataclass(frozen=True, slots=True)
class Place:
    """On how many ranks and threads something runs."""

    ranks: int
    threads: int

    @classmethod
    def of(cls, made: Sequence[Knob], values: Mapping[str, Scalar], now: Place) -> Place:
        """That of a point; `now` where it says nothing of it."""
        names = {k.setting: k.name for k in made}
        return cls(
            int(values.get(names.get("ranks", ""), now.ranks)),
            int(values.get(names.get("threads", ""), now.threads)),
        )


@dataclass(frozen=True)
class Work:
    """Where a script is tuned.

    Attributes:
        settings: What was read of it.
        folder: Where everything is written.
        name: Of the script.
        profile: The site, one run at a time.
        now: On how many ranks and threads it was run up to now.
        cores: Of a node.
        earlier: The most steps of each run before the timed one.
        longest_s: The most wall time of one run.
    """

    settings: Settings
    folder: Path
    name: str
    profile: Profile
    now: Place
    cores: int
    earlier: int = 1000
    longest_s: float = 900.0

    def copy_files(self) -> None:
        """Put the files that the script reads beside the scripts that are made of it."""
        for file in self.settings.read.files:
            source, target = self.settings.path.absolute().parent / file, self.folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                continue
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
            write_whole(contract, tomli_w.dumps({"forces": force_files(())}))
        return lammps(
            path,
            contract=contract,
            resources=Resources(ranks_per_node=ranks, threads_per_rank=threads, walltime_s=self.longest_s),
            checks={"min_cpu_use_percent": 0.0},
            # A column is there also where no step is made.
            columns={"last_step": {"column": "Step", "reduce": "last", "unit": "1"}},
            name=as_name(name),
        )

    def own(self, steps: int | None, *, forces: bool = False, atoms: int = 10**9) -> str:
        """The script as it came, its runs made shorter."""
        return rewritten(
            self.settings,
            {},
            steps=None if steps is None else str(steps),
            earlier=self.earlier,
            measure_forces=forces,
            atoms=atoms,
        )

    def probe(self, steps: int | None, seconds: float) -> Probe:
        """Run the script as it came: briefly to learn how long it takes, then as long as the others will run."""
        most, place = self.settings.steps or 10**6, (self.now.ranks, self.now.threads)
        first = timed(self.app(f"{self.name}.first", self.own(min(_PROBE_STEPS, most)), *place))
        if steps is None:
            steps = min(most, max(_LEAST_STEPS, round(first.metrics[SPEED] * seconds)))
        system = system_of(_log(first), round(first.metrics["n_atoms"]), self.settings.skin or 0.0)
        forces = self.settings.kspace is not None and "kspace" not in dict(self.settings.left)
        text = self.own(steps, forces=forces, atoms=system.atoms)
        result = timed(self.app(f"{self.name}.as_it_came", text, *place, forces=forces))
        return Probe(system, steps, result.metrics, result.cost.wall_s)

    def write(self, made: Sequence[Knob], probe: Probe, *, runs: int, seed: int) -> Campaign:
        """Write the script whose settings are parameters, its contract and the campaign."""
        new = [k for k in made if not k.driven and k.setting not in _STARTED_WITH]
        taken = {*self.settings.read.used, *self.settings.read.defined, *(k.name for k in made)}
        steps = "steps" if "steps" not in taken else "tune_steps"
        head = [
            f"# Written by `hpcagent tune` from {self.settings.path.name}: its settings of speed are parameters.",
            *(f"variable {k.name} index {_text(k.own)}" for k in new),
            f"variable {steps} index {probe.steps}",
        ]
        text = rewritten(
            self.settings,
            {k.setting: f"${{{k.name}}}" for k in new},
            choices={k.setting: k.values for k in made},
            steps=f"${{{steps}}}",
            earlier=self.earlier,
            room=room_for(self.settings, probe.system, made),
            head=head,
            measure_forces=probe.force_error is not None and any(k.setting in PHYSICAL for k in made),
            varied=[k.setting for k in made],
            atoms=probe.system.atoms,
        )
        write_whole(self.folder / f"in.{self.name}", text)
        limit = min(self.longest_s, max(_LEAST_WALLTIME_S, round(_HOPELESS * probe.wall_s)))
        threads = self.now.threads
        contract = contract_table(self.name, made, steps, probe, threads=threads, walltime_s=limit)
        write_whole(self.folder / f"{self.name}.toml", tomli_w.dumps(contract))
        campaign = campaign_table(
            self.name, self.folder, made, steps, probe,
            cores=self.cores, threads=threads, runs=runs, seed=seed, checked=self.settings.checked,
        )  # fmt: skip
        write_whole(self.folder / "tune.toml", tomli_w.dumps(campaign))
        return load_campaign(self.folder / "tune.toml")

    def words(
        self, made: Sequence[Knob], values: Mapping[str, Scalar], *, neutral: bool = False
    ) -> dict[str, str]:
        """Setting -> its word, of those that are not as the script came; `neutral`: that change no force."""
        found = {
            k.setting: _text(values[k.name])
            for k in made
            if (k.driven or k.setting not in _STARTED_WITH)
            and k.name in values
            and values[k.name] != k.own
            and not (neutral and k.setting in PHYSICAL)
        }
        way = next((k for k in made if k.setting == "accelerator"), None)
        if way is not None and not way.driven and self.settings.threads is not None:
            # Its own `package omp N` would win over the threads that were found.
            found.setdefault("accelerator", _text(values.get(way.name, way.own)))
        return found

    def agrees(self, made: Sequence[Knob], values: Mapping[str, Scalar]) -> Agreement:
        """Whether the first steps have the same energies as those of the script as it came."""
        then = Place.of(made, values, self.now)
        return agreement(
            self.settings,
            self.words(made, values, neutral=True),
            forces=self.words(made, values),
            app=self.app,
            name=self.name,
            now=(self.now.ranks, self.now.threads),
            then=(then.ranks, then.threads),
        )

    def write_tuned(self, made: Sequence[Knob], values: Mapping[str, Scalar]) -> tuple[Path, str]:
        """Write the user's script with the settings that were found, and the command that runs it."""
        then, words = Place.of(made, values, self.now), self.words(made, values)
        path = self.folder / f"in.{self.name}.tuned"
        given = "".join(f" -var {n} {v}" for n, v in given_words(self.settings, words).items())
        env = f"{self._potentials()}OMP_NUM_THREADS={then.threads}"
        command = f"{env} mpiexec -n {then.ranks} lmp -in {path.name}{given}"
        head = [
            f"# {self.settings.path.name}, tuned by `hpcagent tune` on "
            f"{self.profile.name.removesuffix('_alone')}.",
            f"# Run it with: {command}",
        ]
        why = {k.setting: f"{k.setting} was {_text(k.own)}" for k in made if k.setting in words}
        write_whole(path, rewritten(self.settings, words, head=head, why=why, command_line=True))
        return path, command

    def _potentials(self) -> str:
        """What has to stand before the command where the script reads a potential that comes with LAMMPS."""
        folder = variables({}).get("LAMMPS_POTENTIALS", "")
        script = self.settings.path
        settings = {"script": script.read_text(), "files": [path.name for path in script.parent.iterdir()]}
        shipped = any(str(one.path).startswith(f"{folder}/") for one in elsewhere(settings, {}, {}))
        return f"LAMMPS_POTENTIALS={shlex.quote(folder)} " if folder and shipped else ""

    def confirm(
        self, made: Sequence[Knob], values: Mapping[str, Scalar], script: Path, steps: int, repeats: int
    ) -> Confirmed:
        """Time the tuned script as it was written, its runs made shorter, in turn with the script as it came."""
        tuned = read_settings(script, given_words(self.settings, self.words(made, values)))
        text = rewritten(tuned, {}, steps=str(steps), earlier=self.earlier)
        then = Place.of(made, values, self.now)
        return confirmed(
            self.app(f"{self.name}.as_it_came_again", self.own(steps), self.now.ranks, self.now.threads),
            self.app(f"{self.name}.tuned_short", text, then.ranks, then.threads),
            repeats=repeats,
            threads=(self.now.threads, then.threads),
        )


def brief(made: Sequence[Knob], values: Mapping[str, Scalar]) -> str:
    """What is other than the script as it came, in a few words."""
    changed = [
        f"{k.setting} {_text(values[k.name])}" for k in made if k.name in values and values[k.name] != k.own
    ]
    return ", ".join(changed) or "as it came"


def _text(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _log(result: Result) -> str:
    return (Path(result.workdir) / result.artifacts["log"]).read_text(errors="replace")
