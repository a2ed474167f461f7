"""Workers in jobs of a batch system: when to ask for one, what to do when one ends.

Parsl decides on scaling in a strategy apart from the executor, which measured here cancels and resubmits a
waiting job for ever (0 < tasks < slots of a block), gives an executor up because one query came too early, and
leaves jobs behind when it has given up. Here the executor looks after its own blocks:

* A block is asked for when runs wait that no block, waiting or running, has a place for.
* A block that waits in the queue is not touched while there is work; one that has been idle is given back; one
  with too little time left for any waiting run is given back as soon as it is empty.
* What a block that ends had in it fails with the scheduler's word on why, and its caller runs it again.
* Whatever happens, at the end every job is cancelled and seen to be gone.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import psutil
from parsl.addresses import address_by_interface
from parsl.executors.high_throughput.errors import ManagerLost
from parsl.executors.high_throughput.manager_selector import RandomManagerSelector
from parsl.jobs.states import JobState, JobStatus

from hpcagent.errors import BadInput, BlockLost, SiteFailed, StoreFull
from hpcagent.lifeline import end_all, node_name
from hpcagent.model.failures import name_of_end
from hpcagent.sites.block import Block, block_of, worker_launcher_of
from hpcagent.sites.launch import python_command
from hpcagent.sites.launchers import NodeWorkers, SrunWorkers, worker_launcher
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.profile import Profile, account_of
from hpcagent.sites.schedulers.base import (
    Allocation,
    Job,
    NodeShape,
    Places,
    Refused,
    Scheduler,
    SchedulerDown,
    pause_s,
)
from hpcagent.sites.tables import ExecutorProfile
from hpcagent.sites.workers.blocks import CLOCKS_S, BatchBlocks
from hpcagent.sites.workers.executor import Executor, log_tail
from hpcagent.sites.workers.local import LocalBlocks
from hpcagent.sites.workers.placement import share

__all__ = ["BatchExecutor", "addresses_of", "batch_executor", "coordinator_script", "job_script", "project_of"]

_SCALE_EVERY_S = 0.5
_DEATHS_IN_A_ROW = 3
"""Blocks that may end one after another without a single result before the site is given up."""
_LOSSES_S = 5.0
"""So long it then waits for those that were in the last of them: how their block ended is their failure."""
_ASK_AGAIN_S = 1.0
_SILENT_S = 120.0
"""A job that runs for so long without its workers reporting is worth a word to the user."""
_END_S = 4.0
"""So long the workers of an allocation have to end by themselves."""
_NO_ROOM_S = 300.0
"""After a refusal that another try would not change, while other blocks work: so long until the next try."""
_TOLD_AFTER_S = 60.0
_TOLD_AT_LEAST_S = 3600.0
"""That no job is taken is said after a minute, then whenever that time has doubled, then every hour."""
_WAITS_S = 60.0
"""A job that waits for so long for an ordinary reason is worth a word."""
_NEVER = re.compile(
    r"Can Never Run|BadConstraints|Partition(TimeLimit|NodeLimit|Config)|Invalid(Account|QOS)"
    r"|DependencyNeverSatisfied|(QOS|Assoc)(Max\w*PerJob|Min)"
)
"""In the reason of a job that waits: it will not run as it was submitted (PBS's comment, Slurm's words)."""
_ORDINARY = re.compile(r"$|None$|Priority|Resources|Not Running: (Insufficient amount|Job would|Not enough)")
"""Reasons for which every job waits at some time."""
COORDINATOR_CPUS, _COORDINATOR_GB = 2, 4.0
"""What a coordinator in a job of its own asks for; it and its interchange take 0.2 GB, measured."""
_MOST_MPI_RUNS = 64
"""Runs at once in a block of mode mpi, where the profile does not say: each holds a small Python process."""


class InsideBlocks(LocalBlocks):
    """The one block of a coordinator that runs inside an allocation: workers started here, on its nodes."""

    allocation = ""
    """Id of the scheduler's job around; the ids of blocks here are those of processes, which say nothing."""

    def known(self) -> dict[str, Job]:
        """Return how the block stands; nobody needs to be asked."""
        jobs = {}
        for job_id, job in self.resources.items():
            code = job["process"].poll()
            state: Any = "running" if code is None else ("cancelled" if job["cancelled"] else "failed")
            jobs[job_id] = Job(job_id, state, exit_code=code)
        return jobs

    def lines(self, command: str, tasks_per_node: int, job_name: str) -> str:
        """Return shell lines that start the workers on the nodes of the allocation."""
        folder = str(Path(self.script_dir or ".").absolute())
        nodes = len(getattr(self.launcher, "hosts", ())) or self.nodes_per_block
        start = self.launcher(command, tasks_per_node, nodes, folder)
        # Several lines see to their end themselves; see `launchers.py`.
        start = start if "\n" in start else f"exec {start}"
        return f"export JOBNAME={shlex.quote(job_name)}\n{start}"

    def wait(self, within_s: float) -> None:
        """Wait until the launchers have ended, which they do when their workers have."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and any(j["process"].poll() is None for j in self.resources.values()):
            time.sleep(0.02)

    def end_all(self, *, within_s: float = 60.0) -> None:
        """End the workers with everything they started on this node; the launcher ends the others."""
        for job in self.resources.values():
            if job["process"].poll() is None:
                job["process"].terminate()
        self.wait(3.0)
        self.cancel(list(self.resources))
        end_all(self.mark)


class BatchExecutor(Executor):
    """Parsl's HighThroughputExecutor for workers in jobs; use `batch_executor`."""

    keys_in_logdir = True
    block: Block
    max_blocks = 1
    siblings: Sequence[BatchExecutor] = ()
    """The executors of the same site, itself among them: a queue's limit of jobs is for all of them."""
    submit_retries = 5
    slots = 1
    """Runs of one core that a block takes at once (mode tasks)."""
    hosts_cores = 0
    hosts_gpus = 0
    shapes: Sequence[NodeShape] = ()
    """The nodes that runs get, where they are known: inside of an allocation; they may differ."""
    unused_nodes = 0
    """Nodes of the allocation that a profile's `worker_launcher` leaves out."""
    addresses: Sequence[str] = ()
    mark = ""

    def start(self) -> None:
        """Make ready; the interchange comes with the first task, and blocks when tasks wait."""
        self._shares: dict[int, float] = {}
        self._lost: list[tuple[Future[Any], ManagerLost, str, float]] = []
        self._lost_lock = threading.Lock()
        self._given_back: set[str] = set()
        self._running_since: dict[str, float] = {}
        self._warned: set[str] = set()
        self._waits: dict[str, tuple[str, float]] = {}
        self._told_waiting: set[tuple[str, str]] = set()
        self._vanished: dict[str, float] = {}
        self._up_since: dict[str, float] = {}
        self._scaled_at = self._submit_after = 0.0
        self._refusals = self._unclear = 0
        self._refused_since: float | None = None
        self._refused_beside = False
        self._told_refused_at = 0.0
        self._deaths = 0
        self._results_at_last_death = -1
        self._doomed: tuple[float, int, SiteFailed] | None = None
        self._quiet_since: float | None = None
        self._told_down = False
        self._told_unended: str | None = None
        self._reported: set[str] = set()
        super().start()

    # --- tasks

    def submitted(self, task_id: int, needs: Mapping[str, Any]) -> None:
        """Note which part of a block the task will take."""
        if self.block.mode == "mpi" and needs:
            part = share(needs, self.block.nodes_per_block, self.hosts_cores, self.hosts_gpus)
        else:
            part = 1.0 / self.slots
        self._shares[task_id] = part

    def returned(self, task_id: int) -> None:
        """Forget it."""
        self._shares.pop(task_id, None)

    def refuse_impossible(self, needs: Mapping[str, Any]) -> None:
        """Say no to what would wait for ever.

        Raises:
            BadInput: The task needs more nodes, cores or GPUs than a block has.
        """
        if self.block.mode != "mpi":
            return
        if self.shapes:
            self._refuse_unfitting(needs)
            return
        have = {"nodes": self.block.nodes_per_block, "cores": self.hosts_cores, "gpus": self.hosts_gpus}
        for what, most in have.items():
            if int(needs.get(what, 0)) > most:
                per = "" if what == "nodes" else " on a node"
                raise BadInput(
                    f"A run of {needs[what]} {what}{per} does not fit into a block of the executor {self.label}, "
                    f"which has {most}{per}. Give the run less, or the block more (--nodes, nodes_per_block).",
                    value=needs[what],
                )

    def _refuse_unfitting(self, needs: Mapping[str, Any]) -> None:
        nodes, cores, gpus = (
            int(needs.get(what, least)) for what, least in (("nodes", 1), ("cores", 1), ("gpus", 0))
        )
        among = self.shapes[:1] if needs.get("here") else self.shapes
        if gpus > self.hosts_gpus or sum(node.cores >= cores for node in among) < nodes:
            with_gpus = f" and {gpus} GPU(s)" if gpus else ""
            have = ", ".join(f"{node.host} with {node.cores}" for node in self.shapes)
            first = ", and runs of one rank stay on the first of them" if needs.get("here") else ""
            raise BadInput(
                f"A run of {nodes} node(s) x {cores} core(s){with_gpus} does not fit into job {self._inside}, "
                f"whose nodes are {have} core(s){f' and {self.hosts_gpus} GPU(s) each' if gpus else ''}{first}. "
                "Give the run less, or ask for a larger job.",
                value=nodes * cores,
            )

    def at_once(self, needs: Mapping[str, Any]) -> int:
        """Return how many such runs go at once, with all the blocks there may be (mode mpi)."""
        if self.shapes and int(needs.get("nodes", 1)) == 1 and not needs.get("gpus"):
            among = self.shapes[:1] if needs.get("here") else self.shapes
            return min(self.slots, max(1, sum(node.cores // max(1, int(needs["cores"])) for node in among)))
        part = share(needs, self.block.nodes_per_block, self.hosts_cores, self.hosts_gpus)
        return self.max_blocks * min(self.slots, max(1, int(1 / part + 1e-9)))

    def lost(self, future: Future[Any], error: ManagerLost, block_id: str) -> None:
        """Keep the task until the scheduler has said what became of its job; see `_settle`."""
        with self._lost_lock:
            self._lost.append((future, error, block_id, time.monotonic()))
        self._last_poll_time = 0.0  # ask at the next tick

    # --- blocks

    def _get_launch_command(self, block_id: str) -> str:
        return self.worker_command(
            block_id,
            port=Path(self._port_file).read_text(),
            mark=self.mark,
            cert_dir=str(self.cert_dir),
            logdir=str(Path(self.worker_logdir).absolute()),
        )

    def worker_command(self, block_id: str, *, port: str, mark: str, cert_dir: str, logdir: str) -> str:
        """Return the shell words that start the workers of a node."""
        return shlex.join(
            python_command(
                "hpcagent.sites.workers.worker_pool",
                f"--mark={mark}/{block_id}",
                f"--port={port}",
                f"--addresses={','.join(self.addresses)}",
                f"--block_id={block_id}",
                f"--cert_dir={cert_dir}",
                f"--logdir={logdir}",
                f"--prefetch_capacity={self.prefetch_capacity}",
                f"--hb_period={self.heartbeat_period}",
                f"--hb_threshold={self.heartbeat_threshold}",
                "--cores_per_worker=1e-6",  # the profile has counted the workers already
                "--cpu-affinity=none",  # see --cores
                *self.pool_arguments,
                python=self.python,
            )
        )

    def look_after_blocks(self, status: dict[str, JobStatus]) -> None:
        """Notice what has begun and ended, settle what was lost, ask for blocks and give some back."""
        jobs: dict[str, Job] = self.provider.known()
        self._tell_if_down()
        for block_id, job_id in list(self.blocks_to_job_id.items()):
            job = jobs[job_id]
            if job.state == "running" and block_id not in self._running_since:
                self._running_since[block_id] = time.monotonic()
                if not self._inside:  # there it says nothing of the workers
                    self.tell(f"job {job_id} runs{' on ' + ', '.join(job.hosts) if job.hosts else ''}")
            if job.over and block_id not in self._ended_blocks:
                self._ended_blocks.add(block_id)
                self._block_ended(block_id, job)
        self._settle(jobs)
        self._give_up_if_doomed()
        self._tell_waiting(jobs)
        if self._doomed is not None:
            return
        if time.monotonic() - self._scaled_at > _SCALE_EVERY_S and not self.bad_state_is_set and not self._closed:
            self._scaled_at = time.monotonic()
            self._scale(jobs)

    def _tell_if_down(self) -> None:
        down = getattr(self.provider, "down", None)
        if down and not self._told_down:
            self.tell(f"the scheduler does not answer ({down}); runs go on, new jobs wait until it does")
        self._told_down = bool(down)
        unended = getattr(self.provider, "unended", None)
        if unended and unended != self._told_unended:
            self.tell(f"a job that is not needed could not be ended yet: {unended}")
        self._told_unended = unended

    def _tell_waiting(self, jobs: Mapping[str, Job]) -> None:
        """Say once of each job why it waits, and give up where the scheduler says that none can ever run."""
        now, polls_s = time.monotonic(), 2 * self.provider.status_polling_interval
        live = [b for b in self.blocks_to_job_id if b not in self._ended_blocks and b not in self._given_back]
        never: list[Job] = []
        for block_id in live:
            job = jobs[self.blocks_to_job_id[block_id]]
            if job.state not in ("pending", "held"):
                continue
            kind = _why(job)
            if self._waits.get(block_id, ("", 0.0))[0] != kind:
                self._waits[block_id] = kind, now
            since = self._waits[block_id][1]
            after = {"never": 0.0, "unusual": polls_s, "ordinary": _WAITS_S}[kind]
            if now - since >= after and (block_id, kind) not in self._told_waiting:
                self._told_waiting.add((block_id, kind))
                self.tell(_about_waiting(job, kind, now - since))
            if kind == "never" and now - since > polls_s:  # it was said more than once
                never.append(job)
        if never and len(never) == len(live) and not self.bad_state_is_set:
            self.provider.cancel([job.job_id for job in never])
            self._fail(
                SiteFailed(
                    f"{_about_waiting(never[0], 'never', 0.0)}. It was cancelled. Ask for other nodes, cores or "
                    "walltime, or another queue ([block] of the profile; --nodes, --walltime, --queue)."
                )
            )

    def _block_ended(self, block_id: str, job: Job) -> None:
        self._command(("EXPIRE", block_id))  # not until its heartbeats have been missed
        if block_id in self._given_back:
            return
        started = Path(self.worker_logdir, f"block-{block_id}", "up").exists()
        about = self._end_of(job)
        before = f" before {'they' if self._inside else 'its workers'} were ready"
        self.tell(f"{about}{'' if started else before}")
        self._deaths = self._deaths + 1 if self._results == self._results_at_last_death else 1
        self._results_at_last_death = self._results
        hopeless = not started and job.state in ("failed", "completed", "out_of_memory")
        if self._deaths < _DEATHS_IN_A_ROW and not hopeless:
            return
        err, out = self.provider.logs(job.job_id)
        tail = log_tail(err, out, *Path(self.worker_logdir, f"block-{block_id}").glob("manager-*.log"))
        how = before if hopeless else f" as {self._deaths} in a row did, without one result"
        error = SiteFailed(
            f"{about[0].upper()}{about[1:]}{how}. What {'they' if self._inside else 'it'} printed "
            f"({err}) ends:\n{tail or '(nothing)'}",
            log_tail=tail,
        )
        if hopeless:
            self._fail(error)
        elif self._doomed is None:
            self._doomed = time.monotonic() + _LOSSES_S, self._results, error

    def _give_up_if_doomed(self) -> None:
        """Fail as the blocks have ended one after another, once it is known what was in the last of them."""
        if self._doomed is None or self.bad_state_is_set:
            return
        until, results, error = self._doomed
        if self._results != results:
            self._doomed = None  # a result has come after all
        elif time.monotonic() > until:
            self._fail(error)

    def _refuse(self, error: SiteFailed) -> None:
        """As for those at work, also for tasks that were lost and wait for the scheduler's word."""
        super()._refuse(error)
        for future, *_ in self._take_lost():
            if not future.done():
                future.set_exception(error)

    def _take_lost(self) -> list[tuple[Future[Any], ManagerLost, str, float]]:
        with self._lost_lock:
            waiting, self._lost = self._lost, []
        return waiting

    def _settle(self, jobs: Mapping[str, Job]) -> None:
        """Fail what went down with a block, with the reason; not before it is known, but not much later."""
        waiting = self._take_lost()
        try:
            self._settle_first(waiting, jobs)
        finally:  # those that are left are none's, should one have raised
            with self._lost_lock:
                self._lost += waiting

    def _settle_first(
        self, waiting: list[tuple[Future[Any], ManagerLost, str, float]], jobs: Mapping[str, Job]
    ) -> None:
        for _ in range(len(waiting)):
            future, error, block_id, since = waiting[0]
            job_id = self.blocks_to_job_id.get(block_id)
            job = jobs.get(job_id) if job_id else None
            if job is not None and job.over:
                err, out = self.provider.logs(job.job_id)
                message = f"{self._end_of(job)} while the run was {'with them' if self._inside else 'in it'}."
                # One that was ended because its workers had gone: that it was ended says nothing of why.
                given_back = block_id in self._given_back and job.state == "cancelled"
                name = "ManagerLost" if given_back else name_of_end(job.state)
                future.set_exception(BlockLost(message, name=name, log_tail=log_tail(err, out)))
            elif job is not None and _was_past_its_end(job, time.monotonic() - since):
                message = f"Contact with the workers on {error.hostname} was lost when the walltime of job"
                future.set_exception(BlockLost(f"{message} {job.job_id} was over.", name=name_of_end("timeout")))
            elif job is None or self._closed or not self._word_may_come(block_id, time.monotonic() - since):
                state = f"; job {job.job_id} is {job.state}" if job is not None and not self._inside else ""
                future.set_exception(
                    BlockLost(f"Contact with the workers on {error.hostname} was lost{state}.", name="ManagerLost")
                )
            else:
                with self._lost_lock:
                    self._lost.append((future, error, block_id, since))
                if time.time() - self._last_poll_time > _ASK_AGAIN_S:
                    self._last_poll_time = 0.0
            del waiting[0]

    @property
    def _word_within_s(self) -> float:
        """So long runs that were lost wait for the scheduler's word on the job they were in."""
        return float(getattr(self.provider, "word_within_s", BatchBlocks.word_within_s))

    def _word_may_come(self, block_id: str, waited_s: float) -> bool:
        """Whether the scheduler may still say why a block's workers have gone.

        A block that is shown running all the time is then given back, where doing so tells whether its node is
        dead. Not before: if somebody else has ended it, that would look like our doing.
        """
        if waited_s <= self._word_within_s:
            return True
        if not getattr(self.provider, "cancelling_tells", False):
            return False
        if block_id in self._vanished and block_id not in self._given_back:
            self.tell(f"job {self.blocks_to_job_id[block_id]} has lost its workers and is given back")
            self._give_back(block_id)
        return block_id in self._given_back and waited_s <= 2 * self._word_within_s

    # --- words

    @property
    def _inside(self) -> str:
        """The job that the coordinator runs inside of; empty: blocks are jobs of their own."""
        return self.provider.allocation if isinstance(self.provider, InsideBlocks) else ""

    @property
    def _workers(self) -> str:
        return f"the workers on the nodes of job {self._inside}"

    def _end_of(self, job: Job) -> str:
        """How a block ended, in words."""
        if not self._inside:
            return _about(job)
        how = f" with exit code {job.exit_code}" if job.state == "failed" else ""
        return f"{self._workers} {'ended' if how else 'were ended'}{how}"

    # --- scaling

    def _ask_of_reported(self, up: Mapping[str, Any], jobs: Mapping[str, Job]) -> None:
        """Let the scheduler be asked at once when the workers of a job report that it has not shown running.

        Else the news that it runs would come up to `poll_s` later, after that of results.
        """
        for block_id in up.keys() & self.blocks_to_job_id.keys() - self._reported:
            self._reported.add(block_id)
            if jobs[self.blocks_to_job_id[block_id]].state in ("pending", "held"):
                self._last_poll_time = 0.0

    def _scale(self, jobs: Mapping[str, Job]) -> None:
        state = self._command("STATE")
        if state is None:
            return
        now = time.monotonic()
        live = [b for b in self.blocks_to_job_id if b not in self._ended_blocks and b not in self._given_back]
        up: dict[str, dict[str, Any]] = state["blocks"]
        self._ask_of_reported(up, jobs)
        not_yet = [b for b in live if b not in up and b not in state["seen"]]
        self._watch_missing(up, now)
        self._watch_silent(not_yet, [b for b in live if b not in up and b in state["seen"]], jobs, now)
        self._quiet_since = None if self.tasks else self._quiet_since or now
        for block_id in live:
            if block_id in up and not up[block_id]["tasks"]:
                if isinstance(self.provider, InsideBlocks):
                    self.out_of_time = bool(state["waiting"]) and not up[block_id]["usable"]
                    continue
                spent = state["waiting"] and not up[block_id]["usable"]
                idle = not state["waiting"] and up[block_id]["idle_s"] > self.block.max_idletime
                if spent or (idle and len(live) > self.block.min_blocks):
                    self._give_back(block_id)
        if self._quiet_since is not None and now - self._quiet_since > self.block.max_idletime:
            for block_id in not_yet[max(0, self.block.min_blocks - (len(live) - len(not_yet))) :]:
                self._give_back(block_id)
        wanted = self.block.min_blocks - len(live)
        wanted = min(wanted, self._room_in_queue())
        if state["waiting"]:
            open_to_them = len(not_yet) + sum(up[b]["usable"] for b in live if b in up)
            demand = math.ceil(sum(list(self._shares.values())) - 1e-9)
            wanted = max(wanted, min(demand - open_to_them, self.max_blocks - len(live), self._room_in_queue()))
        self._ask_for_blocks(wanted)

    def live_blocks(self) -> int:
        """Return how many of its jobs wait or run."""
        return len(set(self.blocks_to_job_id) - self._ended_blocks - self._given_back)

    def _room_in_queue(self) -> int:
        most = self.block.limits.max_jobs if self.block.limits else None
        if most is None or isinstance(self.provider, InsideBlocks):
            return self.max_blocks
        return most - sum(e.live_blocks() for e in self.siblings if e.block.queue == self.block.queue)

    def _watch_missing(self, up: Mapping[str, Any], now: float) -> None:
        """Say it where a launcher has left out nodes: they are paid for."""
        wanted = self.block.nodes_per_block if self.block.mode == "tasks" else 1
        for block_id in up.keys() & self.blocks_to_job_id.keys():
            since, hosts = self._up_since.setdefault(block_id, now), sorted(set(up[block_id]["hosts"]))
            warned = f"{block_id} missing"
            if len(hosts) < wanted and now - since > _SILENT_S / 2 and warned not in self._warned:
                self._warned.add(warned)
                job = self._inside or self.blocks_to_job_id[block_id]
                self.tell(
                    f"job {job} has {wanted} nodes, but there are workers on {len(hosts)} only "
                    f"({', '.join(hosts)}); what starts them is worker_launcher in [block] of the profile"
                )

    def _watch_silent(self, not_yet: list[str], gone: list[str], jobs: Mapping[str, Job], now: float) -> None:
        for block_id in not_yet:
            since = self._running_since.get(block_id)
            if since is not None and now - since > _SILENT_S and block_id not in self._warned:
                self._warned.add(block_id)
                job_id = self.blocks_to_job_id[block_id]
                silent = (
                    f"{self._workers} have not reported for {now - since:.0f} s"
                    if self._inside
                    else f"job {job_id} runs since {now - since:.0f} s, but its workers have not reported"
                )
                self.tell(f"{silent}; what was printed is in {self.provider.logs(job_id)[0]}")
        self._vanished = {b: self._vanished.get(b, now) for b in gone}
        patience_s = 2.0 * self.heartbeat_period + 5
        if getattr(self.provider, "cancelling_tells", False):  # see `_word_may_come`
            patience_s = max(patience_s, self._word_within_s + 1)
        for block_id, since in list(self._vanished.items()):
            if now - since > patience_s:  # its workers are gone, the job is not
                self.tell(
                    f"{self._workers} do not answer any more, and are started again if there is work"
                    if self._inside
                    else f"job {self.blocks_to_job_id[block_id]} has lost its workers and is given back"
                )
                self._give_back(block_id)

    def _give_back(self, block_id: str) -> None:
        if self._command(("RETIRE", block_id)):
            self._given_back.add(block_id)
            self.provider.cancel([self.blocks_to_job_id[block_id]])

    def _ask_for_blocks(self, wanted: int) -> None:
        """Submit so many blocks, as far as they are taken."""
        if self._refused_beside and self.live_blocks() == 0:  # those beside which there was no room have ended
            self._refused_beside, self._submit_after = False, 0.0
        if wanted < 1 or time.monotonic() < self._submit_after:
            return
        places = self._places()  # once for all of them: it takes several commands
        for number in range(wanted):
            if not self._ask_for_block(places, places.free is None or number < places.free):
                return

    def _ask_for_block(self, places: Places, free: bool) -> bool:
        """Submit one more block; False if none was had, for one thing where no place is `free`."""
        alone = self.live_blocks() == 0
        block_id = str(self._block_id_counter.get_id())
        try:
            if not free:
                raise self._no_place(places)
            job_id = self._launch_block(block_id)
        except Refused as refusal:
            self._refused(refusal, alone=alone)
            return False
        except (StoreFull, SiteFailed, OSError) as error:
            self._fail(error if isinstance(error, SiteFailed) else SiteFailed(str(error)))
            return False
        self._refusals = self._unclear = 0
        self._refused_since, self._refused_beside = None, False
        self.blocks_to_job_id[block_id] = job_id
        self.job_ids_to_block[job_id] = block_id
        self._status[block_id] = JobStatus(JobState.PENDING)
        nodes = f"{self.block.nodes_per_block} node{'s' if self.block.nodes_per_block > 1 else ''}"
        if self.unused_nodes:
            whole = self.block.nodes_per_block + self.unused_nodes
            nodes = f'first of the {whole} nodes (worker_launcher = "single")'
        self.tell(
            f"workers start on the {nodes} of job {self._inside}"
            if self._inside
            else f"job {job_id} submitted: {nodes}, walltime {self.block.walltime}"
        )
        return True

    def _places(self) -> Places:
        """What the scheduler's limits leave for further jobs, as far as it tells."""
        if self._inside:
            return Places()
        try:
            scheduler: Scheduler = self.provider.scheduler
            return scheduler.places(self.block.queue, project=project_of(self.block))
        except SchedulerDown:
            return Places()  # the submission tells

    def _no_place(self, places: Places) -> Refused:
        """As if one more job had been submitted and refused."""
        return Refused(
            f"No job can be added to the queue {self.block.queue or 'by default'}: its limits are reached "
            f"({'; '.join(places.words)}).",
            transient=True,
            unheard=False,
        )

    def _refused(self, refusal: Refused, *, alone: bool) -> None:
        """Try again later, where the scheduler's words say that it passes: for as long as the site is open."""
        now = time.monotonic()
        if not alone:  # the blocks there are work on; there may be room for another later
            self._submit_after, self._refused_beside = now + _NO_ROOM_S, True
            self.tell(f"no further job: {refusal}")
            return
        if not refusal.transient or refusal.details.get("unclear"):
            self._refused_for_good(refusal)
            return
        self._refusals += 1
        if self._refused_since is None:
            self._refused_since, self._told_refused_at = now, now + _TOLD_AFTER_S
        pause = pause_s(self._refusals)
        self._submit_after = now + pause
        if now >= self._told_refused_at:
            waited = now - self._refused_since
            self._told_refused_at = now + min(waited, _TOLD_AT_LEAST_S)
            self.tell(f"no job is taken since {waited:.0f} s: {refusal} It is tried again every {pause:g} s.")

    def _refused_for_good(self, refusal: Refused) -> None:
        """Give up, after some tries where the words do not say whether it passes."""
        self._unclear += 1
        if not refusal.transient or self._unclear > self.submit_retries:
            tries = f" ({self._unclear} tries)" if self._unclear > 1 else ""
            self._fail(SiteFailed(f"{refusal}{tries}"))
            return
        pause = min(60.0, 2.0 ** (self._unclear - 1))
        self._submit_after = time.monotonic() + pause
        self.tell(f"{refusal} Trying again in {pause:g} s ({self._unclear} of {self.submit_retries}).")

    @property
    def refused_s(self) -> float | None:
        """For how long, in seconds, no job has been taken although none is alive; None if it is not so."""
        return None if self._refused_since is None else time.monotonic() - self._refused_since

    @property
    def up(self) -> bool:
        """Whether a job has run its workers, or they are in one."""
        return bool(self._running_since) or bool(self._inside)

    # --- the end

    def end_blocks(self) -> None:
        """Cancel every job and see it gone.

        Raises:
            Unverified: Some were not seen gone; the ledger keeps them for `hpcagent reap`.
        """
        for future, error, _, _ in self._take_lost():
            future.set_exception(BlockLost(f"Contact with the workers on {error.hostname} was lost."))
        up = self._inside and self._begun and self.interchange_proc.poll() is None
        # The workers themselves are told: not every launcher hands a signal on to other nodes.
        if up and self._command("END"):
            self.provider.wait(_END_S)
        self.provider.end_all()


def project_of(block: Block) -> str | None:
    """The project that a profile's own directives give its jobs (PBS); None: the default."""
    found = [re.search(r"(?:^|\s)-P\s*(\S+)", words) for words in block.directives]
    return next((word[1] for word in found if word), None)


def _was_past_its_end(job: Job, lost_s: float) -> bool:
    """Whether workers went, `lost_s` ago, as the walltime of their job was over, though it is shown running.

    Example:
        >>> _was_past_its_end(Job("7", "running", ends_at=time.time() - 9.0), lost_s=2.0)
        True
        >>> _was_past_its_end(Job("7", "ending", ends_at=time.time() - 9.0), lost_s=2.0)
        False
    """
    now = time.time()
    # One that is suspended has time left; of one that is ending Slurm tells when it was ended, by whomever.
    if job.ends_at is None or job.state != "running":
        return False
    return job.ends_at < now and now - lost_s > job.ends_at - CLOCKS_S


def _why(job: Job) -> Literal["never", "unusual", "ordinary"]:
    """What kind of reason a job waits for.

    Example:
        >>> _why(Job("7", "pending", reason="Priority")), _why(Job("7", "pending", reason="BadConstraints"))
        ('ordinary', 'never')
    """
    if _NEVER.search(job.reason):
        return "never"
    return "ordinary" if job.state == "pending" and _ORDINARY.match(job.reason) else "unusual"


def _about_waiting(job: Job, kind: str, seconds: float) -> str:
    reason = f" ({job.reason})" if job.reason else ""
    if kind == "never":
        return f"job {job.job_id} can never run, says the scheduler{reason}"
    return f"job {job.job_id} {'is held' if job.state == 'held' else 'waits'} since {seconds:.0f} s{reason}"


def _about(job: Job) -> str:
    """A job's end in words.

    Example:
        >>> _about(Job("12", "timeout", reason="TimeLimit"))
        'job 12 ended: timeout (TimeLimit)'
    """
    words = [w for w in (job.reason, "" if job.exit_code is None else f"exit code {job.exit_code}") if w]
    what = job.state.replace("_", " ")
    return f"job {job.job_id} ended: {what}" + (f" ({', '.join(words)})" if words else "")


def batch_executor(
    profile: Profile,
    label: str,
    *,
    scheduler: Scheduler,
    ledger: Ledger,
    account: str | None,
    workers: int | None = None,
    max_blocks: int | None = None,
    inside: Allocation | None = None,
) -> BatchExecutor:
    """Make the executor of a site with a batch system.

    Args:
        profile: The site's.
        label: Of the executor in the profile.
        scheduler: Answers how jobs stand.
        ledger: Where every job is written down.
        account: Who is charged.
        workers: Runs at once on a node (mode tasks) or in a block (mpi), in place of what the profile says.
        max_blocks: Blocks at a time, in place of what the profile says.
        inside: The allocation whose nodes are to be used; None: jobs are submitted.
    """
    settings = profile.executors[label]
    block = _fitted(profile, block_of(profile, label), inside)
    cores = _cores_of(block, scheduler, inside)
    shapes = _shapes(block, inside)
    if inside is not None:
        provider = _inside_provider(profile, block, inside)
    else:
        if block.cpus_per_node is None:  # PBS has to be told
            block = dataclasses.replace(block, cpus_per_node=cores)
        provider = _provider(profile, block, account, settings.worker_init, settings.cores_per_worker)
        provider.prepare(
            scheduler,
            ledger,
            poll_s=profile.poll_s,
            site=profile.name,
            executor=label,
            nodes=block.nodes_per_block,
            walltime_s=block.walltime_s,
        )
    counts = _workers_on(block, settings, shapes, cores, workers)
    count = max(counts)
    addresses = addresses_of(profile)
    executor = BatchExecutor(
        label=label,
        provider=provider,
        address=addresses[0] if len(addresses) == 1 else "0.0.0.0",  # Parsl's default asks the world for it
        max_workers_per_node=count,
        cores_per_worker=1e-6,
        prefetch_capacity=settings.prefetch_capacity,
        heartbeat_period=max(1, int(profile.heartbeat_s / 15)),
        heartbeat_threshold=max(2, int(profile.heartbeat_s)),
        poll_period=100,
        encrypted=settings.encrypted,
        manager_selector=RandomManagerSelector(),
    )
    executor.block = block
    executor.addresses = addresses
    executor.max_blocks = 1 if inside is not None else (max_blocks or block.max_blocks)
    executor.submit_retries = profile.submit_retries
    executor.slots = sum(counts)
    executor.shapes = shapes
    executor.unused_nodes = 0 if inside is None else len(inside.nodes) - block.nodes_per_block
    executor.hosts_cores = cores
    executor.hosts_gpus = block.node.gpus if block.node else 0
    executor.python = settings.python
    executor.mark = uuid.uuid4().hex
    if isinstance(provider, InsideBlocks):
        provider.mark = executor.mark
    executor.pool_arguments = [
        f"--preload={','.join(settings.preload)}",
        f"--max_workers_per_node={count}",
        *_differing(shapes, counts),
        *_pinning(block, settings.cores_per_worker, alike=len({node.cores for node in shapes}) < 2),
        *_places(profile, block),
        *_time(profile, block, inside),
    ]
    return executor


def _fitted(profile: Profile, block: Block, inside: Allocation | None) -> Block:
    """Inside an allocation a block is what there is, and its workers are started as on so many nodes."""
    if inside is None:
        return block
    launcher = worker_launcher_of(profile, block.label, len(inside.nodes))
    first_only = launcher == "single" and block.mode == "tasks"
    left = math.inf if inside.ends_at is None else max(60.0, inside.ends_at - time.time())
    return dataclasses.replace(
        block,
        nodes_per_block=1 if first_only else len(inside.nodes),
        worker_launcher=launcher,
        min_blocks=0,
        max_blocks=1,
        walltime_s=int(min(left, 10 * 365 * 86400)),
        max_idletime=math.inf,
    )


def _shapes(block: Block, inside: Allocation | None) -> tuple[NodeShape, ...]:
    """The nodes of an allocation with the cores that runs may use there; none outside of one."""
    if inside is None:
        return ()
    most = block.usable_cores
    return tuple(
        dataclasses.replace(node, cores=min(node.cores, most or node.cores))
        for node in inside.nodes[: block.nodes_per_block]
    )


def _workers_on(
    block: Block, settings: ExecutorProfile, shapes: Sequence[NodeShape], cores: int, asked: int | None
) -> list[int]:
    """Runs at once on each node of a block (mode tasks), or in all of it (mpi).

    Raises:
        BadInput: A node of the allocation has fewer cores than one worker takes.
    """
    each = settings.cores_per_worker
    if block.mode == "mpi":
        whole = sum(node.cores for node in shapes) if shapes else block.nodes_per_block * cores
        return [asked or block.max_workers_per_node or min(_MOST_MPI_RUNS, whole)]
    told = asked or (
        block.max_workers_per_node if not shapes or block.accelerators else settings.max_workers_per_node
    )
    if told:
        return [told] * block.nodes_per_block
    small = next((node for node in shapes if node.cores < each), None)
    if small is not None:
        raise BadInput(
            f"inside: a worker of the executor {block.label} takes {each} cores (cores_per_worker), but the node "
            f"{small.host} of this job has {small.cores} for it. Ask for more cores on each node, or change the "
            "profile.",
            value=each,
        )
    return [max(1, node.cores // each) for node in shapes] or [max(1, cores // each)] * block.nodes_per_block


def _differing(shapes: Sequence[NodeShape], counts: Sequence[int]) -> list[str]:
    """What tells each manager how many workers its node gets, where that is not the same for all."""
    if len(set(counts)) < 2:
        return []
    by_host = {node.host.partition(".")[0]: count for node, count in zip(shapes, counts, strict=True)}
    return [f"--workers_of={json.dumps(by_host)}"]


def _cores_of(block: Block, scheduler: Scheduler, inside: Allocation | None) -> int:
    """Cores of a node: as the profile says, as the allocation is, or as the scheduler tells."""
    if inside is not None:
        fewest = min(node.cores for node in inside.nodes)
        return min(fewest, block.usable_cores or fewest)
    if block.usable_cores is not None:
        return block.usable_cores
    try:
        queues = {queue.name: queue for queue in scheduler.queues()}
    except SchedulerDown:
        return 1
    chosen = queues.get(block.queue or "") or next((q for q in queues.values() if q.default), None)
    return (chosen.cores if chosen else None) or 1


def _pinning(block: Block, cores_per_worker: int, *, alike: bool = True) -> list[str]:
    arguments = [f"--threads={cores_per_worker}"]
    if block.usable_cores:
        arguments.append(f"--node_cores={block.usable_cores}")
    if block.mode == "tasks":
        if block.cpu_affinity.startswith("list:"):
            arguments.append(f"--cores={block.cpu_affinity}")
        elif block.cpu_affinity == "block" and alike:  # a launcher hands on what the first node says of its cores
            arguments.append("--cores=auto")
        if block.accelerators:
            arguments += ["--available-accelerators", *block.accelerators]
    return arguments


def _places(profile: Profile, block: Block) -> list[str]:
    if block.mode != "mpi":
        return []
    gpus = block.node.accelerator_ids if block.node else ()
    return [f"--hosts={profile.kind}", f"--gpus={','.join(gpus)}"]


def _time(profile: Profile, block: Block, inside: Allocation | None) -> list[str]:
    if inside is not None:
        return [] if inside.ends_at is None else [f"--ends_at={inside.ends_at - profile.margin_s}"]
    return [f"--lasts_s={block.walltime_s - profile.margin_s}"]


def addresses_of(profile: Profile) -> list[str]:
    """Where workers reach the coordinator: as the profile says, or any of this machine's networks."""
    if profile.address:
        return [profile.address]
    found = []
    for interface in profile.interface:
        try:
            found.append(address_by_interface(interface))
        except OSError:
            continue  # profiles name what either kind of node may have
    if found:
        return found
    for name, entries in psutil.net_if_addrs().items():
        if name != "lo":
            found += [e.address for e in entries if e.family.name == "AF_INET"]
    return found or ["127.0.0.1"]


def _launcher(profile: Profile, block: Block) -> Any:  # Parsl's Launcher
    kind = "single" if block.mode == "mpi" else block.worker_launcher
    return worker_launcher(kind, profile.scheduler, bind_cmd=block.bind_cmd, overrides=block.overrides)


def _worker_init(profile: Profile, block: Block, worker_init: str, cores_per_worker: int) -> str:
    """Shell lines before the workers: when the job began, threads, the site's environment, the user's lines."""
    threads = "1" if block.mode == "mpi" else str(cores_per_worker)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    lines = ["export HPCAGENT_JOB_STARTED=$(date +%s)"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in {**limits, **profile.env}.items()]
    return "\n".join([*lines, worker_init])


def _provider(profile: Profile, block: Block, account: str | None, worker_init: str, cores_per_worker: int) -> Any:
    common: dict[str, Any] = {
        "account": account,
        "nodes_per_block": block.nodes_per_block,
        "init_blocks": 0,
        "min_blocks": 0,
        "max_blocks": block.max_blocks,
        "walltime": block.walltime,
        "worker_init": _worker_init(profile, block, worker_init, cores_per_worker),
        "launcher": _launcher(profile, block),
        "cmd_timeout": int(profile.cmd_timeout_s),
    }
    if profile.kind == "slurm":
        from hpcagent.sites.workers.slurm_blocks import SlurmBlocks

        return SlurmBlocks(
            partition=block.queue,
            qos=block.qos,
            constraint=block.constraint,
            cores_per_node=None if block.exclusive else block.cpus_per_node,
            mem_per_node=math.ceil(block.mem_per_node_gb) if block.mem_per_node_gb else None,
            exclusive=block.exclusive,
            # A job that is queued again by itself would come back without anyone to work for.
            scheduler_options="\n".join(f"#SBATCH {words}" for words in ("--no-requeue", *block.directives)),
            **common,
        )
    if profile.kind != "pbs":
        from hpcagent.sites.workers.own_blocks import OwnBlocks

        made = OwnBlocks(**common)
        made.asks(profile.scheduler(timeout_s=profile.cmd_timeout_s), block)
        return made
    from hpcagent.sites.workers.pbs_blocks import PbsBlocks

    return PbsBlocks(
        queue=block.queue,
        select_options=block.select_options,
        cpus_per_node=block.cpus_per_node or 1,
        scheduler_options="\n".join(f"#PBS {words}" for words in ("-r n", *block.directives)),
        **common,
    )


def _inside_provider(profile: Profile, block: Block, inside: Allocation) -> InsideBlocks:
    settings = profile.executors[block.label]
    launcher = _launcher(profile, block)
    if not isinstance(launcher, NodeWorkers) and profile.kind == "slurm" and not _on_a_node_of(inside):
        launcher = SrunWorkers()  # salloc leaves its shell on the login node
        launcher.hosts = [inside.nodes[0].host]
    elif isinstance(launcher, NodeWorkers) and not isinstance(launcher, SrunWorkers):
        launcher.hosts = [node.host for node in inside.nodes]
    provider = InsideBlocks(
        init_blocks=0,
        max_blocks=1,
        nodes_per_block=block.nodes_per_block,
        worker_init=_worker_init(profile, block, settings.worker_init, settings.cores_per_worker),
        launcher=launcher,
    )
    provider.allocation = inside.job_id
    return provider


def _on_a_node_of(inside: Allocation) -> bool:
    return node_name().partition(".")[0] in {node.host.partition(".")[0] for node in inside.nodes}


def job_script(
    profile: Profile, label: str, *, account: str | None = None, run_dir: str | Path = "RUN_DIR"
) -> str:
    """Return the job script of a block, as it would be submitted; nothing is submitted or written.

    The scheduler is asked for the cores of a node if the profile does not say them. What is settled when the site
    is opened stands in capitals: PORT and MARK.
    """
    from hpcagent.sites.schedulers.registry import scheduler

    executor = batch_executor(
        profile,
        label,
        scheduler=scheduler(profile.kind, timeout_s=profile.cmd_timeout_s),
        ledger=Ledger(Path(run_dir, "jobs.jsonl")),
        account=account_of(profile, account),
    )
    logs = f"{run_dir}/parsl/000/{label}"
    executor.provider.script_dir = f"{run_dir}/parsl/000/submit_scripts"
    certificates = f"{logs}/KEYS" if executor.encrypted else "None"
    command = executor.worker_command("0", port="PORT", mark="MARK", cert_dir=certificates, logdir=logs)
    script: str = executor.provider.script(command, f"parsl.{label}.block-0")
    return script


def coordinator_script(
    profile: Profile,
    label: str,
    command: str,
    *,
    name: str,
    folder: str | Path,
    nodes: int = 1,
    whole: bool = True,
    account: str | None = None,
) -> str:
    """Return the script of a job in which the coordinator itself runs, such as blocks of an executor are.

    Args:
        profile: Of the site.
        label: The executor whose queue, walltime, directives and worker_init are used.
        command: Shell words that start the coordinator, on the job's first node.
        name: Of the job.
        folder: Where the job's own output goes.
        nodes: Of the job.
        whole: Whether the nodes are wanted for runs, too. A coordinator alone asks for a small part of one,
            which on a queue of shared nodes is all that is charged.
        account: Who is charged.
    """
    settings = profile.executors[label]
    block = dataclasses.replace(block_of(profile, label), nodes_per_block=nodes, worker_launcher="single")
    if whole and profile.scheduler.wants_cores and block.cpus_per_node is None:  # as for blocks
        from hpcagent.sites.schedulers.registry import scheduler

        asked = scheduler(profile.kind, timeout_s=profile.cmd_timeout_s)
        block = dataclasses.replace(block, cpus_per_node=_cores_of(block, asked, None))
    if not whole:
        cpus, memory = block.cpus_per_node, block.mem_per_node_gb
        block = dataclasses.replace(
            block,
            exclusive=False,
            cpus_per_node=min(COORDINATOR_CPUS, cpus or COORDINATOR_CPUS),
            mem_per_node_gb=min(_COORDINATOR_GB, memory) if memory else None,
        )
    provider = _provider(
        profile, block, account_of(profile, account), settings.worker_init, settings.cores_per_worker
    )
    provider.script_dir = str(folder)
    script: str = provider.script(command, name)
    return script
