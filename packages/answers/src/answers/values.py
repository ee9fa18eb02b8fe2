"""What an answer is, once it has been read: frozen values that rules compare."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

from answers.nodes import Node, integer, written

_MIN_PLACES = 6  # decimals from which a rounded value may stand for an exact one
_MAX_ROUNDING = Decimal("5e-6")  # relative to the exact value


@dataclass(frozen=True)
class Number:
    """A plain number: its exact value, and how many decimals were written (None: no decimals)."""

    value: Fraction
    places: int | None = None
    is_asked: bool = field(default=False, compare=False)  # for a rounding to so few places

    @cached_property
    def tree(self) -> Node:
        top, bottom = integer(self.value.numerator), integer(self.value.denominator)
        return top if self.value.denominator == 1 else Node("fraction", (top, bottom))

    def rounds(self, exact: Decimal) -> bool:
        if self.places is None or (self.places < _MIN_PLACES and not self.is_asked):
            return False
        rounding = Decimal(5).scaleb(-self.places - 1)
        value = Decimal(self.value.numerator) / Decimal(self.value.denominator)
        is_precise = self.is_asked or rounding <= _MAX_ROUNDING * abs(exact)
        return is_precise and abs(exact - value) <= rounding


@dataclass(frozen=True)
class Expression:
    """Other mathematics: its tree, None where only algebra may read it, and its LaTeX."""

    tree: Node | None = field(compare=False, repr=False)
    latex: str

    @classmethod
    def of(cls, tree: Node) -> Expression:
        return cls(tree, written(tree))

    @cached_property
    def letters(self) -> frozenset[str]:
        nodes = self.tree.walk() if self.tree else ()
        return frozenset(node.letter for node in nodes if node.kind == "letter") - {"i", "e"}


@dataclass(frozen=True)
class Quantity:
    """A number or an expression, and the words, the unit or the sign behind it."""

    head: Value
    unit: str  # "km", "dollars", "%", "candy bars"
    is_bare: bool = False  # in plain letters, which may be a product


@dataclass(frozen=True)
class Tuple:
    """Coordinates, or an interval, in brackets; ``(1,2)`` may be both. `RATIO` and `CLOCK` too."""

    parts: tuple[Value, ...]
    brackets: str = "()"
    letter: str = field(default="", compare=False)  # of the inequality that it was


@dataclass(frozen=True)
class Set:
    """A set or list: without order, and twice is once."""

    parts: tuple[Value, ...]
    joint: str = field(default="", compare=False)  # "," "or" "for" without braces; "pm"


@dataclass(frozen=True)
class Union:
    r"""Sets of numbers: joined, what they have in common (``\cap``), or less the others.

    With a comma between inequalities, what they have in common if that is anything.
    """

    parts: tuple[Value, ...]
    joint: str = r"\cup"


@dataclass(frozen=True)
class Relation:
    """Sides, the signs between them (= < <= != in), and how the sides are written."""

    sides: tuple[Value, ...]
    signs: tuple[str, ...]
    texts: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Matrix:
    cells: tuple[Value, ...]
    num_rows: int
    num_columns: int


@dataclass(frozen=True)
class Choice:
    """The letters of a choice, in order, and what the one stands for, if that is said."""

    letters: str
    rest: Value | None = None


@dataclass(frozen=True)
class Words:
    """An answer in words: lower case, without an article and without marks."""

    said: str


Value = (
    Number | Expression | Quantity | Tuple | Set | Union | Relation | Matrix
    | Choice | Words
)  # fmt: skip


def parts_of(value: Value) -> tuple[Value, ...]:
    if isinstance(value, Tuple | Set | Union):
        return value.parts
    if isinstance(value, Relation):
        return value.sides
    if isinstance(value, Quantity):
        return (value.head,)
    if isinstance(value, Choice):
        return (value.rest,) if value.rest else ()
    return value.cells if isinstance(value, Matrix) else ()


def rounded_as_written(value: Value) -> Value:
    if isinstance(value, Number):
        is_fraction = value.places is None and value.value.denominator != 1
        return value if is_fraction else Number(value.value, value.places or 0, is_asked=True)
    if isinstance(value, Quantity):
        return replace(value, head=rounded_as_written(value.head))
    if isinstance(value, Tuple | Set | Union):
        return replace(value, parts=tuple(map(rounded_as_written, value.parts)))
    if isinstance(value, Relation):
        return replace(value, sides=tuple(map(rounded_as_written, value.sides)))
    return value


EMPTY = Set(())
RATIO, CLOCK = ":", ":00"  # 3:4, and 3:30, which may be a time of day
