r"""Units of measure by pint, and the few words for money, angles and counts that it does not have.

pint knows thousands of names, many of which are words: what it takes for a unit is one only if it
is no everyday noun, and has no prefix but those that people write.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from answers.tokens import lexicon

Dimension = tuple[tuple[str, int], ...]  # of each base quantity its power, in order


@dataclass(frozen=True)
class Measure:
    dimension: Dimension
    size: Fraction = Fraction(1)

    @property
    def is_any(self) -> bool:
        return any(base == "any" for base, _ in self.dimension)

    def power(self, exponent: int) -> Measure:
        dimension = tuple((base, power * exponent) for base, power in self.dimension)
        return Measure(dimension, self.size**exponent)

    def times(self, other: Measure) -> Measure:
        powers = dict(self.dimension)
        for base, power in other.dimension:
            powers[base] = powers.get(base, 0) + power
        kept = tuple(sorted((base, power) for base, power in powers.items() if power))
        return Measure(kept, self.size * other.size)


def _base(name: str, size: Fraction = Fraction(1)) -> Measure:
    return Measure(((name, 1),), size)


ANY, THINGS, PERCENT, DEGREE, RADIAN = map(_base, ("any", "things", "percent", "degree", "radian"))

_OWN = {
    **dict.fromkeys(("dollar", "usd", "buck"), _base("dollar")),
    **dict.fromkeys(("cent", "penny", "pennie", "¢"), _base("dollar", Fraction(1, 100))),
    **dict.fromkeys(("euro", "eur"), _base("euro")),
    **dict.fromkeys(("percent", "pct", "percentage", "%"), PERCENT),
    **dict.fromkeys(("degree", "deg", "°"), DEGREE),
    **dict.fromkeys(("radian", "rad"), RADIAN),
    **{
        f"degree {name[:size]}": _base(f"°{name[0]}")
        for name in ("celsius", "fahrenheit", "kelvin")
        for size in (1, len(name))
    },
    "unit": ANY,
    "rpm": Measure((("[time]", -1), ("things", 1)), Fraction(1, 60)),
}
_HAN_UNITS = {"平方": "square ", "立方": "cubic ", "千米": "km", "公里": "km", "厘米": "cm"}
_HAN_UNITS |= {"毫米": "mm", "分米": "dm", "米": "m", "千克": "kg", "公斤": "kg", "克": "g"}
_HAN_UNITS |= {"毫升": "ml", "升": "L", "小时": "hour", "分钟": "minute", "秒": "s", "天": "day"}
_HAN_UNITS |= {"年": "year", "度": "degree", "分": "minute"}
_HAN_UNIT = re.compile("|".join(_HAN_UNITS))
_LETTERS = frozenset("msghlLNVWJAΩ")
_NOUNS = lexicon(
    "point hand turn link chain pole bar rod stone count cycle slug barn gross score are pace "
    "grade line dot pixel bit byte particle member drop mole carat bag barrel board circle "
    "square cube dozen fin finger foot_ball head key lot mark nail palm perch pica scruple "
    "section shot skein span survey thou town twip can quarter last noggin register tot drum "
    "degree century abc abv ab"
)
_PREFIXES = lexicon("kilo centi milli micro mega giga nano deci hecto") | {""}
_PREFIXED = lexicon(
    "meter gram liter second watt volt ampere newton joule hertz pascal ohm calorie ton byte "
    "bit electron_volt farad mole bar watt_hour volt_ampere"
)
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_POWER = re.compile(r"(?:(?P<before>square|sq|cubic|cu)\b\.? ?)?(?P<name>.+?)"
                    r" ?(?P<behind>squared|cubed|\^ ?-?[1-9]|[²³]|⁻[¹²³])?")  # fmt: skip
_PER = re.compile(r" ?/ ?| per | an? ")
_PRODUCT = re.compile(r" ?(?:\\[,;: ]|\\cdot|[·⋅*]) ?")
_NAME = re.compile(
    r"[A-Za-zμΩ¢%°]{1,20}(?: (?:[cfk]|celsius|fahrenheit|kelvin|point))?", re.IGNORECASE
)


@lru_cache(4096)
def measure_of(unit: str) -> Measure | None:
    r"""What a unit measures: ``kg m/s^2``, ``miles per hour``, ``square ft``; None: nothing."""
    spelled = _HAN_UNIT.sub(lambda name: _HAN_UNITS[name[0]], _PRODUCT.sub(" ", unit))
    over, *unders = _PER.split(" ".join(re.sub("[.{}]", "", spelled).split()))
    above, below = _product(over), list(map(_product, unders))
    if above is None and unders and over.replace(" ", "").isalpha() and not over.endswith(" of"):
        above = THINGS
    for under in below:
        above = above.times(under.power(-1)) if above and under else None
    return above


def _product(text: str) -> Measure | None:
    if (whole := _powered(text)) or " " not in text:
        return whole
    total = _base("things").power(0)
    for each in map(_powered, text.split()):
        if each is None:
            return None
        total = total.times(each)
    return total


def _powered(text: str) -> Measure | None:
    match = _POWER.fullmatch(text.strip())
    if match is None or not _NAME.fullmatch(match["name"]):
        return None
    power = 1
    for mark in (match["before"], match["behind"]):
        power *= _power(mark.replace(" ", "").lower()) if mark else 1
    simple = _simple(match["name"])
    return simple.power(power) if simple and (power == 1 or _is_raised(simple)) else None


def _power(mark: str) -> int:
    return _POWERS.get(mark) or int(
        unicodedata.normalize("NFKC", mark.strip("^")).replace("−", "-")
    )


def _is_raised(measure: Measure) -> bool:
    return measure.dimension[0][0] == "any" or measure.dimension[0][0].startswith("[")


def _simple(name: str) -> Measure | None:
    lower = name.lower().replace("degrees", "degree")
    for each in (lower, lower.removesuffix("s")):
        if each in _OWN:
            return _OWN[each]
    if len(name) == 1 and name not in _LETTERS:
        return None
    if lower in _NOUNS or lower.removesuffix("s") in _NOUNS:
        return None
    return _by_pint(name) or (_by_pint(lower, is_exact=False) if len(name) > 2 else None)


def _by_pint(name: str, *, is_exact: bool = True) -> Measure | None:
    registry = _registry()
    names = registry.parse_unit_name(name, case_sensitive=is_exact)
    allowed = (n for p, n, _ in names if not p or (p in _PREFIXES and n in _PREFIXED))
    if not next(allowed, None):
        return None
    prefix, base, _ = next(n for n in names if not n[0] or n[1] in _PREFIXED)
    if not registry._units[base].is_multiplicative:
        return None  # a logarithm, as of decibels and decades
    quantity = registry.Quantity(Fraction(1), f"{prefix}{base}").to_root_units()
    dimension = tuple(sorted((name, int(power)) for name, power in quantity.dimensionality.items()))
    return Measure(dimension, Fraction(quantity.magnitude)) if dimension else None


@cache
def _registry() -> Any:
    """Loaded at the first unit: it takes half a second, and most answers have none."""
    import pint

    options: Any = {"non_int_type": Fraction}
    return pint.UnitRegistry(**options)
