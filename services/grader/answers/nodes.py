"""The nodes of an expression's tree, and how numbers and factors become nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction


class Unreadable(ValueError):
    """Not in the grammar; the text says why."""


@dataclass(frozen=True)
class Node:
    """An operation and its operands; a number, with its decimal places; or a letter.

    Kinds: number letter pi infinity + - * / ^ plusminus negative fraction root absolute factorial
    double_factorial binomial floor ceiling degree function grouped; and
    where mathematicians would disagree, mixed (``2\\frac12``), slash (``a/bc``) and percent.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    number: Fraction = Fraction(0)
    places: int = 0
    letter: str = ""

    def walk(self) -> Iterator[Node]:
        """This node and all below."""
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.parts

    @property
    def is_literal(self) -> bool:
        """A number as it is written, perhaps with a sign, a percent sign or a degree sign."""
        if self.kind in {"negative", "percent", "degree"}:
            return self.parts[0].is_literal
        return self.kind == "number"


def rebuilt(tree: Node, change: Callable[[Node], Node]) -> Node:
    """A tree in which each node, after its parts, has been changed; of any depth."""
    built: dict[int, Node] = {}
    for node in reversed(list(tree.walk())):
        parts = tuple(built[id(part)] for part in node.parts)
        built[id(node)] = change(replace(node, parts=parts) if parts else node)
    return built[id(tree)]


def written(tree: Node) -> str:
    """A tree as text: equal texts, equal trees."""
    pieces, waiting = list[str](), list[Node | str]([tree])
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            pieces.append(node)
            continue
        pieces.append(f"({node.kind} {node.letter} {node.number}")
        waiting += [")", *reversed(node.parts)]
    return "".join(pieces)


def integer(value: int) -> Node:
    """A whole number, as if it were written."""
    return Node("number", number=Fraction(value))


def repeating(text: str) -> Node:
    r"""The exact value of ``0.1\overline{6}``."""
    before, _, again = text.partition("\\")
    again = "".join(char for char in again if char.isdigit())
    start = Fraction(before if before.strip(".") else "0")
    places = len(before.partition(".")[2])
    period = Fraction(int(again), (10 ** len(again) - 1) * 10**places)
    return Node("number", number=start + period)


def times(factors: list[Node]) -> Node:
    """Factors side by side; an integer before a fraction of integers may be a mixed number."""
    total, *rest = factors
    for factor in rest:
        total = Node("mixed" if _is_mixed(total, factor) else "*", (total, factor))
    return total


def _is_mixed(whole: Node, factor: Node) -> bool:
    numbers = [node.number for node in (whole, *factor.parts) if node.kind == "number"]
    if factor.kind != "fraction" or len(numbers) != 3 or any(n.denominator != 1 for n in numbers):
        return False
    return numbers[0] > 0 and 0 < numbers[1] < numbers[2]
