"""Deprecated apps: found by their version only, shown and listed as what they are; old campaigns go on."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent import catalog
from hpcagent.catalog import find_app, list_apps, look_up
from hpcagent.cli import cli
from hpcagent.runs.status import status_of

OLD = """
import hpcagent as ha

@ha.app(
    metrics={"y": "1"},
    parameters={"x": ha.Float(0.0, 1.0)},
    version="1.4.0",
    deprecated="use new_square, which is exact.",
    side_effects="reads the network",
)
def old_square(x):
    return {"y": x**2}
"""
NAME = "apps_of_before:old_square"


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "apps_of_before.py").write_text(OLD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("apps_of_before", None)


def called(*words):
    return CliRunner().invoke(cli, list(words))


def test_by_its_name_it_is_refused_with_the_reason_and_the_way_to_have_it_all_the_same(module):
    with pytest.raises(ha.BadInput) as refused:
        find_app(NAME)
    assert str(refused.value) == (
        "app 'old_square' 1.4.0 is deprecated: use new_square, which is exact. To use it all the same, ask for its "
        f"version: '{NAME}@1.4.0'."
    )


def test_by_its_version_it_is_found_and_to_be_shown_without(module):
    assert find_app(f"{NAME}@1.4.0").name == look_up(NAME).name == look_up(f"{NAME}@1.4.0").name == "old_square"


@pytest.mark.parametrize("reference", [f"{NAME}@1.3.0", "synthetic@1.0.1", "lj_argon@9.0.0"])
def test_another_version_is_refused_with_the_one_that_is_there(module, reference):
    with pytest.raises(ha.BadInput, match=r"has version \d+\.\d+\.\d+ here, not "):
        find_app(reference)
    with pytest.raises(ha.BadInput, match="here, not"):
        look_up(reference)


def test_any_app_may_be_asked_for_by_its_version(tmp_path, monkeypatch):
    assert find_app("synthetic@1.0.0").name == "synthetic"
    version = find_app("lj_argon").contract.version
    assert find_app(f"lj_argon@{version}").name == "lj_argon"
    with pytest.raises(ha.BadInput, match="no app 'sinthetic'"):
        find_app("sinthetic@1.0.0")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.a@1.0.0").write_text("units lj\nrun 0\n")
    assert find_app("in.a@1.0.0").source.endswith("in.a@1.0.0")  # a file of that name


def test_a_campaign_names_it_by_its_version_goes_on_and_says_so(module):
    campaign = 'app = "{}"\n[space]\nx = {{}}\n[objective]\nmaximize = "y"\n[until]\nmax_runs = {}\n[policy]\nname = "random"\n'
    (module / "old.toml").write_text(campaign.format(NAME, 2))
    with pytest.raises(ha.BadInput, match="deprecated"):
        ha.load_campaign("old.toml")
    (module / "old.toml").write_text(campaign.format(f"{NAME}@1.4.0", 2))
    result = ha.run("old.toml", site="threads", workers=1, run_dir="run")
    said = "app old_square 1.4.0 is deprecated: use new_square, which is exact"
    assert result.best is not None and said in result.remarks and said in status_of("run").notes
    (module / "old.toml").write_text(campaign.format(f"{NAME}@1.4.0", 3))
    assert len(ha.run("old.toml", site="threads", workers=1, run_dir="run").results) == 3


def test_it_is_listed_as_deprecated_and_shown_with_its_side_effects(module, monkeypatch):
    old = look_up(NAME)
    monkeypatch.setattr(catalog, "list_apps", lambda: [*list_apps(), old])
    (line,) = [one for one in called("apps").stdout.splitlines() if one.startswith("old_square")]
    assert "deprecated: use new_square, which is exact" in line
    shown = json.loads(called("apps", NAME).stdout)
    assert shown["side_effects"] == "reads the network" and shown["deprecated"].startswith("use new_square")


def test_the_toml_of_a_program_and_a_contract_of_lammps_say_it_too(tmp_path):
    (tmp_path / "seq.toml").write_text(
        'command = "seq {n}"\nversion = "1.1.0"\ndeprecated = "use seq2"\nside_effects = "reads the network"\n'
        '[parameters.n]\nkind = "int"\nlow = 1\nhigh = 9\nunit = "1"\n[metrics.last]\nregex = "^([0-9]+)$"\nunit = "1"\n'
    )
    with pytest.raises(ha.BadInput, match="deprecated: use seq2"):
        find_app(str(tmp_path / "seq.toml"))
    found = find_app(f"{tmp_path / 'seq.toml'}@1.1.0")
    assert found.contract.side_effects == "reads the network"
    (tmp_path / "in.a").write_text("units lj\nrun 0\n")
    (tmp_path / "a.toml").write_text('script = "in.a"\nversion = "1.1.0"\ndeprecated = "use b"\n')
    with pytest.raises(ha.BadInput, match="deprecated: use b"):
        find_app(str(tmp_path / "in.a"))
    assert find_app(f"{tmp_path / 'in.a'}@1.1.0").contract.deprecated == "use b"
    refused = called("sweep", str(tmp_path / "in.a"), "x=1:2:2", "--dry-run")
    assert refused.exit_code != 0
    with pytest.raises(ha.BadInput, match="none of 'declared outputs only'"):
        (tmp_path / "a.toml").write_text('script = "in.a"\nside_effects = "some"\n')
        find_app(str(tmp_path / "in.a"))


def test_a_chain_and_a_program_in_python_say_it_too():
    seq = ha.executable(
        "seq {n}",
        parameters={"n": ha.Int(1, 9)},
        metrics={"last": ha.output.from_regex("^([0-9]+)$", unit="1")},
        deprecated="use seq2",
        side_effects="changes another system",
    )
    assert (seq.contract.deprecated, seq.contract.side_effects) == ("use seq2", "changes another system")

    @ha.chain(metrics={"y": "1"}, deprecated="use c2", side_effects="reads the network", deterministic=False)
    def c():
        return ha.apps.synthetic(x=0.5)

    assert (c.contract.deprecated, c.contract.side_effects) == ("use c2", "reads the network")
    assert not c.contract.deterministic


@pytest.mark.parametrize("why", ["", "  ", "two\nlines"])
def test_why_an_app_is_deprecated_must_be_said_on_a_line(why):
    with pytest.raises(ha.BadInput, match="deprecated"):
        ha.types.Contract(name="a", deprecated=why)
