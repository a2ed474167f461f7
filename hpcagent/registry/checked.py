"""All checks of a text: its syntax, its contract, and the words of its docstrings."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hpcagent.registry.contract import check_contract
from hpcagent.registry.findings import Finding
from hpcagent.registry.signature import Signature
from hpcagent.registry.source import Parsed, ToolText, parse_text
from hpcagent.registry.steering import check_text

__all__ = ["check_whole", "of_tool"]

KINDS = ("lammps", "synthetic")
"""Names of kinds of runs that doors have beside the apps."""


def check_whole(text: str, *, taken: Collection[str], others: Collection[str] = ()) -> Parsed:
    """Read a text and check all of it.

    Args:
        text: Python.
        taken: Names of apps that come with the library or its extensions.
        others: Names of other tools, of which a text speaks no ill either.

    Example:
        >>> [one.rule for one in check_whole("def f(x: float) -> float:\\n    return x\\n", taken=("f",)).findings]
        ['docstring', 'parameter-doc', 'unit', 'bounds', 'return-doc', 'unit', 'name']
    """
    parsed = parse_text(text)
    found = list(parsed.findings)
    beside = {*taken, *others, *(tool.name for tool in parsed.tools)}
    for tool in parsed.tools:
        found += _of_names(tool.signature, taken)
        found += check_contract(tool.signature)
        found += _of_words(tool.signature, beside)
    return Parsed(parsed.tools, tuple(found))


def of_tool(findings: Collection[Finding], tool: ToolText) -> tuple[Finding, ...]:
    """What of the findings of a text goes with one of its tools: those that are not of another."""
    return tuple(one for one in findings if one.tool in ("", tool.name))


def _of_names(signature: Signature, taken: Collection[str]) -> Iterator[Finding]:
    name = signature.name
    if name in taken or name in KINDS:
        says = f"{name} is the name of an app that comes with the library; a tool takes no app's place: rename it"
        yield Finding(rule="name", says=says, tool=name, words=name)


def _of_words(signature: Signature, others: Collection[str]) -> list[Finding]:
    """What steers a model in the texts of a tool: all that stand in the schema by which it is told of it."""
    name = signature.name
    found = check_text(f"{signature.summary}\n\n{signature.about}", tool=name, others=others)
    texts = [(name, _blanks(name))]
    for one in signature.arguments:
        words = [one.default, *one.choices]
        texts += [(one.name, text) for text in (one.description, _blanks(one.name), one.unit)]
        texts += [(one.name, text) for word in words if isinstance(word, str) for text in {word, _blanks(word)}]
    for out in signature.outputs:
        texts += [(out.name, text) for text in (out.description, _blanks(out.name), out.unit)]
    for where, text in dict.fromkeys(texts):
        for finding in check_text(text, kind="argument", tool=name, others=others):
            found.append(finding.model_copy(update={"says": f"{where}: {finding.says}"}))
    return found


def _blanks(name: str) -> str:
    """The words of a name."""
    return name.replace("_", " ")
