"""Prompts: rendered by the recipe's template or the model's, and never too long."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.messages import ChatMessage
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from services.rollout.chat import PromptError, prompt_ids
from tests.builders import a_task

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}{{ turn.role[0] }}:{{ turn.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def a_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """One token per character, with a BOS in front."""
    entries = ["<bos>", *(chr(code) for code in range(33, 127))]
    tokenizer = Tokenizer(models.BPE({entry: i for i, entry in enumerate(entries)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", chat_template=chat_template
    )


def rendered(
    tokenizer: PreTrainedTokenizerFast,
    template: str | None = None,
    *,
    max_context: int = 64,
    max_tokens: int = 8,
    options: dict[str, Any] | None = None,
    **task: object,
) -> str:
    ids = prompt_ids(
        a_task(**task),
        template,
        tokenizer,
        max_context=max_context,
        max_tokens=max_tokens,
        options=options,
    )
    return "".join(tokenizer.convert_ids_to_tokens(ids))


def test_a_plain_template_holds_the_prompt_behind_one_bos() -> None:
    assert rendered(a_tokenizer(), "Q:{prompt}A:", prompt="1+1=") == "<bos>Q:1+1=A:"


def test_other_braces_of_a_template_and_of_a_prompt_are_left_alone() -> None:
    text = rendered(a_tokenizer(), r"\boxed{}{x}{prompt}", prompt="{0}{prompt}")
    assert text == r"<bos>\boxed{}{x}{0}{prompt}"


def test_without_a_template_a_prompt_is_the_users_turn_of_the_models_chat() -> None:
    assert rendered(a_tokenizer(CHAT_TEMPLATE), prompt="1+1=") == "<bos>u:1+1=;a:"


def test_options_are_variables_of_the_chat_template() -> None:
    template = CHAT_TEMPLATE + "{% if enable_thinking is false %}<no>{% endif %}"
    asked = {"prompt": "1+1=", "options": {"enable_thinking": False}}
    assert rendered(a_tokenizer(template), **asked) == "<bos>u:1+1=;a:<no>"
    with pytest.raises(PromptError, match="chat_template_options: tokenize "):
        rendered(a_tokenizer(template), prompt="1+1=", options={"tokenize": False})


def test_a_developer_is_the_system_where_the_template_knows_none() -> None:
    messages = [
        ChatMessage(role="developer", content="add"),
        ChatMessage(role="user", content="1+1="),
    ]
    asked = {"prompt": None, "messages": messages}
    assert rendered(a_tokenizer(CHAT_TEMPLATE), **asked) == "<bos>s:add;u:1+1=;a:"
    knowing = CHAT_TEMPLATE + "{# developer #}"
    assert rendered(a_tokenizer(knowing), **asked) == "<bos>d:add;u:1+1=;a:"


def test_a_model_without_a_chat_template_needs_one_in_the_recipe() -> None:
    with pytest.raises(PromptError, match=r"model\.prompt"):
        rendered(a_tokenizer(), prompt="1+1=")


def test_messages_do_not_fit_a_plain_template() -> None:
    messages = [ChatMessage(role="user", content="1+1=")]
    with pytest.raises(PromptError, match="'sum-1'"):
        rendered(a_tokenizer(), "{prompt}", prompt=None, messages=messages)


def test_a_prompt_may_fill_exactly_what_the_response_leaves() -> None:
    assert rendered(a_tokenizer(), "{prompt}", prompt="1" * 55, max_context=64, max_tokens=8)
    with pytest.raises(PromptError, match=r"57 .* 56"):
        rendered(a_tokenizer(), "{prompt}", prompt="1" * 56, max_context=64, max_tokens=8)
