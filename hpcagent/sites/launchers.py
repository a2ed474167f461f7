"""How workers are started on all nodes of a job: by srun, mpiexec, pbsdsh, ssh or flux, one manager on each node.

Parsl's launchers go through a here-document in which a `$` of a path is the shell's, write into $HOME, and leave
it to the program how many processes a node gets.

What a launcher returns are shell lines of a script that knows its own name as `$JOBNAME`. Their last one becomes
the started program, or hands a SIGTERM on to it: who ends the script ends the workers on every node.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from parsl.launchers import SimpleLauncher
from parsl.launchers.base import Launcher

from hpcagent.errors import BadInput
from hpcagent.sites.schedulers.base import Scheduler

__all__ = [
    "MpiexecWorkers",
    "NodeWorkers",
    "OwnWorkers",
    "PbsdshWorkers",
    "SrunWorkers",
    "SshWorkers",
    "worker_launcher",
]

PALS_BIND = "--cpu-bind"

# How one process on each node, not bound, is said to each mpiexec. Without it Open MPI (seen with 4.1) puts all
# on the first node; and it alone gives other nodes nothing of the job's environment.
_WORDS = """\
command -v mpiexec > /dev/null || { echo "There is no mpiexec on the PATH of this job, which starts the workers \
on its nodes: load its module in worker_init, or set worker_launcher = 'pbsdsh' or 'ssh' ([block] of the \
profile). PATH=$PATH" >&2; exit 127; }
case "$(mpiexec --version 2>&1)" in
*"Open MPI"*|*OpenRTE*|*PRRTE*)
  how="--map-by ppr:1:node --bind-to none $(compgen -e | grep -Ev '^(OMPI|PMIX|HOSTNAME)' | sed 's/^/-x /')" ;;
*Intel*) how="-ppn 1 -genv I_MPI_PIN 0" ;;
*HYDRA*) how="-ppn 1 -bind-to none" ;;
*) how="--ppn 1 --cpu-bind none" ;;
esac"""

# pbsdsh and ssh hand on nothing of the job's environment, and ssh joins its words to a line for another shell: so
# each node gets a script, and the environment in a file. What is a node's own stays that node's. pbsdsh starts a
# process for each line of the node file: all but the first of a host leave again.
_EACH_NODE = """\
base={folder}/"$JOBNAME"
mkdir -p "$base.nodes.d"
(umask 077; unset HOSTNAME PWD OLDPWD SHLVL PBS_NODENUM PBS_TASKNUM PBS_MOMPORT SLURMD_NODENAME SLURM_NODEID \
SLURM_PROCID SLURM_LOCALID; export -p > "$base.env")
cat > "$base.node.sh" << 'END-OF-NODE'
base=${{0%.node.sh}}
host=$(uname -n)
mkdir "$base.nodes.d/${{SLURMD_NODENAME:-$host}}" 2> /dev/null || exit 0
exec >> "$base.${{SLURMD_NODENAME:-$host}}.log" 2>&1
. "$base.env"
exec {command} < /dev/null
END-OF-NODE
children=()
trap 'kill "${{children[@]}}" 2> /dev/null' TERM
{start}
code=0
for child in "${{children[@]}}"; do
  wait "$child" || code=$?
  while kill -0 "$child" 2> /dev/null; do wait "$child" || code=$?; done  # it was interrupted by the trap
done
[ "$code" = 0 ] || tail -n 20 "$base".*.log >&2
exit "$code\""""

_PBSDSH = """\
found=$(PATH="$PATH:$PBS_O_PATH:$(sed -n 's/^PBS_EXEC=//p' "${PBS_CONF_FILE:-/etc/pbs.conf}" 2> /dev/null)/bin" \
command -v pbsdsh) || { echo "There is no pbsdsh on the PATH of this job, nor on that of who submitted it, which \
starts the workers on its nodes: set worker_launcher = 'mpiexec' or 'ssh' ([block] of the profile). PATH=$PATH" \
>&2; exit 127; }
"$found" OVERRIDES -- /bin/bash "$base.node.sh" < /dev/null &
children+=($!)"""

_SSH = """\
own=$(uname -n)
while read -r host; do
  if [ "${host%%.*}" = "${own%%.*}" ]; then /bin/bash "$base.node.sh" < /dev/null &
  else ssh -n -o BatchMode=yes OVERRIDES "$host" "/bin/bash $(printf %q "$base.node.sh")" & fi
  children+=($!)
done < "$base.nodes\""""


