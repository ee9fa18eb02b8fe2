"""The numbers in problems and answers, and how the numbers of a problem may change.

Numbers are compared by nine digits, without signs, and as hundredths.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise
from random import Random

from answers.grammar import read_expression
from answers.nodes import Unreadable
from answers.steps.evaluation import NoValue, Value, evaluate

_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?|\.\d+)(\s?\\?%|\s?percent)?(?:\s?/\s?(\d+))?")
_NUMBER_WORDS = """
1 one once single another first
2 two twice half halves double doubled doubles pair both couple second
3 three third thirds thrice triple tripled
4 four quarter quarters fourth fourths
5 five fifth fifths nickel nickels
6 six sixth
7 seven seventh
8 eight eighth eighths
9 nine ninth
10 ten tenth decade dime dimes
11 eleven
12 twelve dozen dozens
13 thirteen
14 fourteen
15 fifteen
16 sixteen
17 seventeen
18 eighteen
19 nineteen
20 twenty
30 thirty
40 forty
50 fifty
60 sixty
70 seventy
80 eighty
90 ninety
100 hundred
1000 thousand
"""
_NAMED_NUMBERS = {
    name: float(number)
    for number, *names in map(str.split, _NUMBER_WORDS.strip().splitlines())
    for name in names
}
# 1 - 0.2, a square, a half: these do not change with a problem.
_FIXED = frozenset({0, 1, 2, 100})


def read_changes(problem: str) -> dict[float, float]:
    """Return the numbers of a problem, in digits or words, with the factors by which they change.

    The remainders of percentages and fractions change with them.
    """
    numbers = list[float]()
    changed = dict[float, float]()
    for digits, percent, bottom in _NUMBER.findall(problem):
        number = _to_float(digits)
        numbers.append(number)
        if percent:
            changed[100 - number] = 100 - _change(number)
            changed[100 + number] = 100 + _change(number)
        if bottom:
            whole = float(bottom)
            numbers.append(whole)
            changed[whole - number] = _change(whole) - _change(number)
    words = re.findall("[a-z]+", problem.lower())
    named = [_NAMED_NUMBERS.get(word, 0.0) for word in words]
    numbers += filter(None, named)
    numbers += (tens + ones for tens, ones in pairwise(named) if tens >= 20 > ones > 0)
    changed |= {number: _change(number) for number in numbers}
    factors = dict[float, float]()
    for number, after in changed.items():
        factors[get_key(number)] = after / number if number else 1.0
    return factors


def _change(number: float) -> float:
    if number in _FIXED:
        return number
    return number * Random(number).uniform(1.1, 1.5)


def _to_float(digits: str) -> float:
    return float(digits.replace(",", ""))


def read_plain_numbers(problem: str) -> set[float]:
    """Return the numbers in digits that are no percentages and no part of a fraction."""
    numbers = _NUMBER.findall(problem)
    return {
        get_key(_to_float(digits)) for digits, percent, bottom in numbers if not percent + bottom
    }


def read_goals(answer: str) -> set[float]:
    """Return the values of the parts of an answer."""
    goals = set[float]()
    for part in answer.replace(r"\$", "").split(", "):
        numbers = {get_key(_to_float(digits)) for digits, *_ in _NUMBER.findall(part)}
        try:
            goals.add(get_key(evaluate(read_expression(part))[0]))
        except KeyError:  # a formula
            continue
        except (Unreadable, NoValue):
            goals |= numbers if len(numbers) == 1 else set()
        else:
            goals |= numbers if re.search("pi|sqrt", part) else set()
    return goals


def get_key(number: Value) -> float:
    return float(f"{abs(float(number)):.9g}")


def find_match(numbers: Collection[float], number: float) -> float | None:
    """Return the number among others, or its hundredth or hundredfold if one is no integer."""
    if number in numbers:
        return number
    for other in (get_key(number * 100), get_key(number / 100)):
        are_integers = number.is_integer() and other.is_integer()
        if other in numbers and not are_integers:
            return other
    return None


def compute_share(numbers: Collection[float], found_numbers: Collection[float]) -> float:
    """Return the share of numbers that are among others."""
    if not numbers:
        return 1.0
    num_matches = sum(find_match(found_numbers, number) is not None for number in numbers)
    return num_matches / len(numbers)
