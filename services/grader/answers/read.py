r"""An answer, read once into frozen values: LaTeX, plain text, or both mixed.

What an answer is made of is found by the marks outside of all brackets; whatever is left is one
expression. Nothing is ever half understood: where the grammar ends, the value has no tree.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from services.grader.answers import words
from services.grader.answers.boxes import unwrapped
from services.grader.answers.grammar import tree_of
from services.grader.answers.marks import (
    JOINTS,
    SYSTEMS,
    bare,
    closes,
    cuts_of,
    flat,
    parted_at,
    without_open_brace,
)
from services.grader.answers.matrices import determinant, multiplied, scaled
from services.grader.answers.nodes import Node, Unreadable, integer
from services.grader.answers.regions import REALS, read_relation, united
from services.grader.answers.scalars import expression_of, remainder_of, split_unit
from services.grader.answers.thousands import joined
from services.grader.answers.tokens import Side, latex_of, plain_of, tokens
from services.grader.answers.values import (
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
_MATRICES = frozenset(["pmatrix", "bmatrix", "Bmatrix", "matrix", "smallmatrix", "array"])
_CONSTANTS = {r"\mathbb R": REALS, r"\emptyset": EMPTY}
_REMARK = re.compile(
    r"(?:\s|\\[,;:! ]|\\q?quad){0,9}(?:\\text ?\{\s?)?\(\s?(?:\\text ?\{\s?)?"
    r"(?:about|approx\w*\.?|roughly|\\approx)(?![a-z])[^()]*\)[\s}.]*\Z"
)
_PLAIN = re.compile(r"-?[0-9]{1,300}(?:\.[0-9]{1,300})?", re.ASCII)
_CLOCK = re.compile(r"[0-9]{1,2}(?: ?: ?[0-5][0-9]){1,2}")
_POINTS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SUCH_THAT = frozenset({"bar", "colon", "relation"})
_ALL_REALS = re.compile(
    r"(?:[a-z] is )?(?:all|any) real(?:s| (?:numbers?|values?)(?: (?:of )?[a-z])?| [a-z])?"
    r"|real numbers"
)
_NOTHING = re.compile(
    r"(?:there (?:is|are) )?(?:no (?:real )?(?:solutions?|roots?|values?)(?: exists?)?|none)"
    r"|empty set"
)


@lru_cache(4096)
def read_answer(text: str, *, is_list: bool = False) -> Value:
    """What an answer says, without its boxes; with ``is_list`` each comma parts two members."""
    if _PLAIN.fullmatch(text):
        is_whole = "." not in text
        return Number(
            Fraction(int(text) if is_whole else text), len(text.partition(".")[2]) or None
        )
    text = _without_remark(unwrapped(text))
    found = flat(tokens(text))
    if len(found) > _MAX_TOKENS or "\\boxed" in text or not text.strip():
        return Expression(None, text)
    side = bare(without_open_brace(tuple(joined(found, is_list=is_list))))
    plain = plain_of(side)
    if choice := words.read_choice(plain):
        return Choice(choice[0], read_answer(choice[1]) if choice[1] else None)
    if letters := words.read_letters(plain):
        return Choice(letters)
    return read(side)


@lru_cache(4096)
def read_chosen(text: str) -> Value:
    """What an answer says where a letter in front is surely one of a choice: ``B, 12``."""
    side = bare(tuple(joined(flat(tokens(unwrapped(text))))))
    choice = words.read_choice(plain_of(side), is_chosen=True)
    if choice is None:
        return read_answer(text)
    return Choice(choice[0], read_answer(choice[1]) if choice[1] else None)


def _without_remark(text: str) -> str:
    r"""``\frac{1}{3} \text{ (about } 0.33)`` is a third."""
    rest = text[: remark.start()] if (remark := _REMARK.search(text)) else text
    return rest if rest.strip() and rest.count("{") == rest.count("}") else text


def read(side: Side, depth: int = 0) -> Value:
    """The value of tokens."""
    side = bare(side)
    if len(side) == 1 and side[0].kind == "number":
        return expression_of(side)
    if len(side) == 1 and side[0].text in _CONSTANTS:
        return _CONSTANTS[side[0].text]
    if depth > _MAX_DEPTH or not side:
        return Expression(None, latex_of(side))
    if any(token.kind == "ellipsis" for token in side):
        return Words(latex_of(side).replace(" ", ""))
    return _said(side) or _parted(side, depth)


def _said(side: Side) -> Value | None:
    """An answer that is no formula."""
    marked, plain = any(token.kind == "words" for token in side), plain_of(side)
    if (remainder := remainder_of(side)) is not None:
        return remainder
    if named := words.read_time(plain) or words.read_congruence(plain) or words.read_name(plain):
        return Words(named)
    if ("_" in plain or "base" in plain) and (numeral := words.read_numeral(plain)):
        return numeral
    if side[0].kind in ("number", "money", "operator") or not (
        said := words.read_words(plain, is_marked=marked)
    ):
        return None
    if _ALL_REALS.fullmatch(said):
        return REALS
    return EMPTY if _NOTHING.fullmatch(said) else Words(said)


def _parted(side: Side, depth: int) -> Value:
    """By the marks outside of all brackets."""
    cuts = cuts_of(side)
    if cuts is None:
        return Expression(None, latex_of(side))
    return (
        _by_cuts(side, cuts, depth)
        or _with_unit(side, depth)
        or _in_brackets(side, depth)
        or _matrix_product(side, depth)
        or expression_of(side)
    )


def _by_cuts(side: Side, cuts: dict[str, list[int]], depth: int) -> Value | None:
    if "colon" in cuts and (ratio := _ratio(side, cuts["colon"], depth)):
        return ratio
    if "and" in cuts:
        return _listed(side, cuts["and"], depth)
    if "relation" in cuts:
        return _related(side, cuts["relation"], depth)
    joint = next((joint for joint in JOINTS if joint in cuts), None)
    parts = parted_at(side, cuts[joint]) if joint else []
    return Union(tuple(read(part, depth + 1) for part in parts), joint) if joint else None


def _with_unit(side: Side, depth: int) -> Value | None:
    if (split := split_unit(side)) is None:
        return None
    head = read(split.head, depth + 1)
    if isinstance(head, Quantity):
        return None
    return Quantity(head, split.unit, split.is_bare) if split.unit else head


def _in_brackets(side: Side, depth: int) -> Value | None:
    if side[0].kind == "open" and closes(side) == len(side) - 1:
        return _environment(side, depth) or _enclosed(side, depth)
    is_point = side[0].kind == "letters" and side[0].text in _POINTS
    if is_point and closes(side[1:]) == len(side) - 2:
        point = read(side[1:], depth + 1)
        return point if isinstance(point, Tuple) and point.brackets == "()" else None
    return None


def _ratio(side: Side, cuts: list[int], depth: int) -> Value | None:
    """``3:4``; beside a relation, ``V_1:V_2 = 3:4``, each side is one."""
    parts = tuple(read(part, depth + 1) for part in parted_at(side, cuts))
    is_ratio = all(isinstance(part, Number | Expression) for part in parts)
    if not is_ratio or len(parts) > 8 or not all(map(_tree, parts)):
        return None
    return Tuple(parts, CLOCK if _CLOCK.fullmatch(plain_of(side)) else RATIO)


def _tree(value: Value) -> Node | None:
    return value.tree if isinstance(value, Number | Expression) else None


def _listed(side: Side, cuts: list[int], depth: int) -> Value:
    """Members of a list; inequalities may be conditions, or pieces of a union."""
    groups = [at for at in cuts if _parts_groups(side, at)]
    cuts = groups if 0 < len(groups) < len(cuts) else cuts
    parts = [part for part in parted_at(side, cuts) if bare(part)]
    members = tuple(read(part, depth + 1) for part in parts)
    joints = {side[at].text for at in cuts}
    return united(members, has_or="or" in joints, has_and="and" in joints) or Set(
        _doubled(members), next((joint for joint in ("or", "for") if joint in joints), ",")
    )


def _parts_groups(side: Side, at: int) -> bool:
    """Whether lists are parted: by a semicolon, or an "and" with a comma on either side of it."""
    if side[at].text != "and" or "comma" in [t.kind for t in side[max(0, at - 1) : at + 2]]:
        return side[at].kind == "semicolon"
    ends = ({token.kind for token in part} for part in (side[:at], side[at:]))
    return all(kinds >= {"comma", "relation"} for kinds in ends)


def _doubled(members: tuple[Value, ...]) -> tuple[Value, ...]:
    r"""With two for each ``\pm``."""
    found = list[Value]()
    for member in members:
        found += member.parts if isinstance(member, Set) and member.joint == "pm" else (member,)
    return tuple(found)


def _related(side: Side, cuts: list[int], depth: int) -> Value:
    parts = parted_at(side, cuts)
    sides = tuple(read(part, depth + 1) for part in parts)
    signs = tuple(side[at].text for at in cuts)
    texts = tuple(latex_of(bare(part)) for part in parts)
    return read_relation(Relation(sides, signs, texts))


def _environment(side: Side, depth: int) -> Value | None:
    """A system or a matrix, perhaps in brackets."""
    opens, inner = side[0].text, side[1:-1]
    if inner and inner[0].text in _MATRICES | SYSTEMS and closes(inner) == len(inner) - 1:
        return _environment(inner, depth)
    if opens in SYSTEMS and (system := _system(inner, depth)):
        return system
    if opens in _MATRICES:
        return _matrix(side, depth)
    if opens == "vmatrix":
        return determinant(_matrix(side, depth)) or Expression(None, latex_of(side))
    return None


def _enclosed(side: Side, depth: int) -> Value:
    opens, inner, closes = side[0].text, side[1:-1], side[-1].text
    cuts = cuts_of(inner)
    if opens == r"\{":
        return _members(inner, depth)
    if inner and cuts == {} and opens == "[" == inner[0].text:
        row = read(inner, depth + 1)
        return Tuple((row,), "[]") if isinstance(row, Tuple) else expression_of(side)
    if cuts is None or "and" not in cuts or opens not in ("(", "[", "{", r"\langle"):
        return expression_of(side)
    if opens == "{":
        return _members(inner, depth)
    opens, closes = ("(", ")") if opens == r"\langle" else (opens, closes)
    parts = tuple(read(part, depth + 1) for part in parted_at(inner, cuts["and"]))
    return _both_ways(parts, opens + closes)


def _both_ways(parts: tuple[Value, ...], brackets: str) -> Value:
    r"""``(1, \pm 2)`` are two."""
    doubled = [at for at, part in enumerate(parts) if isinstance(part, Set) and part.joint == "pm"]
    if len(doubled) != 1 or not isinstance(both := parts[doubled[0]], Set):
        return Tuple(parts, brackets)
    at = doubled[0]
    ways = (Tuple((*parts[:at], each, *parts[at + 1 :]), brackets) for each in both.parts)
    return Set(tuple(ways), "pm")


def _members(inner: Side, depth: int) -> Value:
    if not inner:
        return EMPTY
    for at, token in enumerate(inner[1:6], start=1):
        is_letter = inner[0].kind in ("letters", "accent") and inner[1].kind in _SUCH_THAT
        if is_letter and token.kind in ("bar", "colon"):
            return read(inner[at + 1 :], depth + 1)
    cuts = cuts_of(inner) or {}
    parts = parted_at(inner, cuts.get("and", []))
    return Set(_doubled(tuple(read(part, depth + 1) for part in parts)))


def _rows(inner: Side) -> list[Side]:
    rows = parted_at(inner, [at for at, token in enumerate(inner) if token.kind == "row"])
    return [row for row in rows if row]


def _system(inner: Side, depth: int) -> Value | None:
    """One value for each of several letters."""
    rows = [tuple(t for t in row if t.kind != "ampersand") for row in _rows(inner)]
    found = tuple(read(row, depth + 1) for row in rows)
    values = [f for f in found if isinstance(f, Relation) and f.signs == ("=",)]
    is_assigned = len(values) == len(found) > 1
    return Set(found, ",") if is_assigned else None


def _matrix(side: Side, depth: int) -> Value:
    rows = [
        parted_at(r, [at for at, t in enumerate(r) if t.kind == "ampersand"])
        for r in _rows(side[1:-1])
    ]
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        return Expression(None, latex_of(side))
    cells = tuple(read(cell, depth + 1) for row in rows for cell in row)
    return Matrix(cells, len(rows), widths.pop())


def _matrix_product(side: Side, depth: int) -> Value | None:
    r"""``\frac{1}{3}`` before a matrix multiplies its cells; and matrices side by side."""
    at = next((i for i, token in enumerate(side) if token.text in _MATRICES), None)
    if at is None:
        return None
    end = at + closes(side[at:])
    first = _matrix(side[at : end + 1], depth)
    rest = tuple(token for token in side[end + 1 :])
    if rest and rest[0].text in ("*", r"\times"):
        rest = rest[1:]
    second = read(rest, depth + 1) if rest else None
    if isinstance(first, Matrix) and isinstance(second, Matrix):
        first = multiplied(first, second)
    elif second is not None or not isinstance(first, Matrix):
        return None
    factor = side[:at][:-1] if at and side[at - 1].text in ("*", r"\times") else side[:at]
    if not factor or first is None:
        return first
    try:
        sign = factor[0].text if len(factor) == 1 and factor[0].text in "+-" else ""
        tree = integer(-1 if sign == "-" else 1) if sign else tree_of(factor, as_answer=True)
    except Unreadable:
        return None
    return scaled(tree, first)
