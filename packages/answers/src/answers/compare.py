"""Whether two answers are the same: read, and put to the rules one after the other.

Most pairs are settled here, in microseconds, where others wait: what takes too long is left
unknown. In the pool the same rules have computer algebra for what they cannot settle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import permutations

from answers.nodes import Node, are_different, integer, serialize
from answers.problem import MAX_CHARS, Problem
from answers.reading import read_answer
from answers.regions import INFINITY, MINUS_INFINITY
from answers.scalars import get_letter, read_scalar
from answers.tokens import lexicon, tokenize
from answers.units import DEGREE, PERCENT, RADIAN, THINGS, Measure, read_unit
from answers.values import (
    CLOCK,
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
    get_parts,
    round_as_written,
)

_INFINITE = frozenset(serialize(end.tree) for end in (INFINITY, MINUS_INFINITY) if end.tree)
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
_SIZE = re.compile(r"\| ?[A-Z]{1,2} ?\||\[ ?[A-Z]{3,6} ?\]")  # of a set, a segment, a figure
_SEGMENTS = re.compile(r"\\frac ?\{ ?([A-Z]{2}) ?\} ?\{ ?([A-Z]{2}) ?\}")
_EXPECTED = re.compile(r"(?:E|\\mathbb ?\{ ?E ?\}|\\text\{E\}) ?[\[(] ?[A-Za-z] ?[\])]")
_VALUE_OF_X = re.compile(r"[a-z]\([a-z]\)")
_OPERATOR = re.compile(r"[+*-]")
_MAX_NAMES = 6
_MAX_SYMBOLS = 3
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
_SAYS_NOTHING = lexicon(
    "a additional all altogether an apart at away day days deep different each every extra "
    "far for her high his in left long more now of old on over per remaining tall the their "
    "total unique way ways wide year years"
)
_UNIT_ASKED = re.compile(
    r"(?:how many|number of|in) ((?:square |cubic |sq |cu )?[a-z]{2,20}"
    r"(?: per [a-z]{1,12})?)(?![a-z])",
    re.IGNORECASE,
)
_ASKS = re.compile(r"(?i:\b(?:how|what|which|find|determine|compute|calculate)\b)")
_ONE, _HUNDREDTH, _HUNDRED = (Number(Fraction(each)) for each in ("1", "1/100", "100"))
_HALF_TURN = Expression.from_tree(Node("fraction", (Node("pi"), integer(180))))
_DEGREES_OF_RADIAN = Expression.from_tree(Node("fraction", (integer(180), Node("pi"))))
_HAN = re.compile(r"[\u4e00-\u9fff ]+")
_COUNTERS = re.compile("[个人只本元块件条张台辆棵头匹家名位岁种组箱袋瓶盒支枝朵颗粒套]{1,2}")
Scale = Number | Expression
_UNKNOWN = Measure((("unknown", 1),))  # words that nobody knows to say another value
_SCIENTIFIC = re.compile(r"-?[0-9]{1,20}[eE]-[0-9]{1,2}")  # or 2e minus 3
_HUNDREDS = re.compile(r"[1-9][0-9]{2}(?:,[1-9][0-9]{2})+")  # but not 1,200 or 100,000
_BARE_UNIT = re.compile(r"(.*[0-9}]) ([a-zA-Z]{1,3}(?:/[a-zA-Z]{1,3})?(?:\^\{?[23]\}?)?)")
_BETWEEN_MARKS = re.compile(r"\\(?:left|right)(?![a-zA-Z.])| (?![0-9a-zA-Z])|(?<=[^0-9a-zA-Z\\,]) ")


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
    problem: Problem
    algebra: Algebra | None = None
    pairs: int = 0  # compared so far

    def same(self, gold: Value, answer: Value) -> Verdict:
        """By the first rule that fits; `OutOfWork` after 130 pairs of parts without algebra."""
        self.pairs += 1
        if self.pairs > _MAX_PAIRS and self.algebra is None:
            raise OutOfWork
        if gold == answer:
            return Verdict(True, "exact")
        for rule in RULES:
            verdict = rule(gold, answer, self)
            if verdict is not None:
                return verdict
        return Verdict(False, "kind")

    def in_order(self, golds: Iterable[Value], answers: Iterable[Value]) -> bool | None:
        return all_of(self.same(*pair).equal for pair in zip(golds, answers, strict=True))

    def by_algebra(self, gold: Value, answer: Value) -> bool | None:
        return self.algebra(gold, answer) if self.algebra else None


Rule = Callable[[Value, Value, Comparison], Verdict | None]


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def any_of(verdicts: Iterable[bool | None]) -> bool | None:
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
    rounded, exact = gold, answer
    if gold.places is None or (answer.places is not None and answer.places < gold.places):
        rounded, exact = answer, gold
    value = Decimal(exact.value.numerator) / exact.value.denominator
    return Verdict(rounded.rounds(value), "number")


def expressions(gold: Value, answer: Value, by: Comparison) -> Verdict:
    """The last rule: spelled alike, two numbers far apart, or else by algebra."""
    if not isinstance(gold, Number | Expression) or not isinstance(answer, Number | Expression):
        return Verdict(False, "kind")
    if gold.tree and answer.tree:
        spelled, other = serialize(gold.tree), serialize(answer.tree)
        if spelled == other:
            return Verdict(True, "expression")
        may_be_rounded = any(isinstance(v, Number) and v.places is not None for v in (gold, answer))
        is_far = are_different(gold.tree, answer.tree) and not may_be_rounded
        if is_far or not _INFINITE.isdisjoint((spelled, other)):
            return Verdict(False, "expression")
    return Verdict(by.by_algebra(gold, answer), "algebra")


def words(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Without capitals, articles and marks; of a numeral, ``204 base 5``, the digits are enough."""
    if not (isinstance(gold, Words) or isinstance(answer, Words)):
        return None
    said, other = _letters(gold).casefold(), _letters(answer).casefold()
    if isinstance(answer, Number) and answer.places is None:
        return Verdict(said.startswith(f"{answer.value} base "), "words")
    return Verdict(said == other != "", "words")


