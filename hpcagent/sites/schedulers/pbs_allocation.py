"""The job of PBS that a process is in: its nodes, what of them is ours, and when it ends."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from hpcagent.sites.schedulers.answers import Allocation, NodeShape
from hpcagent.sites.schedulers.pbs_jobs import job_of
from hpcagent.sites.schedulers.pbs_records import Record, parts, seconds, whole

__all__ = ["allocation_of"]


def allocation_of(job_id: str, record: Record, environ: Mapping[str, str]) -> Allocation:
    """The job that a process with this environment is in; the record is empty where qstat cannot be asked."""
    shares = _shares(record.get("exec_vnode", ""), record.get("exec_host", ""))
    # The file is on the job's first node only.
    listed = _node_file(environ.get("PBS_NODEFILE", "")) or list(shares) or [socket.gethostname()]
    own = _short(socket.gethostname())
    hosts = sorted(dict.fromkeys(listed), key=lambda host: _short(host) != own)
    told = whole(environ.get("NCPUS")) or whole(environ.get("OMP_NUM_THREADS", "").partition(",")[0]) or 1
    nodes = []
    for host in hosts:
        guess = told if told > 1 else min(listed.count(host), os.cpu_count() or 1)
        cores, gpus = shares.get(_short(host), (guess, 0))
        nodes.append(NodeShape(host, cores or guess, gpus))
    job = job_of(job_id, record)
    ends_at = job.ends_at or _end_by_environment(environ)
    return Allocation(job_id, tuple(nodes), ends_at, guessed=not shares, started_at=job.started_at)


def _shares(exec_vnode: str, exec_host: str = "") -> dict[str, tuple[int, int]]:
    """Cores and GPUs by host of `(a:ncpus=2:ngpus=1)+(b[0]:ncpus=1+b[1]:ncpus=1)`.

    Vnodes may be called anything; `exec_host` has the host of each chunk, in the same order.

    Example:
        >>> _shares("(sn:ncpus=4)+(v7:ncpus=2+v8:ncpus=2)", "a/0*4+a/1*4")
        {'a': (8, 0)}
    """
    chunks = re.findall(r"\(([^)]*)\)", exec_vnode)
    hosts = [part.partition("/")[0] for part in parts(exec_host)]
    shares: dict[str, tuple[int, int]] = {}
    for index, chunk in enumerate(chunks):
        for part in parts(chunk):
            vnode, *resources = part.split(":")
            told = dict(r.partition("=")[::2] for r in resources)
            host = _short(hosts[index] if len(hosts) == len(chunks) else vnode.partition("[")[0])
            cores, gpus = shares.get(host, (0, 0))
            shares[host] = (cores + (whole(told.get("ncpus")) or 0), gpus + (whole(told.get("ngpus")) or 0))
    return shares


def _short(host: str) -> str:
    return host.partition(".")[0]


def _node_file(path: str) -> list[str]:
    try:
        return Path(path).read_text().split() if path else []
    except OSError:
        return []


def _end_by_environment(environ: Mapping[str, str]) -> float | None:
    """TORQUE's and some sites' PBS_WALLTIME, from when the node file was written: at the job's start."""
    walltime = seconds(environ.get("PBS_WALLTIME"))
    try:
        begun = Path(environ["PBS_NODEFILE"]).stat().st_mtime
    except (KeyError, OSError):
        return None
    return None if walltime is None else begun + walltime
