"""What of a path a job script can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcagent.elsewhere.submit import submit
from hpcagent.errors import BadInput
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile
from hpcagent.sites.script_paths import handed_over, refuse_unwritable


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\tb", "a\x1b[31m", "a\udcffb", "a\u2028b"])
def test_a_folder_that_is_no_line_of_text_is_refused_before_anything_is_made_or_submitted(tmp_path, name):
    site = Profile(name="x", kind="slurm", address="127.0.0.1")
    for refused in (
        lambda: submit("synthetic", site=site, run_dir=tmp_path / name),
        lambda: open_site(site, run_dir=tmp_path / name, private=True),
    ):
        with pytest.raises(BadInput, match=r"cannot be written into a job script.*--run-dir") as error:
            refused()
        assert repr(name)[1:-1] in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_names_of_every_language_and_all_signs_are_taken(tmp_path):
    for name in ("Müller's", "東京", '"$HOME" `x` \\ %j', "x" * 250, " "):
        refuse_unwritable(tmp_path / name)


def test_a_script_is_handed_over_by_a_plain_path_for_as_long_as_it_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain, odd = Path("a.sh"), Path("ü.sh")
    plain.write_text("1"), odd.write_text("2")
    with handed_over(plain) as path:
        assert path == tmp_path / "a.sh"
    with handed_over(odd) as path:
        assert str(path).isascii() and path.read_text() == "2"
    assert not path.exists() and not path.parent.exists() and odd.exists()
