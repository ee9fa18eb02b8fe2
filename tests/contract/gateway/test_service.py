"""The gateway on a real exchange, in this process: room, searches, trials, a silent Redis."""

import asyncio
import inspect
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from protocol import streams
from protocol.exchange import Exchange, JobQuery
from protocol.exchange import jobs as jobs_of_exchange
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
    """An exchange that does not answer some requests."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.silent_before = ""  # a request that is not carried out
        self.silent_after = ""  # a request that is carried out

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self.exchange, name)
        if not inspect.iscoroutinefunction(ask):
            return ask

        async def call(*arguments: Any, **named: Any) -> Any:
            if name == self.silent_before:
                raise TimeoutError
            answer = await ask(*arguments, **named)
            if name == self.silent_after:
                raise TimeoutError
            return answer

        return call


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


async def test_a_search_looks_at_all_jobs_some_at_a_time(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_of_exchange, "_SCAN_SIZE", 10)
    for number in range(25):
        team = "maths" if number in {0, 14, 24} else "none"
        record = a_job_record(
            f"job-{number:02}",
            created_at=float(number),
            request={"metadata": {"team": team}},
        )
        await exchange.submit(record)

    async def find(after: str | None, limit: int, team: str = "maths") -> list[str] | None:
        records = await exchange.find_jobs(after, limit, JobQuery(metadata={"team": team}))
        return None if records is None else [record.id for record in records]

    assert await find(None, 10) == ["job-24", "job-14", "job-00"]
    assert await find("job-14", 1) == ["job-00"]
    assert await find(None, 10, "nobody") == []
    assert await find("nobody", 10) is None
    assert (await exchange.count_states())[JobState.QUEUED] == 25


# ---------------------------------------------------------------------- trials of graders


def a_trial() -> Trial:
    return GraderToRun.model_validate({"grader": EXACT, "model_sample": "x"}).to_trial()


async def test_without_a_grader_a_trial_is_503_and_nothing_is_left(exchange: Exchange) -> None:
    await refusal(run_trial(exchange, a_trial(), pickup_timeout_s=0.05), code="no_grader")
    assert await exchange.take_trial(wait_s=0.05) is None


async def test_a_grader_that_ends_meanwhile_and_too_many_that_wait_are_503(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    timeouts = {"pickup_timeout_s": 1, "result_timeout_s": 0.05}
    trial_run = asyncio.create_task(run_trial(exchange, a_trial(), **timeouts))
    async with open_exchange("grader") as other:
        assert await other.take_trial(wait_s=60)
    await refusal(trial_run, code="no_grader")
    for _ in range(32):
        await exchange.ask_trial(a_trial(), limit=32)
    await refusal(run_trial(exchange, a_trial()), code="no_grader")


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
    look = AsyncMock(side_effect=TimeoutError)
    monkeypatch.setattr(silence, "trial_result", look, raising=False)
    await refusal(run_trial(silence, a_trial()))  # type: ignore[arg-type]
    assert all(call.args[1] <= 1 for call in look.await_args_list)


async def test_a_delete_that_gets_no_answer_leaves_the_folder_of_the_job(
    jobs: JobService, silence: FallsSilent
) -> None:
    await silence.submit(a_job_record("job"))
    await silence.request_state("job", Requested.CANCEL)
    checkpoints = jobs.service.deployment.job_dir("job") / "checkpoints"
    checkpoints.mkdir(parents=True)
    silence.silent_before = "forget_job"
    await refusal(jobs.delete("job"))
    assert checkpoints.exists()
    silence.silent_before = ""
    assert not (await jobs.delete("job")).with_name("job").exists()
