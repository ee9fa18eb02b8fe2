"""Answers that only repeat the problem: the expression to compute, or a sum that is left to do.

They equal the gold answer although nothing was worked out. An answer that is written like the gold
answer, up to the order of terms and factors, is never such a repetition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from answers.boxes import unwrap
from answers.grammar import read_tree
from answers.nodes import Node, Unreadable, fold
from answers.problem import MAX_CHARS
from answers.reading import read_answer, split_unit
from answers.sides import find_cuts, is_bracketed, read_marks, split_side, strip
from answers.thousands import join_thousands
from answers.tokens import Side, Token, lexicon, tokenize
from answers.values import Choice, Words

_CACHED_PROBLEMS = 1024
_MAX_ASKING_CHARS = 200
_CLAUSE = r"\b(?: if|when|where|such|given|satisf\w+|whose|for\ which|that ) \b"
_ASKS = r"""
    \b (?:
      compute|evaluate|calculate|simplify|find|determine|express|(?:re)?write|convert|expand
      |factor(?:i[sz]e)?|rationali[sz]e|solve|reduce|combine|perform|multiply|divide|add|subtract
      |work\ out|complete|put|transform|what(?:\ is|'s|\ are)
    ) \b
    | 计算|化简|求|解|分解|展开|等于
"""
_TRANSFORMS = re.compile(
    r"""
    \b (?:
      simplify|expand|factor|solve|(?:re)?write|convert|express|put|transform|complete|form
    ) \b
    | 化简|解|化为|写成
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ASKED_BEFORE = re.compile(
    rf"(?:{_ASKS}) (?: (?!{_CLAUSE}) (?: [^.?!;。？！] | \.(?=\d) ) ){{0,160}} \Z",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_ASKED_JUST_BEFORE = re.compile(
    rf"""
    (?:{_ASKS}) (?: \ (?! (?:of|to|in|on|at|by|from|for|and|or)\b ) [a-z]+ ){{0,3}}
    (?: \ value\ of )? [:：]? [\s$\\(\[]* \Z
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_ASKED_AFTER = re.compile(
    r"[\s$\\)\].,]* (?: =[\s$\\]* )? (?: \? | ？ | _{2,} | underline | \(\s*\) ) | \s*\Z",
    re.VERBOSE,
)
_FACTOR = re.compile(
    r"""
    (?: (?: \A | [.:;,!?]\ ? | \b(?:and|to|then|please|completely)\  )
      factor(?:i[sz]e)?\b (?!\ of)
    | \b factor(?:i[sz]ed|ed|i[sz]ation|ing) \b
    ) | 分解
    """,
    re.IGNORECASE | re.VERBOSE,
)
_EXPAND = re.compile(r"(?i)\bexpand(?:ed|ing)?\b|展开")
_MATH = re.compile(r"\$\$?(.+?)\$\$?|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_COMMANDS_TO_COMPUTE = lexicon(r"\sum \prod \int \lim \max \min \gcd \lcm")
_NAME = re.compile(r"(?:[A-Za-z]{1,6}|\\[A-Za-z]+)'?(?:_\w+)?")
_NAME_KINDS = frozenset({"letters", "accent", "roman"})
_EQUALITY_SIGNS = frozenset({"=", r"\approx"})
_LIST_KINDS = frozenset({"comma", "semicolon", "and"})
_PROSE_KINDS = frozenset({"letters", "words", "roman"})
_SUMS = frozenset({"+", "-"})
_FRACTIONS = frozenset({"/", "fraction"})
_WRAPPERS = frozenset({"negative", "grouped"})


def is_restated(gold: str, answer: str, problem: str) -> bool:
    """Return whether an answer that equals the gold one repeats the problem.

    An answer of several sides does so if each of them does.
    """
    if not problem or isinstance(read_answer(answer), Words | Choice):
        return False
    side = _read_side(answer)
    gold_side = _read_side(gold)
    if _spell(side) == _spell(gold_side):
        return False
    places = (find_cuts(side) or {}).get("relation", [])
    are_equal = {side[at].text for at in places} <= _EQUALITY_SIGNS
    is_chain = are_equal and all(token.kind != "relation" for token in gold_side)
    parts = map(strip, split_side(side, places if is_chain else []))
    values = [part for part in parts if part and not _is_name(part)]
    problem = problem[-MAX_CHARS:]
    return bool(values) and all(_restates(part, gold_side, problem) for part in values)


def _restates(side: Side, gold: Side, problem: str) -> bool:
    shape = _shape_side(side)
    if shape and shape == _shape_side(gold):
        return False
    if _is_unfinished(side) and not _is_unfinished(gold):
        return True
    return _lacks_form(side, gold, problem) or _is_asked(side, problem)


def _is_name(side: Side) -> bool:
    return side[0].kind in _NAME_KINDS and _NAME.fullmatch(_spell(side)) is not None


@lru_cache(4096)
def _read_side(text: str) -> Side:
    tokens = read_marks(tokenize(unwrap(text)))
    return strip(tuple(join_thousands(tokens)))


def _spell(side: Side) -> str:
    return "".join(text for text, *_ in _spell_tokens(side))


def _spell_tokens(side: Iterable[Token]) -> Iterator[tuple[str, int, int]]:
    """Yield each token but brackets, as it is spelled, with its start and end."""
    for token in side:
        if token.kind not in ("open", "close"):
            text = "*" if token.text == r"\times" else token.text.strip()
            yield text, token.start, token.end


def _read_tree(side: Side) -> Node | None:
    if not side:
        return None
    split = split_unit(side)
    try:
        return read_tree(split.head if split else side, as_answer=True)
    except Unreadable:
        return None


def _shape_side(side: Side) -> str:
    """Return a text that is the same for sides that differ only in the order of terms."""
    places = (find_cuts(side) or {}).get("relation", [])
    signs = [side[at].text for at in places]
    shapes = list[str]()
    for part in split_side(side, places):
        tree = _read_tree(strip(part))
        if tree is None:
            return ""
        shapes.append(_shape_tree(tree))
    return f"{signs}{shapes}"


def _shape_tree(tree: Node) -> str:
    """Write terms and factors in one order: ``x+1`` as ``1+x``, but not as ``x+2-1``."""
    return fold(tree, _shape_node).text


class _Shape(NamedTuple):
    terms: list[str]
    factors: list[str]

    @property
    def text(self) -> str:
        return _join("*", self.factors)


def _shape_node(node: Node, parts: list[_Shape]) -> _Shape:
    is_fraction = node.kind in _FRACTIONS
    if node.kind == "grouped" or (is_fraction and parts[1].text == "1"):
        return parts[0]
    if node.kind in _SUMS or node.kind == "negative":
        terms = parts[-1].terms
        if node.kind != "+":
            terms = list(map(_negate, terms))
        if len(parts) > 1:
            terms = parts[0].terms + terms
        terms = [term for term in terms if term.strip("-") != "0"] or ["0"]
        return _Shape(terms, [_join("+", terms)])
    if node.kind == "*":
        factors = [factor for part in parts for factor in part.factors]
        factors = [factor for factor in factors if factor != "1"] or ["1"]
        return _Shape([_join("*", factors)], factors)
    text = f"{node.number}{'.' * bool(node.places)}"
    if node.kind != "number":
        kind = "/" if is_fraction else node.kind
        text = f"({kind} {node.letter} {' '.join(part.text for part in parts)})"
    return _Shape([text], [text])


def _negate(term: str) -> str:
    if term[0] == "-":
        return term[1:]
    return f"-{term}"


def _join(kind: str, parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    return f"({kind} {' '.join(sorted(parts))})"


def _is_unfinished(side: Side) -> bool:
    """Return whether arithmetic is left to do somewhere, or on all sides of an equation."""
    side = strip(side)
    cuts = find_cuts(side)
    if cuts is None:
        return False
    if "relation" in cuts:
        return all(map(_is_unfinished, split_side(side, cuts["relation"])[1:]))
    if "and" in cuts:
        return any(map(_is_unfinished, split_side(side, cuts["and"])))
    if side and side[0].kind == "open" and is_bracketed(side):
        return _is_unfinished(side[1:-1])
    tree = _read_tree(side)
    if tree is None:
        return any(token.text in _COMMANDS_TO_COMPUTE for token in side)
    return not _has_letters(tree) and any(map(_is_sum_to_do, tree.walk()))


def _has_letters(tree: Node) -> bool:
    return bool(tree.letters - {"e", "i"})


def _is_sum_to_do(node: Node) -> bool:
    """Return whether this is a sum or product of numbers, or a fraction that is an integer."""
    if node.kind in _FRACTIONS:
        top, bottom = node.parts
        are_numbers = top.kind == bottom.kind == "number"
        if not are_numbers or not bottom.number:
            return False
        return (top.number / bottom.number).denominator == 1
    kinds = _SUMS | _WRAPPERS if node.kind in _SUMS else {"*"}
    stack = [node]
    num_plain = 0
    while stack:
        part = stack.pop()
        if _is_plain(part):
            num_plain += 1
        elif part.kind in kinds:
            stack += part.parts
    return num_plain > 1


def _is_plain(node: Node) -> bool:
    """Return whether this is a numeral or a fraction of two, with its sign."""
    while node.kind in ("negative", "grouped", "percent", "degree"):
        node = node.parts[0]
    if node.kind in _FRACTIONS:
        return all(_unwrap_node(part).kind == "number" for part in node.parts)
    return node.kind in ("number", "mixed")


def _is_asked(side: Side, problem: str) -> bool:
    """Return whether the problem has this side among the things to compute or transform."""
    kinds = {token.kind for token in side}
    is_decimal = "repeating" in kinds or "." in side[0].text
    is_atom = len(side) == 1 and not is_decimal
    if is_atom or kinds <= _PROSE_KINDS or not kinds.isdisjoint(_LIST_KINDS):
        return False
    if "relation" in kinds and not _TRANSFORMS.search(problem):
        return False
    tree = _read_tree(side)
    is_number = tree is not None and _is_plain(tree)
    asked_before = _ASKED_JUST_BEFORE if is_number else _ASKED_BEFORE
    for start, end in _find_places(side, problem):
        before = problem[max(0, start - _MAX_ASKING_CHARS) : start]
        if asked_before.search(before) or _ASKED_AFTER.match(problem, end):
            return True
    return False


def _find_places(side: Side, problem: str) -> Iterator[tuple[int, int]]:
    """Yield where a side is in a problem, as it is spelled or with its terms in another order."""
    text, spans = _spell_problem(problem)
    spelled = _spell(side)
    at = text.find(spelled) if spelled else -1
    while at >= 0:
        end = at + len(spelled)
        yield spans[at][0], spans[end - 1][1]
        at = text.find(spelled, at + 1)
    shape = _shape_side(side)
    if not shape:
        return
    for problem_shape, span in _shape_problem(problem):
        if problem_shape == shape:
            yield span


@lru_cache(_CACHED_PROBLEMS)
def _spell_problem(problem: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the problem as it is spelled, with the place of each character."""
    texts = list[str]()
    spans = list[tuple[int, int]]()
    for text, start, end in _spell_tokens(tokenize(problem)):
        texts.append(text)
        spans += [(start, end)] * len(text)
    return "".join(texts), spans


@lru_cache(_CACHED_PROBLEMS)
def _shape_problem(problem: str) -> list[tuple[str, tuple[int, int]]]:
    """Return the shape and the place of each formula in a problem."""
    shapes = list[tuple[str, tuple[int, int]]]()
    for match in _MATH.finditer(problem):
        side = _read_side(match[match.lastindex or 0])
        shapes.append((_shape_side(side), match.span()))
    return shapes


def _lacks_form(side: Side, gold: Side, problem: str) -> bool:
    """Return whether a requested product is none, or brackets are left in a requested expansion."""
    tree = _read_tree(side)
    gold_tree = _read_tree(gold)
    if tree is None or gold_tree is None or not _has_letters(gold_tree):
        return False
    num_factors = _count_factors(gold_tree)
    if num_factors and _FACTOR.search(problem):
        is_only_sum = _is_sum(tree) and not _is_sum(gold_tree)
        return is_only_sum or _count_factors(tree) < num_factors
    if not _EXPAND.search(problem):
        return False
    return _has_product_of_sums(tree) and not _has_product_of_sums(gold_tree)


def _unwrap_node(tree: Node) -> Node:
    while tree.kind in _WRAPPERS:
        tree = tree.parts[0]
    return tree


def _is_sum(tree: Node) -> bool:
    return _unwrap_node(tree).kind in _SUMS


def _count_factors(tree: Node) -> int:
    """Count the factors with letters, each as often as its power says."""
    stack = [(tree, 1)]
    total = 0
    while stack:
        node, times = stack.pop()
        node = _unwrap_node(node)
        if node.kind == "*":
            stack += [(part, times) for part in node.parts]
        elif node.kind == "^":
            exponent = int(node.parts[1].number or 1)
            stack.append((node.parts[0], times * exponent))
        elif node.kind in _FRACTIONS:
            stack.append((node.parts[0], times))
        elif _has_letters(node):
            total += times
    return total


def _has_product_of_sums(tree: Node) -> bool:
    return any(map(_is_product_of_sums, tree.walk()))


def _is_product_of_sums(node: Node) -> bool:
    is_power = node.kind == "^" and node.parts[1].kind == "number"
    return (is_power or node.kind == "*") and any(map(_is_sum, node.parts))
