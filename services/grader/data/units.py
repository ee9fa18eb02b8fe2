r"""The words behind a number that are surely its unit: ``\text{ cm}``, but not ``\text{ squared}``.

A list of what is allowed, because any other word may change the number: ``\text{ factorial}``,
``\text{ base two}``, ``\text{ million}``, ``\text{ degrees below zero}``, ``\text{i}``.
"""

from __future__ import annotations

import re


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
    l L ml mL liter liters litre litres cup cups pint pints quart quarts gallon gallons teaspoon
    teaspoons tablespoon tablespoons degree degrees radian radians dollar dollars cent cents penny
    pennies nickels dimes percent mph kph rpm knots calories revolutions
    """
)
_THINGS = _names(
    """
    people person students student children child boys girls men women adults members players teams
    passengers voters workers friends guests teachers animals cats dogs birds fish cows chickens
    sheep horses rabbits bees eggs trees flowers plants apples oranges bananas cookies candies
    pizzas slices pieces meals servings sandwiches marbles balls beads coins cards stamps stickers
    tickets books pages words letters digits symbols problems questions tests games matches points
    votes seats chairs tables rooms houses cars buses trucks bicycles bottles cans boxes bags
    jars baskets bricks tiles blocks toothpicks socks shirts shoes pencils pens crayons toys widgets
    ways outfits combinations arrangements choices routes paths trips laps turns steps stairs rows
    columns sides edges faces vertices diagonals triangles rectangles lines solutions integers
    numbers divisors factors multiples values handshakes
    """
)
_MEASURES = _LENGTHS | _TIMES | _OTHER_MEASURES
_BEFORE_LENGTHS = {"square", "sq", "cubic", "cu"}


def unit_of(words: str, power: str | None) -> str | None:
    """The unit that a text and its power, 2 or 3, name; None if it is not surely a unit."""
    unit = " ".join(words.replace(".", "").replace("/", " per ").split())
    name = unit if len(unit) < 3 else unit.lower()  # M is no metre
    if power is not None:
        return unit + {"2": "²", "3": "³"}[power] if name in _LENGTHS else None
    return unit if _is_unit(name) else None


def _is_unit(unit: str) -> bool:
    over, per, under = re.sub(r" (?:a|an) ", " per ", unit).partition(" per ")
    if per:
        return over in _MEASURES | _THINGS and under in _MEASURES | _THINGS
    before, _, length = unit.partition(" ")
    return unit in _MEASURES | _THINGS or (before in _BEFORE_LENGTHS and length in _LENGTHS)
