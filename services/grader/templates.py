"""Fills in the templates of checks, and removes the thinking of responses.

Inserted text is never read as a template, so no response can ask for the answer.
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

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*(?:\.\w+|\[\d+\])*)\s*\}\}")
_PATH_STEP = re.compile(r"\w+")  # a key of an object, or an index of a list
_TEXT = "sample.output_text"
_JSON = "output_json"
# The longest response that is compared, or given to a client's function.
MAX_CHARS = 500_000


def remove_thinking(text: str) -> str:
    """Return the text without ``<think>…</think>``, which the prompt may have opened."""
    before, closes, after = text.partition(CLOSES_THINKING)
    if closes and OPENS_THINKING not in before:
        text = after
    first, *thoughts = text.split(OPENS_THINKING)
    return first + "".join(thought.partition(CLOSES_THINKING)[2] for thought in thoughts)


def final_text(text: str) -> str:
    """Return the part after the thinking; a response without thinking is unchanged."""
    output = remove_thinking(text)
    return text if output == text else output.strip()


class MissingField(KeyError):
    """A template names a field that does not exist; ``score`` is the consequence."""

    score: Score


class UnknownField(MissingField):
    score = Ungradable(reason="unknown_field")


class NoOutput(MissingField):
    score = Graded(value=0, reason="no_output")


def fill(template: str, task: Task, text: str, quote: Callable[[str], str] = str) -> str:
    """Fill in fields and metadata of the task, ``item``, and the response, each through ``quote``.

    Raises:
        UnknownField: if the task has no such field.
        NoOutput: if ``sample.output_json`` has no such part.
    """
    try:
        return _PLACEHOLDER.sub(lambda match: quote(_look_up(match[1], task, text)), template)
    except UnknownField as error:
        record_failure("unknown_field", f"there is no {error.args[0]}")
        raise


class FilledTexts(NamedTuple):
    input: str
    reference: str


def fill_texts(check: StringCheck | TextSimilarity, task: Task, text: str) -> FilledTexts | Score:
    if len(text) > MAX_CHARS:
        return Graded(value=0, reason="too_long")
    output = final_text(text)
    try:
        return FilledTexts(fill(check.input, task, output), fill(check.reference, task, output))
    except MissingField as error:
        return error.score


def score_bad_reference(
    check: StringCheck | TextSimilarity, task_reason: str, response_reason: str
) -> Score:
    """Blame the task for an unusable reference, unless the reference contains the response."""
    if _TEXT in check.reference:
        return Graded(value=0, reason=response_reason)
    return Ungradable(reason=task_reason)


def to_columns(task: Task) -> dict[str, JsonValue]:
    """Return a task as in its data set: metadata next to the fields, which take precedence."""
    fields = {
        "id": task.id,
        "prompt": task.problem,
        "answer": task.answer,
        "solution": task.solution,
        "metadata": dict(task.metadata),
    }
    columns = {name: value for name, value in task.metadata.items() if name not in fields}
    for name, value in fields.items():
        if value not in (None, NOT_GIVEN):
            columns[name] = value
    return columns


def parse_output(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoOutput(_JSON) from error


def _look_up(name: str, task: Task, text: str) -> str:
    if name == _TEXT:
        return text
    root, *path = _PATH_STEP.findall(name)
    if root == "sample" and path[:1] == [_JSON]:
        return _follow(path[1:], parse_output(text), NoOutput(name))
    if root == "item" and path:
        return _follow(path, to_columns(task), UnknownField(name))
    raise UnknownField(name)


def _follow(path: list[str], value: Any, missing: KeyError) -> str:
    for step in path:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (LookupError, TypeError, ValueError):
            raise missing from None
    return as_text(value)
