"""Files of runs that an endpoint computed, brought into the campaign's folder, where everything looks for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.campaign.where import profile_there
from hpcagent.errors import BadInput, FetchFailed, nearest
from hpcagent.model.records import Result
from hpcagent.model.remote import Remote, far_path
from hpcagent.reports.explain import LEAST_PREFIX, named_run
from hpcagent.shown import size_text
from hpcagent.sites.endpoint.fetching import Brought, Errands, Progress, Say, Wanted, bring
from hpcagent.sites.endpoint.link import AnyLink
from hpcagent.sites.endpoint.transfer import Record
from hpcagent.sites.endpoint.transfer import transfer as transfer_files
from hpcagent.sites.endpoint_settings import TransferSettings
from hpcagent.sites.profile import Profile
from hpcagent.sites.site import current_site
from hpcagent.store.arriving import Place
from hpcagent.store.rundir import RunDir

__all__ = ["MAX_MB", "Fetched", "Fetcher", "How", "fetch", "fetch_of"]

MAX_MB = 100.0
"""Megabytes that are fetched without a word: some minutes in chunks."""
_GLOB = re.compile(r"[*?\[]")
_OWN = re.compile(r"(?:attempt-\d+/)?(?:result|manifest)\.json\Z")
_OTHER_RUN = re.compile(r"\.\./([A-Za-z0-9-]+)/(.+)\Z", re.DOTALL)

Connect = Callable[[Profile], AnyLink]
ProfileOf = Callable[[Remote], Profile]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Files of a run that are here now.

    Attributes:
        execution_id: The run.
        files: What was asked for, each verified; `already` tells what was here before.
        notes: What else is worth knowing.
    """

    execution_id: str
    files: tuple[Brought, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the files are."""
        return tuple(file.here for file in self.files)

    def data(self) -> dict[str, Any]:
        """As plain data; sizes in bytes."""
        files = [
            {"path": f.path, "here": str(f.here), "size": f.size, "sha256": f.sha256, "already": f.already}
            for f in self.files
        ]
        return {"execution_id": self.execution_id, "files": files, "notes": list(self.notes)}

    def __str__(self) -> str:
        lines = [f"{f.here} ({size_text(f.size)}{', was here' if f.already else ''})" for f in self.files]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class How:
    """How files are fetched.

    Attributes:
        to: Another folder than the run's own.
        everything: All its files.
        max_mb: Largest size of all together, in MB (10**6 bytes).
        changed: Also what has another content now than when the run ended.
        transfer: By Globus Transfer, of any size, as `[transfer]` of the profile says.
        watch: Told the file, the bytes that are here, and its size.
        say: Takes sentences on what is waited for.
    """

    to: Path | None = None
    everything: bool = False
    max_mb: float = MAX_MB
    changed: bool = False
    transfer: bool = False
    watch: Progress = lambda *_: None
    say: Say = lambda _: None

    def __post_init__(self) -> None:
        if not 0 < self.max_mb < 1e9:
            raise BadInput(f"max_mb = {self.max_mb} must be a number of MB, more than 0.", value=self.max_mb)
        if self.changed and self.to is None:
            raise BadInput("what has changed since its run goes to another folder: give --to beside --changed.")


def fetch(
    run_dir: str | Path,
    run: int | str,
    *paths: str,
    to: str | Path | None = None,
    everything: bool = False,
    max_mb: float = MAX_MB,
    changed: bool = False,
    transfer: bool = False,
    site: str | Path | None = None,
    watch: Progress = lambda *_: None,
    say: Say = lambda _: None,
    connect: Connect | None = None,
) -> Fetched:
    """Bring files of a run that an endpoint computed into its own directory here, `RUN_DIR/work/EXECUTION_ID`.

    Each piece and the whole are verified. A file that is here already is not sent again; one that was cut off is
    gone on with. Takes no lock: it works beside the coordinator of a campaign that goes on.

    Args:
        run_dir: The campaign's folder.
        run: Number of the run, or the beginning of its execution id; also of an inner run of a chain.
        paths: Names of artifacts (`log`), files (`dump/run.lammpstrj`), or globs of files (`*.csv`).
        to: Another folder.
        everything: All its files.
        max_mb: Largest size of all together, in MB (10**6 bytes).
        changed: Also what has another content now than when the run ended; it has to go to another folder.
        transfer: By Globus Transfer, of any size, between the two collections of `[transfer]` in the profile. It
            goes on when this process has ended; asked for again it is taken up.
        site: Profile of the site, by name or path; not given: as the campaign was started with.
        watch: Told the file, the bytes that are here, and its size.
        say: Takes sentences on what is waited for.
        connect: Opens the way to the endpoint; not given: Globus Compute.

    Raises:
        BadInput: There is no such run or file, it is too large, or cannot be put there.
        FetchFailed: The endpoint did not give it.
    """
    how = How(None if to is None else Path(to).expanduser(), everything, max_mb, changed, transfer, watch, say)
    RunDir(run_dir).require()
    read = snapshot(run_dir)
    result = _result(read, run, run_dir)

    def other(identity: str) -> Result | None:
        return read.state.part_results.get(identity) or read.state.results.get(identity)

    with Fetcher(read.folder.work, lambda remote: profile_there(read.folder, remote, site), connect) as fetcher:
        return fetcher.fetch(result, paths, how, other)


def fetch_of(
    result: Result,
    path: str,
    *,
    to: str | Path | None = None,
    max_mb: float = MAX_MB,
    site: str | Path | None = None,
    connect: Connect | None = None,
) -> Path:
    """Bring one file of a result; what `Result.fetch` does. Returns where it is.

    Raises:
        BadInput: There is no such file, or more than one, or it is too large.
        FetchFailed: The endpoint did not give it.
    """
    work = Path(result.workdir).parent
    folder = RunDir(work.parent) if work.name == "work" and RunDir(work.parent).exists else None

    def profile(remote: Remote) -> Profile:
        opened = current_site()
        if site is None and opened is not None and opened.profile.endpoint_id == remote.endpoint_id:
            return opened.profile
        return profile_there(folder, remote, site)

    def other(identity: str) -> Result | None:
        if folder is None:
            return None
        state = snapshot(folder.root).state
        return state.part_results.get(identity) or state.results.get(identity)

    how = How(None if to is None else Path(to).expanduser(), max_mb=max_mb)
    with Fetcher(work, profile, connect) as fetcher:
        done = fetcher.fetch(result, [path], how, other)
    if not done.files and result.remote is None:
        return work / result.manifest.execution_id / result.artifacts.get(path, path)
    if len(done.files) != 1:
        some = ", ".join(file.path for file in done.files[:5])
        raise BadInput(
            f"{path!r} fits {len(done.files)} files ({some}), which are here now; name one, or take all of them "
            "from hpcagent.runs.fetched.fetch(run_dir, run, ...).files."
            if done.files
            else f"{path!r}: {'; '.join(done.notes)}.",
            value=path,
        )
    return done.files[0].here


def _result(read: Snapshot, run: int | str, run_dir: str | Path) -> Result:
    """The result of a run, by its number or execution id.

    Raises:
        BadInput: There is none, or not yet.
    """
    word = str(run).strip().lower().removesuffix("...")
    if len(word) >= LEAST_PREFIX:
        inner = [r for identity, r in read.state.part_results.items() if identity.startswith(word)]
        if len(inner) == 1:
            return inner[0]
    manifest = named_run(read.state, run, run_dir)
    result = read.state.results.get(manifest.execution_id)
    if result is None:
        raise BadInput(
            f"run {manifest.index} of {run_dir} has not ended yet; its files can be fetched when it has a result "
            f"(`hpcagent status {run_dir}`).",
            value=run,
        )
    return result


class Fetcher:
    """Fetches files of the runs of a folder; opens the way to an endpoint when one is to be asked.

    Args:
        work: The folder of the runs' own directories.
        profile: Gives the profile by which an endpoint is reached.
        connect: Opens the way to the endpoint; None: Globus Compute.
    """

    def __init__(self, work: Path, profile: ProfileOf, connect: Connect | None = None) -> None:
        self._work, self._profile = work, profile
        self._connect = connect or _connect
        self._links: dict[str, AnyLink] = {}

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for link in self._links.values():
            link.close()

    def fetch(
        self,
        result: Result,
        paths: Sequence[str],
        how: How,
        other: Callable[[str], Result | None] = lambda _: None,
    ) -> Fetched:
        """Bring files of a result.

        Args:
            result: The run's.
            paths: Names of artifacts, files, globs.
            how: Where to, and what.
            other: Gives results of other runs: artifacts of a chain are files of its inner runs.

        Raises:
            BadInput: There is no such file, it is too large, or cannot be put there.
            FetchFailed: The endpoint did not give it.
        """
        if not paths and not how.everything:
            raise BadInput(f"name the files to fetch, or ask for all (--all). {_offered(result)}")
        own, inner = _by_run(result, paths, other)
        got = [self._of_one(r, names, _beside(how, r)) for r, names in inner]
        if own or how.everything or not inner:
            got.append(self._of_one(result, own, how))
        files = tuple(file for one in got for file in one.files)
        notes = tuple(dict.fromkeys(note for one in got for note in one.notes))
        return Fetched(result.manifest.execution_id, files, notes)

    def _of_one(self, result: Result, paths: Sequence[str], how: How) -> Fetched:
        if result.remote is None:
            return _here_already(result, self._work / result.manifest.execution_id, paths, how)
        identity, remote = result.manifest.execution_id, result.remote
        place = Place(how.to if how.to is not None else self._work / identity)
        settings = self._collections(remote) if how.transfer else None
        wanted, notes = self._wanted(result, remote, paths, how)
        if settings is not None:
            record = Record(self._work.parent / "transfers.jsonl" if self._work.name == "work" else None)
            come = transfer_files(wanted, place, remote, settings, record, watch=how.watch, say=how.say)
            return Fetched(identity, tuple(come), tuple(notes))
        _refuse_large(wanted, how.max_mb, remote, place)
        files = []
        for one in wanted:
            errands = self._errands_when_needed(remote, identity, how)
            files.append(bring(errands, place, one, remote.at, how.watch))
        return Fetched(identity, tuple(files), tuple(notes))

    def _collections(self, remote: Remote) -> TransferSettings:
        profile = self._profile(remote)
        if profile.transfer is None:
            raise BadInput(
                f'the profile {profile.name} has no [transfer], which names the two collections: here = "ID", '
                'there = "ID" (docs/howto/globus.md).'
            )
        return profile.transfer

    def _errands_when_needed(self, remote: Remote, identity: str, how: How) -> Callable[[], Errands]:
        return lambda: self._errands(remote, identity, how)

    def _errands(self, remote: Remote, identity: str, how: How) -> Errands:
        link = self._links.get(remote.endpoint_id)
        if link is None:
            link = self._links[remote.endpoint_id] = self._connect(self._profile(remote))
        return Errands(link, remote, identity, say=how.say)

    def _wanted(
        self, result: Result, remote: Remote, paths: Sequence[str], how: How
    ) -> tuple[list[Wanted], list[str]]:
        """The files that are meant, with their SHA-256, and remarks."""
        identity = result.manifest.execution_id
        known = {path: Wanted(path, size, sha256) for path, (size, sha256) in remote.files.items()}
        names = _names(result, paths)
        more = how.everything or any(_GLOB.search(name) or name not in known for name in names)
        if more and (remote.unlisted or not known):
            known = self._errands(remote, identity, how).listed() | known
        chosen = list(known) if how.everything else _chosen(names, known, remote)
        wanted, notes = [known[name] for name in chosen], []
        if how.to is None:
            records = [one.path for one in wanted if _OWN.match(one.path)]
            if records:
                notes.append(
                    f"{', '.join(records)}: not put into the run's directory, where a campaign would take it for "
                    "a record of this machine; what it says is in events.jsonl, and --to fetches it elsewhere"
                )
                wanted = [one for one in wanted if one.path not in records]
        if how.changed or any(one.sha256 is None for one in wanted):
            wanted = self._as_now(remote, identity, wanted, how, notes)
        return wanted, notes

    def _as_now(
        self, remote: Remote, identity: str, wanted: list[Wanted], how: How, notes: list[str]
    ) -> list[Wanted]:
        """Files with the SHA-256 that they have now; with `changed` also where another one is recorded."""
        asked = [one.path for one in wanted if how.changed or one.sha256 is None]
        now = self._errands(remote, identity, how).listed(asked)
        found = []
        for one in wanted:
            if one.path not in asked:
                found.append(one)
                continue
            there = now.get(one.path)
            if there is None or there.sha256 is None:
                raise FetchFailed(f"{one.path} of run {identity} is not on {remote.at} any more.", path=one.path)
            if one.sha256 not in (None, there.sha256) or there.size != one.size:
                if not how.changed:
                    raise FetchFailed(
                        f"{one.path} on {remote.at} has changed since the run ended: it had {one.size} bytes, and "
                        f"has {there.size} now. --changed fetches it as it is now, to another folder (--to).",
                        name="FileChanged",
                        path=one.path,
                    )
                notes.append(
                    f"{one.path} has changed since the run ended: this is not what its result was read from"
                )
            found.append(there)
        return found


def _connect(profile: Profile) -> AnyLink:
    link: AnyLink = import_module("hpcagent.sites.endpoint.link").Link(profile, next(iter(profile.executors)))
    return link


def _beside(how: How, result: Result) -> How:
    """The same for an inner run of a chain; in a folder of somebody's each inner run has its own."""
    to = None if how.to is None else how.to / result.manifest.execution_id
    return replace(how, to=to, everything=False)


def _by_run(
    result: Result, paths: Iterable[str], other: Callable[[str], Result | None]
) -> tuple[list[str], list[tuple[Result, list[str]]]]:
    """What is asked of the run itself, and of others: artifacts of a chain lie with its inner runs."""
    own: list[str] = []
    inner: dict[str, tuple[Result, list[str]]] = {}
    for text in paths:
        found = _OTHER_RUN.match(result.artifacts.get(text, ""))
        there = None if found is None else other(found[1])
        if found is None or there is None:
            own.append(text)
        else:
            inner.setdefault(found[1], (there, []))[1].append(found[2])
    return own, list(inner.values())


def _names(result: Result, paths: Iterable[str]) -> list[str]:
    """Files and globs; artifacts by their file."""
    names = []
    for text in paths:
        name = result.artifacts.get(text, text)
        names.append(name if _GLOB.search(text) and text not in result.artifacts else far_path(name))
    return names


def _chosen(names: Iterable[str], known: Mapping[str, Wanted], remote: Remote) -> list[str]:
    chosen: dict[str, None] = {}
    for name in names:
        found = [path for path in known if path == name or (_GLOB.search(name) and fnmatchcase(path, name))]
        if not found:
            where = f"{len(known)} files" if known else "no files that are known"
            raise BadInput(
                f"the run has no file {name!r} on {remote.at}; {nearest(name, known)} It has {where} there.",
                value=name,
            )
        chosen |= dict.fromkeys([name] if name in found else found)
    return list(chosen)


def _offered(result: Result) -> str:
    """What can be fetched of a run, in words."""
    if result.remote is None:
        return f"Its files are here, in {result.workdir}." if result.workdir else "It has no files."
    names = [*result.artifacts, *(f for f in result.remote.files if f not in result.artifacts.values())]
    some = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"On {result.remote.at} it has {some or 'no files that are known'}."


def _refuse_large(wanted: Sequence[Wanted], max_mb: float, remote: Remote, place: Place) -> None:
    missing = [one for one in wanted if place.digest(one.path, one.size) != one.sha256]
    size = sum(one.size for one in missing)
    if size > max_mb * 1e6:
        largest = max(missing, key=lambda one: one.size)
        raise BadInput(
            f"{len(missing)} file(s) of {size / 1e6:.4g} MB are to come ({largest.path}: {largest.size / 1e6:.4g} "
            f"MB), more than {max_mb:g} MB: ask for fewer, allow it by --max-mb {int(size / 1e6) + 1}, or "
            f"take Globus Transfer (--transfer). It is {remote.workdir}/{largest.path} there.",
            value=size,
        )
    if size > place.free():
        raise BadInput(
            f"{size_text(size)} are to come from {remote.at}, and {place.base} has {size_text(place.free())} "
            "left; fetch to another disk (--to).",
            value=size,
        )


def _here_already(result: Result, own: Path, paths: Sequence[str], how: How) -> Fetched:
    """What is said of a run of this machine: its files are here."""
    folder = own if own.is_dir() or not result.workdir else Path(result.workdir)
    if not folder.is_dir():
        raise BadInput(
            f"run {result.manifest.index} was not computed on an endpoint, and its directory {folder} is not "
            "here: it wrote no file, its directory was removed, or its result was told.",
            value=str(folder),
        )
    names = {result.artifacts.get(text, text) for text in paths}
    said = ", ".join(str(folder / name) for name in sorted(names)) or str(folder)
    missing = sorted(n for n in names if not _GLOB.search(n) and not (folder / n).exists())
    if missing:
        raise BadInput(
            f"run {result.manifest.index} was not computed on an endpoint; its files are in {folder}, and "
            f"{missing[0]!r} is not among them.",
            value=missing[0],
        )
    note = f"run {result.manifest.index} was not computed on an endpoint; nothing is to be fetched: {said}"
    return Fetched(result.manifest.execution_id, (), (note,))
