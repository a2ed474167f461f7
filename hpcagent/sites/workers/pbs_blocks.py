"""Blocks of a site on PBS: Parsl's PBSProProvider, asking and submitting by `hpcagent.sites.schedulers.pbs`."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from string import Template

from parsl.providers import PBSProProvider
from parsl.providers.pbspro.template import template_string

from hpcagent.sites.schedulers.pbs import tool
from hpcagent.sites.script_paths import OUTPUT_NOWHERE, is_plain, outputs_in_script
from hpcagent.sites.workers.blocks import ScriptedBlocks

__all__ = ["PbsBlocks"]

_LONGEST_NAME = 230  # PBS takes 236
_THIS_PBS = ("PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT")
"""Say which PBS is meant, where it is not that of /etc/pbs.conf."""


class PbsBlocks(ScriptedBlocks, PBSProProvider):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's provider with Parsl's script, which here holds all there is to a job: also queue and account.

    No `__init__` of its own, because Parsl inspects it; `prepare` comes before the first submission.
    """

    grace_s = 5.0  # qsub answers when the server has the job: from then on qstat shows it
    word_within_s = 30.0  # up to 13 s were seen, and the server may be slow to tell
    cancelling_tells = True  # qdel asks the node; qstat shows a job of a dead node running until that is back

    def script(self, command: str, job_name: str = "hpcagent", *, tasks_per_node: int = 1) -> str:
        """Return the job script for a command, as `submit` would write it."""
        out, err = self._outputs(job_name)
        named = is_plain(out)
        joined = re.search(r"^#PBS\s+-j\s*oe", self.scheduler_options, re.MULTILINE) is not None
        sent = [] if named else [outputs_in_script(out, err, joined=joined)]
        select = self.select_options
        return Template(template_string).substitute(
            jobname=_job_name(job_name),
            walltime=self.walltime,
            nodes_per_block=self.nodes_per_block,
            ncpus=self.cpus_per_node,
            select_options=f":{select}" if select and not select.startswith(":") else select,
            scheduler_options="\n".join(self._directives()),
            job_stdout_path=out if named else OUTPUT_NOWHERE,
            job_stderr_path=err if named else OUTPUT_NOWHERE,
            worker_init="\n".join([*sent, *_submitted_here(), *_this_pbs(), self.worker_init]),
            user_script=self.launcher(command, tasks_per_node, self.nodes_per_block, self.script_dir or ""),
        )

    def _directives(self) -> list[str]:
        own = [] if self.queue is None else [f"#PBS -q {self.queue}"]
        own += [] if self.account is None else [f"#PBS -A {self.account}"]
        theirs = self.scheduler_options.strip()
        if self.nodes_per_block > 1 and "place=" not in theirs:
            # Left to itself, PBS puts two chunks on one node if they fit; a block's nodes are nodes.
            own.append("#PBS -l place=scatter")
        return [*own, *([theirs] if theirs else [])]

    def job_name(self, name: str) -> str:
        """A name as PBS takes it: `_job_name`."""
        return _job_name(name)


def _submitted_here() -> list[str]:
    """Shell lines for where the job was submitted, if qsub was run elsewhere; see `script_paths.py`."""
    here = str(Path.cwd())
    return [] if is_plain(here) else [f"export PBS_O_WORKDIR={shlex.quote(here)}"]


def _this_pbs() -> list[str]:
    """Shell lines by which a job finds the PBS that it was submitted to: it begins as after a login, where the
    commands of one that is installed beside the system are not on the PATH."""
    lines = [f"export {name}={shlex.quote(os.environ[name])}" for name in _THIS_PBS if os.environ.get(name)]
    qsub = tool("qsub")
    folder = str(Path(qsub).absolute().parent) if qsub else "/usr/bin"
    return lines if folder in os.defpath.split(":") else [*lines, f'export PATH="$PATH":{shlex.quote(folder)}']


def _job_name(name: str) -> str:
    """A name that PBS takes, and gives back as it is: some versions make a number of one with digits only."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)[-_LONGEST_NAME:]
    return f"job-{name}" if re.fullmatch(r"[\d.eE+-]*", name) else name
