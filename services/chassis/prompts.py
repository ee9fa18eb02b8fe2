"""Encodes tasks and conversations as the token ids that a model reads."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from jinja2 import TemplateError
from protocol.messages import Task

from services.chassis.faults import Unworkable

# A template is a program, which may raise any of these.
_TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
# Placeholders for a reply and for a control token, which no template changes.
_REPLY = "4cfb09a81d"
_MARK = "b07e52c6f3"


class PromptError(Unworkable):
    """The task cannot be a prompt of this model; the text says what to change."""


class UnknownToken(PromptError):
    """The prompt has a token that the tokenizer knows and the model does not."""


class Tokenizer(Protocol):
    chat_template: Any
    all_special_tokens: list[str]
    added_tokens_decoder: dict[int, Any]

    def __call__(self, text: str, **options: Any) -> Any: ...

    def decode(self, token_ids: list[int], **options: Any) -> Any: ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any: ...


def encode_prompt(
    task: Task, template: str | None, tokenizer: Tokenizer, options: Mapping[str, Any] | None = None
) -> list[int]:
    """Return the prompt's token ids, by the plain template or else by the chat template.

    Args:
        options: further variables of the chat template.

    Raises:
        PromptError: if the chat template refuses the task, or the model has none, or an option has
            the name of a parameter of the tokenizer.
    """
    escaper = _Escaper(tokenizer)
    if template is not None:
        text = template.replace("{prompt}", escaper.escape(task.problem))
        return escaper.encode_from_start(text)
    turns = [(turn.role, turn.content) for turn in task.messages or ()]
    if task.prompt is not None:
        turns = [("user", task.prompt)]
    escaped = [{"role": role, "content": escaper.escape(content)} for role, content in turns]
    try:
        if not escaper.control_tokens:
            return encode_chat(escaped, tokenizer, options or {})
        text = _apply_template(escaped, tokenizer, options or {}, (), tokenize=False)
        return escaper.encode(text)
    except PromptError as error:
        raise PromptError(f"task {task.id!r}: {error}") from error


def check_length(task: Task, ids: Sequence[int], max_context: int, max_tokens: int) -> None:
    """Raise `PromptError` if a prompt does not leave ``max_tokens`` for the response."""
    room = max_context - max_tokens
    if len(ids) > room:
        raise PromptError(
            f"task {task.id!r}: its prompt has {len(ids)} tokens, but model.max_context "
            f"{max_context} less sampling.max_tokens {max_tokens} leaves {room}: raise the first, "
            "lower the second, or drop the task"
        )


@lru_cache(maxsize=1)  # some tokenizers have thousands
def _control_token_pattern(tokenizer: Tokenizer) -> re.Pattern[str]:
    names = {*tokenizer.all_special_tokens, _MARK}  # a text may contain the mark itself
    for token in tokenizer.added_tokens_decoder.values():
        if token.special:
            names.add(str(token))
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


class _Escaper:
    """Encodes control tokens in a problem's text as plain text, and those of a template as such."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pattern = _control_token_pattern(tokenizer)
        self.control_tokens: list[str] = []

    def escape(self, text: str) -> str:
        """Replace control tokens by numbered marks."""
        return self._pattern.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        self.control_tokens.append(match[0])
        return f"{_MARK}{len(self.control_tokens) - 1:06d}"

    def encode(self, text: str) -> list[int]:
        """Return the ids of an escaped text, without tokens around it."""
        first, *parts = re.split(rf"{_MARK}(\d{{6}})", text)
        ids = self._encode(first)
        for number, following in zip(parts[::2], parts[1::2], strict=True):
            token = self.control_tokens[int(number)]
            ids += self._encode(token, split_special_tokens=True)
            ids += self._encode(following)
        return ids

    def encode_from_start(self, text: str) -> list[int]:
        """Return the same after the tokenizer's start of a text: one BOS, and no EOS at the end."""
        whole = list(self._tokenizer("a").input_ids)
        plain = self._encode("a")
        starts = (n for n in range(len(whole)) if whole[n : n + len(plain)] == plain)
        prefix = whole[: next(starts, 0)]
        ids = self.encode(text)
        return ids if ids[: len(prefix)] == prefix else prefix + ids

    def _encode(self, text: str, **options: bool) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, **options).input_ids)


def encode_chat(
    turns: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Return the token ids of a conversation, up to the assistant's turn.

    Args:
        turns: their contents are texts, and the arguments of tool calls are objects.

    Raises:
        PromptError: if the chat template refuses it, or the model has none, or an option has the
            name of a parameter of the tokenizer.
    """
    return list(_apply_template(turns, tokenizer, options, tools, tokenize=True, return_dict=False))


def extend_chat(
    prefix: Sequence[int],
    num_turns: int,
    turns: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int] | None:
    """Return the same as `encode_chat`, given the ids of the first turns, up to a reply.

    None if the chat template changes replies.

    Args:
        prefix: the token ids of the first turns.
        num_turns: the number of those turns; the last one is the reply.
    """
    reply = {"role": "assistant", "content": _REPLY}
    all_turns = [*turns[: num_turns - 1], reply, *turns[num_turns:]]
    text = _apply_template(all_turns, tokenizer, options, tools, tokenize=False)
    if text.count(_REPLY) != 1:
        return None
    following = text.partition(_REPLY)[2]
    ids = list(tokenizer(following, add_special_tokens=False).input_ids)
    # The reply may already end with the token that the template puts after it.
    repeats_end = ids[:1] == [*prefix[-1:]]
    is_special = not tokenizer.decode(ids[:1], skip_special_tokens=True)
    return [*prefix, *ids[repeats_end and is_special :]]


def _apply_template(
    turns: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
    **output: bool,
) -> Any:
    if tokenizer.chat_template is None:
        raise PromptError("the model has no chat template: set model.prompt_template in the recipe")
    conflicts = options.keys() & _parameter_names(tokenizer)
    if conflicts:
        names = ", ".join(sorted(conflicts))
        raise PromptError(
            f"chat_template_options: {names} is a parameter of the tokenizer and cannot be a "
            "variable of the template; remove it"
        )
    try:
        return tokenizer.apply_chat_template(
            [_map_role(turn, tokenizer) for turn in turns],
            tools=list(tools) or None,
            add_generation_prompt=True,
            **output,
            **options,
        )
    except _TEMPLATE_ERRORS as error:
        suffix = f" with chat_template_options {dict(options)}" if options else ""
        raise PromptError(f"the model's chat template refuses it{suffix}: {error}") from error


def _parameter_names(tokenizer: Tokenizer) -> set[str]:
    # Base classes count: the method of vLLM's own class passes anything on to them.
    names: set[str] = set()
    for cls in type(tokenizer).__mro__:
        method = vars(cls).get("apply_chat_template")
        if method:
            names |= inspect.signature(method).parameters.keys()
    return names


def _map_role(turn: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    # Most templates know no developer role, and some would drop its message.
    if turn["role"] == "developer" and "developer" not in str(tokenizer.chat_template):
        return {**turn, "role": "system"}
    return {**turn}
