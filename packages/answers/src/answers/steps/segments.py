r"""A text of mathematics and prose, cut into tokens among which some end an expression.

These are of kind ``word``, ``stop`` (punctuation, arrows, the end of a line) or ``wall``: what is
displayed, and what is not, have no bracket in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from answers.tokens import Token, tokenize, vocabulary

MODULO = frozenset({"mod", "modulo", r"\pmod", r"\bmod", r"\mod"})
_STOPS = MODULO | frozenset('.?"“”`#•→⇒∴✓✅✗❌。')
_STOPS |= frozenset(vocabulary(r"\implies \iff \to \therefore \because \Rightarrow \rightarrow"))
_GOES_ON = frozenset("+-*/^")
_LONGEST_PRODUCT = 3  # letters, of which more are a word
_EDGE = re.compile(r"\\[\[\]()]|\$\$|(?<!\\)\$|\n\s*\n")  # of mathematics
_DISPLAY = re.compile(r"\\[\[\]]|\$\$|\n\s*\n")
_APART = re.compile("quad|box")
_FLAT = r"\s?\{(?:align(?:ed|at)?|equation|gather(?:ed)?|split|eqnarray|multline)\*?\}"
_MONEY = re.compile(  # before a word, before more of it, at the end of a sentence or of the text
    r"\$[0-9.,;]++(?:[^$\\\n]{0,200}?(?:[ (][A-Za-z][a-z]|[-−–+*/×=x(] ?\$[0-9])"
    r"|\s{0,9}\n\s{0,9}[A-Z0-9]|[^$]{0,500}\Z)"
)
_NO_UNIT = (
    "and|are|because|but|by|cos|exp|for|from|gives|has|have|his|how|log|makes|means|mod|she|sin"
    "|since|sqrt|tan|than|that|the|their|then|there|they|this|was|were|when|where|which|while|you"
)
_MEASURE = r"(?:kg|km|cm|mm|ml|ft|lbs?|oz|hrs?|min|mph)\b"
_WORD = rf"(?:(?:an?|of|on|in|to) )?(?:(?!(?:{_NO_UNIT})\b)[A-Za-z]{{3,20}}+|{_MEASURE})"
_MORE = rf"(?:(?:[ -]| ?/ ?){_WORD}|/[hs]\b){{0,5}}"
_AHEAD = r"(?=\s?(?:=|\)\s?[-–−+*/×=]|(?:[-–−+*/×]|x(?= ))\s?[$(0-9]))"
_TEXT = r"\s?\\text\s?\{[^{}$]{1,40}\}(?:\^\{?[23]\}?)?(?=\s?(?:[-+=]|\\times|\\cdot))"
_TEXT_WITH_RELATION = re.compile(r"\\(?:text\w*|mbox|math\w+)\s?\{([^{}]*[=<>≈][^{}]*)\}")
_SPELLED_ALIKE = [  # of which every place stays where it is
    (re.compile(pattern), spelled)
    for pattern, spelled in (
        (rf"\\begin{_FLAT}", r"\["),
        (rf"\\end{_FLAT}", r"\]"),
        (r"(?<!\\)\\\$|[&€£]", " "),  # money and alignment say nothing
        (r"(?<![0-9)}\]\\])(?<![0-9)}\]] )(?<![^A-Za-z][A-Za-z])%", ";"),  # of no number: a comment
        (r"(?<=[0-9])\.(?![0-9.]|\\(?:over|dot|bar))", ";"),  # a full stop, no decimal point
        (r"[-=]>", "→"),
        (r"(?<=[a-z]) a (?=[0-9])", " ;"),
        (r"(?<=[0-9)]) plus (?=[0-9])", " +"),
        (r"(?<=[0-9)]) minus (?=[0-9])", " -"),
        (r"(?<=[0-9)]) equals (?=[0-9])", " ="),
        (r"(?<=[0-9)]) (?:times|x) (?=[0-9(])|(?:(?<=%)|(?<=/[0-9])) of (?=[0-9])", " *"),
        (rf"(?<=[0-9)%])(?:{_MEASURE}|(?:[ -]| ?/ ?){_WORD}){_MORE}{_AHEAD}|{_TEXT}", ""),  # units
        (rf"(?<=[0-9)]) ?/ ?{_WORD}(?![\w(])|(?<=[0-9])(?:st|nd|rd|th)\b", ""),
    )
]


def segments(text: str) -> Iterator[Token]:
    """The tokens of a text, between two walls."""
    written = text
    text = _TEXT_WITH_RELATION.sub(lambda found: f";{found[1]};".rjust(len(found[0])), text)
    for pattern, spelled in _SPELLED_ALIKE:
        text = pattern.sub(lambda found, s=spelled: s.ljust(len(found[0])), text)
    end = Token("wall", "", gap=True, start=len(text), end=len(text))
    found = [Token("wall", ""), *tokenize(text), end, end]
    in_math = False
    yield found[0]
    for before, token, behind in zip(found, found[1:], found[2:], strict=False):
        gap, was_in_math = text[before.end : token.start], in_math
        in_math = _is_math(text, gap, token.start, was_in_math)
        is_line = "\n" in gap and not (was_in_math and in_math)
        is_dash = token.text == "-" and behind.gap and not in_math
        is_apart = is_dash and bool(gap) and before.kind == "letters" and len(before.text) > 2
        is_behind = before.text == "}" and token.kind == "number" and gap.isspace() and not in_math
        may_end = is_line or is_apart or is_behind or token.kind == "row" or _APART.search(gap)
        ahead = behind if token.kind == "row" else token
        is_new = token.kind == "row" and "&" not in written[token.end : behind.start]
        if _DISPLAY.search(gap):
            yield Token("wall", "", start=token.start, end=token.start)
        elif may_end and not _goes_on(before, ahead, is_dash=is_dash or is_new):
            yield Token("stop", "", start=token.start, end=token.start)
        if is_dash and (before.kind == "wall" or "\n" in gap or is_apart):  # of a list, or a sign
            yield token._replace(text=r"\pm")
        elif in_math and text[token.start : token.end] == "!=":  # 5!=120
            yield Token("operator", "!", token.gap, token.start, token.start + 1)
            yield Token("relation", "=", False, token.start + 1, token.end)
        elif token.kind != "row":
            yield token._replace(kind=_kind(before, token, behind, in_math=in_math))


def _is_math(text: str, gap: str, end: int, in_math: bool) -> bool:
    for edge in _EDGE.findall(gap):
        opens = edge[0] == "$" and not in_math and not _MONEY.match(text, end - 1)
        in_math = edge in {r"\[", r"\("} or opens
    return in_math


def _goes_on(before: Token, ahead: Token, *, is_dash: bool) -> bool:
    if before.kind == "relation" or before.text in _GOES_ON:
        return True
    return ahead.kind in {"relation", "close"} or (ahead.text in _GOES_ON and not is_dash)


def _kind(before: Token, token: Token, behind: Token, *, in_math: bool) -> str:
    if token.kind == "words" or (token.kind == "unknown" and token.text.isalpha()):
        return "word"
    if token.kind == "letters" and _is_word(before, token, in_math=in_math):
        return "word"
    if token.kind in {"comma", "colon"}:  # perhaps of a number, a ratio or a time of day
        is_inside = before.kind == behind.kind == "number" and not behind.gap
        return token.kind if is_inside else "stop"
    if token.text == "^" and token.end - token.start == 2:  # bold, or a power
        return "stop" if token.gap or behind.gap or before.kind == "wall" else token.kind
    return "stop" if token.text in _STOPS or token.kind in {"semicolon", "and"} else token.kind


def _is_word(before: Token, token: Token, *, in_math: bool) -> bool:
    """And no product of letters, as in LaTeX or behind a number: ``2ab``."""
    if len(token.text) > _LONGEST_PRODUCT or token.text in MODULO:
        return True
    if in_math or token.text in "xX":
        return False
    is_behind_number = before.kind in {"number", "close"}
    return token.gap if is_behind_number else len(token.text) > 1
