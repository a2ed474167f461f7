"""Site profiles: found in the documented order, and every mistake named with its place."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest
from parsl.utils import wtime_to_minutes
from pydantic import AfterValidator, BaseModel

from hpcagent.apps.launch import LAUNCHERS
from hpcagent.errors import BadInput
from hpcagent.model.base import read_text
from hpcagent.sites import profiles
from hpcagent.sites.block import Block, block_of
from hpcagent.sites.profile import BUILT_IN_LAUNCHERS, Profile, account_of, check_where
from hpcagent.sites.profiles import find_profile, identify_site, list_profiles, shared_profile
from hpcagent.sites.tables import BlockSettings, CoordinatorSettings, ExecutorProfile, walltime_s
from hpcagent.sites.workers.local import _affinity

LOCAL = 'kind = "local"\ndescription = "{}"\n'


@pytest.fixture(autouse=True)
def _empty_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HPCAGENT_SITE_PATH", raising=False)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_packaged_profiles_are_found_and_listed() -> None:
    assert find_profile("laptop").kind == "local"
    assert find_profile().executors["workers"].cpu_affinity == "block"
    assert find_profile("threads").kind == "threads"
    assert {"laptop", "threads"} <= {entry.name for entry in list_profiles()}
    assert all(entry.description and entry.source.is_file() for entry in list_profiles())


def test_a_profile_is_looked_for_from_the_working_directory_outwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCAGENT_SITE_PATH", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    places = [
        tmp_path / "config/hpcagent/sites/laptop.toml",
        tmp_path / "two/laptop.toml",
        tmp_path / "one/laptop.toml",
        Path("laptop.toml"),
        Path("site_profiles/laptop.toml"),
    ]
    for place in places:  # each hides the one before
        write(place, LOCAL.format(place))
        assert find_profile("laptop").description == str(place)
        (listed,) = [entry for entry in list_profiles() if entry.name == "laptop"]
        assert listed.description == str(place)
    explicit = write(tmp_path / "other.toml", LOCAL.format("explicit"))
    assert find_profile(explicit).description == "explicit"
    assert find_profile(str(explicit)).name == "other"


def test_a_profile_that_has_not_changed_is_not_built_again(tmp_path: Path) -> None:
    path = write(tmp_path / "other.toml", LOCAL.format("one"))
    first, built = find_profile(path), profiles._made.cache_info().misses
    assert find_profile(path) == first and profiles._made.cache_info().misses == built
    first.executors.clear()
    assert find_profile(path).executors  # each caller has its own
    write(path, LOCAL.format("two"))
    assert find_profile(path).description == "two"


def test_a_profile_that_is_looked_at_only_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write(tmp_path / "other.toml", LOCAL.format("one")))
    assert shared_profile(path).description == "one"
    write(tmp_path / "other.toml", LOCAL.format("two"))  # at once, of the same size: it is too young to be trusted
    assert shared_profile(path).description == "two"
    reads: list[Path] = []
    monkeypatch.setattr(profiles, "read_text", lambda path: reads.append(path) or read_text(path))
    monkeypatch.setattr(profiles, "YOUNG_NS", 0)
    first = shared_profile(path)
    assert all(shared_profile(path) is first for _ in range(5)) and len(reads) == 1
    write(tmp_path / "other.toml", LOCAL.format("the third"))
    assert shared_profile(path).description == "the third" and len(reads) == 2
    Path(path).unlink()
    with pytest.raises(BadInput, match="no such file"):
        shared_profile(path)
    write(Path("other.toml"), LOCAL.format("here"))
    assert shared_profile("other").description == "here"
    write(Path("site_profiles/other.toml"), LOCAL.format("nearer"))
    assert shared_profile("other").description == "nearer"


def test_a_profile_object_is_taken_as_it_is() -> None:
    profile = Profile(name="mine", kind="threads")
    assert find_profile(profile) is profile


def test_an_unknown_name_gets_the_nearest_one_and_the_places_searched() -> None:
    with pytest.raises(BadInput, match=r"'labtop'; did you mean 'laptop'\? Looked in site_profiles, "):
        find_profile("labtop")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "local"\nnode_core = 2\n', r"p\.toml: unknown key 'node_core'; did you mean 'node_cores'"),
        (
            'kind = "local"\n[executors.w]\nmax_worker_per_node = 2\n',
            r"p\.toml, executors\.w: unknown key 'max_worker_per_node'; did you mean 'max_workers_per_node'",
        ),
        ('kind = "local"\n[executors.w]\ncores_per_worker = 0\n', r"p\.toml, executors\.w\.cores_per_worker: .*0"),
        ('kind = "local"\n[executors.w]\ncpu_affinity = "blocks"\n', r"did you mean 'block'"),
        ('kind = "local"\n[executors."a b"]\n', r"'a b' must be letters"),
        ('kind = "local"\n[executors]\n', r"executors is empty"),
        ('kind = "threads"\n[executors.w]\nworker_init = "x"\n', r"executors\.w: worker_init has no meaning"),
        ('kind = "slurmm"\n', r"p\.toml, kind: .*'slurmm'"),
        ("description = ''\n", r"p\.toml: the key 'kind' is missing"),
        ("kind = local\n", r"p\.toml: not valid TOML: .*line 1"),
        ('kind = "local"\nlammps = ["lmp"]\n', r'p\.toml: .*write \[apps\.lammps\].*command = \["lmp"\]'),
        ('kind = "local"\n[apps.lammps]\ncomand = ["lmp"]\n', r"apps\.lammps: .*did you mean 'command'"),
        ('kind = "local"\n[apps.lamps]\n', r"p\.toml.*apps\.lamps: .*did you mean \[apps\.lammps\]"),
        ('kind = "local"\n[apps.Thermo]\n', r"did you mean \[apps\.thermo\]"),
        ('kind = "local"\npoll_s = 5\n', r'poll_s has no meaning for kind = "local", which submits no jobs'),
        ('kind = "threads"\n[block]\n', r'block has no meaning for kind = "threads"'),
        ('kind = "local"\n[executors.w.block]\nqueue = "q"\n', r"executors\.w: block has no meaning"),
        ('kind = "local"\nlauncher = "mpirun"\n', r"launcher = 'mpirun' is not known; .*\[launchers\.mpirun\]"),
        (
            'kind = "local"\n[launchers.ours]\ncommand = ["mpirun", "-n", "{rank}"]\n',
            r"p\.toml: launchers\.ours: .*\{rank\}.*did you mean 'ranks'",
        ),
        ('kind = "local"\n[apps.lammps]\nlauncher = "srum"\n', r"apps\.lammps\.launcher.*did you mean 'srun'"),
        (
            'kind = "local"\n[executors.w]\nmode = "mpi"\ncores_per_worker = 2\n',
            r"cores_per_worker has no meaning",
        ),
        ('kind = "slurm"\n[block]\nwalltme = "01:00:00"\n', r"p\.toml, block: .*did you mean 'walltime'"),
        ('kind = "slurm"\n[executors.w.block]\nquue = "q"\n', r"executors\.w\.block: .*did you mean 'queue'"),
        ('kind = "slurm"\n[block]\nwalltime = "1:30"\n', r"block\.walltime: .*'1:30' is not HH:MM:SS"),
        (
            'kind = "slurm"\n[block]\nwalltime = "00:00:30"\n',
            r"block\.walltime = '00:00:30': on Slurm .* one minute",
        ),
        (
            'kind = "slurm"\n[block]\nselect_options = "a=4"\n',
            r'block\.select_options has no meaning for .*"slurm"',
        ),
        ('kind = "pbs"\n[executors.w.block]\nqos = "x"\n', r'executors\.w\.block\.qos has no meaning for .*"pbs"'),
        ('kind = "slurm"\n[block]\ndirectives = ["#SBATCH -C cpu"]\n', r"leave out '#SBATCH'"),
        ('kind = "slurm"\n[block]\ndirectives = ["gpus=4"]\n', r"'gpus=4' is not one option"),
        (
            'kind = "slurm"\n[nodes.a]\ncores = 4\ngpus = 2\naccelerators = ["0"]\n',
            r"nodes\.a: accelerators has 1 ids, but gpus = 2",
        ),
        ('kind = "slurm"\n[nodes.a]\ncores = 4\n[queues.q]\nnode = "b"\n', r"queues\.q\.node = 'b' has no table"),
        (
            'kind = "slurm"\nblock.queue = "debgu"\n[nodes.a]\ncores = 4\n[queues.debug]\nnode = "a"\n',
            r"block\.queue = 'debgu' is not among .*did you mean 'debug'.*\[queues\.debgu\]",
        ),
        (
            'kind = "pbs"\n[nodes.a]\ncores = 4\n[queues.q]\nnode = "a"\nmin_nodes = 3\nmax_nodes = 2\n',
            r"queues\.q: max_nodes = 2 is less than min_nodes = 3",
        ),
        (
            'kind = "slurm"\n[coordinator]\nwhere = ["home"]\n',
            r"coordinator\.where\.0: .*'login', 'job' or 'inside'",
        ),
    ],
)
def test_a_mistake_is_named_with_file_key_and_what_is_right(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        find_profile(write(tmp_path / "p.toml", text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.toml: no such file"):
        find_profile(tmp_path / "nowhere.toml")


def test_other_toml_files_beside_the_user_are_not_listed_but_broken_profiles_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Path("my_campaign.toml"), "app = 'md'\n")
    monkeypatch.setenv("HPCAGENT_SITE_PATH", str(tmp_path / "sites"))
    write(tmp_path / "sites/broken.toml", "kind = 1\n")
    entries = {entry.name: entry.description for entry in list_profiles()}
    assert "my_campaign" not in entries
    assert entries["broken"].startswith("not usable: ")


def test_an_app_of_ones_own_may_have_any_name_that_is_no_slip_of_the_pen() -> None:
    named = {name: {} for name in ("lammps", "lammps2", "thermo_npt", "namd", "mine", "md")}
    assert set(Profile.model_validate({"name": "x", "kind": "local", "apps": named}).apps) == set(named)


def test_a_profile_may_name_several_executors(tmp_path: Path) -> None:
    text = 'kind = "local"\n[apps.lammps]\ncommand = ["lmp", "-sf", "opt"]\n[executors.md]\n[executors.analysis]\n'
    profile = find_profile(write(tmp_path / "p.toml", text))
    assert profile.executor_names == ("md", "analysis")
    assert profile.lammps == ("lmp", "-sf", "opt")
    assert Profile(name="x", kind="local").lammps is None
    with pytest.raises(Exception, match="frozen"):
        profile.name = "x"  # type: ignore[misc]


def test_workers_get_cores_of_their_own_in_turn() -> None:
    assert _affinity(2, [0, 1, 2, 3], 1) == "0:1"  # not two each, as Parsl's "block" would
    assert _affinity(2, [4, 5, 6, 7], 2) == "4,5:6,7"
    assert _affinity(3, [0, 1], 1) == "0:1:0"  # more workers than cores: around again


def test_the_documented_defaults_hold() -> None:
    executor = ExecutorProfile()
    assert (executor.encrypted, executor.prefetch_capacity, executor.cores_per_worker) == (True, 0, 1)


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:01:00", 60), ("1:00:00", 3600), ("168:00:00", 604800), ("7-00:00:00", 604800)]
)
def test_walltimes_are_read(text: str, seconds: int) -> None:
    assert walltime_s(text) == seconds


@pytest.mark.parametrize("text", ["60", "01:30", "1h", "00:60:00", "00:00:60", "-1:00:00", "00:00:00", "1-2", ""])
def test_other_walltimes_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="01:00:00"):
        walltime_s(text)


@pytest.mark.parametrize("text", ["00:01:59", "2-03:04:05", "100:00:00"])
def test_parsl_asks_slurm_for_as_many_minutes_as_a_block_is_said_to_have(text: str) -> None:
    block = block_of(Profile(name="x", kind="slurm", block=BlockSettings(walltime=text)), "workers")
    assert wtime_to_minutes(block.walltime) * 60 == block.walltime_s == walltime_s(text) // 60 * 60
    on_pbs = block_of(Profile(name="x", kind="pbs", block=BlockSettings(walltime=text)), "workers")
    assert on_pbs.walltime_s == walltime_s(on_pbs.walltime) == walltime_s(text)


CLUSTER = """
kind = "{kind}"
{top}
[block]
queue = "small"
walltime = "02:00:00"
max_blocks = 3
directives = ["-l place=scatter"]

