"""What an exception in place of a run's answer means."""

from __future__ import annotations

from hpcagent.errors import AppFailed, BlockLost
from hpcagent.model.failures import FailureKind, kind_of_error, known_kind

__all__ = ["failure_of"]


def failure_of(error: BaseException) -> tuple[FailureKind, str, str]:
    """Say in the terms of a `Failure` what an exception from a future means.

    Args:
        error: From `future.exception()`.

    Returns:
        (kind, name, message). Kind is `infrastructure` (worth running again as it is), `cancelled`,
        what an `AppFailed` says of itself, or `contract`: the app broke its promise to return.

    Example:
        >>> from hpcagent.errors import SiteFailed
        >>> failure_of(SiteFailed("The site was closed."))
        ('infrastructure', 'SiteFailed', 'The site was closed.')
        >>> failure_of(KeyError("skin"))[:2]
        ('contract', 'KeyError')
    """
    cause = _root(error)
    name = type(cause).__name__
    message = str(cause) or name
    if isinstance(cause, BlockLost):
        name = str(cause.details["name"])
    if isinstance(cause, AppFailed):
        return known_kind(cause.details["kind"]), str(cause.details["name"]), message
    return kind_of_error(cause) or "contract", name, message


def _root(error: BaseException) -> BaseException:
    """Return the failure of the app that failed first, where apps that waited for it failed with it."""
    while inner := getattr(error, "dependent_exceptions_tids", None):  # Parsl's DependencyError, JoinError
        error = inner[0][0]
    return error
