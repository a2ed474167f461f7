"""What goes through a link: a request on its way, what is known of an endpoint, and what a link can do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["AnyLink", "EndpointStatus", "OnSent", "Sent"]

OnSent = Callable[[str, str, str], None]
"""Is told the key, the task group id and the task id of a request that the service took; before its answer."""


@dataclass(eq=False)
class Sent:
    """A request on its way.

    Attributes:
        key: Of the request; empty for a task of an earlier process whose key nobody wrote down.
        future: Of the answer, a dict as the endpoint gave it: the caller looks at it as at a stranger's. It raises
            `AppFailed` if this request failed (kind, name, message and log_tail say how), `SiteFailed` if
            the link did. It cannot be cancelled: cancelling is a request of its own.
        task_group_id: The service's; empty until it has taken the request.
        task_id: Likewise. Another one if the request had to be sent again.
    """

    key: str
    future: Future[dict[str, Any]] = field(default_factory=Future)
    task_group_id: str = ""
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """What is known of an endpoint.

    Attributes:
        online: Whether the service says that it is. False also where the service does not answer.
        words: A sentence for people.
        known: Whether the service has answered.
        since: Unix time in seconds since which this process has known it so.
    """

    online: bool
    words: str
    known: bool = True
    since: float = 0.0


class AnyLink(Protocol):
    """What the executor of an endpoint needs of its link."""

    def submit(
        self, request: Mapping[str, Any], *, resources: Mapping[str, Any] | None = None, control: bool = False
    ) -> Sent:
        """Send a request. Returns at once.

        Args:
            request: JSON, with a `key` of its own.
            resources: Resource specification of the task: nodes and ranks, for an endpoint with the MPI engine.
            control: An errand: it goes where the profile's `[control]` says.

        Returns:
            At once, what is to be waited for. One that is too large to be sent has failed already
            (`RequestTooLarge`: its size, the limit, and what to do).

        Raises:
            SiteFailed: The link has failed, or was closed.
        """
        ...

    def reattach(
        self,
        task_group_ids: Iterable[str],
        *,
        keys: Mapping[str, str] | None = None,
        skip: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> Iterator[Sent]:
        """Wait for the answers of tasks that an earlier process sent.

        Args:
            task_group_ids: Their groups.
            keys: task id -> key, where it was written down.
            skip: Task ids whose answers nobody waits for.
            only: Task ids of all others that somebody waits for; None: any may be.
        """
        ...

    def status(self) -> EndpointStatus:
        """Whether the endpoint is online; asked at most once in a few seconds."""
        ...

    def close(self) -> None:
        """Send and hear nothing more. What was sent goes on there."""
        ...
