"""Equations, approximations and assignments of names to values."""

from __future__ import annotations

import re
from itertools import permutations
from typing import TypeGuard

from answers.comparison import Comparison, Verdict, conjunction, disjunction
from answers.problem import Problem
from answers.scalars import get_letter, get_tree
from answers.values import (
    Expression,
    Number,
    Quantity,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    get_parts,
    round_as_written,
)

_APPROXIMATELY = r"\approx"
# An index, an argument, or a mark of a name. In w(5 - w) the brackets hold a factor.
_INDEX = re.compile(
    r"""
    _ (?: \w | \{ [^{}]* \} | \{\ ? \\(?:text|max|min) \ ? (?: \{[^{}]*\} )? \ ?\} )
    | (?<=([a-zA-Z])) \ ?\( (?: (?!\1) [^()] )* \)
    | \\(?:text|overline|angle)\ ?
    """,
    re.VERBOSE,
)
_NAME = re.compile(
    r"""
    (?! \s*- ) (?! .* \b(?:not|no|never|wrong|false|incorrect|error|unlike)\b ) (?= .*[a-zA-Z] )
    (?:
      [a-zA-Z{}'+*():,\ -]
      | \\(?:
          max|min|Pr|vec|hat|bar
          |(?:
            triangle|alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi
            |rho|sigma|tau|phi|varphi|chi|psi|omega|Delta|Sigma|Omega|ell
          ) (?![a-zA-Z])
        )
    )+
    """,
    re.VERBOSE,
)
# The size of a set, a segment or a figure.
_SIZE = re.compile(r"\| ?[A-Z]{1,2} ?\||\[ ?[A-Z]{3,6} ?\]")
_SEGMENTS = re.compile(r"\\frac ?\{ ?([A-Z]{2}) ?\} ?\{ ?([A-Z]{2}) ?\}")
_EXPECTATION = re.compile(r"(?:E|\\mathbb ?\{ ?E ?\}|\\text\{E\}) ?[\[(] ?[A-Za-z] ?[\])]")
_FUNCTION = re.compile(r"[a-z]\([a-z]\)")
_OPERATOR = re.compile(r"[+*-]")
_MAX_NAMES = 6
# The problem is searched for all orders of this number of names.
_MAX_PERMUTED = 3


