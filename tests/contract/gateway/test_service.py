"""The gateway on a real exchange, in this process: room, searches, trials, a silent Redis."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from protocol import STORED_VERSION, streams
from protocol.exchange import Exchange, JobQuery
from protocol.exchange.jobs import JOB_INDEX
from protocol.messages import JobRecord, JobState, Requested, Trial, TrialResult

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.gateway.api.graders import GraderToRun
from services.gateway.api.openai.submission import JobRequest
from services.gateway.core.files.store import FileStore
from services.gateway.core.jobs.service import JobService, Repeat
from services.gateway.core.jobs.submission import Submission
from services.gateway.core.jobs.trials import run_trial
from services.gateway.core.models.folders import move_aside
from services.gateway.core.watch.fleet import tidy_forever
from services.gateway.errors import Problem
from tests.builders import a_job_record, an_event
from tests.contract.conftest import OpenExchange
from tests.contract.gateway.stack import EXACT
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
SUBMISSION = JobRequest(model="tiny", training_file="file-1").to_submission("tiny", {})


class Jobs(JobService):
    """It has drawn up the record already, from files and models that are not there."""

    async def _draw_up(self, submission: Submission, job_id: str) -> JobRecord:
        return a_job_record(job_id, request=submission.request)


class FallsSilent:
    """An exchange that no longer answers, as often as a test wants.

    Requests during the silence do not happen; the one just before it does.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.is_silent = False
        self.silent_after = ""  # a request that is carried out, and whose answer is lost

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self.exchange, name)
        if not inspect.iscoroutinefunction(ask):
            return ask

        async def call_once(*arguments: Any, **named: Any) -> Any:
            if not self.is_silent:
                answer = await ask(*arguments, **named)
                if name != self.silent_after:
                    return answer
                self.is_silent = True
            raise TimeoutError

        return call_once


@pytest.fixture
def silence(exchange: Exchange) -> FallsSilent:
    return FallsSilent(exchange)


@pytest.fixture
def jobs(silence: FallsSilent, tmp_path: Path) -> JobService:
    environment = {"WEIR_REDIS_URL": "unused", "WEIR_PORT": "0", "WEIR_DATA_DIR": str(tmp_path)}
    service = Service("gateway", Deployment.from_environment(environment), silence)  # type: ignore[arg-type]
    return Jobs(service, FileStore(service.deployment.files_dir, 1000))


async def refusal(work: Any, status: int = 503, code: str = "exchange_unavailable") -> Problem:
    with pytest.raises(Problem) as refused:
        await work
    assert refused.value.status_code == status
    assert refused.value.code == code
    assert (refused.value.headers == {"Retry-After": "2"}) is (status == 503)
    return refused.value


# ---------------------------------------------------------------------- room and searches


async def test_the_oldest_jobs_that_have_ended_are_forgotten_and_no_other(
    server: Server, exchange: Exchange
) -> None:
    for number in range(6):
        job_id = f"job-{number}"
        await exchange.submit(a_job_record(job_id, created_at=float(number)))
        for count in range(50):
            await exchange.record_event(an_event(f"{count}", job_id=job_id, message="m" * 1000))
        if number != 1:
            await exchange.request_state(job_id, Requested.CANCEL)
    assert await exchange.forget_oldest(10**9) == []
    with server.client() as client:
        size: Any = client.memory_usage(streams.EVENTS.key("job-5"))
        assert await exchange.forget_oldest(int(3.5 * size)) == ["job-0", "job-2"]
        assert client.keys("*job-0*") == []
    assert await exchange.forget_oldest(0) == ["job-3", "job-4", "job-5"]
    assert await exchange.job_ids() == ["job-1"]


async def test_what_a_gateway_had_no_time_to_remove_goes_later(jobs: JobService) -> None:
    job_dir = jobs.service.deployment.job_dir("job")
    (job_dir / "samples").mkdir(parents=True)
    move_aside(job_dir)
    tidying = asyncio.create_task(tidy_forever(jobs.service, jobs))
    async with asyncio.timeout(60):
        while list(job_dir.parent.iterdir()):
            await asyncio.sleep(0.01)
    jobs.service.stop()
    await tidying


