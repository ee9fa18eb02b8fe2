r"""Answers in words, such as ``\text{East}`` or ``no``; letters of a choice; times; numerals."""

from __future__ import annotations

import re

from answers.tokens import vocabulary

_PROSE = re.compile(r"[\w '’.,:;()!?\"/-]+")
_WORD = re.compile(r"[^\W\d_]{2}")
_BARE_WORDS = re.compile(
    r"(?=.*[^\W\d_]{4}|(?:yes|no|odd|even|all|both|one|two|red)\b)[^\W\d_][^\W\d_ ',.-]*"
    r"(?:[ ',.-]+(?:[^\W\d_]+|[0-9]+))*[.!]?",
    re.IGNORECASE,
)
_KEPT = re.compile(r"[^\W_]+|[-/](?= ?\.?[0-9])|\.(?=[0-9])")  # words, signs of numbers
_YES_AND_NO = {"是": "yes", "否": "no", "不是": "no", "true": "yes", "false": "no"}
_JOINING = re.compile(r"\b(?:or|and)\b")
_ARTICLE = re.compile(r"(?:an?|the) (?=..)")
_CHOICE = re.compile(
    r"(?i:(?:(?:the )?(?:correct |final )?(?:option|choice|answer)s?(?: is)? ?:? ?)?)"
    r"(?:\(([A-Ja-j])\)|([A-J])[).:]|\[([A-Ja-j])\]|([A-J]))(?P<rest>.*)",
    re.DOTALL,
)
_LOOSE = re.compile(r"\( ?([A-Ja-j]) ?\)")
_HEDGE = re.compile(
    r"\A(?i: *(?:[,;/&] *)?(?:or|and|not)\b)"  # (B) or 12
    r"|\A[\W_]*[A-Ja-j][\W_]*\Z"  # (B), C
    r"|(?:\A|[^A-Za-z])(?:\([a-j]\)|\[[a-j]\]|[A-J][)\]])"
    r"|(?i:\b(?:or|and|not)) [\[({]?[A-J](?![A-Za-z])"
    r"|[,;] ?[(\[]?[A-J]{2,}[)\] .]*(?=\Z|[,;])"  # A, BD
    r"|[0-9] [a-j]\)| [A-J][.:] ?[^ ]"  # (B) 12 C. 13
    r"|(?:\A|(?<![+*-])(?<!\\circ)(?<!°)(?<!angle)[ ,;:&/|])[A-HJ](?=\Z|[,;:&/|}]| (?![+*=<>^-]))"
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
_CHOICES = re.compile(r"(?:(?:[A-J]|\([A-J]\)|\[[A-J]\])(?:[ ,;&]|and )*)+")
_CLOCK = re.compile(
    r"(?P<hour>[0-9]{1,2})(?: ?: ?(?P<minute>[0-5][0-9]))?(?P<gap> ?)"
    r"(?P<half>[ap])(?:m|\. ?m\.?|\.m\.?)",
    re.IGNORECASE,
)
_DIGITS = r"(?:[0-9A-F]+|(?=[a-f]*[0-9])[0-9a-f]+)"  # a_2 is a letter with an index
_BASED = re.compile(
    rf"\(?(?P<digits>{_DIGITS})\)?"
    r"(?: ?_ ?\{? ?(?:base )?\(?(?P<base>[0-9]+|[a-z]+)\)? ?\}?"
    r"| ?\(?(?:in )?base[ -]?(?P<said>[0-9]+|[a-z]+)\)?)"
)
_NUMBERS = vocabulary("two three four five six seven eight nine ten eleven twelve")
_BASES = dict(zip(_NUMBERS, range(2, 13), strict=True))
_CONGRUENCE = re.compile(
    r"(?:(?P<letter>[a-zA-Z]) ?\\equiv ?)?"
    r"(?P<classes>-?[0-9]{1,99}(?: ?(?:,|or|and) ?-?[0-9]{1,99})*) ?"
    r"\(?(?:\\[pb]?mod|\(?mod) ?\{? ?(?P<modulus>0*[1-9][0-9]{0,98}) ?\}?\)?"
)
_NAME = re.compile(
    r"\\(?P<kind>angle|triangle|overline|overrightarrow|overleftrightarrow|mathbb|mathcal)"
    r"(?![a-zA-Z]) ?\{? ?(?P<name>(?!R\b)[A-Z]{1,6}) ?\}?"
)


def read_words(plain: str, *, is_marked: bool) -> str | None:
    """Lower case, without article and marks; None for what may be mathematics, such as ``ab``."""
    if plain in _YES_AND_NO:
        return _YES_AND_NO[plain]
    if is_marked:
        if not _PROSE.fullmatch(plain) or not _WORD.search(_JOINING.sub("", plain)):
            return None
    elif not _BARE_WORDS.fullmatch(plain):
        return None
    kept = " ".join(_KEPT.findall(plain.replace("'", "").replace("’", "")))
    said = _ARTICLE.sub("", kept.casefold(), count=1)
    return _YES_AND_NO.get(said, said)


def read_letters(plain: str) -> str | None:
    if not _CHOICES.fullmatch(plain):
        return None
    letters = [letter for letter in plain if letter.isupper()]
    return "".join(letters) if len(letters) > 1 and letters == sorted(set(letters)) else None


def read_choice(plain: str, *, is_chosen: bool = False) -> tuple[str, str] | None:
    """The letter of ``B``, ``(B)``, ``B) 12``, and the rest; None if it leaves the choice open.

    Where a letter is surely meant to be one (``is_chosen``), so is that of ``B = 12`` or ``B, 12``.
    """
    match = _CHOICE.fullmatch(_LOOSE.sub(r"(\1)", plain))
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
    return letter.upper(), rest.strip(" .:")


def _leaves_open(rest: str) -> bool:
    """Whether what stands behind a choice joins it with another, or takes it back."""
    is_joined = _OR.search(rest) and not _RELATION.search(rest)  # x < 1 or x > 2 is one choice
    return bool(is_joined or _HEDGE.search(_NAMED.sub("it", rest)))


def read_named(plain: str) -> str | None:
    r"""What only names a thing, ``\angle ABC``; times, ``6 PM`` as ``6:00 p.m.``; residues."""
    if (time := _CLOCK.fullmatch(plain)) and (time["minute"] or time["gap"]):
        return f"{int(time['hour'])}:{time['minute'] or '00'} {time['half'].casefold()}m"
    if residue := _CONGRUENCE.fullmatch(plain):
        modulus = int(residue["modulus"])
        classes = {int(each) % modulus for each in re.findall(r"-?[0-9]+", residue["classes"])}
        return f"{residue['letter'] or ''} {sorted(classes)} modulo {modulus}"
    name = _NAME.fullmatch(plain)
    return name and f"{name['kind']} {name['name']}"


def read_numeral(plain: str) -> tuple[str, int] | None:
    """Digits and base of ``204_5``, ``(204)_{five}``, ``204 base 5``."""
    match = _BASED.fullmatch(plain)
    if match is None:
        return None
    base = match["base"] or match["said"]
    number = int(base) if base.isdigit() and len(base) < 3 else _BASES.get(base, 0)
    digits = match["digits"].upper().lstrip("0") or "0"
    return (digits, number) if int(max(digits), 16) < number else None
