"""Sides: lists of tokens between two marks, and how they are cleaned, cut and bracketed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from answers.tokens import Side, Token, tokenize

JOINTS = (r"\cup", r"\cap", r"\setminus")
SYSTEMS = frozenset({"cases", "aligned", "array"})
_MAX_BRACKETS = 40
_MAX_WRAPPINGS = 8
_STATEMENT = re.compile(
    r"""
    (?:the\ )? (?:final\ )? answer (?:\ is)? \ ?:? | thus,? | so,? | therefore,?
    | [一总]?共有? | 答案?[是为]?
    """,
    re.IGNORECASE | re.VERBOSE,
)
_FOR_ALL = re.compile(r"for(?: all| any| every)?(?: real)?(?: numbers?)?(?: [a-zA-Z])?")
_OPERANDS = frozenset({"number", "letters", "words", "open", "close"})
_REALS_BUT = [r"\mathbb R", "-", r"\{"]


def read_marks(tokens: Iterable[Token]) -> list[Token]:
    r"""Turn words that are marks, such as "or" and ``\text{ to }``, into tokens of these marks."""
    side = list[Token]()
    gap_follows = False
    for token in tokens:
        pieces = _read_mark(token)
        if pieces and gap_follows:
            pieces[0] = pieces[0]._replace(gap=True)
        side += pieces
        gap_follows = token.kind == "words" and token.text.endswith(" ")
    return side


def _read_mark(token: Token) -> list[Token]:
    is_words = token.kind == "words"
    word = token.text.strip() if is_words or token.kind == "letters" else ""
    if word == "USD":
        return [token._replace(kind="money", text="dollar")]
    if word.casefold() in ("or", "and"):
        return [token._replace(kind="and", text=word.casefold())]
    if token.text == r"\forall" or (is_words and _FOR_ALL.fullmatch(word)):
        tokens = [token._replace(kind="and", text="for")]
        if word[-2:-1] == " ":
            tokens.append(Token("letters", word[-1]))
        return tokens
    if is_words and word.casefold() == "to":
        return [token._replace(kind="colon", text=":")]
    if is_words and not word[:1].isalpha():
        tokens = read_marks(tokenize(token.text))
        if tokens:
            tokens[0] = tokens[0]._replace(gap=True)
        return tokens
    return [token]


def strip(side: Side) -> Side:
    """Remove full stops, statements such as "the answer is", and braces around the whole side."""
    for _ in range(_MAX_WRAPPINGS):
        stripped = _strip_once(side)
        if stripped == side:
            break
        side = stripped
    return side


def _strip_once(side: Side) -> Side:
    while side and _is_end(side[-1]):
        side = side[:-1]
    if side and side[-1].kind == "number":
        text = side[-1].text.rstrip(".") or "."
        number = side[-1]._replace(text=text)
        side = (*side[:-1], number)
    while side and _is_statement(side[0]):
        side = side[1:]
    is_braced = len(side) > 1 and side[0].text == "{" and is_bracketed(side)
    if is_braced:
        return side[1:-1]
    return side


def _is_end(token: Token) -> bool:
    return token.text in (",", ";") or token.text.strip() == "."


def _is_statement(token: Token) -> bool:
    if token.text in ("=", ".", "+"):
        return True
    text = token.text.strip()
    return token.kind == "words" and _STATEMENT.fullmatch(text) is not None


def find_close(side: Side) -> int:
    """Return the place where the first bracket is closed, or -1."""
    depth = 0
    for at, token in enumerate(side):
        depth += (token.kind == "open") - (token.kind == "close")
        if depth == 0:
            return at
    return -1


def is_bracketed(side: Side) -> bool:
    """Return whether the first token opens a bracket that the last one closes."""
    return find_close(side) == len(side) - 1


def drop_open_brace(side: Side) -> Side:
    r"""Drop the brace to the left of a system of equations, which is never closed."""
    is_open = len(side) > 1 and side[0].text == r"\{" and side[1].text in SYSTEMS
    if is_open and is_bracketed(side[1:]):
        return side[1:]
    return side


def find_cuts(side: Side) -> dict[str, list[int]] | None:
    """Return the places of marks outside of all brackets, by kind; None if brackets do not match.

    Kinds are "and" (also of commas and semicolons), "relation", "colon", and those of `JOINTS`.
    """
    cuts = dict[str, list[int]]()
    depth = 0
    for at, token in enumerate(side):
        depth += (token.kind == "open") - (token.kind == "close")
        if not 0 <= depth <= _MAX_BRACKETS:
            return None
        may_cut = depth == 0 and token.kind not in _OPERANDS
        kind = _cut_kind(side, at) if may_cut else ""
        if kind:
            cuts.setdefault(kind, []).append(at)
    return cuts if depth == 0 else None


def _cut_kind(side: Side, at: int) -> str:
    token = side[at]
    if token.kind in ("and", "comma", "semicolon"):
        return "and"
    if token.kind in ("relation", "colon"):
        return token.kind
    if token.text in JOINTS:
        return token.text
    # ``\mathbb{R} - \{2\}`` is a difference of sets.
    texts = [token.text for token in side[max(0, at - 1) : at + 2]]
    is_difference = texts == _REALS_BUT
    return r"\setminus" if is_difference else ""


def split_side(side: Side, places: list[int]) -> list[Side]:
    parts = list[Side]()
    begin = 0
    for place in places:
        parts.append(side[begin:place])
        begin = place + 1
    return [*parts, side[begin:]]
