"""The SDK of Tinker, unmodified, against the gateway; a learner and a rollout stand in."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
from protocol.exchange import Exchange
from protocol.messages import ErrorKind, JobError, JobState, Requested
from protocol.operations import OperationLog
from tinker import types

from tests.contract.gateway.fake_learner import FakeLearner, a_client_learner
from tests.contract.gateway.fake_rollout import COUNTED, FakeRollout, a_rollout
from tests.contract.gateway.stack import JOBS, KEY, Client, Stack, a_model, assert_refused

pytestmark = pytest.mark.redis
API = "/api/v1"
IDS = [1, 2, 3, 4]
PROMPT = types.ModelInput.from_ints(IDS)
ADAM: Any = {"adam_params": {"learning_rate": 1e-3}}


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


def a_datum() -> types.Datum:
    inputs: Any = {
        "target_tokens": np.array([2, 3, 4, 5]),
        "weights": np.ones(4, np.float32),
    }
    return types.Datum(model_input=PROMPT, loss_fn_inputs=inputs)


def test_a_session_trains_samples_saves_and_loads(
    service: tinker.ServiceClient, rollout: FakeRollout, learner: FakeLearner
) -> None:
    model = service.create_lora_training_client("tiny", rank=4, seed=7).result()
    assert model.get_info().lora_rank == 4
    output = model.forward_backward([a_datum()] * 3, "cross_entropy").result()
    step = model.optim_step(types.AdamParams(learning_rate=1e-3, grad_clip_norm=1.0))
    for datum in output.loss_fn_outputs:
        assert datum["logprobs"].data == pytest.approx([-0.02, -0.03, -0.04, -0.05])
    assert output.metrics["loss:sum"] == pytest.approx(3 * 0.14)
    assert step.result().metrics == {"grad_norm": 1.5}
    sampler = model.save_weights_and_get_sampling_client().result()
    params = types.SamplingParams(max_tokens=3, seed=5, stop=["7 "])
    sampled = sampler.sample(PROMPT, 2, params, topk_sample_logprobs=2).result()
    for sequence in sampled.sequences:
        assert sequence.tokens == [COUNTED, COUNTED + 1, COUNTED + 2]
        assert sequence.stop_reason == "length"
    calls = [call for call in rollout.calls if call.token_ids == tuple(IDS)]
    assert [call.sampling.seed for call in calls] == [5, 6]
    saved = model.save_state("here").result().path
    other = service.create_training_client_from_state_with_optimizer(saved).result()
    assert other.get_info().lora_rank == 4
    assert [operation.do for operation in learner.done[str(model.model_id)]] == [
        "create",
        "forward_backward",
        "optim_step",
        "save_sampler",
        "save_state",
    ]


def test_the_rest_client_lists_what_there_is_and_deletes_it(
    stack: Stack, service: tinker.ServiceClient
) -> None:
    model = service.create_lora_training_client("tiny", user_metadata={"of": "test"}).result()
    path = model.save_weights_for_sampler("mine").result().path
    client = tinker.RestClient(base_url=stack.url, api_key=f"tml-{KEY}")
    (run, *_) = client.list_training_runs().result().training_runs
    assert run.training_run_id == model.model_id
    assert run.base_model == "tiny"
    assert run.lora_rank == 32
    assert run.user_metadata is not None
    assert run.user_metadata["of"] == "test"
    assert run.last_sampler_checkpoint is not None
    assert run.last_sampler_checkpoint.tinker_path == path
    mine = client.list_user_checkpoints().result().checkpoints
    assert path in {checkpoint.tinker_path for checkpoint in mine}
    assert client.get_weights_info_by_tinker_path(path).result().lora_rank == 32
    session = run.user_metadata["session"]
    assert session in client.list_sessions().result().sessions
    assert client.get_session(session).result().training_run_ids == [model.model_id]
    killed_at = stack.job_folder(run.training_run_id) / "samplers/.deleted-mine"
    a_model(killed_at)
    client.delete_checkpoint_from_tinker_path(path).result()
    assert not killed_at.exists()
    assert not client.list_checkpoints(run.training_run_id).result().checkpoints


# ---------------------------------------------------------------------- without the SDK


def create(http: Client, session: str) -> str:
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny"}
    reply = http.post(f"{API}/create_model", json=body)
    assert reply.is_success, reply.text
    return reply.json()["model_id"]


def operation_log(stack: Stack, job_id: str) -> OperationLog:
    return OperationLog(stack.job_folder(job_id))


def step(http: Client, job_id: str) -> httpx.Response:
    return http.post(f"{API}/optim_step", json={"model_id": job_id, "seq_id": 1, **ADAM})


def test_a_retry_finds_its_model_and_its_operation(stack: Stack, http: Client) -> None:
    job_id = create(http, "retried")
    assert create(http, "retried") == job_id
    first = step(http, job_id).json()
    assert step(http, job_id).json() == first
    other = http.post(f"{API}/save_weights", json={"model_id": job_id, "seq_id": 1, "path": "a"})
    assert_refused(other, 400, "seq_id")
    assert operation_log(stack, job_id).last == 1


SILENT = JobError(message="silent for 60 s", kind=ErrorKind.SILENT_CLIENT)


def pause(stack: Stack, job_id: str, why: JobError | None) -> None:
    async def work(exchange: Exchange) -> None:
        attempt = await exchange.begin_attempt(job_id)
        await exchange.update_job(job_id, attempt, state=JobState.RUNNING)
        await exchange.request_state(job_id, Requested.PAUSE)
        assert await exchange.pause_job(job_id, attempt, why)

    stack.exchange(work)


def test_a_client_that_speaks_again_resumes_its_job_but_not_one_that_a_person_paused(
    stack: Stack, http: Client, learner: FakeLearner
) -> None:
    def job_status(job_id: str) -> str:
        job = http.read(f"{JOBS}/{job_id}")
        assert job["training_file"] == "client"
        assert job["weir"]["steps"] is None
        return job["status"]

    learner.works = False
    try:
        silent, paused, closed = (create(http, session) for session in "abc")
        pause(stack, silent, SILENT)
        pause(stack, paused, None)
        pause(stack, closed, SILENT)
        step(http, silent)
        future = step(http, paused).json()
        assert http.post(f"{API}/sessions/c/finish", json={}).is_success
        assert [job_status(job_id) for job_id in (silent, paused, closed)] == [
            "queued",
            "paused",
            "queued",
        ]
        assert wait_for_answer(http, future, 408)["queue_state"] == "paused_capacity"
        http.post(f"{JOBS}/{paused}/cancel")
        assert wait_for_answer(http, future, 200)["category"] == "user"
        wait_for_answer(http, {"request_id": f"{paused}:9:optim_step"}, 410)
    finally:
        learner.works = True


def wait_for_answer(http: Client, future: Any, status: int) -> Any:
    """The answer with this status; a wait that ends without one is begun again, for a minute."""
    latest = time.monotonic() + 60
    reply = http.post(f"{API}/retrieve_future", json=future, timeout=30)
    while reply.status_code == 408 != status and time.monotonic() < latest:
        reply = http.post(f"{API}/retrieve_future", json=future, timeout=30)
    assert reply.status_code == status, reply.text
    return reply.json()


@pytest.mark.usefixtures("learner")
def test_a_damaged_file_is_named_if_it_cannot_be_made_again(stack: Stack, http: Client) -> None:
    job_id = create(http, "damaged")
    future = step(http, job_id).json()
    answer = wait_for_answer(http, future, 200)
    log = operation_log(stack, job_id)
    path = log.folder / "000000001.result"
    operation_path = path.with_suffix(".operation")
    result = log.result(1)
    assert result is not None
    name = f"jobs/{job_id}/operations/{path.name}"
    path.write_bytes(b"")
    assert wait_for_answer(http, future, 408)["type"] == "try_again"
    log.finish(result)
    assert wait_for_answer(http, future, 200) == answer
    path.write_bytes(path.read_bytes()[:-1])
    operation = operation_path.rename(log.folder / "away")
    assert wait_for_answer(http, future, 200)["error"].startswith(name)
    operation.rename(operation_path)
    pause(stack, job_id, None)
    http.post(f"{JOBS}/{job_id}/cancel")
    assert wait_for_answer(http, future, 200)["error"].startswith(f"{name} was damaged")
    path.write_bytes(b"")  # more often than a disk damages one file
    assert wait_for_answer(http, future, 500)["detail"].startswith(name)


@pytest.mark.usefixtures("learner")
def test_an_operation_in_the_place_of_a_damaged_one_is_named_if_that_was_done(
    stack: Stack, http: Client
) -> None:
    job_id = create(http, "damaged-operation")
    wait_for_answer(http, step(http, job_id).json(), 200)
    path = operation_log(stack, job_id).folder / "000000001.operation"
    path.write_bytes(b"")
    reply = step(http, job_id)
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "damaged_file"
    assert str(path.relative_to(stack.data_dir)) in reply.json()["detail"]


def test_keys_have_the_prefix_of_the_sdk_and_their_roles(stack: Stack) -> None:
    with stack.http(None) as http:
        assert http.read(f"{API}/healthz") == {"status": "ok"}
        for headers in ({"X-API-Key": f"tml-{KEY}"}, {"Authorization": f"Bearer {KEY}"}):
            assert http.get(f"{API}/sessions", headers=headers).is_success
        reply = http.post(f"{API}/copy_weights", json={}, headers={"X-API-Key": KEY})
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "not_supported"


def test_older_sdks_are_told_to_speak_protobuf(http: Client) -> None:
    config = http.post(f"{API}/client/config", json={}).json()
    assert config["proto_write_fwdbwd"]
    assert config["fwd_via_fwdbwd"]
