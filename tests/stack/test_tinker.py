"""The unmodified SDK of Tinker on a whole stack, whose processes are killed meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types
from transformers import AutoTokenizer

from tests.stack.conftest import BASE_MODEL, Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
ADAM = types.AdamParams(learning_rate=1e-3)


def datum(prompt: list[int], sequence: types.SampledSequence, advantage: float) -> types.Datum:
    before = [0] * (len(prompt) - 1)
    tokens = list(sequence.tokens)
    assert sequence.logprobs is not None
    inputs: Any = {
        "target_tokens": np.array(before + tokens),
        "logprobs": np.array(before + list(sequence.logprobs), np.float32),
        "advantages": np.array(before + [advantage] * len(tokens), np.float32),
    }
    return types.Datum(types.ModelInput.from_ints(prompt + tokens[:-1]), inputs)


def test_a_loop_of_the_sdk_notices_no_kill(stack: Stack) -> None:
    ids: list[int] = AutoTokenizer.from_pretrained(BASE_MODEL)("29-1-6+2=?")["input_ids"]
    prompt = types.ModelInput.from_ints(ids)
    params = types.SamplingParams(max_tokens=40)
    key = f"tml-{stack.facts['api_key']}"
    with tinker.ServiceClient(
        base_url=stack.facts["url"],
        api_key=key,
    ) as service:
        model = service.create_lora_training_client(BASE_MODEL, rank=4).result()
        for victim in ("learner", "gateway", "rollout"):
            sampler = model.save_weights_and_get_sampling_client().result()
            sampling = sampler.sample(prompt, 4, params)
            stack.kill(victim)
            data = [datum(ids, sequence, 0.01) for sequence in sampling.result().sequences]
            computed = model.forward_backward(data, "importance_sampling")
            assert model.optim_step(ADAM).result().metrics
            assert len(computed.result().loss_fn_outputs) == 4
        first, *logprobs = sampler.compute_logprobs(prompt).result()
        assert first is None
        assert len(logprobs) == len(ids) - 1
        state = model.save_state("three").result()
        assert state.path == f"tinker://{model.model_id}/weights/three"
    assert stack.wait_for_end(model.model_id)["status"] == "succeeded"
    assert sorted(data["step"] for data in stack.metrics(model.model_id)) == [1, 2, 3]
