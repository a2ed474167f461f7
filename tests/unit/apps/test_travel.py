"""What a run is on its way to another machine, and what it becomes there."""

import hashlib
import json
import linecache
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.apps.rebuilt import rebuilt
from hpcagent.apps.sourced import described
from hpcagent.apps.travel import LARGEST, Packed, pack, unpack
from hpcagent.apps.worker import execute
from hpcagent.catalog import find_app
from hpcagent.errors import AppFailed, BadInput

ROOT = Path(__file__).parents[3]
SITE = {"node_cores": 2, "apps": {}}


class Endpoint:
    """A folder on another machine: what was sent, by its content, and the campaign's folder beside it."""

    def __init__(self, folder: Path):
        self.inputs, self.root = folder / "there" / "inputs", folder / "there" / "campaign"
        self.inputs.mkdir(parents=True)
        self.asked: list[str] = []

    def take(self, blobs):
        for digest, content in blobs.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            assert hashlib.sha256(data).hexdigest() == digest
            (self.inputs / digest).write_bytes(data)

    def fetch(self, digest):
        self.asked.append(digest)
        path = self.inputs / digest
        if not path.is_file():
            raise FileNotFoundError(2, "not sent yet", digest)
        return path

    def opened(self, packed: Packed):
        order, upstream = json.loads(json.dumps([packed.order, packed.upstream], allow_nan=False))
        return unpack(order, upstream, self.fetch, root=self.root)

    def run(self, packed: Packed):
        self.take(packed.blobs)
        order, upstream = self.opened(packed)
        return json.loads(json.dumps(execute(order, *upstream), allow_nan=False))


@pytest.fixture
def endpoint(tmp_path):
    return Endpoint(tmp_path)


def order_of(app: App, work: Path, upstream=(), **params):
    manifest = app.manifest(params, upstream=upstream, site=SITE)
    return app.order(manifest, work=work / "here" / "work", site=SITE)


@pytest.mark.lammps
def test_a_run_of_lammps_gives_there_what_it_gives_here_and_is_less_than_2_kb(tmp_path, endpoint):
    app = find_app("lj_argon").frozen()
    first = order_of(app, tmp_path, timestep=0.004, steps=100, equil_steps=100)
    packed = pack(first)
    assert len(json.dumps(packed.order)) < 2000
    there, here = endpoint.run(packed), execute(first)
    assert here["status"] == there["status"] == "COMPLETED", there
    same = ("temperature", "pressure", "potential_energy_mev_per_atom")
    assert [there["metrics"][name] for name in same] == [here["metrics"][name] for name in same]
    assert there["workdir"] == f"{endpoint.root}/work/{first['manifest']['execution_id']}"


def test_what_runs_share_is_sent_once_and_packing_costs_little(tmp_path):
    app = find_app("lj_argon").frozen()
    orders = [order_of(app, tmp_path, timestep=0.004 + i * 1e-5) for i in range(50)]
    blobs = dict(pack(orders[0]).blobs)
    began = time.thread_time()
    packed = [pack(order) for order in orders]
    assert (time.thread_time() - began) / len(orders) < 1e-3  # 0.03 ms where this was written
    assert all(one.blobs == blobs for one in packed) and len(blobs) == 1
    other = pack(order_of(app.with_settings(), tmp_path) | {"promises": {"pressure": ("bar", True)}})
    assert other.order["common"] not in blobs


