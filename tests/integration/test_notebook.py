"""The tutorial notebooks work as they stand."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.campaign.answer import read_run

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"

# Of jupyter_client, tornado and zmq, not of ours: where their files are, and how they use event loops.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def this_python(tmp_path, monkeypatch):
    """A kernel that is this interpreter, known to this test alone."""
    pytest.importorskip("ipykernel")
    folder = tmp_path / "jupyter" / "kernels" / "python3"
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(
        json.dumps({"argv": command, "display_name": "Python 3", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def outputs_of(name, work):
    """What the cells of a tutorial show when it is run from top to bottom in an empty folder."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    work.mkdir()
    notebook = nbformat.read(shutil.copy(TUTORIALS / name, work), as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(work)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [o for o in outputs if o.output_type == "error"] == []
    keep(notebook, name)
    return outputs


def keep(notebook, name):
    """For `make docs` with the same notebook, which then need not run it; where its packages are installed."""
    try:
        from jupyter_cache import get_cache
        from jupyter_cache.base import CacheBundleIn
    except ImportError:
        return
    kept = get_cache(TUTORIALS.parent / "_build" / "notebooks")
    kept.cache_notebook_bundle(
        CacheBundleIn(notebook, str(TUTORIALS / name)), check_validity=False, overwrite=True
    )


def printed(outputs):
    return "".join(o.text for o in outputs if o.output_type == "stream")


def tables(outputs):
    return sum("<table>" in o.get("data", {}).get("text/html", "") for o in outputs)


def plots(outputs):
    return sum("image/png" in o.get("data", {}) for o in outputs)


def test_the_first_campaign_runs_and_shows_tables_and_plots(this_python, tmp_path):
    pytest.importorskip("lammps")
    pytest.importorskip("matplotlib")
    outputs = outputs_of("first_campaign.ipynb", tmp_path / "work")
    assert plots(outputs) >= 2
    assert tables(outputs) >= 1
    assert "first_campaign: maximize ns_per_day" in printed(outputs) and "P(feasible)" in printed(outputs)
    assert (tmp_path / "work" / "runs" / "first_campaign" / "events.jsonl").is_file()


def test_the_convergence_of_silicon_is_found_and_its_equation_of_state_is_that_of_pbe(this_python, tmp_path):
    if shutil.which("pw.x") is None:
        words = "pw.x not found; install the packages of tests/apt.txt"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)
    pytest.importorskip("ase")
    pytest.importorskip("matplotlib")
    outputs = outputs_of("dft_convergence.ipynb", tmp_path / "work")
    said = printed(outputs)
    assert "pseudopotentials found by functional" in said
    assert "FAILED simulation NotConverged" in said
    assert "repaired by more_steps: max_scf 3 -> 6" in said

    result = read_run(tmp_path / "work" / "runs" / "cutoff")
    best = result.best
    assert best.feasible and best.metrics["error"] <= 1.0
    assert f"{len(result.results)} of 88 grid points were run" in said
    assert len(result.results) < 30
    # The series at 6 k-points is not good enough at any cutoff, as the text says.
    assert best.params["kpts"] > 6
    assert result.inner["build_crystal"] == (0, 1), "the crystal built by hand was not found in the cache"
    assert tables(outputs) == result.results[-1].manifest.batch + 1
    assert plots(outputs) == 5

    # All-electron PBE (K. Lejaeghere et al., doi:10.1126/science.aad3000): 5.469 angstrom, 88.5 GPa. The
    # pseudopotential is worth 0.01 angstrom and 2 GPa.
    row = re.search(rf"^{best.params['ecut']:.0f} eV, .*?(\d\.\d+) \+- \S+ +(\d+\.\d) \+-", said, re.MULTILINE)
    assert row is not None, said
    assert float(row[1]) == pytest.approx(5.469, abs=0.02)
    assert float(row[2]) == pytest.approx(88.5, abs=4)


def test_a_notebook_gives_the_same_result_as_a_script_and_goes_on_after_an_interrupt(this_python, tmp_path):
    import nbclient
    import nbformat

    cell = """
import hpcagent as ha
from hpcagent.apps.landscape import synthetic

campaign = ha.Campaign(synthetic, ha.maximize("value", subject_to={"error": ha.at_most(1.0)}),
                       space={"x": {}, "y": {}}, fixed={"noise": 0.02}, until=ha.until.max_runs(18), batch_size=6, seed=5)
"""
    first = """
try:
    with ha.Coordinator(campaign, site="laptop", run_dir="run", watch=ha.watch(campaign)) as coordinator:
        for batch in coordinator:
            raise KeyboardInterrupt
except KeyboardInterrupt:
    print("interrupted")
"""
    again = """
with ha.Coordinator(campaign, site="laptop", run_dir="run", watch=ha.watch(campaign)) as coordinator:
    for batch in coordinator:
        display(batch.table())
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (cell, first, again)])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    script: dict[str, object] = {}
    exec(cell, script)
    ha.run(script["campaign"], site="threads", run_dir=tmp_path / "script")

    def told(folder):
        return [(r.manifest.execution_id, r.manifest.batch, r.metrics) for r in read_run(folder).results]

    assert told(tmp_path / "run") == told(tmp_path / "script")
    shown = [o for c in notebook.cells for o in c.outputs]
    assert sum("<table>" in o.get("data", {}).get("text/html", "") for o in shown) == 2
    assert any("18/18 runs" in o.get("data", {}).get("text/html", "") for o in shown)
