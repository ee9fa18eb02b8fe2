"""Prompts are rendered by the recipe's template or the model's and fit; groups lie flat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from protocol.messages import FinishReason, VersionSpan
from protocol.recipe import Model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from services.chassis.prompts import PromptError, check_length
from services.rollout.calls import CallRefused, prompt_of
from services.rollout.samples import (
    Sample,
    begins_thinking,
    group_of,
    span_of,
    text_of_response,
    version_label,
)
from tests.builders import a_request, a_task
from tests.contract.call_client import JOB, a_call
from tests.inline_prompts import InlinePrompts

pytestmark = pytest.mark.anyio
CHAT = (
    "{{ bos_token }}{% for turn in messages %}{{ turn.role[0] }}:{{ turn.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
TURNS = [{"role": "developer", "content": "add"}, {"role": "user", "content": "1+1="}]
AS_TURNS = {"prompt": None, "messages": TURNS}
ONE_TURN = {"prompt": None, "messages": TURNS[-1:]}
QUIET = CHAT + "{% if enable_thinking is false %}<no>{% endif %}"


async def rendered(
    chat: str | None, template: str | None, task: dict[str, Any], **options: object
) -> str:
    """By a tokenizer with one token per character and a BOS in front; 56 tokens have room."""
    tokenizer = of_characters(chat)
    ids = await InlinePrompts(tokenizer).render(a_task(**task), template, options)
    check_length(a_task(**task), ids, max_context=64, max_tokens=8)
    return "".join(tokenizer.convert_ids_to_tokens(ids))


class Pooled(PreTrainedTokenizerFast):
    """As vLLM's, which says nothing of what it passes on."""

    def apply_chat_template(self, *given: Any, **options: Any) -> Any:
        return super().apply_chat_template(*given, **options)


