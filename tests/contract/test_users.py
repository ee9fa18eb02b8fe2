"""Each service, as its own user of the server, can do what it does and not what others do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from protocol import streams
from protocol.calls import Pieces
from protocol.exchange import Delivery, Exchange
from protocol.exchange.jobs import JobQuery
from protocol.exchange.server import server_problems
from protocol.messages import ActiveJob, FailureKind, JobRef, Requested, Trial, TrialResult
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, EVENTS, FAILED, GRADED, REQUESTS, ROLLOUTS, WORK_STREAMS

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
from tests.contract.call_client import a_call
from tests.contract.exchange_steps import claim_one, taken_up
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
ENTRY = ("XADD", "*", "key", "train:0", "header", "{}")


@dataclass
class Services:
    gateway: Exchange
    learner: Exchange
    rollout: Exchange
    grader: Exchange
    environment: Exchange

    async def begin(self) -> Delivery[JobRef]:
        """A job that the learner works on, with one request for training and one to evaluate."""
        await self.gateway.submit(a_job_record())
        await self.learner.renew_lease()
        job = await taken_up(self.learner)
        assert await self.learner.begin_attempt("job") == 1
        active = ActiveJob(job_id="job", attempt=1, recipe=a_recipe())
        await self.learner.activate(active)
        await self.learner.announce(a_policy())
        await self.learner.ask(a_request())
        await self.learner.ask(a_request(purpose=Purpose.EVAL))
        return job


@pytest.fixture
def services(exchanges: dict[str, Exchange]) -> Services:
    return Services(**exchanges)


@pytest.mark.parametrize(
    ("service", "command"),
    [
        *[
            (service, (ENTRY[0], stream.key("one"), *ENTRY[1:]))
            for service, written in {
                "rollout": {GRADED, streams.EPISODES, streams.POLICY, streams.JOBS},
                "environment": {REQUESTS, EVAL_REQUESTS, GRADED, streams.POLICY, streams.JOBS},
                "grader": {REQUESTS, EVAL_REQUESTS, FAILED, streams.POLICY, streams.JOBS},
                "gateway": {*WORK_STREAMS, streams.POLICY},
            }.items()
            for stream in sorted(written, key=str)
        ],
        *[
            (service, command)
            for service in ("rollout", "grader", "environment")
            for command in (
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
                (*("EVAL", "return redis.call('LRANGE', KEYS[1], 0, -1)", "1"), "weir:answers:a"),
            )
        ],
        ("rollout", ("XREAD", "STREAMS", GRADED.key("one"), "0")),
        ("rollout", ("HSET", streams.lives_key("grader"), "me", "1")),
        ("rollout", ("XTRIM", REQUESTS.key("one"), "MAXLEN", "0")),
        ("rollout", ("HDEL", streams.waited_for_key("gateway-1"), "call-0")),
        *[
            (service, ("LRANGE", streams.CALLS, "0", "-1"))
            for service in ("grader", "learner", "environment")
        ],
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


async def test_a_group_goes_its_way_and_a_failed_one_too(
    services: Services,
) -> None:
    job, s = await services.begin(), services
    inputs = (EVAL_REQUESTS, REQUESTS)
    for worker, streams_in in ((s.rollout, inputs), (s.grader, (ROLLOUTS,))):
        group = str(streams_in[0].group)
        assert await worker.active() is not None
        assert await worker.requested_state("job") is Requested.RUN
        await worker.count_start(group)
        await worker.show_status(a_status(group))
        await worker.add_cost(group, 1.0, 1.0)
        assert group in {status.service for status in (await worker.statuses()).values()}
        assert await worker.record_event(an_event(group))
        await worker.heartbeat(group)
        await worker.heartbeat(group, streams_in, "job")
        await worker.expire_worker(group, "another", 0, streams_in, "job")
        await worker.queued(streams_in[0], "job")
    assert await s.rollout.newest_policy("job") == a_policy()
    assert await s.learner.statuses() == await s.gateway.statuses()
    evaluated, trained = await s.rollout.claim(inputs, "job", count=2, wait_s=0)
    await s.rollout.release(evaluated, "failures")
    (again,) = await s.rollout.reclaim(EVAL_REQUESTS, "job", count=1)
    await s.rollout.clear_failures("job", [again])
    assert await s.rollout.hand_off(
        again, FAILED, again.as_failed(FailureKind.UNWORKABLE, "no engine")
    )
    assert await s.rollout.hand_off(trained, ROLLOUTS, a_group(trained.message()))
    (sampled,) = await s.grader.claim((ROLLOUTS,), "job", count=1, wait_s=0)
    await s.grader.release(sampled, "deaths")
    (sampled,) = await s.grader.reclaim(ROLLOUTS, "job", count=1)
    await s.grader.hand_off(sampled, GRADED, a_graded_group(sampled.message()))
    for stream in WORK_STREAMS:
        await s.gateway.backlog(stream, "job")
    arrived = await s.learner.claim((GRADED, FAILED), "job", count=2, wait_s=0)
    assert len(arrived) == len(await s.learner.pending_keys("job")) == 2
    for delivery in arrived:
        assert await s.learner.ingest(delivery, 1)
    await s.learner.adopt(FAILED, "job", count=1)
    assert await s.learner.statuses()
    assert not {problem.setting for problem in await server_problems(s.learner)}
    await s.learner.update_job("job", 1, step=1)
    await s.learner.close_job(job, 1, state="succeeded")
    await s.learner.release_lease()
    for worker in (s.rollout, s.grader):
        await worker.leave("rollout" if worker is s.rollout else "grader")
        await worker.forget_status(worker.me.rpartition(".")[0])


async def test_a_group_of_episodes_goes_the_same_way_and_a_failed_one_too(
    services: Services,
) -> None:
    await services.begin()
    worker, inputs = services.environment, (streams.EVAL_EPISODES, streams.EPISODES)
    for purpose in (Purpose.TRAIN, Purpose.EVAL):
        await services.learner.ask(a_request(number=1, purpose=purpose, in_environment=True))
    assert await worker.active() is not None
    assert await worker.requested_state("job") is Requested.RUN
    await worker.count_start("environment")
    await worker.show_status(a_status("environment"))
    await worker.add_cost("environment", 1.0)
    assert await worker.record_event(an_event("environment"))
    await worker.heartbeat("environment", inputs, "job")
    await worker.expire_worker("environment", "another", 0, inputs, "job")
    evaluated, trained = await worker.claim(inputs, "job", count=2, wait_s=0)
    await worker.release(evaluated, "failures")
    (again,) = await worker.reclaim(streams.EVAL_EPISODES, "job", count=1)
    await worker.clear_failures("job", [again])
    assert await worker.hand_off(
        again, FAILED, again.as_failed(FailureKind.UNWORKABLE, "no taskset")
    )
    assert await worker.hand_off(trained, ROLLOUTS, a_group(trained.message()))
    await services.learner.withdraw(streams.EVAL_EPISODES, "job", 1, [])
    await worker.leave("environment")
    await worker.forget_status(worker.me.rpartition(".")[0])


async def test_the_gateway_queues_looks_changes_and_forgets(services: Services) -> None:
    await services.begin()
    gateway, learner = services.gateway, services.learner
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
    await gateway.add_cost("gateway", 1.0)
    await learner.add_cost("redis", await learner.server_core_seconds())
    assert (await gateway.cost("job"))["core_seconds"].keys() == {"gateway", "redis"}
    await gateway.request_state("job", Requested.PAUSE)
    assert await learner.pause_job("job", 1, None)
    await gateway.request_state("job", Requested.RUN)
    await gateway.request_state("job", Requested.CANCEL)
    await gateway.request_state("other", Requested.CANCEL)
    await gateway.revive("other")
    assert set(await gateway.forget_oldest(0)) == {"other", "job"}
    assert not await server_problems(gateway)
    assert (await gateway.memory()).used > 0
    trial = Trial(id="t", reward=a_recipe().reward, task=a_task(), text="")
    for asks in (gateway, learner):
        assert await asks.ask_trial(trial, 5)
        assert await services.grader.take_trial(1) == trial
        await services.grader.answer_trial(trial, TrialResult())
        assert await asks.trial_result("t", 1) == TrialResult()
        assert not await asks.withdraw_trial(trial)


async def test_a_call_goes_to_a_rollout_and_its_answer_back(services: Services) -> None:
    gateway, rollout = services.gateway, services.rollout
    call = a_call(gateway=gateway.me)
    assert await gateway.ask_call(call, limit=1)
    assert await gateway.keep_calls({call.id: 0}) == {call.id}
    assert await rollout.waiting_calls() == {call.served.key: 1}
    assert await rollout.take_calls(call.served.key, 1) == [call]
    assert await rollout.wanted_calls(gateway.me, [call]) == {call.id}
    await rollout.send_pieces(gateway.me, Pieces(rollout="rollout-1"))
    assert await gateway.pieces(1) == [Pieces(rollout="rollout-1")]
    await gateway.withdraw_call(call.id)


async def test_grades_that_a_rollout_made_up_are_a_failed_group(
    services: Services, tmp_path: Path
) -> None:
    await services.begin()
    asked = await claim_one(services.rollout)
    await services.rollout.hand_off(asked, FAILED, a_graded_group(a_group(asked.message())))
    intake = Intake(Attempt(services.learner, "job", 1, a_recipe(), tmp_path))
    await intake.ingest(await services.learner.claim([FAILED], "job", count=1, wait_s=0))
    assert [str(group.failure)[:10] for group in intake.waiting.values()] == ["unreadable"]
