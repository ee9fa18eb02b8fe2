"""What is asked of jobs while Redis falls silent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from protocol import streams
from protocol.exchange import Exchange
from protocol.messages import JobRecord, Requested

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.gateway.errors import PATIENCE_S, Problem
from services.gateway.files.store import FileStore
from services.gateway.jobs.service import JobService, Repeat
from services.gateway.openai.graders import GraderToRun, run_trial
from services.gateway.openai.submission import JobRequest
from tests.builders import a_job_record
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
REQUEST = JobRequest(model="tiny", training_file="file-1")


class Jobs(JobService):
    """It has drawn up the record already, from files and models that are not there."""

    async def _draw_up(self, request: JobRequest, job_id: str) -> JobRecord:
        return a_job_record(job_id, request=request.as_sent())


class FallsSilent:
    """An exchange that no longer answers, as often as a test wants.

    What is asked of it meanwhile does not happen, but for what comes just before the silence.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.is_silent = False
        self.silent_after = ""  # a request that is carried out, and whose answer is lost

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self.exchange, name)

        async def asked(*given: Any, **named: Any) -> Any:
            if not self.is_silent:
                answer = await ask(*given, **named)
                if name != self.silent_after:
                    return answer
                self.is_silent = True
            raise TimeoutError

        return asked


@pytest.fixture
def silence(exchange: Exchange) -> FallsSilent:
    return FallsSilent(exchange)


@pytest.fixture
def jobs(silence: FallsSilent, tmp_path: Path) -> JobService:
    environment = {"WEIR_REDIS_URL": "unused", "WEIR_PORT": "0", "WEIR_DATA_DIR": str(tmp_path)}
    service = Service("gateway", Deployment.from_environment(environment), silence)  # type: ignore[arg-type]
    return Jobs(service, FileStore(service.deployment.files_dir, 1000))


async def refusal(work: Any) -> Problem:
    """The 503 that something comes to."""
    with pytest.raises(Problem) as refused:
        await work
    assert (refused.value.status_code, refused.value.code) == (503, "exchange_unavailable")
    assert refused.value.headers == {"Retry-After": "2"}
    return refused.value


async def test_who_gets_no_answer_to_a_submission_is_told_that_the_job_may_be_queued(
    jobs: JobService, silence: FallsSilent
) -> None:
    key = Repeat("key", "caller")
    silence.silent_after = "submit"
    told = await refusal(jobs.submit(REQUEST, key))
    assert key.job_id in told.detail
    assert "Idempotency-Key" in told.detail
    silence.is_silent, silence.silent_after = False, ""
    assert (await jobs.submit(REQUEST, key)).id == key.job_id
    assert await jobs.exchange.job_ids() == [key.job_id]


async def test_a_request_that_waits_too_long_for_others_is_a_503(
    jobs: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.jobs.service._LONGEST_TURN_S", -PATIENCE_S)
    await jobs._turn.acquire()
    await refusal(jobs.delete("nobody"))
    monkeypatch.undo()
    waiting = asyncio.create_task(jobs.delete("nobody"))
    await asyncio.sleep(0)
    jobs._turn.release()
    with pytest.raises(Problem) as refused:
        await waiting
    assert refused.value.status_code == 404


async def test_a_trial_of_a_grader_looks_often_and_is_no_long_wait_for_a_silent_redis(
    silence: FallsSilent, monkeypatch: pytest.MonkeyPatch
) -> None:
    grader = {"type": "text_similarity", "input": "{{sample.output_text}}", "reference": "x"}
    body = {"grader": {**grader, "evaluation_metric": "bleu"}, "model_sample": "x"}
    waits: list[float] = []

    async def look(_: str, wait_s: float) -> None:
        waits.append(wait_s)
        raise TimeoutError

    monkeypatch.setattr(silence, "trial_result", look, raising=False)
    trial = GraderToRun.model_validate(body).trial()
    await refusal(run_trial(silence, trial))  # type: ignore[arg-type]
    assert max(waits) <= 1


@pytest.mark.parametrize("damage", [{}, {"recipe": '{"new_table": {}}'}])
async def test_a_delete_that_gets_no_answer_leaves_the_folder_of_the_job(
    jobs: JobService,
    silence: FallsSilent,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    damage: dict[Any, Any],
) -> None:
    await silence.submit(a_job_record("job"))
    await silence.request_state("job", Requested.CANCEL)
    with server.client() as client:
        for name, value in damage.items():
            client.hset(streams.job_key("job"), name, value)
    kept = jobs.service.deployment.job_dir("job") / "checkpoints"
    kept.mkdir(parents=True)

    async def no_answer(job_id: str) -> bool:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(silence, "forget_job", no_answer, raising=False)
        await refusal(jobs.delete("job"))
    assert kept.exists()
    assert not (await jobs.delete("job")).with_name("job").exists()
