"""A site profile: a TOML file that says where runs happen, with Parsl's own keys where they are Parsl's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Record
from hpcagent.model.texts import Line, Lines, Name, Variable, Word, word
from hpcagent.moved import moved
from hpcagent.sites.endpoint_settings import (
    ENDPOINT_ONLY,
    ENDPOINT_REQUIRED,
    EXECUTOR_KEYS,
    NOT_ON_ENDPOINTS,
    ControlSettings,
    EndpointConfig,
    EndpointId,
    RemoteFolder,
    TransferSettings,
)
from hpcagent.sites.schedulers.base import SPECIAL, Scheduler
from hpcagent.sites.schedulers.registry import is_scheduler, scheduler_class, scheduler_kinds
from hpcagent.sites.tables import (
    WHERE,
    AppSettings,
    BlockSettings,
    CoordinatorSettings,
    ExecutorProfile,
    Identify,
    LauncherSettings,
    NodeType,
    Positive,
    QueueLimits,
    walltime_s,
)

__all__ = ["BATCH_ONLY", "BUILT_IN_LAUNCHERS", "Profile", "account_of", "check_where"]

BUILT_IN_LAUNCHERS = ("srun", "mpiexec", "hydra", "openmpi", "parsl_mpi", "ibrun")
"""Ways to start MPI programs that every profile may name; `hpcagent.apps.launch` has their words."""

_APPS = ("espresso", "gpaw", "lammps", "mace", "packmol", "pyscf", "synthetic", "tblite", "thermo", "vasp")
_LAUNCHER_OF = {
    "local": "hydra",
    "threads": "hydra",
    "globus_compute": "parsl_mpi",
}

BATCH_ONLY = (
    "account",
    "account_required",
    "account_hint",
    "interface",
    "address",
    "nodes",
    "queues",
    "queue_means",
    "block",
    "filesystems",
    "poll_s",
    "heartbeat_s",
    "cmd_timeout_s",
    "submit_retries",
    "margin_s",
    "coordinator",
)
"""Keys that only batch systems know."""

NO_SCHEDULER = ("local", "threads", "globus_compute")
"""Kinds of sites that submit no jobs."""


def _known_kind(kind: str) -> str:
    if kind not in NO_SCHEDULER and not is_scheduler(kind):
        known = (*NO_SCHEDULER, *scheduler_kinds())
        raise BadInput(
            f"kind = {kind!r} is not known; {nearest(kind, known)} A package offers a scheduler of its own by an "
            "entry point in the group hpcagent.schedulers.",
            value=kind,
        )
    return kind


def _kinds_in_words(kinds: Sequence[str]) -> str:
    quoted = [f'"{kind}"' for kind in kinds]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else "".join(quoted)


Kind = Annotated[str, AfterValidator(_known_kind)]


class Profile(Record):
    """Where runs happen, as one TOML file says it. `find_profile` reads one.

    Example:
        >>> Profile(name="mine", kind="threads").executor_names
        ('workers',)
    """

    name: Name
    """What the site is called, in messages and records."""
    description: Lines = ""
    """One line for `hpcagent sites`."""
    kind: Kind
    """`local`: processes of this machine; `threads`: of the opener; `slurm`, `pbs`, `flux`, and what packages
    offer as `hpcagent.schedulers`: jobs of a batch system; `globus_compute`: an endpoint on another machine."""
    executors: dict[Line, ExecutorProfile] = Field(default_factory=lambda: {"workers": ExecutorProfile()})
    """One table per executor, by label. A run goes to the first that suits its resources."""
    env: dict[Variable, Line] = Field(default_factory=dict)
    """Extra environment of the workers."""
    apps: dict[Line, AppSettings] = Field(default_factory=dict)
    """One table per app, by name, e.g. `[apps.lammps]`."""
    launcher: Word = ""
    """How MPI programs are started; else srun on Slurm, mpiexec on PBS and Flux, parsl_mpi on
    endpoints, hydra here."""
    launchers: dict[Word, LauncherSettings] = Field(default_factory=dict)
    """Further ways to start MPI programs, by name."""
    node_cores: Positive | None = None
    """Cores of one node, by which a run on some of them is charged; not given: the usable cores."""
    max_output_mb: Annotated[float, Field(gt=0)] = 64.0
    """Of what a program of a run prints so much is kept: the first part and the end. The run's notes say so."""
    max_read_mb: Annotated[float, Field(gt=0)] = 1000.0
    """A text file of a program (a log) that is larger is not read into memory: the run fails (`FileTooLarge`)."""
    identify: Identify = Identify()
    """By what `--site auto` knows this site."""

    account: Word | None = None
    """The account (project, allocation) that is charged. Never in a packaged profile."""
    account_required: bool = False
    """Whether the site refuses jobs without an account."""
    account_hint: Lines = ""
    """Shown when the account is missing: how accounts look here."""
    filesystems: tuple[Word, ...] = ()
    """PBS: file systems a job needs, for sites that want them named: `-l filesystems=home:eagle`."""
    interface: tuple[Word, ...] = ()
    """Network interfaces by which nodes reach the coordinator; the first that the machine has is taken."""
    address: Word | None = None
    """A fixed address of the coordinator's machine, in place of an interface's."""
    nodes: dict[Line, NodeType] = Field(default_factory=dict)
    """One table per kind of node."""
    queues: dict[Word, QueueLimits] = Field(default_factory=dict)
    """One table per queue with what it takes; if there are any, no other queue is accepted."""
    queue_means: Literal["partition", "qos"] = "partition"
    """Slurm: what a queue is here."""
    block: BlockSettings = BlockSettings()
    """The jobs in which the workers of all executors run."""
    poll_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 15.0
    """Time between two questions to the scheduler."""
    heartbeat_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """A node that has said nothing for so long is lost."""
    cmd_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """A command of the scheduler that takes longer has failed."""
    submit_retries: Annotated[int, Field(ge=0, le=10**9)] = 5
    """How often a submission is repeated whose refusal does not say whether it passes; one that does (a limit of
    jobs, a scheduler that is away) is waited for."""
    margin_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """At the end of a block, time in which nothing is to be running any more."""
    coordinator: CoordinatorSettings = CoordinatorSettings()
    """Where the coordinator may run."""

    endpoint_id: EndpointId = ""
    """The endpoint's UUID."""
    work_dir: RemoteFolder = ""
    """The folder on the endpoint for runs and inputs: absolute, or `~/…`. Each campaign gets one in it."""
    runs_at_once: Positive = 1
    """How many runs of one core go at once there, on each executor: the workers of a node times the nodes."""
    amqp_port: Literal[443, 5671, 5672] | None = None
    """Port on which results are heard; not given: the service's choice, 443."""
    at_close: Literal["cancel", "leave"] = "cancel"
    """What becomes of tasks there when a campaign is stopped (Ctrl-C). One that is killed leaves them: they are
    taken up again by `hpcagent resume`, or ended by `hpcagent reap`."""
    offline_wait_s: Annotated[float, Field(ge=0, le=14 * 86400, allow_inf_nan=False)] = 3600.0
    """How long a campaign waits for an endpoint that is offline before it ends; 0: it ends at once."""
    user_endpoint_config: EndpointConfig = Field(default_factory=dict)
    """Values for the endpoint's template: account, queue, nodes, walltime, by the names that the template has."""
    control: ControlSettings = ControlSettings()
    """Where errands go, so that they do not wait for the batch system."""
    transfer: TransferSettings | None = None
    """Two Globus collections for large files."""

    @model_validator(mode="before")
    @classmethod
    def _old_keys(cls, data: Any) -> Any:  # whatever stood in the file
        if isinstance(data, dict) and "lammps" in data:
            raise BadInput(
                "the key 'lammps' is now a table; write [apps.lammps] at the end of the file, and below it "
                f"command = {_toml_words(data['lammps'])}.",
                value=data["lammps"],
            )
        return data

    @field_validator("executors")
    @classmethod
    def _some_executor(cls, value: dict[str, ExecutorProfile]) -> dict[str, ExecutorProfile]:
        if not value:
            raise BadInput("executors is empty; leave it out, or add a table such as [executors.workers].")
        for label in value:
            if not label.isidentifier():  # it names folders and log files
                raise BadInput(f"executors: {label!r} must be letters, digits and underscores.", value=label)
            if label.startswith("_"):
                raise BadInput(f"executors: {label!r}: a leading underscore is Parsl's own.", value=label)
        return value

    @field_validator("apps")
    @classmethod
    def _no_misspelt_app(cls, value: dict[str, AppSettings]) -> dict[str, AppSettings]:
        """Any name may be an app of the user's own; but `[apps.lamps]` would pass and mean nothing."""
        for name in value:
            if name in _APPS or name.startswith(_APPS):  # lammps2 is no slip
                continue
            close = get_close_matches(name.lower(), _APPS, n=1, cutoff=0.75)
            if close:
                raise BadInput(
                    f"apps.{name}: there is no app {name!r}; did you mean [apps.{close[0]}]? An app of your own "
                    "needs a name less like it.",
                    value=name,
                )
        return value

    @model_validator(mode="after")
    def _threads_have_no_processes(self, info: ValidationInfo) -> Profile:
        if self.kind == "threads":
            for label, executor in self.executors.items():
                useless = executor.model_fields_set - {"max_workers_per_node"}
                if useless:
                    raise BadInput(
                        f"executors.{label}: {', '.join(sorted(useless))} has no meaning for "
                        'kind = "threads", which knows max_workers_per_node only.'
                    )
        return self

    @model_validator(mode="after")
    def _batch_keys_need_a_batch_system(self) -> Profile:
        if self.batch:
            return self
        useless = [name for name in BATCH_ONLY if name in self.model_fields_set]
        if useless:
            raise BadInput(
                f'{", ".join(useless)} has no meaning for kind = "{self.kind}", which submits no jobs; it belongs '
                f"to kind = {_kinds_in_words(scheduler_kinds())}."
            )
        for label, executor in self.executors.items():
            if "block" in executor.model_fields_set:
                raise BadInput(
                    f'executors.{label}: block has no meaning for kind = "{self.kind}", which submits no jobs.'
                )
        return self

    @model_validator(mode="after")
    def _endpoint_keys_need_an_endpoint(self) -> Profile:
        given = self.model_fields_set
        if not self.remote:
            useless = [name for name in ENDPOINT_ONLY if name in given]
            useless += [
                f"executors.{label}.user_endpoint_config"
                for label, executor in self.executors.items()
                if "user_endpoint_config" in executor.model_fields_set
            ]
            if useless:
                raise BadInput(
                    f'{", ".join(useless)} has no meaning for kind = "{self.kind}"; it belongs to '
                    'kind = "globus_compute".'
                )
            return self
        for name, what in ENDPOINT_REQUIRED.items():
            if not getattr(self, name) or name not in given:
                raise BadInput(f'the key {name!r} is missing, which kind = "globus_compute" needs: {what}.')
        for name, hint in NOT_ON_ENDPOINTS.items():
            if name in given:
                raise BadInput(f'{name} has no meaning for kind = "globus_compute": {hint}.')
        for label, executor in self.executors.items():
            useless = sorted(executor.model_fields_set - set(EXECUTOR_KEYS))
            if useless:
                raise BadInput(
                    f'executors.{label}: {", ".join(useless)} has no meaning for kind = "globus_compute": '
                    "workers are the endpoint's, and its template says how they are started. Known here: "
                    f"{', '.join(EXECUTOR_KEYS)}."
                )
        return self

    @model_validator(mode="after")
    def _keys_of_the_other_scheduler(self) -> Profile:
        if not self.batch:
            return self
        its = self.scheduler
        foreign = [name for name in SPECIAL if name not in its.takes]
        given = [(where, name) for where, settings in self._blocks() for name in settings.model_fields_set]
        given += [("", name) for name in self.model_fields_set]
        for where, name in given:
            if name in foreign and (where or name in ("filesystems", "queue_means")):
                instead = f"; {its.instead[name]}" if name in its.instead else ""
                key = f"{where}.{name}" if where else name
                raise BadInput(f'{key} has no meaning for kind = "{self.kind}"{instead}.')
        for where, settings in self._blocks():
            known = launchers_of(its)
            if settings.worker_launcher and settings.worker_launcher not in known:
                raise BadInput(
                    f"{where}.worker_launcher = {settings.worker_launcher!r} is not one of {its.title}; "
                    f"{nearest(settings.worker_launcher, known)}",
                    value=settings.worker_launcher,
                )
            if its.whole_minutes and walltime_s(settings.walltime) < 60:
                # Parsl cuts "00:00:30" to 0 minutes, which Slurm takes for "no limit".
                raise BadInput(
                    f"{where}.walltime = {settings.walltime!r}: on {its.title} a block has one minute at least.",
                    value=settings.walltime,
                )
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> Profile:
        launchers = (*BUILT_IN_LAUNCHERS, *self.launchers)
        named = {"launcher": self.launcher, **{f"apps.{n}.launcher": a.launcher for n, a in self.apps.items()}}
        for where, name in named.items():
            if name and name not in launchers:
                raise BadInput(
                    f"{where} = {name!r} is not known; {nearest(name, launchers)} "
                    f"Others are defined by a table [launchers.{name}].",
                    value=name,
                )
        if self.launchers:
            from hpcagent.apps.launch import check_template

            for name, launcher in self.launchers.items():
                check_template(launcher.command, f"launchers.{name}")
        for queue, limits in self.queues.items():
            if limits.node not in self.nodes:
                raise BadInput(
                    f"queues.{queue}.node = {limits.node!r} has no table in [nodes]; "
                    f"{nearest(limits.node, self.nodes)}",
                    value=limits.node,
                )
        for where, settings in self._blocks():
            if settings.queue is not None and self.queues and settings.queue not in self.queues:
                raise BadInput(
                    f"{where}.queue = {settings.queue!r} is not among the queues of the profile {self.name!r}; "
                    f"{nearest(settings.queue, self.queues)} To use it, add a table [queues.{settings.queue}].",
                    value=settings.queue,
                )
        return self

    def _blocks(self) -> Iterator[tuple[str, BlockSettings]]:
        yield "block", self.block
        for label, executor in self.executors.items():
            yield f"executors.{label}.block", executor.block

    @property
    def executor_names(self) -> tuple[str, ...]:
        """Labels of the executors, the default one first."""
        return tuple(self.executors)

    @property
    def batch(self) -> bool:
        """Whether the workers run in jobs of a batch system."""
        return self.kind not in NO_SCHEDULER

    @property
    def scheduler(self) -> type[Scheduler]:
        """What is known of its batch system; of a site with one."""
        return scheduler_class(self.kind)

    @property
    def remote(self) -> bool:
        """Whether the workers are an endpoint's, on another machine."""
        return self.kind == "globus_compute"

    @property
    def mpi_launcher(self) -> str:
        """How MPI programs are started here: a built-in name, or one of `launchers`."""
        return self.launcher or (self.scheduler.mpi_launcher if self.batch else _LAUNCHER_OF[self.kind])

    @property
    def lammps(self) -> tuple[str, ...] | None:
        """The command of `[apps.lammps]`."""
        return self.apps["lammps"].command if "lammps" in self.apps else None


