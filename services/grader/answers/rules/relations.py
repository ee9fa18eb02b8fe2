"""Equations and inequalities: what a name stands for, and which of them say the same."""

from __future__ import annotations

import re

from services.grader.answers.question import Question
from services.grader.answers.values import (
    Expression,
    Number,
    Quantity,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    parts_of,
    rounded_as_written,
)
from services.grader.answers.verdict import Comparison, Verdict, all_of, any_of

_INDEX = re.compile(
    r"_(?:\w|\{[^{}]*\}|\{ ?\\(?:text|max|min) ?(?:\{[^{}]*\})? ?\})"
    r"|(?<=([a-zA-Z])) ?\((?:(?!\1)[^()])*\)"  # but w(5 - w) is a product
    r"|\\(?:text|overline|angle) ?"
)
_NAME = re.compile(
    r"(?!\s*-)(?!.*\b(?:not|no|never|wrong|false|incorrect|error|unlike)\b)(?=.*[a-zA-Z])"
    r"(?:[a-zA-Z{}'+*():, -]|\\(?:max|min|Pr|vec|hat|bar|(?:triangle|alpha|beta|gamma|delta"
    r"|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi"
    r"|omega|Delta|Sigma|Omega|ell)(?![a-zA-Z])))+"
)
_SIZE = re.compile(r"\| ?[A-Z] ?\||\[ ?[A-Z]{3,6} ?\]")  # of a set, of a figure
_EXPECTED = re.compile(r"(?:E|\\mathbb ?\{ ?E ?\}|\\text\{E\}) ?[\[(] ?[A-Za-z] ?[\])]")
_VALUE_OF_X = re.compile(r"[a-z]\([a-z]\)")
_OPERATOR = re.compile(r"[+*-]")


