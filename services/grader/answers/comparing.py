r"""Whether two answers are the same: by what they are made of, down to single expressions.

Most pairs are settled here, exactly and in microseconds. Expressions that are not read here are put
to a `Leaf`: in the service that knows nothing, in the pool it is computer algebra.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from services.grader.answers.asking import UNKNOWN, Question
from services.grader.answers.assignments import as_tuples
from services.grader.answers.congruences import same_class
from services.grader.answers.domains import without_domain
from services.grader.answers.exact import Exact, TooHard
from services.grader.answers.formulas import formula_or_none, is_number
from services.grader.answers.members import members, vector
from services.grader.answers.numerals import (
    Number,
    is_rounding,
    numbers_agree,
    parse_number,
    same_numerals,
)
from services.grader.answers.polynomials import Formula
from services.grader.answers.quantities import PERCENT, Quantity, factors, split_quantity
from services.grader.answers.ratios import same_ratio
from services.grader.answers.shapes import OF_SETS, Kind, Shape, as_region, shape_of
from services.grader.answers.sides import (
    are_regions,
    is_line,
    links,
    same_relation,
    sides_are_expressions,
    with_letter_of,
)
from services.grader.answers.symbols import same_symbol
from services.grader.answers.thousands import joined, may_be_list
from services.grader.answers.times import same_time
from services.grader.answers.wording import (
    Choice,
    is_nothing,
    parse_choice,
    parse_choices,
    texts,
    without_text,
    words,
)
from services.grader.answers.work import spend
from services.grader.latex import has_ellipsis, squeezed, tidy, unwrapped

MAX_MEMBERS = 64
_MAX_DEPTH = 4
_STEPS_OF_A_PAIR = 30
_GOLDS = 4096
_NOTHING = (r"\emptyset", r"\{\}")
_INFINITE = re.compile(r"[+-]? ?\\infty")

# Two tidied expressions (gold, answer): equal or not, or None if that cannot be said.
Leaf = Callable[[str, str], bool | None]


@dataclass(frozen=True)
class Verdict:
    """Whether two answers are equal, None if that is not known, and by which rule."""

    equal: bool | None
    path: str


def nothing_known(gold: str, answer: str) -> None:
    """The leaf of the service, which has no computer algebra."""


def compare_answers(
    gold: str, answer: str, leaf: Leaf = nothing_known, question: Question = UNKNOWN
) -> Verdict:
    """Compare two answers as they were written, boxed or not.

    If the question is known, what it asks for may be named, and 12% may be 12.
    """
    if gold == answer:
        return Verdict(True, "exact")
    comparison, expected, spelled = _Comparison(leaf, question), _gold_text(gold), _spelled(answer)
    number = joined(spelled)
    plain = without_domain(expected, number)
    verdict = comparison.compare(expected, plain, 0)
    if verdict.equal is False and number != spelled and _is_list(expected):
        return comparison.compare(expected, spelled, 0)  # beside a list, 100,200 may be one
    if verdict.equal is False and may_be_list(gold) and plain[:1].isdigit() and _is_list(plain):
        return comparison.compare(gold, plain, 0)
    return verdict


def read_text(answer: str) -> str:
    """Tidied LaTeX of what is inside all boxes, without commas of thousands."""
    return joined(_spelled(answer))


def _spelled(answer: str) -> str:
    return without_text(tidy(unwrapped(answer) if "box" in answer else answer))


def _is_list(latex: str) -> bool:
    shape = _gold_shape(latex)
    return shape is not None and shape.kind is Kind.SET and len(shape.parts) > 1


@dataclass(frozen=True)
class _Comparison:
    leaf: Leaf
    question: Question

    def compare(self, gold: str, answer: str, depth: int) -> Verdict:
        """By the first rule that fits."""
        spend(_STEPS_OF_A_PAIR)
        if gold == answer:
            return Verdict(True, "exact")
        if gold.isdecimal() and answer.isdecimal() and (gold + answer).isascii():
            return Verdict(gold.lstrip("0") == answer.lstrip("0"), "number")
        if (number := _gold_number(gold)) and (other := parse_number(answer)):
            return Verdict(self._numbers(number, other), "number")
        if squeezed(gold) == squeezed(answer):
            return Verdict(True, "exact")
        if has_ellipsis(gold) or has_ellipsis(answer):
            return Verdict(False, "ellipsis")
        if depth > _MAX_DEPTH:
            return Verdict(None, "depth")
        if r"\approx" in answer:
            return self._about(gold, answer, depth)
        return (
            _verdict(same_numerals(gold, answer), "numeral")
            or _verdict(same_time(gold, answer, self.question), "time")
            or _verdict(same_ratio(gold, answer, self.question), "ratio")
            or _verdict(same_class(gold, answer), "congruence")
            or _verdict(same_symbol(gold, answer), "symbol")
            or self._choices(gold, answer, depth)
            or _words(gold, answer, self.question)
            or self._shapes(gold, answer, depth)
        )

    def _numbers(self, gold: Number, answer: Number) -> bool:
        is_its_number = answer.is_percentage and 100 * answer.value == gold.value
        return numbers_agree(gold, answer) or (is_its_number and self.question.asks_percent)

    def _about(self, gold: str, answer: str, depth: int) -> Verdict:
        r"""Of ``\sqrt{2} \approx 1.41`` the exact part counts, or else its correct rounding."""
        exact, _, rounded = (part.strip() for part in answer.partition(r"\approx"))
        verdict = self.compare(gold, exact, depth + 1)
        if verdict.equal is False and _rounds_as_asked(gold, exact, rounded):
            return self.compare(gold, rounded, depth + 1)
        return verdict

    def _choices(self, gold: str, answer: str, depth: int) -> Verdict | None:
        """``(B) 12`` is B, and for a gold 12 its value counts."""
        choice = _gold_choice(gold)
        if choice is None:
            if (choices := _gold_choices(gold)) and choices == parse_choices(answer):
                return Verdict(True, "choice")
            labelled = _labelled(answer)
            return labelled and self.compare(gold, labelled.rest, depth + 1)
        other = parse_choice(answer, is_chosen=True)
        if other is None:
            is_letter = len(answer) == 1 and answer.upper() == choice.letter
            if is_letter or not choice.rest:
                return Verdict(is_letter, "choice")
            return self.compare(choice.rest, answer, depth + 1)
        if other.letter != choice.letter or not (other.rest and choice.rest):
            return Verdict(other.letter == choice.letter, "choice")
        return self.compare(choice.rest, other.rest, depth + 1)

    def _shapes(self, gold: str, answer: str, depth: int) -> Verdict:
        shape, other = _gold_shape(gold), shape_of(answer)
        if shape is None or other is None or len(shape.parts + other.parts) > MAX_MEMBERS:
            return Verdict(self.leaf(gold, answer), "algebra")
        shape, other = as_tuples(shape, other, (gold, answer), self.question)
        kinds = {shape.kind, other.kind}
        if kinds == {Kind.SCALAR} and not OF_SETS.search(gold + answer):
            return self._scalars(gold, answer)
        if Kind.CONDITIONS in kinds:
            alike = shape.kind is other.kind
            equal = alike and self._without_order(shape.parts, other.parts, depth)
            return Verdict(equal, "conditions")
        if Kind.RELATION in kinds:
            equal = self._relations(shape, other, (gold, answer), depth)
            return Verdict(equal, "equation")
        if Kind.SET in kinds:
            both = members(shape, gold), members(other, answer)
            return Verdict(self._without_order(*both, depth), "set")
        if Kind.UNION in kinds or OF_SETS.search(gold + answer):
            return self._unions(shape, other, (gold, answer), depth)
        return Verdict(self._in_order(shape, other, depth), str(shape.kind))

    def _unions(self, gold: Shape, answer: Shape, both: tuple[str, str], depth: int) -> Verdict:
        """The same pieces make the same union; so may others, which overlap or meet."""
        if gold.kind is answer.kind and self._without_order(gold.parts, answer.parts, depth):
            return Verdict(True, "union")
        return Verdict(self._as_regions(both), "algebra")

    def _as_regions(self, both: tuple[str, str]) -> bool | None:
        return self.leaf(as_region(both[0]), as_region(both[1]))

    def _without_order(
        self, golds: tuple[str, ...], answers: tuple[str, ...], depth: int
    ) -> bool | None:
        """Each has its like on the other side."""
        written, spelled = {squeezed(g) for g in golds}, {squeezed(a) for a in answers}
        alone = [g for g in golds if squeezed(g) not in spelled]
        strange = [a for a in answers if squeezed(a) not in written]
        rows = [[self.compare(g, a, depth + 1).equal for a in answers] for g in alone]
        columns = [[self.compare(g, a, depth + 1).equal for g in golds] for a in strange]
        return _all(_any(line) for line in (*rows, *columns))

    def _in_order(self, gold: Shape, answer: Shape, depth: int) -> bool | None:
        if gold.kind is not answer.kind:
            gold, answer = vector(gold), vector(answer)
        same_frame = (gold.kind, gold.marks) == (answer.kind, answer.marks)
        if not same_frame or len(gold.parts) != len(answer.parts):
            return False
        pairs = zip(gold.parts, answer.parts, strict=True)
        return _all(self.compare(g, a, depth + 1).equal for g, a in pairs)

    def _relations(
        self, gold: Shape, answer: Shape, both: tuple[str, str], depth: int
    ) -> bool | None:
        """``x = 5`` is 5, and an equation is any multiple of itself."""
        golds, name = links(gold, both[0])
        answers, other = links(answer, both[1], self.question)
        if answers and (renamed := with_letter_of(name, other, answers)) != answers:
            answers, other = renamed, name
        if golds and answers and (name == other or None in (name, other)):
            return _all(self.compare(golds[-1], link, depth + 1).equal for link in answers)
        if "and" in (gold.marks, answer.marks):
            return self._as_regions(both)
        if gold.kind is not answer.kind:
            return self._as_regions(both) if are_regions(gold, answer, both) else False
        if golds and is_number(golds[-1]) and not (name and is_line(answer)):
            return False  # an equation that is not solved
        try:
            return same_relation(gold, answer)
        except TooHard:
            return self.leaf(*both) if sides_are_expressions(gold, answer) else False

    def _scalars(self, gold: str, answer: str) -> Verdict:
        quantity, other = _gold_quantity(gold), split_quantity(answer, question=self.question)
        if _INFINITE.fullmatch(quantity.head) or _INFINITE.fullmatch(other.head):
            same = squeezed(quantity.head).lstrip("+") == squeezed(other.head).lstrip("+")
            return Verdict(same, "infinity")
        if r"\text" in other.head and texts(quantity.head) != texts(other.head):
            return Verdict(False, "text")
        scales = tuple(factors(quantity, other, self.question))
        if not scales:
            return Verdict(False, "unit")
        return self._expressions(quantity, other, scales)

    def _expressions(self, gold: Quantity, answer: Quantity, scales: tuple[Exact, ...]) -> Verdict:
        value, other = _formula(gold.head), _formula(answer.head)
        if value is None or other is None:
            return self._by_leaf(gold.head, answer.head, scales)
        try:
            equal = any(value.equals(other * Formula.of(scale)) for scale in scales)
        except TooHard:
            return self._by_leaf(gold.head, answer.head, scales)
        path = "exact_number" if value.number and other.number else "formula"
        return Verdict(equal or _is_rounded(gold, value, answer, other), path)

    def _by_leaf(self, gold: str, answer: str, scales: tuple[Exact, ...]) -> Verdict:
        verdicts = (self.leaf(gold, _scaled(answer, scale)) for scale in scales)
        return Verdict(_any(verdicts), "algebra")


def _scaled(latex: str, scale: Exact) -> str:
    """An expression times a number of one term without a root."""
    [((_, power), value)] = scale.terms.items()
    if value == 1 and not power:
        return latex
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}} \pi^{{{power}}} ({latex})"


def _verdict(equal: bool | None, path: str) -> Verdict | None:
    return None if equal is None else Verdict(equal, path)


def _words(gold: str, answer: str, question: Question) -> Verdict | None:
    said, other = _gold_words(gold), words(answer)
    if said is None and other is None:
        return None
    if _gold_quantity(gold).measure or split_quantity(answer, question=question).measure:
        return None
    if said and other is None and gold[:1].isdigit() and ":" not in gold:
        return None  # a quantity whose words are not known
    if gold in _NOTHING or (said and is_nothing(said)):
        return Verdict(answer in _NOTHING or bool(other and is_nothing(other)), "words")
    return Verdict(said == (other or answer.strip("() ").casefold()), "words")


def _labelled(answer: str) -> Choice | None:
    if answer[:1] not in ("(", "\\", *"ABCDEFGHIJ["):
        return None
    choice = parse_choice(answer)
    return choice if choice and choice.rest else None


def _rounds_as_asked(gold: str, exact: str, rounded: str) -> bool:
    """Whether the gold is a rounding, and this one to as many places: 7.049 is not also 7."""
    formula, decimal, asked = _formula(exact), parse_number(rounded), parse_number(gold)
    value = formula.approximation if formula else None
    if value is None or decimal is None or asked is None or asked.places != decimal.places:
        return False
    return bool(decimal.places or "." not in exact) and is_rounding(decimal, value, least_places=0)


def _is_rounded(gold: Quantity, value: Formula, answer: Quantity, other: Formula) -> bool:
    measures = {gold.measure, answer.measure}
    if len(measures) > 1 and (PERCENT in measures or all(measures)):
        return False
    for written, exact in ((answer.head, value), (gold.head, other)):
        decimal = parse_number(written)
        if decimal and decimal.places and (number := exact.approximation) is not None:
            return is_rounding(decimal, number)
    return False


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is, else None if one is unknown."""
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    return True if True in found else None if None in found else False


# A gold answer comes again with every response to its task.
_gold_text = lru_cache(_GOLDS)(read_text)
_gold_number = lru_cache(_GOLDS)(parse_number)
_gold_words = lru_cache(_GOLDS)(words)
_gold_choice = lru_cache(_GOLDS)(parse_choice)
_gold_choices = lru_cache(_GOLDS)(parse_choices)
_gold_shape = lru_cache(_GOLDS)(shape_of)
_formula = lru_cache(_GOLDS)(formula_or_none)  # and a member once per comparison


@lru_cache(_GOLDS)
def _gold_quantity(gold: str) -> Quantity:
    return split_quantity(gold, trusted=True)
