"""One bad row spoils no list: whatever bytes somebody writes, others are served.

Each is written with a worker's password where the server lets it, else without one.
"""

from __future__ import annotations

import json
from typing import Any

from protocol import streams
from protocol.calls import Pieces
from protocol.exchange import Backlog
from protocol.frames import encode
from protocol.messages import Trial, TrialResult
from protocol.streams import EVENTS, GRADED, REQUESTS, ROLLOUTS
from redis import Redis

from tests.builders import (
    a_group,
    a_recipe,
    a_request,
    a_status,
    a_task,
    an_event,
)
from tests.contract.call_client import a_call
from tests.contract.conftest import Services
from tests.contract.exchange_steps import claim, claim_one, reclaim
from tests.contract.valkey_server import Server

DEEP = b"[" * 5000 + b"]" * 5000
GARBAGE = [
    b"",
    b"\xff",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"1" * 5000,
    b'{"id": NaN}',
    DEEP,
]


def frame(message: Any, **body: Any) -> dict[bytes, bytes]:
    """The frame of a message with other values."""
    fields = encode(message)
    header = json.loads(fields[b"header"])
    header["body"] |= body
    return {**fields, b"header": json.dumps(header).encode()}


async def test_statuses(server: Server, services: Services) -> None:
    status = a_status("grader")
    await services.grader.show_status(status)
    valid = status.model_dump_json()
    with server.client("rollout") as client:
        for number, value in enumerate(GARBAGE):
            client.hset(streams.STATUS, f"rollout-{number}", value)
        client.hset(streams.STATUS, b"\xff", valid)
        client.hset(streams.STATUS, "learner-x", valid)
        other = json.loads(valid)
        for name, change in (
            ("nan", {"for_s": float("nan")}),
            ("inf", {"holds": {"train:0": float("inf")}}),
        ):
            client.hset(
                streams.STATUS,
                name,
                json.dumps(other | {"replica": name} | change),
            )
        for exchange in vars(services).values():
            assert await exchange.statuses() == {status.replica: status}
        # What another release may have written stays.
        assert set(client.hgetall(streams.STATUS)) == {b"grader-0", b"nan", b"inf"}


async def test_starts(client: Redis, services: Services) -> None:
    await services.grader.count_start("grader")
    for number, value in enumerate(GARBAGE):
        client.hset(streams.STARTS, f"x{number}", value)
    client.hset(streams.STARTS, b"\xff", "1")
    assert await services.gateway.starts() == {"grader": 1}


async def test_costs(client: Redis, services: Services) -> None:
    key = streams.cost_key("job")
    for name in (b"\xff", b"x", b"core_seconds:\xff", b"core_minutes:grader"):
        client.hset(key, name, "1")
    for number, value in enumerate((*GARBAGE, b"inf", b"9" * 400)):
        client.hset(key, f"core_seconds:x{number}", value)
    client.hset(key, "core_seconds:grader", "2.5")
    cost = await services.gateway.cost("job")
    assert {kind: names for kind, names in cost.items() if names} == {
        "core_seconds": {"grader": 2.5}
    }


async def test_events(server: Server, services: Services) -> None:
    gateway = services.gateway
    await gateway.record_event(an_event("first"))
    bodies: list[dict[str, Any]] = [
        *(
            {"created_at": value}
            for value in (
                float("inf"),
                float("nan"),
                -1e300,
                10**400,
            )
        ),
        {"data": {"kind": "step", "step": 1, "x": float("nan")}},
        {"data": {"kind": "step", "step": "x"}},
        {"data": {"kind": "evaluation", "step": 1, "evaluation": 1}},
        {"data": {}},
    ]
    rows: list[dict[Any, Any]] = [
        {b"\xff": b"\xff"},
        {b"a": b"b"},
        *({b"header": value} for value in GARBAGE),
        *(frame(an_event("bad"), **body) for body in bodies),
    ]
    with server.client("grader") as client:
        for row in rows:
            client.xadd(EVENTS.key("job"), row)
    await gateway.record_event(an_event("last"))
    assert [entry.id for _, entry in await gateway.events("job")] == ["first", "last"]
    assert [entry.id for _, entry in await gateway.events_back("job")] == ["last", "first"]