async def test_a_search_looks_at_all_jobs_a_thousand_at_a_time(
    server: Server, exchange: Exchange
) -> None:
    record = {"version": STORED_VERSION, **a_job_record().model_dump(mode="json")}
    fields: dict[Any, Any] = {name: json.dumps(value) for name, value in record.items()}
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for number in range(2_500):
            job_id = f"job-{number:04}"
            values = fields | {"id": json.dumps(job_id)}
            if number in {0, 1_400, 2_499}:
                values["request"] = json.dumps({"metadata": {"team": "maths"}})
            pipe.hset(streams.job_key(job_id), mapping=values)
            pipe.zadd(JOB_INDEX, {job_id: number})
        pipe.execute()

    async def found(after: str | None, limit: int, team: str = "maths") -> list[str] | None:
        records = await exchange.find_jobs(after, limit, JobQuery(metadata={"team": team}))
        return None if records is None else [record.id for record in records]

    assert await found(None, 10) == ["job-2499", "job-1400", "job-0000"]
    assert await found("job-1400", 1) == ["job-0000"]
    assert await found(None, 10, "nobody") == []
    assert await found("nobody", 10) is None
    assert (await exchange.count_states())[JobState.QUEUED] == 2_500


# ---------------------------------------------------------------------- trials of graders


def a_trial() -> Trial:
    return GraderToRun.model_validate({"grader": EXACT, "model_sample": "x"}).to_trial()


async def test_without_a_grader_a_trial_is_503_and_nothing_is_left(exchange: Exchange) -> None:
    await refusal(run_trial(exchange, a_trial(), pickup_timeout_s=0.05), code="no_grader")
    assert await exchange.take_trial(wait_s=0.05) is None


async def test_a_grader_that_ends_meanwhile_and_too_many_that_wait_are_503(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    trial = a_trial()
    trial_run = asyncio.create_task(
        run_trial(exchange, trial, pickup_timeout_s=1, result_timeout_s=0.05)
    )
    async with open_exchange("grader") as other:
        assert await other.take_trial(wait_s=60) == trial
    await refusal(trial_run, code="no_grader")
    for _ in range(32):
        await exchange.ask_trial(a_trial(), limit=32)
    await refusal(run_trial(exchange, trial), code="no_grader")


async def test_what_the_grader_lacks_is_the_callers_to_mend(exchange: Exchange) -> None:
    trial = a_trial()
    await exchange.answer_trial(trial, TrialResult(missing="no judge"))
    problem = await refusal(run_trial(exchange, trial), 400, "invalid_grader")
    assert problem.param == "grader"


# ---------------------------------------------------------------------- a silent Redis


async def test_who_gets_no_answer_to_a_submission_is_told_that_the_job_may_be_queued(
    jobs: JobService, silence: FallsSilent
) -> None:
    key = Repeat("key", "caller")
    silence.silent_after = "submit"
    assert key.job_id in (await refusal(jobs.submit(SUBMISSION, key))).detail
    silence.is_silent = False
    silence.silent_after = ""
    assert (await jobs.submit(SUBMISSION, key)).id == key.job_id
    assert await jobs.exchange.job_ids() == [key.job_id]


async def test_a_request_that_waits_too_long_for_others_is_a_503(
    jobs: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.core.jobs.service.TURN_TIMEOUT_S", 0)
    await jobs._turn.acquire()
    await refusal(jobs.delete("nobody"), code="busy")
    monkeypatch.undo()
    waiting = asyncio.create_task(jobs.delete("nobody"))
    await asyncio.sleep(0)
    jobs._turn.release()
    await refusal(waiting, 404, "not_found")


async def test_a_trial_of_a_grader_looks_often_and_is_no_long_wait_for_a_silent_redis(
    silence: FallsSilent, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def look(_: str, wait_s: float) -> None:
        waits.append(wait_s)
        raise TimeoutError

    monkeypatch.setattr(silence, "trial_result", look, raising=False)
    await refusal(run_trial(silence, a_trial()))  # type: ignore[arg-type]
    assert max(waits) <= 1


async def test_a_delete_that_gets_no_answer_leaves_the_folder_of_the_job(
    jobs: JobService, silence: FallsSilent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await silence.submit(a_job_record("job"))
    await silence.request_state("job", Requested.CANCEL)
    checkpoints = jobs.service.deployment.job_dir("job") / "checkpoints"
    checkpoints.mkdir(parents=True)

    async def no_answer(job_id: str) -> bool:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(silence, "forget_job", no_answer, raising=False)
        await refusal(jobs.delete("job"))
    assert checkpoints.exists()
    assert not (await jobs.delete("job")).with_name("job").exists()
