"""From a task to the tokens that a model reads."""

from __future__ import annotations

from typing import Any, Protocol

from protocol.messages import Task

from services.chassis.faults import Unworkable


class PromptError(Unworkable):
    """A task that cannot be a prompt of this model; the text says what to change."""


class Tokenizer(Protocol):
    chat_template: Any

    def __call__(self, text: str) -> Any: ...

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> Any: ...


def rendered(task: Task, template: str | None, tokenizer: Tokenizer) -> list[int]:
    """The prompt's token ids, by the plain template if there is one, else by the chat template.

    `PromptError` if the task does not fit the template, or the model has none.
    """
    if template is None:
        return _chat(task, tokenizer)
    if task.prompt is None:
        raise PromptError(
            f"task {task.id!r}: model.prompt_template needs a 'prompt', but the task has "
            "'messages': give it a prompt, or remove the template to use the model's own"
        )
    return list(tokenizer(template.replace("{prompt}", task.prompt)).input_ids)


def _chat(task: Task, tokenizer: Tokenizer) -> list[int]:
    if tokenizer.chat_template is None:
        raise PromptError("the model has no chat template: set model.prompt_template in the recipe")
    # Most templates know no developer, and some would leave out what it says.
    roles = {} if "developer" in str(tokenizer.chat_template) else {"developer": "system"}
    turns = [
        {"role": roles.get(turn.role, turn.role), "content": turn.content}
        for turn in task.messages or ()
    ]
    if task.prompt is not None:
        turns = [{"role": "user", "content": task.prompt}]
    return list(
        tokenizer.apply_chat_template(
            turns, tokenize=True, add_generation_prompt=True, return_dict=False
        )
    )
