"""The sites of a workspace: which are known, what can never run on one, and the desk of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.errors import BadInput
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Rules
from hpcagent.model.contract import Resources
from hpcagent.shown import plain
from hpcagent.sites.limits import check, executor_for
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import shared_profile
from hpcagent.sites.site import usable_cores
from hpcagent.workspace.app_store import STORED, AppStore, code_key
from hpcagent.workspace.desk import Desk
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.kept import Kept
from hpcagent.workspace.rows import Row, occupied

__all__ = ["Sites"]

LONGEST_SITE = 200


class Sites:
    """Sites by the names that a workspace has for them.

    Args:
        folder: The workspace's.
        rules: What holds now.
        store: Apps that came along with calls.
        tell: Hears what a site says.
        apart: Sites are kept by processes of their own, which outlive this one.
    """

    def __init__(
        self,
        folder: Folder,
        rules: Callable[[], Rules],
        store: AppStore,
        *,
        tell: Callable[[str], object],
        apart: bool,
    ) -> None:
        self._folder, self._rules, self._store = folder, rules, store
        self._tell, self._apart = tell, apart
        self._desks: dict[tuple[str, str], Desk | Kept] = {}  # by site, and by the code that its workers have
        self._said: dict[str, list[str]] = {}

    def known(self, site: str, kind: str = "") -> Profile:
        """The profile of a site, as `found`, if it has one, of this kind where one is named.

        Raises:
            NotAllowed: It has none, or a wrong one.
        """
        if len(site) > LONGEST_SITE or not site.isprintable():
            words = f"a site's name has at most {LONGEST_SITE} printable characters"
            raise NotAllowed("contract", words, field="site", value=plain(site)[:80])
        try:
            profile = self.found(site)
        except BadInput as error:
            known = ", ".join(self._rules().sites)
            raise NotAllowed(
                "contract",
                error.message,
                field="site",
                value=site,
                allowed=known,
                do="name another site, or correct its profile",
            ) from None
        if kind and profile.kind != kind:
            raise NotAllowed(
                "contract",
                f"{site} is a site of the kind {profile.kind}",
                field="site",
                value=site,
                allowed=f"a site whose profile has kind = {kind}",
                do="name such a site, or start it without asking for that kind",
            )
        return profile

    def profile(self, site: str) -> str:
        """The name or path of a site's profile."""
        rule = self._rules().sites.get(site)
        profile = rule.profile if rule is not None and rule.profile else site
        beside = self._folder.root / profile  # a file that is named relative to workspace.toml
        return str(beside) if beside.is_file() else profile

    def found(self, site: str) -> Profile:
        """The profile of a site, as its file says at this moment: others have the same object."""
        return shared_profile(self.profile(site))

    @staticmethod
    def refuse_absent(profile: Profile, app: App, values: Mapping[str, Any]) -> None:
        """Refuse a file that is not there, unless the site is another machine, which may have it.

        Raises:
            NotAllowed: Which parameter, and the path.
        """
        if profile.remote:
            return
        for name in app.settings.get("reads", ()):
            value = values.get(name)
            if not isinstance(value, str) or not value:
                continue
            if not Path(value).is_absolute() or not Path(value).is_file():
                raise NotAllowed(
                    "contract",
                    "there is no such file",
                    field=name,
                    value=value,
                    allowed="the absolute path of a file, or artifact:RUN/PATH, a file of a run",
                    do="correct the path, or make the file, and ask again; nothing was run",
                )

    @staticmethod
    def refuse_misfit(site: str, profile: Profile, resources: Resources) -> None:
        """Refuse at once what no block of a site can ever hold.

        Raises:
            NotAllowed: What does not fit, with both numbers.
        """
        try:
            if not profile.batch and not profile.remote and resources.nodes > 1:
                raise BadInput(f"a run of {resources.nodes} nodes does not fit: {site} is one node.")
            check(profile, executor_for(profile, resources), resources)
        except BadInput as error:
            several = [name for name in ("nodes", "ranks_per_node") if getattr(resources, name) > 1]
            raise NotAllowed(
                "contract",
                f"it can never run there: {error.message.rstrip('.')}",
                field="resources",
                value=occupied({"resources": resources.model_dump(mode="json")}),
                allowed="what the site has" if not several else f"fewer {' or '.join(several)}, or a larger site",
                do="ask for less, or name another site; nothing was run",
            ) from None

    @staticmethod
    def node_cores(profile: Profile) -> int | None:
        """Cores of a node; None where that is not known here."""
        if profile.node_cores is None and not profile.remote and not profile.batch:
            return len(usable_cores())
        return profile.node_cores

    @staticmethod
    def share_of_node(profile: Profile, app: App, resources: Resources) -> float | None:
        """Which share of its nodes a run is charged for; None where that is not known before one has run.

        Of a run on a part of one node that is its share of the node's cores.
        """
        if app.chain:
            return None  # it costs what its inner runs do
        if resources.nodes > 1:
            return 1.0
        cores = Sites.node_cores(profile)
        return None if cores is None else min(1.0, resources.cores / cores)

    def desk(self, row: Row) -> Desk | Kept:
        """Where the runs of a site go; those with modules of their own have workers of their own."""
        site, path, key = row.site, [], ""
        if self._apart and row.reference.startswith(STORED):
            record = self._store.record(row.reference)
            path, key = record["path"], code_key(record)
        desk = self._desks.get((site, key))
        if desk is None:
            folder, profile = self._folder.of_site(site, key), self.profile(site)
            said = self._said.setdefault(site, [])

            def tell(news: str) -> None:
                said[:] = [*said[-19:], news]
                self._tell(news)

            retries = self._rules().retries
            if self._apart:
                desk = Kept(profile, folder, retries=retries, tell=tell, path=path)
            else:
                desk = Desk(profile, folder, self._folder.work, retries=retries, tell=tell)
            self._desks[site, key] = desk
        return desk

    def desks(self) -> list[Desk | Kept]:
        """Those that were opened."""
        return list(self._desks.values())

    def last_said(self, site: str) -> list[str]:
        """The last thing that a site has said, if it has said any."""
        return self._said.get(site, [])[-1:]
