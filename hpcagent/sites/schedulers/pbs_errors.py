"""The numbers and words with which commands of PBS fail, and what they mean."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from hpcagent.sites.schedulers.submission import Refused

__all__ = [
    "DEAD_NODE",
    "DOWN_WORDS",
    "FINISHED_JOB",
    "NO_MOM",
    "NO_SERVER",
    "NO_SUCH_JOB",
    "UNKNOWN_JOB",
    "printed",
    "refusal",
]

# A command ends with PBS's error number modulo 256; 15001 is 153.
UNKNOWN_JOB, FINISHED_JOB, NO_MOM = 153, 35, 222
NO_SERVER = (162, 255)
_LATER = {
    13: "the server's table of connections is full",
    17: "the licence server is down",
    38: "a limit of jobs",
    39: "a limit of resources in use",
    57: "the server cannot write its database",
    104: "the server asks to try again",
    162: "the server is not there",
    163: "an internal error of the server",
    185: "no free connections",
    186: "no server",
    196: "resources unavailable for now",
    198: "the queue is full",
    212: "the server is shutting down",
    242: "licensed cores exceeded",
    250: "no licence is free",
    255: "the server is not there",
}
_NEVER = {
    1: "the script cannot be read, or PBS has no settings on this machine",
    2: "a wrong option",
    5: "a resource that cannot be beside select",
    32: "a hook of the site refused it",
    166: "a value that is not allowed",
    170: "`qstat -Q` lists the queues",
    173: "the queue takes no jobs",
    174: "this user may not use the queue",
    175: "this user may not run jobs here",
    187: "a resource that this site has not defined",
    188: "`qstat -Qf` shows the limits",
}
_LATER_WORDS = re.compile(
    r"cannot connect|connection (refused|timed out)|would exceed .*limit|maximum number of jobs"
    r"|temporarily|try .*again|shutting down",
    re.IGNORECASE,
)
DOWN_WORDS = re.compile(
    r"cannot connect|could not connect to server|connection (refused|timed out)|no server|shutting down"
    r"|no free connections",
    re.IGNORECASE,
)
# Not "illegally formed job identifier": that is said of jobs that run, where the server's name is not known.
NO_SUCH_JOB = re.compile(r"unknown job id|job has finished|unknown queue destination", re.IGNORECASE)
DEAD_NODE = re.compile(r"could not connect to mom", re.IGNORECASE)
_CUT_OFF = re.compile(r"communication failure|end of file|timed out|protocol", re.IGNORECASE)
"""A qsub that ended with such words may have been heard all the same."""


def refusal(script: Path, done: subprocess.CompletedProcess[str]) -> Refused:
    """How qsub refused a script, with its words and whether another try may help."""
    code, words = done.returncode, printed(done)
    # The words of a hook are the site's: "try again next month" does not mean that trying helps.
    known = code in _NEVER and code != 1
    transient = code in _LATER or (not known and bool(_LATER_WORDS.search(words)))
    hint = _LATER.get(code) or _NEVER.get(code)
    return Refused(
        f"PBS did not take {script} (qsub ended with {code}{f', {hint}' if hint else ''}): {words}",
        transient=transient,
        unheard=bool(_CUT_OFF.search(words)),
    )


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """What a command said of its failure, on one line."""
    return " / ".join(line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip())