def approximations(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    r"""Of ``\sqrt{2} \approx 1.41`` the exact part counts, or else its correct rounding.

    A gold ``x \approx 1.41`` is its number, at its own precision.
    """
    if isinstance(gold, Relation) and r"\approx" in gold.signs:
        exact, rounded = _around_approx(gold, by.question)
        rounded = rounded_as_written(rounded)
        equal = any_of(by.same(each, answer).equal for each in (exact, rounded) if each)
        if isinstance(answer, Relation) and r"\approx" in answer.signs:
            about = by.same(gold.sides[-1], rounded_as_written(answer.sides[-1])).equal
            equal = all_of((equal, about))
        return Verdict(equal, "approximation")
    if isinstance(answer, Relation) and r"\approx" in answer.signs:
        exact, rounded = _around_approx(answer, by.question)
        if exact is None:
            is_exact = isinstance(gold, Number) and not (gold.places or gold.is_asked)
            return None if is_exact and not by.question.asks_rounding else by.same(gold, rounded)
        verdict = by.same(gold, exact)
        return verdict if verdict.equal else _as_asked(gold, exact, rounded, by) or verdict
    return None


def _around_approx(value: Relation, question: Question) -> tuple[Value | None, Value]:
    r"""What is exact in ``x = \ln 3 \approx 1.1``, ``x = \ln 3``, and ``x = 1.1``.

    What only names the number, or cannot be read, is nothing exact.
    """
    at, last = value.signs.index(r"\approx"), value.sides[-1]
    side, text = value.sides[at], value.texts[at]
    is_named = at == 0 and bool(text) and _is_name(side, text, question)
    rounded = Relation((side, last), ("=",), (text, value.texts[-1])) if is_named else last
    if is_named or not (isinstance(side, Number | Quantity) or _has_tree(side)):
        return None, rounded
    exact = Relation(value.sides[: at + 1], value.signs[:at], value.texts[: at + 1])
    return exact if at else side, last


def _has_tree(value: Value) -> bool:
    parts = parts_of(value)
    return all(map(_has_tree, parts)) if parts else getattr(value, "tree", None) is not None


def _as_asked(gold: Value, exact: Value, rounded: Value, by: Comparison) -> Verdict | None:
    """By a gold that is a rounding to as many places: 7.049 is not also 7."""
    exact = exact.sides[-1] if isinstance(exact, Relation) else exact
    if not (isinstance(gold, Number) and isinstance(rounded, Number)):
        return None
    if gold != rounded or (gold.places is None and gold.value.denominator != 1):
        return None  # 1/3 is no rounding of 1/2
    if isinstance(exact, Number) and exact.places and not gold.places:
        return None
    return by.same(exact, rounded_as_written(gold))


def relations(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """``x = 5`` is 5, and an equation is any multiple of itself."""
    if not (isinstance(gold, Relation) or isinstance(answer, Relation)):
        return None
    golds, name = _links(gold, by.question)
    answers, other = _links(answer, by.question)
    if name and isinstance(answer, Relation) and len(set(answer.sides)) == 1:
        return Verdict(False, "equation")  # 1 = 1 is no solution
    if golds and answers and (None in (name, other) or _is_same_name(name, other)):
        return Verdict(all_of(by.same(golds[-1], link).equal for link in answers), "equation")
    if not (isinstance(gold, Relation) and isinstance(answer, Relation)):
        return _as_region(gold, answer, by)
    is_solved = golds and _is_constant(golds[-1]) and not (name and _OPERATOR.search(name))
    if is_solved and not (name and _is_line(answer)):
        return Verdict(False, "equation")  # an equation that is not solved
    sides = (*gold.sides, *answer.sides)
    are_expressions = all(isinstance(side, Number | Expression) for side in sides)
    return Verdict(by.by_algebra(gold, answer) if are_expressions else False, "algebra")


def _as_region(gold: Value, answer: Value, by: Comparison) -> Verdict:
    """An inequality beside what is not written as one, such as ``|x| > 1`` beside intervals."""
    relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
    signs = relation.signs if isinstance(relation, Relation) else ("=",)
    if not isinstance(other, Union | Tuple) or "=" in signs:
        return Verdict(False, "equation")
    return Verdict(by.by_algebra(gold, answer), "algebra")


def _links(value: Value, question: Question) -> tuple[tuple[Value, ...] | None, str | None]:
    """What stands behind the name in ``x = 4/2 = 2``, and the name; without a name, None.

    An answer that is no relation is one link, an equation that is not solved has None. What the
    problem asks for is a name of it, be it ``\\sin x``.
    """
    if not isinstance(value, Relation):
        return (value,), None
    if value.signs == (r"\in",) and _is_name(value.sides[0], value.texts[0], question):
        return value.sides[1:], value.texts[0]
    if set(value.signs) != {"="}:
        return None, None
    sides, texts = value.sides, value.texts
    if not _is_name(sides[0], texts[0], question):
        sides, texts = sides[::-1], texts[::-1]
    if _is_name(sides[0], texts[0], question):
        return sides[1:], texts[0].replace(" ", "")
    return (value.sides, None) if all(map(_is_constant, value.sides)) else (None, None)


def _is_constant(value: Value) -> bool:
    """A number, be it one to be computed, and perhaps its unit; or several of them."""
    if isinstance(value, Set):
        return all(map(_is_constant, value.parts))
    value = value.head if isinstance(value, Quantity) else value
    if isinstance(value, Expression):
        return value.tree is not None and not value.letters
    return isinstance(value, Number)


def _is_name(side: Value, text: str, question: Question) -> bool:
    r"""``x``, ``f(3)``, ``a_1``, ``\angle ABC`` or ``m+n``: no digits but in an index."""
    if _is_constant(side) and text not in ("e", "i"):
        return False
    if _EXPECTED.fullmatch(text):
        return not question.text or any(map(question.counts, ("expected", "expectation", "mean")))
    bare = _INDEX.sub("", text)
    if (_NAME.fullmatch(bare) or _SIZE.fullmatch(text)) and (
        question.names(bare) or question.mentions(text)
    ):
        return True
    return question.asks_for(text)


def _is_same_name(name: str | None, other: str | None) -> bool:
    """``y`` is ``f(x)`` too."""
    names = {name, other}
    return len(names) == 1 or ("y" in names and any(_VALUE_OF_X.fullmatch(n or "") for n in names))


def _is_line(relation: Relation) -> bool:
    """``x + 1 = 0`` says no less than ``x = -1``; any other equation is not solved."""
    rest = [s for s in relation.sides if not (isinstance(s, Number) and s.value == 0)]
    tree = rest[0].tree if len(rest) == 1 and isinstance(rest[0], Expression) else None
    if relation.signs != ("=",) or tree is None or tree.kind not in ("+", "-"):
        return False
    return tree.parts[0].kind == "letter" and all(n.kind != "letter" for n in tree.parts[1].walk())
