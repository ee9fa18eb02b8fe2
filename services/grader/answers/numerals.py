"""Plain numbers: integers, decimals, fractions, mixed numbers; exact, without computer algebra."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import inf

_MAX_DIGITS = 1_200  # above, CPython's int() takes its time, and from 4300 it refuses
_MIN_PLACES = 6  # decimals from which a rounded value may stand for an exact one
_MAX_ROUNDING = Decimal("5e-6")  # relative to the exact value

_NUMBER = re.compile(
    r"(?P<sign>[+-]?) ?(?:"
    r"(?P<integer>[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]*+)"
    r"(?:\.(?P<decimals>[0-9]*+)(?:\\(?:overline|bar|dot) ?\{?(?P<period>[0-9]++)\}?)?)?"
    r"|(?:(?P<whole>[0-9]++) )?(?P<over>[0-9]++) ?/ ?(?P<under>[0-9]++)"
    r"|(?P<plus>[0-9]++)? ?\\frac ?\{ ?(?P<top>-?[0-9]++) ?\} ?\{ ?(?P<bottom>-?[0-9]++) ?\}"
    r") ?(?P<percent>%?)"
)
_DIGITS = r"(?:[0-9A-F]+|(?=[a-f]*[0-9])[0-9a-f]+)"  # a_2 is a letter with an index
_BASED = re.compile(
    rf"(?:(?P<plain>{_DIGITS})|\((?P<enclosed>{_DIGITS})\)|\\text ?\{{ ?(?P<text>{_DIGITS}) ?\}})"
    r" ?(?:_ ?(?:(?P<base>[0-9])|\{ ?(?:\\text ?\{)? ?\(?(?P<index>[0-9]+|[a-z]+)\)? ?\}?\})"
    r"|(?:\\text ?\{)? ?\(?(?:in )?base[ -]?\}? ?(?P<said>[0-9]+|[a-z]+)\)? ?\}?)"
)
_SMALL_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_BASES = {name: base for base, name in enumerate((*_SMALL_BASES, "eleven", "twelve"), start=2)}


@dataclass(frozen=True)
class Number:
    """A plain number: its exact value, how many decimals were written, whether it is a percentage.

    ``places`` is None for integers and fractions. The value of 12% is 3/25.
    """

    value: Fraction
    places: int | None = None
    is_percentage: bool = False


@dataclass(frozen=True)
class Numeral:
    """Digits in a base that is named, such as ``1011_2``."""

    digits: str
    base: int


def parse_number(latex: str) -> Number | None:
    r"""Read tidied LaTeX as an integer, decimal, fraction or mixed number; None if it is not."""
    if len(latex) > _MAX_DIGITS:
        return None
    if latex.isdigit() and latex.isascii():
        return Number(Fraction(int(latex)))
    match = _NUMBER.fullmatch(latex)
    if match is None:
        return None
    value = _magnitude(match)
    if value is None:
        return None
    percent = match["percent"] == "%"
    places = None if match["decimals"] is None or match["period"] else len(match["decimals"])
    if percent:
        value, places = value / 100, None if places is None else places + 2
    return Number(-value if match["sign"] == "-" else value, places, percent)


def parse_numeral(latex: str) -> Numeral | None:
    r"""Read ``204_5``, ``(204)_{\text{five}}``, ``204\text{ base 5}``; None if it is none."""
    match = _BASED.fullmatch(latex)
    if match is None:
        return None
    base = match["base"] or match["index"] or match["said"]
    number = int(base) if base.isdigit() and len(base) < 3 else _BASES.get(base, 0)
    digits = (match["plain"] or match["enclosed"] or match["text"]).upper().lstrip("0") or "0"
    return Numeral(digits, number) if int(max(digits), 16) < number else None


def same_numerals(gold: str, answer: str) -> bool | None:
    """Numbers in a named base are the same if their digits are: to convert was the question.

    None if no base is named.
    """
    if not any(mark in text for text in (gold, answer) for mark in ("_", "base")):
        return None
    numeral, other = parse_numeral(gold), parse_numeral(answer)
    if numeral is None:
        return None if other is None else other.base == 10 and other.digits == gold
    if other is None:
        return (answer.upper().lstrip("0") or "0") == numeral.digits
    return numeral == other


def is_rounding(decimal: Number, exact: Decimal, *, least_places: int = _MIN_PLACES) -> bool:
    """Whether a decimal is the exact value, correctly rounded to enough places to stand for it."""
    if decimal.places is None or decimal.places < least_places:
        return False
    rounding = Decimal(5).scaleb(-decimal.places - 1)
    value = Decimal(decimal.value.numerator) / Decimal(decimal.value.denominator)
    is_precise = least_places < _MIN_PLACES or rounding <= _MAX_ROUNDING * abs(exact)
    return is_precise and abs(exact - value) <= rounding


def numbers_agree(gold: Number, answer: Number) -> bool:
    """Equal, or an exact value and its decimals, at least six of them, correctly rounded.

    A percentage as gold also accepts its bare number: its question asks "what percentage".
    """
    if gold.value == answer.value:
        return True
    if gold.is_percentage and not answer.is_percentage:
        return answer.value == 100 * gold.value
    if gold.places is None and answer.places is None:
        return False
    decimal, exact = sorted((gold, answer), key=_places)
    return is_rounding(decimal, Decimal(exact.value.numerator) / exact.value.denominator)


def _places(number: Number) -> float:
    return inf if number.places is None else number.places


def _magnitude(match: re.Match[str]) -> Fraction | None:
    if match["top"] is not None:
        return _fraction(match["plus"], match["top"], match["bottom"])
    if match["over"] is not None:
        return _fraction(match["whole"], match["over"], match["under"])
    digits = (match["integer"] or "").replace(",", "").replace(" ", "")
    decimals, period = match["decimals"] or "", match["period"] or ""
    if not digits + decimals + period:
        return None
    value = Fraction(int(digits + decimals or "0"), 10 ** len(decimals))
    if period:
        value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(decimals))
    return value


def _fraction(whole: str | None, over: str, under: str) -> Fraction | None:
    """None also for a mixed number that is none, such as ``1 5/4``."""
    top, bottom = int(over), int(under)
    if whole is None:
        return Fraction(top, bottom) if bottom else None
    return int(whole) + Fraction(top, bottom) if 0 < top < bottom else None
