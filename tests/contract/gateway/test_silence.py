"""Redis falls silent while the desk waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from protocol.exchange import connect
from protocol.messages import JobRecord
from protocol.recipe import Recipe
from protocol.streams import TRIALS

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.gateway import errors
from services.gateway.errors import Problem
from services.gateway.files.shelf import FileShelf
from services.gateway.jobs import desk as desk_module
from services.gateway.jobs.desk import JobDesk, Repeat
from services.gateway.openai import trials
from services.gateway.openai.submission import JobRequest
from services.gateway.openai.trials import GraderToRun, run_trial
from tests.builders import a_job_record
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
REQUEST = JobRequest(model="tiny", training_file="file-1")


class Desk(JobDesk):
    """It has drawn up the record already, from files and models that are not there."""

    async def _draw_up(self, request: JobRequest, job_id: str) -> JobRecord:
        return a_job_record(job_id, request=request.as_sent())

    async def _check_files(self, record: JobRecord) -> None:
        pass


@pytest.fixture
async def desk(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[JobDesk]:
    for module in (errors, desk_module):
        monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    environment = {
        **{"WEIR_REDIS_URL": own_server.url, "WEIR_PORT": "0"},
        **{"WEIR_DATA_DIR": str(tmp_path / "data")},
    }
    async with connect(own_server.url, me="gateway") as exchange:
        service = Service("gateway", Deployment.from_environment(environment), exchange)
        try:
            yield Desk(service, FileShelf(service.deployment.files_dir, 1000))
        finally:
            own_server.resume()


async def test_who_gets_no_answer_to_a_submission_is_told_that_the_job_may_be_queued(
    desk: JobDesk, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, key = desk.exchange.submit, Repeat("key", "caller")

    async def submit_and_lose_the_answer(record: JobRecord) -> bool:
        await submit(record)
        own_server.suspend()
        return await submit(record)

    with monkeypatch.context() as patch:
        patch.setattr(desk.exchange, "submit", submit_and_lose_the_answer)
        with pytest.raises(Problem, match="same Idempotency-Key") as refused:
            await desk.submit(REQUEST, key)
    assert refused.value.status_code == 503
    assert refused.value.code == "exchange_unavailable"
    assert refused.value.headers == {"Retry-After": "2"}
    assert f"whether job {key.job_id} is queued" in refused.value.detail
    own_server.resume()
    assert (await desk.submit(REQUEST, key)).id == key.job_id
    assert await desk.exchange.job_ids() == [key.job_id]


async def test_a_submission_whose_answer_is_lost_is_answered_if_redis_is_back_to_tell(
    desk: JobDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = desk.exchange.submit

    async def submit_and_lose_the_answer(record: JobRecord) -> bool:
        await submit(record)
        raise TimeoutError

    monkeypatch.setattr(desk.exchange, "submit", submit_and_lose_the_answer)
    record = await desk.submit(REQUEST, Repeat("key", "caller"))
    assert await desk.exchange.job_ids() == [record.id]


async def test_a_submission_that_was_never_sent_leaves_no_copies_and_is_no_perhaps(
    desk: JobDesk, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Repeat("key", "caller")
    job_dir = desk.service.deployment.job_dir(key.job_id)

    def copy_while_redis_falls_silent(recipe: Recipe, *_: object) -> Recipe:
        (job_dir / "base").mkdir(parents=True)
        own_server.suspend()
        return recipe

    await desk._turn.acquire()
    monkeypatch.setattr(desk_module, "with_own_models", copy_while_redis_falls_silent)
    with pytest.raises(Problem, match="the request may be repeated") as refused:
        await desk.submit(REQUEST, key)
    assert refused.value.code == "exchange_unavailable"
    assert not job_dir.exists()


@pytest.mark.parametrize("silent", [True, False])
async def test_nobody_queues_behind_others_for_a_silent_redis_but_for_slow_files(
    desk: JobDesk, own_server: Server, silent: bool
) -> None:
    await desk._turn.acquire()
    if silent:
        own_server.suspend()
    waiting = asyncio.create_task(desk.delete("nobody"))
    done, _ = await asyncio.wait([waiting], timeout=None if silent else 1.0)
    assert bool(done) is silent
    desk._turn.release()
    with pytest.raises(Problem) as refused:
        await waiting
    assert refused.value.status_code == (503 if silent else 404)


@pytest.mark.parametrize("taken", [False, True])
async def test_a_trial_of_a_grader_is_no_longer_wait_for_a_silent_redis(
    desk: JobDesk, own_server: Server, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    monkeypatch.setattr(trials, "_LOOK_S", 0.2)
    grader = {"type": "text_similarity", "input": "{{sample.output_text}}", "reference": "x"}
    body = {"grader": {**grader, "evaluation_metric": "bleu"}, "model_sample": "x"}
    trial = GraderToRun.model_validate(body).trial()
    waiting = asyncio.create_task(run_trial(desk.exchange, trial))
    async with connect(own_server.url, me="grader") as other:
        while await other.reader.llen(TRIALS) == 0:
            await asyncio.sleep(0.01)
        if taken:
            assert await other.take_trial(wait_s=5) == trial
        own_server.suspend()
    with pytest.raises(Problem) as refused:
        async with asyncio.timeout(5):
            await waiting
    assert refused.value.code == "exchange_unavailable"


async def test_tries_of_one_submission_do_not_add_up_what_each_waits_for_a_silent_redis(
    desk: JobDesk, own_server: Server
) -> None:
    own_server.suspend()
    loop = asyncio.get_running_loop()
    began = loop.time()
    tries = (desk.submit(REQUEST, Repeat("key", "caller")) for _ in range(20))
    refused = await asyncio.gather(*tries, return_exceptions=True)
    assert [problem.status_code for problem in refused if isinstance(problem, Problem)] == [
        503
    ] * 20
    assert loop.time() - began < 3  # one after the other they take 6 s
