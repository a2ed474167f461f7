"""Functions of runs on an endpoint, for the tests of what happens there."""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path


def fine(run, seconds=0.0):
    """A run as it should be, with a file of its own."""
    time.sleep(seconds)
    Path(run.workdir, "made.txt").write_text("made")
    return {"x": 1.0}


def crashes():
    print("before the crash")
    ctypes.string_at(0)


def exits():
    os._exit(3)


def leaves():
    sys.exit(3)


def raises():
    raise ValueError("a value")


def prints():
    while True:
        print("x" * 10000)


def sleeps(run):
    """Starts what tries to outlive it, and waits."""
    told = []
    for words in (["sleep", "600"], ["setsid", "sleep", "600"], ["env", "-i", "setsid", "sleep", "600"]):
        told.append(subprocess.Popen(words).pid)
    Path(run.workdir, "pids").write_text(" ".join(map(str, [os.getpid(), *told])))
    time.sleep(600)


def deaf(run):
    """Will not hear of an end."""
    Path(run.workdir, "pids").write_text(str(os.getpid()))
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue


def killed():
    print("before the kill", flush=True)
    os.kill(os.getpid(), 9)


def surroundings(run):
    """What it finds around itself."""
    before = "numpy" in sys.modules
    import numpy

    told = {
        "cores": sorted(os.sched_getaffinity(0)),
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "drawn": float(numpy.random.random()),
        "group": os.getpgid(0) == os.getpid(),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "omp": os.environ.get("OMP_NUM_THREADS"),
        "numpy_before": before,
    }
    Path(run.workdir, "told.json").write_text(json.dumps(told))
    return {"x": 1.0}
