"""All tests in lanes beside each other: most of the time is waiting for Slurm and PBS.

    python tests/in_lanes.py            all tests
    python tests/in_lanes.py ARGS...    pytest with these arguments, in one lane

A test that fails is run once more, alone, after all others: two cores that are full of tests are no fault of the code.
Which ones failed beside others and passed alone is said at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Lane -> its folders; the last lane has all the others, so that no test is in none.
LANES: dict[str, tuple[str, ...]] = {
    "globus": ("tests/globus",),
    "clusters": ("tests/slurm", "tests/pbs"),
    "campaign": ("tests/unit/campaign", "tests/unit/sites", "tests/integration"),
}
REST = "rest"

# More than this many failures are no accident of a busy machine.
MOST_AGAIN = 8

PASSED, FAILED = 0, 1


def arguments(lane: str) -> list[str]:
    """What pytest is told in this lane."""
    if lane != REST:
        return list(LANES[lane])
    return ["tests", *(f"--ignore={folder}" for folders in LANES.values() for folder in folders)]


class Lane(threading.Thread):
    """One pytest with a cache of its own, whose lines are printed with the lane's name.

    Attributes:
        code: The exit code of pytest.
    """

    def __init__(self, name: str, cache: Path) -> None:
        super().__init__(name=name)
        self.cache, self.code = cache, -1

    def run(self) -> None:
        """Run it to its end."""
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={self.cache}", *arguments(self.name)]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(f"{self.name:8} | {line}", end="", flush=True)
        self.code = process.returncode
        print(f"{self.name:8} | ended with {self.code} after {time.monotonic() - began:.0f} s", flush=True)

    @property
    def failed(self) -> list[str]:
        """The tests that failed."""
        found = self.cache / "v" / "cache" / "lastfailed"
        return list(json.loads(found.read_text())) if self.code == FAILED and found.exists() else []


def main() -> int:
    """Run all lanes, then what failed once more; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="lanes") as folder:
        lanes = [Lane(name, Path(folder) / name) for name in (*LANES, REST)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        broken = [lane for lane in lanes if lane.code not in (PASSED, FAILED)]
        again = [test for lane in lanes for test in lane.failed]
    if broken or (any(lane.code == FAILED for lane in lanes) and not 0 < len(again) <= MOST_AGAIN):
        return max(lane.code for lane in lanes) or FAILED
    if not again:
        return PASSED
    print(f"{len(again)} failed; once more, alone: {' '.join(again)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", "-v", *again], cwd=ROOT).returncode
    if code == PASSED:
        print(f"failed beside other tests and passed alone: {' '.join(again)}", flush=True)
    return code


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", *given], cwd=ROOT).returncode if given else main())
