"""hpcagent as a wheel, a bare checkout and an editable install: what is packaged with it is there in each."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DATA = ("configs", "lammps_inputs", "site_profiles", "starts")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / "setup.cfg").is_file() or any(find_spec(m) is None for m in ("pip", "setuptools", "wheel")),
        reason="needs the checkout, and pip, setuptools and wheel",
    ),
]

# What a user does first; says where hpcagent came from and what it found.
LOOK = """
import json, sys
sys.path[:0] = sys.argv[1:]
import hpcagent as ha
from hpcagent.science.lammps.contract import packaged_inputs
from hpcagent.campaign.loading import list_configs
from hpcagent.sites.endpoint_templates import TEMPLATE_FILES, templates
from hpcagent.sites.profiles import list_profiles
print(json.dumps({
    "file": ha.__file__,
    "configs": {name: ha.load_campaign(name).name for name in list_configs()},
    "inputs": {name: ha.lammps(name).name for name in packaged_inputs()},
    "profiles": [entry.name for entry in list_profiles()],
    "templates": [name for name, at in templates().items() if all((at / f).is_file() for f in TEMPLATE_FILES)],
}))
"""


def packaged(folder: str, pattern: str) -> set[str]:
    return {path.stem for path in (ROOT / folder).glob(pattern)}


def check(found: dict[str, Any], where: Path) -> None:
    assert Path(found["file"]).is_relative_to(where), "another hpcagent was imported"
    assert set(found["configs"]) == packaged("configs", "*.toml") >= {"lj_tuning", "synthetic"}
    assert set(found["inputs"]) == packaged("lammps_inputs", "*/*.toml") >= {"lj_argon", "lj_melt", "eam_cu"}
    assert all(name == app for name, app in found["inputs"].items())
    assert found["templates"] == ["machine", "pbs", "slurm"]
    assert set(found["profiles"]) >= packaged("site_profiles", "*.toml") >= {"laptop", "threads"}


def look(python: Path | str, options: Sequence[str], paths: Sequence[Path | str], cwd: Path) -> dict[str, Any]:
    """Run LOOK in an empty folder, with nothing of this process's environment that could help."""
    cwd.mkdir()
    words = [str(python), *options, "-c", LOOK, *map(str, paths)]
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    ended = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def pip(*words: Path | str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def dependencies() -> list[str]:
    """Folders of the installed dependencies. Put on the path as plain folders their .pth files do nothing."""
    return list(dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build needs, with the traces that a use of it leaves: compiled modules, too."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("hpcagent", *DATA):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for name in DATA:
        assert compileall.compile_dir(copy / name, quiet=2)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, checkout)
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_every_packaged_file_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"hpcagent/py.typed"}
    for folder in DATA:
        files = [p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        wanted |= {f"hpcagent/{p.relative_to(ROOT)}" for p in files}
    # Code, and the tables and pages that lie beside it.
    wanted |= {
        str(p.relative_to(ROOT)) for end in ("py", "json", "csv") for p in (ROOT / "hpcagent").rglob(f"*.{end}")
    } | {str(p.relative_to(ROOT)) for p in (ROOT / "hpcagent" / "web" / "static").iterdir()}
    assert wanted - names == set()
    assert {n for n in names if not n.startswith("hpcagent-")} - wanted == set()
    assert any(name.endswith("LICENSE") for name in names)


def test_the_wheel_works_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    pip("install", "--quiet", "--no-deps", "--no-compile", "--target", target, wheel)
    # -S: no site-packages, so no editable install that could stand in.
    check(look(sys.executable, ["-I", "-S"], [target, *dependencies()], tmp_path / "empty"), target)


def test_a_bare_checkout_works(checkout: Path, tmp_path: Path) -> None:
    check(look(sys.executable, ["-I", "-S"], [checkout, *dependencies()], tmp_path / "empty"), checkout)


def test_an_editable_install_works(checkout: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(dependencies()) + "\n")
    python = venv / "bin" / "python"
    pip("--python", python, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", checkout)
    check(look(python, ["-I"], [], tmp_path / "empty"), checkout)
    command = subprocess.run([venv / "bin" / "hpcagent", "--help"], capture_output=True, text=True, check=False)
    assert command.returncode == 0, command.stderr


# GPAW is compiled, with build settings of its own; the others bring several gigabytes of PyTorch.
BY_THEMSELVES = ("ax", "docs", "gpaw", "mace", "magnetics", "ml", "optuna-gp", "test-globus")


def test_the_extra_all_holds_what_the_others_hold(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(archive.read(name).decode())
    extras: dict[str, set[str]] = {extra: set() for extra in metadata.get_all("Provides-Extra", [])}
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        for extra, held in extras.items():
            if requirement.marker and requirement.marker.evaluate({"extra": extra}):
                requirement.marker = None
                held.add(str(requirement))
                break
    assert {"all", "lammps", "plots", "test"} <= set(extras)
    for extra, held in extras.items():
        assert held, extra
        if extra not in ("test", *BY_THEMSELVES):
            assert held <= extras["all"], f"{extra} is not in all"
    assert extras["all"] <= extras["test"]
    assert any("mpi" in Requirement(line).extras for line in extras["lammps"])
