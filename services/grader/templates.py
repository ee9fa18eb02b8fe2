"""What a check is told: its templates filled in, and a response without its thinking.

What is filled in is never read as a template again, so no response can ask for the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from protocol.messages import (
    CLOSES_THINKING,
    NOT_GIVEN,
    OPENS_THINKING,
    Graded,
    Score,
    Task,
    Ungradable,
)
from protocol.rewards import StringCheck, TextSimilarity
from protocol.tasks import as_text
from pydantic import JsonValue

from services.grader.trial_record import record_failure

_PLACE = re.compile(r"\{\{\s*([A-Za-z_]\w*(?:\.\w+|\[\d+\])*)\s*\}\}")
_STEP = re.compile(r"\w+")  # of a place: a key, or the number of an entry of a list
_TEXT, _JSON = "sample.output_text", "output_json"
MAX_CHARS = 500_000  # of a response whose text is compared or given to a client's function


def without_thinking(text: str) -> str:
    """The text without ``<think>…</think>``, which the prompt may have opened."""
    before, closes, after = text.partition(CLOSES_THINKING)
    if closes and OPENS_THINKING not in before:
        text = after
    first, *thoughts = text.split(OPENS_THINKING)
    return first + "".join(thought.partition(CLOSES_THINKING)[2] for thought in thoughts)


def final_text(text: str) -> str:
    """What a response says after its thinking; one that does not think stays as it is."""
    output = without_thinking(text)
    return text if output == text else output.strip()


class NotGiven(KeyError):
    """A template names what there is not; ``score`` is what becomes of the response."""

    score: Score


class UnknownField(NotGiven):
    score = Ungradable(reason="unknown_field")


class NoOutput(NotGiven):
    score = Graded(value=0, reason="no_output")


def fill(template: str, task: Task, text: str, quoted: Callable[[str], str] = str) -> str:
    """The template with the fields and metadata of ``item``, the task, and the response, quoted.

    Raises `UnknownField`, or `NoOutput` if it names a part of ``sample.output_json`` that is not
    there.
    """
    try:
        return _PLACE.sub(lambda place: quoted(_value(place[1], task, text)), template)
    except UnknownField as error:
        record_failure("unknown_field", f"there is no {error.args[0]}")
        raise


class FilledTexts(NamedTuple):
    input: str
    reference: str


def filled_texts(check: StringCheck | TextSimilarity, task: Task, text: str) -> FilledTexts | Score:
    if len(text) > MAX_CHARS:
        return Graded(value=0, reason="too_long")
    output = final_text(text)
    try:
        return FilledTexts(fill(check.input, task, output), fill(check.reference, task, output))
    except NotGiven as missing:
        return missing.score


def useless(check: StringCheck | TextSimilarity, reason: str, of_response: str) -> Score:
    """A reference of no use is the task's fault, unless the response is a part of it."""
    if _TEXT in check.reference:
        return Graded(value=0, reason=of_response)
    return Ungradable(reason=reason)


def columns_of(task: Task) -> dict[str, JsonValue]:
    """The task as its data set has it: what its metadata holds stands beside its own fields."""
    own = {
        "id": task.id,
        "prompt": task.problem,
        "answer": task.answer,
        "solution": task.solution,
        "metadata": dict(task.metadata),
    }
    given = {name: value for name, value in own.items() if value not in (None, NOT_GIVEN)}
    return {name: value for name, value in task.metadata.items() if name not in own} | given


def output_json(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoOutput(_JSON) from error


def _value(name: str, task: Task, text: str) -> str:
    if name == _TEXT:
        return text
    space, *path = _STEP.findall(name)
    if space == "sample" and path[:1] == [_JSON]:
        return _looked_up(output_json(text), path[1:], NoOutput(name))
    if space == "item" and path:
        return _looked_up(columns_of(task), path, UnknownField(name))
    raise UnknownField(name)


def _looked_up(value: Any, path: list[str], missing: KeyError) -> str:
    for step in path:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (LookupError, TypeError, ValueError):
            raise missing from None
    return as_text(value)