class NodeWorkers(Launcher):  # type: ignore[misc]  # Parsl has no type information
    """One manager on each node.

    Args:
        overrides: Words added to the command that starts them; nothing in them is the shell's.
    """

    hosts: Sequence[str] = ()
    """The nodes, where they are known when the lines are written; otherwise the job says."""
    host_lines = ""
    """A shell command that prints the nodes of the job that it is in, each once."""

    def __init__(self, overrides: str = "") -> None:
        super().__init__()
        self.overrides = _quoted(overrides)

    def _write_hosts(self, path: str) -> str:
        """A shell line that writes the names of the nodes into a file, each once."""
        if self.hosts:
            return f"printf '%s\\n' {shlex.join(self.hosts)} > {path}"
        if not self.host_lines:
            raise BadInput(
                "worker_launcher: the scheduler's class does not say how a job tells its nodes (host_lines); "
                "write the scheduler's own launcher, or 'single' with one node in a block."
            )
        return f"{self.host_lines} > {path}"


class SrunWorkers(NodeWorkers):
    """By srun, which here gives a manager all cores of the job on its node; Parsl's gives it one."""

    def __call__(self, command: str, tasks_per_node: int, nodes_per_block: int, script_dir: str = "") -> str:
        """Return the shell line."""
        nodes = nodes_per_block
        how = f"--nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpu-bind=none --overlap"
        where = f"--nodelist={','.join(self.hosts)}" if self.hosts else ""
        return " ".join(filter(None, ["srun", how, where, self.overrides, command]))


class OwnWorkers(NodeWorkers):
    """By the scheduler's own command.

    Args:
        words: Of it, for a number of nodes.
        overrides: More words.
    """

    def __init__(self, words: Callable[[int], str], overrides: str = "") -> None:
        super().__init__(overrides)
        self.words = words

    def __call__(self, command: str, tasks_per_node: int, nodes_per_block: int, script_dir: str = "") -> str:
        """Return the shell line."""
        return " ".join(filter(None, [self.words(nodes_per_block), self.overrides, command]))


class MpiexecWorkers(NodeWorkers):
    """By the mpiexec that is on the job's PATH: PALS, Hydra, Intel's or Open MPI.

    Args:
        bind_cmd: The option that, followed by `none`, leaves processes unbound; the default is PALS's.
        overrides: More words; with `ppn` or `map-by` among them, they say how many processes a node gets.
    """

    def __init__(self, bind_cmd: str = PALS_BIND, overrides: str = "") -> None:
        super().__init__(overrides)
        self.bind_cmd = _quoted(bind_cmd)

    def __call__(self, command: str, tasks_per_node: int, nodes_per_block: int, script_dir: str = "") -> str:
        """Return the shell lines."""
        hosts = f'{shlex.quote(script_dir or ".")}/"$JOBNAME".nodes'
        words, how = [_WORDS], "$how "
        if self.bind_cmd != PALS_BIND or re.search(r"ppn\b|--?(map-by|npernode|N)\b", self.overrides):
            words, how = [], f"{self.bind_cmd} none "
        start = f"mpiexec -n {nodes_per_block} --hostfile {hosts} {how}{self.overrides}".rstrip()
        return "\n".join([self._write_hosts(hosts), *words, f"exec {start} {command} < /dev/null"])


class PbsdshWorkers(NodeWorkers):
    """By PBS's own pbsdsh, which needs no MPI."""

    def __call__(self, command: str, tasks_per_node: int, nodes_per_block: int, script_dir: str = "") -> str:
        """Return the shell lines."""
        return _each_node(command, script_dir, _PBSDSH.replace(" OVERRIDES", f" {self.overrides}".rstrip()))


class SshWorkers(NodeWorkers):
    """By ssh from the first node to the others, where a site lets its users in."""

    def __call__(self, command: str, tasks_per_node: int, nodes_per_block: int, script_dir: str = "") -> str:
        """Return the shell lines."""
        start = _SSH.replace(" OVERRIDES", f" {self.overrides}".rstrip())
        return _each_node(command, script_dir, "\n".join([self._write_hosts('"$base.nodes"'), start]))


_BY_NAME = {"srun": SrunWorkers, "pbsdsh": PbsdshWorkers, "ssh": SshWorkers}


def _quoted(words: str) -> str:
    return shlex.join(shlex.split(words))


def _each_node(command: str, folder: str, start: str) -> str:
    return _EACH_NODE.format(folder=shlex.quote(folder or "."), command=command, start=start)


def worker_launcher(
    kind: str, its: type[Scheduler], *, bind_cmd: str = PALS_BIND, overrides: str = ""
) -> Launcher:
    """Return the launcher of that name, as a profile's `worker_launcher` has it, for a scheduler's jobs.

    Example:
        >>> from hpcagent.sites.schedulers.slurm import Slurm
        >>> worker_launcher("srun", Slurm)("work", 1, 2)
        'srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --overlap work'
    """
    if kind == "single":
        return SimpleLauncher()
    found: NodeWorkers
    if kind == "mpiexec":
        found = MpiexecWorkers(bind_cmd, overrides)
    elif kind in _BY_NAME:
        found = _BY_NAME[kind](overrides)
    else:
        found = OwnWorkers(its.launch_words, overrides)
    found.host_lines = its.host_lines
    return found
