"""A rollout and the calls of the door: few beside a job, any model at rest, and none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from protocol.calls import Call, Served, Terms
from protocol.messages import Doing, FinishReason, Requested
from protocol.operations import PROBES
from protocol.recipe import Model
from protocol.streams import FAILED, REQUESTS, ROLLOUTS

from services.chassis.consumer import Consumer, work_forever
from services.rollout.samples import EngineError, IncompatibleEngine, LoadError
from services.rollout.worker import GroupSampler
from tests.contract.call_client import a_call
from tests.contract.rollout_line import PLACES, Line, probes_of


def terms_of(**changes: Any) -> Terms:
    values = {
        "job_id": "job",
        "purpose": "train",
        "sampling": {"max_tokens": 8},
        "seed": 1,
    }
    return Terms.model_validate(values | changes)


async def begun(
    line: Line,
    call_id: str,
    model: str = "",
    **changes: Any,
) -> Call:
    """A call that is under way."""
    call = line.call(call_id, model, **changes)
    await line.door.ask(call)
    await line.door.until_begun(call)
    return call


async def test_at_rest_a_rollout_serves_one_model_after_the_other(line: Line) -> None:
    door, engine = line.door, line.engine
    one, another = line.call("one", "aaaa"), line.call("another", "bbbb")
    engine.may_load.clear()
    await door.ask(one)
    await line.until(lambda: any(message.doing == "loads aaaa" for message in door.messages))
    engine.may_load.set()
    await door.until_begun(one)
    assert line.service.activity.now.doing is Doing.ANSWERS
    await door.ask(another)
    await line.listen()
    assert engine.under_way == ["one"], "what is answered was cut by another model's call"
    engine.ends.set()
    for call in (one, another):
        (*_, last) = await door.until_over(call)
        assert last.finish_reason is FinishReason.STOP
    assert (await door.answered(line.call("again", "bbbb")))[0].text == "bbbb"
    assert engine.loaded == ["aaaa", "bbbb"]


async def test_beside_a_clients_session_its_samplers_are_served_as_far_as_they_are_sound(
    line: Line,
) -> None:
    door, engine, follower = line.door, line.engine, line.follower
    await line.begin_job(client={})
    worker = GroupSampler(follower)
    streams = {"inputs": (REQUESTS,), "output": ROLLOUTS, "failures": FAILED}
    stage = Consumer(
        **streams, handle=worker.sample_group, free_slots=worker.room, is_open=follower.serves
    )
    line.tasks.append(asyncio.create_task(work_forever(line.service, stage)))
    engine.ends.set()
    for name, logprob in (("one1", -1.0), ("two2", -1.02), ("off3", -2.0), ("bad4", -1.0)):
        folder = line.sampler(name, logprob)
    with (folder / PROBES).open("a") as file:
        file.write(" ")
    for name in ("one1", "off3", "two2", "bad4", "off3", "one1"):
        call = line.call(f"{name}-{len(engine.loaded)}", name)
        if name in {"one1", "two2"}:
            pieces = await door.answered(call)
            assert (pieces[0].text, pieces[-1].finish_reason) == (name, FinishReason.STOP)
            assert line.service.readiness.ready
            continue
        refusal = await door.refusal(call)
        code, words = ("parity", "gap") if name == "off3" else ("model_not_served", "damaged")
        assert (refusal.code, refusal.again) == (code, False)
        assert words in refusal.message
    assert engine.loaded == ["one1", "off3", "two2", "off3", "one1"]
    agree = [report.agrees for report in line.service.activity.parity]
    assert agree == [True, False, True, False, True]
    assert (await line.door.refusal(line.call("newest"))).again
    assert not any(task.done() for task in line.tasks)


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_model_that_vllm_cannot_serve_is_refused_with_its_words(
    line: Line, is_first: bool
) -> None:
    line.engine.ends.set()
    if not is_first:
        await line.door.answered(line.call("good", "aaaa"))
    line.engine.fault = EngineError("no such model") if is_first else LoadError("no such model")
    refusal = await line.door.refusal(line.call("bad", "bbbb"))
    assert (refusal.status, refusal.again) == (500, False)
    assert "no such model" in refusal.message
    nowhere = Served(name="?", folder="/nowhere", model=Model(path="p"))
    await line.door.refusal(a_call("none", served=nowhere))
    line.engine.fault = None
    assert (await line.door.answered(line.call("next", "cccc")))[0].text == "cccc"


async def test_a_model_that_needs_another_engine_has_its_calls_given_back(line: Line) -> None:
    line.engine.ends.set()
    await line.door.answered(line.call("first", "aaaa"))
    assert (await line.door.refusal(line.call("wider", "aaaaaaaa"))).again
    await asyncio.wait({line.tasks[0]}, timeout=60)
    assert isinstance(line.tasks[0].exception(), IncompatibleEngine)


async def test_a_job_that_begins_or_ends_cuts_calls_for_other_weights(line: Line) -> None:
    door, engine = line.door, line.engine
    other = await begun(line, "other", "aaaa")
    await line.begin_job()
    assert (await door.refusal(other)).again
    own = await begun(line, "own")
    assert engine.under_way == ["own"]
    assert engine.loaded == ["aaaa", "1.0"]
    refusal = await door.refusal(line.call("another", "bbbb"))
    assert (refusal.status, refusal.again) == (409, True)
    assert line.service.activity.now.doing is not Doing.ANSWERS
    await line.exchange.request_state("job", Requested.PAUSE)
    await line.exchange.pause_job("job", 1, None)
    assert (await door.refusal(own)).again
    engine.ends.set()
    assert (await door.answered(line.call("later", "aaaa")))[0].text == "aaaa"


async def test_beside_a_job_few_are_answered_at_once_and_one_that_nobody_wants_makes_room(
    line: Line,
) -> None:
    door, engine = line.door, line.engine
    await line.begin_job()
    calls = [line.call(f"call-{number}") for number in range(4)]
    await door.ask(*calls)
    await line.until(lambda: len(engine.under_way) == PLACES // 8)
    await line.listen()
    assert engine.under_way == ["call-0", "call-1"]
    del door.waiting["call-0"]
    await door.exchange.withdraw_call("call-0")
    await line.until(lambda: engine.under_way == ["call-1", "call-2"])


async def test_an_episodes_calls_may_have_all_places_and_wait_for_the_version_of_their_terms(
    line: Line,
) -> None:
    door, engine = line.door, line.engine
    await line.begin_job()
    await door.ask(line.call("client"))
    calls = [line.call(f"turn-{number}", terms=terms_of()) for number in range(PLACES)]
    await door.ask(*calls)
    await line.until(lambda: len(engine.under_way) >= PLACES)
    assert line.service.activity.now.doing is Doing.ANSWERS
    assert line.answering.num_episode_calls == len({*engine.under_way} - {"client"})
    engine.ends.set()
    for call in calls:
        (*_, last) = await door.until_over(call)
        assert last.finish_reason is FinishReason.STOP
    newer = line.call("newer", terms=terms_of(min_version=1))
    await door.ask(newer)
    await line.until(lambda: any("newer" in message.held for message in door.messages))
    assert not door.pieces["newer"]
    await line.announce(1)
    assert (await door.until_over(newer))[0].text == "1.1"


async def test_between_an_evaluations_calls_it_stays_where_a_load_would_take_longer(
    line: Line,
) -> None:
    door, engine = line.door, line.engine
    engine.load_s = 60.0
    engine.ends.set()
    await line.begin_job()
    await line.until(lambda: engine.loaded == ["1.0"])
    await line.announce(1)
    await line.until(lambda: engine.loaded == ["1.0", "1.1"])
    measured = await door.exchange.newest_policy("job")
    for number in range(2):
        call = line.call(f"eval-{number}", terms=terms_of(purpose="eval", version=1))
        assert (await door.answered(call))[0].text == "1.1"
        await line.announce(2, evaluated=measured)
        await line.listen()  # the environment thinks
    assert engine.loaded == ["1.0", "1.1"]
    await line.announce(2)
    await line.until(lambda: engine.loaded == ["1.0", "1.1", "1.2"])


async def test_what_weights_sample_that_are_refused_is_no_answer(line: Line) -> None:
    engine = line.engine
    await line.begin_job()
    call = await begun(line, "turn", terms=terms_of())
    engine.may_load.clear()
    await line.announce(1, probes=probes_of(-2.0))
    await line.until(lambda: line.follower.serving is None)
    engine.ends.set()
    engine.may_load.set()
    assert (await line.door.refusal(call)).again


async def test_a_rollout_that_stops_gives_back_what_it_holds(line: Line) -> None:
    call = await begun(line, "call", "aaaa")
    line.service.stop()
    assert (await line.door.refusal(call)).again


async def test_a_call_that_fits_not_is_refused_by_name(line: Line) -> None:
    line.engine.ends.set()
    refusal = await line.door.refusal(
        line.call(
            "long",
            "aaaa",
            sampling={"max_tokens": 63},
        )
    )
    assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
