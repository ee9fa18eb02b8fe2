r"""The ways to write numbers, and which of them a text may use.

``2,5`` is a list or a number, ``12 000`` two numbers or one, ``1.234`` small or large, ``$5`` money
or LaTeX, and a dash that opens a line a bullet or a sign. All that a text may use are tried on a
`sample` of it, and one is used for all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice, product

_SAMPLE_CHARS = 30_000  # on which notations are tried, for time
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
    star_is_operation: bool = False  # that a problem defines, and no product

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


_MAY_BE_READ_APART = (_MAY_HAVE_BLANKS, _MAY_HAVE_DECIMAL_COMMAS, _DASH_MAY_BE_SIGN, _DOLLAR)
_STAR = r"(?<![a-zA-Z\\])([a-zA-Z])[ }]{0,2}(?:\*|\\ast(?![a-z]))[ {]{0,2}([a-zA-Z])(?![a-zA-Z])"
_STAR_HAS_RULE = re.compile(_STAR + r"[ )$]{0,3}=[^=\n]{0,60}?\b(?:\1|\2)\b")
_STAR_OF_LETTERS, _DEFINES = re.compile(_STAR), re.compile(r"(?i)defin|operation")


def notations(text: str, problem: str = "") -> list[Notation]:
    """All that the text may use; the usual one first."""
    numbers = [(USUAL.number, False)]
    if _MAY_HAVE_BLANKS.search(text):
        numbers.append((_BLANKS, False))
    if _MAY_HAVE_DECIMAL_COMMAS.search(text):
        numbers.append((_DECIMAL_COMMAS, True))
    dashes = [False, True] if _DASH_MAY_BE_SIGN.search(text) else [False]
    dollars = [False, True] if _DOLLAR_MAY_BE_MONEY.search(text) else [False]
    if dollars[-1] and any(len(_DOLLAR.findall(each)) % 2 for each in _PARAGRAPH.split(text)):
        dollars = [True]  # LaTeX has them in pairs
    star = _defines_star(text) or _defines_star(problem)
    return [
        Notation(*number, dash_is_sign=dash, dollar_is_money=dollar, star_is_operation=star)
        for dollar, dash, number in product(dollars, dashes, numbers)
    ]


def sample(text: str) -> str:
    """As much of a text as notations are tried on: of a long one the lines that they may change."""
    if len(text) <= _SAMPLE_CHARS:
        return text
    lines = text.splitlines(keepends=True)
    apart = (line for line in lines if any(each.search(line) for each in _MAY_BE_READ_APART))
    return "".join(islice(apart, _SAMPLE_CHARS))[:_SAMPLE_CHARS]


def _defines_star(text: str) -> bool:
    """Whether ``*`` is an operation of the text's own: ``a * b = a + 2b``."""
    if _STAR_HAS_RULE.search(text):
        return True
    return bool(_STAR_OF_LETTERS.search(text) and _DEFINES.search(text))
