"""A private Slurm on this machine: munged, slurmctld and slurmd's under a folder of their own, on loopback.

Works as root and as an ordinary user, without systemd, cgroups or a line in /etc. Nodes declare two CPUs each,
whatever the machine has. Each daemon is a child in the foreground, stopped by the pid that was started; should the
tests be killed, the kernel ends them too.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

__all__ = ["APT", "Cluster", "missing_packages"]

APT = Path(__file__).parents[1] / "apt.txt"
_NEEDED = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm", "munged": "munge"}
_FOR_ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"  # not on an ordinary user's PATH in Debian


def _which(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=_SBIN)


def missing_packages(*, accounting: bool = False) -> list[str]:
    """Return the apt packages that a cluster needs and this machine has not."""
    needed = {**_NEEDED, **(_FOR_ACCOUNTING if accounting else {})}
    return sorted({package for program, package in needed.items() if _which(program) is None})


def _free_ports(count: int) -> list[int]:
    """Ports below the range from which the kernel gives ports away, so that nobody takes them meanwhile."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    return ports


class Cluster:
    """Start a cluster; `stop` ends it and removes its folder. Also a context manager.

    Args:
        nodes: How many nodes, n1, n2, ...; each with 2 CPUs and 4096 MB.
        accounting: With slurmdbd and a database, so that sacct works.
        memory_kill: A job that uses more memory than it asked for is killed (OverMemoryKill, within some seconds).
        submit_limit: Jobs of this user that may wait or run at a time (MaxSubmitJobs); needs accounting.

    Attributes:
        folder: Where everything is; `log/` has a log of each daemon.
        env: What a client needs in its environment: SLURM_CONF.
        nodes: Names of the nodes.
    """

    def __init__(
        self,
        *,
        nodes: int = 4,
        accounting: bool = False,
        memory_kill: bool = False,
        submit_limit: int | None = None,
    ) -> None:
        self.nodes = tuple(f"n{i + 1}" for i in range(nodes))
        self.accounting = accounting
        self.memory_kill = memory_kill
        self.submit_limit = submit_limit
        for again in range(3):
            try:
                self._begin()
                return
            except AssertionError as error:  # somebody has taken a port since it was found to be free
                if "Address already in use" not in str(error) or again == 2:
                    raise

    def _begin(self) -> None:
        # Directly in /tmp: the path of a unix socket ends at 107 characters, and munge wants no folder above
        # its socket in which others may rename.
        self.folder = Path(tempfile.mkdtemp(prefix="hps-", dir="/tmp"))
        self.env: Mapping[str, str] = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name in ("munge", "state", "spool", "log", "run", "db"):
                (self.folder / name).mkdir()
            self.folder.chmod(0o755)
            self._ports = _free_ports(len(self.nodes) + 3)
            self._configure()
            self._start_munge()
            if self.accounting:
                self._start_accounting()
            if self.submit_limit is not None:
                self._limit(self.submit_limit)
            self.start_controller(forget=True)
            for node in self.nodes:
                self._start_node(node)
            idle = f"idle,{len(self.nodes)}"
            self._wait("all nodes idle", lambda: self.run("sinfo -h -o %T,%D", check=False) == idle)
        except BaseException:
            self.stop()
            raise

    def _configure(self) -> None:
        me, folder = _user(), self.folder
        controller, database, _, *slurmd = self._ports
        host = socket.gethostname().split(".")[0]  # slurmctld refuses to start under any other name
        gather = "jobacct_gather/linux\nJobAcctGatherFrequency=1\nJobAcctGatherParams=OverMemoryKill"
        storage = (
            f"accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\nAccountingStoragePort={database}\n"
            # without this line sacct looks for munge's socket in /run
            f"AccountingStoragePass={folder}/run/munge.socket"
        )
        # MPICH names its shared memory after job and step: what a killed run of an earlier cluster left there
        # makes the same step of this one hang.
        first_job = random.SystemRandom().randrange(10_000, 60_000_000)
        lines = f"""\
ClusterName=hpcagent
FirstJobId={first_job}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={slurmd[0]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CryptoType=crypto/munge
SlurmUser={me}
SlurmdUser={me}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType={gather if self.memory_kill else "jobacct_gather/none"}
AccountingStorageType={storage if self.accounting else "accounting_storage/none"}
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters={"CR_Core_Memory" if self.memory_kill else "CR_Core"}
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=1
EnforcePartLimits=ALL
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
KillWait=2
MinJobAge=300
MessageTimeout=5
SlurmctldTimeout=60
SlurmdTimeout=60
PropagateResourceLimits=NONE
"""
        for node, port in zip(self.nodes, slurmd, strict=True):
            lines += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4096\n"
        if self.submit_limit is not None:
            lines += "AccountingStorageEnforce=associations,limits\n"
        lines += "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        lines += "PartitionName=short Nodes=ALL MaxTime=00:02:00 State=UP\n"
        (folder / "slurm.conf").write_text(lines)

    def _daemon(self, name: str, *command: str | Path) -> None:
        program = _which(str(command[0]))
        assert program is not None, f"{command[0]} is not installed"
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", program, *map(str, command[1:])],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**_clean_environ(), **self.env},
                cwd=self.folder,
                start_new_session=True,
            )

    def _wait(self, what: str, true: Callable[[], bool], *, within_s: float = 300.0) -> None:
        begun = time.monotonic()
        while not true():
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise AssertionError(f"{name} ended with {daemon.returncode}:\n{self._log(name)}")
            if time.monotonic() - begun > within_s:
                logs = "\n".join(f"--- {name}\n{self._log(name)}" for name in self._daemons)
                raise AssertionError(f"{what}: not within {within_s:g} s.\n{logs}")
            time.sleep(0.1)

    def _log(self, name: str) -> str:
        tail = ""
        for file in (self.folder / "log" / f"{name}.log", self.folder / "log" / f"{name}.out"):
            with contextlib.suppress(OSError):
                tail += "\n".join(file.read_text(errors="replace").splitlines()[-15:]) + "\n"
        return tail

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.chmod(0o700)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        sock = self.folder / "run" / "munge.socket"
        files = [f"--key-file={key}", f"--socket={sock}", f"--pid-file={self.folder}/run/munged.pid"]
        files += [f"--log-file={self.folder}/log/munged.log", f"--seed-file={folder}/munged.seed"]
        self._daemon("munged", "munged", "--foreground", *files)
        self._wait("munge's socket", sock.exists)

    def _start_accounting(self) -> None:
        me, folder, port, sql = _user(), self.folder, self._ports[1], self._ports[2]
        data, sock = folder / "db", folder / "run" / "sql.socket"
        program = _which("mariadb-install-db")
        assert program is not None
        who = [f"--user={me}"] if os.getuid() == 0 else []  # it refuses to be root unasked
        small = [
            "--innodb-log-file-size=4M",
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=0",
        ]
        options = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", *small, *who]
        installed = subprocess.run(
            [program, *options, f"--datadir={data}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert installed.returncode == 0, installed.stdout + installed.stderr
        self._daemon(
            "mariadbd",
            *("mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={sock}", f"--port={sql}"),
            *("--bind-address=127.0.0.1", f"--pid-file={folder}/run/sql.pid", *small, *who),
        )
        self._wait("the database's socket", sock.exists)
        conf = folder / "slurmdbd.conf"
        conf.write_text(
            f"AuthType=auth/munge\nAuthInfo=socket={folder}/run/munge.socket\nDbdHost=localhost\n"
            f"DbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser={me}\nLogFile={folder}/log/slurmdbd.log\n"
            f"PidFile={folder}/run/slurmdbd.pid\nCommunicationParameters=NoInAddrAny\n"
            f"StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={sql}\n"
            "StorageUser=root\nStorageLoc=slurm\n"
        )
        conf.chmod(0o600)
        self._daemon("slurmdbd", "slurmdbd", "-D")
        self._wait("slurmdbd's port", lambda: _listens(port))

    def _limit(self, jobs: int) -> None:
        self.run("sacctmgr -i add cluster hpcagent")
        self.run("sacctmgr -i add account lab Description=lab Organization=lab")
        self.run(f"sacctmgr -i add user {_user()} Account=lab DefaultAccount=lab")
        self.run(f"sacctmgr -i modify user {_user()} set MaxSubmitJobs={jobs}")

    def start_controller(self, *, forget: bool = False) -> None:
        """Start slurmctld, with the jobs it had (`forget`: without), and wait until it answers."""
        self._daemon("slurmctld", "slurmctld", "-D", *(["-c"] if forget else []))
        self._wait("slurmctld", lambda: " UP " in self.run("scontrol ping", check=False).replace("\n", " ") + " ")
        if any(name.startswith("slurmd-") for name in self._daemons):
            self.run("scontrol reconfigure")  # the nodes report at once, not after some seconds

    def stop_controller(self) -> None:
        """End slurmctld; it has written its state. Jobs go on, and nobody answers questions on them."""
        self._end("slurmctld")

    @property
    def has_controller(self) -> bool:
        """Whether slurmctld runs."""
        return "slurmctld" in self._daemons

    def _start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        self._daemon(f"slurmd-{node}", "slurmd", "-D", "-N", node)

    def drain(self, *nodes: str) -> None:
        """Let no further job start on these nodes."""
        self.run(f"scontrol update nodename={','.join(nodes)} state=drain reason=test")

    def down(self, node: str) -> None:
        """Fail a node: its jobs are killed and end as NODE_FAIL, or are queued again unless --no-requeue."""
        self.run(f"scontrol update nodename={node} state=down reason=test")

    def resume(self, *nodes: str) -> None:
        """Undo `drain` or `down`, and wait until the nodes take jobs again."""
        names = ",".join(nodes)
        # refused for a node that is well: one that was down comes back by itself when its slurmd reports
        self.run(f"scontrol update nodename={names} state=resume", check=False)
        bad = ("down", "drain", "fail", "unk", "*")
        self._wait(
            f"{names} take jobs",
            lambda: not any(word in state for state in self.node_states(*nodes).values() for word in bad),
        )

    def node_states(self, *nodes: str) -> dict[str, str]:
        """Return {node: sinfo's state}, e.g. idle, mixed, allocated, draining, down*; of all nodes if none is given."""
        lines = self.run(f"sinfo -h -N -p debug -n {','.join(nodes or self.nodes)} -o '%N %T'").splitlines()
        return dict(line.split() for line in lines)

    def run(self, command: str, *, check: bool = True, timeout_s: float = 60.0) -> str:
        """Run a shell command as a client of this cluster; returns what it printed, stripped.

        Raises:
            AssertionError: It failed (with `check`), or took longer than `timeout_s`.
        """
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # as names of jobs are
            env={**_clean_environ(), **self.env},
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return {job id: (long state, name)} of the jobs that have not ended."""
        lines = self.run("squeue --all --noheader -o '%i|%T|%j'").splitlines()
        return {job_id: (state, name) for job_id, state, name in (line.split("|", 2) for line in lines)}

    def details(self, job_id: str) -> dict[str, str]:
        """Return what `scontrol show job` tells of a job."""
        words = self.run(f"scontrol --oneliner show job {job_id}").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, job_id: str, *states: str, within_s: float = 300.0) -> str:
        """Wait until a job is in one of these long states; returns which."""
        seen: list[str] = []

        def reached() -> bool:
            seen.append(self.details(job_id)["JobState"])
            return seen[-1] in states

        self._wait(f"job {job_id} in {states}", reached, within_s=within_s)
        return seen[-1]

    def running(self, job_id: str) -> bool:
        """Whether Slurm says RUNNING of it."""
        return self.jobs().get(job_id, ("",))[0] == "RUNNING"

    def cancel(self, job_id: str) -> None:
        """Cancel a job, as its owner does."""
        self.run(f"scancel {job_id}")

    def run_out(self, job_id: str) -> None:
        """Let a running job's walltime be over now; slurmctld notices within 30 s and ends it as TIMEOUT.

        scontrol sends the second that it is, and slurmctld refuses one that has gone by until it reads it.
        """
        self._wait(
            f"job {job_id} to be told its end",
            lambda: any(
                self._accepts(f"scontrol update jobid={job_id} endtime=now+{ahead}") for ahead in (0, 1, 3, 10)
            ),
        )

    def _accepts(self, command: str) -> bool:
        return self.run(f"{command} >/dev/null 2>&1 && echo yes || true") == "yes"

    def cancel_all(self, *, within_s: float = 180.0) -> None:
        """Cancel every job and wait until none is left. For tidying up; `jobs()` tells what there was."""
        begun = time.monotonic()
        while left := self.jobs():
            self.run(f"scancel {' '.join(left)}", check=False)
            assert time.monotonic() - begun < within_s, f"jobs that cannot be ended: {left}"
            time.sleep(0.2)

    def processes(self) -> list[int]:
        """Return the processes of jobs of this cluster, also those that outlived their job (linuxproc lets them)."""
        return [pid for pid, environ in _environs() if self._mark in environ and b"SLURM_JOB_ID" in environ]

    @property
    def _mark(self) -> bytes:
        return f"SLURM_CONF={self.env['SLURM_CONF']}".encode()

    def kill_leftovers(self) -> list[int]:
        """Kill the processes of jobs that are left, by pid; returns which there were."""
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def stop(self) -> None:
        """End the jobs and the daemons and remove the folder. Again: does nothing."""
        if not self.folder.exists():
            return
        try:
            if self.has_controller:
                with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                    self.cancel_all()
            self.kill_leftovers()
            for name in reversed(list(self._daemons)):
                self._end(name)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is not None:
            daemon.terminate()
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _clean_environ() -> dict[str, str]:
    """Our environment without what a job or a user's habits put there."""
    foreign = ("SLURM_", "SLURMD_", "SBATCH_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _environs() -> Iterator[tuple[int, set[bytes]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "environ").read_bytes().split(b"\0")
                yield int(entry.name), {w if w.startswith(b"SLURM_CONF=") else w.split(b"=")[0] for w in words}
