r"""Times of day: ``6:00\text{ p.m.}`` is ``6 PM`` and ``18:00``, and not ``6:00 a.m.``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from services.grader.answers.asking import Question

_HALF = re.compile(r"[ap]\.? ?m\.?", re.IGNORECASE)
_CLOCK = re.compile(
    r"([0-9]{1,2})(?: ?: ?([0-5][0-9]))?"
    r" ?(?:(?:\\text ?\{)? ?(?P<half>[ap])\.? ?m\.? ?\}?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Time:
    minutes: int  # since midnight or noon
    half: str | None
    says_half: bool  # 18:00 does not


def same_time(gold: str, answer: str, question: Question) -> bool | None:
    """Whether times are the same; None if one is none, or neither says which half of the day.

    Where one leaves that out it is either half, as a unit left out is any unit.
    """
    if not (gold[:1].isdigit() and answer[:1].isdigit()):
        return None
    time, other = _time(gold), _time(answer)
    if time is None or other is None or not (time.says_half or other.says_half):
        return None
    if not time.says_half and (question.asks_ratio or answer.replace(" ", "").isalnum()):
        return None  # 5 am may be a product
    return time.minutes == other.minutes and (
        time.half == other.half or None in (time.half, other.half)
    )


def is_half_of_day(words: str) -> bool:
    """Whether words behind a number are ``p.m.`` or ``AM``."""
    return _HALF.fullmatch(words.strip()) is not None


def _time(latex: str) -> _Time | None:
    match = _CLOCK.fullmatch(latex)
    if match is None or (latex.isalnum() and not latex.isdigit()):  # 5am is a product
        return None
    hour, minute, half = int(match[1]), int(match[2] or 0), match["half"]
    says_half, half = bool(half), half.casefold() if half else None
    if half is None and match[2] and 12 < hour < 24:
        hour, half = hour - 12, "p"
    return _Time(hour % 12 * 60 + minute, half, says_half) if 0 < hour <= 12 else None
