"""What comes from outside is shown: it moves no cursor, is no HTML, and no secret is in it."""

from __future__ import annotations

import pytest

from hpcagent.campaign.table import Table
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.records import Failure, Manifest, Result
from hpcagent.shown import is_secret, markdown, masked, plain, without_secrets


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("\x1b[2J\x1b[1;1Hall 40 runs completed", "\\x1b[2J\\x1b[1;1Hall 40 runs completed"),
        ("\x1b]52;c;cm0gLXJm\x07", "\\x1b]52;c;cm0gLXJm\\x07"),  # OSC 52 writes the clipboard
        ("\x9b31mred", "\\x9b31mred"),  # the same in one byte
        ("\x1b[31mERROR\x1b[0m", "ERROR"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("a\tb\nc", "a\tb\nc"),
        ("abc\u202egpj.exe", "abc\\u202egpj.exe"),  # reads abcexe.jpg
        ("Å², μ, 结晶", "Å², μ, 结晶"),
    ],
)
def test_a_terminal_is_told_nothing_but_text(said, seen):
    assert plain(said) == seen


def test_what_a_program_said_is_kept_in_the_record_and_harmless_wherever_it_is_printed():
    failure = Failure(kind="simulation", name="Bad\x1b[2J", message="\x1b]0;x\x07lost", log_tail="a\r\n\x1b[1mb")
    assert (failure.name, failure.message, failure.log_tail) == ("Bad\\x1b[2J", "\\x1b]0;x\\x07lost", "a\nb")
    manifest = Manifest(execution_id="1", app="a", app_version="1.0.0")
    result = Result(manifest=manifest, status="FAILED", failure=failure, notes=("\x07",), host="n\x1b1")
    assert "\x1b" not in str(result) and "\x07" not in str(result)
    assert str(BadInput("no \x1b[2J file")) == "no \\x1b[2J file"
    assert "\x1b" not in str(AppFailed("x", log_tail="y").message)


def test_an_error_that_quotes_ten_megabytes_is_short():
    assert len(str(BadInput(f"unknown key {'x' * 10_000_000}"))) < 30_000


def test_a_page_of_markdown_has_no_html_image_or_link_but_its_own():
    page = "e <= 3 <script>alert(1)</script> </b> <!-- --> &lt; ![p](p.png) ![t](http://t/x.png) [c](javascript:1)"
    shown = markdown(page, own=("![p](p.png)",))
    assert shown == (
        "e <= 3 &lt;script>alert(1)&lt;/script> &lt;/b> &lt;!-- --> &amp;lt; ![p](p.png) ![t]\\(http://t/x.png) "
        "[c]\\(javascript:1)"
    )


def test_a_row_of_a_table_stays_one_row():
    table = Table("t", ["a", "b"], [["x\ny\x1b[2J", "<b>"]])
    assert str(table).count("\n") == 2 and "\x1b" not in str(table)
    assert "&lt;b&gt;" in table._repr_html_()


@pytest.mark.parametrize(
    "name", ["API_TOKEN", "my_password", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OPENAI_API_KEY"]
)
def test_names_of_secrets_are_known(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["PATH", "OMP_NUM_THREADS", "LM_LICENSE_FILE", "KEYBOARD", "PASSENGER", "SSH_AUTHX"]
)
def test_other_names_are_none(name):
    assert not is_secret(name)


def test_secrets_are_left_out_of_what_is_shown():
    assert masked("set -e\nexport HF_TOKEN='a b'\nOMP_NUM_THREADS=2\n") == (
        "set -e\nexport HF_TOKEN=(hidden)\nOMP_NUM_THREADS=2\n"
    )
    data = {"env": {"HF_TOKEN": "abc", "A": "1"}, "executors": {"w": {"worker_init": "export PASSWORD=abc"}}}
    assert "abc" not in str(without_secrets(data)) and without_secrets(data)["env"]["A"] == "1"


def test_what_is_not_seen_is_shown_and_joiners_stay():
    unseen = "\u200e\u200f\u061c\u200b\ufeff\U000e0041\U000e007f"
    assert plain(unseen) == r"\u200e\u200f\u061c\u200b\ufeff\U000e0041\U000e007f"
    persian_and_emoji = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f469\u200d\U0001f52c"
    assert plain(persian_and_emoji) == persian_and_emoji
