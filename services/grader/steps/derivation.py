"""Which steps belong to the derivation of the answer.

Numbers are compared by nine digits, without their signs, and as hundredths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from services.grader.answers.boxes import last_boxed
from services.grader.answers.grammar import read_expression
from services.grader.answers.nodes import Node, Unreadable
from services.grader.steps import OPEN, RIGHT, WRONG, Step
from services.grader.steps.judging import judged
from services.grader.steps.values import NoValue, values

_NUMBER = re.compile(r"(?<![\d.])(\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(\.\d+)?(?:\s*(%|\\%|percent))?(?:\s*/\s*(\d+))?")
_FREE = frozenset({2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 12.0, 24.0, 30.0, 52.0, 60.0, 100.0, 365.0, 1000.0, 1.0})
_PRODUCTS = frozenset({"*", "/", "fraction", "^", "root", "mixed", "slash", "percent"})
_ONES = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
_WORDS = {word: n for n, word in enumerate(_ONES, 1)}
_WORDS |= {w: 10 * n for n, w in enumerate("thirty forty fifty sixty seventy eighty ninety hundred".split(), 3)}
_WORDS |= {"once": 1, "single": 1, "another": 1, "first": 1, "half": 2, "halves": 2, "twice": 2, "double": 2, "doubled": 2, "doubles": 2, "pair": 2, "couple": 2,
  "both": 2, "second": 2, "third": 3, "thirds": 3, "thrice": 3, "triple": 3, "tripled": 3, "quarter": 4, "quarters": 4, "quadruple": 4, "fourth": 4, "fourths": 4,
  "fifth": 5, "fifths": 5, "sixth": 6, "sixths": 6, "seventh": 7, "eighth": 8, "eighths": 8, "ninth": 9, "tenth": 10, "tenths": 10, "dozen": 12, "dozens": 12, "thousand": 1000, "decade": 10, "century": 100}
_UNGROUNDED, _UNKNOWN, _GROUNDED = range(3)


def _key(number: float) -> float:
    return float(f"{abs(number):.9g}")


def given(problem: str) -> set[float]:
    """The numbers of a problem."""
    found = set[float]()
    for whole, rest, percent, bottom in _NUMBER.findall(problem):
        if not whole and not rest: continue
        n = float(whole.replace(",", "") + rest)
        found |= {n}
        if percent: found |= {n, 100 - n, 100 + n}
        if bottom: found |= {float(bottom), float(bottom) - n}
    for w in re.findall("[a-z]+", problem.lower()):
        if w in _WORDS: found.add(float(_WORDS[w]))
    for a, b in re.findall("([a-z]+ty)[- ]([a-z]+)", problem.lower()):
        if a in _WORDS and b in _WORDS: found.add(float(_WORDS[a] + _WORDS[b]))
    return {_key(n) for n in found}


def _has(known, number: float) -> float | None:
    return next((k for k in (number, _key(number * 100), _key(number / 100)) if k in known), None)


def _operands(tree: Node, parent: str = "") -> Iterator[tuple[float, bool]]:
    if tree.kind == "number":
        yield _key(float(tree.number)), parent in _PRODUCTS and float(tree.number) in _FREE
        return
    kind = parent if tree.kind in {"negative", "grouped"} else tree.kind
    for at, part in enumerate(tree.parts):
        is_base = at == 0 and tree.kind in "+-" and part.kind == "number" and part.number in (1, 100)
        if not is_base:
            yield from _operands(part, kind)


class Move(NamedTuple):
    step: Step
    status: int
    operands: tuple[float, ...]
    results: tuple[float, ...]
    needs: tuple[int, ...]


def moves(steps: list[Step], base: set[float]) -> list[Move]:
    made = list[Move]()
    producers = dict[float, int]()

    def status_of(number):
        p = _has(producers, number)
        if _has(base, number) is not None: return _GROUNDED
        if p is None: return _UNGROUNDED
        return _UNKNOWN if made[producers[p]].status == _UNKNOWN else _GROUNDED

    for step in steps:
        results = tuple(map(_key, step.results))
        if not step.results:  # letters
            operands, status = (), _UNKNOWN
            results = tuple(x for side in step.sides for x, _ in _operands(side)) if step.verdict == OPEN else ()
            needs = ()
        else:
            computed = [side for side in step.sides if not side.is_literal]
            options = []
            for side in computed:
                ops = tuple(n for n, free in dict(_operands(side)).items() if not free or status_of(n))
                options.append((min(map(status_of, ops), default=_UNGROUNDED), ops))
            literal = [side for side in step.sides if side.is_literal]
            status, operands = max(options, key=lambda o: o[0])
            if status == _UNGROUNDED and literal and status_of(results[0]) != _UNGROUNDED:
                status = _UNKNOWN; results += operands; operands = (results[0],)
            needs = tuple(producers[p] for n in operands if (p := _has(producers, n)) is not None and (_has(base, n) is None or made[producers[p]].status == _GROUNDED))
            if made and made[-1].step.end + 3 > step.start and made[-1].step.results and status < made[-1].status and made[-1].step.verdict != WRONG:
                status = made[-1].status; needs = (len(made) - 1,); operands = ()
        at = len(made)
        made.append(Move(step, status, operands, results, needs))
        for r in results:
            if r not in producers or made[producers[r]].status < status:
                producers[r] = at
    return made


def goal_of(answer: str | None) -> set[float]:
    if not answer: return set()
    found = set[float]()
    for part in answer.replace("\\$","").split(", "):
        try:
            tree = read_expression(part)
            found.add(_key(float(values(tree, {})[0])))
            if any(n.kind in ("pi", "root") for n in tree.walk()):
                found |= {x for x, _ in _operands(tree)}
        except (Unreadable, NoValue, KeyError):
            ns = re.findall(r"\d[\d,]*\.?\d*", part)
            if len(ns) == 1: found.add(_key(float(ns[0].replace(",", "").rstrip("."))))
    return found


def used(made: list[Move], goals: Iterable[float], *, sure: bool) -> list[int]:
    kept = [at for at, m in enumerate(made) if m.step.verdict != WRONG and (m.status != _UNKNOWN or not sure)]
    best = dict[float, int]()
    for at in kept:
        for r in made[at].results:
            if r not in best or made[best[r]].status < made[at].status:
                best[r] = at
    waiting = [best[g] for goal in goals if (g := _has(best, goal)) is not None]
    seen = set[int]()
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            waiting += [n for n in made[at].needs if not (sure and made[n].status == _UNKNOWN) and made[n].step.verdict != WRONG]
    return sorted(seen)


def assess(text, problem, solution, answer, most=5000):
    base = given(problem)
    ref = [m for m in moves([s for s, _ in judged(solution, most) if s and s.verdict != WRONG], base)]
    refres = {r for m in ref if m.step.results and m.step.verdict == RIGHT for r in m.results[-1:]}
    base |= {o for m in ref for o in m.operands if o not in refres}
    refres -= base
    refgiven = {o for m in ref for o in m.operands if o in base}
    rel = judged(text, most)
    made = moves([s for s, _ in rel if s], base)
    goal = goal_of(answer) or goal_of(last_boxed(text))
    wrong = len({m.step.identity for m in made if m.step.verdict == WRONG})
    n = max(1, len(refres))
    out = []
    for sure in (True, False):
        reach = used(made, goal, sure=sure)
        path = reach or used(made, refres, sure=sure)
        res = {r for at in path for r in made[at].results}
        giv = {g for at in path for o in made[at].operands if (g := _has(base, o)) is not None}
        ungrounded = sum(made[at].status == _UNGROUNDED for at in path)
        grounded = len(path) - ungrounded
        mids = refres - goal
        share_r = sum(_has(res, r) is not None for r in mids) / len(mids) if mids else None
        share_g = sum(_has(giv, r) is not None for r in refgiven) / len(refgiven) if refgiven else None
        out.append(dict(reached=bool(reach), path=path, share_r=share_r, share_g=share_g, ungrounded=ungrounded, grounded=grounded))
    return dict(made=made, wrong=wrong, n=n, sure=out[0], maybe=out[1], unread=sum(s is None for s, _ in rel), refres=refres, base=base)
