r"""Outcome by rule: is the last ``\boxed{}`` the task's answer?

Plain numbers, words and equal text are decided here. Everything else is decided by math-verify in
the pool, which can hang or crash on what a policy writes: then the response is wrong, not
ungradable, or a policy could learn to hide there. Only a gold answer that fails is ungradable.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import Check

from services.grader.latex import (
    Number,
    has_ellipsis,
    last_boxed,
    parse_number,
    squeezed,
    tidy,
    trailing_unit,
    unwrapped,
    words,
)
from services.grader.pool import Cause, Failed, Value
from services.grader.tools import Tools

WARM_UP = "services.grader.equivalence:warm_up"

_COMPARE = "services.grader.equivalence:compare"
_SIMPLE_ANSWER = "7"
_MAX_TEXT_CHARS = 1_000_000
_MAX_ANSWER_CHARS = 2_000
_MIN_PLACES = 6  # decimals from which a rounded value may stand for an exact one
_MAX_ROUNDING = 5e-6  # relative to the gold value

_GOLD_NOT_PARSABLE = Ungradable(reason="gold_not_parsable")
_RIGHT = Graded(value=1)


@dataclass(frozen=True)
class Decision:
    """A score, and the way it was found: by which rule, or by ``algebra``."""

    score: Score
    path: str


async def verify(task: Task, text: str, check: Check, tools: Tools) -> Score:
    """1 if the response's boxed answer equals ``task.answer``, else 0 with the reason."""
    return (await decide_response(text, task.answer, tools)).score


async def decide_response(text: str, gold_answer: str, tools: Tools) -> Decision:
    """Decide on the last box of a response."""
    if len(text) > _MAX_TEXT_CHARS:
        return Decision(_wrong("too_long"), "box")
    boxed = last_boxed(text)
    if boxed is None or not boxed.strip():
        return Decision(_wrong("no_answer"), "box")
    if len(boxed) > _MAX_ANSWER_CHARS:
        return Decision(_wrong("too_long"), "box")
    return await decide(gold_answer, boxed, tools)


async def compare(gold: str, answer: str, tools: Tools) -> Score:
    """Grade a boxed answer against the gold answer, which may be boxed too."""
    return (await decide(gold, answer, tools)).score


async def decide(gold: str, answer: str, tools: Tools) -> Decision:
    """Decide on a boxed answer, and say how."""
    gold, answer = tidy(unwrapped(gold)), tidy(unwrapped(answer))
    settled = settle(gold, answer)
    if settled is not None:
        return Decision(_RIGHT if settled else _wrong("wrong"), "rule")
    outcome = await _compared(gold, answer, tools)
    if isinstance(outcome, Failed):
        return Decision(await _blame(outcome, gold, tools), "algebra")
    score = {
        "right": _RIGHT,
        "wrong": _wrong("wrong"),
        "not_parsable": _wrong("not_parsable"),
        "gold_not_parsable": _GOLD_NOT_PARSABLE,
    }[str(outcome.value)]
    return Decision(score, "algebra")


def settle(gold: str, answer: str) -> bool | None:
    """Decide on tidied answers where no algebra is needed; None where it is."""
    if squeezed(gold) == squeezed(answer):
        return True
    if (gold_words := words(gold)) is not None:
        return (words(answer) or answer.strip("() ").casefold()) == gold_words
    gold_number, number = parse_number(gold), parse_number(answer)
    if gold_number is not None and number is not None:
        return numbers_agree(gold_number, number)
    if _misread_by_algebra(gold, answer):
        return False
    return None


def numbers_agree(gold: Number, answer: Number) -> bool:
    """Equal, or an exact value and its decimals, at least six of them, correctly rounded.

    A percentage as gold also accepts its bare number: its question asks "what percentage".
    """
    if gold.value == answer.value:
        return True
    if gold.is_percentage and not answer.is_percentage:
        return answer.value == 100 * gold.value
    places = min((n.places for n in (gold, answer) if n.places is not None), default=0)
    if places < _MIN_PLACES:
        return False
    rounding = 0.5 * 10.0**-places
    return abs(gold.value - answer.value) <= rounding <= _MAX_ROUNDING * abs(gold.value)


def _misread_by_algebra(gold: str, answer: str) -> bool:
    """What math-verify would take for equal: lists with gaps, a stray per cent, another unit."""
    units = {trailing_unit(gold), trailing_unit(answer)} - {None}
    stray_percent = answer.endswith("%") and not gold.endswith("%")
    return has_ellipsis(gold) or has_ellipsis(answer) or stray_percent or len(units) > 1


async def _compared(gold: str, answer: str, tools: Tools) -> Value | Failed:
    """Compare in the pool; what hangs or crashes gets a second chance in a fresh worker."""
    deadline_s = tools.compare_deadline_s
    outcome = await tools.pool.run(_COMPARE, gold, answer, deadline_s=deadline_s)
    if isinstance(outcome, Value) or outcome.cause is Cause.ERROR:
        return outcome
    return await tools.pool.run(_COMPARE, gold, answer, deadline_s=deadline_s, suspect=True)


async def _blame(failed: Failed, gold: str, tools: Tools) -> Score:
    """The response's fault, unless the gold answer cannot be compared with anything."""
    if not await _is_gradable(gold, tools):
        return _GOLD_NOT_PARSABLE
    return _wrong("not_parsable" if failed.cause is Cause.ERROR else "too_hard")


async def _is_gradable(gold: str, tools: Tools) -> bool:
    itself = await _compared(gold, gold, tools)
    if isinstance(itself, Failed) or itself.value == "gold_not_parsable":
        return False
    simple = await _compared(gold, _SIMPLE_ANSWER, tools)  # unlike itself, it must be worked out
    return isinstance(simple, Value) or simple.cause is Cause.ERROR


def _wrong(reason: str) -> Graded:
    return Graded(value=0, reason=reason)
