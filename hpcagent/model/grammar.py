"""Conditions on parameters as text: `x + y <= 1`, `a < b < c`, `solver == 'mg' and levels > 2`.

A small grammar of our own; nothing is evaluated as Python.

    condition   = both { "or" both }
    both        = single { "and" single }
    single      = "not" single | comparison
    comparison  = sum { ("<" | "<=" | ">" | ">=" | "==" | "!=") sum } | sum ["not"] "in" list
    sum         = product { ("+" | "-") product }
    product     = signed { ("*" | "/" | "%") signed }
    signed      = ("-" | "+") signed | power
    power       = atom [ "**" signed ]
    atom        = number | word in quotes | True | False | name | call | "(" condition ")"
    call        = function "(" sum {"," sum} ")"
    list        = ("(" | "[") item { "," item } (")" | "]")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Scalar

__all__ = [
    "FUNCTIONS",
    "Call",
    "Compare",
    "Literal",
    "Logic",
    "Member",
    "Name",
    "Node",
    "Operation",
    "names_in",
    "pointed",
    "read_condition",
    "written",
]

LONGEST = 1000
"""Characters of a condition."""
DEEPEST = 40
"""Brackets, signs and powers within each other."""
MOST_TOKENS = 400

FUNCTIONS = {"abs": 1, "sqrt": 1, "exp": 1, "log": 1, "log10": 1, "min": 2, "max": 2}
"""Name -> how many arguments; 2 stands for two or more. `log` is the natural logarithm."""


@dataclass(frozen=True)
class Literal:
    """A number, a word or a truth value."""

    value: Scalar
    at: int = 0


@dataclass(frozen=True)
class Name:
    """A parameter."""

    name: str
    at: int = 0


@dataclass(frozen=True)
class Operation:
    """`+ - * / % **` of two, or `-` of one (`left` is 0 then)."""

    op: str
    left: Node
    right: Node
    at: int = 0


@dataclass(frozen=True)
class Call:
    """A function of `FUNCTIONS`."""

    function: str
    arguments: tuple[Node, ...]
    at: int = 0


@dataclass(frozen=True)
class Compare:
    """`terms[0] ops[0] terms[1] ops[1] ...`: every neighbouring pair holds."""

    terms: tuple[Node, ...]
    ops: tuple[str, ...]
    at: int = 0


@dataclass(frozen=True)
class Member:
    """`term in values`."""

    term: Node
    values: tuple[Scalar, ...]
    at: int = 0


@dataclass(frozen=True)
class Logic:
    """`and`, `or` of several, `not` of one."""

    op: str
    parts: tuple[Node, ...]
    at: int = 0


Node: TypeAlias = Literal | Name | Operation | Call | Compare | Member | Logic


def pointed(text: str, at: int) -> str:
    """The text with a caret under the place, on lines of their own.

    Example:
        >>> print(pointed("x + ? <= 1", 4))
        x + ? <= 1
            ^
    """
    start = max(0, at - 60)
    shown = "".join(c if c.isprintable() else " " for c in text[start : at + 60])
    return f"{shown}\n{' ' * (at - start)}^"


TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![A-Za-z_0-9.])"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<word>'[^'\n]*'|\"[^\"\n]*\")"
    r"|(?P<op>\*\*|<=|>=|==|!=|[-+*/%<>()\[\],]))"
)
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
HINTS = {
    "=": "two values are compared with ==",
    "^": "powers are written with **",
    "&": "write 'and'",
    "|": "write 'or'",
    "!": "write 'not', or != for unequal",
    "'": "the quote is not closed",
    '"': "the quote is not closed",
    "≤": "write <=",
    "≥": "write >=",
}


@lru_cache(maxsize=1024)
def read_condition(text: str) -> Node:
    """Parse a condition.

    Raises:
        BadInput: What is wrong, with a caret at the place.

    Example:
        >>> sorted(names_in(read_condition("x + 2 * y <= 1 and style in ('a', 'b')")))
        ['style', 'x', 'y']
    """
    if len(text) > LONGEST:
        raise BadInput(f"a condition has at most {LONGEST} characters; this one has {len(text)}: {text[:60]!r}...")
    return _Reader(text).whole()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._split())
        self.place = 0
        self.depth = 0

    def _split(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        end = len(self.text.rstrip())
        while at < end:
            found = TOKEN.match(self.text, at)
            if found is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                sign = self.text[at]
                self._refuse(HINTS.get(sign, f"{sign!r} has no meaning here"), at)
            kind = str(found.lastgroup)
            yield kind, found[kind], found.start(kind)
            at = found.end()
        yield "end", "", len(self.text.rstrip())

    def _refuse(self, why: str, at: int) -> NoReturn:
        raise BadInput(f"the condition cannot be read, {why}:\n{pointed(self.text, at)}", value=self.text)

    # Tokens

    @property
    def token(self) -> str:
        kind, text, _ = self.tokens[self.place]
        return "" if kind in ("word", "number") else text

    @property
    def at(self) -> int:
        return self.tokens[self.place][2]

    def _take(self, *wanted: str) -> str:
        """The next token if it is one of these, else nothing."""
        token = self.token
        if token and token in wanted:
            self.place += 1
            return token
        return ""

    def _need(self, wanted: str) -> None:
        if not self._take(wanted):
            self._refuse(f"{wanted!r} is missing", self.at)

    def _deeper(self, inner: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            self._refuse(f"more than {DEEPEST} brackets or signs stand within each other", self.at)
        node = inner()
        self.depth -= 1
        return node

    # Rules of the grammar

    def whole(self) -> Node:
        if len(self.tokens) == 1:
            self._refuse("it is empty; write e.g. 'x + y <= 1'", 0)
        if len(self.tokens) > MOST_TOKENS:
            self._refuse(f"it has more than {MOST_TOKENS} parts", self.tokens[MOST_TOKENS][2])
        node = self._either()
        if self.tokens[self.place][0] != "end":
            self._refuse(f"{self.tokens[self.place][1]!r} is not expected here", self.at)
        return node

    def _either(self) -> Node:
        return self._joined("or", lambda: self._joined("and", self._single))

    def _joined(self, word: str, inner: Callable[[], Node]) -> Node:
        at, parts = self.at, [inner()]
        while self._take(word):
            parts.append(inner())
        return parts[0] if len(parts) == 1 else Logic(word, tuple(parts), at)

    def _single(self) -> Node:
        at = self.at
        if self._take("not"):
            return Logic("not", (self._deeper(self._single),), at)
        return self._comparison()

    def _comparison(self) -> Node:
        at, terms, ops = self.at, [self._sum()], list[str]()
        negated = self.token == "not" and self.tokens[self.place + 1][1] == "in"  # "end" stands last
        if negated:
            self.place += 1
        if self._take("in"):
            member = Member(terms[0], self._list(), at)
            return Logic("not", (member,), at) if negated else member
        while op := self._take(*COMPARISONS):
            ops.append(op)
            terms.append(self._sum())
        return Compare(tuple(terms), tuple(ops), at) if ops else terms[0]

    def _list(self) -> tuple[Scalar, ...]:
        opened = self._take("(", "[")
        if not opened:
            self._refuse("'in' is followed by a list such as ('a', 'b')", self.at)
        close = ")" if opened == "(" else "]"
        items = [self._item()]
        while self._take(","):
            if self.token == close:
                break
            items.append(self._item())
        self._need(close)
        return tuple(items)

    def _item(self) -> Scalar:
        at, sign = self.at, -1 if self._take("-") else 1
        node = self._atom()
        if not isinstance(node, Literal) or (sign < 0 and not _is_number(node.value)):
            self._refuse("a list holds words in quotes and numbers", at)
        assert isinstance(node, Literal)
        return -node.value if sign < 0 and not isinstance(node.value, str) else node.value

    def _sum(self) -> Node:
        return self._chain(("+", "-"), self._product)

    def _product(self) -> Node:
        return self._chain(("*", "/", "%"), self._signed)

    def _chain(self, signs: tuple[str, ...], inner: Callable[[], Node]) -> Node:
        node = inner()
        while True:
            at = self.at
            op = self._take(*signs)
            if not op:
                return node
            node = Operation(op, node, inner(), at)

    def _signed(self) -> Node:
        at = self.at
        if self._take("-"):
            inner = self._deeper(self._signed)
            if isinstance(inner, Literal) and _is_number(inner.value) and not isinstance(inner.value, str):
                return Literal(-inner.value, at)
            return Operation("-", Literal(0, at), inner, at)
        if self._take("+"):
            return self._deeper(self._signed)
        return self._power()

    def _power(self) -> Node:
        base, at = self._atom(), self.at
        if self._take("**"):
            return Operation("**", base, self._deeper(self._signed), at)
        return base

    def _atom(self) -> Node:
        kind, text, at = self.tokens[self.place]
        if kind == "number":
            self.place += 1
            value = float(text)
            if value == float("inf"):
                self._refuse("the number is too large", at)
            return Literal(int(text) if text.isdigit() and len(text) < 16 else value, at)
        if kind == "word":
            self.place += 1
            return Literal(text[1:-1], at)
        if kind == "name" and text not in ("and", "or", "not", "in"):
            self.place += 1
            if text in ("True", "False"):
                return Literal(text == "True", at)
            return self._call(text, at) if self.token == "(" else Name(text, at)
        if self._take("("):
            node = self._deeper(self._either)
            self._need(")")
            return node
        self._refuse(f"a value is missing{f' before {text!r}' if text else ' at the end'}", at)

    def _call(self, name: str, at: int) -> Node:
        if name not in FUNCTIONS:
            self._refuse(f"there is no function {name!r} ({nearest(name, FUNCTIONS).rstrip('.')})", at)
        self._need("(")
        arguments = [self._deeper(self._sum)]
        while self._take(","):
            arguments.append(self._deeper(self._sum))
        self._need(")")
        count = FUNCTIONS[name]
        if len(arguments) != count and not (count == 2 and len(arguments) > 2):
            self._refuse(f"{name} takes {'one value' if count == 1 else 'two or more values'}", at)
        return Call(name, tuple(arguments), at)


def _is_number(value: Scalar) -> bool:
    return not isinstance(value, (bool, str))


def inner(node: Node) -> tuple[Node, ...]:
    """The parts of a node."""
    if isinstance(node, Operation):
        return (node.left, node.right)
    if isinstance(node, Call):
        return node.arguments
    if isinstance(node, Compare):
        return node.terms
    if isinstance(node, Member):
        return (node.term,)
    return node.parts if isinstance(node, Logic) else ()


def names_in(node: Node) -> frozenset[str]:
    """The parameters that a condition names."""
    if isinstance(node, Name):
        return frozenset((node.name,))
    return frozenset().union(*(names_in(part) for part in inner(node)))


def written(node: Node) -> str:
    """The node as text that reads back as the same (with more brackets than a person would write).

    Example:
        >>> written(read_condition("x+2*y<=1"))
        '(x + (2 * y)) <= 1'
    """
    if isinstance(node, Literal):
        if not isinstance(node.value, str):
            return repr(node.value)
        return f'"{node.value}"' if "'" in node.value else f"'{node.value}'"
    if isinstance(node, Name):
        return node.name
    if isinstance(node, Operation):
        return f"({written(node.left)} {node.op} {written(node.right)})"
    if isinstance(node, Call):
        return f"{node.function}({', '.join(map(written, node.arguments))})"
    if isinstance(node, Compare):
        rest = "".join(f" {op} {_term(term)}" for op, term in zip(node.ops, node.terms[1:], strict=True))
        return _term(node.terms[0]) + rest
    if isinstance(node, Member):
        return f"{_term(node.term)} in ({', '.join(written(Literal(v)) for v in node.values)})"
    parts = [f"({written(p)})" for p in node.parts]
    return f"not {parts[0]}" if node.op == "not" else f" {node.op} ".join(parts)


def _term(node: Node) -> str:
    return f"({written(node)})" if isinstance(node, (Compare, Logic, Member)) else written(node)
