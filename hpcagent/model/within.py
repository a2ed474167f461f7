"""Constraints and conditional parameters of a space, held against its parameters; and with some values known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.conditions import checked, folded
from hpcagent.model.constraints import Constraint
from hpcagent.model.grammar import Logic, Node, names_in, read_condition, written

if TYPE_CHECKING:
    from hpcagent.model.parameter import Parameter

__all__ = ["check_rules", "in_order", "without_known"]

MOST_CONSTRAINTS = 100


def check_rules(parameters: Sequence[Parameter], constraints: Sequence[Constraint]) -> None:
    """Refuse conditions that name what there is not, or make no sense (units, words, circles).

    Raises:
        BadInput: The first that is wrong, with a caret at the place.
    """
    whens = [p for p in parameters if p.when is not None]
    if not whens and not constraints:
        return
    if len(constraints) > MOST_CONSTRAINTS:
        raise BadInput(f"{len(constraints)} constraints are too many; allowed: {MOST_CONSTRAINTS}.")
    known = {p.name: p for p in parameters}
    for c in constraints:
        checked(c.node, known, c.text)
    nodes: dict[str, Node] = {}
    for p in whens:
        assert p.when is not None
        try:
            node = read_condition(p.when)
        except BadInput as error:
            raise BadInput(f"{p.name}, when: {error.message}", **error.details) from None
        if not names_in(node):
            raise BadInput(f"{p.name}: when={p.when!r} names no parameter, so it decides nothing.", value=p.when)
        if p.name in names_in(node):
            raise BadInput(f"{p.name}: when={p.when!r} is about {p.name} itself.", value=p.when)
        try:
            checked(node, known, p.when)
        except BadInput as error:
            raise BadInput(f"{p.name}, when: {error.message}", **error.details) from None
        nodes[p.name] = node
    in_order(nodes)


def without_known(
    parameters: Sequence[Parameter], constraints: Sequence[Constraint], known: Mapping[str, Scalar]
) -> tuple[tuple[Parameter, ...], tuple[Constraint, ...]]:
    """The parameters and constraints that are left where some have a value.

    A constraint with a known parameter that is active in some points only becomes `not (when) or constraint`; one
    of which nothing is left is dropped; a conditional parameter that can never be active is dropped.

    Raises:
        BadInput: A constraint is broken by the known values alone.
    """
    whens: dict[str, Node | bool] = {
        p.name: True if p.when is None else read_condition(p.when) for p in parameters
    }
    for name in in_order({n: node for n, node in whens.items() if not isinstance(node, bool)}):
        node = whens[name]
        assert not isinstance(node, bool)
        whens[name] = _under(folded(node, known), names_in(node) & set(known), whens, otherwise=False)
        # A parent that can never be active takes its children with it.
        if any(whens.get(other) is False for other in names_in(node)):
            whens[name] = False
    left_out = {n for n, node in whens.items() if node is False}
    rest = tuple(
        p
        if p.when is None or not names_in(read_condition(p.when)) & set(known)
        else p.model_copy(update={"when": _text(whens[p.name])})
        for p in parameters
        if p.name not in known and p.name not in left_out
    )
    kept: list[Constraint] = []
    for c in constraints:
        if c.names & left_out:
            continue
        node = _under(folded(c.node, known), c.names & set(known), whens, otherwise=True)
        if node is False:
            raise BadInput(
                f"{c.why_not(known) or c.text} (fixed values); change one of these values.", value=c.text
            )
        if node is True:
            continue
        kept.append(c if not c.names & set(known) else Constraint(text=written(node)))
    return rest, tuple(kept)


def _under(
    node: Node | bool, known: frozenset[str] | set[str], whens: Mapping[str, Node | bool], *, otherwise: bool
) -> Node | bool:
    """The condition where its known parameters are active, `otherwise` elsewhere."""
    if node is otherwise:
        return node
    for name in sorted(known):
        when = whens.get(name, True)
        if isinstance(when, bool):
            continue
        if otherwise:
            off = Logic("not", (when,))
            node = off if node is False else Logic("or", (off, node)) if not isinstance(node, bool) else node
        else:
            node = when if node is True else Logic("and", (when, node)) if not isinstance(node, bool) else node
    return node


def _text(node: Node | bool) -> str | None:
    return None if isinstance(node, bool) else written(node)


def in_order(whens: Mapping[str, Node]) -> list[str]:
    """Conditional parameters, each after those that its condition names.

    Raises:
        BadInput: Their conditions go round in a circle.
    """
    order: list[str] = []
    left = dict(whens)
    while left:
        ready = [n for n, node in left.items() if not names_in(node) & set(left)]
        if not ready:
            circle = ", ".join(sorted(left))
            raise BadInput(f"the conditions (when) of {circle} depend on each other in a circle.", value=circle)
        order += ready
        left = {n: node for n, node in left.items() if n not in ready}
    return order
