"""The table `[container]`: which image a program runs in, pinned by its digest, and the words that start it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.base import Record
from hpcagent.model.texts import Line

__all__ = ["IMAGE", "RUNTIMES", "Container", "container_words", "remove_container", "resolved", "runtime_of"]

Runtime = Literal["apptainer", "singularity", "podman", "docker"]
RUNTIMES: tuple[Runtime, ...] = ("apptainer", "singularity", "podman", "docker")
_OF_FILES = ("apptainer", "singularity")
IMAGE = "image"
"""Name of an image's file among the files of an app."""

WORK = "/work"
"""The program's directory inside of the container."""

_REFERENCE = re.compile(
    r"(?:docker://)?(?P<name>[a-z0-9][\w.-]*(?::\d{1,5}(?=/))?(?:/[a-z0-9][\w.-]*)*)"
    r"(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?\Z"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_INSTALL = "install Apptainer or Podman, or load its module (worker_init of the site profile)"


class Container(Record):
    """In which container a program runs.

    Attributes:
        image: A file (`.sif`), or a name of a registry: `ghcr.io/group/code:1.2`, best with its digest
            (`@sha256:...`). The digest is part of the execution id.
        digest: `sha256:...` of the image, in place of one in its name.
        runtime: `apptainer`, `singularity`, `podman` or `docker`; the first that is there, in this order, if none
            is named.
        command: What is run in it; the image's own entry point by default. Not with a `command` of the file.
        arguments: How the parameters reach it: `json`, an object on stdin; `env`, variables.
        env_prefix: What the names of these variables begin with; the parameter's name follows in capitals.
        network: Whether it has a network.
        pull: `missing`: an image that is not there is fetched by its digest; `never`: such a run is refused.
        memory_mb: Memory of the container, in MB of 10^6 bytes; the runtime's default if not given.
        processes: Processes of the container at a time; likewise.
        output_mb: Size of all declared outputs together, in MB; more are not taken.
        read: Files and folders that it may read, under their own paths.
    """

    image: Line = Field(min_length=1)
    digest: Line | None = None
    runtime: Runtime | None = None
    command: Line | tuple[Line, ...] = ()
    arguments: Literal["json", "env"] = "json"
    env_prefix: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = "ARG_"
    network: bool = False
    pull: Literal["never", "missing"] = "never"
    memory_mb: float | None = Field(default=None, ge=10.0, le=1e8, allow_inf_nan=False)
    processes: int | None = Field(default=None, ge=1, le=1_000_000)
    output_mb: float = Field(default=1000.0, gt=0.0, le=1e9, allow_inf_nan=False)
    read: tuple[Annotated[Line, Field(min_length=1)], ...] = ()

    @field_validator("digest")
    @classmethod
    def _whole(cls, digest: str | None) -> str | None:
        if digest is not None and not _DIGEST.match(digest):
            raise BadInput(f"digest = {digest!r} is not sha256: and 64 hexadecimal digits.", value=digest)
        return digest

    @model_validator(mode="after")
    def _check(self) -> Container:
        for path in self.read:
            if not Path(path).is_absolute() or ".." in Path(path).parts or _breaks(path):
                raise BadInput(f"read: {path!r} is not a whole path without ':' and ','.", value=path)
        return self


def _breaks(path: str) -> bool:
    """Whether a runtime would take a path for more than a path."""
    return ":" in path or "," in path


def resolved(said: Container, folder: Path, where: str) -> tuple[dict[str, Any], str | None]:
    """What the settings of an app say of its container, with the image's digest; and the image's file, if any.

    The digest of a name without one is asked of the runtime here, once: what the name means later is of no matter.

    Raises:
        BadInput: There is no such file, the name is none, or its digest is not known here.
    """
    settings = said.model_dump(mode="json", exclude={"image", "digest", "command"}, exclude_none=True)
    path = (folder / Path(said.image).expanduser()).absolute()
    if path.suffix in (".sif", ".simg", ".img") or path.is_file():
        return settings | {"reference": "", "digest": _of_file(said, path, where)}, str(path)
    found = _REFERENCE.match(said.image)
    if found is None:
        raise BadInput(
            f"{where}: the image {said.image!r} is neither a file nor the name of an image in a registry (as "
            "ghcr.io/group/code:1.2@sha256:...). Pull others into a file: `apptainer pull code.sif ...`.",
            value=said.image,
        )
    pinned = found["digest"] or said.digest
    if found["digest"] and said.digest and found["digest"] != said.digest:
        raise BadInput(f"{where}: the image and digest have two digests; write one.", value=said.digest)
    if pinned:
        return settings | {"reference": f"{found['name']}@{pinned}", "digest": pinned}, None
    reference, digest = _asked(said, found["name"], said.image.removeprefix("docker://"), where)
    return settings | {"reference": reference, "digest": digest}, None


def _of_file(said: Container, path: Path, where: str) -> str:
    from hpcagent.apps.made_with import sha256

    if not path.is_file():
        raise BadInput(f"{where}: the image {path}: no such file.", value=said.image)
    if said.runtime is not None and said.runtime not in _OF_FILES:
        raise BadInput(
            f"{where}: {said.runtime} runs no image that is a file; name apptainer or singularity, or an image "
            "of a registry.",
            value=said.runtime,
        )
    digest = f"sha256:{sha256(path)}"
    if said.digest not in (None, digest):
        raise BadInput(f"{where}: {path} has the digest {digest}, not {said.digest}.", value=said.digest)
    return digest


def _asked(said: Container, name: str, image: str, where: str) -> tuple[str, str]:
    """(reference, digest) of a name without a digest, from the images of this machine."""
    names = [said.runtime] if said.runtime else [name for name in RUNTIMES if name not in _OF_FILES]
    runtime = next((one for one in names if one not in _OF_FILES and shutil.which(one)), None)
    help_ = f"Write its digest ({image}@sha256:...), so that the run is the same wherever and whenever it is."
    if runtime is None:
        raise BadInput(
            f"{where}: the image {image!r} has no digest, and {' and '.join(names)} here cannot tell it. {help_}",
            value=image,
        )
    try:
        done = subprocess.run(
            [runtime, "image", "inspect", image],
            capture_output=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        found = json.loads(done.stdout)[0] if done.returncode == 0 else None
        digests = [d for d in (found or {}).get("RepoDigests") or () if d.partition("@")[0].endswith(name)]
        if found is not None and digests:
            return f"{name}@{digests[0].partition('@')[2]}", digests[0].partition("@")[2]
        if found is not None:  # built here: it has no name in a registry
            identity = str(found["Id"])
            digest = identity if identity.startswith("sha256:") else f"sha256:{identity}"
            return digest, digest
        why = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    except (OSError, ValueError, KeyError, IndexError, subprocess.TimeoutExpired) as error:
        why = [f"{type(error).__name__}: {error}"]
    raise BadInput(
        f"{where}: the image {image!r} has no digest, and {runtime} does not know it ({why[0][:200]}). {help_}",
        value=image,
    )


# ---- on the worker


def runtime_of(settings: Mapping[str, Any], *, of_file: bool) -> tuple[str, str]:
    """(name, path) of the runtime that is used: the one that is named, else the first that is there.

    Raises:
        AppFailed: `NoRuntime`.
    """
    named = settings.get("runtime")
    allowed = [named] if named else list(_OF_FILES if of_file else RUNTIMES)
    for name in allowed:
        path = shutil.which(name)
        if path is not None:
            return name, path
    raise AppFailed(
        f"{' and '.join(allowed)} {'is' if len(allowed) == 1 else 'are'} not on the PATH of the worker, so there "
        "is nothing to run the container with.",
        kind="infrastructure",
        name="NoRuntime",
        repair=_INSTALL,
    )


def container_words(
    settings: Mapping[str, Any],
    words: Sequence[str],
    *,
    work: Path,
    name: str,
    env: Mapping[str, str],
    file: str | None,
    read: Sequence[str] = (),
) -> tuple[list[str], dict[str, str], str]:
    """The command that runs words in a container, its environment, and the runtime's name.

    Args:
        settings: Of the container, as `resolved` made them.
        words: The program and its arguments; none for the image's own entry point.
        work: The folder that is `/work` in it.
        name: Of the container.
        env: Variables of the program.
        file: Path of the image, where it is a file.
        read: Files and folders that it may read, beside those of the settings.

    Raises:
        AppFailed: `NoRuntime`, `ContainerFailed`.
    """
    runtime, path = runtime_of(settings, of_file=file is not None)
    mounts = list(dict.fromkeys([*settings["read"], *read]))
    for one in (str(work), *mounts):
        if _breaks(one):
            raise AppFailed(
                f"{one} has ':' or ',' in it, and cannot be named to {runtime}.",
                kind="infrastructure",
                name="ContainerFailed",
                repair="another run_dir",
            )
    # What a user has set for his own containers is not this one's.
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("APPTAINER", "SINGULARITY"))}
    kept = {f"APPTAINER_{k}": v for k in ("CACHEDIR", "TMPDIR") if (v := os.environ.get(f"APPTAINER_{k}"))}
    if runtime in _OF_FILES:
        image = file if file is not None else _for_apptainer(settings)
        front = [path, "exec" if words else "run", "--containall", "--cleanenv", "--no-home", "--no-privs"]
        front += ["--bind", f"{work}:{WORK}", "--pwd", WORK]
        front += [word for one in mounts for word in ("--bind", f"{one}:{one}:ro")]
        front += [] if settings["network"] else ["--net", "--network", "none"]
        front += _bounds(settings)
        prefixed = {f"{runtime.upper()}ENV_{k}": v for k, v in env.items()}
        return [*front, image, *words], outside | kept | prefixed, runtime
    front = [path, "run", "--rm", "--interactive", "--name", name, "--pull", settings["pull"], "--read-only"]
    front += ["--tmpfs", "/tmp", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--ulimit", "core=0"]
    front += ["--user", f"{os.getuid()}:{os.getgid()}", "--volume", f"{work}:{WORK}:rw", "--workdir", WORK]
    front += [word for one in mounts for word in ("--volume", f"{one}:{one}:ro")]
    front += [] if settings["network"] else ["--network", "none"]
    if runtime == "podman":
        front += ["--http-proxy=false", *(["--userns", "keep-id"] if os.getuid() else [])]
    front += _bounds(settings)
    front += [word for k, v in env.items() for word in ("--env", f"{k}={v}")]
    front += ["--entrypoint", words[0]] if words else []
    return [*front, settings["reference"], *words[1:]], outside, runtime


def _for_apptainer(settings: Mapping[str, Any]) -> str:
    if settings["pull"] == "never":
        raise AppFailed(
            f'apptainer would have to fetch {settings["reference"]}, and pull is "never".',
            kind="infrastructure",
            name="ImageMissing",
            repair="pull it into a file (apptainer pull code.sif docker://...) and name that, or say "
            'pull = "missing"',
        )
    if settings["reference"].startswith("sha256:"):
        raise AppFailed(
            "the image was built on another machine, and apptainer cannot fetch it.",
            kind="infrastructure",
            name="ImageMissing",
            repair="make a file of it: apptainer build code.sif docker-daemon:...",
        )
    return f"docker://{settings['reference']}"


def _bounds(settings: Mapping[str, Any]) -> list[str]:
    words = []
    if settings.get("memory_mb"):
        words += ["--memory", str(int(1e6 * settings["memory_mb"]))]
    if settings.get("processes"):
        words += ["--pids-limit", str(settings["processes"])]
    return words


_MISSING = re.compile(
    r"no such image|image not known|unable to find image|manifest unknown|pull access denied", re.I
)


def refuse_of_runtime(runtime: str, code: int, text: str) -> None:
    """Refuse the end of a container that the runtime has not started.

    Args:
        runtime: Its name.
        code: Its exit code.
        text: The end of what it wrote to stderr.

    Raises:
        AppFailed: `ImageMissing`, `ContainerFailed`.
    """
    by_itself = code == 255 and "FATAL:" in text if runtime in _OF_FILES else code == 125
    if not by_itself:
        return
    last = (text.strip().splitlines() or [f"exit code {code}"])[-1][:300]
    said = f"{runtime} has not started the container: {last}"
    if _MISSING.search(text) is not None:
        raise AppFailed(
            said,
            kind="infrastructure",
            name="ImageMissing",
            log_tail=text[-2000:],
            repair="pull the image on the machines where the runs are",
        )
    raise AppFailed(said, kind="infrastructure", name="ContainerFailed", log_tail=text[-2000:])


def remove_container(runtime: str, name: str) -> None:
    """End a container whose client was ended: it goes on by itself otherwise."""
    path = shutil.which(runtime)
    if path is None or runtime in _OF_FILES:  # those are children, and ended as such
        return
    words = [path, "rm", "--force", name]
    try:
        subprocess.run(words, capture_output=True, timeout=30, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return
