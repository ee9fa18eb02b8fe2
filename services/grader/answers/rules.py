"""Whether two values are the same: rules, each for the kinds of values that it knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import permutations

from services.grader.answers.estimates import are_different
from services.grader.answers.nodes import Node, integer, written
from services.grader.answers.question import MAX_CHARS, Question
from services.grader.answers.read import letter_of
from services.grader.answers.tokens import vocabulary
from services.grader.answers.units import DEGREE, PERCENT, RADIAN, THINGS, Measure, measure_of
from services.grader.answers.values import (
    CLOCK,
    RATIO,
    Choice,
    Expression,
    Matrix,
    Number,
    Numeral,
    Quantity,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    Words,
    parts_of,
    rounded_as_written,
)

_MAX_PAIRS = 130  # of parts, in the event loop
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
_MAX_NAMES = 6
_MAX_LOOKED_FOR = 3
_MAX_MEMBERS = 64
_CHANGES_VALUE = re.compile(
    r"\b(?:squared|cubed|factorial|dozen|score|gross|base|below|above|under|(?<!left )over|minus"
    r"|plus|negative|half|halves|third|quarter|[b-z]|pi|or|and|to|not?|less|than|least|most|about"
    r"|mod|root|square(?! [a-z])|cube(?! [a-z])|pair|if|when|twice|double|triple|wrong|false"
    r"|incorrect|never|unless|except|versus|nor|but|instead|is|are|maybe|i e"
    r"|one(?!-)|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|hundred|thousand"
    r"|[a-z]+illion|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|th"
    r"|[a-z]*(?:four|fif|six|seven|eigh|nin|ten|elf|hundred|sand|lion|teen|tie)th"
    r"|lakh|crore|grand(?! [a-z])|couple|short(?!s| [a-z])|loss|reciprocal|inverse(?!s)|remainder"
    r"|impossible|unknown(?!s)|younger|fewer|lower|another|[ap]\.?m"
    r"|january|february|march|april|may|june|july|august|september|october|november|december)s?\b",
    re.IGNORECASE,
)
_PLURAL = re.compile(r"\b(?:squares|cubes|pairs|quarters|roots|halves|thirds)\b")
_SAYS_NOTHING = frozenset(
    vocabulary(
        "a additional all altogether an apart at away day days deep different each every extra "
        "far for her high his in left long more now of old on over per remaining tall the their "
        "total unique way ways wide year years"
    )
)
_UNIT_ASKED = re.compile(
    r"(?:how many|number of|in) ((?:square |cubic |sq |cu )?[a-z]{2,20}"
    r"(?: per [a-z]{1,12})?)(?![a-z])",
    re.IGNORECASE,
)
_ASKS = re.compile(r"(?i:\b(?:how|what|which|find|determine|compute|calculate)\b)")
_ONE, _HUNDREDTH, _HUNDRED = (Number(Fraction(each)) for each in ("1", "1/100", "100"))
_HALF_TURN = Expression.of(Node("fraction", (Node("pi"), integer(180))))
_DEGREES_OF_RADIAN = Expression.of(Node("fraction", (integer(180), Node("pi"))))
_HAN = re.compile(r"[\u4e00-\u9fff ]+")
_COUNTERS = re.compile("[个人只本元块件条张台辆棵头匹家名位岁种组箱袋瓶盒支枝朵颗粒套]{1,2}")
Scale = Number | Expression
_UNKNOWN = Measure((("unknown", 1),))  # words that nobody knows to say another value


class OutOfWork(Exception):
    """A comparison takes too long for the event loop; what it would find is not known."""


@dataclass(frozen=True)
class Verdict:
    """``equal`` is None where it is not known."""

    equal: bool | None
    path: str


# Two values (gold, answer): equal or not, or None if that cannot be said.
Algebra = Callable[[Value, Value], bool | None]


@dataclass
class Comparison:
    """Puts pairs of values to the rules, which may ask it about parts of them."""

    question: Question
    rules: Sequence[Rule]
    algebra: Algebra | None = None
    pairs: int = 0  # compared so far

    def same(self, gold: Value, answer: Value) -> Verdict:
        """Whether two values are the same, by the first rule that fits.

        Raises:
            OutOfWork: after 130 pairs of parts, if there is no algebra.
        """
        self.pairs += 1
        if self.pairs > _MAX_PAIRS and self.algebra is None:
            raise OutOfWork
        if gold == answer:
            return Verdict(True, "exact")
        for rule in self.rules:
            verdict = rule(gold, answer, self)
            if verdict is not None:
                return verdict
        return Verdict(False, "kind")

    def by_algebra(self, gold: Value, answer: Value) -> bool | None:
        """Whether two values are the same mathematics; None where there is no algebra."""
        return self.algebra(gold, answer) if self.algebra else None


Rule = Callable[[Value, Value, Comparison], Verdict | None]


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is, else None if one is unknown."""
    found = list(verdicts)
    return False if False in found else None if None in found else True


