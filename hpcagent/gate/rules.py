"""`workspace.toml`: who may run what, where, at what cost, and what a person has to approve."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hpcagent.gate.request import Effect, Request
from hpcagent.model.base import Record
from hpcagent.model.texts import Name

__all__ = ["ApprovalRule", "BaseAgents", "Caller", "Person", "Quota", "Right", "Rights", "Rules", "SiteRule"]

Right = Literal["run", "read", "write", "approve", "see_all", "manage"]
"""run: start and cancel one's own runs; read, write: resources and contexts, write also to tell events and to
register tools; approve: grant and deny, also tools; see_all: what belongs to others; manage: people's quotas,
retention, copies of resources."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Caller(Record):
    """Who asks, as a door has found out.

    Attributes:
        name: The person or program.
        role: Its role in this workspace.
        client: The program it asks with, and its version.
        trace: An id of its own for what it does, kept with each call.
    """

    name: Name
    role: Name = "viewer"
    client: str = Field(default="", max_length=200)
    trace: str = Field(default="", max_length=200)


class Rights(Record):
    """What a role may do. Names may have `*` and `?`.

    Attributes:
        may: Rights.
        apps: Apps that it may run and see described; code that the library does not bring is `own:NAME`.
        sites: Sites on which.
        resources: Resources that it may use, by name.
    """

    may: tuple[Right, ...] = ("read",)
    apps: tuple[str, ...] = ("*",)
    sites: tuple[str, ...] = ("*",)
    resources: tuple[str, ...] = ("*",)

    def uses(self, what: Literal["apps", "sites", "resources"], name: str) -> bool:
        """Whether the role has an app, site or resource of this name.

        Example:
            >>> Rights(resources=("dft_*",)).uses("resources", "dft_results")
            True
        """
        patterns: tuple[str, ...] = getattr(self, what)
        return any(fnmatchcase(name, pattern) for pattern in patterns)


ROLES: dict[str, Rights] = {
    "admin": Rights(may=("run", "read", "write", "approve", "see_all", "manage")),
    "planner": Rights(may=("run", "read", "write")),
    # It stores the results of what it runs, so it may write; what it may not is plan: start what nobody planned.
    "executor": Rights(may=("run", "read", "write")),
    "viewer": Rights(may=("read",)),
}


class Person(Record):
    """Somebody who is known to the workspace.

    Attributes:
        role: Their role.
        uid: Their numeric user id on this machine; None: they come through a door only.
        quota: What they may use; beside the workspace's own.
        subject: What a token calls them; empty: by their name.
    """

    role: Name = "viewer"
    uid: int | None = None
    quota: Quota | None = None
    subject: str = Field(default="", max_length=500)


class Quota(Record):
    """What may be used; a key that is not there sets no bound.

    Attributes:
        node_hours: Spent and committed.
        usd: Likewise, on sites that have a price.
        runs_at_once: Runs that wait or go.
        per_minute: Submissions within 60 s.
        gigabytes: Of files in the folders of runs, and of files of runs that are kept for others to read.
    """

    node_hours: Amount | None = None
    usd: Amount | None = None
    runs_at_once: int | None = Field(default=None, ge=0)
    per_minute: int | None = Field(default=None, ge=1)
    gigabytes: Amount | None = None


class SiteRule(Record):
    """A site that may be used.

    Attributes:
        profile: Name or path of its profile; by default the table's name.
        usd_per_node_hour: Its price.
    """

    profile: str = ""
    usd_per_node_hour: Amount | None = None


class ApprovalRule(Record):
    """A request that a person has to approve: one that meets all keys that are there.

    Attributes:
        app: Of such an app; may have `*` and `?`.
        nodes_times_hours: Above so many node-hours, or without a bound.
        usd: Above such a cost.
        effects: With one of these side effects.
        own: Code that the library does not bring.
        roles: Asked for by one of these roles.
        because: Why it is asked for; shown to whoever decides.
    """

    app: str = "*"
    nodes_times_hours: Amount | None = None
    usd: Amount | None = None
    effects: tuple[Effect, ...] = ()
    own: bool | None = None
    roles: tuple[Name, ...] = ()
    because: str = Field(default="", max_length=500)

    def reason(self, request: Request, caller: Caller) -> str:
        """Why this request needs an approval by this rule; empty if it does not."""
        if not fnmatchcase(request.app, self.app) or (self.roles and caller.role not in self.roles):
            return ""
        if self.own is not None and request.own != self.own:
            return ""
        why = [] if self.app == "*" else [f"it is a run of {request.app}"]
        why += [f"{caller.role} asks for it"] if self.roles else []
        why += ["it is code of somebody's own"] if self.own else []
        hint, apart = "", request.share < 1
        for limit, asked, unit in (
            (self.nodes_times_hours, request.node_hours, "node-hours" + (" of whole nodes" if apart else "")),
            (self.usd, request.usd if request.priced else 0.0, "USD"),
        ):
            if limit is None:
                continue
            if asked is not None and asked <= limit:
                return ""
            most = f"without a bound of {unit}" if asked is None else f"{asked:.4g} {unit} at most"
            why.append(f"it takes {most}, above {limit:g}")
            if asked is None:
                bound = "walltime_s=... (in seconds)" if request.kind == "run" else "until.node_hours=..."
                hint = f"; nothing bounds it: {bound} does, and within {limit:g} {unit} this rule asks nobody"
        if self.effects:
            found = [effect for effect in request.effects if effect in self.effects]
            if not found:
                return ""
            why.append(f"its side effects: {', '.join(found)}")
        return (self.because or " and ".join(why) or "every request has to be approved") + hint


