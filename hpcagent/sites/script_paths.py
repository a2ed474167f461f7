"""Paths that a scheduler does not take as they are: in directives of a job script, and of the script itself.

An unpatched OpenPBS says `illegal -o value` to any letter that is not ASCII, takes what is before a colon for a
host, and hands the working directory of qsub on in a list of its own with commas and quotes. Slurm (22.05, tried)
takes everything but line ends and a backslash, which in a pattern of file names is its own. Shells take any path.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcagent.errors import BadInput

__all__ = ["OUTPUT_NOWHERE", "handed_over", "is_plain", "outputs_in_script", "refuse_unwritable"]

OUTPUT_NOWHERE = "/dev/null"
"""What a directive says where the script itself sends its output to the files."""
_PLAIN = re.compile(r"[A-Za-z0-9_./+=@~-]{1,400}\Z")


def is_plain(path: str | Path) -> bool:
    """Whether every scheduler takes this path as it is.

    Example:
        >>> is_plain("/scratch/me/runs/a.out"), is_plain("/scratch/Müller/a.out"), is_plain("/x/it's")
        (True, False, False)
    """
    return _PLAIN.match(str(path)) is not None


def refuse_unwritable(path: str | Path) -> None:
    """Refuse a folder whose name no job script can hold, before anything is submitted.

    Args:
        path: Where runs, logs and job scripts would be.

    Raises:
        BadInput: A line end or another control character is in it, or bytes that are no text.

    Example:
        >>> refuse_unwritable("/scratch/Müller's runs/100 %")
    """
    found = re.search(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]", str(path))
    if found is not None:
        raise BadInput(
            f"The folder {str(path)!r} cannot be written into a job script: {found[0]!r} in its name is no "
            "character of a line of text. Rename the folder, or give another one with --run-dir.",
            value=str(path),
        )


def outputs_in_script(out: Path, err: Path, *, joined: bool = False) -> str:
    """A shell line by which a job sends its output to files that no directive can name.

    Args:
        out: For standard output.
        err: For standard error.
        joined: Both go to `out`.

    Example:
        >>> outputs_in_script(Path("/a b/out"), Path("/a b/err"))
        "exec > '/a b/out' 2> '/a b/err'"
    """
    errors = "2>&1" if joined else f"2> {shlex.quote(str(err))}"
    return f"exec > {shlex.quote(str(out))} {errors}"


@contextlib.contextmanager
def handed_over(script: Path) -> Iterator[Path]:
    """A path of the script that a submitting command takes, for as long as it reads it.

    Args:
        script: Where it is; it stays there.
    """
    script = script.absolute()  # the command may be run in another folder
    if is_plain(script):
        yield script
        return
    own = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="hpcagent-", dir=own if is_plain(own) else "/tmp")
    try:
        yield Path(shutil.copy(script, Path(folder, "job.sh")))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
