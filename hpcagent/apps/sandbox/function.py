"""An app's function in a sandbox: a process of its own, which alone imports it.

This process hands it the call as JSON and takes the answer as JSON. It neither imports the function's modules nor
unpacks a function that travels by value; what the answer says is checked as a stranger's.
"""

from __future__ import annotations

import base64
import errno
import glob
import json
import os
import pickle
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hpcagent.apps.calling import crash_of
from hpcagent.apps.carried import Carried, carry
from hpcagent.apps.ending import Finished, Limit, finish
from hpcagent.apps.launch import planned
from hpcagent.apps.made_with import OtherFile, sha256
from hpcagent.apps.modules import file_in_tree, is_named
from hpcagent.apps.printed import read_tail
from hpcagent.apps.rebuilt import Travelled
from hpcagent.apps.run import Outcome, Run, note
from hpcagent.apps.sandbox.boxed import FOLDER, Box, box_of
from hpcagent.beside import told
from hpcagent.errors import AppFailed

__all__ = ["in_a_box"]

_CALL, _ANSWER, _OUTPUT = "hpcagent-call.json", "hpcagent-answer.json", "output.txt"
_LARGEST_ANSWER = 16_000_000
_TAIL = 4000
_INSIDE = Path(__file__).with_name("inside.py")
_PACKAGES = frozenset({"site-packages", "dist-packages"})
# What of the site a function in a sandbox is told; environments and launchers of programs are not for it.
_OF_SITE = ("name", "node_cores")
# Files of the run's own directory, which no artifact may be.
_OWN = frozenset({"manifest.json", "result.json", "repairs.json", _OUTPUT})
_OWN_BEGINNINGS = ("attempt-", "repair-", FOLDER)


