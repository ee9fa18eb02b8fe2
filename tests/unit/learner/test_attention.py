"""A sample in a packed row has the log-probs and gradients that it has alone."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from services.learner.training.attention import PACKED, use_flash_attention
from services.learner.training.batching import collate
from services.learner.training.model_check import UnsupportedModel
from services.learner.training.models import Policy
from services.learner.training.samples import Sample

LENGTHS = [
    (3, 1),
    (9, 30),
    (1, 5),
    (2, 0),
    (20, 19),
    (4, 3),
]  # of prompts and responses


def a_model(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation=PACKED)


def samples() -> list[Sample]:
    random = np.random.default_rng(0)
    return [
        Sample(
            prompt_ids=random.integers(0, 40, prompt),
            token_ids=random.integers(0, 40, response),
            behavior_logprobs=np.zeros(response, dtype=np.float32),
            on_version=np.ones(response, dtype=np.int32),
            advantage=0.0,
            reward=0.0,
            correct=False,
            group=0,
        )
        for prompt, response in LENGTHS
    ]


def alone(model: PreTrainedModel, sample: Sample) -> Tensor:
    """The log-probs of a response, from all logits of its sample."""
    ids = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.token_ids]))
    logits = model(ids[None]).logits[0, len(sample.prompt_ids) - 1 : -1]
    return logits.log_softmax(-1)[range(len(sample.token_ids)), sample.token_ids]


def gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_samples_of_a_row_know_nothing_of_each_other(family: str) -> None:
    model = a_model(family)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("sdpa")
    packed, _ = Policy(model, chunk_tokens=1000)(
        collate(samples()),
        1.0,
    )
    expected = torch.cat([alone(plain, sample) for sample in samples()])
    assert packed.detach().numpy() == pytest.approx(expected.detach().numpy(), abs=2e-6)
    weights = torch.linspace(-1, 1, len(expected))  # so that no gradient is 0 by symmetry
    (weights * packed).sum().backward()
    (weights * expected).sum().backward()
    assert gradients(model).numpy() == pytest.approx(gradients(plain).numpy(), abs=2e-5)
    assert gradients(plain).abs().max() > 0.1


@pytest.mark.parametrize(
    ("capability", "remedy"),
    [
        (None, "needs a Hopper GPU"),
        ((8, 9), "needs a Hopper GPU"),
        ((9, 0), "flash_attn_interface.*install flash-attn-3"),  # it is not installed here
    ],
)
def test_flash_attention_3_that_is_not_there_is_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, remedy: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    with pytest.raises(UnsupportedModel, match=f"flash_attention = 3.*{remedy}"):
        use_flash_attention(3)
