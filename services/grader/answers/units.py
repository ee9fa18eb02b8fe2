r"""The words behind a number that are surely its unit: ``\text{ cm}``, but not ``\text{ squared}``.

A list of what is allowed, because any other word may change the number: ``\text{ factorial}``,
``\text{ base two}``, ``\text{ million}``, ``\text{ degrees below zero}``, ``\text{i}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LENGTHS = _names(
    """
    m km cm mm in inch inches ft foot feet yd yard yards mi mile miles meter meters metre metres
    centimeter centimeters centimetre centimetres millimeter millimeters kilometer kilometers
    kilometre kilometres unit units
    """
)
_TIMES = _names(
    """
    s sec secs second seconds min mins minute minutes h hr hrs hour hours day days week weeks month
    months year years
    """
)
_OTHER_MEASURES = _names(
    """
    g gram grams kg kilogram kilograms mg lb lbs pound pounds oz ounce ounces ton tons tonne tonnes
    l L ml mL kN newton newtons volt volts kV watt watts kW joule joules kJ ampere amperes amp amps
    mA ohm ohms hertz Hz khz mhz pascal pascals Pa kpa usd liter liters litre litres cup cups pint
    pints quart quarts gallon gallons teaspoon teaspoons tablespoon tablespoons degree degrees deg
    rad radian radians dollar dollars cent cents penny pennies percent mph kph rpm knots calories
    """
)
_THINGS = _names(
    """
    people person students student children child boys girls men women adults members players teams
    passengers voters workers friends guests teachers animals cats dogs birds fish cows chickens
    sheep horses rabbits bees eggs trees flowers plants apples oranges bananas cookies candies
    pizzas slices pieces meals servings sandwiches marbles balls beads coins cards stamps stickers
    tickets books pages words letters digits symbols problems questions tests games matches points
    votes nickels dimes revolutions seats chairs tables rooms houses cars buses trucks bicycles
    bottles cans boxes bags jars baskets bricks tiles blocks toothpicks socks shirts shoes pencils
    pens crayons toys widgets ways outfits combinations arrangements choices routes paths trips laps
    turns steps stairs rows columns sides edges faces vertices diagonals triangles rectangles lines
    solutions integers numbers divisors factors multiples values handshakes
    """
)
_MEASURES = _LENGTHS | _TIMES | _OTHER_MEASURES
_LETTERS = _names("N V W J A")  # outside of a text they are variables
_SQUARED_BELOW = re.compile(r"(?<= per )([a-z]+) squared\Z")
_OVER_TIME = re.compile(r"[a-z]+ per (?:s|sec|second|min|minute|h|hr|hour)")  # by TeX's 2 squared
_BEFORE_LENGTHS = {"square", "sq", "cubic", "cu"}


def unit_of(words: str, power: str | None, *, is_text: bool = False) -> str | None:
    """The unit that words and their power, 2 or 3, name; None if it is not surely a unit.

    ``is_text`` says that they stand in a ``\\text{}``, where ``N`` is no variable.
    """
    unit = " ".join(words.replace(".", "").replace("/", " per ").split())
    unit = _SQUARED_BELOW.sub(r"\1²", unit)
    name = unit if len(unit) < 3 else unit.lower()  # M is no metre
    if power is not None:
        is_acceleration = power == "2" and _OVER_TIME.fullmatch(name) and _is_unit(name)
        is_power = name in _LENGTHS or is_acceleration
        return unit + {"2": "²", "3": "³"}[power] if is_power else None
    return unit if _is_unit(name) or (is_text and unit in _LETTERS) else None


def _is_unit(unit: str) -> bool:
    over, per, under = re.sub(r" (?:a|an) ", " per ", unit).partition(" per ")
    if per:
        below = under.removesuffix("²") if over in _LENGTHS else under
        return over in _MEASURES | _THINGS and below in _MEASURES | _THINGS
    before, _, length = unit.partition(" ")
    return unit in _MEASURES | _THINGS or (before in _BEFORE_LENGTHS and length in _LENGTHS)


@dataclass(frozen=True)
class Measure:
    """What a unit measures, and its size; units of one dimension can be converted."""

    dimension: str
    size: Fraction = Fraction(1)


ANY = Measure("any")  # "units", or what no list of units has
THINGS = Measure("things")

_SIZES: dict[str, tuple[str, Fraction]] = {}
for _dimension, _table in {
    "length": "m:1 km:1000 cm:0.01 mm:0.001 in:0.0254 ft:0.3048 yd:0.9144 mi:1609.344",
    "time": "s:1 min:60 h:3600 day:86400 week:604800",
    "months": "month:1 year:12",
    "mass": "g:1 kg:1000 mg:0.001 tonne:1000000",
    "weight": "lb:1 oz:1/16",
    "litres": "l:1 ml:0.001",
    "cups": "cup:1 pint:2 quart:4 gallon:16 tablespoon:1/16 teaspoon:1/48",
    "money": "dollar:1 cent:0.01",
    "force": "N:1 kN:1000",
    "voltage": "V:1 kV:1000",
    "power": "W:1 kW:1000",
    "energy": "J:1 kJ:1000",
    "current": "A:1 mA:0.001",
    "frequency": "Hz:1 khz:1000 mhz:1000000",
    "pressure": "Pa:1 kpa:1000",
}.items():
    for _entry in _table.split():
        _name, _, _size = _entry.partition(":")
        _SIZES[_name] = _dimension, Fraction(_size)

_SHORT = {
    alias: name
    for name, aliases in {
        "m": "meter metre",
        "km": "kilometer kilometre",
        "cm": "centimeter centimetre",
        "mm": "millimeter",
        "in": "inch inche",
        "ft": "foot feet",
        "yd": "yard",
        "mi": "mile",
        "s": "sec second",
        "min": "minute",
        "h": "hr hour",
        "g": "gram",
        "kg": "kilogram",
        "lb": "pound",
        "oz": "ounce",
        "l": "L liter litre",
        "ml": "mL milliliter",
        "N": "newton",
        "V": "volt",
        "W": "watt",
        "J": "joule",
        "A": "ampere amp",
        "Hz": "hertz",
        "Pa": "pascal",
        "dollar": "usd",
        "cent": "penny pennie ¢",
        "degree": "deg",
        "radian": "rad",
    }.items()
    for alias in aliases.split()
}
_DEGREES_IN = {
    "degree": 1 / Fraction("57.2958"),
    "radian": Fraction("57.2958"),
}  # about, for conversions
_WRITTEN_OUT = {
    "mph": "miles per hour",
    "kph": "km per hour",
    "rpm": "revolutions per minute",
}


@cache
def measure_of(unit: str) -> Measure:
    """What a unit that `unit_of` knows stands for."""
    unit = _WRITTEN_OUT.get(unit, unit)
    over, per, under = re.sub(r" (?:a|an) ", " per ", unit).partition(" per ")
    if per:
        above, below = measure_of(over), measure_of(under)
        if ANY in (above, below):
            return ANY
        return Measure(f"{above.dimension}/{below.dimension}", above.size / below.size)
    before, _, length = unit.rpartition(" ")
    power = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}.get(before, 1)
    if unit[-1] in "²³":
        length, power = unit[:-1], "²³".index(unit[-1]) + 2
    return _simple_measure(length, power)


@cache
def conversions_of(unit: str) -> frozenset[Fraction]:
    """What one of this unit is in the others of its dimension, such as 60 or 1/24 for an hour."""
    measure = measure_of(unit)
    if measure.dimension in _DEGREES_IN:
        return frozenset({_DEGREES_IN[measure.dimension]})
    sizes = _sizes(measure.dimension)
    return frozenset(measure.size / size for size in sizes if size != measure.size)


def _sizes(dimension: str) -> list[Fraction]:
    over, per, under = dimension.partition("/")
    if per:
        return [above / below for above in _sizes(over) for below in _sizes(under)]
    name, _, power = over.partition("^")
    return [size ** int(power or 1) for each, size in _SIZES.values() if each == name]


def _simple_measure(unit: str, power: int) -> Measure:
    name = unit if len(unit) < 3 else unit.lower()
    name = _SHORT.get(name, name)
    name = name.removesuffix("s") if len(name) > 1 else name
    name = _SHORT.get(name, name)
    if name in _SIZES:
        dimension, size = _SIZES[name]
        return Measure(f"{dimension}^{power}" if power > 1 else dimension, size**power)
    if name in ("degree", "radian", "percent"):
        return Measure(name)
    if unit in _THINGS:
        return THINGS
    return ANY if name == "unit" else Measure(name)
