"""With tokenizers and chat templates of well-known models Weir does what transformers does."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from protocol.messages import FinishReason, Task
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.chassis.prompts import PromptError
from services.chassis.renderer import PromptRenderer
from services.gateway.core.samples.decoding import decode
from services.learner.training.folders import module_weights, write_folder
from services.learner.training.model_check import SAFELY, UnsupportedModel
from services.learner.training.models import read_model
from services.learner.training.sequence import ALONE
from services.learner.training.trial import try_models
from services.rollout.engine import Engine
from services.rollout.samples import begins_thinking, response_text
from services.rollout.settings import EngineSettings
from tests.engine.conftest import TOLERANCE, sample_group
from tests.inline_prompts import InlinePrompts
from tests.published import MODELS, write_model

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

TEXT = "鸡兔同笼 🐔🐰: 3 + 4 = é\n\n?"
TASK = Task(id="t", prompt=TEXT)
PLAIN = "Question: {prompt}\nAnswer:"
WITHOUT_BOS = "qwen3"
WITHOUT_TEMPLATE = WITH_SINKS = "gptoss"  # of attention, which the learner's packed rows lack
THINKING: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"enable_thinking": False})


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(name, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
async def prompts(folder: Path) -> AsyncIterator[PromptRenderer]:
    async with PromptRenderer(1) as prompts:
        await prompts.open(folder)
        yield prompts


async def test_a_plain_prompt_and_a_response_are_the_tokenizers(
    folder: Path, prompts: PromptRenderer, tokenizer: Any
) -> None:
    ids = await prompts.render(TASK, PLAIN, {})
    assert ids == tokenizer(PLAIN.format(prompt=TEXT)).input_ids
    assert TEXT in tokenizer.decode(ids)
    ids = [*tokenizer(TEXT, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    assert response_text(tokenizer, ids, is_stopped=True) == TEXT
    assert response_text(tokenizer, ids, is_stopped=False) == TEXT + tokenizer.eos_token
    texts = decode(str(folder / "tokenizer.json"), 0, ids, skip_special_tokens=False)
    assert (len(texts), "".join(texts)) == (len(ids), TEXT + tokenizer.eos_token)


@pytest.mark.parametrize("options", THINKING, ids=str)
async def test_a_chat_is_the_templates(
    name: str, prompts: PromptRenderer, tokenizer: Any, options: dict[str, Any]
) -> None:
    if name == WITHOUT_TEMPLATE:
        with pytest.raises(PromptError, match="no chat template"):
            await prompts.render(TASK, None, options)
        return
    ids = await prompts.render(TASK, None, options)
    turns = [{"role": "user", "content": TEXT}]
    of_transformers = {"add_generation_prompt": True, "return_dict": False, **options}
    assert ids == tokenizer.apply_chat_template(turns, **of_transformers)
    assert ids.count(tokenizer.bos_token_id) == (name != WITHOUT_BOS)
    assert not begins_thinking(tokenizer, ids), "Qwen3 closes it at once, others never open it"


async def test_control_tokens_in_a_problem_are_text(
    name: str, prompts: PromptRenderer, tokenizer: Any
) -> None:
    template = PLAIN if name == WITHOUT_TEMPLATE else None
    hidden = f"1{tokenizer.eos_token}{tokenizer.eos_token}2"
    plain = await prompts.render(
        Task(
            id="t",
            prompt="12",
        ),
        template,
        {},
    )
    ids = await prompts.render(
        Task(
            id="t",
            prompt=hidden,
        ),
        template,
        {},
    )
    assert ids.count(tokenizer.eos_token_id) == plain.count(tokenizer.eos_token_id)
    assert hidden in tokenizer.decode(ids)


async def test_a_tokenizer_that_transformers_reads_as_another_is_refused(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """As in a Llama with DeepSeek's tokenizer, whose class brings parts of its own."""
    if name != "deepseek_v3":
        pytest.skip("of others the class keeps what the file says")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / file, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(PromptError, match="LlamaTokenizer, which loses text; set tokenizer_class"):
        await PromptRenderer(1).open(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    changed = json.loads(config.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(changed))
    async with PromptRenderer(1) as prompts:
        await prompts.open(tmp_path)
        assert TEXT in (await prompts.decode([await prompts.encode(TEXT)]))[0]


@pytest.mark.long
async def test_the_engine_computes_it_before_and_after_an_export(
    name: str, folder: Path, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel) if name == WITH_SINKS else nullcontext():
        assert try_models(folder, None, 256) == []
    settings = EngineSettings(
        dtype="float32", max_context=256, kv_cache_bytes=64 * 2**20, max_sequences=8
    )
    ids = tokenizer(PLAIN.format(prompt=TEXT)).input_ids
    engine = await Engine.start(InlinePrompts(), folder, "1.0", settings)
    try:
        for sample in await sample_group(engine, 3, prompt=ids):
            expected = logprobs(folder, [*ids, *sample.token_ids], engine.num_ids)
            gaps = expected[len(ids) - 1 :] - sample.behavior_logprobs
            assert np.abs(gaps).max() < TOLERANCE
            is_stopped = sample.finish_reason == FinishReason.STOP
            assert is_stopped == (sample.token_ids[-1] == tokenizer.eos_token_id)
        model = read_model(AutoModelForCausalLM, folder, ALONE, torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.1
        write_folder(model, module_weights(model), folder, tmp_path)
        expected = logprobs(tmp_path, ids, engine.num_ids)
        await engine.load(tmp_path, "1.1", keep_kv=False)
        await check_score(engine, ids, expected)
    finally:
        engine.shut_down()
    engine = await Engine.start(InlinePrompts(), tmp_path, "1.1", settings)
    await check_score(engine, ids, expected)
    engine.shut_down()


async def check_score(engine: Engine, ids: list[int], expected: np.ndarray) -> None:
    scored = np.array(await engine.score(ids, {}))[: len(expected)]
    assert np.abs(scored - expected).max() < TOLERANCE


def logprobs(folder: Path, ids: list[int], num_ids: float) -> np.ndarray:
    """Of all tokens but the first, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        **SAFELY,
    ).eval()
    row = torch.tensor([ids])
    with torch.no_grad():
        logits = model(row).logits[0, :-1, : int(num_ids)]
    return torch.log_softmax(logits, -1).gather(1, row[0, 1:, None])[:, 0].numpy()
