"""The CPU use of processes that work in a directory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from hpcagent.apps.cpu_use import CpuUse


def test_a_busy_process_counts_and_an_idle_one_beside_it_does_not(tmp_path: Path) -> None:
    """Against the processor time that the system says when it has ended; on a machine however loaded."""
    use = CpuUse(tmp_path)
    use.look()
    assert use.percent() is None  # nobody is there
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], cwd=tmp_path)
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], cwd=tmp_path)
    try:
        until = time.monotonic() + 60
        while (use.percent() is None) and time.monotonic() < until:
            time.sleep(0.1)
            use.look()
        found = use.percent()
        assert found is not None and 0 < found < 110
    finally:
        for process in (busy, idle):
            process.kill()
            process.wait()
