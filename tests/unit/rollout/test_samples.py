"""Prompts, the text of responses, and the layout of groups."""

from typing import Any

import numpy as np
import pytest
from protocol.calls import Call
from protocol.messages import FinishReason, VersionSpan
from protocol.recipe import Model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from services.chassis.prompts import PromptError, check_length
from services.rollout.calls import CallRefused, render_prompt
from services.rollout.samples import (
    Sample,
    begins_thinking,
    build_group,
    response_text,
    version_label,
    version_span,
)
from tests.builders import a_request, a_task
from tests.contract.call_client import JOB, a_call
from tests.inline_prompts import InlinePrompts
from tests.tables import table

pytestmark = pytest.mark.anyio
BOS = "<bos>"
CHAT = (
    "{{ bos_token }}{% for turn in messages %}{{ turn.role[0] }}:{{ turn.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
DEVELOPER_TURN = {"role": "developer", "content": "add"}
USER_TURN = {"role": "user", "content": "1+1="}
TWO_TURNS = {"prompt": None, "messages": [DEVELOPER_TURN, USER_TURN]}
ONE_TURN = {"prompt": None, "messages": [USER_TURN]}
QUIET_CHAT = CHAT + "{% if enable_thinking is false %}<no>{% endif %}"


class Pooled(PreTrainedTokenizerFast):
    """Has the signature of vLLM's tokenizer, which does not name the template's options."""

    def apply_chat_template(self, *arguments: Any, **options: Any) -> Any:
        return super().apply_chat_template(*arguments, **options)


def make_character_tokenizer(chat: str | None) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token for each character, and a BOS token in front."""
    vocabulary = {chr(code): code for code in range(33, 127)}
    vocabulary[BOS] = 0
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, 0)]
    )
    return Pooled(tokenizer_object=tokenizer, bos_token=BOS, chat_template=chat)


async def render_task(
    chat: str | None,
    template: str | None,
    changes: dict[str, Any],
    **options: object,
) -> str:
    """Render a task for a context with room for a prompt of 56 tokens."""
    tokenizer = make_character_tokenizer(chat)
    task = a_task(**changes)
    ids = await InlinePrompts(tokenizer).render(task, template, options)
    check_length(task, ids, max_context=64, max_tokens=8)
    return "".join(tokenizer.convert_ids_to_tokens(ids))


@pytest.mark.parametrize(
    ("chat", "template", "task", "text"),
    [
        (None, "Q:{prompt}A:", {}, "Q:1+1=A:"),
        (None, r"\boxed{}{x}{prompt}", {"prompt": "{0}{prompt}"}, r"\boxed{}{x}{0}{prompt}"),
        (CHAT, None, {}, "u:1+1=;a:"),
        (CHAT, None, TWO_TURNS, "s:add;u:1+1=;a:"),
        (CHAT + "{# developer #}", None, TWO_TURNS, "d:add;u:1+1=;a:"),
        (None, "{prompt}", {"prompt": "1" * 55}, "1" * 55),
        (None, "{prompt}", ONE_TURN, "1+1="),
    ],
)
async def test_a_prompt_is_rendered_after_one_bos(
    chat: str | None,
    template: str | None,
    task: dict[str, Any],
    text: str,
) -> None:
    assert await render_task(chat, template, task) == BOS + text


async def test_options_are_variables_of_the_chat_template() -> None:
    text = await render_task(QUIET_CHAT, None, {}, enable_thinking=False)
    assert text == "<bos>u:1+1=;a:<no>"
    refusing = QUIET_CHAT + "{{ raise_exception('no effort') }}"
    with pytest.raises(PromptError, match="refuses it: no effort"):
        await render_task(refusing, None, {})
    with pytest.raises(PromptError, match="chat_template_options: chat_template, tokenize "):
        await render_task(QUIET_CHAT, None, {}, chat_template="{{ 1 }}", tokenize=False)


@pytest.mark.parametrize(
    ("template", "task", "words"),
    [
        (None, {}, r"model\.prompt"),
        ("{prompt}", {"prompt": "1" * 56}, r"57 .* 56"),
    ],
)
async def test_a_task_that_is_no_prompt_is_refused(
    template: str | None,
    task: dict[str, Any],
    words: str,
) -> None:
    with pytest.raises(PromptError, match=words):
        await render_task(None, template, task)


ADD_ONE = {"name": "add", "arguments": {"a": 1}}
TOOL_CALL = {"type": "function", "function": ADD_ONE}
TOOL_CHAT = (
    CHAT + "{% for tool in tools or () %}[{{ tool.function.name }}]{% endfor %}"
    "{% for turn in messages %}{% for call in turn.tool_calls or () %}"
    "{{ call.function.arguments.a }}{% endfor %}{% endfor %}"
    "{{ effort or '' }}"
)
ADD = {"type": "function", "function": {"name": "add", "parameters": {}}}
ASSISTANT_TURN = {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL]}


def make_call(template: str | None, content: dict[str, Any]) -> Call:
    model = Model(path="p", prompt_template=template)
    served = JOB.model_copy(update={"model": model})
    return a_call(served=served, **content)


@pytest.mark.parametrize(
    ("template", "content", "text"),
    [
        (None, {"messages": [USER_TURN], "tools": [ADD]}, "<bos>u:1+1=;a:[add]"),
        (None, {"messages": [USER_TURN, ASSISTANT_TURN]}, "<bos>u:1+1=;a:;a:1"),
        (
            None,
            {"messages": [USER_TURN], "chat_template_options": {"effort": 1}},
            "<bos>u:1+1=;a:1",
        ),
        ("Q:{prompt}", {"messages": [USER_TURN]}, "<bos>Q:1+1="),
        ("Q:{prompt}", {"text": "1+1="}, "<bos>1+1="),
    ],
)
async def test_a_call_is_rendered_like_a_task(
    template: str | None,
    content: dict[str, Any],
    text: str,
) -> None:
    tokenizer = make_character_tokenizer(TOOL_CHAT)
    ids = await render_prompt(make_call(template, content), InlinePrompts(tokenizer))
    assert "".join(tokenizer.convert_ids_to_tokens(ids)) == text


# Qwen3's template also leaves out the thinking about earlier questions.
THINKING_CHAT = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n"
    "{{ (turn.content if loop.last else turn.content.split('</think>')[-1]) | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_pair_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token for "12" and one for "ab"."""
    entries = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "ab"]
    vocabulary = {entry: token_id for token_id, entry in enumerate(entries)}
    merges = [("1", "2"), ("a", "b")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=THINKING_CHAT)


