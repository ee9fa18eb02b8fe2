r"""Units of measure by pint, and the few words for money, angles and counts that it does not have.

pint knows thousands of names, many of which are words. A name is a unit here only if it is no
everyday noun, and has no prefix but those that people write.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from answers.tokens import lexicon

Dimension = tuple[tuple[str, int], ...]  # sorted pairs of a base quantity and its power


@dataclass(frozen=True)
class Measure:
    """The dimension of a unit, and its size in base units."""

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
        dimension = sorted((base, power) for base, power in powers.items() if power)
        return Measure(tuple(dimension), self.size * other.size)


def _base(name: str, size: Fraction = Fraction(1)) -> Measure:
    return Measure(((name, 1),), size)


ANY = _base("any")
THINGS = _base("things")
PERCENT = _base("percent")
DEGREE = _base("degree")
RADIAN = _base("radian")

_CENT = _base("dollar", Fraction(1, 100))
_PER_MINUTE = Measure((("[time]", -1), ("things", 1)), Fraction(1, 60))
_MEASURES = {
    **dict.fromkeys(lexicon("dollar usd buck"), _base("dollar")),
    **dict.fromkeys(lexicon("cent penny pennie ¢"), _CENT),
    **dict.fromkeys(lexicon("euro eur"), _base("euro")),
    **dict.fromkeys(lexicon("percent pct percentage %"), PERCENT),
    **dict.fromkeys(lexicon("degree deg °"), DEGREE),
    **dict.fromkeys(lexicon("radian rad"), RADIAN),
    **dict.fromkeys(("degree c", "degree celsius"), _base("°c")),
    **dict.fromkeys(("degree f", "degree fahrenheit"), _base("°f")),
    **dict.fromkeys(("degree k", "degree kelvin"), _base("°k")),
    "unit": ANY,
    "rpm": _PER_MINUTE,
}
# Longer names come before the names that they contain.
_HAN_NAMES = """
千米=km 公里=km 厘米=cm 毫米=mm 分米=dm 米=m 千克=kg 公斤=kg 克=g 毫升=ml 升=L
小时=hour 分钟=minute 秒=s 天=day 年=year 度=degree 分=minute
"""
_HAN_UNITS = {"平方": "square ", "立方": "cubic "}
for _pair in _HAN_NAMES.split():
    _name, _unit = _pair.split("=")
    _HAN_UNITS[_name] = _unit
_HAN_UNIT = re.compile("|".join(_HAN_UNITS))
_LETTERS = frozenset("msghlLNVWJAΩ")
_NOUNS = lexicon(
    """
    point hand turn link chain pole bar rod stone count cycle slug barn gross score are pace grade
    line dot pixel bit byte particle member drop mole carat bag barrel board circle square cube
    dozen fin finger foot_ball head key lot mark nail palm perch pica scruple section shot skein
    span survey thou town twip can quarter last noggin register tot drum degree century abc abv ab
    """
)
_PREFIXES = lexicon("kilo centi milli micro mega giga nano deci hecto") | {""}
_PREFIXED = lexicon(
    """
    meter gram liter second watt volt ampere newton joule hertz pascal ohm calorie ton byte bit
    electron_volt farad mole bar watt_hour volt_ampere
    """
)
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_POWER = re.compile(
    r"""
    (?: (?P<before> square|sq|cubic|cu )\b \.?\ ? )?
    (?P<name> .+? )
    \ ? (?P<behind> squared | cubed | \^\ ?-?[1-9] | [²³] | ⁻[¹²³] )?
    """,
    re.VERBOSE,
)
_PER = re.compile(r" ?/ ?| per | an? ")
_PRODUCT = re.compile(r" ?(?:\\[,;: ]|\\cdot|[·⋅*]) ?")
_NAME = re.compile(
    r"[A-Za-zμΩ¢%°]{1,20}(?: (?:[cfk]|celsius|fahrenheit|kelvin|point))?", re.IGNORECASE
)


@lru_cache(4096)
def read_unit(unit: str) -> Measure | None:
    r"""Read a unit, such as ``kg m/s^2`` or ``miles per hour``; return None if it is no unit."""
    spelled = _HAN_UNIT.sub(lambda name: _HAN_UNITS[name[0]], _PRODUCT.sub(" ", unit))
    spelled = " ".join(re.sub("[.{}]", "", spelled).split())
    above, *below = _PER.split(spelled)
    measure = _read_product(above)
    are_words = above.replace(" ", "").isalpha() and not above.endswith(" of")
    if measure is None and below and are_words:
        measure = THINGS
    for text in below:
        divisor = _read_product(text)
        if measure is None or divisor is None:
            return None
        measure = measure.times(divisor.power(-1))
    return measure


def _read_product(text: str) -> Measure | None:
    whole = _read_power(text)
    if whole or " " not in text:
        return whole
    product = Measure(())
    for word in text.split():
        factor = _read_power(word)
        if factor is None:
            return None
        product = product.times(factor)
    return product


def _read_power(text: str) -> Measure | None:
    match = _POWER.fullmatch(text.strip())
    if match is None or not _NAME.fullmatch(match["name"]):
        return None
    measure = _read_simple(match["name"])
    power = _read_exponent(match["before"]) * _read_exponent(match["behind"])
    if measure is None or power == 1:
        return measure
    base = measure.dimension[0][0]
    if base == "any" or base.startswith("["):
        return measure.power(power)
    return None


def _read_exponent(mark: str | None) -> int:
    if not mark:
        return 1
    mark = mark.replace(" ", "").lower()
    digits = unicodedata.normalize("NFKC", mark.strip("^")).replace("−", "-")
    if mark in _POWERS:
        return _POWERS[mark]
    return int(digits)


def _read_simple(name: str) -> Measure | None:
    lower = name.lower().replace("degrees", "degree")
    singular = lower.removesuffix("s")
    measure = _MEASURES.get(lower) or _MEASURES.get(singular)
    if measure:
        return measure
    if len(name) == 1 and name not in _LETTERS:
        return None
    if lower in _NOUNS or singular in _NOUNS:
        return None
    measure = _read_by_pint(name)
    if measure is None and len(name) > 2:
        return _read_by_pint(lower, is_exact=False)
    return measure


def _read_by_pint(name: str, *, is_exact: bool = True) -> Measure | None:
    registry = _registry()
    names = registry.parse_unit_name(name, case_sensitive=is_exact)
    is_allowed = any(
        not prefix or (prefix in _PREFIXES and base in _PREFIXED) for prefix, base, _ in names
    )
    if not is_allowed:
        return None
    prefix, base = next(
        (prefix, base) for prefix, base, _ in names if not prefix or base in _PREFIXED
    )
    if not registry._units[base].is_multiplicative:
        return None  # a logarithm, as of decibels and decades
    quantity = registry.Quantity(Fraction(1), f"{prefix}{base}").to_root_units()
    powers = sorted((base, int(power)) for base, power in quantity.dimensionality.items())
    if powers:
        return Measure(tuple(powers), Fraction(quantity.magnitude))
    return None


@cache
def _registry() -> Any:
    """Load pint at the first unit: it takes half a second, and most answers have no unit."""
    import pint

    options: Any = {"non_int_type": Fraction}
    return pint.UnitRegistry(**options)
