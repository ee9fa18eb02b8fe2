"""Check files of expected numbers: ``python -m tests.golden FILE...``, from the project's root."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from torch import Tensor

from tests.golden.episode_cases import EPISODE_CASES
from tests.golden.group_cases import GROUP_CASES
from tests.golden.token_cases import TOKEN_CASES, Inputs

KINDS: dict[str, Callable[[Inputs, list[str]], Any]] = {
    formula.__name__: formula for formula in (*GROUP_CASES, *TOKEN_CASES, *EPISODE_CASES)
}
GUARDED = "nan_or_guard"  # expects NaN, or None from a guard
SHOWN = 3  # differences of one case
TOLERANCE = r"\batol (\S+) in float64"


class Meta(BaseModel):
    note: str = Field(pattern=TOLERANCE)


class Case(BaseModel):
    id: str
    fn: str
    inputs: dict[str, Any]
    expected: dict[str, Any] | list[Any] | float | int | str


class File(BaseModel):
    meta: Meta
    cases: list[Case] = Field(min_length=1)


def load(path: Path) -> tuple[list[Case], float]:
    """A file's cases, and how far a value may be off.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it holds no cases, or does not say how far.
    """
    content = File.model_validate_json(path.read_bytes())
    (atol,) = map(float, re.findall(TOLERANCE, content.meta.note))
    if not 0 < atol < math.inf:
        raise ValueError(f"meta.note: {atol} is not a finite number above 0")
    return content.cases, atol


def problems(case: Case, atol: float) -> list[str]:
    """What is wrong with one case; empty if it passed."""
    if case.fn not in KINDS:
        return [f"unknown kind {case.fn!r}; known are {', '.join(sorted(KINDS))}"]
    keys = list(case.expected) if isinstance(case.expected, dict) else []
    try:
        result = KINDS[case.fn](Inputs(case.inputs), keys)
    except Exception as error:  # whatever a case holds, the others are still checked
        return [f"{type(error).__name__}: {error}"]
    return list(differences(case.expected, result, atol))


def differences(
    expected: Any,
    result: Any,
    atol: float,
    place: str = "",
) -> Iterator[str]:
    """One line for each value that is not as expected, or that nothing computed."""
    if isinstance(result, Tensor):
        result = result.tolist()
    if isinstance(expected, Mapping):
        yield from _of_keys(expected, result, atol, place)
    elif isinstance(expected, list):
        if not isinstance(result, Sequence) or len(result) != len(expected):
            yield f"{place}: expected {len(expected)} values {expected}, got {result}"
            return
        for index, values in enumerate(zip(expected, result, strict=True)):
            yield from differences(*values, atol, f"{place}[{index}]")
    elif not _same(expected, result, atol):
        yield f"{place}: expected {expected}, got {result}"


def _of_keys(expected: Mapping[str, Any], result: Any, atol: float, place: str) -> Iterator[str]:
    if not expected:
        yield f"{place}: names nothing to compare"
    for key, value in expected.items():
        if isinstance(result, Mapping) and key in result:
            yield from differences(value, result[key], atol, f"{place}.{key}")
        else:
            yield f"{place}.{key}: expected {value}, but nothing computes this key"


def _same(expected: Any, result: Any, atol: float) -> bool:
    if expected == GUARDED:
        return result is None or (isinstance(result, float) and math.isnan(result))
    if type(expected) in {int, float} and type(result) in {int, float}:
        return abs(expected - result) <= atol
    return type(expected) is type(result) and expected == result


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each failed case, then how many passed; 1 if any failed, 2 if none ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument("files", metavar="FILE", nargs="+")
    passed = failed = 0
    for path in parser.parse_args(arguments).files:
        try:
            cases, atol = load(Path(path))
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        for case in cases:
            wrong = problems(case, atol)
            passed, failed = passed + (not wrong), failed + bool(wrong)
            if wrong:
                more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
                print(f"{path}: {case.id}: {'; '.join(wrong[:SHOWN])}{more}")
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
