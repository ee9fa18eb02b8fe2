"""Calls in the engine: what streams is what was sampled, whole, also over a rollout's death."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol.calls import Call, Piece
from protocol.messages import FinishReason
from protocol.recipe import Sampling
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput

from services.rollout.answers import Answer
from services.rollout.engine import Engine
from services.rollout.samples import RequestRefused
from tests.contract.call_client import a_call
from tests.engine.conftest import ENDLESS, Reference

pytestmark = [pytest.mark.engine, pytest.mark.anyio]
PROMPT = [1, *range(5, 25)]
WORDS = "naïve 数学 🦊 = ∑, 12 + 30 = 42. ÄÖÜ"


async def answered(engine: Engine, max_tokens: int = 40, **changes: Any) -> list[Piece]:
    call = a_call(token_ids=PROMPT, **changes)
    async with aclosing(engine.answer(call, PROMPT, max_tokens - len(call.so_far))) as pieces:
        return [piece async for piece in pieces]


def ids_of(pieces: Sequence[Piece]) -> list[int]:
    return [token.id for piece in pieces for token in piece.tokens]


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def of_bytes() -> PreTrainedTokenizerFast:
    """One token per byte, so that most characters of other alphabets take several."""
    entries = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({entry: i for i, entry in enumerate(entries)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def read(tokenizer: Any, call: Call, ids: Sequence[int], cuts: Sequence[int]) -> list[Piece]:
    """The pieces of tokens that come in several outputs, up to the last."""
    answer, pieces = Answer(call, tokenizer("Q: ").input_ids, tokenizer), list[Piece]()
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        own = list(ids[start:end])
        output = CompletionOutput(0, "", own, None, [{each: Logprob(-1.0)} for each in own])
        output.finish_reason = "length" if end == len(ids) else None
        pieces.append(answer.piece(output))
        if pieces[-1].is_last:
            break
    return pieces


@pytest.mark.parametrize("stop", [(), ("30 = 4", "数字"), ("🦊",), ("Ü",)])
def test_pieces_join_to_the_text_up_to_a_stop_text_however_they_are_cut(
    stop: tuple[str, ...],
) -> None:
    tokenizer, draw = of_bytes(), random.Random(0)
    ids = tokenizer(WORDS).input_ids
    ends = [WORDS.index(each) for each in stop if each in WORDS]
    whole = WORDS[: min(ends, default=len(WORDS))]
    for _ in range(50):
        dies = draw.randrange(1, len(ids))
        cuts = sorted(draw.sample(range(1, len(ids)), 9))
        call = a_call(sampling={"stop": stop})
        first = read(tokenizer, call, ids, cuts)
        assert text_of(first) == whole
        assert first[-1].finish_reason == (FinishReason.STOP if stop else FinishReason.LENGTH)
        seen = first[: draw.randrange(len(first))]  # before the rollout dies
        done = ids_of(seen)
        again = call.model_copy(update={"so_far": tuple(done), "tries": 1})
        rest = [cut - len(done) for cut in (*cuts, dies) if cut > len(done)]
        second = read(tokenizer, again, ids[len(done) :], sorted(set(rest)))
        assert text_of(seen) + text_of(second) == whole
        assert ids_of(seen) + ids_of(second) == ids_of(first)


async def test_a_stop_text_ends_a_response_and_tokens_so_far_go_on(
    engine: Engine, folders: list[Path], reference: Reference
) -> None:
    whole = await answered(engine, streams=True, sampling={"seed": 3})
    text = text_of(whole)
    assert whole[-1].finish_reason is FinishReason.LENGTH
    assert (
        text
        == engine.tokenizer.decode(ids_of(whole))
        == "".join(token.text for piece in whole for token in piece.tokens)
    )
    logprobs = [token.logprob for piece in whole for token in piece.tokens]
    expected = reference(folders[0], PROMPT, np.array(ids_of(whole)))
    assert np.abs(expected - logprobs).max() < 1e-4
    stop = text[20:24]
    ended = await answered(engine, streams=True, sampling={"seed": 3, "stop": [stop]})
    assert text_of(ended) == text[: text.index(stop)]
    assert ended[-1].stop_reason == stop
    assert ids_of(ended) == ids_of(whole)[: text.index(stop) + len(stop)]
    greedy = await answered(engine, sampling={"temperature": 0})
    for_others = await answered(
        engine, sampling={"temperature": 0}, so_far=ids_of(greedy)[:15], tries=1
    )
    assert ids_of(for_others) == ids_of(greedy)[15:]
    assert text_of(for_others) == text_of(greedy)[15:]
    assert for_others[-1].spans[-1].end == 25


async def test_log_probs_of_a_prompt_come_once_at_temperature_1_whatever_the_cache_has(
    engine: Engine, folders: list[Path], reference: Reference
) -> None:
    prompt = [*PROMPT, *range(3, 40)]  # more than a block of the cache
    expected = reference(folders[0], prompt[:1], np.array(prompt[1:]))
    asked = {"prompt_logprobs": True, "temperature": 0.5, "seed": 3}
    for max_tokens in (1, 1, 100):  # as the last: more than leave the engine's process at once
        call = a_call(token_ids=prompt, sampling=asked)
        async with aclosing(engine.answer(call, prompt, max_tokens)) as pieces:
            first, *rest = [piece async for piece in pieces]
        assert first.prompt_logprobs is not None
        assert first.prompt_logprobs[0] is None
        assert np.abs(expected - np.array(first.prompt_logprobs[1:], dtype=float)).max() < 1e-4
        assert not any(piece.prompt_logprobs for piece in rest)
    token = first.tokens[0]
    (at_half,) = reference(folders[0], prompt, np.array([token.id]), 0.5)
    assert abs(at_half - token.logprob) < 1e-4
    again = await answered(engine, sampling=asked, so_far=(token.id,), tries=1)
    assert not any(piece.prompt_logprobs for piece in again), "what the first try has told"
    short = a_call(token_ids=(1,), sampling=asked)
    async with aclosing(engine.answer(short, [1], 1)) as pieces:
        assert [piece.prompt_logprobs async for piece in pieces] == [(None,)]


async def test_calls_beside_groups_change_neither_these_nor_their_room(
    engine: Engine, folders: list[Path], reference: Reference
) -> None:
    sampling = Sampling(max_tokens=200)
    group = asyncio.create_task(engine.generate(PROMPT, sampling, 4, 5))
    pieces = await answered(engine, 100, sampling={"top_logprobs": 3})
    for sample in await group:
        expected = reference(folders[0], PROMPT, sample.token_ids)
        assert np.abs(expected - sample.behavior_logprobs).max() < 1e-3
    for token in (token for piece in pieces for token in piece.tokens):
        likely = [logprob for _, _, logprob in token.top]
        assert len(likely) == 3
        assert sorted(likely, reverse=True) == likely
        assert token.logprob <= likely[0]
    await engine.llm.pause_generation(mode="keep", clear_cache=False)
    call = asyncio.create_task(answered(engine, ENDLESS))
    async with asyncio.timeout(60):
        while not engine.llm.output_processor.request_states:
            await asyncio.sleep(0.01)
    assert engine.room(1, claimed=0) == engine.places
    await engine.llm.resume_generation()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert not engine.llm.output_processor.request_states


async def test_what_vllm_does_not_take_is_refused(engine: Engine) -> None:
    for sampling in ({"min_tokens": 99}, {"stop_token_ids": [-1, 9999]}):
        with pytest.raises(RequestRefused):
            await answered(engine, sampling=sampling)