def any_of(verdicts: Iterable[bool | None]) -> bool | None:
    """True if one is, else None if one is unknown."""
    found = list(verdicts)
    return True if True in found else None if None in found else False


def numbers(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Equal, or an exact value and its decimals, at least six of them, correctly rounded."""
    if not (isinstance(gold, Number) and isinstance(answer, Number)):
        return None
    if gold.value == answer.value:
        return Verdict(True, "number")
    if gold.places is None and answer.places is None:
        return Verdict(False, "number")
    decimal, exact = sorted((gold, answer), key=_places)
    return Verdict(
        decimal.rounds(Decimal(exact.value.numerator) / exact.value.denominator), "number"
    )


def _places(number: Number) -> int:
    """An exact number has no end of them."""
    return 10**6 if number.places is None else number.places


def numerals(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Numbers in a named base are the same if their digits are: to convert was the question."""
    if isinstance(gold, Numeral) and not isinstance(answer, Relation):
        if isinstance(answer, Number):
            digits = str(answer.value) if answer.places is None else ""
            return Verdict(digits == gold.digits, "numeral")
        return Verdict(gold == answer, "numeral")
    if isinstance(answer, Numeral):
        is_plain = isinstance(gold, Number) and str(gold.value) == answer.digits
        return Verdict(is_plain and answer.base == 10, "numeral")
    return None


def expressions(gold: Value, answer: Value, by: Comparison) -> Verdict:
    """The last rule: the same spelled in two ways, two numbers far apart, or else by algebra.

    Whatever is no single expression is no other's equal.
    """
    if not isinstance(gold, Number | Expression) or not isinstance(answer, Number | Expression):
        return Verdict(False, "kind")
    if "infinity" in (_kind(gold), _kind(answer)):
        is_like = _kind(gold) == _kind(answer) and _is_negative(gold) == _is_negative(answer)
        return Verdict(is_like, "infinity")
    if gold.tree and answer.tree:
        if written(gold.tree) == written(answer.tree):
            return Verdict(True, "expression")
        if are_different(gold.tree, answer.tree) and not _may_be_rounded(gold, answer):
            return Verdict(False, "expression")
    return Verdict(by.by_algebra(gold, answer), "algebra")


def _may_be_rounded(*values: Number | Expression) -> bool:
    return any(isinstance(value, Number) and value.places is not None for value in values)


def _kind(value: Number | Expression) -> str:
    tree = value.tree
    if tree is not None and tree.kind == "negative":
        tree = tree.parts[0]
    return tree.kind if tree else ""


def _is_negative(value: Number | Expression) -> bool:
    return value.tree is not None and value.tree.kind == "negative"


def words(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Without capitals, articles and marks."""
    if not (isinstance(gold, Words) or isinstance(answer, Words)):
        return None
    said, other = _letters(gold).casefold(), _letters(answer).casefold()
    return Verdict(said == other != "", "words")


def _letters(value: Value) -> str:
    """An answer in words, or letters that may be some; empty for any other."""
    if isinstance(value, Words):
        return value.said
    if isinstance(value, Choice):
        return value.letters
    return value.latex if isinstance(value, Expression) else ""


def choices(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """``(B) 12`` is B, and for a gold 12 its value counts."""
    if not isinstance(gold, Choice):
        if isinstance(answer, Choice) and answer.rest is not None:
            return by.same(gold, answer.rest)
        return None
    if not isinstance(answer, Choice):
        is_letter = isinstance(answer, Expression) and answer.latex.upper() == gold.letters
        if is_letter or gold.rest is None:
            return Verdict(is_letter, "choice")
        return by.same(gold.rest, answer)
    if answer.letters != gold.letters or gold.rest is None or answer.rest is None:
        return Verdict(answer.letters == gold.letters, "choice")
    return by.same(gold.rest, answer.rest)


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
            return None if is_exact and not by.question.asks("rounding") else by.same(gold, rounded)
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


def assignments(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """With their names in one order, if one of both is a tuple or an open interval."""
    first, second = _assigned(gold), _assigned(answer)
    if _is_tuple(first) or _is_tuple(second):
        first = _as_tuple(first, gold, by.question)
        second = _as_tuple(second, answer, by.question)
    return None if (first, second) == (gold, answer) else by.same(first, second)


def _is_tuple(value: Value) -> bool:
    return isinstance(value, Tuple) and value.brackets == "()"


def _assigned(value: Value) -> Value:
    """``(y,x) = (1,2)`` and ``x=y=3`` as the list of assignments; any other answer as it is."""
    if not isinstance(value, Relation) or set(value.signs) != {"="}:
        return value
    *names, last = value.sides
    values = (last,) * len(names)
    if len(names) == 1:
        if not all(map(_is_tuple, value.sides)):
            return value
        names, values = map(parts_of, value.sides)
    if len(names) != len(values) or not all(map(letter_of, names)):
        return value
    pairs = zip(names, values, strict=True)
    return Set(tuple(Relation(pair, ("=",), (letter_of(pair[0]), "")) for pair in pairs), ",")


def _as_tuple(value: Value, written: Value, question: Question) -> Value:
    """A list of assignments to different names as a tuple; any other answer as it is."""
    if not isinstance(value, Set) or value.joint != "," or not 1 < len(value.parts) <= _MAX_NAMES:
        return value
    values = {
        letter_of(part.sides[0]): part.sides[1]
        for part in value.parts
        if isinstance(part, Relation) and part.signs == ("=",) and letter_of(part.sides[0])
    }
    if len(values) != len(value.parts):
        return value
    order = _order(list(values), question, in_brackets=isinstance(written, Relation))
    return Tuple(tuple(values[name] for name in order))


def _order(names: list[str], question: Question, *, in_brackets: bool) -> list[str]:
    """As the problem has them in brackets, else by the alphabet.

    As written with Greek letters, and in brackets if they are no neighbours: (m,b) and (n,k), but
    not (y,x).
    """
    if len(names) <= _MAX_LOOKED_FOR:
        for order in permutations(names):
            if question.mentions(f"({','.join(order)})"):
                return list(order)
    letters = [ord(name[0]) for name in names]
    is_far = max(letters) - min(letters) >= max(len(names), _MAX_LOOKED_FOR)
    is_kept = any("\\" in name for name in names) or (in_brackets and is_far)
    return names if is_kept else sorted(names)


def ratios(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """``6:8`` and ``3/4`` are ``3:4``; but ``3:30`` is a time, if no ratio is asked for."""
    if not isinstance(gold, Tuple) or gold.brackets not in (RATIO, CLOCK):
        return None
    if isinstance(answer, Relation | Set):
        return None
    is_ratio = isinstance(answer, Tuple) and answer.brackets in (RATIO, CLOCK)
    if gold.brackets == CLOCK and not by.question.asks("ratio"):
        return Verdict(is_ratio and _clock(answer) == _clock(gold), "time")
    if isinstance(answer, Quantity) and answer.unit == "%" and isinstance(answer.head, Number):
        answer = Number(answer.head.value / 100)
    if not (is_ratio or isinstance(answer, Number)):
        return None
    shape, other = _shape(gold), _shape(answer)
    return Verdict(shape == other, "ratio") if shape and other else None


def _clock(value: Value) -> tuple[Value, ...]:
    """Without the seconds, where there are none."""
    *parts, last = parts_of(value)
    return tuple(parts) if len(parts) == 2 and last == Number(Fraction(0)) else (*parts, last)


def _shape(value: Value) -> list[Fraction]:
    """The parts of a ratio, the first of which is 1; none if some are 0, or no plain numbers."""
    parts = parts_of(value) or (value, Number(Fraction(1)))
    numbers = [part.value for part in parts if isinstance(part, Number) and part.value]
    return [number / numbers[0] for number in numbers] if len(numbers) == len(parts) else []


def sets(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Each member has its like on the other side; a lone value is a list of its own.

    A list says how often and, where the problem asks for it, in which order.
    """
    if Set not in {type(gold), type(answer)}:
        return None
    if isinstance(gold, Set) and not gold.joint:
        return Verdict(_without_order(gold, answer, by), "set")
    golds, answers = _members(gold), _members(answer)
    if len(golds) != len(answers):
        return Verdict(False, "list")
    if isinstance(gold, Set) and gold.joint == "," and by.question.asks("order"):
        pairs = zip(golds, answers, strict=True)
        return Verdict(all_of(by.same(g, a).equal for g, a in pairs), "list")
    return Verdict(_one_to_one(golds, answers, by), "list")


def _one_to_one(golds: Sequence[Value], answers: Sequence[Value], by: Comparison) -> bool | None:
    """Whether each member has a like of its own."""
    alone, strange = list(golds), list(answers)
    for each in golds:
        if each in strange:
            alone.remove(each)
            strange.remove(each)
    if len(alone) > _MAX_MEMBERS // 2:
        return None
    rows = [[by.same(gold, answer).equal for answer in strange] for gold in alone]
    if _can_pair(rows, {True}):
        return True
    return None if _can_pair(rows, {True, None}) else False


def _can_pair(rows: list[list[bool | None]], liked: set[bool | None]) -> bool:
    """Whether each row can have a column of its own that it likes (Kuhn's algorithm)."""
    taken: dict[int, int] = {}

    def finds(row: int, seen: set[int]) -> bool:
        for column, verdict in enumerate(rows[row]):
            if verdict in liked and column not in seen:
                seen.add(column)
                if column not in taken or finds(taken[column], seen):
                    taken[column] = row
                    return True
        return False

    return all(finds(row, set()) for row in range(len(rows)))


def _without_order(gold: Value, answer: Value, by: Comparison) -> bool | None:
    golds, answers = (_members(each) for each in (gold, answer))
    if len(golds) + len(answers) > _MAX_MEMBERS:
        return None
    alone = [each for each in golds if each not in answers]
    strange = [each for each in answers if each not in golds]
    rows = [[by.same(g, a).equal for a in answers] for g in alone]
    columns = [[by.same(g, a).equal for g in golds] for a in strange]
    return all_of(any_of(line) for line in (*rows, *columns))


def _members(value: Value) -> Sequence[Value]:
    return value.parts if isinstance(value, Set | Union) else (value,)


def unions(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """The same pieces make the same union; so may others, which overlap or meet."""
    if not (isinstance(gold, Union) or isinstance(answer, Union)):
        return None
    joints = {each.joint for each in (gold, answer) if isinstance(each, Union)}
    is_alike = type(gold) is type(answer) and joints in ({r"\cup"}, {r"\cap"})
    if is_alike and _without_order(gold, answer, by):
        return Verdict(True, "union")
    return Verdict(by.by_algebra(gold, answer), "algebra")


def in_order(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Tuples, intervals and matrices, part by part; a vector may be a row, a column or a tuple."""
    if not (isinstance(gold, Tuple | Matrix) or isinstance(answer, Tuple | Matrix)):
        return None
    if type(gold) is not type(answer):
        gold, answer = _vector(gold), _vector(answer)
    parts, others = parts_of(gold), parts_of(answer)
    if _frame(gold) != _frame(answer) or len(parts) != len(others):
        return Verdict(False, "tuple")
    pairs = zip(parts, others, strict=True)
    return Verdict(all_of(by.same(g, a).equal for g, a in pairs), "tuple")


def _vector(value: Value) -> Value:
    is_vector = isinstance(value, Matrix) and 1 in (value.num_rows, value.num_columns)
    return Tuple(value.cells) if isinstance(value, Matrix) and is_vector else value


def _frame(value: Value) -> object:
    if isinstance(value, Matrix):
        return value.num_rows, value.num_columns
    return value.brackets if isinstance(value, Tuple) else None


def quantities(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Units are compared by what they measure; a unit left out is the one that is asked for."""
    if not (isinstance(gold, Quantity) or isinstance(answer, Quantity)):
        return None
    if not all(isinstance(each, Quantity | Number | Expression) for each in (gold, answer)):
        return None if not _is_word(gold, answer) else Verdict(False, "words")
    measure, other = _measure(gold, by.question), _measure(answer, by.question, is_answer=True)
    if False in (measure, other):  # words that change the value are only themselves
        return Verdict(_said(gold) == _said(answer) and by.same(_head(gold), _head(answer)).equal,
                       "words")  # fmt: skip
    assert not isinstance(measure, bool)
    assert not isinstance(other, bool)
    scales = list(_factors(measure, other, by.question))
    if not scales:
        return Verdict(False, "unit")
    is_rounded = len({measure, other}) == 1 or (
        PERCENT not in (measure, other) and None in (measure, other)
    )
    head = _head(answer)
    verdicts = [_same(_head(gold), head, scale, by, is_rounded) for scale in scales]
    equal = any_of(verdict.equal for verdict in verdicts)
    if equal and other is _UNKNOWN:
        return Verdict(None, "words")
    return Verdict(equal, "unit" if len(scales) > 1 or scales[0] != _ONE else verdicts[0].path)


def _is_word(gold: Value, answer: Value) -> bool:
    return isinstance(gold, Words) or isinstance(answer, Words)


def _head(value: Value) -> Value:
    return value.head if isinstance(value, Quantity) else value


def _said(value: Value) -> str:
    return " ".join(value.unit.casefold().split()) if isinstance(value, Quantity) else ""


def _same(gold: Value, answer: Value, scale: Scale, by: Comparison, is_rounded: bool) -> Verdict:
    if not is_rounded:
        gold, answer = _without_places(gold), _without_places(answer)
    return by.same(gold, answer if scale == _ONE else _scaled(answer, scale))


def _without_places(value: Value) -> Value:
    return Number(value.value) if isinstance(value, Number) else value


def _scaled(value: Value, scale: Scale) -> Value:
    if isinstance(value, Number) and isinstance(scale, Number):
        return Number(value.value * scale.value, value.places)
    if not isinstance(value, Number | Expression) or not (value.tree and scale.tree):
        return Expression(None, "")
    return Expression.of(Node("*", (scale.tree, value.tree)))


def _measure(value: Value, question: Question, *, is_answer: bool = False) -> Measure | bool | None:
    """What its unit measures, None without one; False where words change the value."""
    if not isinstance(value, Quantity):
        return None
    unit = value.unit.replace("°", "degree")
    if (measure := measure_of(unit)) is not None:
        return measure
    if _HAN.fullmatch(unit):
        return THINGS if _COUNTERS.fullmatch(unit) else False
    kept = _PLURAL.sub(lambda match: "" if question.counts(match[0]) else match[0], value.unit)
    if _CHANGES_VALUE.search(kept) or not re.fullmatch(r"[A-Za-z'’ ./-]+", value.unit):
        return False
    return _of_words(value.unit.replace(".", "").split(), value.is_bare and is_answer, question)


def _of_words(words: list[str], is_bare: bool, question: Question) -> Measure | bool:
    """A unit beside other words, or things; unknown if the problem has none of the words."""
    cuts = [(0, end) for end in range(len(words), 0, -1)]
    cuts += [(begin, len(words)) for begin in range(1, len(words))]
    found = ((measure_of(" ".join(words[a:b])), words[:a] + words[b:]) for a, b in cuts)
    unit, rest = next(((unit, rest) for unit, rest in found if unit), (None, words))
    rest = [word for word in rest if word not in _SAYS_NOTHING]
    if unit:
        return unit if all(map(question.counts, rest)) or not question.text else _UNKNOWN
    if is_bare and not all(map(question.counts, rest)):
        return False
    return THINGS if not (question.text and rest) or any(map(question.counts, rest)) else _UNKNOWN


def _factors(gold: Measure | None, answer: Measure | None, question: Question) -> Iterator[Scale]:
    """By what the answer's number may be multiplied before it is compared with the gold's."""
    asked = (
        _unit_of(question.text[-MAX_CHARS:])
        if gold is None and answer not in (None, PERCENT, DEGREE)
        else None
    )
    if asked and answer and not _shares(asked, answer):
        gold = asked
    if gold is None or answer is None or gold.is_any or answer.is_any:
        yield from _beside_none(gold, answer, question)
    elif gold.dimension == answer.dimension:
        yield Number(answer.size / gold.size)
    elif {gold, answer} <= {THINGS, _UNKNOWN}:
        yield _ONE
    elif {gold, answer} == {DEGREE, RADIAN}:
        yield _DEGREES_OF_RADIAN if gold == DEGREE else _HALF_TURN


@lru_cache(1024)
def _unit_of(problem: str) -> Measure | None:
    """The unit that the answer is asked in, where only one is named."""
    if len(_ASKS.findall(problem)) != 1:
        return None
    found = {measure_of(unit.lower()) for unit in _UNIT_ASKED.findall(problem)} - {None}
    return found.pop() if len(found) == 1 else None


def _shares(asked: Measure, answer: Measure) -> bool:
    """Whether an answer says more than was asked: dollars per day, if dollars are."""
    bases = {base for base, _ in answer.dimension}
    is_more = bases > {base for base, _ in asked.dimension}
    return is_more or answer.is_any or answer in (THINGS, _UNKNOWN)


def _beside_none(
    gold: Measure | None, answer: Measure | None, question: Question
) -> Iterator[Scale]:
    """A gold percentage takes its number for itself, and degrees may be radians left out."""
    if gold == PERCENT:
        yield from (_ONE, _HUNDRED)
    elif answer == PERCENT:
        if question.asks("percent"):
            yield _ONE
        yield _HUNDREDTH
    else:
        yield _ONE
        if DEGREE in (gold, answer):
            yield _DEGREES_OF_RADIAN if gold == DEGREE else _HALF_TURN


RULES: list[Rule] = [
    numbers, approximations, numerals, ratios, choices, assignments, relations, sets, unions,
    in_order, quantities, words, expressions,
]  # fmt: skip
