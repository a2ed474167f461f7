"""A file that a parameter of a program names counts by its content, and no run stands for another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.apps.worker import execute
from hpcagent.campaign.asked import request_of
from hpcagent.errors import InputsChanged
from hpcagent.model.space import Parameter

TABLE = Parameter(name="table", kind="text", default="", description="A file.")
READING = "print('x=' + open(sys.argv[1]).read())"


def program(folder: Path, tool: str, *, reads: tuple[str, ...] = ("table",)) -> App:
    return ha.executable(
        [tool, "{table}", "{a}"],
        parameters={"table": TABLE, "a": ha.Float(0, 1, default=0.5)},
        metrics={"x": ha.output.from_regex("x=(.*)", unit="1")},
        reads=reads,
        relative_to=folder,
    )


def order_of(app: App, folder: Path, **params: Any) -> dict[str, Any]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return app.order(app.manifest(params), work=work, site={})


def test_another_content_is_another_run_wherever_the_content_came_from(tmp_path, python, called):
    app, table = program(tmp_path, python(READING)), tmp_path / "a.csv"
    table.write_text("1")
    first = app.manifest({"table": str(table)})
    one = called(app, table=str(table))
    table.write_text("2")
    second = app.manifest({"table": str(table)})
    other = called(app, table=str(table))
    assert first.execution_id != second.execution_id
    assert (one["metrics"]["x"], other["metrics"]["x"]) == (1.0, 2.0)
    assert list(one["files"]) == [str(table)] and one["files"] != other["files"]
    table.write_text("1")
    assert app.manifest({"table": str(table)}).execution_id == first.execution_id


def test_ids_are_as_they_were_where_no_file_is_given_or_none_is_there(tmp_path, python):
    app, plain = program(tmp_path, python(READING)), program(tmp_path, python(READING), reads=())
    for params in ({"table": ""}, {"table": str(tmp_path / "none")}):
        assert app.manifest(params).input_digest == app.digest
    (tmp_path / "a.csv").write_text("1")
    assert plain.manifest({"table": str(tmp_path / "a.csv")}).input_digest == plain.digest
    # A manifest of before these files counted is still run, with what is there.
    old = app.manifest({"table": str(tmp_path / "later.csv")})
    (tmp_path / "later.csv").write_text("3")
    (tmp_path / "work").mkdir()
    done = execute(app.order(old, work=tmp_path / "work", site={}))
    assert done["metrics"] == {"x": 3.0}


@pytest.mark.parametrize("when", ["before the order", "before the run", "gone", "while it goes"])
def test_a_file_that_is_another_one_when_it_is_read_gives_no_number(tmp_path, python, when):
    table = tmp_path / "a.csv"
    table.write_text("1")
    edits = "\nopen(sys.argv[1], 'w').write('2 and more')" if when == "while it goes" else ""
    app = program(tmp_path, python(READING + edits))
    manifest = app.manifest({"table": str(table)})
    work = tmp_path / "work"
    work.mkdir()
    if when == "before the order":
        table.write_text("2")
    elif when == "gone":
        table.unlink()
    order = app.order(manifest, work=work, site={})
    if when == "before the run":
        table.write_text("2")
    done = execute(order)
    assert (done["status"], done["failure"]["name"]) == ("FAILED", "FilesChanged")
    assert not done.get("metrics")
    table.write_text("1")
    if when != "while it goes":  # put back, it is the run that was planned
        assert execute(app.order(manifest, work=work, site={}))["metrics"] == {"x": 1.0}


def test_a_result_is_not_found_again_for_a_file_that_was_edited_since(tmp_path, python):
    table = tmp_path / "a.csv"
    table.write_text("1")
    app = program(tmp_path, python(READING))
    order = order_of(app, tmp_path, table=str(table))
    assert execute(order)["metrics"] == {"x": 1.0}
    table.write_text("2")
    assert execute(order)["failure"]["name"] == "FilesChanged"


def test_a_campaign_mixes_no_contents_and_another_content_is_another_request(tmp_path, python):
    table = tmp_path / "a.csv"
    table.write_text("1")
    app = program(tmp_path, python(READING))

    def campaign(runs: int) -> ha.Campaign:
        return ha.Campaign(
            app,
            ha.minimize("x"),
            fixed={"table": str(table)},
            until=ha.until.max_runs(runs),
            policy="random",
            site="threads",
        )

    first = request_of(campaign(2), site="threads").work
    ha.run(campaign(2), run_dir=tmp_path / "run")
    table.write_text("2")
    assert request_of(campaign(2), site="threads").work != first
    with pytest.raises(InputsChanged, match=r"a\.csv"):
        ha.run(campaign(3), run_dir=tmp_path / "run")
    table.write_text("1")
    assert request_of(campaign(2), site="threads").work == first
    assert len(ha.run(campaign(3), run_dir=tmp_path / "run").results) == 3


def test_a_chain_may_give_a_program_one_file_after_the_other(tmp_path, python):
    for name in "ab":
        (tmp_path / name).write_text(name.replace("a", "1").replace("b", "2"))
    app = program(tmp_path, python(READING))

    @ha.chain(parameters={"n": ha.Int(1, 2)}, metrics={"x": "1"}, name="both")
    def both(n: int) -> Any:
        done = [app(table=str(tmp_path / name)).result() for name in "ab"]
        return {"x": sum(one.metrics["x"] for one in done) * n}

    campaign = ha.Campaign(both, ha.minimize("x"), until=ha.until.max_runs(2), policy="grid", site="threads")
    result = ha.run(campaign, run_dir=tmp_path / "run")
    assert sorted(one.metrics["x"] for one in result.results) == [3.0, 6.0]
