"""A function of a script takes along what it uses of the script, and counts it as part of itself."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hpcagent.apps.carried import source_digest
from hpcagent.apps.decorator import app
from hpcagent.model.parameter import Float

SCRIPT = """
import functools
import os
import runpy
import sys
import threading
import xml.etree.ElementTree
from dataclasses import dataclass
from math import hypot

import numpy as np
import hpcagent as ha

TABLE = np.arange(4.0)


@dataclass
class Point:
    a: float

    def length(self):
        return hypot(self.a, np.sqrt(9.0))


START = Point(4.0)


def shifted(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x) + OFFSET

    return wrapper


@shifted
def one(x):
    return float(np.sum(TABLE * x))


@functools.lru_cache
def factorial(n):
    return 1 if n == 0 else n * factorial(n - 1)


KERNELS = {"one": one, "two": lambda x: 2 * late(x)}


def made_in_a_function(power):
    @ha.app(parameters={"x": ha.Float(0, 2)}, metrics={"y": "1"}, name="inner")
    def inner(x):
        return {"y": float(np.abs(x) ** power)}

    return inner


@ha.app(parameters={"x": ha.Float(0, 2)}, metrics={"y": "1", "pid": "1"})
def full(x, run: ha.Run):
    xml.etree.ElementTree.fromstring("<a/>")
    value = sum(kernel(x) for kernel in KERNELS.values()) + START.length() + factorial(3)
    return ha.Outcome(metrics={"y": value, "pid": os.getpid()})


def late(x):
    return x  # HELPER


OFFSET = 10.0
"""


def written(folder: Path, end: str, *changes: tuple[str, str]) -> Path:
    """The script with `end` below it."""
    text = SCRIPT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "script.py"
    path.write_text(f"{text}\n\nif __name__ == '__main__':\n    {end}\n")
    return path


def script(folder: Path, end: str, *changes: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the script with `end` below it, in a Python of its own."""
    path = written(folder, end, *changes)
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, path], cwd=folder, capture_output=True, text=True, timeout=120, env=env)


def digest_of(folder: Path, *changes: tuple[str, str]) -> str:
    """The digest of the script's function, by this Python."""
    found = runpy.run_path(str(written(folder, "DIGEST = full.digest", *changes)), run_name="__main__")["DIGEST"]
    assert isinstance(found, str)
    return found


CALL = """with ha.open_site({site!r}, workers=1) as site:
        result = full(x=1.0).result(60)
        inner = made_in_a_function(2)(x=3.0 / 2).result(60)
    print(result.failure, result["y"], inner["y"], result["pid"] == os.getpid())"""


@pytest.mark.parametrize("site", ["threads", "laptop"])
def test_modules_helpers_classes_and_constants_of_a_script_reach_the_worker(site, tmp_path):
    done = script(tmp_path, CALL.format(site=site))
    # One: 0 + 1 + 2 + 3 + 10; two: 2; hypot(4, 3) = 5; 3! = 6.
    assert done.stdout.split() == ["None", "29.0", "2.25", str(site == "threads")], done.stderr


CAMPAIGN = """campaign = ha.Campaign(full, ha.minimize("y"), until=ha.until.max_runs(2), batch_size=2, name="c")
    print(len(ha.run(campaign, site={site!r}, workers=1, run_dir="run").results))"""


@pytest.mark.slow
def test_a_changed_helper_is_not_mixed_into_an_old_folder(tmp_path):
    end = CAMPAIGN.format(site="laptop")
    assert script(tmp_path, end).stdout.split() == ["2"]
    assert script(tmp_path, end).stdout.split() == ["2"]
    changed = script(tmp_path, end, ("return x  # HELPER", "return 2 * x  # HELPER"))
    assert changed.returncode != 0 and "InputsChanged: run: the function full of the script" in changed.stderr


def test_what_cannot_be_sent_is_named_before_anything_runs(tmp_path):
    lines = (
        ("return x  # HELPER", "return x + len(list(PLACES))  # HELPER"),
        ("OFFSET =", "PLACES = iter(i for i in 'ab')\nOFFSET ="),
    )
    done = script(tmp_path, CAMPAIGN.format(site="laptop"), *lines)
    last = done.stderr.strip().splitlines()[-1]
    assert "BadInput" in last and "full() uses 'PLACES' of its script, a generator" in last
    assert not list((tmp_path / "run" / "work").glob("*"))


