r"""An answer, read once into frozen values: LaTeX, plain text, or both mixed.

The marks outside of all brackets tell what an answer consists of; a side without marks is one
expression. Nothing is half understood: where the grammar ends, the value has no tree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeGuard

from answers import words
from answers.boxes import last_box, unwrap
from answers.grammar import read_tree
from answers.nodes import Unreadable
from answers.regions import INFINITY, MINUS_INFINITY, join_inequalities, read_relation
from answers.scalars import (
    determinant,
    get_tree,
    multiply_matrices,
    read_remainder,
    read_scalar,
    scale,
    to_matrix,
)
from answers.sides import (
    JOINTS,
    SYSTEMS,
    drop_open_brace,
    find_close,
    find_cuts,
    is_bracketed,
    read_marks,
    split_side,
    strip,
)
from answers.thousands import join_thousands
from answers.tokens import Side, Token, to_latex, to_plain, tokenize
from answers.units import read_unit
from answers.values import (
    CLOCK,
    EMPTY,
    RATIO,
    Choice,
    Expression,
    Matrix,
    Number,
    Quantity,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    Words,
)

_MAX_DEPTH = 12  # of values in values
_MAX_TOKENS = 2_000
_MAX_RATIO_PARTS = 8
_MATRICES = frozenset({"pmatrix", "bmatrix", "Bmatrix", "matrix", "smallmatrix", "array"})
# A remark at the end: (about 3.5)
_REMARK = re.compile(
    r"""
    (?: \s | \\[,;:!\ ] | \\q?quad ){0,9}
    (?: \\text\ ?\{ \s? )? \( \s? (?: \\text\ ?\{ \s? )?
    (?:about|approx\w*\.?|roughly|\\approx) (?![a-z]) [^()]* \) [\s}.]* \Z
    """,
    re.VERBOSE,
)
_LABEL = re.compile(r"\A\s*(?:final )?answer ?(?:is|:) ?", re.IGNORECASE)
_PLAIN = re.compile(r"-?[0-9]{1,300}(?:\.[0-9]{1,300})?", re.ASCII)
# Numbers with spaces: 12 000, and 1 4/5
_SPACED_NUMBER = re.compile(
    r"""
    (?<![0-9.,^_/])
    (?:
      (?P<thousands> [1-9][0-9]{0,2} (?: \ [0-9]{3} )+ (?![0-9]) )
      | (?P<whole> [1-9][0-9]{0,8} ) \ (?P<top> [1-9][0-9]{0,8} ) / (?P<bottom> [1-9][0-9]{0,8} )
        (?![0-9.])
    )
    """,
    re.VERBOSE,
)
_CLOCK = re.compile(r"[0-9]{1,2}(?: ?: ?[0-5][0-9]){1,2}")
_POINTS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SUCH_THAT = frozenset({"bar", "colon", "relation"})
_ALL_REALS = re.compile(
    r"""
    (?: [a-z]\ is\  )? (?:all|any)\ real
      (?: s | \ (?:numbers?|values?) (?: \ (?:of\ )? [a-z] )? | \ [a-z] )?
    | real\ numbers
    """,
    re.VERBOSE,
)
_NO_SOLUTION = re.compile(
    r"""
    (?: there\ (?:is|are)\  )?
    (?: no\ (?:real\ )? (?:solutions?|roots?|values?) (?:\ exists?)? | none )
    | empty\ set
    """,
    re.VERBOSE,
)
_POWERS_OF_TEN = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
# A unit is found in a text with one character for each token: w for words, L for letters, l for one
# letter, c for a letter of temperature, n for the end of a number.
_CODES = {"words": "w", "roman": "w", "letters": "L"}
_NUMBER_ENDS = frozenset({"number", "repeating", "close", "accent"})
# Words at the end of an answer, perhaps raised, after the end of a number. A letter alone is a unit
# only in km/h and 20°C.
_UNIT = re.compile(
    r"""
    (?<=[n2}°lc]) (?!/)
    (?:
      (?: [wL] | (?<=°)c | (?<=[wLlc]/)[lc] ) (?: \^ (?: 2 | \{2\} ) )?
      | (?<=[wLlc]) / (?=[wLlc])
    )+ \Z
    """,
    re.VERBOSE,
)
_RAISED = re.compile(r" ?\$?\^ ?\{? ?([0-9]) ?\}?\$?")
_LONG = re.compile(r"[a-zA-Z]{4}|per ")
_SIGNS = frozenset({"+", "-"})
_TIMES = frozenset({"*", r"\times"})
REALS = Tuple((MINUS_INFINITY, INFINITY))
_CONSTANTS = {r"\mathbb R": REALS, r"\emptyset": EMPTY}


@lru_cache(4096)
def read_answer(text: str, *, is_list: bool = False, is_chosen: bool = False) -> Value:
    """Read an answer.

    With ``is_list`` each comma parts members; with ``is_chosen`` ``B, 12`` is a choice.
    """
    if _PLAIN.fullmatch(text):
        places = len(text.partition(".")[2])
        return Number(Fraction(text), places or None)
    text = _LABEL.sub("", unwrap(text))
    text = _SPACED_NUMBER.sub(_join_number, _drop_remark(text))
    tokens = read_marks(tokenize(text))
    has_other_text = "\\boxed" in text and last_box(text) != (0, len(text))
    if len(tokens) > _MAX_TOKENS or has_other_text or not text.strip():
        return Expression(None, text)
    side = strip(drop_open_brace(tuple(join_thousands(tokens, is_list=is_list))))
    plain = to_plain(side)
    if choice := words.read_choice(plain, is_chosen=is_chosen):
        letter, value = choice
        return Choice(letter, read_answer(value) if value else None)
    letters = words.read_letters(plain)
    if letters:
        return Choice(letters)
    return _read(side)


def _join_number(number: re.Match[str]) -> str:
    if number["thousands"]:
        return number[0].replace(" ", "")
    _, whole, top, bottom = number.groups()
    if int(top) < int(bottom):
        return rf"{whole}\frac{{{top}}}{{{bottom}}}"
    return number[0]


def _drop_remark(text: str) -> str:
    remark = _REMARK.search(text)
    head = text[: remark.start()] if remark else text
    if head.strip() and head.count("{") == head.count("}"):
        return head
    return text


def _read(side: Side, depth: int = 0) -> Value:
    side = strip(side)
    if len(side) == 1 and side[0].kind == "number":
        return read_scalar(side)
    if len(side) == 1 and side[0].text in _CONSTANTS:
        return _CONSTANTS[side[0].text]
    if depth > _MAX_DEPTH or not side:
        return Expression(None, to_latex(side))
    return _read_words(side) or _read_mathematics(side, depth)


def _read_mathematics(side: Side, depth: int) -> Value:
    cuts = find_cuts(side)
    if cuts is None:
        return Expression(None, to_latex(side))
    return (
        _read_cuts(side, cuts, depth)
        or _read_quantity(side, depth)
        or _read_brackets(side, depth)
        or _read_matrix_product(side, depth)
        or read_scalar(side)
    )


def _read_words(side: Side) -> Value | None:
    if any(token.kind == "ellipsis" for token in side):
        return Words(to_latex(side).replace(" ", ""))
    if remainder := read_remainder(side):
        return remainder
    plain = to_plain(side)
    numeral = words.read_numeral(plain) if "_" in plain or "base" in plain else None
    if numeral:
        digits, base = numeral
        return Number(Fraction(int(digits))) if base == 10 else Words(f"{digits} base {base}")
    if name := words.read_name(plain):
        return Words(name)
    if side[0].kind in ("number", "money", "operator"):
        return None
    is_marked = any(token.kind == "words" for token in side)
    text = words.read_words(plain, is_marked=is_marked)
    if not text:
        return None
    if _ALL_REALS.fullmatch(text):
        return REALS
    return EMPTY if _NO_SOLUTION.fullmatch(text) else Words(text)


def _read_cuts(side: Side, cuts: dict[str, list[int]], depth: int) -> Value | None:
    if "colon" in cuts and (ratio := _read_ratio(side, cuts["colon"], depth)):
        return ratio
    if "and" in cuts:
        return _read_list(side, cuts["and"], depth)
    if "relation" in cuts:
        places = cuts["relation"]
        signs = tuple(side[at].text for at in places)
        texts = tuple(to_latex(strip(part)) for part in split_side(side, places))
        return read_relation(Relation(_read_parts(side, places, depth), signs, texts))
    for joint in JOINTS:
        if joint in cuts:
            return Union(_read_parts(side, cuts[joint], depth), joint)
    return None


def _read_parts(side: Side, cuts: list[int], depth: int) -> tuple[Value, ...]:
    return tuple(_read(part, depth + 1) for part in split_side(side, cuts))


def _read_ratio(side: Side, cuts: list[int], depth: int) -> Value | None:
    parts = _read_parts(side, cuts, depth)
    if len(parts) > _MAX_RATIO_PARTS or not all(map(get_tree, parts)):
        return None
    return Tuple(parts, CLOCK if _CLOCK.fullmatch(to_plain(side)) else RATIO)


def _read_list(side: Side, cuts: list[int], depth: int) -> Value:
    group_cuts = [at for at in cuts if _parts_groups(side, at)]
    if 0 < len(group_cuts) < len(cuts):
        cuts = group_cuts
    parts = [part for part in split_side(side, cuts) if strip(part)]
    members = tuple(_read(part, depth + 1) for part in parts)
    joints = {side[at].text for at in cuts}
    joined = join_inequalities(members, has_or="or" in joints, has_and="and" in joints)
    if joined:
        return joined
    joint = next((joint for joint in ("or", "for") if joint in joints), ",")
    return Set(_flatten_pairs(members), joint)


def _parts_groups(side: Side, at: int) -> bool:
    """Return whether a mark parts lists: a semicolon, or an "and" between lists of equations."""
    neighbours = [token.kind for token in side[max(0, at - 1) : at + 2]]
    if side[at].text != "and" or "comma" in neighbours:
        return side[at].kind == "semicolon"
    before = {token.kind for token in side[:at]}
    after = {token.kind for token in side[at:]}
    return before & after >= {"comma", "relation"}


def _flatten_pairs(members: Sequence[Value]) -> tuple[Value, ...]:
    r"""Replace each ``\pm 2`` by its two values."""
    values = list[Value]()
    for member in members:
        values += member.parts if _is_pair(member) else (member,)
    return tuple(values)


def _is_pair(value: Value) -> TypeGuard[Set]:
    return isinstance(value, Set) and value.joint == "pm"


def _read_quantity(side: Side, depth: int) -> Value | None:
    split = split_unit(side)
    if split is None:
        return None
    head = _read(split.head, depth + 1)
    if isinstance(head, Quantity):
        return None
    if split.unit:
        return Quantity(head, split.unit, split.is_bare)
    return head


def _read_brackets(side: Side, depth: int) -> Value | None:
    if side[0].kind == "open" and is_bracketed(side):
        return _read_environment(side, depth) or _read_enclosed(side, depth)
    is_point = side[0].kind == "letters" and side[0].text in _POINTS
    if is_point and is_bracketed(side[1:]):
        point = _read(side[1:], depth + 1)
        if isinstance(point, Tuple) and point.brackets == "()":
            return point
        return None
    return None


def _read_environment(side: Side, depth: int) -> Value | None:
    name = side[0].text
    inner = side[1:-1]
    if inner and inner[0].text in _MATRICES | SYSTEMS and is_bracketed(inner):
        return _read_environment(inner, depth)
    if name in SYSTEMS and (system := _read_system(inner, depth)):
        return system
    if name in _MATRICES:
        return _read_matrix(side, depth)
    if name == "vmatrix":
        value = determinant(_read_matrix(side, depth))
        return value or Expression(None, to_latex(side))
    return None


def _read_enclosed(side: Side, depth: int) -> Value:
    opens = side[0].text
    inner = side[1:-1]
    if opens == r"\{":
        return _read_members(inner, depth)
    cuts = find_cuts(inner)
    if inner and cuts == {} and opens == "[" == inner[0].text:
        row = _read(inner, depth + 1)
        if isinstance(row, Tuple):
            return Tuple((row,), "[]")
        return read_scalar(side)
    places = (cuts or {}).get("and")
    if not places or opens not in ("(", "[", r"\langle"):
        return read_scalar(side)
    brackets = "()" if opens == r"\langle" else opens + side[-1].text
    return _split_pair(_read_parts(inner, places, depth), brackets)


def _split_pair(parts: tuple[Value, ...], brackets: str) -> Value:
    r"""Read ``(1, \pm 2)`` as two tuples."""
    pairs = [(at, part) for at, part in enumerate(parts) if _is_pair(part)]
    if len(pairs) != 1:
        return Tuple(parts, brackets)
    at, pair = pairs[0]
    tuples = list[Tuple]()
    for part in pair.parts:
        coordinates = (*parts[:at], part, *parts[at + 1 :])
        tuples.append(Tuple(coordinates, brackets))
    return Set(tuple(tuples), "pm")


def _read_members(inner: Side, depth: int) -> Value:
    if not inner:
        return EMPTY
    is_letter = inner[0].kind in ("letters", "accent")
    if is_letter and inner[1:] and inner[1].kind in _SUCH_THAT:
        for at, token in enumerate(inner[1:6], start=1):
            if token.kind in ("bar", "colon"):
                return _read(inner[at + 1 :], depth + 1)
    cuts = find_cuts(inner) or {}
    members = _read_parts(inner, cuts.get("and", []), depth)
    return Set(_flatten_pairs(members))


def _split_rows(inner: Side) -> list[list[Side]]:
    rows = split_side(inner, _find_kind(inner, "row"))
    return [split_side(row, _find_kind(row, "ampersand")) for row in rows if row]


def _find_kind(side: Side, kind: str) -> list[int]:
    return [at for at, token in enumerate(side) if token.kind == kind]


def _read_system(inner: Side, depth: int) -> Value | None:
    rows = [tuple(chain(*row)) for row in _split_rows(inner)]
    equations = tuple(_read(row, depth + 1) for row in rows)
    are_equations = all(
        isinstance(equation, Relation) and equation.signs == ("=",) for equation in equations
    )
    if are_equations and len(equations) > 1:
        return Set(equations, ",")
    return None


def _read_matrix(side: Side, depth: int) -> Value:
    rows = list[list[Value]]()
    for row in _split_rows(side[1:-1]):
        rows.append([_read(cell, depth + 1) for cell in row])
    return to_matrix(rows) or Expression(None, to_latex(side))


def _read_matrix_product(side: Side, depth: int) -> Value | None:
    r"""Read ``\frac{1}{3}`` before a matrix as its factor, and adjacent matrices as a product."""
    texts = [token.text for token in side]
    name = next(filter(_MATRICES.__contains__, texts), None)
    if name is None:
        return None
    at = texts.index(name)
    end = at + find_close(side[at:]) + 1
    product: Value | None = _read_matrix(side[at:end], depth)
    factor = side[:at]
    if end < len(side):
        end += side[end].text in _TIMES
        product = multiply_matrices(product, _read(side[end:], depth + 1))
    if not isinstance(product, Matrix) or not factor:
        if isinstance(product, Matrix):
            return product
        return None
    if factor[-1].text in _TIMES | _SIGNS:
        factor = (*factor, Token("number", "1"))
    try:
        return scale(read_tree(factor, as_answer=True), product)
    except Unreadable:
        return None


class WithUnit(NamedTuple):
    head: Side
    unit: str
    is_bare: bool = False


def split_unit(side: Side) -> WithUnit | None:
    at = int(len(side) > 1 and side[0].text in _SIGNS)
    if side[at].kind == "money":
        head = side[:at] + side[at + 1 :]
        return _split_money(head, side[at].text)
    last = side[len(side) - 1]
    is_degree = last.text == "°" and not _find_kind(side, "function")
    is_sign = last.kind == "operator" and (last.text == "%" or is_degree)
    if is_sign or last.kind == "money":
        return WithUnit(side[:-1], last.text)
    if last.kind not in _CODES and last.text not in "23}":
        return None
    unit = _UNIT.search("".join(map(_to_code, side)))
    if unit:
        return _split_words(side[: unit.start()], side[unit.start() :])
    return None


def _split_money(head: Side, unit: str) -> WithUnit:
    """Read ``$5 dollars`` as 5 dollars, and ``$5 per hour`` as a rate."""
    split = split_unit(head) if head and head[0].kind != "money" else None
    if split is None:
        return WithUnit(head, unit)
    if unit in split.unit:
        return split
    return WithUnit(split.head, f"{unit} {split.unit}".strip())


def _split_words(head: Side, tail: Side) -> WithUnit | None:
    unit = _RAISED.sub(r"^\1", to_plain(tail)).strip(" .")
    is_bare = not any(token.kind in ("words", "roman") for token in tail)
    if head[-1].text == "°":
        is_temperature = unit.upper() in ("C", "F", "K")
        if is_temperature:
            return WithUnit(head[:-1], f"degree {unit}")
        return None
    if power := _POWERS_OF_TEN.get(unit.casefold()):
        return WithUnit((*head, *tokenize(rf"\cdot 10^{{{power}}}")), "")
    if _ORDINAL.fullmatch(unit):
        return WithUnit(head, "")
    is_letter = len(tail) == 1 and tail[0].kind == "roman"
    is_short = is_bare and not _LONG.search(unit)
    if (is_letter or is_short) and not read_unit(unit):
        return None
    return WithUnit(head, unit, is_bare)


def _to_code(token: Token) -> str:
    if token.kind == "letters" and len(token.text) == 1:
        return "c" if token.text in "CFK" else "l"
    if token.kind in _CODES:
        return _CODES[token.kind]
    if token.text in "/^{}°23":
        if token.text == "3":
            return "2"
        return token.text
    if token.kind in _NUMBER_ENDS or token.text == r"\pi":
        return "n"
    return "."