def test_files_of_an_app_travel_by_content_and_with_their_modes(tmp_path, endpoint):
    folder = tmp_path / "here" / "program"
    folder.mkdir(parents=True)
    (folder / "solve").write_text("#!/bin/sh\ncat deck.txt\n")
    (folder / "solve").chmod(0o755)
    (folder / "deck.txt").write_text("energy = ${x}\n")
    app = ha.executable(
        "./solve",
        parameters={"x": ha.Float(0, 1)},
        templates=["deck.txt"],
        metrics={"energy": ha.output.from_regex(r"energy = (\S+)", unit="1")},
        relative_to=folder,
    ).frozen()
    packed = pack(order_of(app, tmp_path, x=0.5))
    endpoint.take(packed.blobs)
    (folder / "deck.txt").write_text("energy = 2*${x}\n")
    with pytest.raises(AppFailed, match=r"deck\.txt.*not sent") as edited:  # as on a worker of this machine
        pack(order_of(app, tmp_path, x=0.25))
    assert edited.value.details["name"] == "FilesChanged"
    for path in folder.iterdir():
        path.unlink()  # nothing of here is there
    order, _ = endpoint.opened(packed)
    assert execute(order)["metrics"] == {"energy": 0.5}
    placed = [Path(path) for path in order["settings"]["paths"].values()]
    assert all(path.is_relative_to(endpoint.root) and not path.stat().st_mode & 0o222 for path in placed)
    placed[0].chmod(0o755)
    placed[0].write_text("#!/bin/sh\necho energy = 9\n")  # damaged there: made anew
    endpoint.opened(packed)
    assert "deck" in placed[0].read_text() or "energy = ${x}" in placed[0].read_text()


def test_a_file_that_a_point_chooses_travels_and_the_function_gets_its_path_there(tmp_path, endpoint):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"energy = 1 {name}\n")
    app = ha.executable(
        "cat {deck}",
        parameters={"deck": ha.File(tmp_path / "a.txt", tmp_path / "b.txt")},
        metrics={"energy": ha.output.from_regex(r"energy = (\S+)", unit="1")},
        relative_to=tmp_path,
    ).frozen()
    packed = [pack(order_of(app, tmp_path, deck=name)) for name in ("a.txt", "b.txt")]
    assert packed[0].order["common"] == packed[1].order["common"]
    assert len(packed[0].blobs) == 2  # its own file, and not the other
    assert "here" not in json.dumps(packed[0].order["chosen"])
    assert [endpoint.run(one)["metrics"] for one in packed] == [{"energy": 1.0}] * 2


def test_an_input_that_is_not_there_is_asked_for_with_all_others_that_are_not(tmp_path, endpoint):
    app = find_app("eam_cu").frozen()
    packed = pack(order_of(app, tmp_path))
    assert len(packed.blobs) >= 2 and set(packed.order["inputs"]) == set(packed.blobs)
    with pytest.raises(FileNotFoundError):
        endpoint.opened(packed)
    assert set(endpoint.asked) == set(packed.blobs)
    endpoint.take(packed.blobs)
    order, _ = endpoint.opened(packed)
    assert all(Path(path).is_file() for path in order["settings"]["paths"].values())


@pytest.mark.parametrize("given", ["atoms", "run here", "run there"])
def test_a_structure_travels_unless_it_is_there(tmp_path, endpoint, given):
    from ase.build import bulk

    from hpcagent.apps.structures import given as as_given
    from hpcagent.apps.structures import structure_of

    atoms = bulk("Cu", cubic=True)
    fields = dict(as_given(atoms).fields)
    run = endpoint.root / "work" / "earlier"
    if given == "run here":
        run = tmp_path / "here" / "work" / "earlier"
    if given != "atoms":
        run.mkdir(parents=True)
        (run / "structure.xyz").write_text(fields.pop("structure"))
        fields |= {
            "workdir": str(tmp_path / "here" / "work" / "earlier"),
            "artifacts": {"structure": "structure.xyz"},
        }
    if given == "run there":
        fields["remote"] = {"site": "cluster", "endpoint_id": "", "workdir": str(run), "files": {}}
    packed = pack(order_of(find_app("lj_argon").frozen(), tmp_path), [fields])
    assert (len(packed.blobs) == 2) == (given == "run here")
    endpoint.take(packed.blobs)
    if given == "run here":
        (run / "structure.xyz").unlink()
    _, [result] = endpoint.opened(packed)
    assert abs(structure_of(result).positions - atoms.positions).max() < 1e-7


