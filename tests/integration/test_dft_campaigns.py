"""The packaged campaigns of DFT, argon, surfaces and water: each to its end, its answer against what is known."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.campaign.answer import read_run

pytestmark = pytest.mark.slow

RAHMAN = (94.4, 2.43e-5)
"""Temperature in K and diffusion in cm^2/s of liquid argon of 1.374 g/cm^3: Phys. Rev. 136, A405 (1964)."""


def needed(*names: str) -> None:
    """Skip without these programs and packages; in CI they must be there."""
    missing = [n for n in names if shutil.which(n) is None and importlib.util.find_spec(n) is None]
    if missing:
        words = f"{', '.join(missing)} not found; install the packages of tests/apt.txt and hpcagent[dft]"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)


def ended(result: ha.types.CampaignResult) -> ha.types.CampaignResult:
    """The campaign, if none of its runs failed."""
    assert [r.failure for r in result.results if not r.ok] == []
    return result


def moments(run_dir: Path) -> list[float]:
    """Spin moments of all computations of a campaign, in Bohr magnetons; 0 for those without spin."""
    found = [json.loads(file.read_text()).get("metrics", {}) for file in run_dir.glob("work/*/result.json")]
    return [metrics["magnetic_moment"] for metrics in found if "magnetic_moment" in metrics]


def test_silicon_is_converged_at_400_ev_and_ten_k_points_and_few_of_the_grid_were_computed(tmp_path):
    needed("pw.x")
    result = ended(ha.run("dft_convergence", site="laptop", run_dir=tmp_path))
    best = result.best
    # Of all 88 settings: 350 eV has an error of 1.3 meV/atom also with 10 and more k-points, 9 k-points have 1.04.
    assert best.feasible and best.exact
    assert best.params == {"ecut": 400, "kpts": 10}
    assert best.metrics["error"] <= 1.0
    assert best.metrics["work"] == pytest.approx((400 / 600) ** 1.5 * (10 / 18) ** 3, rel=1e-9)
    assert len(result.results) < 44
    # Each run is compared with one converged computation that all share.
    ran, cached = result.inner["dft_energy"]
    assert (ran, cached) == (len(result.results) + 1, 0)
    assert result.inner["build_crystal"] == (1, 0)
    # Nothing that is cheaper than the answer was found to be good enough.
    cheaper = [r for r in result.results if r.metrics["work"] < best.metrics["work"]]
    assert cheaper and all(r.metrics["error"] > 1.0 for r in cheaper)


def test_two_programs_agree_on_silicon_and_a_second_campaign_computes_nothing(tmp_path):
    needed("pw.x", "gpaw")
    plan = ha.load_campaign("si_eos", changes={"cache": str(tmp_path / "cache")})
    result = ended(ha.run(plan, site="laptop", run_dir=tmp_path / "first"))
    found = {(r.manifest.params["engine"], r.manifest.params["kpts"]): r for r in result.results}
    assert sorted(found) == [("espresso", 6), ("espresso", 8), ("gpaw", 6), ("gpaw", 8)]
    for run in found.values():
        # PBE: 5.469 angstrom and 88.6 GPa (K. Lejaeghere et al., Science 351, aad3000, 2016, and its data).
        assert run["a0"] == pytest.approx(5.469, rel=5e-3)
        assert run["bulk_modulus"] == pytest.approx(88.8, rel=0.05)
        assert 3.5 < run["bulk_modulus_prime"] < 5.0
        assert (Path(run.workdir) / run.artifacts["plot"]).read_bytes().startswith(b"\x89PNG")
    for kpts in (6, 8):
        espresso, gpaw = found["espresso", kpts], found["gpaw", kpts]
        assert espresso["a0"] == pytest.approx(gpaw["a0"], rel=3e-3)
        # Two programs, two kinds of potentials: agreement this close would be one program twice.
        assert espresso["a0"] != pytest.approx(gpaw["a0"], rel=1e-5)
    # Seven strained cells, built once for the four.
    assert result.inner["deform"] == (7, 0) and result.inner["dft_energy"] == (28, 0)
    again = ended(ha.run(plan, site="laptop", run_dir=tmp_path / "second"))
    assert all(ran == 0 for ran, _ in again.inner.values()), again.inner
    assert again.node_hours == 0
    for run in again.results:
        before = found[run.manifest.params["engine"], run.manifest.params["kpts"]]
        assert run.metrics == before.metrics


def test_liquid_argon_diffuses_as_rahman_found(tmp_path):
    plan = ha.load_campaign("argon_melt", changes={"until.max_runs": 6})
    result = ended(ha.run(plan, site="laptop", run_dir=tmp_path))
    t = np.array([r["mean_temperature"] for r in result.results])
    d = np.array([r["diffusion"] for r in result.results])
    # D = D0 exp(-E / k T); 500 atoms without the finite-size correction have about a tenth less than many.
    slope, log_d0 = np.polyfit(1 / t, np.log(d), 1)
    assert np.exp(log_d0 + slope / RAHMAN[0]) == pytest.approx(RAHMAN[1], rel=0.15)
    assert slope < 0 and d[t.argmax()] > d[t.argmin()]
    for run in result.results:
        # J. L. Yarnell et al., Phys. Rev. A 7, 2130 (1973).
        assert run["first_peak"] == pytest.approx(3.68, abs=0.04)
        assert run["exponent"] == pytest.approx(1.0, abs=0.1)
        assert run.uncertainty["diffusion"] > 0
        assert (Path(run.workdir) / run.artifacts["plot"]).read_bytes().startswith(b"\x89PNG")
    # The answer is the temperature of Rahman's diffusion, a few kelvin above his for the same reason.
    assert result.best.metrics["diffusion"] > 0.9 * RAHMAN[1]
    assert result.best.metrics["mean_temperature"] == pytest.approx(RAHMAN[0] + 5, abs=8)
    # All temperatures start from one crystal and one melt.
    assert result.inner["build_crystal"] == (1, 0)
    assert result.inner["lj_equilibrate"] == (len(result.results) + 1, 0)


def test_nickel_binds_oxygen_most_strongly_of_the_metals_that_dft_has_seen(tmp_path):
    needed("gpaw")
    # A coarser level than the packaged one and four of its six metals: a tenth of the time, and the same order.
    changes = {"fixed.ecut": 250, "fixed.kpts": 2, "fixed.vacuum": 4.0, "fixed.box": 3.0}
    changes |= {"space.metal.choices": ["Ag", "Cu", "Ni", "Pd"], "until.max_runs": 8}
    plan = ha.load_campaign("catalyst_screening", changes=changes)
    told = []
    result = ended(ha.run(plan, site="laptop", run_dir=tmp_path, watch=told.append))
    runs = {(r.manifest.params["metal"], r.manifest.params["engine"]): r for r in result.results}
    by_emt = {metal: r["adsorption_energy"] for (metal, engine), r in runs.items() if engine == "emt"}
    by_dft = {metal: r["adsorption_energy"] for (metal, engine), r in runs.items() if engine == "gpaw"}
    assert sorted(by_emt) == ["Ag", "Cu", "Ni", "Pd"]
    # EMT has silver before nickel and errs by an electronvolt and more: no metal is given up on its word.
    assert sorted(by_dft) == sorted(by_emt)
    # The d-band model and every later computation: Ni before Cu before Ag, Pd before Ag (B. Hammer and J. K.
    # Norskov, Nature 376, 238, 1995).
    ranked = sorted(by_dft, key=by_dft.__getitem__)
    assert [m for m in ranked if m != "Pd"] == ["Ni", "Cu", "Ag"]
    assert ranked.index("Pd") < ranked.index("Ag")
    (agreement,) = result.agreements
    # EMT has three of the six pairs as DFT has them.
    assert agreement.points == 4 and agreement.left == 0
    assert agreement.tau == pytest.approx(0.0, abs=1e-9) and agreement.low < 0 < agreement.high
    # The answer is of the dear level only, although EMT has energies of its own for all.
    assert result.best.params == {"metal": "Ni", "engine": "gpaw"}
    assert {p.params["engine"] for p in result.points} == {"gpaw"}
    assert len(result.points) == 4
    # O2 is computed once for each engine, and every slab and its oxygen.
    assert result.inner["dft_energy"] == (2 + 2 * 8, 0)
    # Oxygen is a triplet: two unpaired electrons. Without spin every metal would bind by half an electronvolt more.
    assert [m for m in moments(tmp_path) if m] == pytest.approx([2.0], abs=1e-3)
    for event in result.events:
        data = event["data"]
        assert event["rule"] == "new_promising_catalyst" and data["adsorption_energy"] < -1.2
        uri = urlparse(data["result_uri"])
        assert uri.scheme == "file"
        assert json.loads(Path(uri.path).read_text())["metrics"]["adsorption_energy"] == data["adsorption_energy"]
    catalysts = [e["data"]["catalyst"] for e in result.events]
    assert "Ni" in catalysts and "Ag" not in catalysts
    assert len([e for e in told if e.kind == "rule"]) == len(catalysts)
    emt = [r for (_, engine), r in runs.items() if engine == "emt"]
    assert all("engine emt has no use for xc" in r.notes[0] for r in emt)


def test_salt_water_from_the_command_line(tmp_path):
    needed("packmol", "rdkit")
    folder = tmp_path / "water"
    options = ["--site", "laptop", "--run-dir", str(folder)]
    words = [sys.executable, "-m", "hpcagent.cli", "run", "water_box", *options]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    result = ended(read_run(folder))
    assert [r.manifest.params["temperature"] for r in result.results] == [280, 300, 320]
    for run in result.results:
        # 262 x 18.015 + 22.990 + 35.45 u in (20 angstrom)^3.
        assert run["density"] == pytest.approx(0.9918, abs=1e-4)
        # SPC/E (P. Mark, L. Nilsson, J. Phys. Chem. A 105, 9954, 2001).
        assert run["oo_peak"] == pytest.approx(2.75, abs=0.05)
        # Two picoseconds of 788 atoms: the mean is within five of its own errors.
        error = run.uncertainty["mean_temperature"]
        assert 0 < error < 6
        assert run["mean_temperature"] == pytest.approx(run.manifest.params["temperature"], abs=5 * error)
        assert {"plot", "plot_thermo", "trajectory"} <= set(run.artifacts)
    # Warmer water has less of its binding energy and a higher pressure at the same density.
    cold, _, hot = result.results
    assert hot["potential_energy"] > cold["potential_energy"] and hot["pressure"] > cold["pressure"]
    # Molecules are made and packed once.
    assert result.inner["packmol_box"] == (1, 0) and result.inner["smiles_to_xyz"] == (3, 0)
    assert "0.9918" in ran.stdout
