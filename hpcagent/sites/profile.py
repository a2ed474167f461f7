"""A site profile: a TOML file that says where runs happen, with Parsl's own keys where they are Parsl's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hpcagent import packaged
from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Record, build, read_toml

__all__ = ["ExecutorProfile", "Profile", "ProfileEntry", "find_profile", "list_profiles"]

_AFFINITIES = ("none", "block")


class ExecutorProfile(Record):
    """One executor of a site: a kind of workers. The keys are Parsl's, with Parsl's meaning.

    Example:
        >>> ExecutorProfile(cores_per_worker=2).cpu_affinity
        'block'
    """

    max_workers_per_node: Annotated[int, Field(ge=1)] | None = None
    """Tasks at once; not given: the usable cores divided by `cores_per_worker`."""
    cores_per_worker: Annotated[int, Field(ge=1)] = 1
    """Cores of one worker, and the threads OpenMP and BLAS libraries get there."""
    cpu_affinity: str = "block"
    """`block`: each worker, and what it starts, is pinned to cores of its own; `none`: not pinned."""
    prefetch_capacity: Annotated[int, Field(ge=0)] = 0
    """Tasks that may wait beside the workers of a node."""
    worker_init: str = ""
    """Shell lines run before the workers start, e.g. `module load lammps`."""
    python: str | None = None
    """Interpreter of the workers; not given: the one that opens the site."""
    encrypted: bool = True
    """Encrypt between opener and workers. Loopback ports are open to every user of the machine."""
    preload: tuple[str, ...] = ("numpy", "hpcagent.apps.run")
    """Modules to import once for all workers, before the first task; one that is missing is skipped."""

    @field_validator("cpu_affinity")
    @classmethod
    def _known_affinity(cls, value: str) -> str:
        if value not in _AFFINITIES:
            raise BadInput(f"cpu_affinity = {value!r} is not known; {nearest(value, _AFFINITIES)}", value=value)
        return value


class Profile(Record):
    """Where runs happen, as one TOML file says it. `find_profile` reads one.

    Example:
        >>> Profile(name="mine", kind="threads").executor_names
        ('workers',)
    """

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    kind: Literal["local", "threads"]
    """`local`: worker processes on this machine; `threads`: threads of the opening process."""
    executors: dict[str, ExecutorProfile] = Field(default_factory=lambda: {"workers": ExecutorProfile()})
    """One table per executor, by label. The first is used unless a run asks for another."""
    env: dict[str, str] = Field(default_factory=dict)
    """Extra environment of the workers."""
    lammps: tuple[str, ...] | None = None
    """The command that runs LAMMPS on this site, word by word; not given: the app looks for one."""
    node_cores: Annotated[int, Field(ge=1)] | None = None
    """Cores of one node, by which a run on some of them is charged; not given: the usable cores."""

    @field_validator("executors")
    @classmethod
    def _some_executor(cls, value: dict[str, ExecutorProfile]) -> dict[str, ExecutorProfile]:
        if not value:
            raise BadInput("executors is empty; leave it out, or add a table such as [executors.workers].")
        for label in value:
            if not label.isidentifier():  # it names folders and log files
                raise BadInput(f"executors: {label!r} must be letters, digits and underscores.", value=label)
            if label.startswith("_"):
                raise BadInput(f"executors: {label!r}: a leading underscore is Parsl's own.", value=label)
        return value

    @model_validator(mode="after")
    def _threads_have_no_processes(self, info: ValidationInfo) -> Profile:
        if self.kind == "threads":
            for label, executor in self.executors.items():
                useless = executor.model_fields_set - {"max_workers_per_node"}
                if useless:
                    raise BadInput(
                        f"executors.{label}: {', '.join(sorted(useless))} has no meaning for "
                        'kind = "threads", which knows max_workers_per_node only.'
                    )
        return self

    @property
    def executor_names(self) -> tuple[str, ...]:
        """Labels of the executors, the default one first."""
        return tuple(self.executors)


class ProfileEntry(NamedTuple):
    """One line of `hpcagent sites`."""

    name: str
    source: Path
    description: str


def find_profile(profile: str | Path | Profile = "laptop") -> Profile:
    """Read a site profile.

    Args:
        profile: The path of a TOML file, or a name, which is looked for in this order: `site_profiles/` and
            the working directory itself, each directory of `$HPCAGENT_SITE_PATH`, the user's configuration
            (`$XDG_CONFIG_HOME` or `~/.config`, then `hpcagent/sites/`), the profiles that come with hpcagent.
            A `Profile` is returned as it is.

    Returns:
        The profile. Its name is the file's, if the file gives none.

    Raises:
        BadInput: There is no such profile, or the file is wrong; the message names file, key and value.

    Example:
        >>> find_profile("threads").kind
        'threads'
    """
    if isinstance(profile, Profile):
        return profile
    text = str(profile)
    if text.endswith(".toml") or "/" in text or os.sep in text:
        return _read(Path(text).expanduser())
    for folder in _folders():
        if (folder / f"{text}.toml").is_file():
            return _read(folder / f"{text}.toml")
    raise BadInput(
        f"There is no site profile {text!r}; {nearest(text, [entry.name for entry in list_profiles()])} "
        f"Looked in {', '.join(str(folder) for folder in _folders())}.",
        value=text,
    )


def list_profiles() -> list[ProfileEntry]:
    """Return the profiles that `find_profile` finds by name, sorted; one that hides another counts once.

    A file that cannot be read is listed with what is wrong as its description.

    Example:
        >>> {"laptop", "threads"} <= {entry.name for entry in list_profiles()}
        True
    """
    entries: dict[str, ProfileEntry] = {}
    for folder in _folders():
        for path in sorted(folder.glob("*.toml")):
            if path.stem not in entries and (entry := _entry(path, folder)) is not None:
                entries[path.stem] = entry
    return sorted(entries.values())


def _entry(path: Path, folder: Path) -> ProfileEntry | None:
    try:
        return ProfileEntry(path.stem, path, _read(path).description)
    except BadInput as error:
        # the working directory has TOML files that are no profiles: campaigns, pyproject.toml
        return None if folder == Path() else ProfileEntry(path.stem, path, f"not usable: {error.message}")


def _read(path: Path) -> Profile:
    return build(Profile, {"name": path.stem, **read_toml(path)}, where=str(path))


def _folders() -> Iterator[Path]:
    yield Path("site_profiles")
    yield Path()
    for folder in os.environ.get("HPCAGENT_SITE_PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder).expanduser()
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    yield Path(config) / "hpcagent" / "sites"
    yield packaged.folder("site_profiles")