def test_what_cannot_be_sent_is_refused_with_what_to_do(tmp_path):
    order = order_of(find_app("lj_argon").frozen(), tmp_path)
    wrong = {**order["settings"], "folders": [float("nan")]}
    with pytest.raises(BadInput, match=r"settings: folders\[0\] is nan"):
        pack(order | {"settings": wrong})
    with pytest.raises(BadInput, match="chain"):
        pack(order | {"account": dict})
    with pytest.raises(BadInput, match="nobody knows"):
        pack(order | {"novelty": 1})
    large = tmp_path / "large.data"
    with large.open("wb") as file:
        file.truncate(LARGEST + 1)
    paths = {"files": {"large.data": ""}, "paths": {"large.data": str(large)}}
    with pytest.raises(BadInput, match=r"large.data.*52 MB.*Globus Transfer"):
        pack(order | {"settings": order["settings"] | paths})
    (tmp_path / "deck").write_text("now")
    paths = {"files": {"deck": "0" * 64}, "paths": {"deck": str(tmp_path / "deck")}}
    with pytest.raises(AppFailed, match="deck: SHA-256 000000000000 recorded"):
        pack(order | {"settings": order["settings"] | paths})


def test_names_that_lead_out_of_the_campaigns_folder_are_refused_there(tmp_path, endpoint):
    order = order_of(find_app("eam_cu").frozen(), tmp_path)
    packed = pack(order)
    endpoint.take(packed.blobs)
    out = Packed({**packed.order, "manifest": {**order["manifest"], "execution_id": "../x"}}, [], {})
    with pytest.raises(BadInput, match="names no folder"):
        endpoint.opened(out)
    chosen = {"p": {"name": "p", "sha256": "0" * 64, "travels": {"sha256": "0" * 64, "name": "../p"}}}
    with pytest.raises(BadInput, match="no name of a file"):
        endpoint.opened(Packed({**packed.order, "chosen": chosen}, [], {}))


# ---- functions of scripts

SCRIPT = '''\
"""A script as people write them."""
from __future__ import annotations

import functools
import json
import math
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from math import sqrt as root
from pathlib import Path
from typing import NamedTuple

import hpcagent as ha
import own_tools

SECRET = "do not send me"
LIMIT = float("inf")
TABLE = {"a": (1, 2.5), "b": [None, True]}
WHEN = date(2026, 11, 22)
Pair = namedtuple("Pair", "left right")
PAIR = Pair(1, 2)


class Kind(Enum):
    SOFT = 0.5
    HARD = 2


class Point(NamedTuple):
    x: float
    y: float = 1.0


@dataclass(frozen=True)
class Config:
    scale: float = 2.0
    weights: list = field(default_factory=lambda: [1.0, 2.0])

    @property
    def total(self):
        return self.scale * sum(self.weights)

    def scaled(self, x):
        return x * self.total


class Softer(Config):
    def scaled(self, x):
        return super().scaled(x) * Kind.SOFT.value


CONFIG = Softer(scale=3.0)
ORIGIN = Point(0.25)


def twice(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2 * function(*args)

    return wrapper


@twice
def shifted(x, *, by=Decimal("0.5")):
    return x + float(by)


@functools.lru_cache(maxsize=8)
def slow(n):
    return n if n < 2 else slow(n - 1) + slow(n - 2)


square, cube = lambda x: x * x, lambda x: x**3
halved = functools.partial(pow, 2)


def factory(factor):
    count = 0

    def inner(x, offset=LIMIT):
        nonlocal count
        count += 1
        return factor * x + (0 if math.isinf(offset) else offset)

    return inner


tripled = factory(3)
bound = CONFIG.scaled


@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1", "z": "1"})
def energy(x, run=None):
    parts = [square(x), cube(x), shifted(x), slow(10), halved(3), tripled(x), bound(x), own_tools.gain(x)]
    parts += [TABLE["a"][1], WHEN.day, PAIR.right, ORIGIN.x, ORIGIN.y, root(4), CONFIG.scale]
    return {"y": sum(parts), "z": float(len(json.dumps(TABLE))) + own_tools.deep.DEPTH}


if __name__ == "__main__":
    from hpcagent.apps import carried
    from hpcagent.apps.travel import pack
    from hpcagent.apps.worker import execute

    app = energy.frozen()
    site = {"node_cores": 1, "apps": {}}
    orders = [app.order(app.manifest({"x": x}), work=Path("work").absolute(), site=site) for x in (0.25, 0.75)]
    Path("blobs").mkdir()
    packed = [pack(order) for order in orders]
    for digest, content in packed[0].blobs.items():
        (Path("blobs") / digest).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    local = [execute({**order, "function": carried.carry(app.plain_function)})["metrics"] for order in orders]
    said = {"orders": [one.order for one in packed], "metrics": local, "digest": carried.code_digest(app.plain_function)}
    Path("packed.json").write_text(json.dumps(said))
'''