class BaseAgents(Record):
    """Agents that run what a model has written, off unless they are named: in which sandbox each runs.

    Attributes:
        shell: `shell_agent`, which runs lines of a shell by the app `shell_command`.
        compute: `compute_agent`, which runs Python by the app `python_code`.
    """

    shell: Literal["off", "limits", "bubblewrap"] = "off"
    compute: Literal["off", "limits", "bubblewrap"] = "off"


class Rules(Record):
    """The whole of `workspace.toml`.

    Attributes:
        name: The workspace's name.
        people: Who is who; whoever is not here and owns the folder is `admin`.
        roles: Role -> rights, beside `admin`, `planner`, `executor` and `viewer`, or in their place.
        sites: Sites that may be used; without the table, all.
        default_site: Where runs go that name none.
        quota: Of the workspace as a whole.
        approval: Requests that a person has to approve.
        approval_expires_s: So long after it was asked for or granted an approval holds, in seconds.
        require_sandbox: Tier for code that the library does not bring; refused where it is not to be had.
        base_agents: Agents that run what a model has written, each in its sandbox; off by default.
        retention_days: Folders of runs older than this are removed by `Workspace.expire`; None: kept.
        retries: How often a run is started again after an infrastructure failure.
        idle_s: A service that has nothing to do ends after so long, in seconds; None: it stays.
    """

    name: Name = "workspace"
    people: dict[Name, Person] = Field(default_factory=dict)
    roles: dict[Name, Rights] = Field(default_factory=dict)
    sites: dict[Name, SiteRule] = Field(default_factory=dict)
    default_site: str = "laptop"
    quota: Quota = Quota()
    approval: tuple[ApprovalRule, ...] = ()
    approval_expires_s: float = Field(default=7 * 86400.0, gt=0, allow_inf_nan=False)
    require_sandbox: Literal["none", "limits", "bubblewrap"] = "none"
    base_agents: BaseAgents = BaseAgents()
    retention_days: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    retries: int = Field(default=2, ge=0, le=20)
    idle_s: float | None = Field(default=3600.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _known_roles(self) -> Rules:
        for name, person in self.people.items():
            if person.role not in self.roles and person.role not in ROLES:
                known = ", ".join([*ROLES, *self.roles])
                raise ValueError(f"people.{name}.role: there is no role {person.role!r}; roles: {known}")
        uids = [person.uid for person in self.people.values() if person.uid is not None]
        if len(set(uids)) < len(uids):
            raise ValueError("people: two of them have the same uid; who of them asks could not be known")
        subjects = [person.subject or name for name, person in self.people.items()]
        if len(set(subjects)) < len(subjects):
            raise ValueError("people: a token has one name for two of them; who of them asks could not be known")
        return self

    def person_of(self, subject: str) -> str | None:
        """Who a token speaks for by this subject; None: nobody who is known.

        Example:
            >>> Rules(people={"ada": Person(subject="8f1c"), "bob": Person()}).person_of("8f1c")
            'ada'
        """
        return next((name for name, one in self.people.items() if subject == (one.subject or name)), None)

    def rights(self, role: str) -> Rights:
        """What a role may do; nothing, if it is unknown."""
        return self.roles.get(role) or ROLES.get(role) or Rights(may=())

    def approval_for(self, request: Request, caller: Caller) -> str:
        """Why a person has to approve the request; empty if nobody has to."""
        return "; ".join(filter(None, (rule.reason(request, caller) for rule in self.approval)))

    def price(self, site: str) -> float | None:
        """US dollars for a node-hour on a site."""
        rule = self.sites.get(site)
        return None if rule is None else rule.usd_per_node_hour


Person.model_rebuild()