@pytest.mark.parametrize("end", [["<|im_end|>"], []])
async def test_sampled_tokens_of_a_chat_are_not_tokenized_again(end: list[str]) -> None:
    tokenizer: Any = make_pair_tokenizer()
    prompts = InlinePrompts(tokenizer)
    question = {"role": "user", "content": "12+1"}
    reply = "a</think>1212"
    prompt = await render_prompt(a_call(messages=[question]), prompts)
    sampled = tokenizer.convert_tokens_to_ids([*reply, *end])
    start = prompt + sampled
    turns = [
        question,
        {"role": "assistant", "content": reply},
        {"role": "tool", "content": "ab12"},
    ]
    begun = {"num_messages": 2, "token_ids": start}
    continued = a_call(messages=turns, begun=begun)
    exact = await render_prompt(continued, prompts)
    new_text = "<|im_end|>\n<|im_start|>tool\nab12<|im_end|>\n<|im_start|>assistant\n"
    new_text = new_text.removeprefix("".join(end))
    new_ids = tokenizer(new_text).input_ids
    assert exact == start + new_ids
    plain = await render_prompt(a_call(messages=turns), prompts)
    exact_text = str(tokenizer.decode(exact))
    assert tokenizer.decode(plain) == exact_text.replace("a</think>", "")
    tokenizer.chat_template = THINKING_CHAT.replace("split('</think>')[-1]", "upper()")
    changed = await render_prompt(a_call(messages=turns), prompts)
    assert await render_prompt(continued, prompts) == changed


@pytest.mark.parametrize(
    ("template", "content"),
    [
        ("{prompt}", {"messages": [USER_TURN], "tools": [ADD]}),
        ("{prompt}", {"messages": [{"role": "tool", "content": "2"}]}),
        (None, {"messages": [{**ASSISTANT_TURN, "tool_calls": [{"id": "1"}]}]}),
    ],
)
async def test_messages_that_the_model_cannot_render_are_refused(
    template: str | None, content: dict[str, Any]
) -> None:
    prompts = InlinePrompts(make_character_tokenizer(TOOL_CHAT))
    with pytest.raises(CallRefused) as refused:
        await render_prompt(make_call(template, content), prompts)
    assert refused.value.code == "invalid_messages"


def a_sample(ids: list[int]) -> Sample:
    return Sample(
        token_ids=np.array(ids, dtype=np.int32),
        behavior_logprobs=np.full(len(ids), -ids[0], dtype=np.float32),
        text=str(ids),
        finish_reason=FinishReason.STOP,
        spans=(version_span(version_label(3, 17), 0, len(ids)),),
    )


def test_a_group_keeps_responses_separate_and_in_order() -> None:
    samples = [a_sample([1, 2]), a_sample([3])]
    group = build_group(a_request(group_size=2), [9, 8], samples, 0.5)
    assert group.prompt_ids.tolist() == [9, 8]
    assert group.token_ids.tolist() == [1, 2, 3]
    assert list(group.bounds()) == [(0, 2), (2, 3)]
    assert group.behavior_logprobs.tolist() == [-1, -1, -3]
    first, second = group.responses
    assert (first.text, second.text) == ("[1, 2]", "[3]")
    assert first.spans == (VersionSpan(attempt=3, version=17, start=0, end=2),)


def make_word_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with the special tokens 4, 5 and 6."""
    vocabulary = {"a": 0, "b": 1, " ": 2, "\n": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["<eos>", "<think>", "</think>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


@table("""
    token_ids       | is_stopped | text
    [5, 0, 6, 1, 4] | True       | <think>a</think>b
    [5, 0]          | False      | <think>a
    [0, 4]          | False      | a<eos>
    [0, 1]          | True       | ab
    [0, 99, 1, 4]   | True       | a�b
    [4]             | True       |
""")
async def test_the_text_of_a_response_leaves_out_only_its_end_token(
    token_ids: list[int], is_stopped: bool, text: str
) -> None:
    assert response_text(make_word_tokenizer(), token_ids, is_stopped=is_stopped) == text


@pytest.mark.parametrize("prompt", ["a<think>", "a<think>\n", "a</think><think> \n"])
async def test_a_prompt_begins_thinking_if_it_ends_in_its_tag(prompt: str) -> None:
    tokenizer = make_word_tokenizer()
    assert begins_thinking(tokenizer, tokenizer(prompt).input_ids)
    for end in ("b", "</think>\n"):
        assert not begins_thinking(tokenizer, tokenizer(prompt + end).input_ids)
