"""The error of a cutoff and a k-mesh, by Quantum ESPRESSO on silicon."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import hpcagent as ha

SILICON = {"name": "Si", "engine": "espresso", "converged_ecut": 200, "converged_kpts": 3}


def needed(*programs: str) -> None:
    missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        words = f"{', '.join(missing)} not found; install the packages of tests/apt.txt"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)


@pytest.fixture
def here(tmp_path):
    """The folder of an open site."""
    with ha.open_site("threads", run_dir=tmp_path):
        yield tmp_path


def convergence(**params):
    app = ha.apps.dft_convergence.with_settings(pseudopotentials={"Si": "Si.pbe-rrkj.UPF"})
    return app(**(SILICON | params)).result()


def energies(folder: Path) -> dict[tuple[float, int], Path]:
    """(cutoff, k-points) -> directory of every computation in the site's folder."""
    found = {}
    for file in folder.glob("work/*/manifest.json"):
        manifest = json.loads(file.read_text())
        if manifest["app"] == "dft_energy":
            params = manifest["params"]
            found[params["ecut"], params["kpts"]] = file.parent
    return found


def waves(folder: Path) -> int:
    """Plane waves of the density, as pw.x prints them."""
    said = re.search(r"Dense\s+grid:\s+(\d+) G-vectors", (folder / "espresso.pwo").read_text())
    assert said is not None
    return int(said[1])


def test_the_error_is_the_distance_from_the_converged_energy(here):
    needed("pw.x")
    coarse, converged = convergence(ecut=120, kpts=2), convergence(ecut=200, kpts=3)
    assert coarse.ok, coarse.failure
    # The converged setting has no error, exactly: it is the run that it is compared with.
    assert converged["error"] == 0 and converged["work"] == 1
    found = energies(here)
    assert sorted(found) == [(120, 2), (200, 3)]
    by_hand = [json.loads((found[k] / "result.json").read_text())["metrics"]["energy"] / 2 for k in sorted(found)]
    assert coarse["error"] == pytest.approx(abs(by_hand[0] - by_hand[1]) * 1e3, rel=1e-9)
    assert coarse["error"] > 100
    assert coarse["energy_per_atom"] == pytest.approx(by_hand[0], rel=1e-12)
    # Asked for twice, here and as what it is compared with, it is one run, and the first question's at that.
    assert [(p.app, p.shared) for p in converged.parts] == [("build_crystal", True), ("dft_energy", True)]


def test_work_goes_with_the_number_of_plane_waves_and_of_k_points(here):
    needed("pw.x")
    result = convergence(ecut=120, kpts=2)
    assert result["work"] == pytest.approx((120 / 200) ** 1.5 * (2 / 3) ** 3, rel=1e-12)
    found = energies(here)
    # pw.x counts the waves itself; few as they are, their number is a little off the volume of the sphere.
    counted = waves(found[120, 2]) / waves(found[200, 3])
    assert result["work"] == pytest.approx(counted * (2 / 3) ** 3, rel=0.05)
    assert result["wall_s"] == json.loads((found[120, 2] / "result.json").read_text())["cost"]["wall_s"]


def test_a_cutoff_that_the_engine_does_not_take_fails_with_its_reason(here):
    failure = ha.apps.dft_convergence(name="Cu", engine="emt", ecut=120, kpts=2).result().failure
    assert (failure.kind, failure.name) == ("contract", "BadSettings")
    assert "ecut=" in failure.message
