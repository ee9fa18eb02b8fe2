"""Run: cases in, what is wrong with each out."""

from __future__ import annotations

import json
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
_TOLERANCE = re.compile(r"atol (\S+) in float64")


def load(path: Path) -> tuple[list[dict[str, Any]], float]:
    """A file's cases, and how far a value may be off.

    Raises:
        ValueError: if the file's meta does not say how far.
    """
    content = json.loads(path.read_text())
    found = _TOLERANCE.search(content["meta"]["note"])
    if found is None:
        raise ValueError(f"{path}: meta.note must say 'atol NUMBER in float64'")
    return content["cases"], float(found[1])


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
    """Each case's id and its problems."""
    cases, atol = load(path)
    for case in cases:
        yield case["id"], problems(case, atol)
