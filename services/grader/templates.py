"""Templates of a recipe's checks: ``{{item.answer}}`` and ``{{sample.output_text}}`` filled in.

What is filled in is never read as a template again, so no response can ask for the answer.
"""

from __future__ import annotations

import re

from protocol.messages import Task
from protocol.tasks import as_text
from pydantic import JsonValue

_PLACE = re.compile(r"\{\{\s*([A-Za-z_][\w.]*)\s*\}\}")
_ITEM, _METADATA = "item.", "metadata."


class UnknownField(KeyError):
    """A template names a field that the task does not have."""


def fill(template: str, task: Task, text: str) -> str:
    """The template with the response's text, and ``item.{id,prompt,answer,solution,metadata.x}``.

    Any other ``item.x`` is the task's ``metadata.x``.

    Raises:
        UnknownField: if it names anything else, or something that this task lacks.
    """
    return _PLACE.sub(lambda place: _value(place[1], task, text), template)


def problem_of(task: Task) -> str:
    """The prompt as one text; the turns of a conversation carry their roles."""
    if task.messages is None:
        return task.prompt or ""
    if len(task.messages) == 1:
        return task.messages[0].content
    return "\n\n".join(f"[{turn.role}]\n{turn.content}" for turn in task.messages)


def _value(name: str, task: Task, text: str) -> str:
    known = {
        "sample.output_text": text,
        "item.id": task.id,
        "item.prompt": problem_of(task),
        "item.answer": task.answer,
        "item.solution": task.solution,
    }
    value = known.get(name)
    if name.startswith(_ITEM) and name not in known:
        value = _looked_up(name, task)
    if value is None:
        raise UnknownField(name)
    return value


def _looked_up(name: str, task: Task) -> str:
    value: JsonValue = dict(task.metadata)
    for key in name.removeprefix(_ITEM).removeprefix(_METADATA).split("."):
        if not isinstance(value, dict) or key not in value:
            raise UnknownField(name)
        value = value[key]
    return as_text(value)
