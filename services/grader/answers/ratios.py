"""Ratios, such as ``3:4``, which are the same as ``6:8`` and ``3/4``."""

from __future__ import annotations

import re
from fractions import Fraction

from services.grader.answers.asking import Question
from services.grader.answers.numerals import parse_number

_RATIO = re.compile(r"[0-9.]+(?: ?: ?[0-9.]+)+")
_TIME = re.compile(r"[0-9]{1,2}(?: ?: ?[0-5][0-9]){1,2}")
_TO = re.compile(r" ?\\text ?\{ ?to ?\} ?| to ")
_MAX_PARTS = 8


def same_ratio(gold: str, answer: str, question: Question) -> bool | None:
    """Whether numbers have the ratio of the gold's; None if the gold is none, or may be a time."""
    if ":" not in gold or not _RATIO.fullmatch(gold):
        return None
    if _TIME.fullmatch(gold) and not question.asks_ratio:
        return None
    parts, answer = _parts(gold), _TO.sub(":", answer)
    if parts is None:
        return None
    others = _parts(answer) if _RATIO.fullmatch(answer) else None
    if others is None:
        number = parse_number(answer)
        return None if number is None else len(parts) == 2 and number.value * parts[1] == parts[0]
    pairs = zip(parts, others, strict=False)
    is_same = all(part * others[0] == other * parts[0] for part, other in pairs)
    return is_same and len(parts) == len(others)


def _parts(ratio: str) -> list[Fraction] | None:
    """Its numbers; None if one is 0 or none, or if there are very many."""
    numbers = [parse_number(part.strip()) for part in ratio.split(":", _MAX_PARTS)]
    values = [number.value for number in numbers if number is not None and number.value]
    return values if len(values) == len(numbers) else None
