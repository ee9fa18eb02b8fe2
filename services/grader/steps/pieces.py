r"""A text of mathematics and prose, cut into tokens among which some end an expression.

These are of kind ``word``, ``stop`` (punctuation, arrows, the end of a line) or ``wall``: what is
displayed, and what is not, have no bracket in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from services.grader.answers.tokens import Token, tokens, vocabulary

MODULO = frozenset({"mod", "modulo", r"\pmod", r"\bmod", r"\mod"})
_FLAT = frozenset(
    vocabulary("align aligned alignat equation gather gathered split eqnarray multline")
)
_SHORT_WORDS = frozenset(
    vocabulary("is so and for the are of to in or we if has get let but now by at as it an be can")
)
_ARROWS = vocabulary(r"\implies \impliedby \iff \to \therefore \because \Rightarrow \rightarrow")
_STOPS = MODULO | frozenset('.?"“”`#•→⇒∴✓✅✗❌。') | frozenset(_ARROWS)
_GOES_ON = frozenset("+-*/^")
_DISPLAY = re.compile(r"\\[\[\]]|\$\$|\n\s*\n")
_DOLLAR = re.compile(r"(?<!\\)\$")
_MONEY = re.compile(r"\$[0-9.,]++(?:[^$\\\n]{0,200}?[ (][a-z]{2,}|[^$]{0,500}\Z)")


def pieces(text: str) -> list[Token]:
    """The tokens of a text, between two walls."""
    return list(_Cutter(text).pieces())


class _Cutter:
    """Goes through a text and knows whether it is in mathematics, where letters are no words."""

    def __init__(self, text: str) -> None:
        self._text = text
        end = Token("wall", "", gap=True, start=len(text), end=len(text))
        self._tokens = [Token("wall", ""), *_apart(tokens(text)), end, end]
        self._in_math = False

    def pieces(self) -> Iterator[Token]:
        yield self._tokens[0]
        for before, token, behind in zip(
            self._tokens, self._tokens[1:], self._tokens[2:], strict=False
        ):
            gap = self._text[before.end : token.start]
            was_in_math = self._in_math
            self._enter_or_leave(gap, token.start)
            is_break = "\n" in gap and not (was_in_math and self._in_math)
            if _DISPLAY.search(gap):
                yield Token("wall", "", start=token.start, end=token.start)
            elif is_break or "quad" in gap or "box" in gap or token.kind == "row":
                ahead = (behind, behind) if token.kind == "row" else (token, behind)
                if not self._goes_on(before, *ahead):
                    yield Token("stop", "", start=token.start, end=token.start)
            elif self._is_remark(token, behind):
                yield Token("stop", "", start=token.start, end=token.start)
            begins_line = before.kind == "wall" or "\n" in gap
            yield from self._piece(before, token, behind, begins_line=begins_line)

    def _enter_or_leave(self, gap: str, end: int) -> None:
        """Into mathematics or out of it, as what stands between two tokens says."""
        dollars = [dollar.start() for dollar in _DOLLAR.finditer(gap)]
        if r"\[" in gap or r"\(" in gap:
            self._in_math = True
        elif "$$" in gap:
            self._in_math = not self._in_math
        elif r"\]" in gap or r"\)" in gap or _DISPLAY.search(gap):
            self._in_math = False
        elif len(dollars) % 2:
            is_money = _MONEY.match(self._text, end - len(gap) + dollars[-1])
            self._in_math = not (self._in_math or is_money)

    def _goes_on(self, before: Token, ahead: Token, behind: Token) -> bool:
        """Whether an expression goes on behind the end of a line."""
        if before.kind == "relation" or before.text in _GOES_ON:
            return True
        joins = ahead.text in _GOES_ON and not self._is_dash(ahead, behind)
        return joins or ahead.kind in {"relation", "close"}

    def _is_dash(self, token: Token, behind: Token) -> bool:
        """Of a list; it may be a sign, too."""
        return token.text == "-" and behind.gap and not self._in_math

    def _is_remark(self, token: Token, behind: Token) -> bool:
        return token.text == "(" and token.gap and self._is_word(token, behind)

    def _piece(
        self, before: Token, token: Token, behind: Token, *, begins_line: bool
    ) -> Iterator[Token]:
        if token.kind in {"open", "close"} and token.text in _FLAT:
            self._in_math = token.kind == "open"
            yield token._replace(kind="wall")
        elif begins_line and self._is_dash(token, behind):
            yield token._replace(text=r"\pm")
        elif self._is_word(before, token):
            yield token._replace(kind="word")
        elif self._is_stop(before, token, behind):
            yield token._replace(kind="stop")
        elif self._in_math and self._text[token.start : token.end] == "!=":  # 5!=120
            yield Token("operator", "!", token.gap, token.start, token.start + 1)
            yield Token("relation", "=", False, token.start + 1, token.end)
        elif token.kind != "row":
            yield token

    def _is_word(self, before: Token, token: Token) -> bool:
        """And no product of letters, as in LaTeX or behind a number: ``2ab``."""
        is_behind_number = before.kind in {"number", "close"}
        if token.kind != "letters":
            return token.kind == "words" or (token.kind == "unknown" and token.text.isalpha())
        if len(token.text) > 3 or token.text.lower() in _SHORT_WORDS:
            return True
        if self._in_math or token.text in "xX":
            return False
        is_single = len(token.text) == 1  # perhaps a unit or an article
        return is_behind_number and token.gap if is_single else token.gap or not is_behind_number

    def _is_stop(self, before: Token, token: Token, behind: Token) -> bool:
        if token.kind == "operator":  # bold
            is_bold = self._text[token.start : token.end] == "**"
            return is_bold and (token.gap or behind.gap)
        if token.kind in {"comma", "colon"}:  # perhaps of a number, a ratio or a time of day
            return not (before.kind == behind.kind == "number" and not behind.gap)
        return token.text in _STOPS or token.kind in {"semicolon", "and"}


def _apart(found: list[Token]) -> Iterator[Token]:
    """The tokens of prose: a stop is no part of a number, and money and alignment say nothing."""
    is_behind_gap = True
    for token in found:
        last, gap = token.end - 1, token.gap or is_behind_gap
        is_behind_gap = token.kind in {"money", "ampersand"}
        if token.kind == "number" and token.text.endswith("."):
            yield token._replace(text=token.text[:-1], gap=gap, end=last)
            yield Token("unknown", ".", start=last, end=token.end)
        elif not is_behind_gap:
            yield token._replace(gap=gap)
