"""Tools and agents that are shared: a folder or git repository with digests. What comes from there is pending.

digests.json        {"format": 1, "tools": {"NAME": {"version": "1.0.0", "sha256": "..."}},
                     "agents": {"NAME": {"sha256": "..."}}}
NAME.py  NAME.json  text; record, for people to read: who approved it there decides nothing here
agents/NAME.json    name, role text, tools
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.registry.files import read_own
from hpcagent.registry.names import is_name
from hpcagent.registry.record import AgentRecord, digest_of
from hpcagent.store.files import make_folder, write_whole

__all__ = ["DIGESTS", "Shared", "read_shared", "write_shared"]

DIGESTS = "digests.json"
AGENTS = "agents"
FORMAT = 1
MOST = 500
GIT_S = 300.0
_ADDRESS = re.compile(r"(?:https|ssh|file)://|[\w.-]+@[\w.-]+:|.*\.git/?\Z")
# Nothing of a repository that comes from elsewhere is run: no hooks (else: `_refuse_programs`).
_HARMLESS = (
    *("core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates", "core.ignorecase"),
    *("core.precomposeunicode", "core.symlinks", "user.", "remote.", "branch.", "extensions.objectformat"),
)
_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never")


@dataclass(frozen=True, slots=True)
class Shared:
    """What a folder has to share.

    Attributes:
        tools: Name, text, where it is from.
        agents: Name, role text, names of tools, where it is from.
    """

    tools: tuple[tuple[str, str, str], ...] = ()
    agents: tuple[tuple[str, str, tuple[str, ...], str], ...] = ()


def write_shared(
    folder: Path,
    tools: Sequence[Mapping[str, Any]],
    agents: Sequence[Mapping[str, Any]] = (),
    *,
    commit: str = "",
) -> list[str]:
    """Write tools and agents into a folder; those that are there under other names stay.

    Args:
        folder: Made if it is not there.
        tools: Cards with `text`.
        agents: Cards: `name`, `role`, `tools`.
        commit: Message; empty: nothing is committed.

    Returns:
        `NAME@VERSION` of each tool, `agent NAME` of each agent.

    Raises:
        BadInput: One is not approved, or git refuses.
    """
    for one in tools:
        if not one["usable"]:
            raise BadInput(f"{one['name']} is {one['problem'] or one['state']}; approved tools are shared.")
    make_folder(folder)
    known, others = _digests(folder) if (folder / DIGESTS).exists() else ({}, {})
    for one in tools:
        known[one["name"]] = {"version": one["version"], "sha256": one["sha256"]}
        write_whole(folder / f"{one['name']}.py", one["text"])
        about = {name: value for name, value in one.items() if name not in ("text", "problem", "usable", "agents")}
        write_whole(folder / f"{one['name']}.json", json.dumps(about, indent=1) + "\n")
    for one in agents:
        text = json.dumps({name: one[name] for name in ("name", "role", "tools")}, indent=1) + "\n"
        make_folder(folder / AGENTS)
        write_whole(folder / AGENTS / f"{one['name']}.json", text)
        others[one["name"]] = {"sha256": digest_of(text)}
    table = {"format": FORMAT, "tools": known} | ({"agents": others} if others else {})
    write_whole(folder / DIGESTS, json.dumps(table, indent=1, sort_keys=True) + "\n")
    if commit:
        if not (folder / ".git").exists():
            _git(["init", "--quiet", str(folder)])
        _refuse_programs(folder)
        files = [DIGESTS, *(f"{one['name']}.{end}" for one in tools for end in ("py", "json"))]
        files += [f"{AGENTS}/{one['name']}.json" for one in agents]
        _git(["-C", str(folder), "add", "--", *files])
        if _git(["-C", str(folder), "status", "--porcelain", "--", *files]):
            _git(["-C", str(folder), "commit", "--quiet", "--message", commit, "--", *files])
    return [f"{one['name']}@{one['version']}" for one in tools] + [f"agent {one['name']}" for one in agents]


def _refuse_programs(folder: Path) -> None:
    """Git runs programs that a repository's own configuration names, as filters and for signatures; not here.

    Raises:
        BadInput: It names some.
    """
    found = _git(["-C", str(folder), "config", "--local", "--includes", "--name-only", "--list"]).split()
    named = sorted({name for name in found if not name.startswith(_HARMLESS)})
    if named:
        raise BadInput(
            f"the git repository {folder.name} has settings of its own by which git may run a program: "
            f"{', '.join(named[:5])}. Take them out, or commit by hand after an export without --commit.",
            value=str(folder),
        )


def read_shared(source: str | Path) -> Shared:
    """Tools and agents of a folder or git repository.

    Args:
        source: A folder, or an address: `https://...`, `ssh://...`, `git@host:...`, `file://...`, `....git`.

    Raises:
        BadInput: It is none, git refuses, or a text is not the one of its digest.
    """
    if not Path(source).is_dir() and _ADDRESS.match(str(source)):
        with tempfile.TemporaryDirectory(prefix="hpcagent-tools-") as folder:
            _git(
                ["clone", "--quiet", "--depth", "1", "--no-recurse-submodules", "--", str(source), f"{folder}/it"]
            )
            revision = _git(["-C", f"{folder}/it", "rev-parse", "HEAD"]).strip()
            return _read(Path(folder) / "it", f"{_without_password(str(source))} at {revision[:12]}")
    # Its name only: the path is nobody's business who reads the record.
    return _read(Path(source), f"the folder {Path(source).absolute().name}")


def _read(folder: Path, where: str) -> Shared:
    tools, agents = _digests(folder)
    return Shared(tuple(_tools(folder, where, tools)), tuple(_agents(folder, where, agents)))


def _tools(folder: Path, where: str, known: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str, str]]:
    for name, about in sorted(known.items()):
        text = _as_exported(folder, f"{name}.py", about["sha256"], where)
        yield name, text, f"imported from {where}, {name}@{about['version']}"


def _agents(
    folder: Path, where: str, known: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    for name, about in sorted(known.items()):
        text = _as_exported(folder, f"{AGENTS}/{name}.json", about["sha256"], where)
        try:
            one = AgentRecord.model_validate(json.loads(text))
            if one.name != name:
                raise ValueError(f"it is the record of {one.name}")
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{where}: {AGENTS}/{name}.json is no agent: {str(error).splitlines()[0]}.") from None
        yield name, one.role, one.tools, f"imported from {where}"


def _as_exported(folder: Path, file: str, sha256: str, where: str) -> str:
    text = read_own(folder / file, anybodys=True)
    if digest_of(text) != sha256:
        raise BadInput(
            f"{where}: {file} has the SHA-256 {digest_of(text)[:12]}..., and {DIGESTS} says {sha256[:12]}...: "
            "it was changed since it was exported.",
            value=file,
        )
    return text


def _digests(folder: Path) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """What is on record of each tool and each agent."""
    path = folder / DIGESTS
    if not path.is_file():
        raise BadInput(f"{folder} has no {DIGESTS}: it is no folder of shared tools.", value=str(folder))
    try:
        data = json.loads(read_own(path, anybodys=True))
        others = data.get("agents", {})
        if data["format"] != FORMAT or len(data["tools"]) > MOST or len(others) > MOST:
            raise ValueError(f"its format is not {FORMAT}, or it has more than {MOST} tools")
        found = {
            str(n): {"version": str(a["version"]), "sha256": str(a["sha256"])} for n, a in data["tools"].items()
        }
        agents = {str(n): {"sha256": str(a["sha256"])} for n, a in others.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path} is no table of shared tools: {error}.", value=str(path)) from None
    for name in [*found, *agents]:
        if not is_name(name):
            raise BadInput(f"{path}: {name[:80]!r} is no name of a tool.", value=name[:80])
    return found, agents


def _git(words: Sequence[str]) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:ssh:file"}
    try:
        done = subprocess.run(
            ["git", *_SAFE, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_S,
            check=False,
            env=env,
        )
    except FileNotFoundError:
        raise BadInput("git is not on the PATH; a folder will do as well.") from None
    except subprocess.TimeoutExpired:
        raise BadInput(f"git did not end within {GIT_S:g} s.") from None
    if done.returncode:
        said = _without_password(" ".join(done.stderr.split()))[-300:]
        raise BadInput(f"git {words[0] if words[0] != '-C' else words[2]} failed: {said or 'it said nothing'}.")
    return done.stdout


def _without_password(text: str) -> str:
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1", text)
