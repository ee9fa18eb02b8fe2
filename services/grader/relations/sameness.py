"""What a side says once all that adds nothing is left away: two such sides are only spelled apart.

A *form* is a tree as nested tuples. Brackets, spelling of numbers, signs of signs, terms of zero
behind the first, factors of one and powers of one are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.grader.relations.chains import Relation
from services.grader.relations.nodes import Node

Form = tuple[Any, ...]

_ZERO, _ONE = ("number", "0"), ("number", "1")
_SUMS, _PRODUCTS, _OVER = {"+", "-", "negative"}, {"*", "/", "fraction"}, {"/", "fraction"}


def is_reordered(left: Node, right: Node) -> bool:
    """Whether the sides differ in nothing but order: ``x + 1 = 1 + x`` or ``2 + 0 = 2``."""
    return _form(left, in_order=False) == _form(right, in_order=False)


def identity(relation: Relation, left: Node, right: Node) -> str:
    """The same for ``2+2=4``, ``2.0 + (2) = 4`` and ``4 = 2 + 2``."""
    sides = [repr(_form(left, in_order=True)), repr(_form(right, in_order=True))]
    if relation.sign in {"=", "!=", "~~", "==="}:
        sides.sort()
    modulus = relation.modulus.text if relation.modulus else ""
    return f"{sides[0]} {relation.sign} {sides[1]} {modulus}"


def _form(node: Node, *, in_order: bool) -> Form:
    if node.kind == "grouped":
        return _form(node.parts[0], in_order=in_order)
    if node.kind == "number":
        return ("number", str(node.number))
    if node.kind in _SUMS:
        return _sum(node, in_order)
    if node.kind in _PRODUCTS:
        return _product(node, in_order)
    parts = [_form(part, in_order=in_order) for part in node.parts]
    if node.kind == "^" and parts[1] == _ONE:
        return parts[0]
    return (node.kind, node.letter, *parts)


def _sum(node: Node, in_order: bool) -> Form:
    first, *others = [(sign, _form(term, in_order=in_order)) for sign, term in _terms(node)]
    return _joined("sum", [first, *(term for term in others if term[1] != _ZERO)], in_order, _ZERO)


def _product(node: Node, in_order: bool) -> Form:
    factors = [(power, _form(factor, in_order=in_order)) for power, factor in _factors(node)]
    return _joined("product", [each for each in factors if each[1] != _ONE], in_order, _ONE)


def _joined(kind: str, parts: list[tuple[int, Form]], in_order: bool, nothing: Form) -> Form:
    if not parts:
        return nothing
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return (kind, *(parts if in_order else sorted(parts, key=repr)))


def _terms(total: Node) -> Iterator[tuple[int, Node]]:
    """The terms of a sum with their signs, in order."""
    waiting = [(1, total)]
    while waiting:
        sign, node = waiting.pop()
        if node.kind not in _SUMS:
            yield sign, node
            continue
        last = -sign if node.kind in {"-", "negative"} else sign
        waiting += [(last, node.parts[-1]), *((sign, part) for part in node.parts[:-1])]


def _factors(total: Node) -> Iterator[tuple[int, Node]]:
    """The factors of a product with their powers, 1 or -1, in order."""
    waiting = [(1, total)]
    while waiting:
        power, node = waiting.pop()
        if node.kind == "grouped":
            waiting.append((power, node.parts[0]))
        elif node.kind not in _PRODUCTS:
            yield power, node
        else:
            last = -power if node.kind in _OVER else power
            waiting += [(last, node.parts[1]), (power, node.parts[0])]
