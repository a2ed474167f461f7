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

import math
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from parsl.executors.high_throughput.errors import ManagerLost
from parsl.jobs.states import JobState, JobStatus

from hpcagent.errors import BadInput, BlockLost, SiteFailed, StoreFull
from hpcagent.model.failures import name_of_end
from hpcagent.moved import moved
from hpcagent.sites.block import Block, project_of
from hpcagent.sites.launch import python_command
from hpcagent.sites.schedulers.answers import Job, NodeShape, Places
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.submission import Refused, pause_s
from hpcagent.sites.workers.blocks import BatchBlocks
from hpcagent.sites.workers.executor import Executor, log_tail
from hpcagent.sites.workers.inside_blocks import InsideBlocks
from hpcagent.sites.workers.job_words import about_end, about_waiting, was_past_its_end, why_waiting
from hpcagent.sites.workers.placement import share

__all__ = ["BatchExecutor"]

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


class BatchExecutor(Executor):
    """Parsl's HighThroughputExecutor for workers in jobs; made by `batch_of_profile.batch_executor`."""

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
            kind = why_waiting(job)
            if self._waits.get(block_id, ("", 0.0))[0] != kind:
                self._waits[block_id] = kind, now
            since = self._waits[block_id][1]
            after = {"never": 0.0, "unusual": polls_s, "ordinary": _WAITS_S}[kind]
            if now - since >= after and (block_id, kind) not in self._told_waiting:
                self._told_waiting.add((block_id, kind))
                self.tell(about_waiting(job, kind, now - since))
            if kind == "never" and now - since > polls_s:  # it was said more than once
                never.append(job)
        if never and len(never) == len(live) and not self.bad_state_is_set:
            self.provider.cancel([job.job_id for job in never])
            self._fail(
                SiteFailed(
                    f"{about_waiting(never[0], 'never', 0.0)}. It was cancelled. Ask for other nodes, cores or "
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
            elif job is not None and was_past_its_end(job, time.monotonic() - since):
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
            return about_end(job)
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


__getattr__ = moved(
    __name__,
    {
        "addresses_of": "hpcagent.sites.workers.batch_of_profile",
        "batch_executor": "hpcagent.sites.workers.batch_of_profile",
        "coordinator_script": "hpcagent.sites.workers.job_scripts",
        "job_script": "hpcagent.sites.workers.job_scripts",
    },
)
