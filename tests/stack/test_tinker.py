"""The unmodified SDK of Tinker on a whole stack, whose processes are killed meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types
from transformers import AutoTokenizer

from tests.stack.conftest import BASE_MODEL, ROOT, Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
ADAM = types.AdamParams(learning_rate=1e-3)


def datum(prompt: list[int], sequence: types.SampledSequence, advantage: float) -> types.Datum:
    before = len(prompt) - 1
    tokens = list(sequence.tokens)
    assert sequence.logprobs is not None
    inputs: Any = {
        "target_tokens": np.array([0] * before + tokens),
        "logprobs": np.array([0.0] * before + list(sequence.logprobs), np.float32),
        "advantages": np.array([0.0] * before + [advantage] * len(tokens), np.float32),
    }
    return types.Datum(types.ModelInput.from_ints(prompt + tokens[:-1]), inputs)


def test_a_loop_of_the_sdk_notices_no_kill(stack: Stack) -> None:
    prompt: list[int] = AutoTokenizer.from_pretrained(ROOT / BASE_MODEL)("29-1-6+2=?")["input_ids"]
    given = types.ModelInput.from_ints(prompt)
    params = types.SamplingParams(max_tokens=40)
    url = stack.facts["url"]
    key = f"tml-{stack.facts['api_key']}"
    with tinker.ServiceClient(base_url=url, api_key=key) as service:
        model = service.create_lora_training_client(BASE_MODEL, rank=4).result()
        for victim in ("learner", "gateway", "rollout"):
            sampler = model.save_weights_and_get_sampling_client().result()
            asked = sampler.sample(given, 4, params)
            stack.kill(victim)
            data = [datum(prompt, each, 0.01) for each in asked.result().sequences]
            computed = model.forward_backward(data, "importance_sampling")
            assert model.optim_step(ADAM).result().metrics
            assert len(computed.result().loss_fn_outputs) == 4
        scored = sampler.compute_logprobs(given).result()
        assert scored[0] is None
        assert len(scored) == len(prompt)
        saved = model.save_state("three").result()
        assert saved.path == f"tinker://{model.model_id}/weights/three"
    assert stack.wait_for_end(model.model_id)["status"] == "succeeded"
    events = [event["data"] for event in stack.events(model.model_id) if event["type"] == "metrics"]
    assert sorted(data["step"] for data in events) == [1, 2, 3]