def test_a_module_that_the_worker_lacks_is_a_failure_that_names_it(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 1\n")
    lines = (
        ("import numpy as np", "import numpy as np\nimport beside"),
        ("return x  # HELPER", "return x * beside.VALUE"),
    )
    end = """os.remove("beside.py")
    with ha.open_site("laptop", workers=1):
        failure = full(x=1.0).result(60).failure
    print(failure.name, failure.message)"""
    done = script(tmp_path, end, *lines)
    assert "AppNotImportable" in done.stdout and "'beside'" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    found = script(tmp_path_factory.mktemp("digest"), "print(full.digest)").stdout.strip()
    assert len(found) == 64 and digest_of(tmp_path_factory.mktemp("here")) == found
    return found


@pytest.mark.parametrize(
    "change",
    [
        ("return x  # HELPER", "return 2 * x  # HELPER"),
        ("OFFSET = 10.0", "OFFSET = 11.0"),
        ("np.arange(4.0)", "np.arange(5.0)"),
        ("return function(x) + OFFSET", "return function(x) - OFFSET"),
        ("return hypot(self.a", "return hypot(1.0"),
        ("START = Point(4.0)", "START = Point(5.0)"),
        ("return 1 if n == 0", "return 2 if n == 0"),
        ('"two": lambda x: 2 *', '"two": lambda x: 3 *'),
        ("from math import hypot", "from numpy import hypot"),
        ("import xml.etree.ElementTree", "import numpy as xml"),
    ],
)
def test_whatever_the_function_uses_is_part_of_its_digest(change, digest, tmp_path):
    assert digest_of(tmp_path, change) not in ("", digest)


def test_what_the_function_does_not_use_is_no_part_of_its_digest(digest, tmp_path):
    other = ("import threading", "import tempfile\nUNUSED = 3")
    assert digest_of(tmp_path, other) == digest


def test_a_helper_defined_anew_counts_from_then_on_and_json_keeps_the_digest(tmp_path):
    end = """first = full.digest
    read = type(full).model_validate_json(full.model_dump_json())
    def late(x): return 3 * x
    print(read.digest == first, full.digest == first, sep=",")"""
    assert script(tmp_path, end).stdout.strip() == "True,False"


def test_outer_variables_count_too(tmp_path):
    done = script(tmp_path, "print(made_in_a_function(2).digest == made_in_a_function(3).digest)")
    assert done.stdout.strip() == "False", done.stderr


def test_a_function_of_a_module_keeps_its_digest():
    @app(parameters={"x": Float(0, 1)}, metrics={"y": "1"})
    def local(x):
        return {"y": os.getpid()}

    made = local.plain_function
    assert made is not None
    assert local.code_digest == source_digest(made) == local.model_dump()["code_digest"]


HEAD = """
import abc, dataclasses, enum, functools, typing
import numpy as np
import hpcagent as ha
{above}

@ha.app(parameters={{"x": ha.Float(0, 1)}}, metrics={{"y": "1"}})
{decorator}
def measured(x):
    return {{"y": {y}}}

{below}
CODE = code_digest(measured.plain_function), code_digest(measured.plain_function, as_before=True)
"""


def digests(folder: Path, above: str, y: str = "M.C", decorator: str = "", below: str = "") -> tuple[str, str]:
    """The digest of the code of a script, as it is and as in records of form 0."""
    path = folder / f"script{len(list(folder.iterdir()))}.py"
    path.write_text(
        "from hpcagent.apps.carried import code_digest\n"
        + HEAD.format(above=above, y=y, decorator=decorator, below=below)
    )
    found = runpy.run_path(str(path), run_name="__main__")["CODE"]
    assert isinstance(found, tuple)
    return found


DECO = """
def deco(function):
    @functools.wraps(function)
    def wrapper(x):
        return {"y": function(x)["y"] + 1}
    return wrapper
"""
PLAIN_DECO = (
    "def keep(function):\n    @functools.wraps(function)\n    def kept(x): return function(x)\n    return kept\n"
)


@pytest.mark.parametrize(
    ("above", "old", "new", "how"),
    [
        (DECO, "+ 1", "+ 2", {"decorator": "@deco", "y": "x"}),
        (DECO + PLAIN_DECO, "+ 1", "+ 2", {"decorator": "@keep\n@deco\n@keep", "y": "x"}),
        (DECO.replace("@functools.wraps(function)", ""), "+ 1", "+ 2", {"decorator": "@deco", "y": "x"}),
        ("class B: C = 1\nclass M(B): pass", "C = 1", "C = 2", {}),
        ("class A: C = 1\nclass B(A): pass\nclass M(B): pass", "C = 1", "C = 2", {}),
        ("class B:\n  def f(self): return 1\nclass M(B): pass", "return 1", "return 2", {"y": "M().f()"}),
        ("class B:\n  def f(self): return 1\nclass M(B): pass\nm = M()", "return 1", "return 2", {"y": "m.f()"}),
        ("def g(self): return 1\nclass M: f = g", "return 1", "return 2", {"y": "M().f()"}),
        ("class M: pass\nM.f = lambda self: 1", "self: 1", "self: 2", {"y": "M().f()"}),
        ("K = 1\nclass M: C = K", "K = 1", "K = 2", {}),
        ("class M: C = 0\nM.C = 1", "M.C = 1", "M.C = 2", {}),
        ("class T(type):\n  @property\n  def C(cls): return 1\nclass M(metaclass=T): pass", "return 1", "return 2", {}),
        ("def k(): return 1\n@dataclasses.dataclass\nclass M:\n  C: int = dataclasses.field(default_factory=k)",
         "return 1", "return 2", {"y": "M().C"}),
        ("K = 1\n@dataclasses.dataclass(slots=True)\nclass M:\n  C: int = K", "K = 1", "K = 2", {"y": "M().C"}),
        ("K = 1\nclass M(typing.NamedTuple):\n  C: int = K", "K = 1", "K = 2", {"y": "M().C"}),
        ("K = 1\nclass M(enum.Enum):\n  C = K", "K = 1", "K = 2", {"y": "M.C.value"}),
        ("K = 1\nclass Q: a = K\nclass M: C = Q()", "K = 1", "K = 2", {"y": "M.C.a"}),
        ("K = 1\ndef f(x, k=K): return k", "K = 1", "K = 2", {"y": "f(x)"}),
        ("K = 1\ndef f(x, *, k=K): return k", "K = 1", "K = 2", {"y": "f(x)"}),
        ("def f(x): return f.k\nf.k = 1", "f.k = 1", "f.k = 2", {"y": "f(x)"}),
        ("K = 1\nF = [{'a': functools.partial(lambda k, x: x + k, K)}]", "K = 1", "K = 2", {"y": "F[0]['a'](x)"}),
        ("K = 1\ndef g(x): return K\nv = np.vectorize(g)", "K = 1", "K = 2", {"y": "float(v(x))"}),
        ("@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: float): return 1",
         "return 1", "return 2", {"y": "f(x)"}),
        ("class M:\n  def __init__(self, f): self.f = f\nK = 1\ndef g(x): return K\nm = M(g)", "K = 1", "K = 2",
         {"y": "m.f(x)"}),
        ("@dataclasses.dataclass(slots=True)\nclass P:\n  a: float\nPS = [P(1.), P(2.), P(3.), P(4.)]", "P(4.)", "P(5.)",
         {"y": "PS[3].a"}),
        ("TS = [np.full(3, 1.), np.full(3, 2.), np.full(3, 3.)]", "3, 3.", "3, 4.", {"y": "TS[2].sum()"}),
        ("C = 1", "C = 1", "C = 2", {"y": "globals()['C']"}),
    ],
)  # fmt: skip
def test_what_decides_a_number_beside_sources_and_globals_is_part_of_the_digest(above, old, new, how, tmp_path):
    assert above.count(old) == 1
    first, _ = digests(tmp_path, above, **how)
    again, _ = digests(tmp_path, above, **how)
    other, _ = digests(tmp_path, above.replace(old, new), **how)
    assert first == again != other


PLAIN = """
class M:
    C = 1
    table = {"a": [1.0, -2.0]}
    def __init__(self, a=1): self.a = a
    @property
    def p(self): return self.a
    @staticmethod
    def s(k="a"): return k
    @classmethod
    def c(cls): return cls.C
    g = lambda self: 1
@dataclasses.dataclass(frozen=True)
class D:
    a: float
    b: int = 2
class E(enum.Enum):
    ONE = 1
    TWO = "two"
class N(typing.NamedTuple):
    a: float
class A(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
NOTHING = None
d = D(1.0)
def f(x, y=2, *, z=None): return x if NOTHING is None else (E, N, A, D, d)
def made(k):
    def inner(x): return x if k is None else k
    return inner
h = made(None)
"""


def test_scripts_whose_sources_say_it_all_keep_the_digest_of_records_before(tmp_path):
    now, before = digests(tmp_path, PLAIN, y="f(x) + M().c() + h(x)")
    assert now == before


GROWN = """
import hpcagent as ha
class B: C = 0
class M(B): pass

@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"})
def measured(x):
    return {"y": M.C}

APP = measured.frozen()
BEFORE = list(APP._before(own=True))
"""


def test_a_record_of_form_0_goes_on_as_it_was_and_one_of_now_is_compared_in_full(tmp_path):
    apps = []
    for number, text in enumerate((GROWN, GROWN.replace("C = 0", "C = 1000"))):
        path = tmp_path / f"grown{number}.py"
        path.write_text(text)
        apps.append(runpy.run_path(str(path), run_name="__main__"))
    first, edited = apps[0]["APP"], apps[1]["APP"]
    old = next(one for one in apps[0]["BEFORE"] if one.code_digest != first.code_digest)
    assert first.continuing(first).digest == first.digest
    assert edited.continuing(first) is None
    went_on = first.continuing(type(old).model_validate_json(old.model_dump_json()))
    assert went_on.digest == old.digest != first.digest and went_on.code_form == 0
    assert type(first).model_validate_json(first.model_dump_json()).code_form == 1
