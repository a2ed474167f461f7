"""The report as one HTML file: the text of report.md, its plots inside, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["html_report"]

_STYLE = """
:root { color-scheme: light dark; }
body {
  font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; overflow-wrap: break-word;
}
h1, h2, h3 { line-height: 1.2; margin: 1.6em 0 0.5em; }
h1 { margin-top: 0.5em; }
.wide { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-size: 0.9em; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2em 0.8em 0.2em 0; text-align: left; border-bottom: 1px solid rgba(128,128,128,0.35); }
img { max-width: 100%; height: auto; background: white; }
code { font-size: 0.9em; }
nav ul { padding-left: 1.2em; margin: 0; }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
)


def html_report(text: str, plots: Sequence[Path]) -> str:
    """The page of a report.

    Args:
        text: The report in Markdown; HTML in it is shown as text, and of images only the plots are.
        plots: PNG files that the text shows by their names.

    Example:
        >>> "<h2 id=\\"all-runs\\">All runs</h2>" in html_report("# a\\n\\n## All runs\\n\\n<b>", [])
        True
    """
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(text)
    titles = _with_anchors(tokens)
    images = {p.name: f"data:image/png;base64,{base64.b64encode(p.read_bytes()).decode()}" for p in plots}
    for token in (child for t in tokens for child in t.children or ()):
        if token.type == "image":
            token.attrs["src"] = images.get(str(token.attrs.get("src")), "")
    body = reader.renderer.render(tokens, reader.options, {})
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    name = escape(titles[0][2]) if titles else "report"
    listed = "".join(
        f'<li><a href="#{anchor}">{escape(title)}</a></li>' for level, anchor, title in titles if level == 2
    )
    contents = f"<nav><ul>{listed}</ul></nav>" if listed else ""
    head, found, rest = body.partition("</h1>")
    body = f"{head}{found}\n{contents}{rest}" if found else contents + body
    return f"{_HEAD}<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"


def _with_anchors(tokens: Sequence[Any]) -> list[tuple[int, str, str]]:
    """Give each heading an id of its own; returns level, id and text of each."""
    found: list[tuple[int, str, str]] = []
    for token, content in itertools.pairwise(tokens):
        if token.type != "heading_open":
            continue
        base = re.sub(r"[^a-z0-9]+", "-", content.content.lower()).strip("-") or "section"
        taken = {anchor for _, anchor, _ in found}
        anchor = next(a for a in (base, *(f"{base}-{i}" for i in range(2, len(found) + 3))) if a not in taken)
        token.attrs["id"] = anchor
        found.append((int(token.tag[1]), anchor, content.content))
    return found
