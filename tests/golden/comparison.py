"""Comparison: is every expected value what was computed, and was every one computed?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

GUARDED = "nan_or_guard"  # expects NaN, or None from a guard


def differences(expected: Any, got: Any, atol: float, where: str = "") -> Iterator[str]:
    """One line for each value that is not as expected, or that nothing computed."""
    if isinstance(expected, Mapping):
        yield from _of_keys(expected, got, atol, where)
    elif isinstance(expected, list):
        yield from _of_items(expected, got, atol, where)
    elif not _same(expected, got, atol):
        yield f"{where or 'value'}: expected {expected}, got {got}"


def _of_keys(expected: Mapping[str, Any], got: Any, atol: float, where: str) -> Iterator[str]:
    if not expected:
        yield f"{where or 'expected'}: names nothing to compare"
    for key, value in expected.items():
        place = f"{where}.{key}" if where else key
        if isinstance(got, Mapping) and key in got:
            yield from differences(value, got[key], atol, place)
        else:
            yield f"{place}: expected {value}, but nothing computes this key"


def _of_items(expected: list[Any], got: Any, atol: float, where: str) -> Iterator[str]:
    if not isinstance(got, Sequence) or len(got) != len(expected):
        yield f"{where or 'value'}: expected {len(expected)} values {expected}, got {got}"
        return
    for index, (value, other) in enumerate(zip(expected, got, strict=True)):
        yield from differences(value, other, atol, f"{where}[{index}]")


def _same(expected: Any, got: Any, atol: float) -> bool:
    if expected == GUARDED:
        return got is None or (isinstance(got, float) and math.isnan(got))
    if _is_number(expected) and _is_number(got):
        return abs(expected - got) <= atol
    return type(expected) is type(got) and expected == got


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
