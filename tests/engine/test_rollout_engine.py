"""The engine against transformers: behaviour log-probs are those of the weights that it names."""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from protocol.messages import FinishReason
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists

from services.rollout.engine import Engine
from services.rollout.samples import EngineError, LoadError, Sample
from services.rollout.scheduler import _Batching
from services.rollout.settings import EngineSettings
from tests.engine.conftest import (
    APART,
    ENDLESS,
    EOS,
    LONG_PROMPT,
    PROMPT,
    TOLERANCE,
    begin_group,
    gap,
    sample_group,
    until_sampling,
)
from tests.inline_prompts import InlinePrompts

pytestmark = [pytest.mark.engine, pytest.mark.anyio]


def spans_of(sample: Sample) -> list[tuple[int, int, int]]:
    return [(span.version, span.start, span.end) for span in sample.spans]


async def check_weights(engine: Engine, folder: Path, **options: Any) -> Sample:
    """What it samples now is of these weights."""
    (sample,) = await sample_group(engine, prompt=LONG_PROMPT, **options)
    assert gap(folder, sample, LONG_PROMPT) < TOLERANCE
    return sample


async def sample_through_a_sync(
    engine: Engine, folder: Path, label: str, *, keep_kv: bool
) -> list[Sample]:
    """Responses that do not end before the sync; that they end after it is for its weights."""
    group = begin_group(engine, 4, seed=5)
    await until_sampling(engine, 4)
    await engine.load(folder, label, keep_kv=keep_kv)
    assert not group.done(), "the sync came too late to be in the middle of anything"
    return await group


async def test_logprobs_are_those_of_the_newest_weights_after_every_sync(
    engine: Engine, folders: list[Path]
) -> None:
    before = folders[2]
    for version, folder in enumerate([folders[0], folders[1], folders[2], folders[0]]):
        await engine.load(folder, f"1.{version}", keep_kv=False)
        sample = await check_weights(engine, folder, seed=version)
        assert gap(before, sample, LONG_PROMPT) > APART
        assert spans_of(sample) == [(version, 0, 40)]
        before = folder


async def test_nothing_of_a_slot_is_used_once_it_is_loaded(
    engine: Engine, folders: list[Path], tmp_path: Path
) -> None:
    """The learner writes the next version over it."""
    slot = tmp_path / "slot"
    shutil.copytree(folders[1], slot)
    await engine.load(slot, "1.1", keep_kv=False)
    weights = slot / "model.safetensors"
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xff" * (size // 2))
    await check_weights(engine, folders[1])


async def test_a_sync_in_the_middle_recomputes_the_whole_prefix_under_the_new_weights(
    engine: Engine, folders: list[Path], folder_that_ends_soon: Path
) -> None:
    new = folder_that_ends_soon
    for sample in await sample_through_a_sync(engine, new, "2.3", keep_kv=False):
        edge = sample.spans[0].end
        assert 0 < edge < len(sample.token_ids)
        assert [span.attempt for span in sample.spans] == [1, 2]
        assert spans_of(sample) == [(0, 0, edge), (3, edge, len(sample.token_ids))]
        assert gap(folders[0], sample, end=edge) < TOLERANCE
        assert gap(new, sample, start=edge) < TOLERANCE


