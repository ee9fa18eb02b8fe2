"""A model with more rows than its tokenizer has ids: those rows are in no softmax anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.learner.algorithms.logprobs import chunked_token_logprobs
from services.rollout.engine import Engine
from services.rollout.samples import RequestRefused
from services.rollout.settings import EngineSettings
from tests.engine.conftest import make_tokenizer, sample_group, write_model
from tests.inline_prompts import InlinePrompts

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

PROMPT = [1, *range(5, 35)]


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
async def engine(wide: Path) -> AsyncIterator[Engine]:
    settings = EngineSettings(dtype="bfloat16", max_context=128, kv_cache_bytes=64 * 2**20)
    engine = await Engine.start(InlinePrompts(), wide, "1.0", settings)
    yield engine
    engine.shut_down()


def learners(folder: Path, ids: list[int], num_ids: int | None) -> tuple[np.ndarray, float]:
    """Its log-probs of a sequence but for its first token, and the most that a gap may be."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    head = model.lm_head.weight
    row = torch.tensor([ids])
    with torch.no_grad():
        hidden = model.model(row).last_hidden_state[0, :-1]
        logits = hidden.float() @ head[:num_ids].float().T
        logprobs, _ = chunked_token_logprobs(
            hidden, head, None, row[0, 1:], 1.0, 8, num_ids=num_ids
        )
    return logprobs.numpy(), 7 * 2**-8 * float(logits.std(dim=-1).mean())


async def test_rows_without_a_token_are_sampled_by_nobody(engine: Engine, wide: Path) -> None:
    num = len(make_tokenizer())
    assert engine.num_ids == num
    for sample in await sample_group(engine, 4, prompt=PROMPT):
        assert sample.token_ids.max() < num
        expected, most = learners(wide, [*PROMPT, *sample.token_ids.tolist()], num)
        assert np.abs(expected[len(PROMPT) - 1 :] - sample.behavior_logprobs).mean() < most
    expected, most = learners(wide, PROMPT, num)
    scored, decoded = np.split(await engine.score(PROMPT, {}), [len(expected)])
    assert np.abs(expected - scored).mean() < most
    assert len(decoded)
    assert np.mean(decoded) < most
    assert learners(wide, PROMPT, None)[0].max() < -2, "those rows would count"
    with pytest.raises(RequestRefused, match="token 47 of the prompt is none of the 47 in use"):
        await sample_group(engine, prompt=[*PROMPT, 47])
