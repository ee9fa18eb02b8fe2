r"""Answers in words, such as ``\text{East}`` or ``no``; letters of a choice, such as ``(B)``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_PROSE = re.compile(r"[\w '’.,:;()!?\"/-]+")
_WORD = re.compile(r"[^\W\d_]{2}")
_BARE_WORDS = re.compile(
    r"(?=.*[^\W\d_]{4}|(?:yes|no|odd|even|all|both|one|two|red)\b)[^\W\d_][^\W\d_ ',.-]*"
    r"(?:[ ',.-]+(?:[^\W\d_]+|[0-9]+))*[.!]?",
    re.IGNORECASE,
)
_JOINING = re.compile(r"\b(?:or|and)\b")
_ARTICLE = re.compile(r"(?:an?|the) (?=..)")
_CHOICE = re.compile(
    r"(?i:(?:(?:the )?(?:correct |final )?(?:option|choice|answer)s?(?: is)? ?:? ?)?)"
    r"(?:\(([A-Ja-j])\)|([A-J])[).:]|\[([A-J])\]|([A-J]))(?P<rest>.*)",
    re.DOTALL,
)
_HEDGE = re.compile(
    r"(?i: *[,;/&]? *(?:or|and|not)\b)"  # (B) or 12
    r"|[\W_]*[A-J][\W_]*\Z"  # (B), C
    r"|(?:.*[^A-Za-z])?(?:[A-J]\)|\[[A-J]\]|(?i:or|and|not) [\[({]?[A-J](?![A-Za-z]))"
    r"|.* [A-J][.:] ?[^ ]",  # (B) 12 C. 13
    re.DOTALL,
)
_STATEMENT = re.compile(
    r"(?:\\text ?\{ ?(?:(?:the )?(?:final )?answer(?: is)? ?:?|thus,?|so,?|therefore,?) ?\} ?)+",
    re.IGNORECASE,
)
_CHOICES = re.compile(r"(?:(?:[A-J]|\([A-J]\)|\[[A-J]\])(?:[ ,;&]|and )*)+")
_TIME = re.compile(r"0?([0-9]{1,2}) ?: ?([0-9]{2}) *([ap])\.? ?m\.?", re.IGNORECASE)
_ALL_REALS = re.compile(
    r"(?:[a-z] is )?(?:all|any) real(?:s| (?:numbers?|values?)(?: (?:of )?[a-z])?| [a-z])?"
    r"|real numbers"
)
_NOTHING = frozenset({"no solution", "no solutions", "empty set", "there is no solution"})


@dataclass(frozen=True)
class Choice:
    """The letter of a choice in upper case, and what it stands for, if that is said."""

    letter: str
    rest: str = ""


def without_text(latex: str) -> str:
    r"""``\text{42}`` holds 42; "the answer is" in front of an answer says nothing."""
    if statement := _STATEMENT.match(latex):
        latex = latex[statement.end() :]
    latex = latex.removeprefix("=").lstrip()
    match = _TEXT.fullmatch(latex)
    is_prose = match is not None and match[1].strip()[:1].isalpha() and _WORD.search(match[1])
    if "eal" in latex and _ALL_REALS.fullmatch(words(latex) or ""):
        return r"\mathbb{R}"
    return match[1].strip() if match and not is_prose else latex.strip()


def words(latex: str) -> str | None:
    r"""An answer in words, or a time of day: lower case, without marks and without an article.

    None for anything that may be mathematics; a short run of bare letters is a product.
    """
    marked = "\\text" in latex
    plain = _TEXT.sub(r"\1", latex) if marked else latex
    if time := _TIME.fullmatch(plain.strip()):
        return " ".join(time.groups()).casefold()
    if marked:
        if not _PROSE.fullmatch(plain) or not _WORD.search(_JOINING.sub("", plain)):
            return None
    elif not _BARE_WORDS.fullmatch(plain):
        return None
    kept = "".join(char if char.isalnum() else " " for char in plain.replace("'", ""))
    return _ARTICLE.sub("", " ".join(kept.casefold().split()), count=1)


def parse_choices(latex: str) -> str | None:
    r"""The letters of ``ABD`` or ``\text{A, B and D}``, which are choices if they are in order."""
    plain = _TEXT.sub(r"\1", latex).strip() if "\\text" in latex else latex
    if not _CHOICES.fullmatch(plain):
        return None
    letters = [letter for letter in plain if letter.isupper()]
    return "".join(letters) if len(letters) > 1 and letters == sorted(set(letters)) else None


def texts(latex: str) -> list[str]:
    r"""What stands in each ``\text{}``."""
    return [text.strip() for text in _TEXT.findall(latex)]


def is_nothing(said: str) -> bool:
    """Whether words say that there is no solution."""
    return said in _NOTHING


def parse_choice(latex: str) -> Choice | None:
    r"""Read ``B``, ``(B)``, ``\text{B) } 12``; None if it is no choice, or leaves one open."""
    plain = _TEXT.sub(r"\1", latex).strip() if "\\text" in latex else latex
    match = _CHOICE.fullmatch(plain)
    if match is None:
        return None
    letter, rest = match[1] or match[2] or match[3] or match[4], match["rest"]
    is_sum = rest[:1] in tuple("+-*/^_=<>!'")
    if is_sum or (match[4] and rest.strip()) or _HEDGE.match(rest):
        return None
    return Choice(letter.upper(), rest.strip(" .:"))
