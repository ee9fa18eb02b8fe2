"""From a task to a prompt that leaves room for the response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.messages import Task

from services.chassis.prompts import PromptError, Tokenizer, rendered


def prompt_ids(
    task: Task,
    template: str | None,
    tokenizer: Tokenizer,
    *,
    max_context: int,
    max_tokens: int,
    options: Mapping[str, Any] | None = None,
) -> list[int]:
    """The prompt's token ids, by the plain template if there is one, else by the chat template.

    Raises:
        PromptError: if the task does not fit the template, or does not leave ``max_tokens`` of the
            model's ``max_context`` for the response.
    """
    ids = rendered(task, template, tokenizer, options)
    room = max_context - max_tokens
    if len(ids) > room:
        raise PromptError(
            f"task {task.id!r}: its prompt has {len(ids)} tokens, but model.max_context "
            f"{max_context} less sampling.max_tokens {max_tokens} leaves {room}: raise the first, "
            "lower the second, or drop the task"
        )
    return ids
