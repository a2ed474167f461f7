"""The gate: contract, caller, sandbox, quota, approval, in this order, before anything reaches a site."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hpcagent.contexts.admitted import secret_in
from hpcagent.gate.accounts import Accounts
from hpcagent.gate.approvals import Approval, Approvals
from hpcagent.gate.not_allowed import LONGEST_VALUE, NotAllowed
from hpcagent.gate.request import TIERS, Request
from hpcagent.gate.rules import Caller, Right, Rules
from hpcagent.redacted import redacted_data
from hpcagent.shown import HIDDEN

__all__ = ["Admission", "Gate", "refuse_secret"]


LONGEST_TEXT = 2000
"""Characters of each text of a refusal that are written down."""


def refuse_secret(field: str, text: str) -> None:
    """Refuse a text that is written down and shown to others, where it has a secret in it.

    Raises:
        NotAllowed: It has.
    """
    what = secret_in(text)
    if what:
        raise NotAllowed(
            "contract",
            f"it has {what} in it, which must not stand in any record",
            field=field,
            value=HIDDEN,
            allowed="a text without secrets",
            do="leave it out; nothing was run",
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that was let through.

    Attributes:
        request: What may run.
        approval: The approval that it uses; None where none was needed.
        tier: The sandbox that it runs in.
    """

    request: Request
    approval: Approval | None
    tier: str


