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
from protocol.calls import Call, Piece, Token
from protocol.messages import FinishReason
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput

from services.rollout.answers import Answer
from services.rollout.engine import Engine
from services.rollout.samples import RequestRefused
from tests.contract.call_client import a_call
from tests.engine.conftest import (
    ENDLESS,
    PROMPT,
    TOLERANCE,
    begin_group,
    compute_logprobs,
    gap,
    until_sampling,
)

pytestmark = [pytest.mark.engine, pytest.mark.anyio]
SAME = 1e-4  # nats
WORDS = "naïve 数学 🦊 = ∑, 12 + 30 = 42. ÄÖÜ"


async def ask(
    engine: Engine, max_tokens: int = 40, *, ids: Sequence[int] = PROMPT, **changes: Any
) -> list[Piece]:
    call = a_call(token_ids=ids, **changes)
    async with aclosing(engine.answer(call, list(ids), max_tokens - len(call.so_far))) as pieces:
        return [piece async for piece in pieces]


def tokens_of(pieces: Sequence[Piece]) -> list[Token]:
    return [token for piece in pieces for token in piece.tokens]


def ids_of(pieces: Sequence[Piece]) -> list[int]:
    return [token.id for token in tokens_of(pieces)]


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def logprob_gap(
    folder: Path, pieces: Sequence[Piece], *, start: int = 0, end: int | None = None
) -> float:
    expected = compute_logprobs(folder, PROMPT, ids_of(pieces))
    logprobs = [token.logprob for token in tokens_of(pieces)]
    return float(np.abs(expected - logprobs)[start:end].max())


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
    for start, end in zip(
        [0, *cuts],
        [*cuts, len(ids)],
        strict=True,
    ):
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
        again = call.model_copy(
            update={
                "so_far": tuple(done),
                "tries": 1,
            }
        )
        rest = [cut - len(done) for cut in (*cuts, dies) if cut > len(done)]
        second = read(tokenizer, again, ids[len(done) :], sorted(set(rest)))
        assert text_of(seen) + text_of(second) == whole
        assert ids_of(seen) + ids_of(second) == ids_of(first)


async def test_a_stop_text_ends_a_response_and_tokens_so_far_go_on(
    engine: Engine, folders: list[Path]
) -> None:
    whole = await ask(engine, streams=True, sampling={"seed": 3})
    text = text_of(whole)
    assert whole[-1].finish_reason is FinishReason.LENGTH
    assert text == engine.tokenizer.decode(ids_of(whole))
    assert text == "".join(token.text for token in tokens_of(whole))
    assert logprob_gap(folders[0], whole) < SAME
    stop = text[20:24]
    ended = await ask(
        engine,
        streams=True,
        sampling={"seed": 3, "stop": [stop]},
    )
    assert text_of(ended) == text[: text.index(stop)]
    assert ended[-1].stop_reason == stop
    assert ids_of(ended) == ids_of(whole)[: text.index(stop) + len(stop)]
    greedy = {"temperature": 0}
    first = await ask(engine, sampling=greedy)
    rest = await ask(
        engine,
        sampling=greedy,
        so_far=ids_of(first)[:15],
        tries=1,
    )
    assert ids_of(rest) == ids_of(first)[15:]
    assert text_of(rest) == text_of(first)[15:]
    assert rest[-1].spans[-1].end == 25


async def test_log_probs_of_a_prompt_come_once_at_temperature_1_whatever_the_cache_has(
    engine: Engine, folders: list[Path]
) -> None:
    prompt = [*PROMPT, *range(3, 40)]  # more than a block of the cache
    expected = compute_logprobs(folders[0], prompt[:1], prompt[1:])
    sampling = {"prompt_logprobs": True, "temperature": 0.5, "seed": 3}
    for max_tokens in (1, 1, 100):  # as the last: more than leave the engine's process at once
        first, *rest = await ask(engine, max_tokens, ids=prompt, sampling=sampling)
        assert first.prompt_logprobs is not None
        assert first.prompt_logprobs[0] is None
        assert np.abs(expected - np.array(first.prompt_logprobs[1:], dtype=float)).max() < SAME
        assert not any(piece.prompt_logprobs for piece in rest)
    token = first.tokens[0]
    (at_half,) = compute_logprobs(folders[0], prompt, [token.id], 0.5)
    assert abs(at_half - token.logprob) < SAME
    again = await ask(
        engine,
        sampling=sampling,
        so_far=(token.id,),
        tries=1,
    )
    assert not any(piece.prompt_logprobs for piece in again), "what the first try has told"
    (short,) = await ask(
        engine,
        1,
        ids=[1],
        sampling=sampling,
    )
    assert short.prompt_logprobs == (None,)


async def test_calls_beside_groups_change_neither_these_nor_their_room_and_live_through_updates(
    engine: Engine, folders: list[Path]
) -> None:
    group = begin_group(engine, 4, max_tokens=200)
    pieces = await ask(engine, 100, sampling={"top_logprobs": 3})
    for sample in await group:
        assert gap(folders[0], sample) < TOLERANCE
    for token in tokens_of(pieces):
        likely = [logprob for _, _, logprob in token.top]
        assert len(likely) == 3
        assert sorted(likely, reverse=True) == likely
        assert token.logprob <= likely[0]
    call = asyncio.create_task(ask(engine, ENDLESS))
    await until_sampling(engine, 1)
    assert engine.room(1, claimed=0) == engine.places
    await engine.load(folders[1], "1.1", keep_kv=False)
    pieces = await call
    first, second = pieces[-1].spans
    assert (first.version, second.version, second.end) == (0, 1, ENDLESS)
    for folder, span in zip(folders, (first, second), strict=False):
        assert (
            logprob_gap(
                folder,
                pieces,
                start=span.start,
                end=span.end,
            )
            < SAME
        )
    call = asyncio.create_task(ask(engine, ENDLESS))
    await until_sampling(engine, 1)
    call.cancel()
    await asyncio.wait({call})
    assert not engine.llm.output_processor.request_states


async def test_what_vllm_does_not_take_is_refused(engine: Engine) -> None:
    for sampling in ({"min_tokens": 99}, {"stop_token_ids": [-1, 9999]}):
        with pytest.raises(RequestRefused):
            await ask(engine, sampling=sampling)
