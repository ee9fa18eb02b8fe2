r"""Where a solution says that something equals, or is less than, something else.

A *clause* is a chain such as ``a = b < c`` between words, punctuation and line breaks. A side that
may belong to more than is seen here (a word, a unit, an unreadable piece beside it) is left empty:
what is not surely a relation is not judged. Linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.grader.relations.chains import RELATIONS, START, Chain, Relation, relations_of
from services.grader.relations.notation import USUAL, Notation
from services.grader.relations.sentences import END, SOFT, Around, around
from services.grader.relations.surroundings import is_unclear
from services.grader.relations.tokens import UNREADABLE, Token, tokens

_ENDS = {"word", "words", "comma", "stop", "arrow", "paragraph"} | SOFT
_OPERANDS = {"number", "repeating", "name", "command", "close", "unknown"}
_SIGNS = {"+", "-", "*", "/", "^", "_", "%", "°"}
_CLOSES = {")": "([", "]": "([", "}": "{", r"\}": r"\{", "env": "env", "|": "|"}
_CLOSES |= {r"\rfloor": r"\lfloor", r"\rceil": r"\lceil"}
_JUDGED_INSIDE = {"", "(", "[", "|", r"\boxed"}


def relations(text: str, notation: Notation = USUAL) -> Iterator[Relation]:
    """Every relation whose sides can be told, in the order in which they end."""
    finder = _Finder()
    found = list(tokens(text, notation))
    ahead = _NOTHING
    for token, ahead in zip(found, around(found), strict=True):
        yield from finder.take(token, ahead)
    yield from finder.finish(ahead)


_NOTHING = Around()


@dataclass
class _Frame:
    """What is open: a bracket (or the text itself), and the chain that is read inside it."""

    opener: Token
    before: Token  # what ended the expression before this chain
    after_operand: bool = False  # and whether that expression was there at all
    chain: list[tuple[list[Token], str]] = field(default_factory=list)
    side: list[Token] = field(default_factory=list)
    broken: bool = False

    def as_chain(self) -> Chain:
        sides = [side for side, _ in self.chain] + [self.side]
        return Chain(sides, [sign for _, sign in self.chain], self.before, self.after_operand)

    @property
    def is_empty(self) -> bool:
        return not self.side and not self.chain

    @property
    def last(self) -> Token | None:
        return self.side[-1] if self.side else None


class _Finder:
    """Takes tokens and gives relations, one stack of open brackets at a time."""

    def __init__(self) -> None:
        self._frames = [_Frame(START, START)]

    def take(self, token: Token, ahead: Around) -> Iterator[Relation]:
        frame = self._frames[-1]
        if token.kind in SOFT and self._goes_on(token, ahead.token):
            return
        if token.text == r"\boxed" and frame.last and _ends_operand(frame.last):
            yield from self._end(frame, token, _NOTHING)
            frame.side = [UNREADABLE, token]
        elif token.kind == "paragraph" or token.text in {r"\]", "$$"}:
            yield from self.finish(ahead)
        elif token.kind in _ENDS:
            yield from self._end(frame, token, ahead)
        elif token.kind == "relation":
            unclear = [] if token.text in RELATIONS else [UNREADABLE]
            frame.chain.append(([*frame.side, *unclear], token.text))
            frame.side, frame.broken = unclear, True
        elif token.kind == "open" or (token.kind == "bar" and not self._closes_bar()):
            yield from self._open(token, ahead)
        elif token.kind in {"close", "bar"}:
            yield from self._close(token, ahead)
        else:
            yield from self._add(token, ahead)

    def _is_remark(self, token: Token, ahead: Around) -> bool:
        """Whether a bracket only says something of the chain before it: ``= 4 (correct)``."""
        frame = self._frames[-1]
        opens_words = token.text == "(" and token.gap and ahead.token.kind == "word"
        return opens_words and bool(frame.chain and frame.last and _ends_operand(frame.last))

    def finish(self, ahead: Around) -> Iterator[Relation]:
        """End everything that is open."""
        while len(self._frames) > 1:
            yield from self._abandon(END, ahead)
        yield from self._end(self._frames[0], END, ahead)

    def _goes_on(self, token: Token, after: Token) -> bool:
        """Whether the chain continues behind a soft end; if perhaps, nothing around is readable."""
        frame = self._frames[-1]
        if after.kind in {"relation", "close"} and not frame.is_empty:
            return True
        begins = after.kind == "operator" and after.text in _SIGNS
        dangles = bool(
            frame.last and frame.last.kind in {"operator"} and frame.last.text in "+-*/^"
        )
        if token.kind == "edge" and (begins or dangles or (frame.chain and not frame.side)):
            return True
        if frame.side and (dangles or (begins and (token.kind == "row" or after.text != "-"))):
            frame.side.append(UNREADABLE)
            return True
        return bool(frame.chain) and not frame.side

    def _open(self, token: Token, ahead: Around) -> Iterator[Relation]:
        frame = self._frames[-1]
        if self._is_remark(token, ahead):
            yield from self._end(frame, ahead.token._replace(gap=True), ahead.behind())
        if frame.last and frame.last.text == r"\boxed":
            token = token._replace(text=r"\boxed", start=frame.side.pop().start)
        self._frames.append(_Frame(token, token))

    def _closes_bar(self) -> bool:
        frame = self._frames[-1]
        return frame.opener.kind == "bar" and bool(frame.last and _ends_operand(frame.last))

    def _close(self, token: Token, ahead: Around) -> Iterator[Relation]:
        openers = _CLOSES[token.text]
        while not self._matches(openers):
            if not any(_opens(frame, openers) for frame in self._frames[-3:-1]):
                yield from self._end(self._frames[-1], Token("stop", token.text), ahead)
                return
            yield from self._abandon(token, ahead)
        inner = self._frames[-1]
        if inner.broken:
            yield from self._abandon(token, ahead)
            return
        self._frames.pop()
        if inner.opener.text == r"\{" or inner.opener.text == "env":
            yield from self._add(UNREADABLE, ahead)
            return
        opener, closer = _brackets(inner.opener, token)
        self._begin_operand(opener)
        self._frames[-1].side += [opener, *inner.side, closer]

    def _matches(self, openers: str) -> bool:
        return len(self._frames) > 1 and _opens(self._frames[-1], openers)

    def _abandon(self, token: Token, ahead: Around) -> Iterator[Relation]:
        """Close a bracket around more than one expression: it is no part of another."""
        inner = self._frames[-1]
        yield from self._end(inner, Token("stop", token.text), ahead)
        self._frames.pop()
        outer = self._frames[-1]
        if inner.opener.text != r"\boxed" or not outer.is_empty:
            outer.side.append(UNREADABLE)

    def _begin_operand(self, token: Token) -> None:
        frame = self._frames[-1]
        touches_word = frame.before.kind in {"word", "words"} and not token.gap
        if touches_word and not frame.side and not frame.chain:
            frame.side.append(UNREADABLE)

    def _add(self, token: Token, ahead: Around) -> Iterator[Relation]:
        frame = self._frames[-1]
        if token.kind == "number" and _is_times([*frame.side[-2:], token]):
            frame.side[-1] = Token("operator", "*")
        elif token.kind == "number" and _starts_anew(frame.side[-3:]):
            mixed = ahead.token.text == "/"  # 3 1/2
            unclear = token.in_math or mixed or not token.gap
            if unclear:
                frame.side.append(UNREADABLE)
            yield from self._end(frame, token, _NOTHING)
            frame.side = [UNREADABLE] if unclear else []
        self._begin_operand(token)
        frame.side.append(token)

    def _end(self, frame: _Frame, token: Token, ahead: Around) -> Iterator[Relation]:
        """End the chain of a frame with what ends it."""
        unclear = is_unclear(frame.last, token, ahead.token)
        if unclear and frame.side:
            frame.side.append(UNREADABLE)
        if frame.chain and frame.opener.text in _JUDGED_INSIDE:
            if token.kind == "edge":
                yield from relations_of(frame.as_chain(), ahead.token, ahead.behind())
            else:
                yield from relations_of(frame.as_chain(), token, ahead)
        if token.kind == "edge" and frame.is_empty:
            return
        frame.after_operand, frame.before = not frame.is_empty, token
        frame.chain, frame.side = [], [UNREADABLE] if unclear else []
        frame.broken = True


def _is_times(three: list[Token]) -> bool:
    """``3 x 4`` is a product, for nobody writes a letter before a number."""
    kinds = [token.kind for token in three]
    return kinds == ["number", "name", "number"] and three[1].text in {"x", "X"}


def _starts_anew(before: list[Token]) -> bool:
    r"""Whether a number can belong to nothing before it, unlike the 2 of ``\frac 1 2``."""
    if not before or before[-1].kind != "number":
        return False
    function, command = ([None] * 3 + [*before])[-3:-1]
    if command is None:
        return True
    is_power = bool(command.text == "^" and function and function.kind == "function")
    return not (is_power or command.text in {"_", r"\frac", r"\binom"})


def _opens(frame: _Frame, openers: str) -> bool:
    text = "{" if frame.opener.text == r"\boxed" else _plain(frame.opener)
    return text in ({"(", "["} if openers == "([" else {openers})


def _plain(opener: Token) -> str:
    return "|" if opener.kind == "bar" else opener.text


def _brackets(opener: Token, closer: Token) -> tuple[Token, Token]:
    if opener.text == r"\boxed":
        return opener._replace(kind="open", text="("), closer._replace(kind="close", text=")")
    return opener._replace(kind="open"), closer._replace(kind="close")


def _ends_operand(token: Token) -> bool:
    return token.kind in _OPERANDS or token.text in {"!", "%", "°"}
