"""The tutorial notebook works as it stands."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "first_campaign.ipynb"

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


def test_the_first_campaign_runs_and_shows_tables_and_plots(this_python, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("lammps")
    pytest.importorskip("matplotlib")
    work = tmp_path / "work"
    work.mkdir()
    notebook = nbformat.read(shutil.copy(NOTEBOOK, work), as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(work)}}).execute()

    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [o for o in outputs if o.output_type == "error"] == []
    kinds = [kind for o in outputs for kind in o.get("data", {})]
    assert kinds.count("image/png") >= 2
    assert any("<table>" in o.data["text/html"] for o in outputs if "text/html" in o.get("data", {}))
    printed = "".join(o.text for o in outputs if o.output_type == "stream")
    assert "first_campaign: maximize ns_per_day" in printed and "P(feasible)" in printed
    assert (work / "runs" / "first_campaign" / "events.jsonl").is_file()


def test_a_notebook_gives_the_same_result_as_a_script_and_goes_on_after_an_interrupt(this_python, tmp_path):
    import nbclient
    import nbformat

    import hpcagent as ha

    cell = """
import hpcagent as ha
from hpcagent.apps.landscape import synthetic

campaign = ha.Campaign(synthetic, ha.maximize("value", subject_to={"error": ha.at_most(1.0)}),
                       space={"x": {}, "y": {}}, fixed={"noise": 0.02}, until=ha.max_runs(18), batch_size=6, seed=5)
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
        return [(r.manifest.execution_id, r.manifest.batch, r.metrics) for r in ha.read_run(folder).results]

    assert told(tmp_path / "run") == told(tmp_path / "script")
    shown = [o for c in notebook.cells for o in c.outputs]
    assert sum("<table>" in o.get("data", {}).get("text/html", "") for o in shown) == 2
    assert any("18/18 runs" in o.get("data", {}).get("text/html", "") for o in shown)
