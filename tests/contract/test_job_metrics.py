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
from redis import Redis

from services.gateway.core.watch.fleet import MAX_EXPORTED_JOBS, Fleet
from tests.builders import a_job_record, a_request
from tests.contract.attempts import Learner
from tests.contract.exchange_steps import a_deployment, begin, record_of

EVALUATION = {"evaluation": {"samples": 2, "every": 2}}
Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def exported(exchange: Exchange, data_dir: Path) -> Series:
    """What a gateway exports that starts now."""
    fleet = Fleet(exchange, a_deployment(data_dir))
    registry = CollectorRegistry()
    registry.register(fleet)
    await fleet.measure()
    await fleet.find_checkpoints()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


async def test_a_job_is_told_of_after_its_learner_has_gone_its_last_evaluation_too(
    learner: Learner,
) -> None:
    await learner.submit(tables=EVALUATION, steps=4)
    record = await learner.attempt()
    assert record.state is JobState.SUCCEEDED, record.error
    series = await exported(learner.exchange, learner.data_dir)

    def metric(suffix: str, **labels: str) -> float:
        labels = {"job": "job", "recipe": "small", **labels}
        return series.get((f"weir_job_{suffix}", frozenset(labels.items())), 0.0)

    assert metric("step") == metric("steps") == metric("checkpoint_step") == 4
    states = {state for state in JobState if metric("state", state=state)}
    assert states == {JobState.SUCCEEDED}
    requests = {request for request in Requested if metric("requested", request=request)}
    assert requests == {Requested.RUN}
    assert metric("evaluation", name="step") == metric("metric", name="step") == 4
    assert metric("evaluation", name="accuracy") == record.result["accuracy_after"]
    assert metric("tokens_total") == record.result["trained_tokens"]
    for purpose in ("train", "eval"):
        requested, trained, dropped, under_way = (
            metric("groups", purpose=purpose, state=state)
            for state in ("asked", "trained", "dropped", "under_way")
        )
        assert requested == trained + dropped > 0
        assert under_way == 0
    for phase in ("wait_for_groups", "train", "publish", "evaluate"):
        assert metric("phase_seconds_total", phase=phase) > 0, phase


async def test_old_jobs_that_have_ended_go_and_those_that_have_begun_stay(
    exchange: Exchange, tmp_path: Path
) -> None:
    await exchange.submit(
        a_job_record(
            "waiting",
            created_at=0.0,
            state=JobState.PAUSED,
            attempt=1,
        )
    )
    for number in range(1, MAX_EXPORTED_JOBS + 3):
        ended = a_job_record(f"job-{number}", created_at=number, state=JobState.CANCELLED)
        await exchange.submit(ended)
    series = await exported(exchange, tmp_path)
    names = {dict(labels)["job"] for name, labels in series if name == "weir_job_state"}
    assert names == {"waiting", *(f"job-{number}" for number in range(3, MAX_EXPORTED_JOBS + 3))}


async def test_a_record_is_read_again_when_it_has_changed_and_only_then(
    exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    records = exchange.records
    fleet = Fleet(exchange, a_deployment(tmp_path))

    async def note(job_ids: Sequence[str]) -> list[AnyRecord]:
        read.extend(job_ids)
        return await records(job_ids)

    async def look() -> list[str]:
        read.clear()
        await fleet.measure()
        return sorted(read)

    monkeypatch.setattr(exchange, "records", note)
    await exchange.submit(a_job_record("ended", state=JobState.FAILED, attempt=1))
    attempt = await begin(exchange)
    assert await look() == ["ended", "job"]
    assert await look() == []
    await exchange.update_job("job", attempt, state="running", step=3)
    assert await look() == ["job"]
    assert fleet.histories["job"].record == await record_of(exchange)
    await exchange.request_state("job", Requested.CANCEL)
    assert await look() == ["job"]


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


async def test_the_oldest_entry_of_a_stream_has_an_age(exchange: Exchange, client: Redis) -> None:
    await begin(exchange)
    assert (await exchange.backlog(REQUESTS, "job")).oldest_s == 0
    seconds, _ = client.time()
    client.xadd(REQUESTS.key("job"), {"key": "train:0"}, id=f"{(seconds - 100) * 1000}-0")
    await exchange.ask(a_request(number=1))
    assert 99 < (await exchange.backlog(REQUESTS, "job")).oldest_s < 200
