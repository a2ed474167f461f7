"""Texts of scripts, command lines and paths: what is refused, and what has always been written stays allowed."""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.loading import load_run
from hpcagent.errors import BadInput
from hpcagent.model.base import RECORDED, build, parse_toml, read_json, read_toml
from hpcagent.model.contract import Contract, Metric
from hpcagent.model.texts import NOT_SHOWN, as_name, checked_name, line, word, words
from hpcagent.sites.profiles import find_profile

HOSTILE = [
    "../../x",
    "/etc/cron.d/x",
    ".",
    "..",
    "...",
    "a/b",
    "a\\b",
    "C:x",
    "nul",
    "COM1.txt",
    "a\x00b",
    "a\nb",
    "-rf",
    ".ssh",
    "x.",
    " x",
    "a|b",
    "x" * 5000,
    "é" * 150,  # 300 bytes: more than file systems take
    "\u202ex",
    " ",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_of_which_a_folder_is_made_cannot_lead_elsewhere(name):
    with pytest.raises(BadInput) as error:
        ha.Campaign(synthetic, ha.maximize("value"), name=name)
    assert "the campaign's name" in str(error.value) and len(str(error.value)) < 400
    with pytest.raises(BadInput, match="the app's name"):
        build(Contract, {"name": name}, where="app")
    with pytest.raises(BadInput, match="the metric's name"):
        build(Metric, {"name": name, "unit": "1"}, where="metric")


@pytest.mark.parametrize("name", ["lj_tuning", "Si 2x2 (PBE)", "水", "v1.0-rc", "a'b", "x$y", "100%"])
def test_names_as_people_give_them_are_allowed(name):
    assert checked_name(name) == name == as_name(name)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_of_before_names_were_checked_is_read_and_made_safe(name, tmp_path):
    assert Contract.model_validate({"name": name}, context={RECORDED: True}).name == name
    assert checked_name(as_name(name))


def test_a_campaign_of_before_goes_on_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    campaign = ha.Campaign(
        synthetic, ha.maximize("value"), space={"x": {}, "y": {}}, until=ha.until.max_runs(2), policy="sobol"
    )
    ha.run(campaign, site="threads", run_dir="old")
    toml = Path("old/campaign.toml")
    toml.write_text(toml.read_text().replace('name = "synthetic"', 'name = "../../group/x"', 1))
    result = ha.run(load_run("old", changes={"until.max_runs": 4}), site="threads", run_dir="old")
    assert len(result.results) == 4 and not Path("../../group").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = " + "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("x = " + "[" * 200 + "]" * 200, "nested too deeply"),
        ("a" + ".a" * 5000 + " = 1", "nested too deeply"),
        (f"x = {'9' * 5000}", "thousands of digits"),
        (f"x = {'9' * 500}", "hundreds of digits"),
        ("x = 1\nx = 2", "overwrite"),
    ],
)
def test_toml_that_no_reader_can_take_is_one_clear_error(text, why, tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        read_toml(path)
    assert why in str(error.value) and str(path) in str(error.value) and len(str(error.value)) < 400
    with pytest.raises(BadInput):
        parse_toml(text, "--set x")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested too deeply"),
        ("9" * 5000, "thousands of digits"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ("{", "Expecting"),
    ],
)
def test_json_that_no_reader_can_take_is_one_clear_error(text, why, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=why):
        read_json(path)


def test_a_toml_of_a_hundred_megabytes_is_not_read(tmp_path):
    path = tmp_path / "my.toml"
    with path.open("wb") as file:
        file.truncate(100 << 20)  # sparse
    with pytest.raises(BadInput, match="larger than 16 MB"):
        read_toml(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("batch_size = 1e400", "batch_size"),
        ("retries = -1e400", "retries"),
        ("until = { max_runs = 1e400 }", "max_runs"),
        ("space = { x = { low = 1e400 } }", "not finite"),
        (f"name = '{'x' * 10_000_000}'", "at most 200 bytes"),
        (f"{'k' * 5000} = 1", "unknown key"),
    ],
)
def test_values_without_measure_are_one_clear_error(text, says, tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(f'{text}\napp = "synthetic"\n[objective]\nmaximize = "value"\n')
    with pytest.raises(BadInput) as error:
        ha.load_campaign(path)
    assert says in str(error.value) and len(str(error.value)) < 25_000


@pytest.mark.parametrize("code", [0x200E, 0x200F, 0x061C, 0x200B, 0x200D, 0xFEFF, 0xAD, 0xE0001, 0xE0041, 0xE007F])
def test_what_is_not_seen_is_in_no_name_and_no_word_of_a_profile(code):
    text = f"a{chr(code)}b"
    for check in (checked_name, word, line, words):
        with pytest.raises(BadInput, match="not allowed"):
            check(text)
    assert as_name(text) == "a_b"


def test_every_format_character_of_unicode_is_refused_in_names():
    # Cf: https://www.unicode.org/reports/tr44/#General_Category_Values
    unseen = [chr(code) for code in range(sys.maxunicode) if unicodedata.category(chr(code)) == "Cf"]
    assert len(unseen) > 150
    assert [c for c in unseen if as_name(f"a{c}b") != "a_b"] == []
    assert checked_name("Kühlung – 水 é́") == "Kühlung – 水 é́"


# Unicode 15, DerivedCoreProperties.txt: Default_Ignorable_Code_Point.
IGNORED = [
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
    *((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF)),
    *((0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
]


def test_every_character_that_unicode_has_drawn_as_nothing_is_shown():
    every = [chr(code) for first, last in IGNORED for code in range(first, last + 1)]
    assert len(every) == 4174
    assert [hex(ord(c)) for c in every if not NOT_SHOWN.fullmatch(c)] == []


def test_words_that_cannot_be_taken_apart_are_refused():
    assert words("-c 'a b' --x=$(id)") == "-c 'a b' --x=$(id)"
    with pytest.raises(BadInput, match="No closing quotation"):
        words("-c 'a b")


def test_a_file_that_is_not_utf8_says_the_line_and_what_to_do(tmp_path):
    path = tmp_path / "site.toml"
    path.write_bytes('kind = "threads"\ndescription = "café"\n'.encode("latin-1"))
    with pytest.raises(BadInput, match=r"site.toml, line 2: the byte 0xe9 is not UTF-8. Save the file as UTF-8"):
        find_profile(path)