def launchers_of(scheduler: type[Scheduler]) -> tuple[str, ...]:
    """What may start the workers on the nodes of a scheduler's jobs.

    Example:
        >>> launchers_of(Profile(name="mine", kind="slurm").scheduler)
        ('single', 'srun', 'mpiexec', 'ssh')
    """
    known = dict.fromkeys(("single", "srun", "mpiexec", "pbsdsh", "ssh"))
    known |= dict.fromkeys([scheduler.own_launcher] if scheduler.own_launcher else [])
    return tuple(name for name in known if name not in scheduler.not_launchers)


def account_of(profile: Profile, given: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the account that jobs are charged to.

    Args:
        profile: Of the site.
        given: From the command line; goes before the profile's own, which goes before the environment's.
        environ: Variables are `HPCAGENT_ACCOUNT`, then those the scheduler's own commands read.

    Raises:
        BadInput: The site needs an account and none is given.

    Example:
        >>> account_of(Profile(name="mine", kind="slurm"), environ={"SBATCH_ACCOUNT": "m1234"})
        'm1234'
    """
    variables = ("HPCAGENT_ACCOUNT", *profile.scheduler.account_variables) if profile.batch else ()
    found = given or profile.account or next((environ[name] for name in variables if environ.get(name)), None)
    if found is None and profile.account_required:
        set_one = " or ".join(f"${name}" for name in variables)
        raise BadInput(
            f"The site {profile.name} needs an account to charge: give --account NAME, or write "
            f'account = "NAME" in a profile of your own, or set {set_one}. {profile.account_hint}'.rstrip()
        )
    try:
        return None if found is None else word(found)  # an environment has not been checked
    except BadInput as error:
        raise BadInput(f"account: {error.message}", **error.details) from None


def check_where(profile: Profile, where: str) -> None:
    """Refuse a place for the coordinator that the site does not want it in.

    Args:
        profile: Of the site.
        where: `login`, `job` or `inside`.

    Raises:
        BadInput: With the site's rule.

    Example:
        >>> check_where(Profile(name="mine", kind="slurm"), "login")
    """
    allowed = profile.coordinator.where
    if where not in WHERE:
        raise BadInput(f"where = {where!r} is not known; {nearest(where, WHERE)}", value=where)
    if where not in allowed:
        raise BadInput(
            f"The site {profile.name} does not let the coordinator run with where = {where!r}; "
            f"allowed: {', '.join(allowed)}. {profile.coordinator.note}".rstrip(),
            value=where,
        )


def _toml_words(value: Any) -> str:  # whatever stood in the file
    words = value.split() if isinstance(value, str) else value
    return "[" + ", ".join(f'"{word}"' for word in words) + "]" if isinstance(words, list | tuple) else '["lmp"]'


__getattr__ = moved(
    __name__,
    {
        **dict.fromkeys(
            ("ProfileEntry", "find_profile", "identify_site", "list_profiles"), "hpcagent.sites.profiles"
        ),
        **dict.fromkeys(("Block", "block_of", "worker_launcher_of"), "hpcagent.sites.block"),
    },
)