async def test_an_engine_that_slept_goes_on_where_it_was_with_the_same_weights(
    engine: Engine, folders: list[Path]
) -> None:
    group = begin_group(engine, 4, max_tokens=ENDLESS // 4)
    await until_sampling(engine, 4)
    await engine.sleep()
    assert engine.room(1, claimed=1) == 0
    await asyncio.sleep(0.5)
    states = engine.llm.output_processor.request_states.values()
    assert len(states) == 4, "the engine sampled in its sleep"
    await engine.wake_up()
    for sample in await group:
        assert gap(folders[0], sample) < TOLERANCE
        assert len(sample.spans) == 1
    await engine.load(folders[1], "1.1", keep_kv=True)
    await check_weights(engine, folders[1])


async def test_kept_kv_continues_on_the_old_prefix_but_never_leaks_into_new_requests(
    engine: Engine, folders: list[Path], folder_that_ends_soon: Path
) -> None:
    new = folder_that_ends_soon
    await check_weights(engine, folders[0])
    running = await sample_through_a_sync(engine, new, "1.1", keep_kv=True)
    later = await check_weights(engine, new)
    assert [span.version for span in later.spans] == [1]
    edges = [sample.spans[0].end for sample in running]
    pairs = list(zip(running, edges, strict=True))
    assert (
        max(
            gap(
                folders[0],
                sample,
                end=edge,
            )
            for sample, edge in pairs
        )
        < TOLERANCE
    )
    assert (
        max(
            gap(
                new,
                sample,
                start=edge,
            )
            for sample, edge in pairs
        )
        > APART
    )


async def test_kept_kv_marks_a_request_that_had_waited_for_a_place(
    engine: Engine, folders: list[Path]
) -> None:
    full = begin_group(engine, 16)
    await until_sampling(engine, 16)
    waiting = begin_group(engine, 1, max_tokens=4)
    async with asyncio.timeout(120):
        while engine.llm.get_num_unfinished_requests() < 17:
            await asyncio.sleep(0.005)
    await engine.load(folders[1], "1.1", keep_kv=True)
    full.cancel()
    (sample,) = await waiting
    assert spans_of(sample) == [(0, 0, 0), (1, 0, 4)]


async def test_there_is_room_for_a_group_as_soon_as_responses_end_and_none_while_others_wait(
    engine: Engine,
) -> None:
    assert [engine.room(4, 0), engine.room(5, 0), engine.room(4, 3)] == [4, 4, 1]
    long = begin_group(engine, 8)
    await until_sampling(engine, 8)
    assert [engine.room(8, 1), engine.room(8, 2), engine.room(20, 1)] == [1, 0, 1]
    other, short = (
        begin_group(
            engine,
            8,
            seed=1,
        ),
        begin_group(engine, 8, max_tokens=20),
    )
    await until_sampling(engine, 16)
    assert engine.room(1, 3) == 0
    other.cancel()
    await short
    assert not long.done()
    assert engine.room(4, 1) == 2
    cache = engine.llm.vllm_config.cache_config
    assert cache.num_gpu_blocks
    mean = engine.mean_tokens
    engine.mean_tokens = cache.num_gpu_blocks * cache.block_size / 13
    assert engine.room(4, 1) == 2  # of 13 that fit 8 are there
    engine.mean_tokens *= 13 / 9
    assert [engine.room(4, 1), engine.room(4, 2)] == [1, 0]
    engine.mean_tokens = mean
    long.cancel()
    await asyncio.gather(other, long, return_exceptions=True)


async def test_logprobs_are_after_temperature(engine: Engine, folders: list[Path]) -> None:
    (sample,) = await sample_group(engine, temperature=0.7, max_tokens=12)
    assert sample.finish_reason is FinishReason.LENGTH
    assert sample.token_ids.shape == sample.behavior_logprobs.shape == (12,)
    assert (sample.token_ids.dtype, sample.behavior_logprobs.dtype) == (np.int32, np.float32)
    assert gap(folders[0], sample, temperature=0.7) < TOLERANCE
    assert gap(folders[0], sample) > 10 * TOLERANCE


async def test_a_seed_makes_a_group_of_distinct_responses_and_makes_it_again(
    engine: Engine,
) -> None:
    async def texts(seed: int) -> list[str]:
        return [sample.text for sample in await sample_group(engine, 8, seed=seed)]

    first, neighbour = await asyncio.gather(texts(7), texts(8))
    assert len({*first, *neighbour}) == 16
    assert await texts(7) == first


async def test_the_end_of_sequence_is_a_token_with_its_logprob_but_not_text(
    engine: Engine, folder_that_ends_soon: Path
) -> None:
    await engine.load(folder_that_ends_soon, "1.0", keep_kv=False)
    (sample,) = await sample_group(engine, max_tokens=400)
    assert sample.finish_reason is FinishReason.STOP
    assert sample.token_ids[-1] == EOS
    assert gap(folder_that_ends_soon, sample) < TOLERANCE
    assert "<eos>" not in sample.text
    assert len(sample.text) == len(sample.token_ids) - 1


async def test_a_stop_string_ends_a_response_and_stays_in_it(
    engine: Engine, folders: list[Path]
) -> None:
    (free,) = await sample_group(engine)
    stop = free.text[10:12]
    (sample,) = await sample_group(engine, stop=(stop,))
    length = free.text.index(stop) + 2
    assert sample.finish_reason is FinishReason.STOP
    assert sample.text == free.text[:length]
    assert sample.token_ids.tolist() == free.token_ids[:length].tolist()
    assert gap(folders[0], sample) < TOLERANCE


async def test_many_long_prompts_at_once_are_all_answered(
    engine: Engine, folders: list[Path]
) -> None:
    prompts = [[1, *(3 + (number * shift) % 40 for number in range(300))] for shift in range(1, 31)]
    groups = await asyncio.gather(*(sample_group(engine, prompt=prompt) for prompt in prompts))
    for prompt, (sample,) in zip(prompts, groups, strict=True):
        assert gap(folders[0], sample, prompt) < TOLERANCE


async def test_a_cancelled_group_leaves_nothing_in_the_engine(engine: Engine) -> None:
    group = begin_group(engine, 8)
    await until_sampling(engine, 8)
    group.cancel()
    await asyncio.wait({group})
    assert engine.llm.get_num_unfinished_requests() == 0
    async with asyncio.timeout(60):
        # vLLM clears its cache only once no request holds a block of it.
        while not await engine.llm.reset_prefix_cache():
            await asyncio.sleep(0.01)


async def test_an_engine_that_samples_moves_and_one_that_is_frozen_does_not(engine: Engine) -> None:
    async def moves_from(before: int) -> int:
        async with asyncio.timeout(120):
            while engine.progress == before:
                await asyncio.sleep(0.01)
        return engine.progress

    group = begin_group(engine, 1)
    await until_sampling(engine, 1)
    (core,) = multiprocessing.active_children()
    assert core.pid is not None
    moved = await moves_from(await moves_from(engine.progress))
    os.kill(core.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(120):
            while moved != (moved := engine.progress):  # what it had sent
                await asyncio.sleep(1)
        assert not group.done()
    finally:
        os.kill(core.pid, signal.SIGCONT)
    await moves_from(moved)
    group.cancel()


def test_tokens_leave_the_engine_many_at_a_time_or_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = _Batching()
    logprobs = LogprobsLists(np.zeros((1, 1), np.int32), np.zeros((1, 1)), np.zeros(1))
    request: Any = SimpleNamespace(sampling_params=SamplingParams())
    scheduler.requests = {"response": request}

    def count_sent(steps: int, clock: itertools.count[float]) -> list[int]:
        """How many tokens leave at once, where a step makes one."""
        monkeypatch.setattr("time.monotonic", clock.__next__)
        outputs = (EngineCoreOutput("response", [7], logprobs) for _ in range(steps))
        due = [each for output in outputs for each in scheduler._due([output])]
        return [len(output.new_token_ids) for output in due]

    assert count_sent(
        129,
        itertools.count(
            start=50,
            step=0.01,
        ),
    ) == [1, 64, 64]
    assert count_sent(
        4,
        itertools.count(
            start=100,
            step=3.0,
        ),
    ) == [1, 2]


async def test_probes_go_before_all_that_waits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Mock(wraps=engine.llm.generate)
    monkeypatch.setattr(engine.llm, "generate", generate)
    await engine.score(PROMPT, {})
    await sample_group(engine)
    *probes, other = (call.kwargs["priority"] for call in generate.call_args_list)
    assert max(probes) < other
    assert engine.llm.vllm_config.scheduler_config.policy == "priority"


async def test_after_a_failed_load_nothing_is_sampled_until_a_load_succeeds(
    engine: Engine, folders: list[Path], tmp_path: Path
) -> None:
    broken = shutil.copytree(folders[1], tmp_path / "broken")
    weights = broken / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    with pytest.raises(LoadError, match="load: "):
        await engine.load(broken, "1.1", keep_kv=False)
    async with asyncio.timeout(60):
        with pytest.raises(LoadError, match="sampled"):
            await sample_group(engine)
    await engine.load(folders[2], "1.2", keep_kv=False)
    await check_weights(engine, folders[2])


async def test_a_load_that_takes_too_long_names_its_phase_and_the_setting(
    engine: Engine, folders: list[Path]
) -> None:
    hasty = Engine(engine.llm, replace(engine.settings, sync_timeout_s=0.0), engine.prompts)
    with pytest.raises(LoadError, match=r"pause: .* \(WEIR_ROLLOUT_SYNC_TIMEOUT_S\)"):
        await hasty.load(folders[0], "1.0", keep_kv=False)


async def test_an_engine_that_cannot_start_has_the_words_of_vllm(
    settings: EngineSettings, folders: list[Path], tmp_path: Path
) -> None:
    unknown = shutil.copytree(folders[0], tmp_path / "unknown")
    config = json.loads((unknown / "config.json").read_text())
    (unknown / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}))
    with pytest.raises(EngineError, match="NoSuchModel"):
        await Engine.start(InlinePrompts(), unknown, "1.0", settings)
