"""Each service, as its own user of the server, can do what it does and not what others do.

The tests of calls, at `rollout_line.py`, run as the users of a rollout and of a gateway, too.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import redis
from protocol import streams
from protocol.exchange import Exchange
from protocol.exchange.jobs import JobQuery
from protocol.exchange.server import server_problems
from protocol.messages import FailureKind, Requested, Trial, TrialResult
from protocol.recipe import Purpose
from protocol.streams import (
    EPISODES,
    EVAL_REQUESTS,
    EVENTS,
    FAILED,
    GRADED,
    JOBS,
    POLICY,
    REQUESTS,
    ROLLOUTS,
    WORK_STREAMS,
    Stream,
)

from services.learner.attempt import Attempt
from services.learner.supply.intake import Intake
from tests.builders import (
    a_graded_group,
    a_group,
    a_job_record,
    a_policy,
    a_recipe,
    a_request,
    a_status,
    a_task,
    an_event,
)
from tests.contract.conftest import Services
from tests.contract.exchange_steps import claim, claim_one, reclaim, taken_up
from tests.contract.valkey_server import Server

WORKERS = ("rollout", "grader", "environment")
WRITTEN_BY_OTHERS: dict[str, set[Stream]] = {
    "rollout": {GRADED, EPISODES, POLICY, JOBS},
    "environment": {REQUESTS, EVAL_REQUESTS, GRADED, POLICY, JOBS},
    "grader": {REQUESTS, EVAL_REQUESTS, FAILED, POLICY, JOBS},
    "gateway": {*WORK_STREAMS, POLICY},
}
REFUSED_TO_WORKERS = (
    ("HSET", streams.job_key("one"), "step", "9"),
    ("DEL", streams.job_key("one")),
    ("SET", streams.ACTIVE, "{}"),
    ("HSET", streams.LEARNER, "holder", "me"),
    ("SREM", streams.pending_key("one"), "train:0"),
    ("ZADD", "weir:job_index", "1", "one"),
    ("EVAL", "redis.call('HSET', ARGV[1], 'step', '9')", "0", streams.job_key("one")),
    ("CONFIG", "GET", "*"),
    ("XTRIM", ROLLOUTS.key("one"), "MAXLEN", "0"),
    ("XTRIM", EVENTS.key("one"), "MAXLEN", "0"),
    ("XGROUP", "DESTROY", ROLLOUTS.key("one"), "grader"),
    ("HSET", streams.STARTS, "grader", "x"),
    ("SADD", streams.STATUS, "no hash any more"),
    ("HDEL", streams.cost_key("one"), "core_seconds:learner"),
    ("RPUSH", streams.TRIALS, "{}"),
    ("RPUSH", streams.CALLS, "{}"),
    ("LRANGE", streams.answers_key("gateway-1"), "0", "-1"),
    ("LRANGE", streams.trial_key("one"), "0", "-1"),
    ("EVAL", "return redis.call('LRANGE', KEYS[1], 0, -1)", "1", "weir:answers:a"),
)
LOOK_AT_CALLS = ("LRANGE", streams.CALLS, "0", "-1")


@pytest.mark.parametrize(
    ("service", "command"),
    [
        *(
            (
                service,
                (
                    "XADD",
                    stream.key("one"),
                    "*",
                    "key",
                    "train:0",
                    "header",
                    "{}",
                ),
            )
            for service, others in WRITTEN_BY_OTHERS.items()
            for stream in sorted(others, key=str)
        ),
        *product(WORKERS, REFUSED_TO_WORKERS),
        ("rollout", ("XREAD", "STREAMS", GRADED.key("one"), "0")),
        ("rollout", ("HSET", streams.lives_key("grader"), "me", "1")),
        ("rollout", ("XTRIM", REQUESTS.key("one"), "MAXLEN", "0")),
        ("rollout", ("HDEL", streams.waited_for_key("gateway-1"), "call-0")),
        ("grader", LOOK_AT_CALLS),
        ("learner", LOOK_AT_CALLS),
        ("environment", LOOK_AT_CALLS),
        ("environment", ("LPUSH", streams.answers_key("gateway-1"), "an answer")),
        ("learner", ("FLUSHALL",)),
        ("gateway", ("ACL", "LIST")),
        ("monitor", ("GET", streams.ACTIVE)),
    ],
    ids=str,
)
def test_whoever_takes_a_services_password_cannot_do_what_others_do(
    server: Server, service: str, command: tuple[str, ...]
) -> None:
    with server.client(service) as thief, pytest.raises(redis.RedisError) as refused:
        thief.execute_command(*command)
    # Redis 7.0 has other words for what a script may not touch.
    assert any(words in str(refused.value) for words in ("permission", "can't access"))


def test_the_monitor_sees_how_the_server_is(server: Server) -> None:
    with server.client("monitor") as monitor:
        assert monitor.info()["redis_version"]
        assert monitor.slowlog_len() >= 0
        assert monitor.config_get("maxmemory")["maxmemory"] == "0"


async def show_life(worker: Exchange, *inputs: Stream) -> None:
    group = str(inputs[0].group)
    assert await worker.active() is not None
    assert await worker.requested_state("job") is Requested.RUN
    await worker.count_start(group)
    await worker.show_status(a_status(group))
    await worker.add_cost("job", {f"core_seconds:{group}": 1.0})
    assert await worker.billed_job() == "job"
    assert group in {status.service for status in (await worker.statuses()).values()}
    assert await worker.record_event(an_event(group))
    await worker.heartbeat(group)
    await worker.heartbeat(group, inputs, "job")
    await worker.expire_worker(group, "another", 0, inputs, "job")
    await worker.queued(inputs[0], "job")


async def leave(worker: Exchange, group: str) -> None:
    await worker.leave(group)
    await worker.forget_status(worker.me.rpartition(".")[0])


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("rollout", (EVAL_REQUESTS, REQUESTS)),
        ("environment", (streams.EVAL_EPISODES, EPISODES)),
    ],
)
async def test_a_group_goes_its_way_and_a_failed_one_too(
    services: Services, name: str, inputs: tuple[Stream, Stream]
) -> None:
    learner, grader = services.learner, services.grader
    worker: Exchange = getattr(services, name)
    job = await taken_up(learner)
    await learner.announce(a_policy())
    for purpose in (Purpose.TRAIN, Purpose.EVAL):
        in_environment = name == "environment"
        await learner.ask(a_request(purpose=purpose, in_environment=in_environment))
    await services.rollout.wait_for_new(streams.NEW_POLICY)
    assert await services.rollout.newest_policy("job") == a_policy()
    await show_life(worker, *inputs)
    first, second = await claim(worker, *inputs)
    await worker.release(first, "failures")
    (first,) = await reclaim(worker, first.stream)
    await worker.clear_failures("job", [first])
    failed = first.as_failed(FailureKind.UNWORKABLE, "no engine")
    assert await worker.hand_off(first, FAILED, failed)
    assert await worker.hand_off(second, ROLLOUTS, a_group(second.message()))
    await show_life(grader, ROLLOUTS)
    await grader.release(await claim_one(grader, ROLLOUTS), "deaths")
    (sampled,) = await reclaim(grader, ROLLOUTS)
    await grader.hand_off(sampled, GRADED, a_graded_group(sampled.message()))
    for stream in WORK_STREAMS:
        await services.gateway.backlog(stream, "job")
    assert len(await learner.statuses()) == len(await services.gateway.statuses()) == 2
    arrived = await claim(learner, GRADED, FAILED)
    assert len(arrived) == len(await learner.pending_keys("job")) == 2
    for delivery in arrived:
        assert await learner.ingest(delivery, 1)
    await learner.adopt(FAILED, "job", count=1)
    await learner.withdraw(inputs[0], "job", 1, [])
    assert not await server_problems(learner)
    await learner.update_job("job", 1, step=1)
    await learner.close_job(job, 1, state="succeeded")
    await learner.release_lease()
    await leave(worker, name)
    await leave(grader, "grader")


async def test_the_gateway_queues_looks_changes_and_forgets(services: Services) -> None:
    gateway, learner = services.gateway, services.learner
    await learner.announce(a_policy())
    await gateway.submit(a_job_record("other"))
    assert set(await gateway.job_ids()) == {"other", "job"}
    assert (await gateway.queue()).first == "job"
    assert await gateway.newest_policy("job") == a_policy()
    assert await gateway.record_event(an_event())
    assert len(await gateway.events("job")) == len(await gateway.events_back("job")) == 1
    assert await gateway.starts() == await gateway.statuses() == {}
    await gateway.count_start("gateway")
    await gateway.find_jobs(None, 10, JobQuery(name="x"))
    await gateway.changing(["job"])
    await gateway.count_states()
    await gateway.find_mentions("file-1")
    await gateway.submitted_since(0.0, {})
    await gateway.add_cost("job", {"core_seconds:gateway": 1.0})
    assert await gateway.billed_job() == "job"
    await learner.add_cost("job", {"core_seconds:redis": await learner.server_core_seconds()})
    await learner.set_tokens("job", {"train/sampled": 7})
    assert (await learner.cost("job"))["tokens"] == {"train/sampled": 7}
    assert (await gateway.cost("job"))["core_seconds"].keys() == {"gateway", "redis"}
    await gateway.request_state("job", Requested.PAUSE)
    assert await learner.pause_job("job", 1, None)
    await gateway.request_state("job", Requested.RUN)
    for job_id in ("job", "other"):
        await gateway.request_state(job_id, Requested.CANCEL)
    await gateway.revive("other")
    assert set(await gateway.forget_oldest(0)) == {"other", "job"}
    assert not await server_problems(gateway)
    assert (await gateway.memory()).used > 0
    trial = Trial(
        id="t",
        reward=a_recipe().reward,
        task=a_task(),
        text="",
    )
    for asks in (gateway, learner):
        assert await asks.ask_trial(trial, 5)
        assert await services.grader.take_trial(1) == trial
        await services.grader.answer_trial(trial, TrialResult())
        assert await asks.trial_result("t", 1) == TrialResult()
        assert not await asks.withdraw_trial(trial)


async def test_grades_that_a_rollout_made_up_are_a_failed_group(
    services: Services, tmp_path: Path
) -> None:
    await services.learner.ask(a_request())
    request = await claim_one(services.rollout)
    await services.rollout.hand_off(
        request,
        FAILED,
        a_graded_group(a_group(request.message())),
    )
    intake = Intake(Attempt(services.learner, "job", 1, a_recipe(), tmp_path))
    await intake.ingest(await claim(services.learner, FAILED))
    assert [str(group.failure)[:10] for group in intake.waiting.values()] == ["unreadable"]