async def test_heartbeats(server: Server, services: Services) -> None:
    rollout = services.rollout
    inputs = (REQUESTS,)
    await services.learner.ask(a_request())
    await rollout.heartbeat("rollout")
    with server.client("rollout") as client:
        # Nobody is called that, so nobody would ever be seen to be dead.
        stolen: Any = b"\xfe"
        assert client.xreadgroup("rollout", stolen, {REQUESTS.key("job"): ">"})
        client.hset(streams.lives_key("rollout"), b"\xff", "5")
        for number, value in enumerate(GARBAGE):
            client.hset(streams.lives_key("rollout"), f"rollout-{number}.2", value)
        client.hset(streams.lives_key("rollout"), rollout.me, "x")
        await rollout.heartbeat("rollout", inputs, "job")
        pulse = await rollout.heartbeat("rollout", inputs, "job")
        assert set(pulse.beats) == {rollout.me}
        assert [*client.hgetall(streams.lives_key("rollout"))] == [rollout.me.encode()]
    (again,) = await reclaim(rollout)
    assert again.message() == a_request()
    assert again.deaths == (r"\xfe",)


async def test_entries(server: Server, services: Services) -> None:
    """Entries of no group go; those of one whose frame cannot be read fail that group alone."""
    rollout, grader = services.rollout, services.grader
    keys = [
        b"\xff",
        b"",
        b"x",
        b"train",
        b"train:",
        b"train:-1",
        b"train:" + b"9" * 30,
        b"x:1",
    ]
    with server.client("rollout") as client:
        for key in keys:
            client.xadd(ROLLOUTS.key("job"), {b"key": key, b"header": b"{}"})
        client.xadd(ROLLOUTS.key("job"), {b"header": b"{}"})
        backlog = await services.gateway.backlog(ROLLOUTS, "job")
        assert (backlog.entries, backlog.oldest_key) == (len(keys) + 1, r"\xff")
        await services.learner.ask(a_request())
        request = await claim_one(rollout)
        await rollout.hand_off(request, ROLLOUTS, a_group(request.message()))
        lease = await claim_one(grader, ROLLOUTS)
        assert lease.key == "train:0"
        assert client.xlen(ROLLOUTS.key("job")) == 1
        client.xadd(ROLLOUTS.key("job"), {b"key": b"\xff"})
        assert await claim(grader, ROLLOUTS) == []
        client.xadd(ROLLOUTS.key("job"), {b"key": b"\xff"})
        client.xreadgroup("grader", "x", {ROLLOUTS.key("job"): ">"})
    await grader.heartbeat("grader")
    await grader.expire_worker("grader", "x", 0, (ROLLOUTS,), "job")
    assert await reclaim(grader, ROLLOUTS, leases=[lease]) == []
    assert await services.gateway.backlog(ROLLOUTS, "job") == Backlog(1, 1)
    with server.client("grader") as client:
        client.xadd(GRADED.key("job"), {b"key": b"\xff"})
    assert await services.learner.adopt(GRADED, "job", count=5) == []
    assert await claim(services.learner, GRADED) == []


async def test_trials(client: Redis, services: Services) -> None:
    gateway, grader = services.gateway, services.grader
    trial = Trial(
        id="t",
        reward=a_recipe().reward,
        task=a_task(),
        text="",
    )
    client.rpush(streams.TRIALS, *GARBAGE)
    client.rpush(streams.trial_key("t"), *GARBAGE)
    assert await gateway.ask_trial(trial, 50)
    await grader.answer_trial(trial, TrialResult())
    for _ in GARBAGE:
        assert await grader.take_trial(1) is None
        assert await gateway.trial_result("t", 1) is None
    assert await grader.take_trial(1) == trial
    assert await gateway.trial_result("t", 1) == TrialResult()


async def test_calls_and_their_answers(client: Redis, services: Services) -> None:
    gateway, rollout = services.gateway, services.rollout
    call = a_call(gateway=gateway.me)
    client.rpush(streams.CALLS, *GARBAGE, '["a", 1, 2]', '[1, "a", 2]', '["a", "b", "c"]')
    for number, value in enumerate(GARBAGE):
        client.hset(streams.CALL_BODIES, f"bad-{number}", value)
        client.rpush(
            streams.CALLS,
            json.dumps(
                [
                    call.key,
                    f"bad-{number}",
                    1,
                ]
            ),
        )
    assert await gateway.ask_call(call, limit=100)
    assert (await rollout.waiting_calls())[call.key] == len(GARBAGE) + 1
    assert await rollout.take_calls(call.key, 100) == [call]
    assert client.llen(streams.CALLS) == 0
    client.rpush(streams.answers_key(gateway.me), *GARBAGE)
    await rollout.send_pieces(gateway.me, Pieces(rollout="rollout-1"))
    assert await gateway.pieces(1) == [Pieces(rollout="rollout-1")]
