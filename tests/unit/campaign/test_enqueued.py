"""Points of one's own: in the record, in the folder, from the shell; each run once, before the policy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.decisions import replays
from hpcagent.campaign.enqueued import INBOX, enqueue, point_in
from hpcagent.cli import cli
from hpcagent.errors import BadInput
from hpcagent.model.space import Space
from hpcagent.reports.explain import explain

PLAIN = {"style": "plain"}


def campaign(**changes: Any) -> ha.Campaign:
    return ha.load_campaign(
        "synthetic",
        changes={"policy": {"name": "sobol"}, "until.max_runs": 8, "batch_size": 4, "confirm": None}
        | {"repeat_distrusted": 0}
        | changes,
    )


def point(x: float) -> dict[str, Any]:
    return {"x": x, "y": 0.5, **PLAIN}


def roles(folder: Path) -> list[tuple[int, str]]:
    return [(r.manifest.batch, r.manifest.role) for r in read_run(folder).results]


@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_points_of_the_record_come_first_count_and_are_run_once(tmp_path: Path, mode: str) -> None:
    mine = campaign(mode=mode).enqueue(point(0.1), point(0.2)).enqueue(point(0.1))
    assert [p["x"] for p in mine.points] == [0.1, 0.2]
    result = ha.run(mine, site="threads", run_dir=tmp_path / "r", progress=False)
    ran = sorted(result.results, key=lambda r: r.manifest.index)
    assert [r.manifest.params["x"] for r in ran[:2]] == [0.1, 0.2]
    assert [r.manifest.role for r in ran] == ["enqueued"] * 2 + ["suggested"] * 6
    assert [r.manifest.batch for r in ran] == [0] * 4 + [1] * 4  # the policy fills the batch up
    assert replays(tmp_path / "r") == []
    again = ha.run(mine, site="threads", run_dir=tmp_path / "r", progress=False)
    assert len(again.results) == 8
    assert "asked for by somebody" in str(explain(tmp_path / "r", 0))
    assert ha.load_campaign(tmp_path / "r" / "campaign.toml", app=mine.app).points == mine.points


def test_points_added_to_the_folder_are_taken_with_the_next_batch_and_after_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with ha.Coordinator(campaign(), site="threads", run_dir=folder, progress=False) as coordinator:
        for batch in coordinator:
            if batch.number == 0:
                assert coordinator.enqueue([point(0.3)]).waiting == 1
                done = enqueue(folder, [point(0.3), point(0.4), dict(batch.results[0].manifest.params)])
                assert ([p["x"] for p in done.points], len(done.known), done.attended) == ([0.4], 2, True)
    assert roles(folder)[4:] == [(1, "enqueued")] * 2 + [(1, "suggested")] * 2
    shell = CliRunner().invoke(cli, ["enqueue", str(folder), "x=0.6", "y=0.5", "style=heavy"])
    assert shell.exit_code == 0
    told = shell.output
    assert "1 point(s) added" in told and "until.max_runs=N" in told and "resume" in told
    stopped = ha.run(campaign(), site="threads", run_dir=folder, progress=False)
    assert stopped.reason is not None and "1 enqueued point(s) were not run" in stopped.reason
    more = ha.run(campaign(**{"until.max_runs": 10}), site="threads", run_dir=folder, progress=False)
    assert [r.manifest.role for r in more.results[8:]] == ["enqueued", "suggested"]
    assert replays(folder) == []


def test_a_damaged_or_hostile_inbox_stops_nothing_and_is_told(tmp_path: Path) -> None:
    folder, heard = tmp_path / "r", list[str]()
    ha.run(campaign(), site="threads", run_dir=folder, progress=False)
    enqueue(folder, [point(0.7)])
    with (folder / INBOX).open("a") as file:
        file.write('{"params": {"x": 9.0, "y": 0.5, "style": "plain"}}\n[1]\nnot json\n{"params": {"x": 0.9')
    enqueue(folder, [point(0.8)])  # after the line that was cut off
    coordinator = ha.Coordinator(
        campaign(**{"until.max_runs": 12}),
        site="threads",
        run_dir=folder,
        watch=lambda event: heard.append(event.reason) if event.kind == "site" else None,
    )
    with coordinator:
        for _ in coordinator:
            pass
        ran = coordinator.result().results[8:]
    assert [r.manifest.params["x"] for r in ran[:2]] == [0.7, 0.8]
    assert sum("is not used" in words for words in heard) == 4
    assert any("outside" in words for words in heard)


def test_what_is_not_allowed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="outside"):
        campaign().enqueue(point(2.0))
    with pytest.raises(BadInput, match=r"points\[0\]"):
        campaign(points=[{"x": 2.0, "y": 0.0, **PLAIN}])
    folder = tmp_path / "r"
    ha.run(campaign(), site="threads", run_dir=folder, progress=False)
    with pytest.raises(BadInput, match="point 1"):
        enqueue(folder, [point(0.5), point(-1.0)])
    with pytest.raises(BadInput, match="not the folder of a campaign"):
        enqueue(tmp_path, [point(0.5)])
    assert not (folder / INBOX).exists()
    space = campaign().search
    for words in (["x"], ["x=a"], ["x=1", "x=2"], ["z=1"]):
        with pytest.raises(BadInput):
            point_in(space, words)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("T=95K", 95.0),
        ("T= 95 K ", 95.0),
        ("T=95", 95.0),
        ("dt=4 fs", 0.004),
        ("dt=4e-6ns", 0.004),
        ("dt=.004", 0.004),
    ],
)
def test_a_number_with_a_unit_is_converted_to_the_parameters(word, value):
    space = Space.of(T=ha.Float(85, 150, unit="K"), dt=ha.Float(0.001, 0.02, unit="ps"))
    assert point_in(space, [word]) == {word.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("word", "why"), [("dt=4 K", "cannot be converted"), ("dt=4 fz", "fz"), ("T=-", "no number")]
)
def test_a_unit_of_something_else_is_refused_with_what_is_allowed(word, why):
    space = Space.of(T=ha.Float(85, 150, unit="K"), dt=ha.Float(0.001, 0.02, unit="ps"))
    with pytest.raises(BadInput, match=rf"{why}.*allowed: \["):
        point_in(space, [word])
