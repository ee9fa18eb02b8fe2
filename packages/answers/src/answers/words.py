r"""Answers in words, such as ``\text{East}`` or ``no``; letters of a choice; times; numerals."""

from __future__ import annotations

import re

from answers.tokens import vocabulary

_PROSE = re.compile(r"[\w '’.,:;()!?\"/-]+")
_WORD = re.compile(r"[^\W\d_]{2}")
_BARE_WORDS = re.compile(
    r"""
    (?= .*[^\W\d_]{4} | (?:yes|no|odd|even|all|both|one|two|red)\b )
    [^\W\d_][^\W\d_\ ',.-]* (?: [\ ',.-]+ (?: [^\W\d_]+ | [0-9]+ ) )* [.!]?
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Words, and the signs of numbers.
_WORDS_AND_SIGNS = re.compile(r"[^\W_]+|[-/](?= ?\.?[0-9])|\.(?=[0-9])")
_YES_AND_NO = {"是": "yes", "否": "no", "不是": "no", "true": "yes", "false": "no"}
_JOINT = re.compile(r"\b(?:or|and)\b")
_ARTICLE = re.compile(r"(?:an?|the) (?=..)")
_CHOICE = re.compile(
    r"""
    (?i: (?: (?:the\ )? (?:correct\ |final\ )? (?:option|choice|answer)s? (?:\ is)? \ ?:?\ ? )? )
    (?: \(([A-Ja-j])\) | ([A-J])[).:] | \[([A-Ja-j])\] | ([A-J]) )
    (?P<rest> .* )
    """,
    re.DOTALL | re.VERBOSE,
)
_LOOSE_LETTER = re.compile(r"\( ?([A-Ja-j]) ?\)")
# A text after a choice that joins it with another, or takes it back.
_HEDGE = re.compile(
    r"""
    \A (?i: \ * (?: [,;/&]\ * )? (?:or|and|not)\b )                      # (B) or 12
    | \A [\W_]*[A-Ja-j][\W_]* \Z                                         # (B), C
    | (?: \A | [^A-Za-z] ) (?: \([a-j]\) | \[[a-j]\] | [A-J][)\]] )      # 12 (C) 13
    | (?i: \b(?:or|and|not) ) \ [\[({]?[A-J](?![A-Za-z])                 # B and C
    | [,;]\ ?[(\[]?[A-J]{2,}[)\]\ .]* (?= \Z | [,;] )                    # A, BD
    | [0-9]\ [a-j]\) | \ [A-J][.:]\ ?[^\ ]                               # (B) 12 C. 13
    | (?: \A | (?<![+*-])(?<!\\circ)(?<!°)(?<!angle)[\ ,;:&/|] )
      [A-HJ] (?= \Z | [,;:&/|}] | \ (?![+*=<>^-]) )
      (?! (?<=A)\ [a-z]{2} )                                             # but (B) A triangle
    | (?i: \b (?:
        unless|alternatively|also|wait|maybe|perhaps|instead|but|either|actually|except|rather
        |possibly|probably|(?:is|are)\ (?:not|wrong|false|incorrect)
      ) \b )
    | \b(?:wrong|false|incorrect)\b
    """,
    re.VERBOSE,
)
_EQUATIONS_OF_LETTERS = re.compile(r"[ ,;&|][A-J] ?=")  # A = 1, B = 2
_NAMED_BY_LETTER = re.compile(
    r"""
    \b (?:
      vitamin|point|type|plan|company|group|team|box|city|town|bag|school|class|room|machine
      |car|train|line|player|student|person|figure|graph|set|event|jar|store|shop
    ) \ [A-J]\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_OR = re.compile(r"\bor\b")
_RELATION = re.compile(r"[=<>]|\\[lg]e\b")
# B = 12, but not AB
_AFTER_LETTER = re.compile(r" ?[,=] ?(?=[^ ])| {1,2}(?=-?[0-9]|\\(?:frac|sqrt|\$))| {0,2}(?=\()")
_CHOICES = re.compile(r"(?:(?:[A-J]|\([A-J]\)|\[[A-J]\])(?:[ ,;&]|and )*)+")
_CLOCK = re.compile(
    r"""
    (?P<hour> [0-9]{1,2} ) (?: \ ?:\ ? (?P<minute> [0-5][0-9] ) )? (?P<gap> \ ? )
    (?P<half> [ap] ) (?: m | \.\ ?m\.? | \.m\.? )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NUMERAL = re.compile(
    r"""
    \(? (?P<digits> (?: [0-9A-F]+ | (?=[a-f]*[0-9]) [0-9a-f]+ ) ) \)?    # a_2 is an indexed letter
    (?:
      \ ?_\ ? \{?\ ? (?:base\ )? \(? (?P<base> [0-9]+ | [a-z]+ ) \)? \ ?\}?
      | \ ?\(? (?:in\ )? base[\ -]? (?P<spelled_base> [0-9]+ | [a-z]+ ) \)?
    )
    """,
    re.VERBOSE,
)
_NUMBERS = vocabulary("two three four five six seven eight nine ten eleven twelve")
_BASES = dict(zip(_NUMBERS, range(2, 13), strict=True))
_CONGRUENCE = re.compile(
    r"""
    (?: (?P<letter> [a-zA-Z] ) \ ? \\equiv \ ? )?
    (?P<classes> -?[0-9]{1,99} (?: \ ? (?: , | or | and ) \ ? -?[0-9]{1,99} )* ) \ ?
    \(? (?: \\[pb]?mod | \(?mod ) \ ? \{? \ ? (?P<modulus> 0*[1-9][0-9]{0,98} ) \ ? \}? \)?
    """,
    re.VERBOSE,
)
_NAME = re.compile(
    r"""
    \\(?P<kind> angle|triangle|overline|overrightarrow|overleftrightarrow|mathbb|mathcal )
    (?![a-zA-Z]) \ ?\{?\ ? (?P<name> (?!R\b) [A-Z]{1,6} ) \ ?\}?
    """,
    re.VERBOSE,
)


def read_words(plain: str, *, is_marked: bool) -> str | None:
    """Return words in lower case, without article and marks; None if they may be mathematics."""
    if plain in _YES_AND_NO:
        return _YES_AND_NO[plain]
    if is_marked:
        if not _PROSE.fullmatch(plain) or not _WORD.search(_JOINT.sub("", plain)):
            return None
    elif not _BARE_WORDS.fullmatch(plain):
        return None
    plain = plain.replace("'", "").replace("’", "")
    words = " ".join(_WORDS_AND_SIGNS.findall(plain)).casefold()
    words = _ARTICLE.sub("", words, count=1)
    return _YES_AND_NO.get(words, words)


def read_letters(plain: str) -> str | None:
    """Return the letters of a choice of several, which stand in order."""
    if not _CHOICES.fullmatch(plain):
        return None
    letters = [letter for letter in plain if letter.isupper()]
    is_choice = len(letters) > 1 and letters == sorted(set(letters))
    if is_choice:
        return "".join(letters)
    return None


def read_choice(plain: str, *, is_chosen: bool = False) -> tuple[str, str] | None:
    """Return the letter of ``B``, ``(B)``, ``B) 12``, and the text after it.

    Return None if the text leaves the choice open. With ``is_chosen`` a letter is surely meant, and
    ``B = 12`` and ``B, 12`` are choices too.
    """
    match = _CHOICE.fullmatch(_LOOSE_LETTER.sub(r"(\1)", plain))
    if match is None:
        return None
    bare_letter = match[4]
    letter = match[1] or match[2] or match[3] or bare_letter
    text = match["rest"]
    if bare_letter and text.strip():
        gap = _AFTER_LETTER.match(text) if is_chosen else None
        if gap is None or _EQUATIONS_OF_LETTERS.search(text):
            return None
        text = f" {text[gap.end() :]}"
    if text[:1] in tuple("+-*/^_=<>!'") or _is_hedged(match["rest"]):
        return None
    return letter.upper(), text.strip(" .:")


def _is_hedged(text: str) -> bool:
    """Return whether the text after a choice joins it with another, or takes it back."""
    if _OR.search(text) and not _RELATION.search(text):  # x < 1 or x > 2 is one choice
        return True
    return _HEDGE.search(_NAMED_BY_LETTER.sub("it", text)) is not None


def read_name(plain: str) -> str | None:
    r"""Read names, ``\angle ABC``; times, ``6 PM`` as ``6:00 pm``; and residues."""
    time = _CLOCK.fullmatch(plain)
    if time and (time["minute"] or time["gap"]):
        return f"{int(time['hour'])}:{time['minute'] or '00'} {time['half'].casefold()}m"
    if residue := _CONGRUENCE.fullmatch(plain):
        modulus = int(residue["modulus"])
        numbers = map(int, re.findall(r"-?[0-9]+", residue["classes"]))
        classes = sorted({number % modulus for number in numbers})
        return f"{residue['letter'] or ''} {classes} modulo {modulus}"
    name = _NAME.fullmatch(plain)
    return name and f"{name['kind']} {name['name']}"


def read_numeral(plain: str) -> tuple[str, int] | None:
    """Return digits and base of ``204_5``, ``(204)_{five}``, ``204 base 5``."""
    match = _NUMERAL.fullmatch(plain)
    if match is None:
        return None
    base = match["base"] or match["spelled_base"]
    is_short = base.isdigit() and len(base) < 3
    number = int(base) if is_short else _BASES.get(base, 0)
    digits = match["digits"].upper().lstrip("0") or "0"
    if int(max(digits), 16) < number:
        return (digits, number)
    return None
