"""The core under every newer Python that this machine has: `make pythons`.

Each gets an environment of its own with what the core and its tests need, no engines; an allowed version that is not here is named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.12", "3.13")
# Records, policies, the loop on real Parsl, the shell: what differs between versions of Python shows there.
TESTS = (
    "tests/unit/test_model.py",
    "tests/unit/policies/test_sweeps.py",
    "tests/integration/test_campaign.py",
)
NEEDS = ("pytest>=8,<10", "pytest-timeout>=2.3,<3", "jsonschema>=4,<5")
ENDPOINT = "globus-compute-endpoint>=4.19,<4.20"
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
TESTS_PYTHON = ROOT / os.environ.get("VENV", ".venv") / "bin" / "python"


def python(version: str) -> str | None:
    """A Python of this version that runs and can make environments: on the PATH, or one of pyenv's."""
    folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"), reverse=True)
    for found in (shutil.which(f"python{version}"), *(str(folder / "python") for folder in folders)):
        if found and subprocess.run([found, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return found
    return None


def tried(version: str, found: str) -> bool:
    """Whether the core's tests pass under it."""
    home = ROOT / f".venv-{version}"
    own = str(home / "bin" / "python")
    pip = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    steps = ([found, "-m", "venv", str(home)], [*pip, "-e", str(ROOT), *NEEDS])
    if any(subprocess.run(step, cwd=ROOT).returncode for step in steps):
        return False
    tests = [own, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(tests, cwd=ROOT).returncode == 0 and works_for_the_tests_python(own, pip)


def works_for_the_tests_python(own: str, pip: list[str]) -> bool:
    """Whether an endpoint under it runs what a client under the tests' own Python sends."""
    if not (TESTS_PYTHON.exists() and RABBITMQ.exists()):
        print("an endpoint under it was not tried: that needs `make test` before, and RabbitMQ", flush=True)
        return not os.environ.get("CI")
    if subprocess.run([*pip, ENDPOINT], cwd=ROOT).returncode:
        return False
    test = [str(TESTS_PYTHON), "-m", "pytest", "-p", "no:cacheprovider", "tests/globus/test_other_python.py"]
    return subprocess.run(test, cwd=ROOT, env={**os.environ, "HPCAGENT_TEST_WORKER_PYTHON": own}).returncode == 0


def main() -> int:
    """Try all; returns the exit code."""
    failed = []
    for version in VERSIONS:
        found = python(version)
        if found is None:
            print(f"Python {version} is not on this machine, and was not tried.", flush=True)
            continue
        print(f"Python {version}: {found}", flush=True)
        failed += [] if tried(version, found) else [version]
    print(
        f"fails under Python {', '.join(failed)}" if failed else "every Python that was found passes", flush=True
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
