r"""An answer once it has been read: frozen values that rules compare."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

from answers.nodes import Node, integer, serialize

# A rounded value may stand for an exact one from this number of decimals,
_MIN_PLACES = 6
# and up to this error, relative to the exact value.
_MAX_ROUNDING = Decimal("5e-6")


@dataclass(frozen=True)
class Number:
    """A plain number: its exact value, and how many decimals it has (None: it is no decimal).

    With ``is_asked`` the problem asks for a rounding to that many places.
    """

    value: Fraction
    places: int | None = None
    is_asked: bool = field(default=False, compare=False)

    @cached_property
    def tree(self) -> Node:
        top = integer(self.value.numerator)
        bottom = integer(self.value.denominator)
        if self.value.denominator == 1:
            return top
        return Node("fraction", (top, bottom))

    def rounds(self, exact: Decimal) -> bool:
        """Return whether this is a correct and precise enough rounding of an exact value."""
        if self.places is None or (self.places < _MIN_PLACES and not self.is_asked):
            return False
        error = Decimal(5).scaleb(-self.places - 1)
        value = Decimal(self.value.numerator) / Decimal(self.value.denominator)
        is_precise = self.is_asked or error <= _MAX_ROUNDING * abs(exact)
        return is_precise and abs(exact - value) <= error


@dataclass(frozen=True)
class Expression:
    """Other mathematics: its LaTeX, and its tree, or None if only algebra can read it."""

    tree: Node | None = field(compare=False, repr=False)
    latex: str

    @classmethod
    def from_tree(cls, tree: Node) -> Expression:
        return cls(tree, serialize(tree))

    @cached_property
    def letters(self) -> frozenset[str]:
        letters = self.tree.letters if self.tree else ()
        return frozenset(letters) - {"i", "e"}


@dataclass(frozen=True)
class Quantity:
    """A number or an expression, and the words, the unit or the sign after it.

    Units are such as "km", "dollars", "%", "candy bars". With ``is_bare`` the unit is in plain
    letters, which may be a product.
    """

    head: Value
    unit: str
    is_bare: bool = False


@dataclass(frozen=True)
class Tuple:
    """Coordinates, an interval, or a ratio, by the brackets; ``(1,2)`` may be a point or interval.

    An interval that was an inequality has the inequality's letter.
    """

    parts: tuple[Value, ...]
    brackets: str = "()"
    letter: str = field(default="", compare=False)


@dataclass(frozen=True)
class Set:
    """A set, or a list without braces, joined by "," "or" "for" or "pm" (for ±)."""

    parts: tuple[Value, ...]
    joint: str = field(default="", compare=False)


@dataclass(frozen=True)
class Union:
    r"""Sets of numbers: their union, intersection (``\cap``) or difference (``\setminus``).

    The joint "," stands between inequalities: their intersection, or their union if that is empty.
    """

    parts: tuple[Value, ...]
    joint: str = r"\cup"


@dataclass(frozen=True)
class Relation:
    """Sides, the signs between them (= < <= != in), and the sides' LaTeX."""

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
    """The letters of a choice, in order, and the value after them, if there is one."""

    letters: str
    value: Value | None = None


@dataclass(frozen=True)
class Words:
    """An answer in words: lower case, without an article and without marks."""

    text: str


Value = Number | Expression | Quantity | Tuple | Set | Union | Relation | Matrix | Choice | Words


def get_parts(value: Value) -> tuple[Value, ...]:
    if isinstance(value, Tuple | Set | Union):
        return value.parts
    if isinstance(value, Relation):
        return value.sides
    if isinstance(value, Quantity):
        return (value.head,)
    if isinstance(value, Choice):
        if value.value:
            return (value.value,)
        return ()
    if isinstance(value, Matrix):
        return value.cells
    return ()


def round_as_written(value: Value) -> Value:
    """Let a rounding to the places that are written be precise enough."""
    if isinstance(value, Number):
        is_fraction = value.places is None and value.value.denominator != 1
        if is_fraction:
            return value
        return Number(value.value, value.places or 0, is_asked=True)
    if isinstance(value, Quantity):
        return replace(value, head=round_as_written(value.head))
    if isinstance(value, Tuple | Set | Union):
        return replace(value, parts=tuple(map(round_as_written, value.parts)))
    if isinstance(value, Relation):
        return replace(value, sides=tuple(map(round_as_written, value.sides)))
    return value


EMPTY = Set(())
# Brackets of 3:4, and of 3:30, which may be a time of day.
RATIO = ":"
CLOCK = ":00"
