"""Where a workspace is, and the files in it."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
from pathlib import Path

from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.gate.rules import Rights, Rules
from hpcagent.model.base import build, read_json, read_toml
from hpcagent.owners import require_own
from hpcagent.store.files import make_folder, refusing_clearly, write_whole

__all__ = ["KEEPER", "Folder", "find_folder", "own_name"]

HERE = ".hpcagent"
KEEPER = "keeper.json"
"""In the folder of a site: which process keeps it, and where."""
VARIABLE = "HPCAGENT_WORKSPACE"

TEMPLATE = """\
# Who may run what, where, at what cost, and what a person has to approve. All keys: docs/reference/workspace.md
name = "{name}"
default_site = "laptop"

# [people.ada]
# role = "planner"            # admin, planner, executor, viewer, or a role of your own
# quota = {{ node_hours = 50, runs_at_once = 20 }}

# [sites.laptop]              # with such a table only the sites named here may be used

[quota]                       # of the workspace as a whole
# node_hours = 500
# per_minute = 60

# [[approval]]
# nodes_times_hours = 10      # a person approves what may take more than 10 node-hours
"""


def find_folder(where: str | Path | None = None) -> Path:
    """The folder of a workspace: as named, as `$HPCAGENT_WORKSPACE` says, or `.hpcagent` here or above.

    Example:
        >>> find_folder("/scratch/group").as_posix()
        '/scratch/group'
    """
    named = where if where is not None else os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    here = Path.cwd()
    found = (above / HERE for above in (here, *here.parents) if (above / HERE / "workspace.toml").is_file())
    return next(found, here / HERE)


def own_name() -> str:
    """The name of the user of this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid-{os.getuid()}"


class Folder:
    """The files of a workspace.

    Attributes:
        root: The folder; only its owner may enter it.
        rules: `workspace.toml`.
        journal: `journal.jsonl`, the append-only truth: runs, campaigns, approvals, refusals.
        work: A directory for each execution id.
        campaigns: A run directory for each campaign.
        sites: What each site writes.
        apps: Apps that came along with a call, by their content.
        tools: Tools that were registered: texts and records.
        added: LAMMPS scripts that were added as apps: a note of each, and the files that they read.
        inputs: Files of runs that other runs read, by their content.
        agents: Agents: role texts and the tools that each has.
        service: `service.json`: which process serves it, and where.
        log: What that process prints.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rules = root / "workspace.toml"
        self.journal = root / "journal.jsonl"
        self.work = root / "work"
        self.campaigns = root / "campaigns"
        self.sites = root / "sites"
        self.apps = root / "apps"
        self.tools = root / "tools"
        self.added = root / "added"
        self.inputs = root / "inputs"
        self.agents = root / "agents"
        self.service = root / "service.json"
        self.log = root / "service.log"

    def keepers(self) -> list[int]:
        """Processes that keep the sites, as their notes say."""
        found = []
        for note in self.sites.glob(f"*/{KEEPER}"):
            with contextlib.suppress(HpcAgentError, OSError, KeyError, TypeError, ValueError):
                found.append(int(read_json(note)["pid"]))
        return found

    def of_site(self, site: str, key: str = "") -> Path:
        """The folder of a site's workers; no two sites have one.

        Args:
            site: Its name.
            key: Of code that came along with a call, whose workers are its own; empty: all others.
        """
        name = _folder_name(site)
        return self.sites / (f"{name}.{key}" if key else name)

    def ledgers(self, site: str) -> list[Path]:
        """The ledgers of a site's jobs, those of workers for code that came along with a call among them."""
        name = _folder_name(site)
        return sorted((*self.sites.glob(f"{name}/jobs.jsonl"), *self.sites.glob(f"{name}.*/jobs.jsonl")))

    @property
    def exists(self) -> bool:
        """Whether there is a workspace."""
        return self.rules.is_file()

    def create(self, name: str = "") -> bool:
        """Make it, unless it is there; return whether it is new.

        Raises:
            BadInput: Something else is there, or another user owns or may write it.
            StoreFull: It cannot be written.
        """
        if self.root.exists() and not self.root.is_dir():
            raise BadInput(f"{self.root} is a file; a workspace is a folder.", value=str(self.root))
        new = not self.exists
        if new:
            with refusing_clearly(self.root):
                self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
                if not any(self.root.iterdir()):
                    self.root.chmod(0o700)
            shown = name or self.root.parent.name if self.root.name == HERE else name or self.root.name
            write_whole(self.rules, TEMPLATE.format(name="".join(c for c in shown if c.isalnum() or c in "-_.")))
        require_own(self.root, self.rules, self.journal, what="what it lets run")
        if (
            not new
            and not self.journal.exists()
            and any(f.is_dir() and any(f.iterdir()) for f in (self.work, self.campaigns))
        ):
            raise BadInput(
                f"{self.root} has what runs left, but no {self.journal.name}: it was lost, and what was approved, "
                "spent and run is not known. Put it back from a backup, or move work/ and campaigns/ away.",
                value=str(self.journal),
            )
        for folder in (self.work, self.campaigns, self.sites):
            make_folder(folder)
        return new

    def rights(self, as_: str = "") -> Rights:
        """What somebody may do here, as `workspace.toml` says it now; the gate decides on each call.

        Args:
            as_: A person of `workspace.toml`; empty: this process's user.

        Raises:
            BadInput: There is no workspace, or a key or value is wrong.
        """
        rules = self.read_rules()
        if as_ in rules.people:
            return rules.rights(rules.people[as_].role)
        if as_ and as_ != own_name():
            return Rights(may=())
        mine = next((one.role for one in rules.people.values() if one.uid == os.getuid()), "")
        return rules.rights(mine or ("admin" if self.root.stat().st_uid == os.getuid() else ""))

    def read_rules(self) -> Rules:
        """What `workspace.toml` says.

        Raises:
            BadInput: There is no workspace, or a key or value is wrong.
        """
        if not self.exists:
            raise BadInput(
                f"{self.root} is no workspace (it has no workspace.toml); `hpcagent workspace init` makes one, "
                f"${VARIABLE} or --workspace names another.",
                value=str(self.root),
            )
        return build(Rules, read_toml(self.rules), where=str(self.rules))


def _folder_name(site: str) -> str:
    """A name for the folder of a site, without a dot and what a pattern of names could mean."""
    plain_name = "".join(c if c.isalnum() or c in "-_" else "-" for c in site) or "site"
    return plain_name if plain_name == site else f"{plain_name}-{hashlib.sha256(site.encode()).hexdigest()[:8]}"
