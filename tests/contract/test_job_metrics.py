"""A job's metrics come from its record and its events, and so outlive its learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from protocol.exchange import Exchange
from protocol.exchange.jobs import AnyRecord
from protocol.messages import JobState, Requested
from protocol.streams import REQUESTS

from services.chassis.deployment import Deployment
from services.gateway.core.watch.fleet import MAX_EXPORTED_JOBS, Fleet
from tests.builders import a_job_record, a_request
from tests.contract.attempts import Learner, answering
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
EVALUATION = {"evaluation": {"samples": 2, "every": 2}}
Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def a_fleet(exchange: Exchange, data_dir: Path) -> Fleet:
    variables = {"WEIR_REDIS_URL": "redis://unused", "WEIR_DATA_DIR": str(data_dir)}
    return Fleet(exchange, Deployment.from_environment(variables | {"WEIR_PORT": "0"}))


async def exported(exchange: Exchange, data_dir: Path) -> Series:
    """What a gateway exports that starts now."""
    fleet, registry = a_fleet(exchange, data_dir), CollectorRegistry()
    registry.register(fleet)
    await fleet.measure()
    await fleet.find_checkpoints()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def of_job(series: Series, metric: str, **labels: str) -> float | None:
    wanted = {"job": "job", "recipe": "small", **labels}
    return series.get((metric, frozenset(wanted.items())))


async def test_a_job_is_told_of_after_its_learner_has_gone_its_last_evaluation_too(
    learner: Learner, server: Server
) -> None:
    await learner.submit(tables=EVALUATION, steps=4)
    async with answering(server.url):
        await learner.attempt()
    record = await learner.record()
    assert record.state is JobState.SUCCEEDED, record.error

    series = await exported(learner.exchange, learner.data_dir)

    assert of_job(series, "weir_job_step") == of_job(series, "weir_job_steps") == 4
    states = {state: of_job(series, "weir_job_state", state=state) for state in JobState}
    assert states == {state: float(state is JobState.SUCCEEDED) for state in JobState}
    assert of_job(series, "weir_job_evaluation", name="step") == 4
    assert of_job(series, "weir_job_evaluation", name="accuracy") == record.result["accuracy_after"]
    assert of_job(series, "weir_job_evaluation", name="per_task") is None
    assert of_job(series, "weir_job_metric", name="step") == 4
    assert of_job(series, "weir_job_tokens_total") == record.result["trained_tokens"]
    assert of_job(series, "weir_job_checkpoint_step") == 4
    for purpose in ("train", "eval"):
        ledger = {
            state: of_job(series, "weir_job_groups", purpose=purpose, state=state) or 0
            for state in ("asked", "trained", "dropped", "under_way")
        }
        assert ledger["asked"] == ledger["trained"] + ledger["dropped"] > 0
        assert ledger["under_way"] == 0
    for phase in ("wait_for_groups", "train", "publish", "evaluate"):
        assert (of_job(series, "weir_job_phase_seconds_total", phase=phase) or 0) > 0, phase


async def test_old_jobs_that_have_ended_go_and_those_that_have_begun_stay(
    exchange: Exchange, tmp_path: Path
) -> None:
    await exchange.submit(a_job_record("waiting", created_at=0.0, state=JobState.PAUSED, attempt=1))
    for number in range(1, MAX_EXPORTED_JOBS + 3):
        ended = a_job_record(f"job-{number}", created_at=number, state=JobState.CANCELLED)
        await exchange.submit(ended)
    series = await exported(exchange, tmp_path)
    told = {dict(labels)["job"] for name, labels in series if name == "weir_job_state"}
    assert told == {"waiting", *(f"job-{number}" for number in range(3, MAX_EXPORTED_JOBS + 3))}


async def test_a_record_is_read_again_when_it_has_changed_and_only_then(
    exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, records = list[str](), exchange.records

    async def noted(job_ids: Sequence[str]) -> list[AnyRecord]:
        read.extend(job_ids)
        return await records(job_ids)

    monkeypatch.setattr(exchange, "records", noted)
    fleet = a_fleet(exchange, tmp_path)

    async def look() -> tuple[list[str], dict[str, tuple[int, JobState, str]]]:
        read.clear()
        await fleet.measure()
        jobs = [history.record for history in fleet.histories.values()]
        shown = {job.id: (job.step, job.state, job.recipe.name) for job in jobs}
        return sorted(read), shown

    await exchange.submit(a_job_record("ended", state=JobState.FAILED, attempt=1))
    await exchange.submit(a_job_record("running", created_at=2000.0))
    queued, running = (0, JobState.QUEUED, "small"), (3, JobState.RUNNING, "small")
    failed = (0, JobState.FAILED, "small")
    assert await look() == (["ended", "running"], {"ended": failed, "running": queued})
    assert await look() == ([], {"ended": failed, "running": queued})
    attempt = await exchange.begin_attempt("running")
    await exchange.update_job("running", attempt, state="running", step=3)
    assert await look() == (["running"], {"ended": failed, "running": running})
    await exchange.request_state("running", Requested.CANCEL)
    assert (await look())[0] == ["running"]


async def test_starts_are_counted_for_every_service_and_begin_at_zero(
    exchange: Exchange, tmp_path: Path
) -> None:
    for service in ("rollout", "rollout", "grader"):
        await exchange.count_start(service)
    series = await exported(exchange, tmp_path)
    counted = {
        dict(labels)["service"]: value
        for (name, labels), value in series.items()
        if name == "weir_service_starts_total"
    }
    assert counted == {"gateway": 0, "learner": 0, "rollout": 2, "environment": 0, "grader": 1}


async def test_the_oldest_entry_of_a_stream_has_an_age(exchange: Exchange, server: Server) -> None:
    await exchange.submit(a_job_record())
    await exchange.begin_attempt("job")
    assert (await exchange.backlog(REQUESTS, "job")).oldest_s == 0
    with server.client() as client:
        seconds, _ = client.time()
        client.xadd(REQUESTS.key("job"), {"key": "train:0"}, id=f"{(seconds - 100) * 1000}-0")
    await exchange.ask(a_request(number=1))
    assert 99 < (await exchange.backlog(REQUESTS, "job")).oldest_s < 200
