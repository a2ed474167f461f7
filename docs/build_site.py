"""Builds the documentation's site from the pages of this folder: `make docs`, or

    python docs/build_site.py [OPTIONS OF sphinx-build]

The pages are read in a checkout as well, so they stay as they are: a copy of them in `docs/_build/source` gets
what only the site has. That is a page for each section of `index.md`, the pages of the repository's root, and one
for each public name. The site is `docs/_build/html/index.html`; a warning is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hpcagent

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BUILD = DOCS / "_build"
SOURCE = BUILD / "source"

# Pages outside of this folder -> their name in the site.
OUTSIDE = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
}
# Section of index.md -> the page that lists it.
SECTIONS = {"Tutorial": "tutorials/index.md", "How to": "howto/index.md", "Reference": "reference/index.md"}
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
# What follows a block's language is for the tests.
FENCE = re.compile(r"^(```\w+)[^\S\n]+[^\n{]+$", re.MULTILINE)


def pages() -> Iterator[tuple[Path, Path]]:
    """Each page and its place in the site."""
    for path in sorted(DOCS.rglob("*.md")):
        if BUILD not in path.parents:
            yield path, SOURCE / path.relative_to(DOCS)
    for name, here in OUTSIDE.items():
        yield ROOT / name, SOURCE / here


def linked(text: str, page: Path, place: Path, places: dict[Path, Path]) -> str:
    """The page with its links as they are in the site; a file that is not in it is named, not linked."""

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found[1]).resolve()
        if target in places:
            return f"]({_up(places[target], place)}{found[2] or ''})"
        inside = DOCS in target.parents and target.is_file()
        return f"]({_up(SOURCE / target.relative_to(DOCS), place)}{found[2] or ''})" if inside else "]"

    parts = re.split(r"(^```.*?^```$)", FENCE.sub(r"\1", text), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def _up(target: Path, page: Path) -> str:
    """The way from a page to a file, as a link."""
    return Path(os.path.relpath(target, page.parent)).as_posix()


def section_pages() -> None:
    """A page for each section of index.md, and what the head of the site leads to."""
    index = (DOCS / "index.md").read_text()
    for title, name in SECTIONS.items():
        found = re.search(rf"^\*\*{title}\*\*\n\n(.*?)(?=^\*\*|\Z)", index, re.MULTILINE | re.DOTALL)
        if found is None:
            raise SystemExit(f"index.md has no section **{title}**")
        files = re.findall(r"\]\(([^)#]+)\)", found[1])
        place = SOURCE / name
        tree = "\n".join(_up(SOURCE / file, place) for file in files)
        listed = LINK.sub(lambda m, place=place: f"]({_up(SOURCE / m[1], place)}{m[2] or ''})", found[1])
        extra = "\n- [every public name, from its docstring](api.md)\n" if title == "Reference" else ""
        tree += "\napi.md" if extra else ""
        place.write_text(f"# {title}\n\n{listed.rstrip()}{extra}\n\n{_toctree(tree)}")
    apps = SOURCE / "reference" / "apps.md"
    kinds = "\n".join(f"apps/{path.name}" for path in sorted((SOURCE / "reference" / "apps").glob("*.md")))
    apps.write_text(apps.read_text() + "\n" + _toctree(kinds))
    head = ["Read me <readme.md>", *SECTIONS.values(), "concepts.md", "gallery.md", "glossary.md"]
    more = ["design.md", "contributing.md", "benchmarks.md", "changelog.md"]
    page = SOURCE / "index.md"
    page.write_text(page.read_text() + "\n" + _toctree("\n".join([*head, *more])))


def _toctree(entries: str) -> str:
    return f"```{{toctree}}\n:hidden:\n:maxdepth: 2\n\n{entries}\n```\n"


def api_page() -> None:
    """A page that leads to one for each public name."""
    public = [name for name in hpcagent.__all__ if name not in ("apps", "runs", "types")]
    public += [f"{room}.{name}" for room in ("runs", "types") for name in getattr(hpcagent, room).__all__]
    names = "\n   ".join(f"hpcagent.{name}" for name in public)
    text = "# Every public name\n\nWhat is in `import hpcagent as ha`, from the docstrings.\n\n"
    text += f"```{{eval-rst}}\n.. autosummary::\n   :toctree: api\n\n   {names}\n```\n"
    (SOURCE / "reference" / "api.md").write_text(text)


def main() -> int:
    """Write the copy, and build it; returns the exit code of sphinx-build."""
    if SOURCE.exists():
        shutil.rmtree(SOURCE)
    shutil.copytree(
        DOCS, SOURCE, ignore=shutil.ignore_patterns("_build", "__pycache__", "*.py", ".ipynb_checkpoints")
    )
    places = {page.resolve(): place for page, place in pages()}
    for page, place in places.items():
        place.write_text(linked(page.read_text(), page, place, places))
    section_pages()
    api_page()
    options = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(DOCS), *sys.argv[1:]]
    done = subprocess.run([sys.executable, "-m", "sphinx", *options, str(SOURCE), str(BUILD / "html")]).returncode
    print(f"the site: {BUILD / 'html' / 'index.html'}" if done == 0 else "the site has warnings", flush=True)
    return done


if __name__ == "__main__":
    raise SystemExit(main())
