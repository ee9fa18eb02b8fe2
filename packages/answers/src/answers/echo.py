"""Answers that only say again what the problem asks: the expression to compute, or the sum to do.

They are equal to the gold answer, and nobody has worked anything out. What is written as the gold
answer is, up to the order of terms and factors, is always an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from answers.boxes import unwrapped
from answers.grammar import tree_of
from answers.nodes import Node, Unreadable
from answers.problem import MAX_CHARS
from answers.read import (
    bare,
    closes,
    cuts_of,
    flat,
    joined,
    parted_at,
    read_answer,
    split_unit,
)
from answers.tokens import Side, Token, tokens
from answers.values import Choice, Words

_PROBLEMS = 1024
_CLAUSE = r"(?!\b(?:if|when|where|such|given|satisf\w+|whose|for which|that)\b)"
_ASKS = (
    r"\b(?:compute|evaluate|calculate|simplify|find|determine|express|(?:re)?write|convert|expand"
    r"|factor(?:i[sz]e)?|rationali[sz]e|solve|reduce|combine|perform|multiply|divide|add|subtract"
    r"|work out|complete|put|transform|what(?: is|'s| are))\b|计算|化简|求|解|分解|展开|等于"
)
_TRANSFORMS = re.compile(
    r"(?i)\b(?:simplify|expand|factor|solve|(?:re)?write|convert|express|put|transform|complete"
    r"|form)\b|化简|解|化为|写成"
)
_ASKED_BEFORE = re.compile(rf"(?is)(?:{_ASKS})(?:{_CLAUSE}(?:[^.?!;。？！]|\.(?=\d))){{0,160}}\Z")
_ASKED_AT_ONCE = re.compile(
    rf"(?is)(?:{_ASKS})(?: (?!(?:of|to|in|on|at|by|from|for|and|or)\b)[a-z]+){{0,3}}"
    r"(?: value of)?[:：]?[\s$\\(\[]*\Z"
)
_ASKED_BEHIND = re.compile(r"[\s$\\)\].,]*(?:=[\s$\\]*)?(?:\?|？|_{2,}|underline|\(\s*\))|\s*\Z")
_FACTOR = re.compile(
    r"(?i)(?:(?:\A|[.:;,!?] ?|\b(?:and|to|then|please|completely) )factor(?:i[sz]e)?\b(?! of)"
    r"|\bfactor(?:i[sz]ed|ed|i[sz]ation|ing)\b)|分解"
)
_EXPAND = re.compile(r"(?i)\bexpand(?:ed|ing)?\b|展开")
_MATH = re.compile(r"\$\$?(.+?)\$\$?|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_TO_DO = frozenset({r"\sum", r"\prod", r"\int", r"\lim", r"\max", r"\min", r"\gcd", r"\lcm"})
_NAME = re.compile(r"(?:[A-Za-z]{1,6}|\\[A-Za-z]+)'?(?:_\w+)?")
_NAMES = frozenset({"letters", "accent", "roman"})
_EQUAL = frozenset({"=", r"\approx"})
_LISTS = frozenset({"comma", "semicolon", "and"})
_PROSE = frozenset({"letters", "words", "roman"})
_MAX_ASKING_CHARS = 200
_SAME_KINDS = {"fraction": "/"}


def is_restated(gold: str, answer: str, problem: str) -> bool:
    """Of an answer that is equal to the gold one: if it has several sides, whether each is."""
    if not problem or isinstance(read_answer(answer), Words | Choice):
        return False
    side, golds = _side(answer), _side(gold)
    if _spelled(side) == _spelled(golds):
        return False
    cuts = (cuts_of(side) or {}).get("relation", [])
    is_chain = {side[at].text for at in cuts} <= _EQUAL and "relation" not in {
        token.kind for token in golds
    }
    parts = [bare(part) for part in parted_at(side, cuts if is_chain else [])]
    values = [part for part in parts if part and not _is_name(part)]
    return bool(values) and all(_restates(part, golds, problem[-MAX_CHARS:]) for part in values)


def _restates(side: Side, golds: Side, problem: str) -> bool:
    if (shape := _shape_of(side)) and shape == _shape_of(golds):
        return False
    is_unfinished = _is_open(side) and not _is_open(golds)
    return is_unfinished or _lacks_form(side, golds, problem) or _is_asked(side, problem)


def _is_name(side: Side) -> bool:
    return side[0].kind in _NAMES and _NAME.fullmatch(_spelled(side)) is not None


@lru_cache(4096)
def _side(text: str) -> Side:
    return bare(tuple(joined(flat(tokens(unwrapped(text))))))


def _spelled(side: Side) -> str:
    return "".join(piece for piece, *_ in _pieces(side))


def _pieces(side: Iterable[Token]) -> Iterator[tuple[str, int, int]]:
    """Each token but brackets, as it is spelled, and its place."""
    for token in side:
        if token.kind not in ("open", "close"):
            text = "*" if token.text == r"\times" else token.text.strip()
            yield text, token.start, token.end


def _tree(side: Side) -> Node | None:
    if not side:
        return None
    split = split_unit(side)
    try:
        return tree_of(split.head if split else side, as_answer=True)
    except Unreadable:
        return None


def _shape_of(side: Side) -> str:
    cuts = (cuts_of(side) or {}).get("relation", [])
    trees = [_tree(bare(part)) for part in parted_at(side, cuts)]
    signs = [side[at].text for at in cuts]
    return "" if None in trees else f"{signs}{[_shape(tree) for tree in trees if tree]}"


def _shape(tree: Node) -> str:
    """A tree as text, terms and factors in any order: ``x+1`` is ``1+x``, but not ``x+2-1``."""
    built: dict[int, _Shape] = {}
    for node in reversed(list(tree.walk())):  # parts come before what they are part of
        built[id(node)] = _shape_of_node(node, *(built[id(part)] for part in node.parts))
    return built[id(tree)].text


class _Shape(NamedTuple):
    terms: list[str]
    factors: list[str]

    @property
    def text(self) -> str:
        return self.factors[0] if len(self.factors) == 1 else _listed("*", self.factors)


def _shape_of_node(node: Node, *parts: _Shape) -> _Shape:
    if node.kind == "grouped" or (node.kind in ("/", "fraction") and parts[1].text == "1"):
        return parts[0]
    if node.kind in ("+", "-", "negative"):
        last = parts[-1].terms if node.kind == "+" else list(map(_negative, parts[-1].terms))
        terms = [*(parts[0].terms if len(parts) > 1 else ()), *last]
        terms = [term for term in terms if term.strip("-") != "0"] or ["0"]
        return _Shape(terms, [_listed("+", terms)])
    if node.kind == "*":
        factors = [each for part in parts for each in part.factors if each != "1"] or ["1"]
        return _Shape([_listed("*", factors)], factors)
    text = (
        f"({_SAME_KINDS.get(node.kind, node.kind)} {node.letter} {' '.join(p.text for p in parts)})"
    )
    if node.kind == "number":
        text = f"{node.number}{'.' * bool(node.places)}"
    return _Shape([text], [text])


def _negative(term: str) -> str:
    return term[1:] if term[0] == "-" else f"-{term}"


def _listed(kind: str, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({kind} {' '.join(sorted(parts))})"


def _is_open(side: Side) -> bool:
    """Whether arithmetic is left to do somewhere, or on all sides of an equation."""
    side = bare(side)
    if (cuts := cuts_of(side)) is None:
        return False
    if "relation" in cuts:
        return all(map(_is_open, parted_at(side, cuts["relation"])[1:]))
    if "and" in cuts:
        return any(map(_is_open, parted_at(side, cuts["and"])))
    if side and side[0].kind == "open" and closes(side) == len(side) - 1:
        return _is_open(side[1:-1])
    if tree := _tree(side):
        return not _has_letters(tree) and any(map(_is_sum_to_do, tree.walk()))
    return any(token.text in _TO_DO for token in side)


def _has_letters(tree: Node | None) -> bool:
    return tree is not None and any(
        node.kind == "letter" and node.letter not in ("e", "i") for node in tree.walk()
    )


def _is_sum_to_do(node: Node) -> bool:
    """A sum or a product of plain numbers, or a fraction of them that is a whole number."""
    if node.kind in ("/", "fraction"):
        top, bottom = node.parts
        if not (top.kind == bottom.kind == "number" and bottom.number):
            return False
        return (top.number / bottom.number).denominator == 1
    kinds = ("+", "-", "negative", "grouped") if node.kind in ("+", "-") else ("*",)
    waiting, num_plain = [node], 0
    while waiting:
        part = waiting.pop()
        num_plain += _is_plain(part)
        waiting += part.parts if part.kind in kinds and not _is_plain(part) else ()
    return num_plain > 1


def _is_plain(node: Node) -> bool:
    """Whether it is a numeral or a fraction of two, with its sign."""
    while node.kind in ("negative", "grouped", "percent", "degree"):
        node = node.parts[0]
    if node.kind in ("fraction", "/"):
        return all(part.kind == "number" for part in map(_bare, node.parts))
    return node.kind in ("number", "mixed")


def _is_asked(side: Side, problem: str) -> bool:
    """Whether it stands in the problem as what is to be computed or to be transformed."""
    is_atom = len(side) == 1 and side[0].kind != "repeating" and "." not in side[0].text
    kinds = {token.kind for token in side}
    if is_atom or kinds <= _PROSE or not kinds.isdisjoint(_LISTS):
        return False
    before = _ASKED_AT_ONCE if _is_number(side) else _ASKED_BEFORE
    if "relation" in kinds and not _TRANSFORMS.search(problem):
        return False
    return any(
        before.search(problem[max(0, start - _MAX_ASKING_CHARS) : start])
        or _ASKED_BEHIND.match(problem, end)
        for start, end in _places(side, problem)
    )


def _is_number(side: Side) -> bool:
    tree = _tree(side)
    return tree is not None and _is_plain(tree)


def _places(side: Side, problem: str) -> Iterator[tuple[int, int]]:
    """Where it stands in a problem, as it is spelled or with its terms in another order."""
    text, spans = _spelled_problem(problem)
    spelled = _spelled(side)
    at = text.find(spelled) if spelled else -1
    while at >= 0:
        end = at + len(spelled)
        yield spans[at][0], spans[end - 1][1]
        at = text.find(spelled, at + 1)
    if shape := _shape_of(side):
        yield from (span for each, span in _shapes(problem) if each == shape)


@lru_cache(_PROBLEMS)
def _spelled_problem(problem: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    pieces = list(_pieces(tokens(problem)))
    spans = ((start, end) for text, start, end in pieces for _ in text)
    return "".join(text for text, *_ in pieces), tuple(spans)


@lru_cache(_PROBLEMS)
def _shapes(problem: str) -> tuple[tuple[str, tuple[int, int]], ...]:
    return tuple(
        (_shape_of(_side(match[match.lastindex or 0])), match.span())
        for match in _MATH.finditer(problem)
    )


def _lacks_form(side: Side, golds: Side, problem: str) -> bool:
    """Whether it is no product where the problem asks for one, or has brackets left to expand."""
    tree, gold = _tree(side), _tree(golds)
    if tree is None or gold is None or not _has_letters(gold):
        return False
    if _FACTOR.search(problem) and _num_factors(gold):
        is_sum, is_gold_sum = (_bare(each).kind in ("+", "-") for each in (tree, gold))
        return _num_factors(tree) < _num_factors(gold) or (is_sum and not is_gold_sum)
    are_closed = [not any(map(_is_product_of_sums, each.walk())) for each in (tree, gold)]
    return bool(_EXPAND.search(problem)) and are_closed == [False, True]


def _bare(tree: Node) -> Node:
    while tree.kind in ("negative", "grouped"):
        tree = tree.parts[0]
    return tree


def _num_factors(tree: Node) -> int:
    """Those with letters, each as often as its power says."""
    waiting, total = [(tree, 1)], 0
    while waiting:
        node, times = waiting.pop()
        node = _bare(node)
        if node.kind == "*":
            waiting += [(part, times) for part in node.parts]
        elif node.kind in ("^", "/", "fraction"):
            power = node.parts[1].number if node.kind == "^" else 1
            waiting.append((node.parts[0], times * int(power or 1)))
        else:
            total += times * _has_letters(node)
    return total


def _is_product_of_sums(node: Node) -> bool:
    is_product = node.kind == "*" or (node.kind == "^" and node.parts[1].kind == "number")
    return is_product and any(_bare(part).kind in ("+", "-") for part in node.parts)
