"""The equations of a text of plain arithmetic, and whether they are right, exactly.

An equation is two sides of numbers joined by + - * / × ÷ · with "=" between them, for example
``47+8=55``, ``3 × 1/2 = 1.5`` or the chain ``2+3 = 6-1 = 5``, which is two. Texts with more than
that are for `relations`. Pure and linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from typing import NamedTuple


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that make something else of the number behind, or before, them.
NUMBER_WORDS = _words(
    """choose mod modulo divided times plus minus over to of percent dozen hundred thousand
    million billion factorial squared cubed base by per power less more than point remainder rem
    half third quarter double twice triple root not no without except versus vs"""
)
_MAX_OPERAND = 60  # characters
_MAX_TERMS = 40

# Every alternative is bounded or possessive, so that reading is linear in the text.
_TOKEN = re.compile(
    r"(?P<bullet>^[ \t]*+[-*+•][ \t]++)"
    r"|(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3}){1,6}(?!,?[0-9])|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++)"
    r"|(?P<fraction>\\[dt]?frac\{-?[0-9]{1,20}\}\{[1-9][0-9]{0,19}\})"
    r"|(?P<power>(?<=[0-9)])\*\*(?=\s?[-0-9(]))"
    r"|(?P<bold>\*\*++)"
    r"|(?P<operator>[-+*/×÷·−–⋅]|\\(?:times|cdot|div)(?![a-zA-Z]))"
    r"|(?P<equals>=)"
    r"|(?P<space>(?:[^\S\n]|\$|&|\\[,;! ])+)"
    r"|(?P<word>[^\W\d_]++)"
    r"|(?P<command>\\(?:[a-zA-Z]++|.))"
    r"|(?P<other>.|\n)",
    re.MULTILINE,
)
_PLAIN = re.compile(
    r"(?:[-0-9\s+/×÷·−–⋅=.,;:$&\"?#]|\*(?!\*)|[^\W\d_]{2}[^\W\d_]*+|\\(?:times|cdot|div)(?![a-zA-Z])"
    r"|\\boxed\{-?[0-9.,]{1,40}\}|(?<=[a-z])['’](?=[a-z]))*"
)
# A mixed number, 1 1/2, or an operator behind a word: 3 apples + 4
_UNCLEAR = re.compile(r"[0-9][ \t]++[0-9]++[ \t]*+/|[^\W\d_][ \t]++(?:[+*/×÷·⋅]|[-−–][ \t])")
_WORD = re.compile(r"(?<![^\W\d_])(?<!\\)[^\W\d_]{2}[^\W\d_]*+")
_ARITHMETIC = {"number", "fraction", "operator", "equals"}
_OPERATORS = {"×": "*", "·": "*", "⋅": "*", r"\times": "*", r"\cdot": "*", "÷": "/", r"\div": "/"}
_OPERATORS |= {"−": "-", "–": "-"}
_DIGITS = re.compile(r"-?[0-9]+")
_SEPARATORS = set(",;:.?([{|<>\n\"'`⇒→") | {
    "**",
    r"\(",
    r"\[",
    r"\\",
    r"\quad",
    r"\implies",
    r"\to",
}
_BINDS_BEFORE = set("^_}])√")
_BINDS_AFTER = set("^_!%([{°√") | {r"\%", r"\pi", r"\sqrt", r"\frac", r"\dfrac", r"\left", r"\circ"}


class Token(NamedTuple):
    """A piece of text, what it is, and whether it touches the piece before it."""

    kind: str
    text: str
    touches: bool


_EDGE = Token("other", "\n", False)
Side = tuple[Token, ...]


@dataclass(frozen=True)
class Equation:
    """Two sides, as written."""

    left: Side
    right: Side

    @property
    def text(self) -> str:
        """The same for all ways to space it and to spell its operators."""
        sides = ("".join(map(_operator, side)) for side in (self.left, self.right))
        return "=".join(sides)

    @property
    def is_right(self) -> bool:
        """Whether both sides have a value, and the same one."""
        left, right = _value(self.left), _value(self.right)
        return left is not None and left == right


def is_plain(text: str) -> bool:
    """Whether there is no equation or inequality in the text but those of `equations`."""
    if not _PLAIN.fullmatch(text) or _UNCLEAR.search(text):
        return False
    said = _WORD.findall(text)
    if not said or "=" not in text:
        return True
    changes_number = not NUMBER_WORDS.isdisjoint(word.lower() for word in said)
    return not changes_number and text.count("=") == sum(map(_num_read, _runs(text)))


def equations(text: str) -> Iterator[Equation]:
    """Every equation of the text, in order; a chain ``a = b = c`` is two."""
    for run in _runs(text):
        for left, right in pairwise(run):
            if _is_expression(left) and _is_expression(right) and _says_something(left, right):
                yield Equation(left, right)


def _runs(text: str) -> Iterator[list[Side]]:
    """Maximal stretches of arithmetic, split at "="; sides that belong to more are left empty."""
    before, run = _EDGE, list[Token]()
    for token in chain(_tokens(text), [_EDGE]):
        if token.kind in _ARITHMETIC and not (run and _starts_anew(run[-1], token)):
            run.append(token)
            continue
        if run:
            yield _sides(before, run, token)
        before, run = (run[-1], [token]) if token.kind in _ARITHMETIC else (token, [])


def _tokens(text: str) -> Iterator[Token]:
    touches = False
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "other"
        if kind != "space":
            yield Token(kind, match.group(), touches)
        touches = kind != "space"


def _starts_anew(last: Token, token: Token) -> bool:
    return _is_operand(last) and _is_operand(token)


def _sides(before: Token, run: list[Token], after: Token) -> list[Side]:
    sides: list[list[Token]] = [[]]
    for token in run:
        if token.kind == "equals":
            sides.append([])
        else:
            sides[-1].append(token)
    if _belongs_to(before, run[0]):
        sides[0] = []
    if after.touches and (after.kind in {"word", "power"} or after.text in _BINDS_AFTER):
        sides[-1] = []
    return [tuple(side) for side in sides]


def _belongs_to(before: Token, first: Token) -> bool:
    """Whether what stands before the first side is a part of it, as in ``x + 3 = 5``."""
    if before.text in {"^", "_"} or before.kind == "power":
        return True
    if first.kind == "operator":
        is_prose = before.kind == "word" and len(before.text) > 1 and not first.touches
        return not (is_prose or before.kind == "bullet" or before.text in _SEPARATORS)
    return first.touches and (before.kind == "word" or before.text in _BINDS_BEFORE)


def _is_operand(token: Token) -> bool:
    return token.kind in {"number", "fraction"}


def _is_expression(side: Side) -> bool:
    """Operands joined by one operator each; an operand may have one sign."""
    expects_operand = True
    signed = False
    for token in side:
        if _is_operand(token):
            expects_operand, signed = False, False
        elif not expects_operand:
            expects_operand = True
        elif signed or _operator(token) not in "+-":
            return False
        else:
            signed = True
    return not expects_operand


def _says_something(left: Side, right: Side) -> bool:
    """There is something to work out, and the other side does not just repeat it."""
    differ = [token.text for token in left] != [token.text for token in right]
    return differ and max(_num_terms(left), _num_terms(right)) > 1


def _num_read(run: list[Side]) -> int:
    return sum(_is_expression(left) and _is_expression(right) for left, right in pairwise(run))


def _num_terms(side: Side) -> int:
    return sum(map(_is_operand, side))


def _value(side: Side) -> Fraction | None:
    """The exact value; None if it divides by zero or is larger than anyone calculates."""
    if _num_terms(side) > _MAX_TERMS or any(len(token.text) > _MAX_OPERAND for token in side):
        return None
    total = product = Fraction(0)
    for operator, number in _signed_operands(side):
        if operator == "*":
            product *= number
        elif operator == "/" and number == 0:
            return None
        elif operator == "/":
            product /= number
        else:
            total += product
            product = number if operator == "+" else -number
    return total + product


def _signed_operands(side: Side) -> Iterator[tuple[str, Fraction]]:
    """Each operand with its own sign, and the operator before it ("+" before the first)."""
    operator, sign, is_sign = "+", 1, True
    for token in side:
        if _is_operand(token):
            yield operator, sign * _number(token)
            sign, is_sign = 1, False
        elif is_sign:
            sign = -1 if _operator(token) == "-" else 1
        else:
            operator, is_sign = _operator(token), True


def _operator(token: Token) -> str:
    return _OPERATORS.get(token.text, token.text)


def _number(token: Token) -> Fraction:
    if token.kind == "number":
        return Fraction(token.text.replace(",", ""))
    top, bottom = _DIGITS.findall(token.text)
    return Fraction(int(top), int(bottom))
