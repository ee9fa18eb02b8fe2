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
_KEPT = re.compile(r"[^\W_]+|[-/](?= ?\.?[0-9])|\.(?=[0-9])")  # words, signs of numbers
_JOINING = re.compile(r"\b(?:or|and)\b")
_ARTICLE = re.compile(r"(?:an?|the) (?=..)")
_CHOICE = re.compile(
    r"(?i:(?:(?:the )?(?:correct |final )?(?:option|choice|answer)s?(?: is)? ?:? ?)?)"
    r"(?:\(([A-Ja-j])\)|([A-J])[).:]|\[([A-Ja-j])\]|([A-J]))(?P<rest>.*)",
    re.DOTALL,
)
_HEDGE = re.compile(
    r"\A(?i: *(?:[,;/&] *)?(?:or|and|not)\b)"  # (B) or 12
    r"|\A[\W_]*[A-Ja-j][\W_]*\Z"  # (B), C
    r"|(?:\A|[^A-Za-z])(?:\([a-j]\)|\[[a-j]\]|[A-J][)\]])"
    r"|(?i:\b(?:or|and|not)) [\[({]?[A-J](?![A-Za-z])"
    r"|[,;] ?[(\[]?[A-J]{2,}[)\] .]*(?=\Z|[,;])"  # A, BD
    r"|[0-9] [a-j]\)| [A-J][.:] ?[^ ]"  # (B) 12 C. 13
    r"|(?:\A|(?<![+*-])(?<!\\circ)(?<!angle)[ ,;:&/|])[A-HJ](?=\Z|[,;:&/|}]| (?![+*=<>^-]))"
    r"(?!(?<=A) [a-z]{2})"  # but (B) A triangle
    r"|(?i:\b(?:unless|alternatively|also|wait|maybe|perhaps|instead|but|either|actually|except"
    r"|rather|possibly|probably|(?:is|are) (?:not|wrong|false|incorrect))\b)"
    r"|\b(?:wrong|false|incorrect)\b"
)
_OTHERS = re.compile(r"[ ,;&|][A-J] ?=")  # A = 1, B = 2
_NAMED = re.compile(
    r"\b(?:vitamin|point|type|plan|company|group|team|box|city|town|bag|school|class|room|machine"
    r"|car|train|line|player|student|person|figure|graph|set|event|jar|store|shop) [A-J]\b",
    re.IGNORECASE,
)
_OR = re.compile(r"\bor\b")
_RELATION = re.compile(r"[=<>]|\\[lg]e\b")
_BEHIND_LETTER = re.compile(
    r" ?[,=] ?(?=[^ ])| {1,2}(?=-?[0-9]|\\(?:frac|sqrt|\$))| {0,2}(?=\()"  # B = 12, but not AB
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
_NOTHING = re.compile(
    r"(?:there (?:is|are) )?(?:no (?:real )?(?:solutions?|roots?|values?)(?: exists?)?|none)"
    r"|empty set"
)


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
    r"""An answer in words, or a time of day: lower case, without an article and without marks, but
    for the signs, points and slashes of numbers.

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
    kept = " ".join(_KEPT.findall(plain.replace("'", "")))
    return _ARTICLE.sub("", kept.casefold(), count=1)


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
    return _NOTHING.fullmatch(said) is not None


def parse_choice(latex: str, *, is_chosen: bool = False) -> Choice | None:
    r"""Read ``B``, ``(B)``, ``\text{B) } 12``; None if it is no choice, or leaves one open.

    Where a letter is surely meant to be one (``is_chosen``), so is that of ``B = 12`` or ``B, 12``.
    """
    plain = _TEXT.sub(r"\1", latex).strip() if "\\text" in latex else latex
    match = _CHOICE.fullmatch(plain)
    if match is None:
        return None
    letter, rest = match[1] or match[2] or match[3] or match[4], match["rest"]
    if match[4] and rest.strip():
        behind = _BEHIND_LETTER.match(rest) if is_chosen else None
        if behind is None or _OTHERS.search(rest):
            return None
        rest = f" {rest[behind.end() :]}"
    if rest[:1] in tuple("+-*/^_=<>!'") or _leaves_open(match["rest"]):
        return None
    return Choice(letter.upper(), rest.strip(" .:"))


def _leaves_open(rest: str) -> bool:
    """Whether what stands behind a choice joins it with another, or takes it back."""
    is_joined = _OR.search(rest) and not _RELATION.search(rest)  # x < 1 or x > 2 is one choice
    return bool(is_joined or _HEDGE.search(_NAMED.sub("it", rest)))
