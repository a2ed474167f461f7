"""The same work with Parsl alone, configured as its documentation does, with retries; prints what came of it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider
from work import work

partition, run_dir, runs, seconds, eats = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
worker_init, memory, walltime = sys.argv[6], sys.argv[7], sys.argv[8]
here = Path(__file__).resolve().parent
path = f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={here}"
config = Config(
    executors=[
        HighThroughputExecutor(
            label="htex",
            address="127.0.0.1",
            max_workers_per_node=2,
            cores_per_worker=0.1,
            provider=SlurmProvider(
                partition=partition,
                nodes_per_block=1,
                init_blocks=1,
                max_blocks=2,
                walltime=walltime,
                worker_init=f"{path}\n{worker_init}",
                mem_per_node=int(memory) if memory != "0" else None,
                launcher=SrunLauncher(),
            ),
        )
    ],
    retries=2,
    run_dir=run_dir,
    initialize_logging=False,
)
answer: dict[str, object] = {"pid": os.getpid(), "error": None}
try:
    with parsl.load(config):
        app = parsl.python_app(work)
        futures = [
            app(n, float(seconds), os.environ["FAULTS_FOLDER"], int(eats) if n == 3 else 0) for n in range(runs)
        ]
        results = []
        for n, future in enumerate(futures):
            error = future.exception()
            results.append(
                {
                    "n": n,
                    "ok": error is None,
                    "square": None if error else future.result()["square"],
                    "failure": type(error).__name__ if error else None,
                    "message": str(error)[:300] if error else None,
                }
            )
        answer["results"] = results
except BaseException as error:
    answer["error"] = f"{type(error).__name__}: {str(error)[:300]}"
answer["at"] = time.time()
print(json.dumps(answer))
