"""Tiny random models, one vLLM engine for all tests, and ranks of DeepSpeed that start at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from protocol.recipe import Sampling
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from services.rollout.settings import EngineSettings
from tests.engine.ranks import Ranks
from tests.inline_prompts import InlinePrompts

if TYPE_CHECKING:
    from services.rollout.engine import Engine
    from services.rollout.samples import Sample

EOS = 2
MAX_CONTEXT = 4096
ENDLESS = 4000  # tokens
TOLERANCE = 1e-3  # nats, in float32
CHARACTERS = "0123456789+-*/=() abcdefghijklmnopqrstuvwxyz"
PROMPT = [1, *range(5, 25)]
LONG_PROMPT = [1, *(3 + number % 40 for number in range(299))]  # more than two cache blocks
APART = 0.5  # other weights are at least so far off, by their worst token
disable_progress_bar()
# Small models are computed no sooner by two threads, which take twice the processor time.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, with a BOS in front."""
    entries = ["<pad>", "<bos>", "<eos>", *CHARACTERS.replace(" ", "\u0120")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={entry: i for i, entry in enumerate(entries)},
            merges=[],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token=None,
        clean_up_tokenization_spaces=False,
    )


def write_model(
    folder: Path,
    seed: int,
    *,
    ends_soon: bool = False,
) -> Path:
    """A random Qwen2 with a tied head, which hardly ever ends a response, or soon does.

    The layers leave one hidden dimension alone, so what a token has there is its bias.
    """
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=3 + len(CHARACTERS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    model = Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
            if "o_proj" in name or "down_proj" in name:
                parameter[0] = 0.0
        bias = model.model.embed_tokens.weight[:, 0]
        bias[:] = 3.0
        bias[:EOS] = -60.0  # the other special tokens
        bias[EOS] = 4.0 if ends_soon else -60.0
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def ranks() -> Ranks:
    return Ranks()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that is trained: its weights are as small as an untrained model's."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    config = Qwen2Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [write_model(root / f"weights-{seed}", seed) for seed in range(3)]


@pytest.fixture(scope="session")
def folder_that_ends_soon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "ends-soon", 3, ends_soon=True)


@lru_cache
def load_reference(folder: Path) -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def compute_logprobs(
    folder: Path,
    prompt: Sequence[int],
    token_ids: Sequence[int] | np.ndarray,
    temperature: float = 1.0,
) -> np.ndarray:
    """Log-probs of a response by transformers, in float32, of weights that stay as they are."""
    ids = torch.tensor([[*prompt, *token_ids]])
    with torch.no_grad():
        logits = load_reference(folder)(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits / temperature, dim=-1).gather(1, ids[0, len(prompt) :, None])
    return chosen[:, 0].numpy()


def gap(
    folder: Path,
    sample: Sample,
    prompt: Sequence[int] = PROMPT,
    *,
    start: int = 0,
    end: int | None = None,
    temperature: float = 1.0,
) -> float:
    """The largest difference to `compute_logprobs`, in nats, within the tokens ``[start, end)``."""
    expected = compute_logprobs(folder, prompt, sample.token_ids, temperature)
    return float(np.abs(expected - sample.behavior_logprobs)[start:end].max())


async def sample_group(
    engine: Engine, size: int = 1, *, prompt: list[int] = PROMPT, seed: int = 0, **sampling: object
) -> list[Sample]:
    chosen = Sampling.model_validate({"max_tokens": 40, **sampling})
    return await engine.generate(prompt, chosen, size, seed)


def begin_group(engine: Engine, size: int, **options: Any) -> asyncio.Task[list[Sample]]:
    """One that takes long enough for anything to happen meanwhile."""
    return asyncio.create_task(sample_group(engine, size, **{"max_tokens": ENDLESS, **options}))


async def until_sampling(engine: Engine, num_responses: int) -> None:
    async with asyncio.timeout(120):
        while num_responses != sum(
            state.detokenizer is not None and state.detokenizer.num_output_tokens() > 0
            for state in engine.llm.output_processor.request_states.values()
        ):
            await asyncio.sleep(0.005)


@pytest.fixture(scope="session")
def settings() -> EngineSettings:
    return EngineSettings(
        dtype="float32",
        max_context=MAX_CONTEXT,
        max_sequences=16,
        kv_cache_bytes=64 * 2**20,
        sync_timeout_s=60,
    )


@pytest.fixture(scope="session")
async def started(folders: list[Path], settings: EngineSettings) -> AsyncIterator[Engine]:
    from services.rollout.engine import Engine  # takes seconds, and training needs none of it

    engine = await Engine.start(InlinePrompts(), folders[0], "1.0", settings)
    yield engine
    engine.shut_down()


@pytest.fixture
async def engine(started: Engine, folders: list[Path]) -> Engine:
    """The only engine, at the first weights, as version 0 of attempt 1."""
    await started.load(folders[0], "1.0", keep_kv=False)
    return started
