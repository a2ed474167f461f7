"""What LAMMPS's variables and formulas give, as far as a script tells it without being run.

Numbers, `equal` formulas of them with LAMMPS's arithmetic, and `dt`, the timestep in force. What needs the atoms,
a file or chance has no value here (None), and so has arithmetic in which LAMMPS's order is not that of Python.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["DEFAULT_TIMESTEP", "Variables", "immediate", "uses_dt"]

DEFAULT_TIMESTEP = {
    "lj": 0.005,
    "real": 1.0,
    "metal": 0.001,
    "si": 1.0e-8,
    "cgs": 1.0e-8,
    "electron": 0.001,
    "micro": 2.0,
    "nano": 0.00045,
}
"""Units style -> timestep without a `timestep` command, in its unit of time (LAMMPS manual, `units`)."""

# The thermo keyword, not a variable of that name.
_DT = re.compile(r"(?<![\w{$])dt(?!\w)")
_TIME = re.compile(r"(?<![\w{$])(?:(?:step|elapsed|elaplong)\s*\*\s*dt|dt\s*\*\s*(?:step|elapsed|elaplong))(?!\w)")
_REFERENCE = re.compile(r"\$\{(\w+)\}|\$([A-Za-z])(?!\w)")
_LAZY = re.compile(r"(?<!\w)v_(\w+)")
_FORMAT = re.compile(r"(.*):(%[^:\s]*)", re.DOTALL)
_KEEPS_FIRST = ("index", "loop", "world", "universe", "uloop", "getenv")
_ONE_VALUE = ("index", "internal", "string")

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "ln": math.log,
    "log": math.log10,
    "round": lambda x: math.floor(x + 0.5),
    "sqrt": math.sqrt,
}


class Variables:
    """The variables of a script up to one of its commands, and the timestep there.

    Args:
        given: Values that are set before the script runs; its own lines do not replace them.
        dt: The timestep, in the script's unit of time; None: not known.
    """

    def __init__(self, given: Mapping[str, object], dt: float | None) -> None:
        self._texts: dict[str, str | None] = {k: str(v) for k, v in given.items() if not isinstance(v, bool)}
        self._given = frozenset(given)
        self._raw: dict[str, str] = {}
        self.dt = dt

    def define(self, words: Sequence[str], *, sure: bool = True) -> None:
        """Take a `variable` command; one that is not `sure` (in an `if`) leaves a variable of no known value."""
        name, style, text = words[1], words[2], " ".join(words[3:])
        if name in self._given or (style in _KEEPS_FIRST and name in self._texts):
            return
        known = style == "equal" or (style in _ONE_VALUE and len(words) == 4)
        self._texts[name] = self.put_in(text) if sure and known else None
        self._raw[name] = text

    def put_in(self, text: str) -> str | None:
        """A text with what stands behind `$` replaced, as LAMMPS does it before it reads a command.

        Each value has brackets around it where it is not all of the text. None: one has no value.
        """
        for one in immediate(text):
            value = self.value(one)
            if value is None:
                return None
            text = text.replace(one, repr(value) if text == one else f"({value!r})")
        return text

    def value(self, word: str) -> float | None:
        """What an argument of a command is: a number, `${name}`, `$(formula)` or `v_name`."""
        return self._worth(word, frozenset())

    def _worth(self, word: str, within: frozenset[str]) -> float | None:
        if alone := _REFERENCE.fullmatch(word) or _LAZY.fullmatch(word):
            return self._of(next(filter(None, alone.groups())), within)
        if not word.startswith("$("):
            return self._formula(word, within)
        text, form = word[2:-1], ""
        if formatted := _FORMAT.fullmatch(text):
            text, form = formatted[1], formatted[2]
        found = self._formula(text, within)
        try:
            return found if found is None or not form else float(form % found)
        except (ValueError, TypeError, OverflowError):
            return None

    def _of(self, name: str, within: frozenset[str]) -> float | None:
        text = self._texts.get(name)
        return None if text is None or name in within else self._formula(text, within | {name})

    def _formula(self, text: str, within: frozenset[str]) -> float | None:
        for one in immediate(text):
            value = self._worth(one, within)
            if value is None:
                return None
            text = text.replace(one, f"({value!r})")
        try:
            found = self._node(ast.parse(text.strip().replace("^", "**"), mode="eval").body, within)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            return None
        return found if found is not None and math.isfinite(found) else None

    def _node(self, node: ast.expr, within: frozenset[str]) -> float | None:
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.Name(id="dt"):
                return self.dt
            case ast.Name(id="PI"):
                return math.pi
            case ast.Name(id=name) if name.startswith("v_"):
                return self._of(name[2:], within)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner) if not _is_power(inner):
                value = self._node(inner, within)
                return -value if value is not None and isinstance(sign, ast.USub) else value
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                if isinstance(op, ast.Pow) and (_is_power(left) or _is_power(right)):
                    return None
                a, b = self._node(left, within), self._node(right, within)
                return None if a is None or b is None else float(_BINARY[type(op)](a, b))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
                value = self._node(argument, within)
                return None if value is None else float(_FUNCTIONS[name](value))
        return None

    def follows_dt(self, text: str) -> bool:
        """Whether a text has `dt` in it, itself or by a variable."""
        return any(uses_dt(one) for one in self._behind(text))

    def only_as_time(self, text: str) -> bool:
        """Whether `dt` stands in it as `step*dt` only, itself or by variables: a time, whatever `dt` is."""
        return not any(uses_dt(_TIME.sub("", one)) for one in self._behind(text))

    def _behind(self, text: str) -> Iterator[str]:
        """The text, and those of the variables that it leads to."""
        open_, seen = [text], set[str]()
        while open_:
            one = open_.pop()
            yield one
            for names in (*_REFERENCE.findall(one), *_LAZY.findall(one)):
                name = names if isinstance(names, str) else next(filter(None, names))
                if name not in seen:
                    seen.add(name)
                    open_.append(self._texts.get(name) or self._raw.get(name, ""))


def _is_power(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)


def uses_dt(text: str) -> bool:
    """Whether the thermo keyword `dt` stands in a text.

    Example:
        >>> uses_dt("$(100.0*dt)"), uses_dt("${dt}"), uses_dt("v_dt")
        (True, False, False)
    """
    return bool(_DT.search(text))


def immediate(text: str) -> list[str]:
    """What LAMMPS replaces in a text before it reads it: `$(formula)`, `${name}` and `$x`, in their order.

    Example:
        >>> immediate("fix 1 all nvt temp ${t} $t $(100.0*(dt+v_a))")
        ['${t}', '$t', '$(100.0*(dt+v_a))']
    """
    found, at = [], 0
    while (at := text.find("$", at)) >= 0:
        if alone := _REFERENCE.match(text, at):
            found.append(alone[0])
            at = alone.end()
        elif text.startswith("$(", at):
            end = _closing(text, at + 1)
            found.append(text[at:end])
            at = end
        else:
            at += 1
    return found


def _closing(text: str, at: int) -> int:
    depth = 0
    for end in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if not depth:
            return end + 1
    return len(text)
