"""The SDK of Tinker, unmodified, against the gateway; a learner and a rollout stand in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tinker
from tinker import types

from tests.contract.gateway.fake_learner import FakeLearner, a_client_learner
from tests.contract.gateway.fake_rollout import COUNTED, FakeRollout, a_rollout
from tests.contract.gateway.stack import KEY, Stack

pytestmark = pytest.mark.redis
IDS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def learner(stack: Stack) -> Iterator[FakeLearner]:
    with a_client_learner(stack) as learner:
        yield learner


@pytest.fixture(scope="module")
def rollout(stack: Stack) -> Iterator[FakeRollout]:
    with a_rollout(stack) as rollout:
        yield rollout


@pytest.fixture
def service(stack: Stack, learner: FakeLearner) -> Iterator[tinker.ServiceClient]:
    with tinker.ServiceClient(base_url=stack.url, api_key=f"tml-{KEY}") as service:
        yield service


def a_datum(**inputs: object) -> types.Datum:
    own = {"target_tokens": np.array([2, 3, 4, 5]), "weights": np.ones(4, np.float32)}
    return types.Datum(model_input=types.ModelInput.from_ints(IDS), loss_fn_inputs=own | inputs)


def test_a_session_trains_samples_saves_and_loads(
    service: tinker.ServiceClient, rollout: FakeRollout, learner: FakeLearner
) -> None:
    names = {model.model_name for model in service.get_server_capabilities().supported_models}
    assert {"tiny", "chat"} <= names
    model = service.create_lora_training_client("tiny", rank=4, seed=7).result()
    output = model.forward_backward([a_datum()] * 3, "cross_entropy")
    step = model.optim_step(types.AdamParams(learning_rate=1e-3, grad_clip_norm=1.0))
    assert [each["logprobs"].data for each in output.result().loss_fn_outputs] == [
        pytest.approx([-0.02, -0.03, -0.04, -0.05])
    ] * 3
    assert output.result().metrics["loss:sum"] == pytest.approx(3 * 0.14)
    assert step.result().metrics == {"grad_norm": 1.5}
    sampler = model.save_weights_and_get_sampling_client().result()
    prompt, params = types.ModelInput.from_ints(IDS), types.SamplingParams(max_tokens=3)
    sampled = sampler.sample(prompt=prompt, num_samples=2, sampling_params=params).result()
    assert [each.tokens for each in sampled.sequences] == [[COUNTED, COUNTED + 1, COUNTED + 2]] * 2
    assert {each.stop_reason for each in sampled.sequences} == {"length"}
    path = model.save_state("here").result().path
    other = service.create_training_client_from_state_with_optimizer(path).result()
    assert other.get_info().lora_rank == 4
