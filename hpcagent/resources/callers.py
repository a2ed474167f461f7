"""Who asks, and whether that is permitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hpcagent.errors import BadInput, NotPermitted
from hpcagent.model.texts import line
from hpcagent.resources.record import Action, Resource

__all__ = ["Caller", "Gate"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who opens resources, and as what; both are taken as given by the program that opens them.

    Attributes:
        name: A person, an agent or a program.
        role: One of those that the resource has permissions for: `owner`, `planner`, `executor`, `reader`.
        refusal: Where a host (a workspace) decides in place of a resource's `permissions`: is given the resource
            and an action, and says why the caller may not, or "". None: the permissions decide.

    Raises:
        BadInput: One is empty or no single line.

    Example:
        >>> str(Caller("anna", "planner"))
        'anna (planner)'
    """

    name: str
    role: str
    refusal: Callable[[Resource, Action], str] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("role", self.role)):
            if not isinstance(text, str) or not text.strip() or len(text) > 200:
                raise BadInput(
                    f"the {what} of a caller is {text!r}; give a text of 1 to 200 characters.", value=text
                )
            line(text)

    def __str__(self) -> str:
        return f"{self.name} ({self.role})"


@dataclass(frozen=True, slots=True)
class Gate:
    """One caller before one resource; of a proxy with the permissions of both.

    Attributes:
        caller: Who asks.
        resources: Those whose permissions count.
    """

    caller: Caller
    resources: tuple[Resource, ...]

    def require(self, action: Action) -> None:
        """See that the caller may do this.

        Raises:
            NotPermitted: It may not.
        """
        for resource in self.resources:
            why = self._why_not(resource, action)
            if why:
                raise NotPermitted(
                    f"{self.caller} may not {action} in {resource.name}; {why}.",
                    action=action,
                    resource=resource.name,
                )

    def may(self, action: Action) -> bool:
        """Whether the caller may do this."""
        return not any(self._why_not(resource, action) for resource in self.resources)

    def _why_not(self, resource: Resource, action: Action) -> str:
        access, caller = resource.access, self.caller
        if not access.lets(action):
            return f"nobody may (access = {access.access!r})"
        if caller.refusal is not None:
            return caller.refusal(resource, action)
        if access.may(caller.role, action):
            return ""
        roles = access.roles_that_may(action)
        who = f"those who may: {', '.join(roles)}" if roles else "no role may"
        return f"{who}. Ask one of them, or open the resources in a role that you have"

    def require_run(self, run_id: str | None) -> str:
        """The run that made what is written; empty where none is given and none has to be.

        Raises:
            BadInput: The role has to name one.
        """
        if run_id is None:
            for resource in self.resources:
                if self.caller.role in resource.access.must_name_run:
                    raise BadInput(
                        f"{self.caller} writes into {resource.name} without a run_id; this role writes results of "
                        "runs, so name the run that made it.",
                        value=run_id,
                    )
            return ""
        if not isinstance(run_id, str) or not run_id or len(run_id) > 200:
            raise BadInput(f"run_id={run_id!r} must be a text of 1 to 200 characters.", value=run_id)
        return line(run_id)
