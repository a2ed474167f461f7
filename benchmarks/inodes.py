"""What the runs of a campaign leave on the disk: inodes and bytes by file name, for each run.

python benchmarks/inodes.py [--runs 1000] [--steps 200] [--mode library] [--app lj_argon]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import hpcagent as ha


def kind(path: Path, root: Path) -> str:
    """A path below the campaign's folder with ids and numbers as `*`."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{8,}|\d+", "*", str(path.relative_to(root)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--mode", default="library", choices=("executable", "library", "ensemble"))
    parser.add_argument("--app", default="lj_argon")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="inodes-"))
    if arguments.app == "synthetic":
        app, fixed = ha.apps.synthetic, {}
    else:
        app, fixed = ha.lammps(arguments.app, mode=arguments.mode), {"steps": arguments.steps}
    metric = app.contract.metrics[0].name
    campaign = ha.Campaign(
        app,
        ha.maximize(metric),
        policy="random",
        fixed=fixed,
        batch_size=arguments.runs,
        until=ha.until.max_runs(arguments.runs),
    )
    ha.run(campaign, site="laptop", run_dir=root)
    inodes: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for folder, _, files in os.walk(root):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            name = kind(path, root)
            inodes[name] += 1
            sizes[name] += path.lstat().st_size
    print(f"{arguments.runs} runs of {arguments.app}: {inodes.total() / arguments.runs:.2f} inodes a run")
    for name, count in inodes.most_common():
        if count >= arguments.runs / 20:
            print(f"  {count / arguments.runs:6.2f}  {sizes[name] / count:9.0f} bytes each  {name}")
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
