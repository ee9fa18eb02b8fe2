r"""What an answer is made of: members of a set, coordinates, ends of an interval, cells, sides.

Linear in the length of the text; members are given as text, to be read in their turn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from services.grader.answers.formulas import formula_or_none, is_number
from services.grader.answers.intervals import NAME, VARIABLE, Interval, intersection, interval_of


class Kind(StrEnum):
    """How the parts of an answer belong together."""

    SCALAR = "scalar"
    SET = "set"  # also a list: without order, and twice is once
    TUPLE = "tuple"  # also an interval; the marks are its brackets
    MATRIX = "matrix"  # cells by rows; the marks are its size
    UNION = "union"
    CONDITIONS = "conditions"  # all hold; inequalities in different letters, without order
    RELATION = "relation"  # the sides; the marks are its signs


@dataclass(frozen=True)
class Shape:
    """The kind of an answer, its parts as tidied LaTeX, and marks that must agree."""

    kind: Kind
    parts: tuple[str, ...]
    marks: str = ""


_STRUCTURE = re.compile(
    r"[,;:=<>\[]|\\(?:\{|[lgn]e(?![a-zA-Z])|cup|in(?![a-z])|[pm]{2}(?![a-z])|langle|begin|mathbb"
    r"|emptyset)|\\text ?\{ ?(?:or|and) ?\}|(?<![a-zA-Z])(?:or|and)(?![a-zA-Z])"
)
_TOKEN = re.compile(
    r"(?P<open>\\\{|\\langle|\\begin\{[a-z]+\*?\}|[({\[])"
    r"|(?P<close>\\\}|\\rangle|\\end\{[a-z]+\*?\}|[)}\]])"
    r"|(?P<and>,? ?(?:\\text ?\{ ?(?:or|and) ?\}|(?<![a-zA-Z\\])(?:or|and)(?![a-zA-Z]))|[,;])"
    r"|(?P<union>\\cup(?![a-zA-Z]))"
    r"|(?P<sign>[=<>]|\\(?:[lgn]e|in)(?![a-zA-Z]))"
    r"|\\."
)
OF_SETS = re.compile(r"\\(?:cup|cap|setminus|backslash)(?![a-zA-Z])")
_RATIO = re.compile(r"[0-9]+(?: ?: ?[0-9]+)+")  # or a time of day
_BOTH = re.compile(r"\\[pm]{2}(?![a-zA-Z])")
_INEQUALITY = re.compile(r"[<>]|\\[lg]e(?![a-zA-Z])")
_AND = re.compile(r"\\text ?\{ ?and ?\}|(?<![a-zA-Z])and(?![a-zA-Z])")
OR = re.compile(r"\\text ?\{ ?or ?\}|(?<![a-zA-Z])or(?![a-zA-Z])")
_IS_VALUE = re.compile(r"([a-zA-Z]) ?= ?((?:(?!\\[lgn]e(?![a-zA-Z]))[^=<>])+)")
_FOR_ALL = re.compile(
    r",? ?\\text ?\{ ?for (?:all|any|every)(?: real)?(?: numbers?)?(?: ?\} ?[a-zA-Z]| [a-zA-Z] ?\})"
    r"(?: ?\\in ?\\mathbb\{R\})?\Z"
)
_SUCH_THAT = re.compile(
    r"[a-z] ?(?:\\in ?\\mathbb\{R\} ?)?(?:\\(?:mid|vert|colon)(?![a-z])|[|:]) ?(.*)", re.DOTALL
)
_MATRIX = re.compile(
    r"\\begin\{(?:([pbB]?)matrix\}|array\} ?\{[lcr ]+\})((?:(?!\\(?:begin|end)).)*)"
    r"\\end\{(?:\1matrix|array)\}",
    re.DOTALL,
)
_TIMES_MATRIX = re.compile(r"([^&]+?) ?(?:\\cdot|\\times)? ?(\\begin\{[pbB]matrix\}.*)", re.DOTALL)
_SYSTEM = re.compile(r"\\begin\{(cases|aligned)\}((?:(?!\\(?:begin|end)).)*)\\end\{\1\}", re.DOTALL)
_ROW = re.compile(r"\\\\(?:\[[^\]]*\])?")
_MEMBER_OF = re.compile(rf"\A{NAME} ?\\in(?![a-z]) ?")
_REALS = r"\mathbb{R}"
_MAX_DEPTH = 40  # of brackets, so that what is in them can be read by recursion
_FLIPPED = {">": "<", r"\ge": r"\le"}
_VARIABLES = re.compile(rf"(?:{NAME}|\((?:{NAME}, ?)+{NAME}\))")


@dataclass(frozen=True)
class _Cuts:
    """Where a text can be parted outside of all brackets, by what stands there."""

    marks: dict[str, list[tuple[int, int]]]
    signs: tuple[str, ...]
    is_enclosed: bool  # by one pair of brackets

    def parts(self, latex: str, kind: str) -> tuple[str, ...]:
        begins = [0, *(end for _, end in self.marks[kind])]
        ends = [*(start for start, _ in self.marks[kind]), len(latex)]
        return tuple(latex[a:b].strip() for a, b in zip(begins, ends, strict=True))


def shape_of(latex: str) -> Shape | None:
    """The shape of tidied LaTeX; None if its brackets do not match, or are nested very deeply."""
    if not _STRUCTURE.search(latex):
        return Shape(Kind.SCALAR, (latex,))
    if _RATIO.fullmatch(latex):
        return Shape(Kind.TUPLE, tuple(latex.split(":")), ":")
    cuts = _cuts(latex)
    if cuts is None:
        return None
    if "and" in cuts.marks:
        return _listed(latex, tuple(part for part in cuts.parts(latex, "and") if part))
    if "sign" in cuts.marks:
        return _relation(cuts.parts(latex, "sign"), cuts.signs)
    if "union" in cuts.marks:
        return Shape(Kind.UNION, cuts.parts(latex, "union"))
    if not latex.startswith(r"\{") and (signs := list(_BOTH.finditer(latex))):
        return _both(latex, signs)
    return _enclosed(latex) if cuts.is_enclosed else _times_matrix(latex) or _named(latex)


def as_region(latex: str) -> str:
    r"""Inequalities as intervals, joined by ``\cup`` or ``\cap``; of ``x \in A`` only A."""
    latex = _MEMBER_OF.sub("", latex)
    shape = shape_of(latex)
    if shape is None:
        return latex
    if shape.kind is Kind.UNION or shape.marks == "and":
        sign = r" \cap " if shape.marks == "and" else r" \cup "
        return sign.join(as_region(part) for part in shape.parts)
    if shape.kind is Kind.TUPLE and len(shape.parts) == 2:
        return f"{shape.marks[0]}{','.join(shape.parts)}{shape.marks[-1]}"
    return latex


def _cuts(latex: str) -> _Cuts | None:
    marks: dict[str, list[tuple[int, int]]] = {}
    signs: list[str] = []
    depth, closed_at = 0, -1
    for match in _TOKEN.finditer(latex):
        kind = match.lastgroup
        if kind == "open":
            depth += 1
            if depth > _MAX_DEPTH:
                return None
        elif kind == "close":
            depth -= 1
            if depth < 0:
                return None
            closed_at = match.end() if depth == 0 and closed_at < 0 else closed_at
        elif kind is not None and depth == 0:
            marks.setdefault(kind, []).append(match.span())
            signs += [match.group()] if kind == "sign" else []
    first = _TOKEN.match(latex)
    is_enclosed = closed_at == len(latex) and first is not None and first.lastgroup == "open"
    return None if depth else _Cuts(marks, tuple(signs), is_enclosed)


def _listed(latex: str, parts: tuple[str, ...]) -> Shape:
    """Members of a list; inequalities may be conditions, or pieces of a union."""
    inequalities = sum(_INEQUALITY.search(part) is not None for part in parts)
    if len(parts) > 1 and inequalities and OR.search(latex):
        return _pieces(latex, parts)
    if len(parts) < 2 or inequalities < len(parts):
        return Shape(Kind.SET, parts)
    found = [_interval(part) for part in parts]
    intervals = [interval for interval in found if interval]
    if len(intervals) < len(parts) or len({interval.letter for interval in intervals}) > 1:
        is_region = _AND.search(latex) and len({interval.letter for interval in intervals}) < 2
        return Shape(Kind.RELATION, parts, "and") if is_region else _conditions(parts, found)
    if common := intersection(intervals):
        return _tuple_of(common)
    return Shape(Kind.RELATION, parts, "and") if _AND.search(latex) else Shape(Kind.UNION, parts)


def _pieces(latex: str, parts: tuple[str, ...]) -> Shape:
    """One of them holds: ``x = 0`` or ``1 < x``; of different letters they are no union."""
    values = [_IS_VALUE.fullmatch(part) for part in parts]
    letters = {value[1] for value in values if value}
    letters |= {interval.letter for part in parts if (interval := _interval(part))}
    if len(letters) > 1:
        return Shape(Kind.SCALAR, (latex,))
    pieces = (
        rf"\{{{value[2].strip()}\}}" if value else part
        for value, part in zip(values, parts, strict=True)
    )
    return Shape(Kind.UNION, tuple(pieces))


def _conditions(parts: tuple[str, ...], found: list[Interval | None]) -> Shape:
    """All of them hold, and each keeps its letter."""
    marked = (
        interval.with_letter if interval else part
        for part, interval in zip(parts, found, strict=True)
    )
    return Shape(Kind.CONDITIONS, tuple(marked))


def _interval(latex: str) -> Interval | None:
    """That of an inequality."""
    cuts = _cuts(latex)
    if cuts is None or "sign" not in cuts.marks:
        return None
    return interval_of(*_upwards(cuts.parts(latex, "sign"), cuts.signs))


def _upwards(
    sides: tuple[str, ...], signs: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """With ``<`` for ``>``."""
    if not all(sign in _FLIPPED for sign in signs):
        return sides, signs
    return sides[::-1], tuple(_FLIPPED[sign] for sign in reversed(signs))


def _tuple_of(interval: Interval) -> Shape:
    return Shape(Kind.TUPLE, interval.ends, interval.brackets)


def _relation(sides: tuple[str, ...], signs: tuple[str, ...]) -> Shape:
    if signs == (r"\in",) and _VARIABLES.fullmatch(sides[0]):
        return shape_of(sides[1]) or Shape(Kind.RELATION, sides, r"\in")
    sides, signs = _upwards((*sides[:-1], _FOR_ALL.sub("", sides[-1])), signs)
    if interval := interval_of(sides, signs):
        return _tuple_of(interval)
    if signs == (r"\ne",) and VARIABLE.fullmatch(sides[0]) and is_number(sides[1]):
        pieces = rf"(-\infty,{sides[1]})", rf"({sides[1]},\infty)"
        return Shape(Kind.UNION, pieces)
    return Shape(Kind.RELATION, sides, " ".join(signs))


def _both(latex: str, signs: list[re.Match[str]]) -> Shape | None:
    """``1 \\pm \\sqrt{2}`` are two numbers; more signs than one can be read in two ways."""
    if len(signs) > 1:
        return None
    begin, end = signs[0].span()
    return Shape(Kind.SET, tuple(f"{latex[:begin]}{sign}{latex[end:]}" for sign in "+-"))


def _enclosed(latex: str) -> Shape:
    if latex.startswith(r"\begin"):
        return _system(latex) or _matrix(latex)
    if latex.startswith(r"\{"):
        such = _SUCH_THAT.fullmatch(latex[2:-2].strip())
        return (such and shape_of(such[1])) or _members(latex[2:-2].strip())
    opens, inner, closes = latex[0], latex[1:-1], latex[-1]
    if latex.startswith(r"\langle"):
        opens, inner, closes = "(", latex[len(r"\langle") : -len(r"\rangle")], ")"
    if _MATRIX.fullmatch(inner):
        return _matrix(inner)
    cuts = _cuts(inner)
    if cuts and opens == "{" and "and" in cuts.marks:
        return _members(inner)
    if cuts is None or "and" not in cuts.marks:
        return Shape(Kind.SCALAR, (latex,))
    return Shape(Kind.TUPLE, cuts.parts(inner, "and"), opens + closes)


def _members(inner: str) -> Shape:
    if not inner:
        return Shape(Kind.SET, ())
    cuts = _cuts(inner)
    return Shape(Kind.SET, cuts.parts(inner, "and") if cuts and "and" in cuts.marks else (inner,))


def _system(latex: str) -> Shape | None:
    """One value for each of several letters."""
    match = _SYSTEM.fullmatch(latex)
    rows = [row.replace("&", "").strip(" ,;.") for row in _ROW.split(match[2])] if match else []
    values = tuple(row for row in rows if row)
    is_assigned = len(values) > 1 and all(map(_IS_VALUE.fullmatch, values))
    return Shape(Kind.SET, values) if is_assigned else None


def _matrix(latex: str) -> Shape:
    match = _MATRIX.fullmatch(latex)
    if match is None:
        return Shape(Kind.SCALAR, (latex,))
    rows = [row.split("&") for row in _ROW.split(match[2]) if row.strip()]
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        return Shape(Kind.SCALAR, (latex,))
    cells = tuple(cell.strip() for row in rows for cell in row)
    return Shape(Kind.MATRIX, cells, f"{len(rows)}x{widths.pop()}")


def _times_matrix(latex: str) -> Shape | None:
    r"""``\frac{1}{3}`` before a matrix multiplies its cells."""
    match = _TIMES_MATRIX.fullmatch(latex)
    factor = match and {"-": "-1", "+": "1"}.get(match[1], match[1])
    matrix = match and _matrix(match[2])
    if not (factor and matrix) or matrix.kind is not Kind.MATRIX or not formula_or_none(factor):
        return None
    cells = tuple(rf"({factor}) \cdot ({cell})" for cell in matrix.parts)
    return Shape(Kind.MATRIX, cells, matrix.marks)


def _named(latex: str) -> Shape:
    if latex == _REALS:
        return Shape(Kind.TUPLE, (r"-\infty", r"\infty"), "()")
    return Shape(Kind.SET, ()) if latex == r"\emptyset" else Shape(Kind.SCALAR, (latex,))
