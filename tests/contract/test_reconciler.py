"""Redis comes back without its last moments, and the learner has lived on: nobody waits for it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from protocol import streams
from protocol.exchange import Exchange, Fenced, connect
from protocol.messages import JobState, RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS, Stream
from redis import Redis

from services.learner.attempt import Attempt
from services.learner.durable.publish import Publisher
from services.learner.job.reconciler import Reconciler
from services.learner.supply.curriculum import Curriculum
from services.learner.supply.evaluator import Evaluator
from services.learner.supply.feeder import Feeder
from services.learner.supply.intake import Intake
from services.learner.supply.selection import Lookahead
from tests.builders import (
    a_graded_group,
    a_group,
    a_job_record,
    a_policy,
    a_task,
)
from tests.contract.attempts import Learner, until
from tests.contract.exchange_steps import an_active_job, record_of, running
from tests.contract.fake_team import FakeTeam
from tests.contract.valkey_server import Server

if TYPE_CHECKING:  # which imports torch
    from services.learner.training.ranks import Team

ACTIVE = an_active_job(
    training={"groups_per_step": 4}, tasks={"held_out": "b"}, evaluation={"samples": 2}
)


@pytest.fixture
async def parts(exchange: Exchange, tmp_path: Path) -> Reconciler:
    """Of a learner that has asked for train:0 to 3 and eval:0 and 1, and announced version 3."""
    await exchange.submit(a_job_record(recipe=ACTIVE.recipe))
    assert await exchange.begin_attempt("job") == 1
    await exchange.activate(ACTIVE)
    attempt = Attempt(exchange, "job", 1, ACTIVE.recipe, tmp_path)
    intake, tasks = Intake(attempt), [a_task(id="a"), a_task(id="b")]
    curriculum = Curriculum(ACTIVE.recipe, {"": tasks})
    feeder = Feeder(attempt, curriculum, Purpose.TRAIN, lambda _: False)
    async with running(feeder.feed_forever()):
        feeder.admit(
            Lookahead(
                step=0,
                position=0,
                needs=(4,),
                limit=4,
            )
        )
        await until(lambda: feeder.next_number == 4)
    evaluator = Evaluator(attempt, {"": tasks})
    evaluator.begin(0)
    await evaluator.ask(intake)
    publisher = Publisher(attempt, tmp_path, tmp_path, by_delta=False)
    publisher.newest = a_policy(3)
    await exchange.announce(publisher.newest)
    return Reconciler(
        attempt,
        {Purpose.TRAIN: feeder, Purpose.EVAL: evaluator},
        intake,
        publisher,
    )


async def claim(exchange: Exchange) -> dict[str, RolloutRequest]:
    """The requests that nobody has claimed yet, by their keys."""
    claimed = await exchange.claim(
        [EVAL_REQUESTS, REQUESTS],
        "job",
        count=9,
        wait_s=0.01,
    )
    return {delivery.key: delivery.message() for delivery in claimed}


async def take_in(exchange: Exchange, intake: Intake, stream: Stream) -> None:
    """The first group of a stream whose requests are claimed."""
    delivery, *_ = await exchange.reclaim(stream, "job", count=9)
    await exchange.hand_off(delivery, GRADED, a_graded_group(a_group(delivery.message())))
    await intake.ingest(
        await exchange.claim(
            [GRADED],
            "job",
            count=1,
            wait_s=1,
        )
    )


async def test_nothing_is_written_where_nothing_is_lost(client: Redis, parts: Reconciler) -> None:
    before = {key: client.dump(key) for key in client.scan_iter()}
    await parts.reconcile()
    assert {key: client.dump(key) for key in client.scan_iter()} == before


async def test_what_is_lost_is_asked_again_and_nothing_else(
    exchange: Exchange, client: Redis, parts: Reconciler
) -> None:
    first = await claim(exchange)
    assert set(first) == {"eval:0", "eval:1", "train:0", "train:1", "train:2", "train:3"}
    await take_in(exchange, parts.intake, REQUESTS)
    lost = ("train:1", "train:3", "eval:1")
    client.srem(streams.pending_key("job"), *lost)
    for _ in range(2):
        await parts.reconcile()
    assert await claim(exchange) == {key: first[key] for key in lost}
    parts.intake.finish(Purpose.TRAIN, range(1))  # what has been looked at is not asked again
    await take_in(exchange, parts.intake, EVAL_REQUESTS)  # nor is what an evaluation has
    await parts.reconcile()
    evaluator = parts.requesters[Purpose.EVAL]
    assert isinstance(evaluator, Evaluator)
    await evaluator.ask(parts.intake)
    assert await claim(exchange) == {}


async def test_a_link_that_a_rollout_has_removed_is_written_again(
    parts: Reconciler, tmp_path: Path
) -> None:
    publisher = parts.publisher = Publisher(parts.attempt, tmp_path, tmp_path, by_delta=True)
    await publisher.publish(cast("Team", FakeTeam()), 4)
    await publisher.wait_announced()
    assert publisher.newest is not None
    (link,) = publisher.newest.links
    shutil.rmtree(tmp_path / link)
    await parts.reconcile()
    await publisher.wait_announced()
    assert (tmp_path / link).exists()


async def test_a_lost_policy_and_a_lost_active_job_are_announced_again(
    exchange: Exchange, client: Redis, parts: Reconciler
) -> None:
    client.delete(streams.POLICY.key("job"), streams.ACTIVE)
    await parts.reconcile()
    assert await exchange.newest_policy("job") == a_policy(3)
    assert await exchange.active() == ACTIVE
    client.delete(streams.BILLED)
    await parts.reconcile()
    assert await exchange.billed_job() == "job"
    assert (await record_of(exchange)).state is JobState.RUNNING
    await exchange.announce(a_policy(1))
    await parts.reconcile()
    assert await exchange.newest_policy("job") == a_policy(3)


async def test_a_learner_that_redis_has_forgotten_is_fenced(
    client: Redis, parts: Reconciler
) -> None:
    client.hset(streams.job_key("job"), "attempt", "0")
    client.delete(streams.pending_key("job"))
    parts.interval_s = 0.01
    with pytest.raises(Fenced):
        await parts.reconcile_until(asyncio.sleep(60))


async def test_a_job_goes_on_with_a_redis_that_has_lost_its_last_steps(
    own_server: Server, tmp_path: Path
) -> None:
    backup, log = tmp_path / "backup", own_server.folder / "appendonlydir"
    async with connect(own_server.url, me="learner-1", patience_s=30) as exchange:
        learner = Learner(exchange, tmp_path / "data", url=own_server.url)
        await learner.submit(tables={"evaluation": {"samples": 2, "every": 3}}, steps=40)
        async with learner.attempting() as attempt:
            await learner.reach(5)
            shutil.copytree(log, backup)
            await learner.reach(15)
            own_server.kill()
            shutil.rmtree(log)
            backup.rename(log)
            own_server.start()
            await attempt
        record = await learner.record()
    assert (record.state, record.attempt, record.step) == (JobState.SUCCEEDED, 1, 40), record.error
    groups = record.result["groups"]
    assert groups == {"asked": 80, "trained": 80, "dropped": {}, "under_way": 0}
