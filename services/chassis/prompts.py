"""From a task to the tokens that a model reads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jinja2 import TemplateError
from protocol.messages import Task

from services.chassis.faults import Unworkable


class PromptError(Unworkable):
    """A task that cannot be a prompt of this model; the text says what to change."""


class Tokenizer(Protocol):
    chat_template: Any

    def __call__(self, text: str) -> Any: ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any: ...


def rendered(
    task: Task, template: str | None, tokenizer: Tokenizer, options: Mapping[str, Any] | None = None
) -> list[int]:
    """The prompt's token ids, by the plain template if there is one, else by the chat template.

    Args:
        options: further variables of the chat template.

    Raises:
        PromptError: if the chat template refuses the task, or the model has none, or an option has
            the name of a parameter of the tokenizer.
    """
    if template is not None:
        return list(tokenizer(template.replace("{prompt}", task.problem)).input_ids)
    turns = [{"role": turn.role, "content": turn.content} for turn in task.messages or ()]
    if task.prompt is not None:
        turns = [{"role": "user", "content": task.prompt}]
    try:
        return chat(turns, tokenizer, options or {})
    except PromptError as error:
        raise PromptError(f"task {task.id!r}: {error}") from error


def chat(
    turns: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """The token ids of a conversation by the model's chat template, up to the assistant's turn.

    Args:
        turns: with one text as content, and the arguments of tools' calls as objects.

    Raises:
        PromptError: if the chat template refuses it, or the model has none, or an option has the
            name of a parameter of the tokenizer.
    """
    if tokenizer.chat_template is None:
        raise PromptError("the model has no chat template: set model.prompt_template in the recipe")
    taken = options.keys() & inspect.signature(tokenizer.apply_chat_template).parameters.keys()
    if taken:
        names = ", ".join(sorted(taken))
        raise PromptError(
            f"model.chat_template_options: {names} would be no variable of the template, but an "
            "argument of the tokenizer; remove it"
        )
    try:
        ids = tokenizer.apply_chat_template(
            [_turn(turn, tokenizer) for turn in turns],
            **{"tools": list(tools) or None, "tokenize": True, "add_generation_prompt": True},
            return_dict=False,
            **options,
        )
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        given = f" with model.chat_template_options {dict(options)}" if options else ""
        raise PromptError(f"the model's chat template refuses it{given}: {error}") from error
    return list(ids)


def _turn(turn: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    # Most templates know no developer, and some would leave out what it says.
    if turn["role"] == "developer" and "developer" not in str(tokenizer.chat_template):
        return {**turn, "role": "system"}
    return {**turn}
