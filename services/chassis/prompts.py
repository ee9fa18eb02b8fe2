"""From a task to the tokens that a model reads."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from jinja2 import TemplateError
from protocol.messages import Task

from services.chassis.faults import Unworkable

_OF_PYTHON = (RecursionError, TypeError, ValueError)
_REPLY = "4cfb09a81d"  # in the place of a reply, which no template changes
_MARK = "b07e52c6f3"  # in the place of a control token


class PromptError(Unworkable):
    """A task that cannot be a prompt of this model; the text says what to change."""


class UnknownToken(PromptError):
    """A prompt with a token that the tokenizer has and the model has not."""


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
    """The prompt's token ids, by the plain template if there is one, else by the chat template.

    Args:
        options: further variables of the chat template.

    Raises:
        PromptError: if the chat template refuses the task, or the model has none, or an option has
            the name of a parameter of the tokenizer.
    """
    texts = _PlainTexts(tokenizer)
    if template is not None:
        return texts.begun(template.replace("{prompt}", texts.marked(task.problem)))
    turns = [(turn.role, turn.content) for turn in task.messages or ()]
    if task.prompt is not None:
        turns = [("user", task.prompt)]
    marked = [{"role": role, "content": texts.marked(content)} for role, content in turns]
    try:
        if not texts.found:
            return encode_chat(marked, tokenizer, options or {})
        return texts.encoded(_templated(marked, tokenizer, options or {}, (), tokenize=False))
    except PromptError as error:
        raise PromptError(f"task {task.id!r}: {error}") from error


def check_length(task: Task, ids: Sequence[int], max_context: int, max_tokens: int) -> None:
    """Check that a task's prompt leaves room for a response.

    Raises:
        PromptError: if it leaves no ``max_tokens``.
    """
    room = max_context - max_tokens
    if len(ids) > room:
        raise PromptError(
            f"task {task.id!r}: its prompt has {len(ids)} tokens, but model.max_context "
            f"{max_context} less sampling.max_tokens {max_tokens} leaves {room}: raise the first, "
            "lower the second, or drop the task"
        )


@lru_cache(maxsize=1)  # some tokenizers have thousands
def _control_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    names = {*tokenizer.all_special_tokens, _MARK}  # a text may have the mark as well
    names |= {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special}
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


class _PlainTexts:
    """Keeps the control tokens of a template, and makes plain text of those in a problem's text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = _control_tokens(tokenizer)
        self.found: list[str] = []

    def marked(self, text: str) -> str:
        """The text with marks in the place of control tokens."""
        return self._control.sub(self._mark, text)

    def _mark(self, match: re.Match[str]) -> str:
        self.found.append(match[0])
        return f"{_MARK}{len(self.found) - 1:06d}"

    def encoded(self, text: str) -> list[int]:
        """The ids of a text with marks, without tokens around it."""
        first, *rest = re.split(rf"{_MARK}(\d{{6}})", text)
        ids = self._encode(first)
        for number, behind in zip(rest[::2], rest[1::2], strict=True):
            plain = self.found[int(number)]
            ids += self._encode(plain, split_special_tokens=True) + self._encode(behind)
        return ids

    def begun(self, text: str) -> list[int]:
        """The same behind what the tokenizer begins a text with: one BOS, and no EOS at its end."""
        whole, plain = list(self._tokenizer("a").input_ids), self._encode("a")
        places = (n for n in range(len(whole)) if whole[n : n + len(plain)] == plain)
        begin, ids = whole[: next(places, 0)], self.encoded(text)
        return ids if ids[: len(begin)] == begin else begin + ids

    def _encode(self, text: str, **options: bool) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, **options).input_ids)


def encode_chat(
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


def extend_chat(
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
        PromptError: as `encode_chat` does.
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
    except (TemplateError, ArithmeticError, AttributeError, LookupError, *_OF_PYTHON) as error:
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
