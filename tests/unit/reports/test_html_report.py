"""The report as one HTML file: everything inside, nothing of others run or loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.reports.html_report import html_report


def test_text_of_others_is_text_and_images_are_only_the_plots(tmp_path: Path) -> None:
    plot = tmp_path / "a.png"
    plot.write_bytes(b"\x89PNG")
    text = "# name\n\n<script>alert(1)</script> ![a](a.png) ![b](http://x/b.png)\n\n| a |\n|---|\n| <b> |\n\n## Runs\n\n## Runs"
    page = html_report(text, [plot])
    assert "<script" not in page and "&lt;script&gt;" in page and "<td>&lt;b&gt;</td>" in page
    assert re.findall(r'src="([^"]*)"', page) == ["data:image/png;base64,iVBORw==", ""]
    assert re.findall(r'<li><a href="#([^"]+)">', page) == ["runs", "runs-2"]
    assert "http" not in page.replace("http-equiv", "").replace("text/html", "")


def test_a_campaign_of_one_parameter_has_its_page_and_a_line_of_each_metric(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    campaign = ha.Campaign(
        synthetic,
        ha.maximize("value", subject_to={"error": ha.at_most(0.5)}),
        space={"x": {}},
        policy="sobol",
        until=ha.until.max_runs(8),
    )
    result = ha.run(campaign, site="threads", run_dir=tmp_path / "r", progress=False)
    written = result.report()
    assert written.html is not None and str(written).startswith(f"{written.html} (open this first)")
    page = written.html.read_text()
    assert page.count('src="data:image/png;base64,') == len(written.plots)
    assert "<h1" in page and "8 runs, 8 completed" in page
    assert 3 <= result.rivals <= 8
    from matplotlib.image import imread

    height, width = imread(tmp_path / "r" / "report" / "plane.png").shape[:2]
    assert height / width == pytest.approx((1.6 + 2 * 2.6) / 7.5, abs=0.01)  # two panels: the goal and the limit
