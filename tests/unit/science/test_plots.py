"""Plots: what is drawn, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "analysis"))
import hpcagent as ha
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.science import plots
from hpcagent.science.analysis.msd import msd
from hpcagent.science.analysis.rdf import rdf
from tests.unit.science.analysis.trajectories import dump, run_of, walk

ARGUMENTS: dict[str, dict[str, Any]] = {
    "plot_rdf": {"labels": "", "title": "g"},
    "plot_msd": {"labels": "", "title": "", "scale": "log"},
    "plot_dos": {"labels": "", "title": ""},
    "plot_thermo": {"title": ""},
    "plot_eos": {"title": ""},
    "plot_convergence": {"parameter": "ecut", "metric": "energy", "relative": "last", "title": ""},
    "plot_scf": {"title": ""},
    "plot_structure": {"title": ""},
}


def table(folder: Path, name: str, header: str, *columns: Any) -> None:
    np.savetxt(folder / name, np.column_stack(columns), delimiter=",", header=header, comments="")


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """Input runs for every plot."""
    r = np.linspace(0.1, 10, 50)
    table(tmp_path, "rdf.csv", "r_angstrom,g_1,g_error_1,neighbors_within_1", r, 1 + np.exp(-r), 0 * r + 0.05, r)
    table(tmp_path, "msd.csv", "time_ps,msd_angstrom2", r - 0.1, 3 * (r - 0.1))
    table(
        tmp_path,
        "dos.csv",
        "frequency_THz,dos_per_atom_THz,dos_O_per_atom_THz",
        r,
        r * np.exp(-r),
        r * np.exp(-2 * r),
    )
    table(
        tmp_path, "eos.csv", "volume_angstrom3_per_atom,energy_eV_per_atom,fit_eV_per_atom", r + 5, (r - 5) ** 2, r
    )
    head = "time_ps,temperature_K,epot_eV,ekin_eV,etot_eV,econserved_eV,volume_A3,pressure_GPa"
    table(tmp_path, "thermo.csv", head, r, 300 + r, -r, r, 0 * r, 0 * r, 0 * r + 100, 0 * r)
    history = {"calculations": [{"attempts": [[[-1.0, None], [-1.1, 0.1], [-1.11, 0.01], [-1.11, 1e-4]]]}]}
    (tmp_path / "scf.json").write_text(json.dumps(history))
    metrics = {"fit_from": 2.0, "fit_to": 8.0, "diffusion": 5e-5, "diffusion_angstrom2_ps": 0.5}

    def before(artifact: str, file: str, **more: Any) -> dict[str, Any]:
        return {"workdir": str(tmp_path), "artifacts": {artifact: file}, "metrics": {}, **more}

    water = '3\nProperties=species:S:1:pos:R:3 pbc="F F F"\nO 0 0 0.1\nH 0 0.76 -0.48\nH 0 -0.76 -0.48\n'
    levels = [
        {"metrics": {"energy": -1.0 + 2.0**-i}, "manifest": {"params": {"ecut": 100.0 * (i + 1)}}}
        for i in range(5)
    ]
    return {
        "plot_rdf": [before("rdf", "rdf.csv"), before("rdf", "rdf.csv")],
        "plot_msd": [before("msd", "msd.csv", metrics=metrics, uncertainty={"diffusion": 1e-6})],
        "plot_dos": [before("dos", "dos.csv")],
        "plot_thermo": [before("thermo", "thermo.csv")],
        "plot_eos": [before("eos", "eos.csv")],
        "plot_convergence": [{"workdir": "", "artifacts": {}, **level} for level in levels],
        "plot_scf": [before("scf", "scf.json")],
        "plot_structure": [{"workdir": "", "structure": water}],
    }


EXPECTED = {
    "plot_rdf": 100, "plot_msd": 49, "plot_dos": 100, "plot_thermo": 200, "plot_eos": 50, "plot_convergence": 5,
    "plot_scf": 3, "plot_structure": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_every_plot_is_a_picture_with_ink_on_it(
    tmp_path: Path, inputs: dict[str, list[dict[str, Any]]], name: str
) -> None:
    from matplotlib.image import imread

    run = run_of(tmp_path, *inputs[name])
    found = getattr(plots, name).plain_function(run=run, **ARGUMENTS[name])
    assert found.artifacts == {"plot": "plot.png"}
    assert found.metrics["n_points"] == EXPECTED[name]
    image = imread(run.workdir / "plot.png")
    dark = (image[..., :3].min(axis=2) < 0.5).mean()
    assert min(image.shape[:2]) > 300 and 0.002 < dark < 0.5


def test_axes_name_their_units(
    tmp_path: Path, inputs: dict[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    seen: list[str] = []
    save = Figure.savefig

    def spying(figure: Figure, *args: Any, **kwargs: Any) -> None:
        seen.extend(label for ax in figure.axes for label in (ax.get_xlabel(), ax.get_ylabel()) if label)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", spying)
    for name, arguments in ARGUMENTS.items():
        getattr(plots, name).plain_function(run=run_of(tmp_path, *inputs[name]), **arguments)
    assert len(seen) > 14
    without = {label for label in seen if "(" not in label}
    assert without <= {"g(r)", "SCF step"}
    assert "ecut (eV)" in seen and "energy - that at ecut = 500\n(meV)" not in seen
    assert "energy - that at ecut = 500\n(eV)" in seen


def test_lines_are_named_by_what_differs(tmp_path: Path) -> None:
    def runs(*params: dict[str, Any]) -> Run:
        return run_of(tmp_path, *({"manifest": {"params": p}} for p in params))

    assert plots._labels(runs({"a": "Na", "bins": 5}, {"a": "Cl", "bins": 5}), "") == ["a = Na", "a = Cl"]
    assert plots._labels(runs({"T": 300.0}, {"T": 300.0}), "") == ["run 1", "run 2"]
    assert plots._labels(runs({}, {}), "one; two") == ["one", "two"]
    with pytest.raises(AppFailed, match="2 names for 1"):
        plots._labels(runs({}), "one; two")


def test_runs_that_have_nothing_to_draw_are_refused(
    tmp_path: Path, inputs: dict[str, list[dict[str, Any]]]
) -> None:
    def failure(name: str, *runs: dict[str, Any], **arguments: Any) -> AppFailed:
        with pytest.raises(AppFailed) as failed:
            getattr(plots, name).plain_function(run=run_of(tmp_path, *runs), **{**ARGUMENTS[name], **arguments})
        return failed.value

    assert failure("plot_rdf", *inputs["plot_msd"]).name == "NoData"
    assert failure("plot_rdf", {"workdir": str(tmp_path), "artifacts": {"rdf": "gone.csv"}}).name == "MissingFile"
    (tmp_path / "empty.csv").write_text("r_angstrom,g_1\n")
    assert failure("plot_rdf", {"workdir": str(tmp_path), "artifacts": {"rdf": "empty.csv"}}).name == "BadData"
    missing = failure("plot_convergence", *inputs["plot_convergence"], parameter="ecutt")
    assert missing.name == "NoData" and "ecut" in missing.message


def test_a_chain_from_a_trajectory_to_its_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @ha.app(metrics={"n": "1"})
    def simulation(run: Run) -> Outcome:
        dump(run.workdir / "a.dump", walk(60, 30, 0.2, 1, 12.0), 12.0)
        return Outcome(metrics={"n": 60}, artifacts={"trajectory": "a.dump"})

    with ha.open_site("threads", private=False):
        simulated = simulation()
        shells = rdf(simulated, units="metal", bins=20)
        moved = msd(simulated, units="metal", timestep=0.1)
        drawn = [plots.plot_rdf(shells), plots.plot_msd(moved)]
        for future in drawn:
            result = future.result()
            assert result.status == "COMPLETED", result.failure
            assert (Path(result.workdir) / result.artifacts["plot"]).stat().st_size > 5000
        assert moved.result().metrics["diffusion_angstrom2_ps"] == pytest.approx(0.2, rel=0.3)
