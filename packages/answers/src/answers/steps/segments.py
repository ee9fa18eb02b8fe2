r"""A text of mathematics and prose, cut into tokens among which some end an expression.

These are of kind ``word``, ``stop`` (punctuation, arrows, the end of a line) or ``wall``, between
displayed mathematics and text: no bracket reaches over a wall.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from answers.tokens import Token, lexicon, tokenize

MODULO = lexicon(r"mod modulo \pmod \bmod \mod")
_STOPS = MODULO | frozenset('.?"“”`#•→⇒∴✓✅✗❌。')
_STOPS |= lexicon(r"\implies \iff \to \therefore \because \Rightarrow \rightarrow")
_CONTINUES = frozenset("+-*/^")
_MAX_PRODUCT_LETTERS = 3  # longer runs of letters are words
_EDGE = re.compile(r"\\[\[\]()]|\$\$|(?<!\\)\$|\n\s*\n")  # of mathematics
_DISPLAY = re.compile(r"\\[\[\]]|\$\$|\n\s*\n")
_SEPARATOR = re.compile("quad|box")
_FLAT = r"\s?\{(?:align(?:ed|at)?|equation|gather(?:ed)?|split|eqnarray|multline)\*?\}"
# A dollar sign that means money: before a word, before more money, or at the end of a sentence.
_MONEY = re.compile(
    r"""
    \$[0-9.,;]++
    (?:
      [^$\\\n]{0,200}? (?: [\ (][A-Za-z][a-z] | [-−–+*/×=x(]\ ?\$[0-9] )
      | \s{0,9}\n\s{0,9}[A-Z0-9]
      | [^$]{0,500}\Z
    )
    """,
    re.VERBOSE,
)
_NO_UNIT = """
    and|are|because|but|by|cos|exp|for|from|gives|has|have|his|how|log|makes|means|mod|she|sin
    |since|sqrt|tan|than|that|the|their|then|there|they|this|was|were|when|where|which|while|you
"""
_MEASURE = r"(?:kg|km|cm|mm|ml|ft|lbs?|oz|hrs?|min|mph)\b"
_WORD = rf"(?: (?:an?|of|on|in|to)\  )? (?: (?!(?:{_NO_UNIT})\b) [A-Za-z]{{3,20}}+ | {_MEASURE} )"
_UNITS = rf"""
    (?<=[0-9)%]) (?: {_MEASURE} | (?: [\ -] | \ ?/\ ? ) {_WORD} )
      (?: (?: [\ -] | \ ?/\ ? ) {_WORD} | /[hs]\b ){{0,5}}
      (?= \s? (?: = | \)\s?[-–−+*/×=] | (?: [-–−+*/×] | x(?=\ ) ) \s?[$(0-9] ) )
    | \s?\\text\s?\{{ [^{{}}$]{{1,40}} \}} (?: \^\{{?[23]\}}? )?
      (?= \s? (?: [-+=] | \\times | \\cdot ) )
"""
_PER_UNIT = rf"(?<=[0-9)])\ ?/\ ?{_WORD}(?![\w(])|(?<=[0-9])(?:st|nd|rd|th)\b"
_PLACE_OF_COMMENT = r"(?<![0-9)}\]\\])(?<![0-9)}\]]\ )(?<![^A-Za-z][A-Za-z])%"
_TEXT_WITH_RELATION = re.compile(r"\\(?:text\w*|mbox|math\w+)\s?\{([^{}]*[=<>≈][^{}]*)\}")
# Patterns and shorter texts that take their places; every other character keeps its place.
_SPELLINGS = [
    (re.compile(pattern, re.VERBOSE), spelled)
    for pattern, spelled in (
        (rf"\\begin{_FLAT}", r"\["),
        (rf"\\end{_FLAT}", r"\]"),
        # Money and alignment say nothing.
        (r"(?<!\\)\\\$|[&€£]", " "),
        # A percent sign without a number begins a comment.
        (_PLACE_OF_COMMENT, ";"),
        # A full stop is no decimal point.
        (r"(?<=[0-9])\.(?![0-9.]|\\(?:over|dot|bar))", ";"),
        (r"[-=]>", "→"),
        (r"(?<=[a-z])\ a\ (?=[0-9])", " ;"),
        (r"(?<=[0-9)])\ plus\ (?=[0-9])", " +"),
        (r"(?<=[0-9)])\ minus\ (?=[0-9])", " -"),
        (r"(?<=[0-9)])\ equals\ (?=[0-9])", " ="),
        (r"(?<=[0-9)])\ (?:times|x)\ (?=[0-9(])|(?:(?<=%)|(?<=/[0-9]))\ of\ (?=[0-9])", " *"),
        (_UNITS, ""),
        (_PER_UNIT, ""),
    )
]


def split_segments(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, between two walls."""
    source = text
    text = _respell(text)
    end = Token("wall", "", gap=True, start=len(text), end=len(text))
    tokens = [Token("wall", ""), *tokenize(text), end, end]
    in_math = False
    yield tokens[0]
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        gap = text[before.end : token.start]
        was_in_math = in_math
        in_math = _is_in_math(text, gap, token.start, was_in_math)
        is_row = token.kind == "row"
        is_new_line = "\n" in gap
        is_dash = token.text == "-" and after.gap and not in_math
        is_after_word = before.kind == "letters" and len(before.text) > 2
        is_dash_after_word = is_dash and is_after_word and bool(gap)
        is_number_after_brace = before.text == "}" and token.kind == "number" and gap.isspace()
        may_end = (
            is_row
            or is_dash_after_word
            or (is_new_line and not (was_in_math and in_math))
            or (is_number_after_brace and not in_math)
            or _SEPARATOR.search(gap)
        )
        is_new_row = is_row and "&" not in source[token.end : after.start]
        following = after if is_row else token
        if _DISPLAY.search(gap):
            yield Token("wall", "", start=token.start, end=token.start)
        elif may_end and not _continues(before, following, is_dash=is_dash or is_new_row):
            yield Token("stop", "", start=token.start, end=token.start)
        if is_dash and (before.kind == "wall" or is_new_line or is_dash_after_word):
            yield token._replace(text=r"\pm")  # a dash of a list, or a sign
        elif in_math and text[token.start : token.end] == "!=":  # 5!=120
            yield Token("operator", "!", token.gap, token.start, token.start + 1)
            yield Token("relation", "=", False, token.start + 1, token.end)
        elif not is_row:
            yield token._replace(kind=_get_kind(before, token, after, in_math=in_math))


def _respell(text: str) -> str:
    """Replace spellings and remove units; every character that remains keeps its place."""
    text = _TEXT_WITH_RELATION.sub(lambda match: f";{match[1]};".rjust(len(match[0])), text)
    for pattern, spelled in _SPELLINGS:
        text = pattern.sub(lambda match, s=spelled: s.ljust(len(match[0])), text)
    return text


def _is_in_math(text: str, gap: str, end: int, in_math: bool) -> bool:
    """Return whether mathematics follows a gap that ends at a place in a text."""
    for edge in _EDGE.findall(gap):
        opens = edge[0] == "$" and not in_math and not _MONEY.match(text, end - 1)
        in_math = opens or edge in {r"\[", r"\("}
    return in_math


def _continues(before: Token, following: Token, *, is_dash: bool) -> bool:
    if before.kind == "relation" or before.text in _CONTINUES:
        return True
    if following.kind in {"relation", "close"}:
        return True
    return following.text in _CONTINUES and not is_dash


def _get_kind(before: Token, token: Token, after: Token, *, in_math: bool) -> str:
    if token.kind == "words" or (token.kind == "unknown" and token.text.isalpha()):
        return "word"
    if token.kind == "letters" and _is_word(before, token, in_math=in_math):
        return "word"
    if token.kind in {"comma", "colon"}:  # perhaps of a number, a ratio or a time of day
        is_inside = before.kind == after.kind == "number" and not after.gap
        return token.kind if is_inside else "stop"
    if token.text == "^" and token.end - token.start == 2:  # ** is bold, or a power
        is_bold = token.gap or after.gap or before.kind == "wall"
        return "stop" if is_bold else token.kind
    is_stop = token.text in _STOPS or token.kind in {"semicolon", "and"}
    return "stop" if is_stop else token.kind


def _is_word(before: Token, token: Token, *, in_math: bool) -> bool:
    """Return whether letters are a word, and no product as in LaTeX or after a number: ``2ab``."""
    if len(token.text) > _MAX_PRODUCT_LETTERS or token.text in MODULO:
        return True
    if in_math or token.text in "xX":
        return False
    is_after_number = before.kind in {"number", "close"}
    if is_after_number:
        return token.gap
    return len(token.text) > 1
