"""Answers as text: find the box, tidy the LaTeX, read plain numbers, words and units.

Everything here is pure, linear in the length of its input, and needs no computer algebra.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*+\{|\\.|[{}]", re.DOTALL)
_WHOLE_BOX = re.compile(r"\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*", re.DOTALL)

_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:left|right|[bB]ig{1,2}[lr]?|displaystyle|limits)(?![a-zA-Z])", ""),
        (r"\\(?:mathrm|mathit|operatorname)\{\s?([A-Za-z])\s?\}", r"\1"),  # \mathrm{e} is e
        (r"\^(?:\\circ|\{\\circ\})|°", ""),  # 90 degrees is 90
        (r"\{,\}|,\\!", ","),
        (r"(?<=[0-9])\\[,;: ](?=[0-9]{3}(?![0-9]))|(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-zA-Z])", " "),  # but not the "\\ " between rows
        (r"\\?\$|(?<!\\)\\[()\[\]]", ""),
        (r"\\%", "%"),
        (r"[−–]", "-"),
        (r"\s+", " "),
    )
)
_SPACE_BESIDE_NO_DIGIT = re.compile(r"(?<![0-9]) | (?![0-9])")
_ELLIPSIS = re.compile(r"\\[lcdv]?dots|…|\.\.\.")

_NUMBER = re.compile(
    r"(?P<sign>[+-]?) ?(?:"
    r"(?P<integer>[0-9]{1,3}(?:,[0-9]{3})++|[0-9]*+)(?:\.(?P<decimals>[0-9]*+))?"
    r"|(?P<over>[0-9]++) ?/ ?(?P<under>[0-9]++)"
    r"|\\frac ?\{ ?(?P<top>-?[0-9]++) ?\} ?\{ ?(?P<bottom>-?[0-9]++) ?\}"
    r"|\\frac ?(?P<digit>[0-9]) ?(?P<below>[0-9])"
    r") ?(?P<percent>%?)"
)
_TEXT = r"\\(?:text|textbf|textit|textrm|mathrm|mbox) ?\{([^{}]*)\}"
_TEXT_ONLY = re.compile(_TEXT)
_TRAILING_UNIT = re.compile(_TEXT + r"(?: ?\^ ?\{?([0-9])\}?)?$")
_BARE_WORDS = re.compile(
    r"(?=.*[A-Za-z]{4}|(?:yes|no|odd|even|all|both|one|two)\b|\(?[A-Z]\)?$)[A-Za-z() '-]+",
    re.IGNORECASE,
)
_CHOICE = re.compile(r"\(?[A-Z]\)?")


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete ``\boxed{}`` or ``\fbox{}``, or None without one.

    Braces are matched, escaped ones ignored; of nested boxes the outermost counts, then `unwrapped`
    gives what is inside. Text up to the last ``</think>`` is no answer.
    """
    answer = text.rpartition("</think>")[2]
    opened: list[int] = []  # where the contents begin; negative for plain braces
    last: tuple[int, int] | None = None
    for match in _BRACES.finditer(answer):
        token = match.group()
        if token.endswith("{") and token != "\\{":
            opened.append(match.end() if token.startswith("\\") else -1)
        elif token == "}" and opened and (start := opened.pop()) >= 0:
            last = start, match.start()
    return None if last is None else answer[slice(*last)]


def unwrapped(content: str) -> str:
    r"""``\boxed{\boxed{5}}`` holds 5."""
    while (box := _WHOLE_BOX.fullmatch(content)) and last_boxed(content) == box.group(1):
        content = box.group(1)
    return content


def tidy(latex: str) -> str:
    """The same mathematics in fewer spellings; still fit for a parser."""
    for pattern, replacement in _REWRITES:
        latex = pattern.sub(replacement, latex)
    return latex.strip().rstrip(".,; ")


def squeezed(latex: str) -> str:
    """Tidied LaTeX without spaces, but for those between digits: equal text means equal answers."""
    return _SPACE_BESIDE_NO_DIGIT.sub("", latex)


def has_ellipsis(latex: str) -> bool:
    """Whether the answer leaves something to the reader."""
    return _ELLIPSIS.search(latex) is not None


@dataclass(frozen=True)
class Number:
    """A plain number: its exact value, how many decimals were written, whether it is a percentage.

    ``places`` is None for integers and fractions.
    """

    value: Fraction
    places: int | None = None
    is_percentage: bool = False


def parse_number(latex: str) -> Number | None:
    r"""Read tidied LaTeX as an integer, decimal, ``a/b`` or ``\frac{a}{b}``; None if it is not."""
    match = _NUMBER.fullmatch(latex)
    if match is None:
        return None
    value = _magnitude(match)
    if value is None:
        return None
    sign = -1 if match["sign"] == "-" else 1
    percent = match["percent"] == "%"
    decimals = match["decimals"]
    places = None if decimals is None else len(decimals) + 2 * percent
    return Number(sign * value / (100 if percent else 1), places, percent)


def _magnitude(match: re.Match[str]) -> Fraction | None:
    for above, below in (("over", "under"), ("top", "bottom"), ("digit", "below")):
        if match[above] is not None:
            bottom = int(match[below])
            return Fraction(int(match[above]), bottom) if bottom else None
    digits = (match["integer"] or "").replace(",", "")
    decimals = match["decimals"] or ""
    if not digits + decimals:
        return None
    return Fraction(int(digits + decimals), 10 ** len(decimals))


def words(latex: str) -> str | None:
    r"""An answer in words, such as ``\text{East}``, ``no`` or ``(B)``: lower case, without marks.

    None for anything that may be mathematics; a single small letter is a variable.
    """
    text = _TEXT_ONLY.fullmatch(latex)
    if text is None and not (_BARE_WORDS.fullmatch(latex) and _is_prose(latex)):
        return None
    plain = "".join(char if char.isalnum() else " " for char in (text.group(1) if text else latex))
    joined = " ".join(plain.casefold().split())
    return joined if any(char.isalpha() for char in joined) else None


def _is_prose(latex: str) -> bool:
    return len(latex.strip("()")) > 1 or _CHOICE.fullmatch(latex) is not None


def trailing_unit(latex: str) -> str | None:
    r"""The unit behind a quantity, such as ``cm^2``; None without one."""
    match = _TRAILING_UNIT.search(latex)
    if match is None or match.start() == 0:
        return None
    return match.group(1).strip(" .").casefold().removesuffix("s") + (match.group(2) or "")