def _letters(value: Value) -> str:
    if isinstance(value, Words):
        return value.text
    if isinstance(value, Choice):
        return value.letters
    return value.latex if isinstance(value, Expression) else ""


def choices(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """``(B) 12`` is B, and for a gold 12 its value counts."""
    if not isinstance(gold, Choice):
        said = answer.value if isinstance(answer, Choice) else None
        return by.same(gold, said) if said else None
    if isinstance(answer, Choice):
        is_same, rest = answer.letters == gold.letters, answer.value
        if is_same and gold.value and rest:
            return by.same(gold.value, rest)
        return Verdict(is_same, "choice")
    is_letter = isinstance(answer, Expression) and answer.latex.upper() == gold.letters
    if is_letter or not gold.value:
        return Verdict(is_letter, "choice")
    return by.same(gold.value, answer)


def approximations(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    r"""The exact part of ``\sqrt{2} \approx 1.41`` counts, or its rounding; of a gold 1.41."""
    if isinstance(gold, Relation) and r"\approx" in gold.signs:
        exact, rounded = _around_approx(gold, by.problem)
        rounded = round_as_written(rounded)
        equal = any_of(by.same(each, answer).equal for each in (exact, rounded) if each)
        if isinstance(answer, Relation) and r"\approx" in answer.signs:
            about = by.same(gold.sides[-1], round_as_written(answer.sides[-1])).equal
            equal = all_of((equal, about))
        return Verdict(equal, "approximation")
    if isinstance(answer, Relation) and r"\approx" in answer.signs:
        exact, rounded = _around_approx(answer, by.problem)
        if exact is None:
            is_exact = isinstance(gold, Number) and not (gold.places or gold.is_asked)
            return None if is_exact and not by.problem.asks("rounding") else by.same(gold, rounded)
        if _is_rounded_wrongly(exact, rounded, by):
            return Verdict(False, "approximation")
        verdict = by.same(gold, exact)
        return verdict if verdict.equal else _as_asked(gold, exact, rounded, by) or verdict
    return None


def _is_rounded_wrongly(exact: Value, rounded: Value, by: Comparison) -> bool:
    r"""Of a whole number or a decimal, as in ``42 \approx 43``, which leaves the answer open."""
    number = exact.sides[-1] if isinstance(exact, Relation) else exact
    if not (isinstance(number, Number) and isinstance(rounded, Number)):
        return False
    is_plain = number.places is not None or number.value.denominator == 1
    return is_plain and by.same(number, round_as_written(rounded)).equal is False


def _around_approx(value: Relation, problem: Problem) -> tuple[Value | None, Value]:
    r"""What is exact in ``x = \ln 3 \approx 1.1``, where a name is not, and ``x = 1.1``."""
    at, last = value.signs.index(r"\approx"), value.sides[-1]
    side, text = value.sides[at], value.texts[at]
    is_named = at == 0 and bool(text) and _is_name(side, text, problem)
    rounded = Relation((side, last), ("=",), (text, value.texts[-1])) if is_named else last
    if is_named or not (isinstance(side, Number | Quantity) or _has_tree(side)):
        return None, rounded
    exact = Relation(value.sides[: at + 1], value.signs[:at], value.texts[: at + 1])
    return exact if at else side, last


def _has_tree(value: Value) -> bool:
    parts = get_parts(value)
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
    return by.same(exact, round_as_written(gold))


def relations(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """``x = 5`` is 5, and an equation is any multiple of itself."""
    if not (isinstance(gold, Relation) or isinstance(answer, Relation)):
        return None
    golds, name = _links(gold, by.problem)
    answers, other = _links(answer, by.problem)
    if name and isinstance(answer, Relation) and len(set(answer.sides)) == 1:
        return Verdict(False, "equation")  # 1 = 1 is no solution
    is_function = any(_VALUE_OF_X.fullmatch(each or "") for each in (name, other))
    is_named = None in (name, other) or name == other or ("y" in (name, other) and is_function)
    if golds and answers and is_named:
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
    relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
    signs = relation.signs if isinstance(relation, Relation) else ("=",)
    if not isinstance(other, Union | Tuple) or "=" in signs:
        return Verdict(False, "equation")
    return Verdict(by.by_algebra(gold, answer), "algebra")


def _links(value: Value, problem: Problem) -> tuple[tuple[Value, ...] | None, str | None]:
    """What stands behind the name in ``x = 4/2 = 2``, None if it is not solved; and the name."""
    if not isinstance(value, Relation):
        return (value,), None
    if value.signs == (r"\in",) and _is_name(value.sides[0], value.texts[0], problem):
        return value.sides[1:], value.texts[0]
    if set(value.signs) != {"="}:
        return None, None
    sides, texts = value.sides, value.texts
    if not _is_name(sides[0], texts[0], problem):
        sides, texts = sides[::-1], texts[::-1]
    if _is_name(sides[0], texts[0], problem):
        return sides[1:], texts[0].replace(" ", "")
    return (value.sides, None) if all(map(_is_constant, value.sides)) else (None, None)


def _is_constant(value: Value) -> bool:
    if isinstance(value, Set):
        return all(map(_is_constant, value.parts))
    value = value.head if isinstance(value, Quantity) else value
    if isinstance(value, Expression):
        return value.tree is not None and not value.letters
    return isinstance(value, Number)


def _is_name(side: Value, text: str, problem: Problem) -> bool:
    r"""``x``, ``f(3)``, ``a_1``, ``\angle ABC`` or ``m+n``: no digits but in an index."""
    if _is_constant(side) and text not in ("e", "i"):
        return False
    if _EXPECTED.fullmatch(text):
        return not problem.text or any(map(problem.counts, ("expected", "expectation", "mean")))
    if ratio := _SEGMENTS.fullmatch(text):
        spelled = (text, "/".join(ratio.groups()))
        return not problem.text or any(map(problem.mentions, spelled))
    bare = _INDEX.sub("", text)
    if (_NAME.fullmatch(bare) or _SIZE.fullmatch(text)) and (
        problem.names(bare) or problem.mentions(text)
    ):
        return True
    return problem.requests(text)


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
        first = _as_tuple(first, gold, by.problem)
        second = _as_tuple(second, answer, by.problem)
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
        names, values = map(get_parts, value.sides)
    if len(names) != len(values) or not all(map(get_letter, names)):
        return value
    pairs = zip(names, values, strict=True)
    return Set(tuple(Relation(pair, ("=",), (get_letter(pair[0]), "")) for pair in pairs), ",")


def _as_tuple(value: Value, written: Value, problem: Problem) -> Value:
    if not isinstance(value, Set) or value.joint != "," or not 1 < len(value.parts) <= _MAX_NAMES:
        return value
    values = {
        get_letter(part.sides[0]): part.sides[1]
        for part in value.parts
        if isinstance(part, Relation) and part.signs == ("=",) and get_letter(part.sides[0])
    }
    if len(values) != len(value.parts):
        return value
    order = _order(list(values), problem, in_brackets=isinstance(written, Relation))
    return Tuple(tuple(values[name] for name in order))


def _order(names: list[str], problem: Problem, *, in_brackets: bool) -> list[str]:
    """As the problem has them in brackets, else by the alphabet; (m,b) as written, not (y,x)."""
    if len(names) <= _MAX_LOOKED_FOR:
        for order in permutations(names):
            if problem.mentions(f"({','.join(order)})"):
                return list(order)
    letters = sorted(ord(name[0]) for name in names)
    is_far = letters[-1] - letters[0] >= max(len(names), _MAX_LOOKED_FOR)
    is_kept = any("\\" in name for name in names) or (in_brackets and is_far)
    return names if is_kept else sorted(names)


def ratios(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """``6:8`` and ``3/4`` are ``3:4``; but ``3:30`` is a time, if no ratio is asked for."""
    if not isinstance(gold, Tuple) or gold.brackets not in (RATIO, CLOCK):
        return None
    is_ratio = isinstance(answer, Tuple) and answer.brackets in (RATIO, CLOCK)
    if not is_ratio and not isinstance(answer, Number | Quantity):
        return None
    if gold.brackets == CLOCK and not by.problem.asks("ratio"):
        return Verdict(is_ratio and _clock(answer) == _clock(gold), "time")
    if isinstance(answer, Quantity) and answer.unit == "%" and isinstance(answer.head, Number):
        answer = Number(answer.head.value / 100)
    shape, other = _shape(gold), _shape(answer)
    return Verdict(shape == other, "ratio") if shape and other else None


def _clock(value: Value) -> tuple[Value, ...]:
    parts = get_parts(value)
    return parts[:2] if parts[2:] == (Number(Fraction(0)),) else parts


def _shape(value: Value) -> list[Fraction]:
    """The parts of a ratio, the first of which is 1; none if some are 0, or no plain numbers."""
    parts = get_parts(value) or (value, Number(Fraction(1)))
    numbers = [part.value for part in parts if isinstance(part, Number) and part.value]
    return [number / numbers[0] for number in numbers] if len(numbers) == len(parts) else []


def sets(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Each member has its like; a list says how often and, where its parts differ, the order."""
    if Set not in {type(gold), type(answer)}:
        return None
    if isinstance(gold, Tuple) and _is_list(gold, by.problem):
        gold = Set(gold.parts, "[]")
    elif isinstance(gold, Set) and not gold.joint:
        return Verdict(_without_order(gold, answer, by), "set")
    golds, answers = _members(gold), _members(answer)
    if len(golds) != len(answers):
        return Verdict(False, "list")
    joint = gold.joint if isinstance(gold, Set) else ""
    if joint == "[]" or (joint == "," and _is_ordered(golds, answers, by.problem)):
        named = _as_tuple(answer, answer, by.problem) if isinstance(answer, Set) else answer
        has_names = isinstance(named, Tuple) and not any(map(_name_of, golds))
        return Verdict(by.in_order(golds, get_parts(named) if has_names else answers), "list")
    return Verdict(_one_to_one(golds, answers, by), "list")


def _is_list(gold: Tuple, problem: Problem) -> bool:
    """Whether brackets hold a list of Python, and no interval."""
    return gold.brackets == "[]" and (len(gold.parts) != 2 or problem.has_questions(2))


def _is_ordered(golds: Sequence[Value], answers: Sequence[Value], problem: Problem) -> bool:
    """Whether each part answers a question of its own, and has no name that says which."""
    names, others = (set(map(_name_of, parts)) for parts in (golds, answers))
    are_apart = len(names) == len(golds) and "" not in names
    if problem.asks("order") or not (are_apart or problem.has_questions(len(golds))):
        return problem.asks("order")
    return not are_apart or "" in others


def _name_of(value: Value) -> str:
    """Without its index: roots are called x_1 and x_2, in any order."""
    if isinstance(value, Relation) and "=" in value.signs and value.texts:
        return value.texts[0].partition("_")[0]
    return ""


def _one_to_one(golds: Sequence[Value], answers: Sequence[Value], by: Comparison) -> bool | None:
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
    golds, answers = _members(gold), _members(answer)
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
    parts, others = get_parts(gold), get_parts(answer)
    if _frame(gold) != _frame(answer) or len(parts) != len(others):
        return Verdict(False, "tuple")
    return Verdict(by.in_order(parts, others), "tuple")


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
        return Verdict(False, "words") if Words in (type(gold), type(answer)) else None
    measure, other = _measure(gold, by.problem), _measure(answer, by.problem, is_answer=True)
    head, found = (each.head if isinstance(each, Quantity) else each for each in (gold, answer))
    if isinstance(measure, bool) or isinstance(other, bool):  # words that are only themselves
        unit, said = (each.unit if isinstance(each, Quantity) else "" for each in (gold, answer))
        is_said = unit.casefold().split() == said.casefold().split()
        return Verdict(is_said and by.same(head, found).equal, "words")
    scales = list(_factors(measure, other, by.problem))
    if not scales:
        return Verdict(False, "unit")
    if measure != other and (PERCENT in (measure, other) or None not in (measure, other)):
        head, found = (Number(v.value) if isinstance(v, Number) else v for v in (head, found))
    verdicts = [by.same(head, found if s == _ONE else _scaled(found, s)) for s in scales]
    equal = any_of(verdict.equal for verdict in verdicts)
    if equal and other is _UNKNOWN:
        return Verdict(None, "words")
    return Verdict(equal, "unit" if len(scales) > 1 or scales[0] != _ONE else verdicts[0].path)


def _scaled(value: Value, scale: Scale) -> Value:
    if isinstance(value, Number) and isinstance(scale, Number):
        return Number(value.value * scale.value, value.places)
    if not isinstance(value, Number | Expression) or not (value.tree and scale.tree):
        return Expression(None, "")
    return Expression.from_tree(Node("*", (scale.tree, value.tree)))


def _measure(value: Value, problem: Problem, *, is_answer: bool = False) -> Measure | bool | None:
    if not isinstance(value, Quantity):
        return None
    unit = value.unit.replace("°", "degree")
    if (measure := read_unit(unit)) is not None:
        return measure
    if _HAN.fullmatch(unit):
        return THINGS if _COUNTERS.fullmatch(unit) else False
    kept = _PLURAL.sub(lambda match: "" if problem.counts(match[0]) else match[0], value.unit)
    if _CHANGES_VALUE.search(kept) or not re.fullmatch(r"[A-Za-z'’ ./-]+", value.unit):
        return False
    return _of_words(value.unit.replace(".", "").split(), value.is_bare and is_answer, problem)


def _of_words(words: list[str], is_bare: bool, problem: Problem) -> Measure | bool:
    """A unit beside other words, or things; unknown if the problem has none of the words."""
    cuts = [(0, end) for end in range(len(words), 0, -1)]
    cuts += [(begin, len(words)) for begin in range(1, len(words))]
    found = ((read_unit(" ".join(words[a:b])), words[:a] + words[b:]) for a, b in cuts)
    unit, rest = next(((unit, rest) for unit, rest in found if unit), (None, words))
    rest = [word for word in rest if word not in _SAYS_NOTHING]
    if unit:
        return unit if all(map(problem.counts, rest)) or not problem.text else _UNKNOWN
    if is_bare and not all(map(problem.counts, rest)):
        return False
    return THINGS if not (problem.text and rest) or any(map(problem.counts, rest)) else _UNKNOWN


def _factors(gold: Measure | None, answer: Measure | None, problem: Problem) -> Iterator[Scale]:
    gold = gold or _asked(answer, problem)
    angle = _DEGREES_OF_RADIAN if gold == DEGREE else _HALF_TURN
    if gold and answer and not (gold.is_any or answer.is_any):
        if gold.dimension == answer.dimension:
            yield Number(answer.size / gold.size)
        elif {gold, answer} <= {THINGS, _UNKNOWN}:
            yield _ONE
        elif {gold, answer} == {DEGREE, RADIAN}:
            yield angle
    elif gold == PERCENT:  # which takes its number for itself
        yield from (_ONE, _HUNDRED)
    elif answer == PERCENT:
        if problem.asks("percent"):
            yield _ONE
        yield _HUNDREDTH
    else:  # degrees may be radians left out
        yield from (_ONE, angle) if DEGREE in (gold, answer) else (_ONE,)


@lru_cache(1024)
def _unit_of(problem: str) -> Measure | None:
    if len(_ASKS.findall(problem)) != 1:
        return None
    found = {read_unit(unit.lower()) for unit in _UNIT_ASKED.findall(problem)} - {None}
    return found.pop() if len(found) == 1 else None


def _asked(answer: Measure | None, problem: Problem) -> Measure | None:
    """The unit asked for, if the answer says no more than that: dollars per day, or its own."""
    if answer in (None, PERCENT, DEGREE, THINGS, _UNKNOWN) or not answer or answer.is_any:
        return None
    if (asked := _unit_of(problem.text[-MAX_CHARS:])) is None:
        return None
    bases, others = ({base for base, _ in each.dimension} for each in (answer, asked))
    return None if bases > others else asked


RULES: list[Rule] = [
    numbers, approximations, ratios, choices, assignments, relations, sets, unions,
    in_order, quantities, words, expressions,
]  # fmt: skip


def compare(gold: str, answer: str, problem: str = "") -> Verdict:
    """As written, without algebra. The problem tells what may be named, and where 12% may be 12."""
    try:
        return compare_with(None, gold, answer, problem)
    except OutOfWork:
        return Verdict(None, "work")


def compare_with(algebra: Algebra | None, gold: str, answer: str, problem: str = "") -> Verdict:
    """With algebra for what no rule settles, and however many parts they have."""
    if verdict := _at_sight(gold, answer):
        return verdict
    if _squeezed(gold) == _squeezed(answer):
        return Verdict(True, "exact")
    comparison, expected = Comparison(Problem(problem), algebra), read_answer(gold)
    found = read_answer(answer, is_chosen=isinstance(expected, Choice))
    if isinstance(expected, Number) and _SCIENTIFIC.fullmatch(answer):
        found = Number(Fraction(answer))
    elif isinstance(found, Number) and _SCIENTIFIC.fullmatch(gold):
        expected = Number(Fraction(gold))
    product = _as_product(gold, expected, found, comparison.problem)
    found = _as_product(answer, found, expected, Problem())
    expected, found = _with_unit(gold, product, found), _with_unit(answer, found, product)
    verdict = comparison.same(expected, found)
    if verdict.equal is False and ("," in gold or "," in answer):
        return _as_lists(comparison, gold, answer) or verdict
    return verdict


def _at_sight(gold: str, answer: str) -> Verdict | None:
    if gold == answer:
        return Verdict(True, "exact")
    if gold.isdecimal() and answer.isdecimal() and (gold + answer).isascii():
        return Verdict(gold.lstrip("0") == answer.lstrip("0"), "number")
    return None


@lru_cache(4096)
def _squeezed(text: str) -> str:
    """Without what is around or between marks and says nothing: equal texts are equal answers."""
    return _BETWEEN_MARKS.sub("", text).replace(r"\dfrac", r"\frac")


def _as_product(text: str, value: Value, other: Value, problem: Problem) -> Value:
    """``3mg`` is a weight, and no mass, where the other answer or the problem has m and g."""
    if not isinstance(value, Quantity) or not value.is_bare:
        return value
    symbols = [char for char in value.unit if char.isalpha()]
    if not 1 < len(symbols) <= _MAX_SYMBOLS:
        return value
    letters = {"e", *(other.letters if isinstance(other, Expression) else ())}
    if letters.issuperset(symbols) or all(map(problem.mentions, symbols)):
        product = read_scalar(tuple(tokenize(text)))
        return product if _has_tree(product) else value
    return value


def _with_unit(text: str, value: Value, other: Value) -> Value:
    """``9 m/s`` is a speed beside another one."""
    if not (isinstance(value, Expression) and isinstance(other, Quantity)):
        return value
    bare = _BARE_UNIT.fullmatch(text)
    return read_answer(rf"{bare[1]}\text{{ {bare[2]}}}") if bare else value


def _as_lists(comparison: Comparison, gold: str, answer: str) -> Verdict | None:
    """Beside a list, 100,200 may be one."""
    expected, found = read_answer(gold), read_answer(answer)
    if isinstance(expected, Set):
        split = read_answer(answer, is_list=True)
        return comparison.same(expected, split) if split != found else None
    split = read_answer(gold, is_list=True)
    is_listed = isinstance(found, Set) and found.joint and isinstance(split, Set)
    return comparison.same(split, found) if is_listed and _HUNDREDS.fullmatch(gold) else None
