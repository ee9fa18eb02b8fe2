"""The form that a judge fills in, as a JSON schema and as the strict reader of what comes back.

A server may promise that its replies follow a schema. Nothing here believes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

ANALYSIS = "analysis"  # written first: a judge that has reasoned decides better
_KEPT_CHARS = 1_500

Verdict = dict[str, str | float]


class NoVerdict(ValueError):
    """The judge's text is not a form filled in; the text says why, without quoting the judge."""


class Blank(Protocol):
    """One place of a form."""

    @property
    def schema(self) -> dict[str, Any]:
        """What may be filled in, as a JSON schema."""
        ...

    def accepts(self, value: object) -> bool:
        """Whether this may be filled in."""
        ...


@dataclass(frozen=True)
class Choice:
    """One name out of several."""

    names: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """An enumeration."""
        return {"type": "string", "enum": list(self.names)}

    def accepts(self, value: object) -> bool:
        """One of the names, letter by letter."""
        return isinstance(value, str) and value in self.names


@dataclass(frozen=True)
class Number:
    """A number from ``lowest`` to ``highest``."""

    lowest: float
    highest: float

    @property
    def schema(self) -> dict[str, Any]:
        """A number with its bounds."""
        return {"type": "number", "minimum": self.lowest, "maximum": self.highest}

    def accepts(self, value: object) -> bool:
        """A number within bounds; true is none."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.lowest <= value <= self.highest


@dataclass(frozen=True)
class Text:
    """Free text, as long as the question's tokens last.

    No ``maxLength``: to count characters costs a server's grammar seconds to compile and a hundred
    times as long for every token (xgrammar 0.2, 200 000 tokens). The instructions say how much.
    """

    @property
    def schema(self) -> dict[str, Any]:
        """A string."""
        return {"type": "string"}

    def accepts(self, value: object) -> bool:
        """Any text."""
        return isinstance(value, str)


@dataclass(frozen=True)
class Form:
    """Named blanks, in the order in which they are filled in."""

    blanks: Mapping[str, Blank]

    @property
    def schema(self) -> dict[str, Any]:
        """An object with every blank and nothing else."""
        return {
            "type": "object",
            "properties": {name: blank.schema for name, blank in self.blanks.items()},
            "required": list(self.blanks),
            "additionalProperties": False,
        }

    def read(self, content: object) -> Verdict:
        """The form filled in, if ``content`` is exactly that.

        Raises:
            NoVerdict: if it is anything else.
        """
        values = _object(content)
        if values.keys() != self.blanks.keys():
            raise NoVerdict("fields are missing or too many")
        for name, blank in self.blanks.items():
            if not blank.accepts(values[name]):
                raise NoVerdict(f"{name} holds what it may not")
        return values


def shortened(verdict: Verdict) -> Verdict:
    """A verdict with only the beginning of its analysis."""
    analysis = verdict.get(ANALYSIS)
    return verdict | {ANALYSIS: analysis[:_KEPT_CHARS]} if isinstance(analysis, str) else verdict


def _object(content: object) -> dict[str, Any]:
    if not isinstance(content, str):
        raise NoVerdict("there is no text")
    try:
        values = json.loads(
            content,
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except NoVerdict:
        raise
    except (ValueError, RecursionError) as error:
        raise NoVerdict("it is not JSON") from error
    if not isinstance(values, dict):
        raise NoVerdict("it is not an object")
    return values


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise NoVerdict("a field is there twice")
    return values


def _refuse_constant(_: str) -> NoReturn:
    raise NoVerdict("a number is not finite")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise NoVerdict("a number is not finite")
    return value
