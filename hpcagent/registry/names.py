"""What tools, agents and added apps may be called: names that every client can write, and files can have."""

from __future__ import annotations

import re

__all__ = ["LONGEST_TOOL_NAME", "NAME_WORDS", "is_name"]

LONGEST_TOOL_NAME = 60
NAME_WORDS = f"a letter, then at most {LONGEST_TOOL_NAME - 1} letters, digits and _ of ASCII"
_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9_]{{0,{LONGEST_TOOL_NAME - 1}}}\Z")


def is_name(text: str) -> bool:
    """Whether a text is such a name.

    Example:
        >>> is_name("run_dft"), is_name("2nd"), is_name("a/b")
        (True, False, False)
    """
    return _NAME.match(text) is not None
