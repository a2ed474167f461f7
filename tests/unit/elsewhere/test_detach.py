"""A process that goes on by itself is started with the descriptors that it is to have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SAID = """
import os, sys

def main():
    print("in", os.readlink("/proc/self/fd/0"), flush=True)
    print("err", file=sys.stderr, flush=True)
"""
STARTS = """
import os, sys
from pathlib import Path
if sys.argv[1] == "closed":
    os.close(0)
from hpcagent.elsewhere.detach import spawned
sys.exit(spawned("said", log=Path("log")).wait())
"""


def test_with_standard_input_closed_what_a_process_prints_is_in_its_log(tmp_path: Path) -> None:
    (tmp_path / "said.py").write_text(SAID)
    (tmp_path / "starts.py").write_text(STARTS)
    for way in ("open", "closed"):
        words = [sys.executable, "starts.py", way]
        done = subprocess.run(words, cwd=tmp_path, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0
        log = tmp_path / "log"
        assert log.read_text().splitlines() == ["in /dev/null", "err"]
        log.unlink()