[executors.workers]
[executors.gpu]
available_accelerators = 2
block.queue = "gpu"
block.nodes_per_block = 2
[executors.mpi]
mode = "mpi"
block.max_blocks = 1

[nodes.cpu]
cores = 16
threads_per_core = 2
[nodes.gpu]
cores = 8
gpus = 2
gpu_env = "ROCR_VISIBLE_DEVICES"
accelerators = ["1", "0"]
cpu_affinity = "list:0-3:4-7"

[queues.small]
node = "cpu"
[queues.gpu]
node = "gpu"
directives = ["-l gpus=2"]
"""


def cluster(folder: Path, kind: str = "slurm", top: str = "", label: str = "workers") -> Block:
    return block_of(find_profile(write(folder / "c.toml", CLUSTER.format(kind=kind, top=top))), label)


def test_an_executor_says_what_is_other_than_in_block(tmp_path: Path) -> None:
    workers, gpu, mpi = (cluster(tmp_path, label=label) for label in ("workers", "gpu", "mpi"))
    assert [b.queue for b in (workers, gpu, mpi)] == ["small", "gpu", "small"]
    assert [b.nodes_per_block for b in (workers, gpu, mpi)] == [1, 2, 1]
    assert [b.max_blocks for b in (workers, gpu, mpi)] == [3, 3, 1]
    assert {b.walltime for b in (workers, gpu, mpi)} == {"02:00:00"}
    assert gpu.directives == ("-l place=scatter", "-l gpus=2")  # the queue's are added, not put in place of them


def test_workers_are_as_many_as_the_node_has_cores_or_gpus(tmp_path: Path) -> None:
    workers, gpu, mpi = (cluster(tmp_path, label=label) for label in ("workers", "gpu", "mpi"))
    assert (workers.max_workers_per_node, workers.cpus_per_node, workers.cpu_affinity) == (16, 32, "block")
    assert (gpu.max_workers_per_node, gpu.accelerators, gpu.cpu_affinity) == (2, ("1", "0"), "list:0-3:4-7")
    assert gpu.gpu_env == "ROCR_VISIBLE_DEVICES"
    assert mpi.max_workers_per_node is None


def test_fewer_gpus_than_the_node_has_are_its_first_ones(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.toml", CLUSTER.format(kind="slurm", top="").replace("accelerators = 2", "accelerators = 1")
    )
    block = block_of(find_profile(path), "gpu")
    assert (block.accelerators, block.max_workers_per_node) == (("1",), 1)
    assert block.cpu_affinity == "block"  # the list of the node type is for all of its GPUs


def test_the_built_in_launchers_are_those_that_exist(tmp_path: Path) -> None:
    assert set(BUILT_IN_LAUNCHERS) == set(LAUNCHERS)
    text = 'kind = "local"\nlauncher = "ours"\n[launchers.ours]\ncommand = ["mpirun", "-n", "{ranks}"]\n'
    assert find_profile(write(tmp_path / "p.toml", text)).mpi_launcher == "ours"
    kinds = {"local": "hydra", "slurm": "srun", "pbs": "mpiexec"}
    assert {kind: Profile(name="x", kind=kind).mpi_launcher for kind in kinds} == kinds


def test_one_process_starts_mpi_runs_and_the_schedulers_launcher_starts_workers(tmp_path: Path) -> None:
    labels = ("workers", "gpu", "mpi")
    assert [cluster(tmp_path, "slurm", label=x).worker_launcher for x in labels] == ["srun", "srun", "single"]
    assert [cluster(tmp_path, "pbs", label=x).worker_launcher for x in labels] == ["single", "mpiexec", "single"]


def test_file_systems_are_not_lost_beside_directives(tmp_path: Path) -> None:
    block = cluster(tmp_path, "pbs", 'filesystems = ["home", "eagle"]')
    assert block.directives == ("-l filesystems=home:eagle", "-l place=scatter")


def test_a_queue_may_mean_a_qos(tmp_path: Path) -> None:
    block = cluster(tmp_path, top='queue_means = "qos"')
    assert (block.queue, block.qos) == (None, "small")
    assert block.limits is not None and block.node is not None


def test_whole_nodes_are_asked_for_unless_cores_are() -> None:
    def exclusive(settings: BlockSettings) -> bool:
        return block_of(Profile(name="x", kind="slurm", block=settings), "workers").exclusive

    assert exclusive(BlockSettings()) is True
    assert exclusive(BlockSettings(cores_per_node=8)) is False
    assert exclusive(BlockSettings(cores_per_node=8, exclusive=True)) is True


def test_a_site_without_jobs_has_no_blocks() -> None:
    with pytest.raises(BadInput, match="submits no jobs"):
        block_of(Profile(name="x", kind="local"), "workers")


def test_the_account_is_the_nearest_one_given() -> None:
    bare = Profile(name="x", kind="slurm", account_required=True)
    with_account = bare.model_copy(update={"account": "file"})
    places = {
        "HPCAGENT_ACCOUNT": "ours",
        "SBATCH_ACCOUNT": "sbatch",
        "SLURM_ACCOUNT": "slurm",
        "PBS_ACCOUNT": "pbs",
    }
    assert account_of(with_account, "given", places) == "given"
    assert account_of(with_account, None, places) == "file"
    for name in ("HPCAGENT_ACCOUNT", "SBATCH_ACCOUNT", "SLURM_ACCOUNT"):
        assert account_of(bare, None, places) == places.pop(name)
    with pytest.raises(
        BadInput, match=r"--account NAME.*\$HPCAGENT_ACCOUNT or \$SBATCH_ACCOUNT or \$SLURM_ACCOUNT\.$"
    ):
        account_of(bare, None, places)
    assert account_of(Profile(name="x", kind="slurm"), None, places) is None
    assert account_of(Profile(name="x", kind="pbs"), None, places) == "pbs"


def test_a_missing_account_is_refused_with_the_sites_own_hint() -> None:
    profile = Profile(name="x", kind="pbs", account_required=True, account_hint="Ask Ada.")
    with pytest.raises(BadInput, match=r"\$PBS_ACCOUNT\. Ask Ada\.$"):
        account_of(profile, environ={})


def test_the_coordinator_runs_only_where_the_site_wants_it() -> None:
    rule = CoordinatorSettings(where=("inside",), note="Login nodes are small.")
    profile = Profile(name="x", kind="slurm", coordinator=rule)
    check_where(profile, "inside")
    with pytest.raises(BadInput, match=r"x does not .* 'login'; allowed: inside\. Login nodes are small\."):
        check_where(profile, "login")
    with pytest.raises(BadInput, match=r"did you mean 'inside'"):
        check_where(profile, "insider")


KNOWN = 'kind = "slurm"\n[identify]\nenv = { CLUSTER = "c*" }\nhostname = ["*.here.org"]\n'


def test_auto_is_the_profile_that_knows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("site_profiles/ours.toml"), KNOWN)
    assert identify_site({"CLUSTER": "cat"}, "n1").name == "ours"
    assert identify_site({"CLUSTER": "dog"}, "n1.here.org").name == "ours"
    assert identify_site({"CLUSTER": "dog"}, "n1.there.org").name == "laptop"
    monkeypatch.setenv("CLUSTER", "cat")
    assert find_profile("auto").name == "ours"


def test_auto_refuses_to_choose_between_two_of_a_kind() -> None:
    write(Path("site_profiles/one.toml"), KNOWN)
    write(Path("site_profiles/two.toml"), KNOWN)
    with pytest.raises(BadInput, match=r"'one' and 'two' both know this machine"):
        identify_site({"CLUSTER": "c"}, "n1")


def test_auto_takes_a_profile_of_ones_own_before_a_packaged_one() -> None:
    assert identify_site({"TACC_SYSTEM": "vista"}, "n1").name == "vista"
    write(Path("site_profiles/my_vista.toml"), 'kind = "slurm"\nidentify.env = { TACC_SYSTEM = "vista" }\n')
    assert identify_site({"TACC_SYSTEM": "vista"}, "n1").name == "my_vista"


UP = ("echo 'Slurmctld(primary) at vm is UP'", 0)
DOWN = ("echo 'Slurmctld(primary) at vm is DOWN'", 1)
# As Debian's slurm-client says it where nobody has configured it.
NO_CLUSTER = ("echo 'scontrol: fatal: Could not establish a configuration source' >&2", 1)
STUB = ("true", 1)
PBS = ("case $1 in --version) echo pbs_version = 23.06.06;; *) echo Server: srv;; esac", 0)
PBS_DOWN = (
    "case $1 in --version) echo pbs_version = 23.06.06; exit 0;; esac; "
    "echo 'qstat: cannot connect to server srv (errno=15010)' >&2",
    255,
)
NO_CONF = ("echo 'pbsconf error: pbs conf variables not found: PBS_HOME PBS_EXEC PBS_SERVER' >&2", 1)
TORQUE = ("echo Version: 6.1.2", 0)


def installed(folder: Path, *, slurm: tuple[str, int] | None = None, pbs: tuple[str, int] | None = None) -> str:
    """A PATH with the commands of schedulers that say so."""
    for said, commands in ((slurm, ("sbatch", "scontrol")), (pbs, ("qsub", "qstat"))):
        for command in commands if said else ():
            assert said is not None
            write(folder / command, f"#!/bin/sh\n{said[0]}\nexit {said[1]}\n").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("slurm", "pbs", "name"),
    [
        (UP, None, "slurm"),
        (STUB, PBS, "pbs"),  # left there by another site's habits
        (NO_CLUSTER, PBS, "pbs"),
        (DOWN, PBS, "pbs"),
        (UP, TORQUE, "slurm"),
        (UP, NO_CONF, "slurm"),
        (UP, PBS_DOWN, "slurm"),
        (None, PBS, "pbs"),
        (None, TORQUE, "laptop"),
        (None, NO_CONF, "laptop"),
        (STUB, None, "laptop"),
        (NO_CLUSTER, TORQUE, "laptop"),
        (None, None, "laptop"),
    ],
)
def test_auto_on_an_unknown_machine_is_the_scheduler_that_answers(
    tmp_path: Path, slurm: tuple[str, int] | None, pbs: tuple[str, int] | None, name: str
) -> None:
    path = installed(tmp_path / "bin", slurm=slurm, pbs=pbs)
    assert identify_site({"PATH": path}, "unknown").name == name


@pytest.mark.parametrize(
    ("slurm", "pbs", "words"),
    [
        (UP, PBS, r"Two schedulers answer .*\(primary\) at vm is UP\); PBS answers \(server srv\).*--kind"),
        (DOWN, None, r"cannot be told: Slurm does not answer \(scontrol ping ended with 1: .*is DOWN\).*laptop"),
        (STUB, PBS_DOWN, r"Slurm is not set up .*; PBS does not answer \(.*ended with 255: .*cannot connect"),
    ],
)
def test_auto_does_not_choose_where_both_answer_or_the_one_that_is_there_does_not(
    tmp_path: Path, slurm: tuple[str, int], pbs: tuple[str, int] | None, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        identify_site({"PATH": installed(tmp_path / "bin", slurm=slurm, pbs=pbs)}, "unknown")


def test_auto_in_a_job_is_the_scheduler_of_the_job_also_on_a_node_without_its_commands(tmp_path: Path) -> None:
    assert identify_site({"PATH": "", "PBS_JOBID": "7.srv"}, "n1").name == "pbs"
    assert identify_site({"PATH": "", "SLURM_JOB_ID": "7"}, "n1").name == "slurm"
    both = installed(tmp_path / "both", slurm=UP, pbs=PBS)
    assert identify_site({"PATH": both, "PBS_JOBID": "7.srv"}, "n1").name == "pbs"
    torque = installed(tmp_path / "torque", pbs=TORQUE)
    assert identify_site({"PATH": torque, "PBS_JOBID": "7.srv"}, "n1").name == "laptop"


# ---- what a profile may put into a script, a command line and an environment

INJECTED = {
    "account": 'account = "a\\n#SBATCH --wrap=id"',
    "account, an option": 'account = "a --uid=root"',
    "queue": '[block]\nqueue = "debug\\nid"',
    "queue, an option": '[block]\nqueue = "-debug"',
    "qos": '[block]\nqos = "low\\u2028id"',
    "constraint": '[block]\nconstraint = "cpu\\rid"',
    "directives": '[block]\ndirectives = ["--gpus=1\\nid"]',
    "overrides": '[block]\noverrides = "-c 4\\nid"',
    "env's value": '[env]\nA = "1\\nid"',
    "env's name": '[env]\n"A=1; id #" = "1"',
    "app's command": '[apps.lammps]\ncommand = ["lmp\\nid"]',
    "app's env": '[apps.lammps.env]\n"A B" = "1"',
    "launcher": '[launchers.mine]\ncommand = ["mpirun\\nid"]',
    "name": 'name = "../x"',
    "worker_init": '[executors.workers]\nworker_init = "module load a\\u0000"',
    "worker_init, hidden": '[executors.workers]\nworker_init = "echo a\\u001b[2K"',
    "python": '[executors.workers]\npython = "python\\nid"',
    "gpu_env": '[nodes.gpu]\ncores = 1\ngpu_env = "A=1; id"',
    "address": 'address = "-x"',
    "ten megabytes": f'description = "{"x" * 10_000_000}"',
    "for ever": "poll_s = 1e400",
    "a block of all nodes there are": f"[block]\nnodes_per_block = {10**20}",
}


@pytest.mark.parametrize("text", INJECTED.values(), ids=INJECTED.keys())
def test_no_text_of_a_profile_becomes_a_line_an_option_or_a_path(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.toml", f'kind = "slurm"\n{text}\n')
    with pytest.raises(BadInput) as error:
        find_profile(path)
    assert str(path) in str(error.value) and len(str(error.value)) < 1000


def test_lines_are_meant_where_lines_are_meant(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.toml", 'kind = "slurm"\n[executors.w]\nworker_init = """\nmodule load a\n\techo b\n"""\n'
    )
    assert find_profile(path).executors["w"].worker_init == "module load a\n\techo b\n"


@pytest.mark.parametrize("given", ["a\nb", "a --uid=0", "-a", "a\x00"])
def test_an_account_of_the_environment_or_the_command_line_is_checked_as_well(given: str) -> None:
    mine = Profile(name="mine", kind="slurm")
    with pytest.raises(BadInput, match="account"):
        account_of(mine, environ={"SBATCH_ACCOUNT": given})
    with pytest.raises(BadInput, match="account"):
        account_of(mine, given)


def test_every_text_of_a_profile_has_a_checked_type() -> None:
    """A new key must say what may stand in it: `Line`, `Lines`, `Word`, `Name` or `Variable`."""
    seen: set[type] = set()

    def bare(annotation: object) -> bool:
        if annotation is str:
            return True
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return bool(unchecked(annotation))
        if typing.get_origin(annotation) in (typing.Annotated, typing.Literal):
            return typing.get_origin(annotation) is typing.Annotated and bare_inside(annotation)
        return any(bare(inner) for inner in typing.get_args(annotation))

    def bare_inside(annotation: object) -> bool:
        first, *marks = typing.get_args(annotation)
        return bare(first) and not any(isinstance(mark, AfterValidator) for mark in marks)

    def unchecked(model: type[BaseModel]) -> list[str]:
        if model in seen:
            return []
        seen.add(model)
        hints = typing.get_type_hints(model, include_extras=True)
        return [f"{model.__name__}.{name}" for name in model.model_fields if bare(hints[name])]

    assert unchecked(Profile) == []
    assert len(seen) > 8


def test_a_secret_of_a_profile_is_in_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", 'kind = "slurm"\n[env]\nAPI_TOKEN = ["swordfish"]\n')
    with pytest.raises(BadInput) as error:
        find_profile(path)
    assert "swordfish" not in str(error.value) + repr(error.value.details) and "API_TOKEN" in str(error.value)
