"""A figure that is drawn once is the figure that matplotlib draws twice."""

from __future__ import annotations

import pytest

from hpcagent.reports.saved import save

figures = pytest.importorskip("matplotlib.figure")


def drawn(kind):
    figure = figures.Figure(figsize=(5.0, 3.0), layout="constrained")
    rows = figure.subplots(2, 2, squeeze=False)
    shown = rows[0][0].scatter([1, 2, 3], [1e-7, 2e-7, 5e-7], c=[1, 2, 3], label="runs")
    rows[0][1].set_ylabel("a long label\nof two lines")
    rows[1][0].set_xscale("log")
    if kind == "legend":
        figure.legend(loc="outside upper center")
    else:
        figure.colorbar(shown, ax=rows[0][0])
        figure.suptitle("a title")
    return figure


@pytest.mark.parametrize("kind", ["legend", "colour bar"])
def test_the_file_is_that_of_savefig_and_the_figure_was_drawn_once(kind, tmp_path, monkeypatch):
    drawn(kind).savefig(tmp_path / "theirs.png", dpi=110)
    times = []
    real = figures.Figure.draw
    monkeypatch.setattr(figures.Figure, "draw", lambda self, renderer: times.append(1) or real(self, renderer))
    save(drawn(kind), tmp_path / "ours.png", dpi=110)
    assert (tmp_path / "ours.png").read_bytes() == (tmp_path / "theirs.png").read_bytes()
    assert len(times) == 1
