"""The executors of a site whose kind is globus_compute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcagent.errors import BadInput
from hpcagent.sites.endpoint import linking
from hpcagent.sites.endpoint.executor import EndpointExecutor
from hpcagent.sites.endpoint.tasks import Book, may_run, read_tasks, root_there

if TYPE_CHECKING:
    from hpcagent.sites.profile import Profile

__all__ = [
    "endpoint_executors",
]


def endpoint_executors(
    profile: Profile, *, folder: Path, workers: int | None, link: linking.LinkMaker | None = None
) -> tuple[dict[str, EndpointExecutor], dict[str, int]]:
    """Return an executor for each label of the profile, and how many runs of one core go at once on it.

    Nothing is sent before the first run, unless an earlier session in the folder has left tasks.

    Args:
        profile: Of the site.
        folder: The run directory.
        workers: In place of the profile's `runs_at_once`, for the first executor.
        link: Makes the link of an executor.

    Raises:
        StoreFull: The ledger cannot be written.
        BadInput: Globus Compute is not installed, or not logged in.
    """
    ledger = folder / "jobs.jsonl"
    endpoint_id, work_dir = str(profile.endpoint_id), str(profile.work_dir)
    if not work_dir or work_dir == "None":
        raise BadInput(f"The site {profile.name} has no work_dir: the folder on the endpoint for the runs.")
    root = root_there(ledger, site=profile.name, endpoint_id=endpoint_id, work_dir=work_dir)
    known = read_tasks(ledger)
    left = [task for task in may_run(known) if task.endpoint_id == endpoint_id and task.root == root]
    ended = frozenset(task.task_id for task in known.values() if task.ended is not None and task.task_id)
    executors: dict[str, EndpointExecutor] = {}
    counts: dict[str, int] = {}
    for index, label in enumerate(profile.executors):
        at_once = workers if workers is not None and index == 0 else profile.runs_at_once
        book = Book(ledger, site=profile.name, executor=label, endpoint_id=endpoint_id, root=root)
        made: list[EndpointExecutor] = []

        def told(words: str, made: list[EndpointExecutor] = made) -> None:
            if made:
                made[0].tell(words)

        made.append(
            EndpointExecutor(
                label,
                profile=profile,
                link=(link or linking.link_to)(profile, label, on_sent=book.sent, tell=told),
                book=book,
                root=root,
                at_once=at_once,
                left=[t for t in left if t.executor == label and t.ended is None and not t.cancelling],
                lost=[t for t in left if t.executor == label and t.ended is not None and not t.cancelling],
                ended=ended,
            )
        )
        executors[label] = made[0]
        counts[label] = at_once
    return executors, counts
