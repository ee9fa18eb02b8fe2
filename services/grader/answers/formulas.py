r"""LaTeX to a formula: letters, numbers, ``\frac``, ``\sqrt``, ``\pi``, brackets, whole powers.

Everything else is refused, so that nothing is ever half understood. Brackets, numbers and terms are
bounded here; how much work a text may make as a whole is up to `work`.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from fractions import Fraction

from services.grader.answers.exact import PI, Exact, TooHard
from services.grader.answers.polynomials import Formula

MAX_CHARS = 400
_MAX_DIGITS = 1_200
_MAX_DEPTH = 20
_MAX_EXPONENT = 10**6

_TOKEN = re.compile(
    r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
    r"|\\(?:vec|hat) ?(?:\{ ?[a-zA-Z] ?\}|(?<= )[a-zA-Z])|\\[a-zA-Z]+"
    r"|[a-zA-Z](?:_(?:[0-9a-zA-Z]|\{[0-9a-zA-Z]+\}))?|\S"
)
_NAMES = "sin|cos|tan|cot|sec|csc|log|ln|exp|lim|max|min|gcd|lcm|mod|det|arg|deg|dim|inf"
_WORDLIKE = re.compile(rf"(?<![\\a-zA-Z])[a-zA-Z]{{4}}|(?<![\\a-zA-Z])[a-zA-Z]?(?:{_NAMES})")
_CALL = re.compile(r"(?<![\\a-zA-Z])[fghA-Z](?:_\w)?\(")
_TIMES = frozenset({"*", r"\cdot", r"\times"})
_OVER = frozenset({"/", r"\div"})
SMALL_GREEK = tuple(
    re.findall(
        r"\w+",
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu "
        "xi rho sigma tau phi varphi chi psi omega",
    )
)
LARGE_GREEK = ("Delta", "Sigma", "Omega")
_GREEK = frozenset(rf"\{name}" for name in (*SMALL_GREEK, *LARGE_GREEK, "ell"))
_VECTOR = re.compile(r"\\(?:vec|hat)(?![a-zA-Z])")
_REMAINDER = re.compile(r"([0-9]+) ?\\bmod ?([0-9]+)")
_BEGINS_NUMBER = frozenset("0123456789")
_ENDS_FACTOR = frozenset(string.ascii_letters + ")}")
_STARTS = frozenset({r"\frac", r"\sqrt", r"\pi", "(", "{"}) | _GREEK


def read_formula(latex: str) -> Formula:
    r"""The formula that tidied LaTeX is.

    Raises:
        TooHard: for whatever is not one formula of these plain kinds; the text says why.
    """
    if len(latex) > MAX_CHARS:
        raise TooHard("a very long expression")
    if _WORDLIKE.search(latex) or _CALL.search(latex):
        raise TooHard("a word or a function, not a product of letters")
    if _VECTOR.search(latex) and r"\times" in latex:
        raise TooHard("perhaps a product of vectors, whose order matters")
    if (match := _REMAINDER.fullmatch(latex)) and (modulus := int(match[2])):
        return Formula.of(Exact.of(int(match[1]) % modulus))
    reader = _Reader([*_TOKEN.findall(latex), ""])
    value = reader.sum()
    if reader.next:
        raise TooHard(f"{''.join(reader.tokens[reader.at :])[:20]!r} cannot be read")
    return value


def formula_or_none(latex: str) -> Formula | None:
    """The formula that tidied LaTeX is, if it is one of the plain kinds."""
    try:
        return read_formula(latex)
    except TooHard:
        return None


def is_number(latex: str) -> bool:
    """Whether this is a formula without letters."""
    formula = formula_or_none(latex)
    return formula is not None and not formula.letters


def read_number(latex: str) -> Exact:
    """The exact real number that tidied LaTeX is.

    Raises:
        TooHard: for whatever is not one number of a plain kind; the text says why.
    """
    number = read_formula(latex).number
    if number is None:
        raise TooHard("an expression with letters, or a division by a longer irrational sum")
    return number


@dataclass
class _Reader:
    """Recursive descent over tokens; ``at`` is the next one, the last is empty."""

    tokens: list[str]
    at: int = 0
    depth: int = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at]

    def take(self) -> str:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def takes(self, token: str) -> bool:
        found = self.tokens[self.at] == token
        self.at += found
        return found

    def refuse(self) -> TooHard:
        return TooHard(f"{''.join(self.tokens[self.at :])[:20]!r} cannot be read")

    def sum(self) -> Formula:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise TooHard("brackets nested too deeply")
        total = self.signed()
        while self.next in ("+", "-"):
            total = total + self.signed()
        self.depth -= 1
        return total

    def signed(self) -> Formula:
        """A product behind its signs; in ``3 + -2`` there are two."""
        negative = False
        while self.next in ("+", "-"):
            negative ^= self.take() == "-"
        return -self.product() if negative else self.product()

    def product(self) -> Formula:
        """Factors side by side, or with operators; ``1/2π`` is refused: it is read in two ways."""
        value, divided = self.factor(), False
        while True:
            token = self.next
            if token in _TIMES:
                self.at += 1
                value = value * self.signed_factor()
            elif token in _OVER:
                self.at += 1
                value, divided = value * self.factor().inverse(), True
            elif not self.begins_factor(token):
                return value
            elif divided:
                raise TooHard("a product after a slash, which is read in two ways")
            else:
                value = value * self.factor()

    def begins_factor(self, token: str) -> bool:
        """A number begins one only if it is raised, and what stands before it is no number."""
        if token[:1] in _BEGINS_NUMBER and self.at + 1 < len(self.tokens):
            return self.tokens[self.at + 1] == "^" and self.tokens[self.at - 1][-1] in _ENDS_FACTOR
        return token in _STARTS or token[:1].isalpha() or _VECTOR.match(token) is not None

    def signed_factor(self) -> Formula:
        return -self.factor() if self.takes("-") else self.factor()

    def factor(self) -> Formula:
        base = self.base()
        if not self.takes("^"):
            return base
        exponent = self.exponent().number
        whole = None if exponent is None else exponent.rational
        if whole is None or whole.denominator != 1 or abs(whole) > _MAX_EXPONENT:
            raise TooHard("a power whose exponent is not a small integer")
        if self.next == "^":
            raise self.refuse()
        return base.power(int(whole))

    def exponent(self) -> Formula:
        """A group or one token; ``x^10`` means the tenth power, whatever TeX makes of it."""
        if self.next[:1] in _BEGINS_NUMBER:
            return Formula.of(Exact.of(_plain(self.take())))
        return self.argument()

    def base(self) -> Formula:
        token = self.next
        if token[:1] in _BEGINS_NUMBER or (token[:1] == "." and len(token) > 1):
            return self.number()
        self.at += 1
        if token == r"\pi":
            return Formula.of(PI)
        if token == r"\frac":
            return self.argument() * self.argument().inverse()
        if token == r"\sqrt":
            return self.root()
        if token == "(":
            return self.bracketed(")")
        if token == "{":
            return self.bracketed("}")
        if token in _GREEK or _VECTOR.match(token) or (token[:1].isalpha() and token.isascii()):
            return Formula.letter(token.translate(_NO_BRACES) + self.at_zero())
        self.at -= 1
        raise self.refuse()

    def at_zero(self) -> str:
        """The ``(0)`` behind a letter, as in ``y(0)``: part of its name, and no factor."""
        found = "".join(self.tokens[self.at : self.at + 3]) == "(0)"
        self.at += 3 * found
        return "(0)" * found

    def bracketed(self, close: str) -> Formula:
        value = self.sum()
        if not self.takes(close):
            raise self.refuse()
        return value

    def argument(self) -> Formula:
        """What a command takes: a group, or one digit or letter."""
        token = self.next
        if token[:1] in _BEGINS_NUMBER and len(token) > 1:
            raise TooHard(f"{token!r} behind a command is read in two ways")
        if len(token) == 1 or token == r"\pi" or token in _GREEK:
            return self.base()
        raise self.refuse()

    def root(self) -> Formula:
        """Refuses other roots than square roots, and ``\\sqrt12``, which TeX reads as √1·2."""
        radicand = self.argument().number
        if radicand is None:
            raise TooHard("a root of something with letters")
        return Formula.of(radicand.sqrt())

    def number(self) -> Formula:
        token = self.take()
        value = _plain(token)
        if token.isdigit() and value and self.next == r"\frac":
            value += self.proper_fraction()
        return Formula.of(Exact.of(value))

    def proper_fraction(self) -> Fraction:
        """The fraction of a mixed number such as ``1\\frac{4}{5}``; 0 if none follows."""
        fraction = self.tokens[self.at : self.at + 7]
        above, below = fraction[2:6:3] if len(fraction) == 7 else ("", "")
        if fraction != [r"\frac", "{", above, "}", "{", below, "}"]:
            return Fraction(0)
        if above[0] not in _BEGINS_NUMBER or below[0] not in _BEGINS_NUMBER:
            return Fraction(0)
        if not 0 < (top := _plain(above)) < (bottom := _plain(below)):
            raise TooHard("a number before an improper fraction, which is read in two ways")
        self.at += 7
        return top / bottom


_NO_BRACES = str.maketrans("", "", "{} ")


def _plain(digits: str) -> Fraction:
    if len(digits) > _MAX_DIGITS:
        raise TooHard("a number of more than a thousand digits")
    whole, _, decimals = digits.replace(",", "").partition(".")
    return Fraction(int(whole + decimals), 10 ** len(decimals))
