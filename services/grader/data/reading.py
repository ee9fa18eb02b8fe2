r"""Read an answer: its unit, and its exact value where that is a number of a plain kind.

The reader knows numbers, ``\frac``, ``\sqrt``, ``\pi``, brackets, whole powers and the four
operations, and refuses everything else, so that no answer is ever half understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from services.grader.data.exact import PI, Exact, TooHard
from services.grader.data.units import unit_of
from services.grader.latex import has_ellipsis, squeezed, tidy, unwrapped, words

MAX_ANSWER_CHARS = 500

_ASSIGNMENT = re.compile(r"\s*[a-zA-Z]\s*=(?!.*=)")
_DEGREES = r"(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|°)"
_UNITS = tuple(
    (re.compile(pattern, re.DOTALL), unit)
    for pattern, unit in (
        (r"\$?\\\$(?P<head>.+)", "dollars"),
        (rf"(?P<head>.+?)\s*{_DEGREES}\$?", "degrees"),
        (r"(?P<head>.+?)\s*\\?%\$?", "percent"),
    )
)
_TEXT_UNIT = re.compile(
    r"(?P<head>.+?)(?:\\[ ,;])?\s*\\(?:text|mbox|mathrm|textrm)\s?\{\s*(?P<words>[A-Za-z ./]{1,40})"
    r"\}\s*(?:\^\s*\{?(?P<power>[23])\}?)?\$?",
    re.DOTALL,
)
_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"\\begin", "a matrix or a vector"),
        (r"\\pm|\\mp|\\text\s?\{\s*(?:or|and)", "several values"),
        (r"\\\{|\\cup|\\cap|\\in(?![a-z])|\\infty|\[(?![^\[\]]*\]\s*\{)", "a set or an interval"),
        (r"[<>]|\\[lg]eq?(?![a-z])", "an inequality"),
        (r"=", "an equation"),
        (r"(?<=[0-9)}])_", "a numeral in a named base"),
        (r",", "a list or a tuple"),
        (r"\\(?:text[a-z]*|mbox|mathrm)(?![a-zA-Z])", "text beside a number"),
        (r"\\theta|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])", "an expression with letters"),
    )
)
_COMMANDS = re.compile(r"\\(?!theta)(?:[a-zA-Z]+)")

_NUMBER = re.compile(
    r"(?P<integer>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]*)(?:\.(?P<decimals>[0-9]+))?"
)
_PROPER_FRACTION = re.compile(r"\\frac ?(?:\{([0-9]+)\}|([0-9])) ?(?:\{([0-9]+)\}|([0-9]))")
_MAX_DEPTH = 20


@dataclass(frozen=True)
class Quantity:
    """Tidied LaTeX of an answer without its unit, and the unit in words."""

    latex: str
    unit: str | None = None


def split_unit(answer: str) -> Quantity:
    r"""Part an answer from its unit: ``15\text{ cm}^2``, ``\$3``, ``90^\circ``, ``12\%``."""
    text = _ASSIGNMENT.sub("", unwrapped(answer.strip()).strip().rstrip("."), count=1).strip()
    for pattern, unit in _UNITS:
        if match := pattern.fullmatch(text):
            return Quantity(squeezed(tidy(match["head"])), unit)
    match = _TEXT_UNIT.fullmatch(text)
    unit = unit_of(match["words"], match["power"]) if match else None
    if match and unit and not re.search(_DEGREES, match["head"]):
        return Quantity(squeezed(tidy(match["head"])), unit)
    return Quantity(squeezed(tidy(text)))


def no_number(answer: str) -> str | None:
    """What an answer is, if it is surely not one number; None if it may be one."""
    if len(answer) > MAX_ANSWER_CHARS:
        return "a very long expression"
    latex = tidy(unwrapped(answer))
    if words(latex) is not None:
        return "text or the letter of a choice"
    if has_ellipsis(answer):
        return "left open by an ellipsis"
    latex = split_unit(answer).latex
    if re.fullmatch(_NUMBER, latex):
        return None
    bare = _COMMANDS.sub(" ", latex)
    for pattern, kind in _KINDS:
        if pattern.search(bare if "letters" in kind else latex):
            return kind
    return None


def read_number(latex: str) -> Exact:
    r"""The exact value of squeezed LaTeX.

    Raises:
        TooHard: for whatever is not one number of a plain kind; the text says why.
    """
    reader = _Reader(latex)
    value = reader.sum()
    if reader.rest:
        raise TooHard(f"{reader.rest[:20]!r} cannot be read")
    return value


@dataclass
class _Reader:
    """Recursive descent over LaTeX; ``at`` is where the rest begins."""

    latex: str
    at: int = 0
    depth: int = 0

    @property
    def rest(self) -> str:
        return self.latex[self.at :]

    def take(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        match = re.compile(pattern).match(self.latex, self.at)
        if match:
            self.at = match.end()
        return match

    def sum(self) -> Exact:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise TooHard("brackets nested too deeply")
        total = self.product(self.sign())
        while self.take(r" ?(?=[-+])"):
            total = total + self.product(self.sign())
        self.depth -= 1
        return total

    def sign(self) -> Exact:
        match = self.take(r" ?([-+]?) ?")
        return Exact.of(-1 if match and match[1] == "-" else 1)

    def product(self, value: Exact) -> Exact:
        """Factors side by side, or with operators; ``1/2π`` is refused: it is read in two ways."""
        value = value * self.factor()
        divided = False
        while True:
            if self.take(r" ?(?:\*|\\cdot(?![a-zA-Z])|\\times(?![a-zA-Z])) ?"):
                value = value * self.factor()
            elif self.take(r" ?/ ?"):
                value, divided = value * self.factor().inverse(), True
            elif not self.take(r" ?(?=\\(?:frac|sqrt|pi)(?![a-zA-Z])|π|\()"):
                return value
            elif divided:
                raise TooHard("a product after a slash, which is read in two ways")
            else:
                value = value * self.factor()

    def factor(self) -> Exact:
        base = self.base()
        return base.power(self.argument()) if self.take(r" ?\^ ?") else base

    def base(self) -> Exact:
        if self.take(r"\\pi(?![a-zA-Z])|π"):
            return PI
        if self.take(r"\\frac(?![a-zA-Z]) ?"):
            return self.argument() * self.argument().inverse()
        if self.take(r"\\sqrt(?![a-zA-Z]) ?"):
            return self.root()
        if self.take(r"\("):
            return self.bracketed(r" ?\)")
        if self.take(r"\{"):
            return self.bracketed(r" ?\}")
        return self.number()

    def bracketed(self, close: str) -> Exact:
        value = self.sum()
        if not self.take(close):
            raise TooHard(f"{self.rest[:20]!r} cannot be read")
        return value

    def argument(self) -> Exact:
        """What a command or ``^`` takes: a group, one digit, or ``\\pi``."""
        if digit := self.take(r" ?([0-9])"):
            return Exact.of(int(digit[1]))
        if self.take(r" ?\{"):
            return self.bracketed(r" ?\}")
        if self.take(r" ?\\pi(?![a-zA-Z])"):
            return PI
        raise TooHard(f"{self.rest[:20]!r} cannot be read")

    def root(self) -> Exact:
        """Refuses other roots than square roots, and ``\\sqrt12``, which TeX reads as √1·2."""
        if self.take(r"(?=\[)|(?=[0-9]{2})"):
            raise TooHard(f"the root \\sqrt{self.rest[:20]} cannot be read")
        return self.argument().sqrt()

    def number(self) -> Exact:
        match = self.take(_NUMBER)
        digits = (match["integer"].replace(",", ""), match["decimals"] or "") if match else ("", "")
        if not any(digits):
            raise TooHard(f"{self.rest[:20]!r} cannot be read")
        value = Fraction(int("".join(digits)), 10 ** len(digits[1]))
        mixed = self.take(_PROPER_FRACTION) if not digits[1] and value else None
        return Exact.of(value + _below_one(mixed) if mixed else value)


def _below_one(mixed: re.Match[str]) -> Fraction:
    """The fraction of a mixed number such as ``1\\frac{4}{5}``."""
    above, below = int(mixed[1] or mixed[2]), int(mixed[3] or mixed[4])
    if not 0 < above < below:
        raise TooHard("a number before an improper fraction, which is read in two ways")
    return Fraction(above, below)