def in_a_box(order: Mapping[str, Any], params: Mapping[str, Any], run: Run) -> Outcome:
    """Call an order's function in the sandbox that the run's settings say.

    Args:
        order: As the worker has it. Variables of `[apps.NAME]` of the site's profile are the function's, too.
        params: Arguments of the function, beside `run`.
        run: The run; it is started where the run was placed.

    Raises:
        AppFailed: What the function raised; `NoSandbox`, `SandboxLimit`, `SandboxFailed`, `SandboxLost`,
            `OutputsTooLarge`, `MissingArtifact`, `BadReturn`, `FilesChanged`, `Walltime`, `BlockEnded`, `Killed`,
            `FunctionCrashed`, `FunctionExited`.
        OSError: The disk is full.
    """
    with box_of(run) as box:
        made_of = _own_files(order)
        _refuse_changed(made_of)
        box.read += [str(path) for path, _, _ in made_of.values()]
        given = _placed(box, order, run)
        box.read += _readable(order, run)
        (box.folder / _CALL).write_text(_call(order, params, run))
        words = [sys.executable, "-P", "-s", "-X", "faulthandler", str(_INSIDE), _CALL, _ANSWER]
        threads = str(int(run.resources.get("threads_per_rank") or 1))
        env = {"OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        launch = planned(run, words, app=order["manifest"]["app"], env=env)
        output = run.workdir / _OUTPUT
        finished = finish(box.started_by(launch), cwd=box.folder, output=output, limit=Limit.of(run))
        outcome = _ended(box, finished, given, read_tail(output, _TAIL))
        _refuse_changed(made_of)
        if not output.stat().st_size:
            output.unlink()
        return outcome


# ---- what it is given


def _own_files(order: Mapping[str, Any]) -> dict[str, tuple[Path, str, str]]:
    """Name -> file, name and recorded SHA-256 of each module of the user's that the function is made of."""
    found = {}
    for name, digest in (order.get("modules") or {}).items():
        path, _ = file_in_tree(name)
        # One that is not found here came in the function's folder. What a module loads from a path is not given
        # to it: it would decide itself what it may read.
        if path is not None and is_named(name):
            found[name] = (path, name, str(digest))
    return found


def _refuse_changed(made_of: Mapping[str, tuple[Path, str, str]]) -> None:
    """Refuse a module whose file is not as it is recorded: the sandbox reads the file, whatever is loaded here."""
    for path, name, recorded in made_of.values():
        try:
            now = sha256(path)
        except OSError:
            now = ""
        if now != recorded:
            raise AppFailed(
                f"{OtherFile(name, str(path), recorded, now)}: not computed, as the run stands for the content "
                "that is recorded.",
                kind="infrastructure",
                name="FilesChanged",
                repair="put the old content back and go on, or start anew in another folder (run_dir)",
            )


def _placed(box: Box, order: Mapping[str, Any], run: Run) -> list[str]:
    """Put the files that the run's point chooses into the box; the names of all that is put there."""
    names = [file["name"] for file in (order.get("chosen") or {}).values()]
    for name in names:
        source = run.workdir / name
        if source.is_symlink():  # a large one, which stays where it is
            target = source.readlink()
            (box.folder / name).symlink_to(target)
            box.read.append(str(target))
        else:
            shutil.copyfile(source, box.folder / name)
    return [*names, _CALL, _ANSWER]


def _readable(order: Mapping[str, Any], run: Run) -> list[str]:
    """Files and folders that it must be able to read: hpcagent, packages, files of settings and of its inputs."""
    import hpcagent

    found = [str(Path(hpcagent.__file__).parent)]
    found += [entry for entry in sys.path if _PACKAGES.intersection(Path(entry).parts)]
    if isinstance(order["function"], Travelled) and order["function"].folder:
        found.append(order["function"].folder)
    found += [str(path) for path in (run.settings.get("paths") or {}).values() if path]
    for result in run.upstream:
        if result.get("workdir"):
            found += [str(Path(result["workdir"]) / file) for file in (result.get("artifacts") or {}).values()]
    return [path for path in dict.fromkeys(found) if Path(path).is_absolute() and Path(path).exists()]


def _call(order: Mapping[str, Any], params: Mapping[str, Any], run: Run) -> str:
    """What the process in the box is told, as JSON."""
    kept = {f.name: getattr(run, f.name) for f in fields(run) if f.name not in ("workdir", "comm", "site")}
    site = {name: run.site[name] for name in _OF_SITE if name in run.site}
    files = {name: file["name"] for name, file in (order.get("chosen") or {}).items()}
    return json.dumps(
        {
            "function": _reference(order["function"]),
            "params": {name: value for name, value in params.items() if name not in files},
            "files": files,
            "run": {**kept, "site": site},
            "promises": order["promises"],
            "path": [str(Path(entry).absolute()) for entry in sys.path],
            "modules": told(),
        }
    )


def _reference(function: str | Carried | Callable[..., Any]) -> dict[str, str]:
    if isinstance(function, str):
        return {"name": function}
    packed = pickle.dumps(function if isinstance(function, Carried) else carry(function))
    return {"packed": base64.b64encode(packed).decode()}


# ---- what it gives


def _ended(box: Box, finished: Finished, given: list[str], tail: str) -> Outcome:
    """The outcome that the function has answered with; its artifacts are in the run's directory then."""
    said, wrong = _answer(box.folder / _ANSWER)
    if said is None and finished.stopped is not None:
        raise finished.stopped.failure(wall_s=finished.wall_s, log_tail=tail)
    outcome = None
    if said is not None and "outcome" in said:
        outcome = _outcome(said["outcome"])
    declared = [] if outcome is None else [glob.escape(file) for file in outcome.artifacts.values()]
    left = box.ended(finished, declared, given=given, errors=tail, log_tail=tail)
    if said is None:
        raise crash_of(finished.returncode, tail) if not wrong else _bad(f"its answer {wrong}")
    for sentence in said.get("noted") or ():
        note(str(sentence))
    if outcome is None:
        _raise(said, tail)
        raise _bad("it gives neither an outcome nor a failure")
    for name, file in outcome.artifacts.items():
        if file not in left.taken:
            raise AppFailed(
                f"the artifact {name!r} of the app's function was not taken out of its sandbox: {file} is "
                f"{left.refused.get(file, 'not there')}.",
                kind="contract",
                name="MissingArtifact",
                log_tail=tail,
                repair="let the function write it as a plain file in its working directory",
            )
    return outcome


def _answer(path: Path) -> tuple[dict[str, Any] | None, str]:
    """What the function's process has written as its answer, or None; and what is wrong with it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, ""
    except OSError:
        return None, "is no plain file"
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            return None, "is no plain file"
        if about.st_size > _LARGEST_ANSWER:
            size = f"{about.st_size / 1e6:.4g} MB"
            return None, f"has {size}; at most {_LARGEST_ANSWER / 1e6:g} MB are taken: let it write files"
        try:
            said = json.loads(file.read(_LARGEST_ANSWER))
        except (ValueError, RecursionError) as error:
            return None, f"is no JSON: {error}"
    if not isinstance(said, dict) or not isinstance(said.get("noted", []), list):
        return None, "is no answer"
    return said, ""


_TEXTS = ("units", "bounds", "artifacts", "versions", "level_of_theory")
_NONE_OF_THESE = ("files", "ends_with")


def _outcome(said: Any) -> Outcome:
    """The outcome of an answer; its numbers are looked at by whoever records it.

    Raises:
        AppFailed: `BadReturn`.
    """
    if not isinstance(said, dict):
        raise _bad("it gives no outcome")
    said = {"level_of_theory": {}} | said  # an older hpcagent in an image does not say it
    for name in _NONE_OF_THESE:
        if said.get(name):
            raise _bad(f"its Outcome.{name} tells of files, which is not believed from a sandbox; leave it out")
    for name in ("metrics", "uncertainty", *_TEXTS):
        if not isinstance(said.get(name), dict):
            raise _bad(f"its Outcome.{name} is no mapping")
    for name in _TEXTS:
        if not all(isinstance(value, str) for value in said[name].values()):
            raise _bad(f"its Outcome.{name} has something else than texts")
    notes, distrusted, stopped = said.get("notes"), said.get("distrusted"), said.get("stopped")
    if not isinstance(notes, list) or not isinstance(distrusted, (str, type(None))):
        raise _bad("its Outcome.notes or Outcome.distrusted is no text")
    if not isinstance(stopped, (dict, type(None))):
        raise _bad("its Outcome.stopped is none of a guard")
    for name, file in said["artifacts"].items():
        if file.split("/")[0] in _OWN or file.startswith((*_OWN_BEGINNINGS, "/", "..")):
            raise _bad(f"its artifact {name!r} is {file!r}, which is not the function's own file in its directory")
    return Outcome(
        metrics=said["metrics"],
        uncertainty=said["uncertainty"],
        units=said["units"],
        bounds=said["bounds"],
        artifacts=said["artifacts"],
        versions=said["versions"],
        level_of_theory=said["level_of_theory"],
        notes=tuple(map(str, notes)),
        distrusted=distrusted,
        stopped=stopped,
    )


def _bad(what: str) -> AppFailed:
    return AppFailed(
        f"the app's function has answered from its sandbox, but {what}.", kind="contract", name="BadReturn"
    )


def _raise(said: Mapping[str, Any], tail: str) -> None:
    """Raise what the function raised.

    Raises:
        AppFailed: That, or `SandboxLimit`: it asked for more memory or a larger file than it may have.
        OSError: The disk is full.
    """
    if "memory" in said:
        raise _limit(f"it got no more memory ({said['memory']})", "memory_mb", tail)
    if isinstance(said.get("os_error"), list):
        _raise_os_error(said["os_error"], tail)
    failure = said.get("failure")
    if isinstance(failure, dict):
        # A kind that there is not is told where it is recorded, as are stops that are none.
        details: dict[str, Any] = {n: str(failure[n]) for n in ("kind", "name", "repair") if failure.get(n)}
        if isinstance(failure.get("stopped"), dict):
            details["stopped"] = failure["stopped"]
        log_tail = str(failure.get("log_tail") or tail)
        raise AppFailed(str(failure.get("message") or "it said nothing"), log_tail=log_tail, **details)


def _raise_os_error(said: list[Any], tail: str) -> None:
    number = said[0] if said and isinstance(said[0], int) else errno.EIO
    message, path = (str(one) if one else "" for one in (*said[1:3], *("", ""))[:2])
    error = OSError(number, message, path or None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        raise error
    if number == errno.EFBIG:
        raise _limit(f"a file of it became larger than it may ({path or message})", "file_mb", tail)
    raise AppFailed(
        f"{type(error).__name__}: {error}",
        kind="contract",
        name=type(error).__name__,
        log_tail=tail,
        repair="if the sandbox is why: files and folders that it may read are `read` of [sandbox], the network is "
        "`network`",
    )


def _limit(what: str, key: str, tail: str) -> AppFailed:
    return AppFailed(
        f"the app's function has met a limit of its sandbox: {what}.",
        kind="simulation",
        name="SandboxLimit",
        log_tail=tail,
        repair=f"raise {key} of [sandbox] if the function needs that much",
    )
