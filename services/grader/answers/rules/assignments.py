"""Values of several names, ``x=1, y=2``, as the tuple that they are."""

from __future__ import annotations

from itertools import permutations

from services.grader.answers.question import Question
from services.grader.answers.regions import letter_of
from services.grader.answers.values import Relation, Set, Tuple, Value, parts_of
from services.grader.answers.verdict import Comparison, Verdict

_MAX_NAMES = 6
_MAX_LOOKED_FOR = 3


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