class Gate:
    """Lets requests through, or refuses them; every refusal is recorded with its reason.

    Args:
        rules: What holds.
        approvals: Where approvals stand.
        accounts: What is spent and committed.
        clock: Unix time, in seconds.
        record: Is given an event for each refusal.
        tiers: Sandbox tiers that there are here, each with "" or why it is not to be had.
    """

    def __init__(
        self,
        rules: Rules,
        approvals: Approvals,
        accounts: Accounts,
        *,
        clock: Callable[[], float],
        record: Callable[[dict[str, Any]], None],
        tiers: Callable[[], Mapping[str, str]],
    ) -> None:
        self.rules, self.approvals, self.accounts = rules, approvals, accounts
        self._clock, self._record, self._tiers = clock, record, tiers
        self._local = threading.local()

    def admit(self, request: Request, caller: Caller, *, takes: bool = True) -> Admission:
        """Let a request through, or refuse it. The contract has been held against it by whoever made it.

        Args:
            request: What may run.
            caller: Who asks.
            takes: Whether it takes anything: not where another's run does the very work.

        Raises:
            NotAllowed: Which check, field and value; what is allowed; what to do.
        """
        with self.recorded(caller, request):
            self.require(caller, "run")
            refuse_secret("why", request.why)
            self._caller(request, caller)
            tier = self._sandbox(request)
            self._quota(request, caller)
            if takes:
                self._hold_to_price(request)
            why = self.rules.approval_for(request, caller)
            # Last: an approval is not asked for what would be refused anyway.
            approval = self.approvals.use(request, caller.name, why) if why else None
            return Admission(request, approval, tier)

    @contextlib.contextmanager
    def at_most(self, node_hours: float | None) -> Iterator[None]:
        """Within it, each request of this thread may take at most so many node-hours; None: no such bound."""
        before = self._at_most
        self._local.at_most = node_hours
        try:
            yield
        finally:
            self._local.at_most = before

    @property
    def _at_most(self) -> float | None:
        found: float | None = getattr(self._local, "at_most", None)
        return found

    def _hold_to_price(self, request: Request) -> None:
        """Refuse what may take more than the caller has said that it may."""
        at_most, most = self._at_most, request.charged_node_hours
        if at_most is None or (most is not None and most <= at_most * (1 + 1e-9)):
            return
        now = "nothing bounds it" if most is None else f"it would take up to {most:.4g}"
        raise NotAllowed(
            "quota",
            f"this call was to take {at_most:.4g} node-hours at most, and {now}",
            field="node_hours",
            value=most,
            allowed=f"{at_most:.4g}",
            do="estimate it again, and ask with what that says",
        )

    def refusal(self, request: Request, caller: Caller) -> NotAllowed | None:
        """What would be refused, an approval aside; nothing is recorded, and nothing used."""
        try:
            self.require(caller, "run")
            self._caller(request, caller)
            self._sandbox(request)
            self._quota(request, caller)
        except NotAllowed as error:
            return error
        return None

    def check_file(self, caller: Caller, name: str, size: int) -> None:
        """Refuse to keep a file of so many bytes that goes beyond a quota of the caller or of the workspace.

        Raises:
            NotAllowed: How much is used, what is allowed, what to do.
        """
        person = self.rules.people.get(caller.name)
        if person is not None and person.quota is not None:
            self.accounts.of(caller.name).check_file(person.quota, name, size, caller.name)
        self.accounts.whole.check_file(self.rules.quota, name, size, "the workspace")

    def recorded(self, caller: Caller, request: Request | None = None, what: str = "") -> _Recorded:
        """Has a refusal within the block written down."""
        return _Recorded(self._record, self._clock, caller, request, what)

    def require(self, caller: Caller, right: Right) -> None:
        """Refuse a caller whose role does not have a right.

        Raises:
            NotAllowed: The role and the roles that have it.
        """
        if right in self.rules.rights(caller.role).may:
            return
        roles = ["admin", "planner", "executor", "viewer", *self.rules.roles]
        having = [role for role in dict.fromkeys(roles) if right in self.rules.rights(role).may]
        raise NotAllowed(
            "caller",
            f"{caller.name} has the role {caller.role}, which may not {right.replace('_', ' ')}",
            field="role",
            value=caller.role,
            allowed=", ".join(having) or "no role",
            do="ask somebody with such a role, or have it changed in workspace.toml",
        )

    def sees(self, caller: Caller, owner: str) -> bool:
        """Whether somebody's runs are there for the caller at all."""
        return owner == caller.name or self.sees_all(caller)

    def sees_all(self, caller: Caller) -> bool:
        """Whether everybody's runs are there for the caller."""
        return "see_all" in self.rules.rights(caller.role).may

    def may_use(self, caller: Caller, what: Literal["apps", "sites", "resources"], name: str) -> bool:
        """Whether a caller's role has an app, site or resource of this name."""
        return self.rules.rights(caller.role).uses(what, name)

    def _caller(self, request: Request, caller: Caller) -> None:
        rights = self.rules.rights(caller.role)
        if not self.may_use(caller, "apps", f"own:{request.app}" if request.own else request.app):
            raise NotAllowed(
                "caller",
                f"the role {caller.role} may not run this app",
                field="app",
                value=request.app,
                allowed=", ".join(rights.apps) or "none",
                do="use another app, or have the right added in workspace.toml; code of somebody's own is "
                f"`own:{request.app}`"
                if request.own
                else "use another app, or have the right added in workspace.toml",
            )
        known = self.rules.sites
        if known and request.site not in known:
            raise NotAllowed(
                "caller",
                "this workspace does not use the site",
                field="site",
                value=request.site,
                allowed=", ".join(known),
                do="name one of them, or add it to workspace.toml",
            )
        if not known and "/" in request.site and "manage" not in rights.may:
            raise NotAllowed(
                "caller",
                "a profile by its path runs the shell lines that it has",
                field="site",
                value=request.site,
                allowed="a site by its name, or one of the table [sites]",
                do="have it added to workspace.toml",
            )
        if not self.may_use(caller, "sites", request.site):
            raise NotAllowed(
                "caller",
                f"the role {caller.role} may not use this site",
                field="site",
                value=request.site,
                allowed=", ".join(rights.sites) or "none",
                do="name another site, or have the right added in workspace.toml",
            )

    def _sandbox(self, request: Request) -> str:
        wanted = self.rules.require_sandbox if request.own else "none"
        if wanted == "none":
            return request.sandbox
        lacking = self._tiers().get(wanted, "it is not known here")
        if lacking:
            raise NotAllowed(
                "sandbox",
                f"code that the library does not bring runs in the sandbox {wanted} here, which is not to be had: "
                f"{lacking}",
                field="require_sandbox",
                value=wanted,
                allowed="no lower tier",
                do="install what is missing, or have the rule changed in workspace.toml",
            )
        if TIERS.index(request.sandbox) < TIERS.index(wanted):
            raise NotAllowed(
                "sandbox",
                f"{request.app} is code that the library does not bring, and its runs have the sandbox "
                f"{request.sandbox}",
                field="sandbox",
                value=request.sandbox,
                allowed=f"at least {wanted}",
                do=f'give it one: sandbox="{wanted}" of ha.lammps or @ha.app, or [sandbox] of its TOML with '
                f'require = "{wanted}"',
            )
        return request.sandbox

    def _quota(self, request: Request, caller: Caller) -> None:
        now = self._clock()
        person = self.rules.people.get(caller.name)
        if person is not None and person.quota is not None:
            self.accounts.of(caller.name).check(person.quota, request, caller.name, now)
        self.accounts.whole.check(self.rules.quota, request, "the workspace", now)


class _Recorded:
    """Writes down what is refused within it."""

    def __init__(
        self,
        record: Callable[[dict[str, Any]], None],
        clock: Callable[[], float],
        caller: Caller,
        request: Request | None,
        what: str,
    ) -> None:
        self._record, self._clock, self._caller, self._request, self._what = record, clock, caller, request, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, NotAllowed):
            return
        event = {"event": "refused", "by": self._caller.name, "role": self._caller.role, "at": self._clock()}
        event |= {} if self._request is None else {"app": self._request.app, "digest": self._request.digest}
        event |= {"what": self._what[:LONGEST_VALUE]} if self._what else {}
        event |= {n: v for n, v in (("client", self._caller.client), ("trace", self._caller.trace)) if v}
        said = {
            name: text[:LONGEST_TEXT] if isinstance(text, str) else text for name, text in error.plain().items()
        }
        self._record(event | redacted_data(said))
