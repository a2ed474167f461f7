"""Records in notebooks: short in text, a card in HTML, and nothing in either that somebody else has put there."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

import hpcagent as ha
from hpcagent.campaign.table import Table
from hpcagent.html import LONGEST_REPR, MOST_ROWS, Card, Rows, escaped
from hpcagent.model.records import Failure, Manifest, Result
from hpcagent.reports.explain import explain

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\x1b]0;x\x07\u202e"


class Tags(HTMLParser):
    """Checks that tags are closed in their order, and notes them, their attributes and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    assert tags.seen <= {"div", "span", "b", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
    assert tags.attributes <= {"style"}  # no link, no source, no handler
    assert "url(" not in html and "http" not in html
    return tags


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    campaign = ha.load_campaign("synthetic", changes={"until.max_runs": 12, "confirm.top": 0})
    folder = tmp_path_factory.mktemp("html") / "r"
    with ha.Coordinator(campaign, site="threads", run_dir=folder, progress=False) as coordinator:
        batches = list(coordinator)
    return coordinator, batches[0], coordinator.result()


def test_every_record_of_a_campaign_is_short_in_text_and_a_card_in_a_notebook(finished):
    coordinator, batch, result = finished
    campaign, one = result.campaign, result.results[0]
    with ha.open_site("threads", private=True) as site:
        records = [
            *(campaign, campaign.app, campaign.app.contract, campaign.search, campaign.search.parameters[0]),
            *(campaign.objective, coordinator, batch, result, result.best, one, one.manifest, site),
            *(explain(result.run_dir, 7), ha.open_run(result.run_dir)),
        ]
        for record in records:
            assert len(repr(record)) <= LONGEST_REPR + 40, type(record)
            assert "\n" not in repr(record)
            read(record._repr_html_())
    assert repr(campaign.search.parameters[0]) == "<Parameter x: [0.02, 1]; default 0.1; scale logarithmic>"
    shown = read(result._repr_html_()).text
    for text in ("maximize value subject to error <= 1", "12 runs", "value", str(result.run_dir), "all 12 runs"):
        assert text in shown
    assert len(str(one)) <= LONGEST_REPR + 40 and str(result).startswith("synthetic: maximize value")


def test_what_others_wrote_is_text_and_nothing_else():
    app = ha.find_app("synthetic")
    contract = app.contract.model_copy(update={"description": HOSTILE, "failure_modes": (HOSTILE,)})
    manifest = Manifest(
        execution_id=HOSTILE, app=HOSTILE, app_version="1.0.0", params={"x": HOSTILE}, requested_by=HOSTILE
    )
    failure = Failure(kind="simulation", name="Lost", message=HOSTILE, repair=HOSTILE)
    result = Result(
        manifest=manifest, status="FAILED", failure=failure, metrics={HOSTILE: math.nan}, units={HOSTILE: HOSTILE},
        host=HOSTILE, notes=(HOSTILE,), distrusted=HOSTILE, workdir=HOSTILE,
    )  # fmt: skip
    parameter = ha.Choice("a", "b", description=HOSTILE)
    table = Table(HOSTILE, [HOSTILE], [[HOSTILE]])
    for record in (contract, app.model_copy(update={"contract": contract}), manifest, result, parameter, table):
        tags = read(record._repr_html_())
        assert "<script>alert(1)</script>" in tags.text
        for text in (record._repr_html_(), repr(record) if record is not table else ""):
            assert not set("\x1b\x07\u202e") & set(text)


def test_a_long_table_scrolls_and_is_cut_where_a_page_would_be_slow():
    rows = [[str(i), "word" if i % 2 else "-"] for i in range(MOST_ROWS + 50)]
    html = Card("Test", "long", tables=[Rows("", ["number", "text"], rows)]).html()
    assert html.count("<tr>") == MOST_ROWS + 1 and "and 50 more" in html
    assert "overflow:auto;max-height" in html
    assert re.search(r'<td style="[^"]*text-align:right[^"]*">7<', html)  # numbers
    assert re.search(r'<td style="[^"]*text-align:left[^"]*">word<', html)
    assert len(escaped("x" * 10_000)) == 400
    assert not re.search(r"#[0-9a-f]{3}|black|white;|color:", html)  # the page's own colours, light or dark


def test_short_texts_decide_nothing():
    one, other = ha.Float(0, 1, description="a" * 400), ha.Float(0, 1, description="a" * 400 + "b")
    assert repr(one) == repr(other) and one != other
    assert one.model_dump_json() != other.model_dump_json()


def test_a_sweep_has_a_card_without_a_best_point(tmp_path):
    plan = ha.Sweep(ha.find_app("synthetic"), {"x": {}}, levels=3, replicates=1)
    swept = ha.run(plan, site="threads", run_dir=tmp_path / "r", progress=False)
    assert repr(swept).startswith("<SweepResult ") and len(repr(swept)) <= LONGEST_REPR + 40
    text = read(swept._repr_html_()).text
    assert "all 3 runs" in text and "best" not in text
    read(plan._repr_html_())
