"""Run: cases in, what is wrong with each out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.golden.comparison import differences
from tests.golden.episode_cases import EPISODE_CASES
from tests.golden.group_cases import GROUP_CASES
from tests.golden.reply_cases import REPLY_CASES
from tests.golden.token_cases import TOKEN_CASES

KINDS: dict[str, Callable[[dict[str, Any], list[str]], Any]] = {
    **GROUP_CASES,
    **TOKEN_CASES,
    **EPISODE_CASES,
    **REPLY_CASES,
}
_TOLERANCE = re.compile(r"\batol (\S+) in float64")
_FIELDS = {"id": str, "fn": str, "inputs": dict, "expected": (dict, list, float, int, str)}


class CasesError(ValueError):
    """A file that is no file of cases; the text names the file and what is wrong."""


def load(path: Path) -> tuple[list[dict[str, Any]], float]:
    """A file's cases, and how far a value may be off.

    Raises:
        CasesError: if it cannot be read, holds no cases, or does not say how far.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CasesError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CasesError(f"{path}: not valid JSON: {error}") from error
    try:
        atol = _tolerance(content)
        return _cases(content), atol
    except (CasesError, TypeError, ValueError) as error:
        raise CasesError(f"{path}: {error}") from error


def _tolerance(content: Any) -> float:
    meta = content.get("meta") if isinstance(content, dict) else None
    note = meta.get("note") if isinstance(meta, dict) else None
    found = _TOLERANCE.search(note) if isinstance(note, str) else None
    try:
        atol = float(found[1]) if found is not None else math.nan
    except ValueError:
        atol = math.nan
    if not 0 < atol < math.inf:
        raise CasesError("meta.note must say 'atol NUMBER in float64', a finite number above 0")
    return atol


def _cases(content: Any) -> list[dict[str, Any]]:
    cases = content.get("cases")
    if not isinstance(cases, list) or not cases:
        raise CasesError("cases must be a list of at least one case")
    for number, case in enumerate(cases):
        wrong = [n for n, kind in _FIELDS.items() if not isinstance(dict(case).get(n, ...), kind)]
        if wrong:
            raise CasesError(f"cases[{number}].{wrong[0]} is missing, or of another type")
    return cases


def problems(case: dict[str, Any], atol: float) -> list[str]:
    """What is wrong with one case; empty if it passed."""
    if case["fn"] not in KINDS:
        return [f"unknown kind {case['fn']!r}; known are {', '.join(sorted(KINDS))}"]
    expected = case["expected"]
    keys = list(expected) if isinstance(expected, dict) else []
    try:
        got = KINDS[case["fn"]](case["inputs"], keys)
    except Exception as error:  # whatever a case holds, the others are still checked
        return [f"{type(error).__name__}: {error}"]
    return list(differences(expected, got, atol))


def failures(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each case's id and its problems.

    Raises:
        CasesError: as `load`.
    """
    cases, atol = load(path)
    for case in cases:
        yield case["id"], problems(case, atol)
