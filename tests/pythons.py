"""The core under every newer Python that this machine has: `make pythons`.

Each gets an environment of its own with what the core and its tests need, no engines; an allowed version that is not here is named.
"""

from __future__ import annotations

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
NEEDS = ("pytest>=8,<10", "jsonschema>=4,<5")


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
    return (
        subprocess.run(
            [own, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *TESTS], cwd=ROOT
        ).returncode
        == 0
    )


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
