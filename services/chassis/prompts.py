"""From a task to the tokens that a model reads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jinja2 import TemplateError
from protocol.messages import Task

from services.chassis.faults import Unworkable

_REPLY = "4cfb09a81d"  # in the place of a reply, which no template changes


class PromptError(Unworkable):
    """A task that cannot be a prompt of this model; the text says what to change."""


class Tokenizer(Protocol):
    chat_template: Any

    def __call__(self, text: str, **options: Any) -> Any: ...

    def decode(self, token_ids: list[int], **options: Any) -> Any: ...

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
    return list(_templated(turns, tokenizer, options, tools, tokenize=True, return_dict=False))


def chat_behind(
    known: Sequence[int],
    num_known: int,
    turns: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int] | None:
    """The same where the ids of the first turns are known, up to a reply: the others are added.

    None if the chat template does not show a reply as it is.

    Args:
        num_known: of the turns; the last of them is the reply.

    Raises:
        PromptError: as `chat` does.
    """
    reply = {"role": "assistant", "content": _REPLY}
    marked = [*turns[: num_known - 1], reply, *turns[num_known:]]
    text = _templated(marked, tokenizer, options, tools, tokenize=False)
    _, *rest = text.split(_REPLY)
    if len(rest) != 1:
        return None
    new = list(tokenizer(rest[0], add_special_tokens=False).input_ids)
    is_ended = new[:1] == [*known[-1:]] and not tokenizer.decode(new[:1], skip_special_tokens=True)
    return [*known, *new[is_ended:]]


def _templated(
    turns: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
    **how: bool,
) -> Any:
    if tokenizer.chat_template is None:
        raise PromptError("the model has no chat template: set model.prompt_template in the recipe")
    if taken := options.keys() & _arguments(tokenizer):
        names = ", ".join(sorted(taken))
        raise PromptError(
            f"chat_template_options: {names} would be no variable of the template, but an "
            "argument of the tokenizer; remove it"
        )
    try:
        return tokenizer.apply_chat_template(
            [_turn(turn, tokenizer) for turn in turns],
            **{"tools": list(tools) or None, "add_generation_prompt": True, **how},
            **options,
        )
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        given = f" with chat_template_options {dict(options)}" if options else ""
        raise PromptError(f"the model's chat template refuses it{given}: {error}") from error


def _arguments(tokenizer: Tokenizer) -> set[str]:
    # Those of its bases, too: vLLM's own passes anything on, such as another chat template.
    methods = (vars(each).get("apply_chat_template") for each in type(tokenizer).__mro__)
    return {name for method in methods if method for name in inspect.signature(method).parameters}


def _turn(turn: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    # Most templates know no developer, and some would leave out what it says.
    if turn["role"] == "developer" and "developer" not in str(tokenizer.chat_template):
        return {**turn, "role": "system"}
    return {**turn}
