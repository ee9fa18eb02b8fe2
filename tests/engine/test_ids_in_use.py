"""A model with more rows than its tokenizer has ids: those rows are in no softmax anywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from protocol.recipe import Sampling
from transformers import AutoModelForCausalLM

from services.learner.algorithms.logprobs import chunked_token_logprobs
from services.rollout.engine import Engine
from services.rollout.samples import RequestRefused
from services.rollout.settings import EngineSettings
from tests.engine.conftest import make_tokenizer, write_model
from tests.inline_prompts import InlinePrompts

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

PROMPT = [1, *range(5, 35)]
HALF = 2**-8  # what bfloat16 rounds by


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random, with as many rows again, of which the logits are the largest."""
    folder = write_model(tmp_path_factory.mktemp("models") / "wide", 5)
    model = AutoModelForCausalLM.from_pretrained(folder)
    num = model.config.vocab_size
    model.resize_token_embeddings(2 * num, mean_resizing=False)
    with torch.no_grad():
        model.model.embed_tokens.weight[num:, 0] = 9.0
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
async def engine(wide: Path) -> Engine:
    settings = EngineSettings(dtype="bfloat16", max_context=128, kv_cache_bytes=64 * 2**20)
    return await Engine.start(InlinePrompts(), wide, "1.0", settings)


def learners(folder: Path, ids: list[int], num_ids: int | None) -> tuple[np.ndarray, float]:
    """Its log-probs of a sequence but for its first token, and how far logits spread."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    head, row = model.lm_head.weight, torch.tensor([ids])
    with torch.no_grad():
        hidden = model.model(row).last_hidden_state[0, :-1]
        spread = (hidden.float() @ head[:num_ids].float().T).std(dim=-1).mean()
        found, _ = chunked_token_logprobs(hidden, head, None, row[0, 1:], 1.0, 8, num_ids=num_ids)
    return found.numpy(), float(spread)


async def test_rows_without_a_token_are_sampled_by_nobody(engine: Engine, wide: Path) -> None:
    num = len(make_tokenizer())
    assert engine.num_ids == num
    samples = await engine.generate(PROMPT, Sampling(max_tokens=40), 4, 0)
    for sample in samples:
        assert sample.token_ids.max() < num
        expected, spread = learners(wide, [*PROMPT, *sample.token_ids.tolist()], num)
        gaps = np.abs(expected[len(PROMPT) - 1 :] - sample.behavior_logprobs)
        assert gaps.mean() < 7 * HALF * spread
    scored = await engine.score(PROMPT, {})
    expected, spread = learners(wide, PROMPT, num)
    gaps, decoded = np.abs(expected - scored[: len(expected)]), scored[len(expected) :]
    assert gaps.mean() < 7 * HALF * spread
    assert len(decoded) == len(PROMPT) // 2 - 1
    assert np.mean(decoded) < 7 * HALF * spread
    assert learners(wide, PROMPT, None)[0].max() < -2, "those rows would count"


async def test_a_prompt_with_such_an_id_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestRefused, match="token 47 of the prompt is none of the 47 in use"):
        await engine.generate([*PROMPT, 47], Sampling(max_tokens=4), 1, 0)
