"""One expression, one number, or a number and its unit: what has no parts of its own."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from services.grader.answers.grammar import tree_of
from services.grader.answers.nodes import Node, Unreadable, rebuilt
from services.grader.answers.tokens import Side, latex_of, plain_of, tokens
from services.grader.answers.units import measure_of
from services.grader.answers.values import Expression, Number, Set, Value

_MANY = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_WORDS = frozenset({"words", "roman", "letters"})
_ENDS_NUMBER = frozenset({"number", "repeating", "close", "letters", "accent", "roman"})
_RAISED = re.compile(r" ?\$?\^ ?\{? ?([0-9]) ?\}?\$?")
_LONG = re.compile(r"[a-zA-Z]{4}")


class WithUnit(NamedTuple):
    """A number, and the unit that was around it; without one it is only to be read anew."""

    head: Side
    unit: str
    is_bare: bool = False


def split_unit(side: Side) -> WithUnit | None:
    """A number apart from the words, the unit or the sign around it; None if there is none."""
    at = int(len(side) > 1 and side[0].text in ("+", "-"))
    if side[at].kind == "money":
        return _money((*side[:at], *side[at + 1 :]), side[at].text)
    last = side[len(side) - 1]
    is_degree = last.text == "°" and not any(token.kind == "function" for token in side)
    if last.kind == "money" or (last.kind == "operator" and (last.text == "%" or is_degree)):
        return WithUnit(side[:-1], last.text)
    start = _tail(side)
    return _with_words(side[:start], side[start:]) if 0 < start < len(side) else None


def _money(head: Side, unit: str) -> WithUnit:
    """``$5 dollars`` is said twice; ``$5 per hour`` is a rate."""
    inner = split_unit(head) if head and head[0].kind != "money" else None
    if inner is None:
        return WithUnit(head, unit)
    if unit in inner.unit:
        return inner
    return WithUnit(inner.head, f"{unit} {inner.unit}".strip())


def _with_words(head: Side, tail: Side) -> WithUnit | None:
    unit = _RAISED.sub(r"^\1", plain_of(tail)).strip(" .")
    is_bare = not any(token.kind in ("words", "roman") for token in tail)
    if head[len(head) - 1].text == "°":
        return WithUnit(head[:-1], f"degree {unit}") if unit.upper() in ("C", "F", "K") else None
    if unit.casefold() in _MANY:
        power = tokens(rf"\cdot 10^{{{_MANY[unit.casefold()]}}}")
        return WithUnit((*head, *power), "")
    if _ORDINAL.fullmatch(unit):
        return WithUnit(head, "")
    is_letter = len(tail) == 1 and tail[0].kind == "roman"
    is_long = _LONG.search(unit) or unit.startswith("per ")
    if (is_letter or (is_bare and not is_long)) and not measure_of(unit):
        return None
    return WithUnit(head, unit, is_bare)


def _tail(side: Side) -> int:
    """Where the words begin that end an answer, perhaps raised, behind what may be a number."""
    at = len(side)
    while at > 0:
        token = side[at - 1]
        if token.kind in ("words", "roman") or (
            token.kind == "letters" and (len(token.text) > 1 or _ends_unit(side, at - 1))
        ):
            at -= 1
        elif (raised := _raised(side, at)) or (token.text == "/" and _is_in_unit(side, at - 1)):
            at -= raised or 1
        else:
            break
    before = side[at - 1] if at else None
    if at == len(side) or side[at].kind not in _WORDS:
        return 0
    if before is None or not (before.kind in _ENDS_NUMBER or before.text in (r"\pi", "°")):
        return 0
    return at


def _is_in_unit(side: Side, at: int) -> bool:
    """Whether a slash or a letter stands between words: ``km/h``."""
    near = side[max(0, at - 1) : at + 2]
    return (
        len(near) == 3
        and side[at].text == "/"
        and all(t.kind in _WORDS or t.text == "/" for t in near)
    )


def _ends_unit(side: Side, at: int) -> bool:
    """Whether a lone letter is of a unit: the h of km/h, the C of 20°C."""
    if at and side[at - 1].text == "°":
        return side[at].text in ("C", "F", "K")
    return at > 1 and side[at - 1].text == "/" and side[at - 2].kind in _WORDS


def _raised(side: Side, at: int) -> int:
    """How many tokens raise a unit by 2 or 3, before a place."""
    for length in (2, 4):
        part = [token.text for token in side[max(0, at - length) : at]]
        digits = [text for text in part if text not in "^{}"]
        if part[:1] == ["^"] and digits in (["2"], ["3"]):
            is_unit = at > length and side[at - length - 1].kind in _WORDS
            return length if is_unit else 0
    return 0


def expression_of(side: Side) -> Value:
    r"""A number, a tree, two of them for a ``\pm``; or, not read, only LaTeX."""
    try:
        tree = tree_of(side, as_answer=True)
    except Unreadable:
        return Expression(None, latex_of(side))
    signs = [node for node in tree.walk() if node.kind == "plusminus"]
    if signs:
        return _two(tree) if len(signs) == 1 else Expression(None, latex_of(side))
    return _number(tree) or Expression(tree, latex_of(side))


def _two(tree: Node) -> Set:
    r"""``1 \pm \sqrt{2}`` are two numbers."""
    both = [
        rebuilt(
            tree, lambda node, s=sign: Node(s, node.parts) if node.kind == "plusminus" else node
        )
        for sign in "+-"
    ]
    return Set(tuple(_number(each) or Expression.of(each) for each in both), "pm")


def remainder_of(side: Side) -> Number | None:
    r"""``13 \bmod 7`` is 6."""
    if len(side) == 3 and side[1].text == r"\bmod":
        number, modulus = expression_of(side[:1]), expression_of(side[2:])
        if isinstance(number, Number) and isinstance(modulus, Number) and modulus.value:
            return Number(number.value % modulus.value)
    return None


def _number(tree: Node) -> Number | None:
    """A plain number: an integer, a decimal, a fraction, a mixed number."""
    plain = tree.parts[0] if tree.kind == "negative" else tree
    sign = -1 if tree.kind == "negative" else 1
    if plain.kind == "number":
        return Number(sign * plain.number, plain.places or None)
    value = _fraction(plain)
    return None if value is None else Number(sign * value)


def _fraction(node: Node) -> Fraction | None:
    """The value of a fraction of integers, or of a mixed number."""
    if node.kind == "grouped":
        node = node.parts[0]
    if node.kind == "mixed":
        part = _fraction(node.parts[1])
        return None if part is None else node.parts[0].number + part
    if node.kind not in ("fraction", "/"):
        return None
    top, bottom = map(_integer, node.parts)
    return None if top is None or not bottom else top / bottom


def _integer(node: Node) -> Fraction | None:
    plain = node.parts[0] if node.kind == "negative" else node
    if plain.kind != "number" or plain.places:
        return None
    return -plain.number if node.kind == "negative" else plain.number
