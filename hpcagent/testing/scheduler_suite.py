"""What every scheduler must keep, as a test class to inherit; it submits a dozen real jobs of seconds.

    from hpcagent.testing import SchedulerContract

    class TestMine(SchedulerContract):
        kind = "mine"

Run it on a login node, or against a stand-in that speaks the formats of the real commands.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hpcagent.model.base import build
from hpcagent.sites.block import Block, block_of
from hpcagent.sites.profile import Profile
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.registry import scheduler, scheduler_class
from hpcagent.sites.schedulers.submission import Refused
from hpcagent.sites.tables import walltime_s

__all__ = ["SchedulerContract"]


class SchedulerContract:
    """Inherit, set `kind`, and pytest runs the contract.

    Attributes:
        kind: The scheduler's name, hpcagent's own or an entry point's.
        block: Keys of `[block]` that its jobs need, e.g. a queue.
        within_s: So long a job may take to start, and to be seen ended.
        unknown_id: An id that no job has.
    """

    kind: ClassVar[str]
    block: ClassVar[dict[str, Any]] = {}
    within_s: ClassVar[float] = 60.0
    unknown_id: ClassVar[str] = "999999999"

    @pytest.fixture
    def there(self) -> Iterator[Scheduler]:
        """The scheduler. Jobs of the test that are left are ended."""
        self._ids: list[str] = []
        made = scheduler(self.kind)
        yield made
        made.cancel(self._ids)

    def script(self, lines: str, name: str, folder: Path) -> Path:
        """Write a job script; a scheduler without `directives` overrides this."""
        path = folder / f"{name}.sh"
        given = {"walltime": "00:02:00", "cores_per_node": 1, **self.block}
        block: Block = block_of(
            build(Profile, {"name": "x", "kind": self.kind, "block": given}, where="block"), "workers"
        )
        files = {"out": f"{folder}/{name}.out", "err": f"{folder}/{name}.err"}
        head = scheduler(self.kind).directives(block, name=name, account=None, **files)
        path.write_text("\n".join(["#!/bin/bash", *head, "", lines, ""]))
        return path

    def start(self, there: Scheduler, lines: str, folder: Path, *, after: str | None = None) -> tuple[str, str]:
        """Submit a script; returns the job's id and name."""
        name = f"hpcagent-test-{uuid.uuid4().hex[:8]}"
        job_id = there.submit(self.script(lines, name, folder), after=after)
        self._ids.append(job_id)
        return job_id, name

    def until(self, there: Scheduler, job_id: str, holds: Callable[[Job], bool]) -> Job:
        """Ask until a job is as wanted."""
        last, end = None, time.monotonic() + self.within_s
        while time.monotonic() < end:
            last = there.jobs([job_id]).get(job_id)
            if last is not None and holds(last):
                return last
            time.sleep(0.1)
        raise AssertionError(f"job {job_id} is {last} after {self.within_s:g} s")

    def test_says_what_it_is(self, there: Scheduler) -> None:
        its = scheduler_class(self.kind)
        assert its.name == self.kind and its.title and its.commands and its.ends_by and its.begins_by
        assert there.version().strip() and "\n" not in there.version()
        known, words = there.keeps_finished_jobs()
        assert isinstance(known, bool) and words

    def test_a_job_runs_and_ends(self, there: Scheduler, tmp_path: Path) -> None:
        before = time.time()
        seen = tmp_path / "seen"
        job_id, name = self.start(there, f"until [ -e {seen} ]; do sleep 0.2; done", tmp_path)
        running = self.until(there, job_id, lambda job: job.state == "running")
        assert running.job_id == job_id and there.is_named(running, name) and not running.over
        assert running.hosts
        assert running.started_at is None or before - 600 < running.started_at < time.time() + 600
        assert running.ends_at is None or running.ends_at > before
        assert [job.job_id for job in there.named(name)] == [job_id]
        seen.touch()
        if there.keeps_finished_jobs()[0]:
            ended = self.until(there, job_id, lambda job: job.over)
            assert (ended.state, ended.exit_code) == ("completed", 0)
            assert there.named(name) == []

    def test_the_exit_code_of_a_script_is_told(self, there: Scheduler, tmp_path: Path) -> None:
        job_id, _ = self.start(there, "exit 3", tmp_path)
        if not there.keeps_finished_jobs()[0]:
            pytest.skip("it forgets finished jobs")
        ended = self.until(there, job_id, lambda job: job.over)
        assert (ended.state, ended.exit_code) == ("failed", 3)

    def test_a_job_is_cancelled_and_seen_gone(self, there: Scheduler, tmp_path: Path) -> None:
        job_id, _ = self.start(there, "sleep 100", tmp_path)
        self.until(there, job_id, lambda job: job.state == "running")
        ended = there.cancel_and_see([job_id], within_s=self.within_s)
        assert ended[job_id].state == "cancelled"

    def test_what_has_ended_or_never_was_is_cancelled_without_error(
        self, there: Scheduler, tmp_path: Path
    ) -> None:
        job_id, _ = self.start(there, "true", tmp_path)
        end = time.monotonic() + self.within_s
        while (job := there.jobs([job_id]).get(job_id)) is not None and not job.over:
            assert time.monotonic() < end
            time.sleep(0.1)
        there.cancel([job_id, self.unknown_id])

    def test_an_unknown_job_is_missing_beside_one_that_is_known(self, there: Scheduler, tmp_path: Path) -> None:
        assert there.jobs([]) == {}
        job_id, _ = self.start(there, "sleep 100", tmp_path)
        self.until(there, job_id, lambda job: not job.over)
        assert list(there.jobs([self.unknown_id, job_id])) == [job_id]

    def test_a_job_waits_for_another(self, there: Scheduler, tmp_path: Path) -> None:
        first, _ = self.start(there, "sleep 100", tmp_path)
        second, _ = self.start(there, "true", tmp_path, after=first)
        self.until(there, first, lambda job: job.state == "running")
        assert there.jobs([second])[second].state in ("pending", "held")
        there.cancel([first])
        self.until(there, second, lambda job: job.state != "pending")

    def test_a_script_it_cannot_take_is_refused_in_its_own_words(self, there: Scheduler, tmp_path: Path) -> None:
        script = self.script("true", "refused", tmp_path)
        head, rest = script.read_text().split("\n", 1)
        first = next(line for line in rest.splitlines() if line.startswith("#"))
        sentinel = first[: first.index("-")]
        script.write_text(f"{head}\n{sentinel}--no-such-option-at-all=1\n{rest}")
        with pytest.raises(Refused) as refused:
            self._ids.append(there.submit(script))
        details = refused.value.details
        assert refused.value.message and (not details["transient"] or details["unclear"])  # not waited out

    def test_without_its_commands_nothing_is_claimed(
        self, there: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(tmp_path))
            lone = scheduler(self.kind)
            for ask in (
                lambda: lone.jobs(["1"]),
                lambda: lone.named("x"),
                lambda: lone.cancel(["1"]),
                lone.queues,
            ):
                with pytest.raises(SchedulerDown):
                    ask()

    def test_a_job_knows_its_allocation(self, there: Scheduler, tmp_path: Path) -> None:
        seen = tmp_path / "environment"
        job_id, _ = self.start(there, f"env -0 > {seen}.new && mv {seen}.new {seen}; sleep 100", tmp_path)
        self.until(there, job_id, lambda job: job.state == "running")
        end = time.monotonic() + self.within_s
        while not seen.exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        inside = dict(line.split("=", 1) for line in seen.read_text(errors="replace").split("\0") if "=" in line)
        outside = dict(os.environ)
        try:
            os.environ.clear()
            os.environ.update(inside)
            found = scheduler(self.kind).allocation(os.environ)
        finally:
            os.environ.clear()
            os.environ.update(outside)
        assert found is not None and found.job_id == job_id
        assert scheduler(self.kind).inside(inside) == job_id
        assert there.inside({"PATH": os.environ["PATH"]}) == ""
        assert found.nodes and all(node.cores >= 1 for node in found.nodes)
        assert found.ends_at is None or 0 < found.ends_at - time.time() < walltime_s("01:00:00")
        assert there.allocation({"PATH": os.environ["PATH"]}) is None

    def test_queues_are_described(self, there: Scheduler) -> None:
        queues = there.queues()
        assert len({queue.name for queue in queues}) == len(queues)
        assert all(queue.name for queue in queues) and sum(queue.default for queue in queues) <= 1
        for queue in queues:
            assert queue.max_walltime_s is None or queue.max_walltime_s > 0
            assert queue.cores is None or queue.cores >= 1
