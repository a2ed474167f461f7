"""A module that was edited between its import and the first look: what the process has is not what the file says."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from hpcagent.apps import edited
from hpcagent.apps.edited import edited_since_import
from hpcagent.apps.modules import other_modules, own_modules
from hpcagent.errors import BadInput

TEXT = """\
import functools
import hpcagent as ha

OFFSET = 0.0
EPSILON: float = 0.0104
NAMES = ("a", "b")
TABLE = [n * 1.0 for n in range(3)]
_cache = None
STEPS = 0


def shift(x, by=0.0, *, times=1):
    global STEPS
    STEPS += 1
    return x + OFFSET + by * times + [i for i in (1, 2)][0]


@functools.lru_cache
def kept(x):
    return x * 2.0


class Cell:
    edge = 5.3

    @property
    def volume(self):
        return self.edge**3

    @staticmethod
    def mass():
        return 39.95


@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"})
def measured(x):
    return {"y": x + 0.5}
"""

_names = iter(range(1000))


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    monkeypatch.setattr(sys, "dont_write_bytecode", not getattr(request, "param", False))
    monkeypatch.syspath_prepend(str(tmp_path))
    # Without the app: its decorator is itself a look at the module.
    monkeypatch.setattr("hpcagent.apps.decorator.own_modules", lambda roots: {})
    name = f"edited_module_{next(_names)}"
    (tmp_path / f"{name}.py").write_text(TEXT)
    yield importlib.import_module(name)
    del sys.modules[name]


def edit(module, old: str, new: str) -> Path:
    path = Path(module.__file__)
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    return path


EDITS = [
    ("OFFSET = 0.0", "OFFSET = 1000.0", "OFFSET is 0.0 in this process and 1000.0 there"),
    ("OFFSET = 0.0", "OFFSET = 0", "OFFSET is 0.0 in this process and 0 there"),
    ("0.0104", "0.0105", "EPSILON is 0.0104"),
    ('("a", "b")', '("b", "a")', "NAMES is"),
    ("by=0.0", "by=1.0", "the default by of shift"),
    ("times=1", "times=2", "the default times of shift"),
    ("(1, 2)", "(2, 1)", "its function shift"),
    ("x * 2.0", "x * 3.0", "its function kept"),
    ("edge = 5.3", "edge = 5.4", "Cell.edge is 5.3"),
    ("edge**3", "edge**2", "its function Cell.volume"),
    ("39.95", "39.9", "its function Cell.mass"),
    ("x + 0.5", "x + 1000.5", "its function measured"),
    ("def shift(", "def shift((", "no Python"),
]


@pytest.mark.parametrize(("old", "new", "why"), EDITS)
def test_an_edit_between_import_and_first_look_is_refused(module, old, new, why):
    path = edit(module, old, new)
    with pytest.raises(BadInput, match="edited after this process had imported it") as caught:
        own_modules([module.__name__])
    said = str(caught.value)
    assert why in said and str(path) in said and "restart the process (in a notebook, the kernel)" in said
    # On a worker, and when a campaign is resumed, it is one of the modules that are not as recorded.
    other = other_modules({module.__name__: "0" * 64})
    assert [(o.name, o.stale) for o in other] == [(module.__name__, True)] and why in str(other[0])
    # Put back, it is what the process has.
    path.write_text(TEXT)
    assert set(own_modules([module.__name__])) == {module.__name__}


@pytest.mark.parametrize("module", [True], indirect=True)
def test_what_is_worked_out_at_import_is_compared_by_the_compiled_copy(module):
    path = edit(module, "n * 1.0", "n * 2.00")
    with pytest.raises(BadInput, match="compiled when it was imported"):
        own_modules([module.__name__])
    importlib.reload(module)
    assert module.TABLE == [0.0, 2.0, 4.0] and edited_since_import(module, path) == ""


@pytest.mark.parametrize("module", [True, False], indirect=True)
def test_an_unedited_module_is_no_false_alarm(module):
    path = Path(module.__file__)
    assert (path.parent / "__pycache__").is_dir() != sys.dont_write_bytecode
    module.shift(1.0)  # a counter in the module goes on
    module._cache = object()  # set when it is first used
    for hour in (-1, 1):  # touched, or copied by a program that keeps or sets times
        os.utime(path, (path.stat().st_mtime + 3600 * hour,) * 2)
        assert edited_since_import(module, path) == ""
    path.write_text(f"# a comment\n\n{TEXT}")  # other lines: no number is another
    assert edited_since_import(module, path) == ""
    path.write_text(TEXT)
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
    assert edited_since_import(module, path) == ""
    assert set(own_modules([module.__name__])) == {module.__name__}


def test_a_module_that_was_edited_and_loaded_anew_is_no_false_alarm(module):
    # What a reload leaves of the old content, a function that is not in the file any more, is nobody's business.
    path = edit(module, "def kept(x):\n    return x * 2.0", "def renamed(x):\n    return x * 3.0")
    edit(module, "OFFSET = 0.0", "OFFSET = 1000.0")
    assert "OFFSET" in edited_since_import(module, path)
    importlib.reload(module)
    assert module.kept(1.0) == 2.0 and edited_since_import(module, path) == ""
    first = own_modules([module.__name__])
    edit(module, "OFFSET = 1000.0", "OFFSET = 2000.0")
    # It was looked at: the process goes on with what it has, whatever becomes of the file.
    assert own_modules([module.__name__]) == first


def test_a_file_older_than_the_process_is_not_read(module, monkeypatch):
    path = Path(module.__file__)
    assert abs(edited._began_at() - Path("/proc/self").stat().st_mtime) < 3600
    module.OFFSET = 7.0  # set by a script of the user's
    assert "OFFSET" in edited_since_import(module, path)
    monkeypatch.setattr(edited, "_began_at", lambda: path.stat().st_ctime + 61)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    assert edited_since_import(module, path) == ""


def test_what_another_loader_has_made_of_a_file_is_not_compared():
    # pytest has written the asserts of this file anew.
    assert edited_since_import(sys.modules[__name__], Path(__file__)) == ""
