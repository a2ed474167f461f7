"""End the tasks that a campaign left on an endpoint: those, and only those, that its jobs.jsonl names."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.sites.endpoint import linking
from hpcagent.sites.endpoint.cancelling import Cancelling
from hpcagent.sites.endpoint.tasks import Book, Task, may_run, read_tasks
from hpcagent.sites.endpoint_settings import destination
from hpcagent.sites.ledger import ELSEWHERE
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile

if TYPE_CHECKING:
    from hpcagent.sites.endpoint.link import AnyLink

__all__ = ["LEAST", "end_tasks", "errand_resources"]

LEAST = {"num_nodes": 1, "ranks_per_node": 1, "num_ranks": 1}
"""What a question has to ask for on an MPI engine, which wants nodes and ranks of every task."""

Done = Literal["cancelled", "ended", "left", "elsewhere"]
Ended = tuple[Task, Done, str]
"""A task, what was done, and why it is left."""


def errand_resources(profile: Profile, label: str) -> dict[str, Any] | None:
    """What an errand of an executor has to ask for: only where it goes to the MPI engine of its runs."""
    same = destination(profile, label) == destination(profile, label, control=True)
    return dict(LEAST) if same and profile.executors[label].mode == "mpi" else None


def end_tasks(
    ledger: Path,
    *,
    within_s: float = 60.0,
    link: Callable[..., AnyLink] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> list[Ended]:
    """Cancel the tasks of a jobs.jsonl that have no end, and see them ended. Never raises for what a service says.

    Args:
        ledger: The jobs.jsonl; the site's profile lies beside it.
        within_s: How long to wait until they have ended.
        link: Makes the link of an executor.
        pause: Waits between two questions.

    Raises:
        StoreFull: The ends cannot be written.
    """
    done: list[Ended] = []
    deadline = time.monotonic() + within_s
    written = read_tasks(ledger, copies=False)
    wanted = {task.key for task in may_run(written)}
    for book, tasks in _by_place(ledger, [t for t in read_tasks(ledger).values() if t.key in wanted]):
        for task in tasks:
            if task.ended == ELSEWHERE:
                book.ended(task.key, "elsewhere")
                done.append((task, "elsewhere", f"a task of {task.folder}, of which {ledger.parent} is a copy"))
        book.flush()
        ours = [task for task in tasks if task.ended != ELSEWHERE]
        if ours:
            done += _end(ours, book, ledger, max(1.0, deadline - time.monotonic()), link, pause)
    return done


def _by_place(ledger: Path, tasks: Sequence[Task]) -> list[tuple[Book, list[Task]]]:
    places: dict[tuple[str, str, str, str], list[Task]] = {}
    for task in tasks:
        places.setdefault((task.site, task.executor, task.endpoint_id, task.root), []).append(task)
    return [
        (Book(ledger, site=site, executor=executor, endpoint_id=endpoint_id, root=root), found)
        for (site, executor, endpoint_id, root), found in places.items()
    ]


def _end(
    tasks: Sequence[Task],
    book: Book,
    ledger: Path,
    within_s: float,
    link: Callable[..., AnyLink] | None,
    pause: Callable[[float], None],
) -> list[Ended]:
    first = tasks[0]
    try:
        profile = _profile_of(first, ledger)
        way = (link or linking.link_to)(profile, first.executor, on_sent=_unheard, tell=lambda words: None)
    except HpcAgentError as error:
        return [(task, "left", str(error)) for task in tasks]
    try:
        status = way.status()
        if status.known and not status.online:
            return [(task, "left", f"the endpoint {first.endpoint_id} is offline") for task in tasks]
        ending = Cancelling(
            way, book, first.root, resources=errand_resources(profile, first.executor), pause=pause
        )
        left = set(ending.end([task.key for task in tasks], within_s=within_s))
    except HpcAgentError as error:
        return [(task, "left", str(error)) for task in tasks]
    finally:
        way.close()
    return [(t, "left", ending.words) if t.key in left else (t, ending.ends[t.key], "") for t in tasks]


def _unheard(key: str, task_group_id: str, task_id: str) -> None:
    """An errand stands in no ledger."""


def _profile_of(task: Task, ledger: Path) -> Profile:
    """The profile that a task was sent with: beside the ledger, or by its name.

    Raises:
        BadInput: Neither is of this endpoint.
    """
    places: list[Path | str] = [*sorted(ledger.parent.glob("site*.toml")), task.site]
    for where in places:
        try:
            found = find_profile(where)
        except HpcAgentError:
            continue
        if found.remote and found.endpoint_id == task.endpoint_id and task.executor in found.executors:
            return found
    raise BadInput(
        f"no site profile of the endpoint {task.endpoint_id} with an executor {task.executor} was found, neither "
        f"in {ledger.parent} nor by the name {task.site!r}: put the profile that the campaign used where "
        "`hpcagent sites` finds it."
    )