def of_characters(chat: str | None) -> PreTrainedTokenizerFast:
    entries = ["<bos>", *(chr(code) for code in range(33, 127))]
    made = Tokenizer(models.BPE({entry: i for i, entry in enumerate(entries)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    return Pooled(tokenizer_object=made, bos_token="<bos>", chat_template=chat)


@pytest.mark.parametrize(
    ("chat", "template", "task", "text"),
    [
        (None, "Q:{prompt}A:", {}, "Q:1+1=A:"),
        (None, r"\boxed{}{x}{prompt}", {"prompt": "{0}{prompt}"}, r"\boxed{}{x}{0}{prompt}"),
        (CHAT, None, {}, "u:1+1=;a:"),
        (CHAT, None, AS_TURNS, "s:add;u:1+1=;a:"),
        (CHAT + "{# developer #}", None, AS_TURNS, "d:add;u:1+1=;a:"),
        (None, "{prompt}", {"prompt": "1" * 55}, "1" * 55),
        (None, "{prompt}", ONE_TURN, "1+1="),
    ],
    ids=["plain", "other braces", "chat", "a developer as system", "a developer", "full", "a turn"],
)
async def test_a_prompt_is_rendered_behind_one_bos(
    chat: str | None, template: str | None, task: dict[str, Any], text: str
) -> None:
    assert await rendered(chat, template, task) == f"<bos>{text}"


async def test_options_are_variables_of_the_chat_template() -> None:
    assert await rendered(QUIET, None, {}, enable_thinking=False) == "<bos>u:1+1=;a:<no>"
    refusing = QUIET + "{{ raise_exception('no effort') }}"
    with pytest.raises(PromptError, match="refuses it: no effort"):
        await rendered(refusing, None, {})
    with pytest.raises(PromptError, match="chat_template_options: chat_template, tokenize "):
        await rendered(QUIET, None, {}, chat_template="{{ 1 }}", tokenize=False)


@pytest.mark.parametrize(
    ("template", "task", "words"),
    [
        (None, {}, r"model\.prompt"),
        ("{prompt}", {"prompt": "1" * 56}, r"57 .* 56"),
    ],
)
async def test_a_task_that_is_no_prompt_is_refused(
    template: str | None, task: dict[str, Any], words: str
) -> None:
    with pytest.raises(PromptError, match=words):
        await rendered(None, template, task)


CALLED = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TOOLS = (
    CHAT + "{% for tool in tools or () %}[{{ tool.function.name }}]{% endfor %}"
    "{% for turn in messages %}{% for call in turn.tool_calls or () %}"
    "{{ call.function.arguments.a }}{% endfor %}{% endfor %}"
    "{{ effort or '' }}"
)
ADD = {"type": "function", "function": {"name": "add", "parameters": {}}}
LOW = {"effort": 1}
CALLING = [TURNS[-1], {"role": "assistant", "content": "", "tool_calls": [CALLED]}]


@pytest.mark.parametrize(
    ("template", "given", "text"),
    [
        (None, {"messages": TURNS[-1:], "tools": [ADD]}, "<bos>u:1+1=;a:[add]"),
        (None, {"messages": CALLING}, "<bos>u:1+1=;a:;a:1"),
        (None, {"messages": TURNS[-1:], "chat_template_options": LOW}, "<bos>u:1+1=;a:1"),
        ("Q:{prompt}", {"messages": TURNS[-1:]}, "<bos>Q:1+1="),
        ("Q:{prompt}", {"text": "1+1="}, "<bos>1+1="),
    ],
)
async def test_a_call_is_rendered_as_a_task_is(
    template: str | None, given: dict[str, Any], text: str
) -> None:
    model = Model(path="p", prompt_template=template)
    call = a_call(served=JOB.model_copy(update={"model": model}), **given)
    tokenizer = of_characters(TOOLS)
    assert (
        "".join(tokenizer.convert_ids_to_tokens(await prompt_of(call, InlinePrompts(tokenizer))))
        == text
    )


THINKING = (  # as Qwen3 has it: what was thought of earlier questions is left out
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n"
    "{{ (turn.content if loop.last else turn.content.split('</think>')[-1]) | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def of_pairs() -> PreTrainedTokenizerFast:
    """One that makes one token of "12" and of "ab"."""
    entries = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "ab"]
    merges = [("1", "2"), ("a", "b")]
    made = Tokenizer(models.BPE({entry: i for i, entry in enumerate(entries)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=THINKING)


@pytest.mark.parametrize("end", ["<|im_end|>", ""])
async def test_where_a_chat_goes_on_nothing_of_it_is_tokenized_again(end: str) -> None:
    tokenizer: Any = of_pairs()
    question, reply = {"role": "user", "content": "12+1"}, "a</think>1212"
    prompts = InlinePrompts(tokenizer)
    prompt = await prompt_of(a_call(messages=[question]), prompts)
    sampled = [tokenizer.convert_tokens_to_ids(each) for each in [*reply, *([end] if end else ())]]
    turns = [question, {"role": "assistant", "content": reply}, {"role": "tool", "content": "ab12"}]
    begun = {"num_messages": 2, "token_ids": prompt + sampled}
    exact = await prompt_of(a_call(messages=turns, begun=begun), prompts)
    new = "<|im_end|>\n<|im_start|>tool\nab12<|im_end|>\n<|im_start|>assistant\n"
    assert exact[: len(prompt + sampled)] == prompt + sampled
    assert exact[len(prompt + sampled) :] == tokenizer(new.removeprefix(end)).input_ids
    plain = await prompt_of(a_call(messages=turns), prompts)
    assert tokenizer.decode(plain) == str(tokenizer.decode(exact)).replace("a</think>", "")
    tokenizer.chat_template = THINKING.replace("split('</think>')[-1]", "upper()")
    shouted = [
        await prompt_of(a_call(messages=turns, begun=each), prompts) for each in (begun, None)
    ]
    assert shouted[0] == shouted[1]


@pytest.mark.parametrize(
    ("template", "given"),
    [
        ("{prompt}", {"messages": TURNS[-1:], "tools": [ADD]}),
        ("{prompt}", {"messages": [{"role": "tool", "content": "2"}]}),
        (None, {"messages": [{**CALLING[1], "tool_calls": [{"id": "1"}]}]}),
    ],
)
async def test_messages_that_are_no_prompt_of_the_model_are_refused(
    template: str | None, given: dict[str, Any]
) -> None:
    model = Model(path="p", prompt_template=template)
    call = a_call(served=JOB.model_copy(update={"model": model}), **given)
    with pytest.raises(CallRefused) as refused:
        await prompt_of(call, InlinePrompts(of_characters(TOOLS)))
    assert refused.value.code == "invalid_messages"


def test_a_label_names_attempt_and_number_in_this_order() -> None:
    span = span_of(version_label(3, 17), 5, 9)
    assert span == VersionSpan(attempt=3, version=17, start=5, end=9)


def test_a_group_keeps_each_response_apart_and_in_order() -> None:
    samples = [
        Sample(
            token_ids=np.array(ids, dtype=np.int32),
            behavior_logprobs=np.full(len(ids), -float(ids[0]), dtype=np.float32),
            text=str(ids),
            finish_reason=FinishReason.STOP,
            spans=(VersionSpan(attempt=1, version=0, start=0, end=len(ids)),),
        )
        for ids in ([1, 2], [3], [4, 5, 6])
    ]
    group = group_of(a_request(group_size=3), [9, 8], samples, 0.5)
    assert group.prompt_ids.tolist() == [9, 8]
    parts = [group.token_ids[start:end].tolist() for start, end in group.bounds()]
    assert parts == [[1, 2], [3], [4, 5, 6]]
    assert group.behavior_logprobs.tolist() == [-1, -1, -3, -4, -4, -4]
    assert [response.text for response in group.responses] == ["[1, 2]", "[3]", "[4, 5, 6]"]


SPECIAL = ("<eos>", "<think>", "</think>")  # as special tokens: ids 4, 5, 6


def of_words() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, " ": 2, "\n": 3}, unk_token="a"))
    words.decoder = decoders.Fuse()
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.add_special_tokens([*SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")


@pytest.mark.parametrize(
    ("token_ids", "is_stopped", "text"),
    [
        ([5, 0, 6, 1, 4], True, "<think>a</think>b"),
        ([5, 0], False, "<think>a"),
        ([0, 4], False, "a<eos>"),
        ([0, 1], True, "ab"),  # an ordinary token may be one that ends responses
        ([0, 99, 1, 4], True, "a\N{REPLACEMENT CHARACTER}b"),  # one without text
        ([4], True, ""),
    ],
)
async def test_the_text_of_a_response_is_what_was_sampled_but_for_its_end(
    token_ids: list[int], is_stopped: bool, text: str
) -> None:
    assert text_of_response(of_words(), token_ids, is_stopped=is_stopped) == text


@pytest.mark.parametrize("prompt", ["a<think>", "a<think>\n", "a</think><think> \n"])
async def test_a_prompt_begins_thinking_if_it_ends_in_its_tag(prompt: str) -> None:
    tokenizer = of_words()
    assert begins_thinking(tokenizer, tokenizer(prompt).input_ids)
    for more in ("b", "</think>\n"):
        assert not begins_thinking(tokenizer, tokenizer(prompt + more).input_ids)