def compare_approximations(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    r"""Of ``\sqrt{2} \approx 1.41`` the exact part counts, or else the rounding."""
    if _is_approximation(gold):
        exact, rounded = _split_approximation(gold, comparison.problem)
        sides = filter(None, (exact, round_as_written(rounded)))
        equal = disjunction([comparison.are_equal(side, answer) for side in sides])
        if _is_approximation(answer):
            rounding = round_as_written(answer.sides[-1])
            same_rounding = comparison.are_equal(gold.sides[-1], rounding)
            equal = conjunction((equal, same_rounding))
        return Verdict(equal, "approximation")
    if not _is_approximation(answer):
        return None
    exact, rounded = _split_approximation(answer, comparison.problem)
    if exact is None:
        is_exact = isinstance(gold, Number) and not (gold.places or gold.is_asked)
        if is_exact and not comparison.problem.asks("rounding"):
            return None
        return comparison.compare(gold, rounded)
    if _is_rounded_wrongly(exact, rounded, comparison):
        return Verdict(False, "approximation")
    verdict = comparison.compare(gold, exact)
    if verdict.equal:
        return verdict
    return _compare_rounding(gold, exact, rounded, comparison) or verdict


def _is_approximation(value: Value) -> TypeGuard[Relation]:
    return isinstance(value, Relation) and _APPROXIMATELY in value.signs


def _split_approximation(value: Relation, problem: Problem) -> tuple[Value | None, Value]:
    r"""Return the exact part of ``x = \ln 3 \approx 1.1`` (no name is exact), and the rounding."""
    at = value.signs.index(_APPROXIMATELY)
    last = value.sides[-1]
    side = value.sides[at]
    text = value.texts[at]
    if at == 0 and text and _is_name(side, text, problem):
        texts = (text, value.texts[-1])
        return None, Relation((side, last), ("=",), texts)
    if not isinstance(side, Number | Quantity) and not has_tree(side):
        return None, last
    if at == 0:
        return side, last
    end = at + 1
    exact = Relation(value.sides[:end], value.signs[:at], value.texts[:end])
    return exact, last


def _last_side(value: Value) -> Value:
    if isinstance(value, Relation):
        return value.sides[-1]
    return value


def _is_rounded_wrongly(exact: Value, rounded: Value, comparison: Comparison) -> bool:
    r"""Return whether a plain number has another rounding, as in ``42 \approx 43``."""
    number = _last_side(exact)
    if not isinstance(number, Number) or not isinstance(rounded, Number):
        return False
    is_plain = number.places is not None or number.value.denominator == 1
    return is_plain and comparison.are_equal(number, round_as_written(rounded)) is False


def has_tree(value: Value) -> bool:
    parts = get_parts(value)
    if parts:
        return all(map(has_tree, parts))
    return get_tree(value) is not None


def _compare_rounding(
    gold: Value, exact: Value, rounded: Value, comparison: Comparison
) -> Verdict | None:
    """Compare with a gold answer that is a rounding to as many places: 7.049 is not also 7."""
    exact = _last_side(exact)
    if not isinstance(gold, Number) or gold != rounded:
        return None
    is_fraction = gold.places is None and gold.value.denominator != 1  # 1/3 rounds no 1/2
    has_more_places = isinstance(exact, Number) and exact.places and not gold.places
    if is_fraction or has_more_places:
        return None
    return comparison.compare(exact, round_as_written(gold))


def compare_relations(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """``x = 5`` is 5, and an equation is any multiple of itself."""
    if not isinstance(gold, Relation) and not isinstance(answer, Relation):
        return None
    golds, name = _split_name(gold, comparison.problem)
    links, other_name = _split_name(answer, comparison.problem)
    says_nothing = isinstance(answer, Relation) and len(set(answer.sides)) == 1
    if name and says_nothing:
        return Verdict(False, "equation")  # 1 = 1 is no solution
    if golds and links and _are_names_alike(name, other_name):
        verdicts = [comparison.are_equal(golds[-1], link) for link in links]
        return Verdict(conjunction(verdicts), "equation")
    if not isinstance(gold, Relation) or not isinstance(answer, Relation):
        return _compare_region(gold, answer, comparison)
    has_value = bool(golds) and _is_constant(golds[-1])
    is_solved = has_value and not (name and _OPERATOR.search(name))
    if is_solved and not (name and _is_line(answer)):
        return Verdict(False, "equation")  # an equation that is not solved
    sides = (*gold.sides, *answer.sides)
    if not all(isinstance(side, Number | Expression) for side in sides):
        return Verdict(False, "algebra")
    return comparison.ask_algebra(gold, answer)


def _are_names_alike(name: str | None, other: str | None) -> bool:
    """Return whether names are the same, one is missing, or they are y and a function."""
    names = {name, other}
    if None in names or len(names) == 1:
        return True
    has_function = any(map(_FUNCTION.fullmatch, filter(None, names)))
    return has_function and "y" in names


def _compare_region(gold: Value, answer: Value, comparison: Comparison) -> Verdict:
    """Compare a relation with an interval or a union."""
    are_regions = isinstance(gold, Union | Tuple) or isinstance(answer, Union | Tuple)
    is_equation = any(
        isinstance(value, Relation) and "=" in value.signs for value in (gold, answer)
    )
    if are_regions and not is_equation:
        return comparison.ask_algebra(gold, answer)
    return Verdict(False, "equation")


def _split_name(value: Value, problem: Problem) -> tuple[tuple[Value, ...] | None, str | None]:
    """Return the sides after the name in ``x = 4/2 = 2``, and the name.

    There are no sides if the equation is not solved, and no name if it has none.
    """
    if not isinstance(value, Relation):
        return (value,), None
    sides = value.sides
    texts = value.texts
    name = texts[0]
    is_named = _is_name(sides[0], name, problem)
    if is_named and value.signs == (r"\in",):
        return sides[1:], name
    if set(value.signs) != {"="}:
        return None, None
    if is_named:
        return sides[1:], name.replace(" ", "")
    name = texts[-1]
    if _is_name(sides[-1], name, problem):
        return sides[-2::-1], name.replace(" ", "")
    return sides if all(map(_is_constant, sides)) else None, None


def _is_constant(value: Value) -> bool:
    if isinstance(value, Set):
        return all(map(_is_constant, value.parts))
    if isinstance(value, Quantity):
        value = value.head
    if isinstance(value, Expression):
        return value.tree is not None and not value.letters
    return isinstance(value, Number)


def _is_name(side: Value, text: str, problem: Problem) -> bool:
    r"""Return whether a side is a name: ``x``, ``f(3)``, ``a_1``, ``\angle ABC`` or ``m+n``.

    A name has digits only in an index, and its words are the problem's.
    """
    if _is_constant(side) and text not in ("e", "i"):
        return False
    if _EXPECTATION.fullmatch(text):
        words = ("expected", "expectation", "mean")
        return not problem.text or any(map(problem.counts, words))
    if ratio := _SEGMENTS.fullmatch(text):
        spellings = (text, "/".join(ratio.groups()))
        return not problem.text or any(map(problem.mentions, spellings))
    bare = _INDEX.sub("", text)
    may_be_name = _NAME.fullmatch(bare) or _SIZE.fullmatch(text)
    if may_be_name and (problem.names(bare) or problem.mentions(text)):
        return True
    return problem.requests(text)


def _is_line(relation: Relation) -> bool:
    """Return whether this is like ``x + 1 = 0``, which says as much as ``x = -1``."""
    sides = [side for side in relation.sides if not _is_zero(side)]
    if relation.signs != ("=",) or len(sides) != 1:
        return False
    tree = get_tree(sides[0])
    if tree is None or tree.kind not in ("+", "-"):
        return False
    letter, constant = tree.parts
    return letter.kind == "letter" and not constant.letters


def _is_zero(value: Value) -> bool:
    return isinstance(value, Number) and value.value == 0


def compare_assignments(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """Assignments have their names in one order if the other answer is a tuple."""
    first = _to_assignments(gold)
    second = _to_assignments(answer)
    if _is_point(first) or _is_point(second):
        first = to_tuple(first, gold, comparison.problem)
        second = to_tuple(second, answer, comparison.problem)
    if (first, second) == (gold, answer):
        return None
    return comparison.compare(first, second)


def _is_point(value: Value) -> bool:
    return isinstance(value, Tuple) and value.brackets == "()"


def _to_assignments(value: Value) -> Value:
    """Turn ``(y,x) = (1,2)`` and ``x=y=3`` into a list of assignments."""
    if not isinstance(value, Relation) or set(value.signs) != {"="}:
        return value
    *names, last = value.sides
    values = (last,) * len(names)
    if len(names) == 1:
        if not all(map(_is_point, value.sides)):
            return value
        names, values = map(get_parts, value.sides)
    if len(names) != len(values) or not all(map(get_letter, names)):
        return value
    equations = list[Relation]()
    for name, value in zip(names, values, strict=True):
        texts = (get_letter(name), "")
        equations.append(Relation((name, value), ("=",), texts))
    return Set(tuple(equations), ",")


def to_tuple(value: Value, answer: Value, problem: Problem) -> Value:
    """Turn a list of assignments into the tuple of their values."""
    if not isinstance(value, Set) or value.joint != ",":
        return value
    if not 1 < len(value.parts) <= _MAX_NAMES:
        return value
    values = dict[str, Value]()
    for part in value.parts:
        if isinstance(part, Relation) and part.signs == ("=",):
            name = get_letter(part.sides[0])
            if name:
                values[name] = part.sides[1]
    if len(values) != len(value.parts):
        return value
    order = _order_names(list(values), problem, in_brackets=isinstance(answer, Relation))
    return Tuple(tuple(values[name] for name in order))


def _order_names(names: list[str], problem: Problem, *, in_brackets: bool) -> list[str]:
    """Order names as in the problem's brackets, or by the alphabet.

    ``(m,b)`` in brackets keeps its order, since the letters are far apart; ``(y,x)`` does not.
    """
    if len(names) <= _MAX_PERMUTED:
        for order in permutations(names):
            if problem.mentions(f"({','.join(order)})"):
                return list(order)
    letters = sorted(ord(name[0]) for name in names)
    distance = letters[-1] - letters[0]
    is_far = distance >= max(len(names), _MAX_PERMUTED)
    has_commands = any("\\" in name for name in names)
    keeps_order = has_commands or (in_brackets and is_far)
    return names if keeps_order else sorted(names)
