r"""A text of mathematics and prose, cut into tokens among which some end an expression.

These are of kind ``word``, ``stop`` (punctuation, arrows, the end of a line) or ``wall``: what is
displayed, and what is not, have no bracket in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from services.grader.answers.tokens import Token, tokens, vocabulary

MODULO = frozenset({"mod", "modulo", r"\pmod", r"\bmod", r"\mod"})
_STOPS = MODULO | frozenset('.?"“”`#•→⇒∴✓✅✗❌。')
_STOPS |= frozenset(vocabulary(r"\implies \iff \to \therefore \because \Rightarrow \rightarrow"))
_GOES_ON = frozenset("+-*/^")
_OPERATORS = frozenset({"+", "-", "*", "/", r"\times", "x", "X"})
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
_UNITS = frozenset("kg km cm mm ml ft lb lbs oz hr hrs min mph".split())
_LONGEST_PRODUCT = 3  # letters, of which more are a word
_SPOKEN = {"times": "*", "plus": "+", "minus": "-", "equals": "="}  # between numbers
_MAX_UNIT = 5  # pieces, as of "duck eggs per day"
_NO_UNIT = frozenset(
    "and are as at because but by for from gives has have he her his how i if is it its makes"
    " means or she so since than that the their then there they this to up was we were when"
    " where which while will with you".split()
)
_EDGE = re.compile(r"\\[\[\]()]|\$\$|(?<!\\)\$|\n\s*\n")  # of mathematics
_DISPLAY = re.compile(r"\\[\[\]]|\$\$|\n\s*\n")
_APART = re.compile("quad|box")
_FLAT = r"\s?\{(?:align(?:ed|at)?|equation|gather(?:ed)?|split|eqnarray|multline)\*?\}"
_MONEY = re.compile(  # before a word, before more of it, at the end of a sentence or of the text
    r"\$[0-9.,;]++(?:[^$\\\n]{0,200}?(?:[ (][A-Za-z][a-z]|[-−–+*/×=x(] ?\$[0-9])"
    r"|\s*\n\s*[A-Z0-9]|[^$]{0,500}\Z)"
)
_FULL_STOP = re.compile(r"(?<=[0-9])\.(?![0-9.]|\\(?:over|dot|bar))")  # and no decimal point
_SPELLED_ALIKE = [  # of which every place stays where it is
    (re.compile(rf"\\begin{_FLAT}"), r"\["),
    (re.compile(rf"\\end{_FLAT}"), r"\]"),
    (re.compile(r"(?<!\\)\\\$|[&€£]"), " "),  # money and alignment say nothing
    (_FULL_STOP, ";"),
]


def pieces(text: str) -> list[Token]:
    """The tokens of a text, between two walls; the units behind numbers are of kind ``unit``."""
    found = list(_pieces(text))
    for at, before in enumerate(found):
        if before.kind in {"number", "close"} or before.text == "%":
            _read_words(found, at + 1)
    return found


def _read_words(found: list[Token], start: int) -> None:
    """Make an operator, or the unit of the number before, of what goes on with an operation."""
    word = found[start] if start + 1 < len(found) else found[-1]
    is_share = "%" == found[start - 1].text or "/" == found[start - 2].text
    spoken = "*" if word.text == "of" and is_share else _SPOKEN.get(word.text)
    if spoken and found[start + 1].kind == "number":
        kind = "relation" if spoken == "=" else "operator"
        found[start] = word._replace(kind=kind, text=spoken)
        return
    end = start
    while end < min(start + _MAX_UNIT, len(found)) and _is_unit(found, end, is_first=end == start):
        end += 1
    ahead = found[end] if end < len(found) else word
    goes_on = ahead.text in _OPERATORS and found[end + 1].kind != "word"
    is_term = ahead.kind == "relation" or ahead.text == ")" or goes_on
    if not is_term and word.text == "/":
        end = min(end, start + 2)
    if end > start and (is_term or word.text == "/"):
        found[start:end] = [piece._replace(kind="unit") for piece in found[start:end]]


def _is_unit(found: list[Token], at: int, *, is_first: bool) -> bool:
    """Whether a piece goes on with a unit: a word, a slash before one, or a power behind one."""
    piece, ahead = found[at], found[at + 1] if at + 1 < len(found) else found[at]
    if piece.text == "/" or (piece.text == "-" and not (is_first or piece.gap or ahead.gap)):
        return ahead.kind in {"word", "letters"}
    if piece.kind == "letters":  # as in km/h
        return found[at - 1].text == "/" and not is_first
    if piece.kind != "word":
        return False
    return not _NO_UNIT & set(piece.text.lower().split())


def _pieces(text: str) -> Iterator[Token]:
    for pattern, spelled in _SPELLED_ALIKE:
        text = pattern.sub(lambda found, s=spelled: s.ljust(len(found[0])), text)
    end = Token("wall", "", gap=True, start=len(text), end=len(text))
    found = [Token("wall", ""), *tokens(text), end, end]
    in_math = False
    yield found[0]
    for before, token, behind in zip(found, found[1:], found[2:], strict=False):
        gap, was_in_math = text[before.end : token.start], in_math
        in_math = _is_math(text, gap, token.start, was_in_math)
        is_line = "\n" in gap and not (was_in_math and in_math)
        is_dash = token.text == "-" and behind.gap and not in_math
        may_end = is_line or token.kind == "row" or _APART.search(gap)
        ahead = behind if token.kind == "row" else token
        if _DISPLAY.search(gap):
            yield Token("wall", "", start=token.start, end=token.start)
        elif may_end and not _goes_on(before, ahead, is_dash=is_dash):
            yield Token("stop", "", start=token.start, end=token.start)
        if is_dash and (before.kind == "wall" or "\n" in gap):  # of a list, or a sign
            yield token._replace(text=r"\pm")
        elif in_math and text[token.start : token.end] == "!=":  # 5!=120
            yield Token("operator", "!", token.gap, token.start, token.start + 1)
            yield Token("relation", "=", False, token.start + 1, token.end)
        elif token.text in {"x", "X"} and token.gap and behind.gap and behind.kind in {"number", "open"} and (before.kind in {"number", "close"} or len(before.text) > 1) and not in_math:
            yield token._replace(kind="operator", text="*")
        elif token.kind != "row":
            yield token._replace(kind=_kind(before, token, behind, in_math=in_math))


def _is_math(text: str, gap: str, end: int, in_math: bool) -> bool:
    """Whether mathematics, where letters are no words, goes on or begins between two tokens."""
    for edge in _EDGE.findall(gap):
        opens = edge[0] == "$" and not in_math and not _MONEY.match(text, end - 1)
        in_math = edge in {r"\[", r"\("} or opens
    return in_math


def _goes_on(before: Token, ahead: Token, *, is_dash: bool) -> bool:
    """Whether an expression goes on behind the end of a line."""
    if before.kind == "relation" or before.text in _GOES_ON:
        return True
    return ahead.kind in {"relation", "close"} or (ahead.text in _GOES_ON and not is_dash)


def _kind(before: Token, token: Token, behind: Token, *, in_math: bool) -> str:
    if token.kind == "words" or (token.kind == "unknown" and token.text.isalpha()):
        return "word"
    if token.kind == "letters":
        is_article = token.text in "aA" and behind.gap and behind.kind in {"letters", "number"}
        if _is_word(before, token, in_math=in_math) or (is_article and token.gap and not in_math):
            return "word"
    if token.kind in {"comma", "colon"}:  # perhaps of a number, a ratio or a time of day
        is_inside = before.kind == behind.kind == "number" and not behind.gap
        return token.kind if is_inside else "stop"
    if token.text == "^" and token.end - token.start == 2:  # bold, or a power
        return "stop" if token.gap or behind.gap or before.kind == "wall" else token.kind
    return "stop" if token.text in _STOPS or token.kind in {"semicolon", "and"} else token.kind


def _is_word(before: Token, token: Token, *, in_math: bool) -> bool:
    """And no product of letters, as in LaTeX or behind a number: ``2ab``."""
    if len(token.text) > _LONGEST_PRODUCT or token.text in MODULO | _ORDINALS:
        return True
    if before.kind == "number" and token.text in _UNITS:
        return True
    if in_math or token.text in "xX":
        return False
    is_behind_number = before.kind in {"number", "close"}
    return token.gap if is_behind_number else len(token.text) > 1
