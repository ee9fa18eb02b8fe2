r"""The ways to write numbers, and which of them a text may use.

``2,5`` is a list or a number, ``12 000`` two numbers or one, ``1.234`` small or large, ``$5`` money
or LaTeX, and a dash that opens a line a bullet or a sign. A text is read in every way that it may
mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

_MAX_CHARS = 30_000  # longer texts are read in one way, for time
_COMMA = r"(?:,|\{,\})"


def _groups(first: str, separator: str) -> str:
    """Thousands, such as ``1,234,567``."""
    return rf"{first}(?:{separator}[0-9]{{3}}){{1,6}}(?!{separator}?[0-9])"


_BY_COMMAS = _groups("[0-9]{1,3}", rf"(?:{_COMMA}|,\\!|\\,)")
_BY_BLANKS = _groups("[1-9][0-9]{0,2}", r"(?:[ ~]|\\,)")
_BY_POINTS = _groups("[1-9][0-9]{0,2}", r"(?:[ ~.]|\\,)")


@dataclass(frozen=True)
class Notation:
    """The pattern of a number, if commas mark its decimals, and what dashes and dollars are."""

    number: str = rf"(?:{_BY_COMMAS}|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++"
    has_decimal_commas: bool = False
    dash_is_sign: bool = False  # where it opens a line
    dollar_is_money: bool = False

    def plain(self, number: str) -> str:
        """A number as Python writes it."""
        written = number.replace("{,}", ",").replace(r"\,", " ")
        if self.has_decimal_commas and ("," in written or re.fullmatch(_BY_POINTS, written)):
            return re.sub("[^0-9,]", "", written).replace(",", ".")
        return re.sub("[^0-9.]", "", written)


USUAL = Notation()
_BLANKS = rf"(?:{_BY_BLANKS}|{_BY_COMMAS}|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++"
_DECIMAL_COMMAS = rf"{_BY_POINTS}(?:{_COMMA}[0-9]++)?|[0-9]++(?:(?:{_COMMA}|\.)[0-9]++)?|\.[0-9]++"
_MAY_HAVE_BLANKS = re.compile(r"[0-9][ ~][0-9]{3}(?![0-9])")
_MAY_HAVE_DECIMAL_COMMAS = re.compile(rf"[0-9]{_COMMA}[0-9]|[0-9]\.[0-9]{{3}}(?![0-9])")
_DOLLAR_MAY_BE_MONEY = re.compile(r"\$[0-9.]")
_DOLLAR, _PARAGRAPH = re.compile(r"(?<!\\)\$"), re.compile(r"\n[^\S\n]*+\n")
_DASH_MAY_BE_SIGN = re.compile(r"^[^\S\n]*+-[^\S\n]++(?=[0-9(])", re.MULTILINE)


def notations(text: str) -> list[Notation]:
    """All that the text may use; the usual one first."""
    if len(text) > _MAX_CHARS:
        return [USUAL]
    numbers = [(USUAL.number, False)]
    if _MAY_HAVE_BLANKS.search(text):
        numbers.append((_BLANKS, False))
    if _MAY_HAVE_DECIMAL_COMMAS.search(text):
        numbers.append((_DECIMAL_COMMAS, True))
    dashes = [False, True] if _DASH_MAY_BE_SIGN.search(text) else [False]
    dollars = [False, True] if _DOLLAR_MAY_BE_MONEY.search(text) else [False]
    if dollars[-1] and any(len(_DOLLAR.findall(each)) % 2 for each in _PARAGRAPH.split(text)):
        dollars = [True]  # LaTeX has them in pairs
    return [
        Notation(*number, dash_is_sign=dash, dollar_is_money=dollar)
        for dollar, dash, number in product(dollars, dashes, numbers)
    ]