THERE = """\
import json, sys, types
from pathlib import Path
from hpcagent.apps import carried
from hpcagent.apps.travel import unpack
from hpcagent.apps.worker import execute
folder = Path(sys.argv[1])
root = Path.cwd() / "campaign"
def fetch(digest):
    return folder / "blobs" / digest
said = json.loads((folder / "packed.json").read_text())
results, functions = [], []
for packed in said["orders"]:
    order, upstream = unpack(packed, [], fetch, root=root)
    results.append(execute(order, *upstream))
function = order["function"]._function
if function is None:
    sys.exit(json.dumps(results, indent=1))
sys.modules["__main__"].__dict__.update(function.__globals__)
sys.modules["__main__"].__file__ = function.__code__.co_filename
sys.path.insert(0, order["function"]._folder)
print(json.dumps({"results": results, "digest": carried.code_digest(function), "path": sys.path[1:2]}))
"""


def python_of(minor: str) -> str:
    """An interpreter of that version; empty if there is none."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python"))
    return str(installed[-1]) if installed else shutil.which(f"python{minor}") or ""


def at(python: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    folder.mkdir(exist_ok=True)
    return subprocess.run([python, *words], cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    (folder / "own_tools").mkdir()
    (folder / "own_tools" / "__init__.py").write_text(
        "from own_tools import deep\n\ndef gain(x):\n    return 10 * x\n"
    )
    (folder / "own_tools" / "deep.py").write_text("DEPTH = 7\n")
    (folder / "script.py").write_text(SCRIPT)
    done = at(sys.executable, folder, "script.py")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("minor", ["", "3.12", "3.13"])
def test_a_function_of_a_script_travels_as_source_to_another_python(tmp_path, script, minor):
    python = python_of(minor) if minor else sys.executable
    if not python:
        pytest.skip(f"there is no Python {minor} on this machine")
    (tmp_path / "there.py").write_text(THERE)
    done = at(python, tmp_path, "there.py", str(script))
    assert done.returncode == 0, done.stderr
    here, there = json.loads((script / "packed.json").read_text()), json.loads(done.stdout)
    assert [one.get("metrics") for one in there["results"]] == here["metrics"], there["results"][0].get("failure")
    if not minor:  # bytecode counts where there is no source, and each version has its own
        assert there["digest"] == here["digest"]


def test_only_what_is_used_of_a_script_is_sent(script):
    sent = b"".join(path.read_bytes() for path in (script / "blobs").iterdir())
    assert b"def wrapper" in sent and b"class Softer" in sent
    assert b"do not send me" not in sent and b"packed.json" not in sent


def test_what_a_function_lacks_there_is_said_with_the_environment_and_what_to_add(tmp_path, endpoint):
    (tmp_path / "absent_tools").mkdir()
    (tmp_path / "absent_tools" / "__init__.py").write_text("")
    text = (
        "import json, sys\nsys.path.append(sys.argv[1])\nfrom pathlib import Path\n"
        "import hpcagent as ha\nfrom hpcagent.apps.travel import pack\n"
        "@ha.app(parameters={'x': ha.Float(0, 1)}, metrics={'y': '1'})\n"
        "def energy(x):\n    import absent_package.sub\n    return {'y': x}\n"
        "app = energy.frozen()\n"
        "packed = pack(app.order(app.manifest({'x': 1}), work=Path('work').absolute(), site={}))\n"
        "print(json.dumps([packed.order, {d: c.decode() for d, c in packed.blobs.items()}]))\n"
    )
    (tmp_path / "script.py").write_text(text)
    done = at(sys.executable, tmp_path, "script.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    order, blobs = json.loads(done.stdout)
    failure = endpoint.run(Packed(order, [], {d: c.encode() for d, c in blobs.items()}))["failure"]
    assert (failure["kind"], failure["name"]) == ("infrastructure", "AppNotImportable")
    assert "'absent_package'" in failure["message"] and sys.prefix in failure["message"]
    assert "worker_init" in failure["repair"] and "requirements" in failure["repair"]


REFUSED = {
    "open(__file__)": "'thing'.*TextIOWrapper",
    "np.random.default_rng(1)": "'thing'.*Generator",
    "np.array([object()], dtype=object)": "'thing'.*array of Python objects",
    "types.ModuleType('nowhere')": "'thing'.*module that no name leads to",
    "eval('lambda: 1')": "no source",
}


@pytest.mark.parametrize("value", REFUSED)
def test_what_has_no_source_and_is_no_plain_value_is_refused_by_its_name(value):
    namespace = {"__name__": "__main__"}
    text = f"import types\nimport numpy as np\n__file__ = {__file__!r}\nthing = {value}\ndef energy(x):\n    return thing\n"
    name = f"<ipython-input-{abs(hash(value))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), namespace)
    with pytest.raises(BadInput, match=REFUSED[value]) as caught:
        described(namespace["energy"])
    assert "module beside the script" in str(caught.value)
    getattr(namespace["thing"], "close", int)()


def test_cells_of_a_notebook_travel_with_arrays_and_a_cell_that_was_run_again():
    namespace = {"__name__": "__main__"}
    cells = (
        "import numpy as np\nGRID = np.linspace(0, 1, 5)\nEDGE = GRID[2]\nTYPE = np.dtype('f4')\n",
        "class Cell:\n    side = 2.0\n",
        "def volume(cell):\n    return cell.side ** 3\n",
        "class Cell:\n    side = 3.0\n    def area(self):\n        return self.side ** 2\n",
        "CELL = Cell()\nCELL.side = 1.5\n"
        "def energy(x, cell=CELL):\n    return x * GRID.sum() + EDGE + volume(cell) + Cell().area() + TYPE.itemsize\n",
    )
    for number, text in enumerate(cells):
        name = f"/tmp/ipykernel_7/{number}{id(namespace)}.py"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), namespace)
    plain = json.loads(json.dumps(described(namespace["energy"]), allow_nan=False))
    assert rebuilt(plain)(2.0) == namespace["energy"](2.0) == 2 * 2.5 + 0.5 + 1.5**3 + 9.0 + 4
    assert "side = 2.0" not in json.dumps(plain)


def test_a_file_edited_after_the_script_began_is_refused():
    namespace = {"__name__": "__main__"}
    name = "<ipython-input-edited>"
    exec(compile("def energy(x):\n    return x\n", name, "exec"), namespace)
    text = "def energy(x):\n    return x + 1\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    with pytest.raises(BadInput, match="edited since the script began"):
        described(namespace["energy"])
