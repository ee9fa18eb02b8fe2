r"""An answer, read once into frozen values: LaTeX, plain text, or both mixed.

What an answer is made of is found by the marks outside of all brackets; whatever is left is one
expression. Nothing is ever half understood: where the grammar ends, the value has no tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import chain
from typing import NamedTuple

from answers import words
from answers.boxes import last_box, unwrapped
from answers.grammar import tree_of
from answers.nodes import Node, Unreadable, rebuilt
from answers.tokens import Side, Token, latex_of, plain_of, tokens
from answers.units import measure_of
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
_MATRICES = frozenset(["pmatrix", "bmatrix", "Bmatrix", "matrix", "smallmatrix", "array"])
_REMARK = re.compile(
    r"(?:\s|\\[,;:! ]|\\q?quad){0,9}(?:\\text ?\{\s?)?\(\s?(?:\\text ?\{\s?)?"
    r"(?:about|approx\w*\.?|roughly|\\approx)(?![a-z])[^()]*\)[\s}.]*\Z"
)
_LABEL = re.compile(r"\A\s*(?:final )?answer ?(?:is|:) ?", re.IGNORECASE)
_PLAIN = re.compile(r"-?[0-9]{1,300}(?:\.[0-9]{1,300})?", re.ASCII)
_APART = re.compile(
    r"(?<![0-9.,^_/])(?:(?P<thousands>[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9]))"
    r"|(?P<whole>[1-9][0-9]{0,8}) (?P<top>[1-9][0-9]{0,8})/(?P<bottom>[1-9][0-9]{0,8})(?![0-9.]))"
)
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
_MANY = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_CODES = {"words": "w", "roman": "w", "letters": "L"}
_ENDS_NUMBER = frozenset({"number", "repeating", "close", "accent"})
# The words that end an answer, perhaps raised, behind what may be a number; a letter alone is a
# unit only in km/h and 20°C.
_TAIL = re.compile(
    r"(?<=[n2}°lc])(?!/)(?:(?:[wL]|(?<=°)c|(?<=[wLlc]/)[lc])(?:\^(?:2|\{2\}))?"
    r"|(?<=[wLlc])/(?=[wLlc]))+\Z"
)
_RAISED = re.compile(r" ?\$?\^ ?\{? ?([0-9]) ?\}?\$?")
_LONG = re.compile(r"[a-zA-Z]{4}|per ")
_TIMES = ("*", r"\times")
_MAX_CELLS = 36
_MAX_NODES = 500  # a product has each cell several times
_FLIPPED = {">": "<", ">=": "<="}
INFINITY = Expression(Node("infinity"), r"\infty")
MINUS_INFINITY = Expression(Node("negative", (Node("infinity"),)), r"-\infty")
REALS = Tuple((MINUS_INFINITY, INFINITY))
_CONSTANTS = {r"\mathbb R": REALS, r"\emptyset": EMPTY}
_INEQUALITIES = frozenset({"<", "<=", "!="})
_STATEMENT = re.compile(
    r"(?:(?:the )?(?:final )?answer(?: is)? ?:?|thus,?|so,?|therefore,?|[一总]?共有?|答案?[是为]?)",
    re.IGNORECASE,
)
_FOR_ALL = re.compile(r"for(?: all| any| every)?(?: real)?(?: numbers?)?(?: [a-zA-Z])?")
JOINTS = (r"\cup", r"\cap", r"\setminus")
_MAX_BRACKETS = 40
SYSTEMS = frozenset(["cases", "aligned", "array"])
_PARTS_MEMBERS = frozenset({r"\{", r"\langle", "(", "["})


@lru_cache(4096)
def read_answer(text: str, *, is_list: bool = False, is_chosen: bool = False) -> Value:
    """With ``is_list`` each comma parts members; with ``is_chosen`` ``B, 12`` is a choice."""
    if _PLAIN.fullmatch(text):
        return Number(Fraction(text), len(text.partition(".")[2]) or None)
    text = _APART.sub(_together, _without_remark(_LABEL.sub("", unwrapped(text))))
    found = flat(tokens(text))
    is_open = "\\boxed" in text and last_box(text) != (0, len(text))
    if len(found) > _MAX_TOKENS or is_open or not text.strip():
        return Expression(None, text)
    side = bare(without_open_brace(tuple(joined(found, is_list=is_list))))
    plain = plain_of(side)
    if choice := words.read_choice(plain, is_chosen=is_chosen):
        return Choice(choice[0], read_answer(choice[1]) if choice[1] else None)
    if letters := words.read_letters(plain):
        return Choice(letters)
    return read(side)


def _together(apart: re.Match[str]) -> str:
    """``12 000`` and ``1 4/5`` as LaTeX."""
    if apart["thousands"]:
        return apart[0].replace(" ", "")
    _, whole, top, bottom = apart.groups()
    return rf"{whole}\frac{{{top}}}{{{bottom}}}" if int(top) < int(bottom) else apart[0]


def _without_remark(text: str) -> str:
    rest = text[: remark.start()] if (remark := _REMARK.search(text)) else text
    return rest if rest.strip() and rest.count("{") == rest.count("}") else text


def read(side: Side, depth: int = 0) -> Value:
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
    marked, plain = any(token.kind == "words" for token in side), plain_of(side)
    if (remainder := remainder_of(side)) is not None:
        return remainder
    if numeral := ("_" in plain or "base" in plain) and words.read_numeral(plain):
        digits, base = numeral
        return Number(Fraction(int(digits))) if base == 10 else Words(f"{digits} base {base}")
    if named := words.read_named(plain):
        return Words(named)
    if side[0].kind in ("number", "money", "operator") or not (
        said := words.read_words(plain, is_marked=marked)
    ):
        return None
    if _ALL_REALS.fullmatch(said):
        return REALS
    return EMPTY if _NOTHING.fullmatch(said) else Words(said)


def _parted(side: Side, depth: int) -> Value:
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
    return Union(_parts(side, cuts[joint], depth), joint) if joint else None


def _parts(side: Side, cuts: list[int], depth: int) -> tuple[Value, ...]:
    return tuple(read(part, depth + 1) for part in parted_at(side, cuts))


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
    parts = _parts(side, cuts, depth)
    is_ratio = all(isinstance(part, Number | Expression) for part in parts)
    if not is_ratio or len(parts) > 8 or not all(map(_tree, parts)):
        return None
    return Tuple(parts, CLOCK if _CLOCK.fullmatch(plain_of(side)) else RATIO)


def _tree(value: Value) -> Node | None:
    return value.tree if isinstance(value, Number | Expression) else None


def _listed(side: Side, cuts: list[int], depth: int) -> Value:
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
    found = (m.parts if isinstance(m, Set) and m.joint == "pm" else (m,) for m in members)
    return tuple(chain(*found))


def _related(side: Side, cuts: list[int], depth: int) -> Value:
    signs = tuple(side[at].text for at in cuts)
    texts = tuple(latex_of(bare(part)) for part in parted_at(side, cuts))
    return read_relation(Relation(_parts(side, cuts, depth), signs, texts))


def _environment(side: Side, depth: int) -> Value | None:
    opens, inner = side[0].text, side[1:-1]
    if inner and inner[0].text in _MATRICES | SYSTEMS and closes(inner) == len(inner) - 1:
        return _environment(inner, depth)
    if opens in SYSTEMS and (system := _system(inner, depth)):
        return system
    if opens in _MATRICES:
        return _matrix(side, depth)
    if opens == "vmatrix":
        return _determinant(_matrix(side, depth)) or Expression(None, latex_of(side))
    return None


def _enclosed(side: Side, depth: int) -> Value:
    opens, inner, closes = side[0].text, side[1:-1], side[-1].text
    cuts = cuts_of(inner)
    if opens == r"\{":
        return _members(inner, depth)
    if inner and cuts == {} and opens == "[" == inner[0].text:
        row = read(inner, depth + 1)
        return Tuple((row,), "[]") if isinstance(row, Tuple) else expression_of(side)
    if cuts is None or "and" not in cuts or opens not in ("(", "[", r"\langle"):
        return expression_of(side)
    opens, closes = ("(", ")") if opens == r"\langle" else (opens, closes)
    return _both_ways(_parts(inner, cuts["and"], depth), opens + closes)


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
    return Set(_doubled(_parts(inner, (cuts_of(inner) or {}).get("and", []), depth)))


def _rows(inner: Side) -> list[list[Side]]:
    rows = parted_at(inner, [at for at, token in enumerate(inner) if token.kind == "row"])
    return [
        parted_at(row, [at for at, token in enumerate(row) if token.kind == "ampersand"])
        for row in rows
        if row
    ]


def _system(inner: Side, depth: int) -> Value | None:
    found = tuple(read(tuple(chain(*row)), depth + 1) for row in _rows(inner))
    are_values = all(isinstance(each, Relation) and each.signs == ("=",) for each in found)
    return Set(found, ",") if are_values and len(found) > 1 else None


def _matrix(side: Side, depth: int) -> Value:
    rows = _rows(side[1:-1])
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        return Expression(None, latex_of(side))
    return Matrix(tuple(read(cell, depth + 1) for cell in chain(*rows)), len(rows), widths.pop())


def _matrix_product(side: Side, depth: int) -> Value | None:
    r"""``\frac{1}{3}`` before a matrix multiplies its cells; and matrices side by side."""
    at = next((i for i, token in enumerate(side) if token.text in _MATRICES), None)
    if at is None:
        return None
    end = at + closes(side[at:]) + 1
    factor, product, rest = side[:at], _matrix(side[at:end], depth), side[end:]
    if rest:
        product = _multiplied(product, read(rest[rest[0].text in _TIMES :], depth + 1))
    if not factor or not isinstance(product, Matrix):
        return product if isinstance(product, Matrix) else None
    if factor[-1].text in (*_TIMES, "+", "-"):
        factor = (*factor, *tokens("1"))
    try:
        tree = tree_of(factor, as_answer=True)
    except Unreadable:
        return None
    cells = [_tree(cell) for cell in product.cells]
    scaled = tuple(Expression.of(Node("*", (tree, cell))) for cell in cells if cell)
    return Matrix(scaled, product.num_rows, product.num_columns) if all(cells) else None


class WithUnit(NamedTuple):
    head: Side
    unit: str
    is_bare: bool = False


def split_unit(side: Side) -> WithUnit | None:
    at = int(len(side) > 1 and side[0].text in ("+", "-"))
    if side[at].kind == "money":
        return _money((*side[:at], *side[at + 1 :]), side[at].text)
    last = side[len(side) - 1]
    is_degree = last.text == "°" and not any(token.kind == "function" for token in side)
    if last.kind == "money" or (last.kind == "operator" and (last.text == "%" or is_degree)):
        return WithUnit(side[:-1], last.text)
    may_end = last.kind in _CODES or last.text in "23}"
    tail = _TAIL.search("".join(map(_code, side))) if may_end else None
    return _with_words(side[: tail.start()], side[tail.start() :]) if tail else None


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
    if (is_letter or (is_bare and not _LONG.search(unit))) and not measure_of(unit):
        return None
    return WithUnit(head, unit, is_bare)


def _code(token: Token) -> str:
    if token.kind == "letters" and len(token.text) == 1:
        return "c" if token.text in "CFK" else "l"
    if token.kind in _CODES:
        return _CODES[token.kind]
    if token.text in "/^{}°23":
        return "2" if token.text == "3" else token.text
    return "n" if token.kind in _ENDS_NUMBER or token.text == r"\pi" else "."


def expression_of(side: Side) -> Value:
    try:
        tree = tree_of(side, as_answer=True)
    except Unreadable:
        return Expression(None, latex_of(side))
    signs = [node for node in tree.walk() if node.kind == "plusminus"]
    if signs:
        return _two(tree) if len(signs) == 1 else Expression(None, latex_of(side))
    return _number(tree) or Expression(tree, latex_of(side))


def _two(tree: Node) -> Set:
    both = (
        rebuilt(tree, lambda node, s=s: Node(s, node.parts) if node.kind == "plusminus" else node)
        for s in "+-"
    )
    return Set(tuple(_number(each) or Expression.of(each) for each in both), "pm")


def remainder_of(side: Side) -> Number | None:
    if len(side) == 3 and side[1].text == r"\bmod":
        number, modulus = expression_of(side[:1]), expression_of(side[2:])
        if isinstance(number, Number) and isinstance(modulus, Number) and modulus.value:
            return Number(number.value % modulus.value)
    return None


def _number(tree: Node) -> Number | None:
    if tree.kind == "number":
        return Number(tree.number, tree.places or None)
    if tree.kind == "negative":
        plain = _number(tree.parts[0])
        return plain and Number(-plain.value, plain.places)
    if tree.kind == "grouped":
        return _number(tree.parts[0])
    if tree.kind not in ("fraction", "/", "mixed"):
        return None
    top, bottom = map(_number, tree.parts)
    if top is None or bottom is None or not bottom.value or top.places or bottom.places:
        return None
    value = top.value + bottom.value if tree.kind == "mixed" else top.value / bottom.value
    return Number(value)


def _multiplied(left: Value, right: Value) -> Matrix | None:
    if not (isinstance(left, Matrix) and isinstance(right, Matrix)):
        return None
    first, second = list(map(_tree, left.cells)), list(map(_tree, right.cells))
    cells = [cell for cell in (*first, *second) if cell]
    is_large = len(cells) > _MAX_CELLS or sum(1 for c in cells for _ in c.walk()) > _MAX_NODES
    width, inner = right.num_columns, right.num_rows
    if is_large or left.num_columns != inner or len(cells) < len(first) + len(second):
        return None
    rows = [cells[at : at + inner] for at in range(0, len(first), inner)]
    columns = [cells[len(first) + at :: width] for at in range(width)]
    products = (map(lambda *pair: Node("*", pair), r, c) for r in rows for c in columns)
    sums = (reduce(lambda a, b: Node("+", (a, b)), each) for each in products)
    return Matrix(tuple(map(Expression.of, sums)), left.num_rows, width)


def _determinant(matrix: Value) -> Expression | None:
    if not isinstance(matrix, Matrix) or (matrix.num_rows, matrix.num_columns) != (2, 2):
        return None
    a, b, c, d = map(_tree, matrix.cells)
    if not (a and b and c and d):
        return None
    return Expression.of(Node("-", (Node("*", (a, d)), Node("*", (b, c)))))


def letter_of(value: Value) -> str:
    tree = _tree(value)
    return tree.letter if tree and tree.kind == "letter" else ""


def read_relation(relation: Relation) -> Value:
    r"""An interval, the set behind ``x \in``, or the relation with all its signs upwards."""
    sides, signs = relation.sides, relation.signs
    names = sides[0].parts if isinstance(sides[0], Tuple) else sides[:1]
    if signs == (r"\in",) and all(map(letter_of, names)):
        region = sides[1]
        if isinstance(region, Tuple):
            region = Tuple(region.parts, region.brackets, letter_of(sides[0]))
        return relation if isinstance(region, Words) else region
    if all(sign in _FLIPPED for sign in signs):
        signs = tuple(_FLIPPED[sign] for sign in reversed(signs))
        sides = sides[::-1]
        relation = Relation(sides, signs, relation.texts[::-1])
    if (interval := _interval(relation)) is not None:
        return interval
    if signs == ("!=",) and letter_of(sides[0]) and isinstance(sides[1], Number | Expression):
        pieces = Tuple((MINUS_INFINITY, sides[1])), Tuple((sides[1], INFINITY))
        if isinstance(sides[1], Number) or not sides[1].letters:
            return Union(pieces)
    return relation


def _interval(relation: Relation) -> Tuple | None:
    sides, signs = relation.sides, relation.signs
    if len(signs) > 2 or not {"<", "<="}.issuperset(signs):
        return None
    opens = "[" if signs[:1] == ("<=",) else "("
    closes = "]" if signs[-1:] == ("<=",) else ")"
    if len(signs) == 1 and letter_of(sides[0]):
        sides, opens = (MINUS_INFINITY, *sides), "("
    elif len(signs) == 1:
        sides, closes = (*sides, INFINITY), ")"
    low, letter, high = sides
    name = letter_of(letter)
    if not name or not all(_is_end(end, name) for end in (low, high)):
        return None
    return Tuple((low, high), opens + closes, name)


def _is_end(value: Value, letter: str) -> bool:
    if isinstance(value, Expression):
        return letter not in value.letters and letter not in ("e", "i")
    return not isinstance(value, Relation | Set | Union)


def united(members: tuple[Value, ...], *, has_or: bool, has_and: bool) -> Value | None:
    inequalities = [member for member in members if _is_inequality(member)]
    if len(members) < 2 or not inequalities:
        return None
    if has_or:
        return _pieces(members)
    if len(inequalities) < len(members):
        return None
    intervals = [member for member in members if isinstance(member, Tuple)]
    letters = {interval.letter for interval in intervals}
    if len(intervals) < len(members) or len(letters) > 1:
        if has_and and len(letters) < 2:
            return Union(members, r"\cap")
        return Set(tuple(Tuple((Words(getattr(each, "letter", "")), each)) for each in members))
    return Union(members, r"\cap" if has_and else ",")


def _is_inequality(value: Value) -> bool:
    if isinstance(value, Relation):
        return not _INEQUALITIES.isdisjoint(value.signs)
    return isinstance(value, Tuple) and bool(value.letter)


def _pieces(members: tuple[Value, ...]) -> Value | None:
    """One of them holds: ``x = 0`` or ``1 < x``; of different letters they are no union."""
    letters, pieces = set[str](), list[Value]()
    for member in members:
        if isinstance(member, Relation) and member.signs == ("=",) and letter_of(member.sides[0]):
            letters.add(letter_of(member.sides[0]))
            pieces.append(Set((member.sides[1],)))
        else:
            letters |= {member.letter} if isinstance(member, Tuple) else set()
            pieces.append(member)
    return Union(tuple(pieces)) if len(letters) < 2 else Expression(None, repr(members))


def flat(found: Iterable[Token]) -> list[Token]:
    flat, is_apart = list[Token](), False
    for token in found:
        meant = _meant(token)
        if meant and is_apart:
            meant[0] = meant[0]._replace(gap=True)
        flat += meant
        is_apart = token.kind == "words" and token.text.endswith(" ")
    return flat


def _meant(token: Token) -> list[Token]:
    said = token.text.strip() if token.kind in ("words", "letters") else ""
    if said == "USD":
        return [token._replace(kind="money", text="dollar")]
    if said.casefold() in ("or", "and"):
        return [token._replace(kind="and", text=said.casefold())]
    if token.text == r"\forall" or (token.kind == "words" and _FOR_ALL.fullmatch(said)):
        letter = [Token("letters", said[-1:])] if said[-2:-1] == " " else []
        return [token._replace(kind="and", text="for"), *letter]
    if token.kind == "words" and said.casefold() == "to":
        return [token._replace(kind="colon", text=":")]
    if token.kind == "words" and not said[:1].isalpha():
        inside = flat(tokens(token.text))
        return [each._replace(gap=each.gap or not at) for at, each in enumerate(inside)]
    return [token]


def bare(side: Side) -> Side:
    for _ in range(8):
        before = side
        while side and (side[-1].text in (".", ",", ";") or side[-1].text.strip() == "."):
            side = side[:-1]
        if side and side[-1].kind == "number":
            side = (*side[:-1], side[-1]._replace(text=side[-1].text.rstrip(".") or "."))
        while side and (side[0].text in ("=", ".", "+") or _states(side[0])):
            side = side[1:]
        if len(side) > 1 and side[0].text == "{" and closes(side) == len(side) - 1:
            side = side[1:-1]
        if side == before:
            return side
    return side


def _states(token: Token) -> bool:
    return token.kind == "words" and _STATEMENT.fullmatch(token.text.strip()) is not None


def closes(side: Side) -> int:
    """Where the bracket that begins is closed; -1 if it is not."""
    depth = 0
    for at, token in enumerate(side):
        depth += (token.kind == "open") - (token.kind == "close")
        if depth == 0:
            return at
    return -1


def without_open_brace(side: Side) -> Side:
    r"""A system has a brace on its left alone."""
    is_open = len(side) > 1 and side[0].text == r"\{" and side[1].text in SYSTEMS
    return side[1:] if is_open and closes(side[1:]) == len(side) - 2 else side


def cuts_of(side: Side) -> dict[str, list[int]] | None:
    found, depth = dict[str, list[int]](), 0
    for at, token in enumerate(side):
        depth += (token.kind == "open") - (token.kind == "close")
        if not 0 <= depth <= _MAX_BRACKETS:
            return None
        if depth == 0 and token.kind in ("and", "comma", "semicolon"):
            found.setdefault("and", []).append(at)
        elif depth == 0 and token.kind in ("relation", "colon"):
            found.setdefault(token.kind, []).append(at)
        elif depth == 0 and (token.text in JOINTS or _is_less(side, at)):
            found.setdefault(token.text if token.text in JOINTS else JOINTS[-1], []).append(at)
    return found if depth == 0 else None


def _is_less(side: Side, at: int) -> bool:
    r"""Whether a minus takes points out of a set: ``\mathbb{R} - \{2\}``."""
    return at > 0 and [t.text for t in side[at - 1 : at + 2]] == [r"\mathbb R", "-", r"\{"]


def parted_at(side: Side, at: list[int]) -> list[Side]:
    begins, ends = [0, *(cut + 1 for cut in at)], [*at, len(side)]
    return [side[a:b] for a, b in zip(begins, ends, strict=True)]


class _Level(NamedTuple):
    has_members: bool
    runs: list[int]  # places of numbers with commas
    gaps: list[bool]  # of each other comma, whether a space is behind it

    @property
    def is_joined(self) -> bool:
        is_parted = not self.has_members or len(self.gaps) not in (0, len(self.runs))
        return False not in self.gaps and is_parted


def joined(found: list[Token], *, is_list: bool = False) -> list[Token]:
    r"""Tokens in which a number has no comma: joined, or parted where they are of a list.

    A group that begins with 0 is always of thousands. Others are outside of brackets, ``1,234\pi``;
    inside they part members, unless others with a space behind them do, as in ``\{1, 5, 1,200\}``.
    """
    if not any("," in token.text and token.kind == "number" for token in found):
        return found
    together = set() if is_list else _joined_at(found)
    return [
        part for at, token in enumerate(found) for part in _commas_parted(token, at in together)
    ]


def _joined_at(found: list[Token]) -> set[int]:
    levels, closed = [_Level(False, [], [])], list[_Level]()
    for at, token in enumerate(found):
        if token.kind == "number" and "," in token.text:
            if _is_tight(found, at):
                levels[-1].gaps.append(False)
            else:
                levels[-1].runs.append(at)
        elif token.kind == "open":
            is_behind = at > 0 and found[at - 1].text in ("=", "_")
            levels.append(_Level(token.text in _PARTS_MEMBERS or is_behind, [], []))
        elif token.kind == "close" and len(levels) > 1:
            closed.append(levels.pop())
        elif token.kind in ("semicolon", "comma"):
            levels[-1].gaps.append(token.kind == "semicolon" or _has_gap(found, at))
    runs = ((at, level) for level in (*levels, *closed) for at in level.runs)
    return {at for at, level in runs if level.is_joined or ",0" in found[at].text}


def _has_gap(found: list[Token], at: int) -> bool:
    return at + 1 < len(found) and found[at + 1].gap


def _is_tight(found: list[Token], at: int) -> bool:
    """Whether a comma without a space stands beside a number with commas, or it begins with 0."""
    before = at > 0 and found[at - 1].kind == "comma" and not found[at].gap
    after = at + 1 < len(found) and found[at + 1].kind == "comma" and not _has_gap(found, at + 1)
    return before or (after and at + 2 < len(found)) or found[at].text.startswith("0")


def _commas_parted(token: Token, is_joined: bool) -> list[Token]:
    if token.kind != "number" or "," not in token.text:
        return [token]
    head, *rest = token.text.split(",")
    if is_joined:
        return [token._replace(text="".join((head, *rest)))]
    others = ((Token("comma", ","), token._replace(text=part, gap=False)) for part in rest)
    return [token._replace(text=head), *chain(*others)]
