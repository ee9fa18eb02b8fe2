"""One bad row spoils no list: whatever bytes somebody writes, others are served.

Each is written with a worker's password where the server lets it, else without one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from protocol import streams
from protocol.calls import Pieces
from protocol.exchange import Exchange
from protocol.frames import encode
from protocol.messages import ActiveJob, Trial, TrialResult
from protocol.streams import EVENTS, GRADED, REQUESTS, ROLLOUTS

from tests.builders import (
    a_group,
    a_job_record,
    a_recipe,
    a_request,
    a_status,
    a_task,
    an_event,
)
from tests.contract.call_client import a_call
from tests.contract.exchange_steps import claim_one
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
DEEP = b"[" * 5000 + b"]" * 5000
GARBAGE = [b"", b"\xff", b"{", b"null", b"[]", b'"x"', b"1" * 5000, b'{"id": NaN}', DEEP]


def frame(message: Any, **body: Any) -> dict[bytes, bytes]:
    """The frame of a message with other values."""
    fields = encode(message)
    header = json.loads(fields[b"header"])
    header["body"] |= body
    return {**fields, b"header": json.dumps(header).encode()}


@pytest.fixture(autouse=True)
async def job(exchanges: dict[str, Exchange]) -> None:
    """A job that the learner works on."""
    await exchanges["gateway"].submit(a_job_record())
    await exchanges["learner"].renew_lease()
    assert await exchanges["learner"].begin_attempt("job") == 1
    await exchanges["learner"].activate(ActiveJob(job_id="job", attempt=1, recipe=a_recipe()))


async def test_statuses(server: Server, exchanges: dict[str, Exchange]) -> None:
    status = a_status("grader")
    await exchanges["grader"].show_status(status)
    valid = status.model_dump_json()
    with server.client("rollout") as client:
        for number, value in enumerate(GARBAGE):
            client.hset(streams.STATUS, f"rollout-{number}", value)
        client.hset(streams.STATUS, b"\xff", valid)
        client.hset(streams.STATUS, "learner-x", valid)
        other = json.loads(valid) | {"replica": "rollout-x"}
        for name, change in {
            "nan": {"for_s": float("nan")},
            "inf": {"holds": {"train:0": float("inf")}},
        }.items():
            body = other | {"replica": name} | change
            client.hset(streams.STATUS, name, json.dumps(body))
        for name in ("gateway", "learner", "rollout", "environment"):
            assert await exchanges[name].statuses() == {status.replica: status}
        # What another release may have written stays.
        assert set(client.hgetall(streams.STATUS)) == {b"grader-0", b"nan", b"inf"}


async def test_starts(server: Server, exchanges: dict[str, Exchange]) -> None:
    await exchanges["grader"].count_start("grader")
    with server.client() as client:
        for number, value in enumerate(GARBAGE):
            client.hset(streams.STARTS, f"x{number}", value)
        client.hset(streams.STARTS, b"\xff", "1")
    assert await exchanges["gateway"].starts() == {"grader": 1}


async def test_events(server: Server, exchanges: dict[str, Exchange]) -> None:
    gateway = exchanges["gateway"]
    await gateway.record_event(an_event("first"))
    key = EVENTS.key("job")
    event = an_event("bad")
    bad: list[dict[Any, Any]] = [{b"\xff": b"\xff"}, {b"a": b"b"}]
    bad += [{b"header": value} for value in GARBAGE]
    bad += [
        frame(event, created_at=value) for value in (float("inf"), float("nan"), -1e300, 10**400)
    ]
    bad += [
        frame(event, data={"kind": "step", "step": 1, "x": float("nan")}),
        frame(event, data={"kind": "step", "step": "x"}),
    ]
    bad += [
        frame(event, data={"kind": "evaluation", "step": 1, "evaluation": 1}),
        frame(event, data={}),
    ]
    with server.client("grader") as client:
        for fields in bad:
            client.xadd(key, fields)
    await gateway.record_event(an_event("last"))
    assert [entry.id for _, entry in await gateway.events("job")] == ["first", "last"]
    assert [entry.id for _, entry in await gateway.events_back("job")] == ["last", "first"]


async def test_heartbeats(server: Server, exchanges: dict[str, Exchange]) -> None:
    rollout = exchanges["rollout"]
    inputs = (REQUESTS,)
    await exchanges["learner"].ask(a_request())
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
    (again,) = await rollout.reclaim(REQUESTS, "job", count=1)
    assert again.message() == a_request()
    assert again.deaths == (r"\xfe",)


async def test_entries(server: Server, exchanges: dict[str, Exchange]) -> None:
    """Entries of no group go; those of one whose frame cannot be read fail that group alone."""
    rollout = exchanges["rollout"]
    grader = exchanges["grader"]
    keys = [b"\xff", b"", b"x", b"train", b"train:", b"train:-1", b"train:" + b"9" * 30, b"x:1"]
    with server.client("rollout") as client:
        for key in keys:
            client.xadd(ROLLOUTS.key("job"), {b"key": key, b"header": b"{}"})
        client.xadd(ROLLOUTS.key("job"), {b"header": b"{}"})
        backlog = await exchanges["gateway"].backlog(ROLLOUTS, "job")
        assert (backlog.entries, backlog.oldest_key) == (len(keys) + 1, r"\xff")
        await exchanges["learner"].ask(a_request())
        request = await claim_one(rollout)
        await rollout.hand_off(request, ROLLOUTS, a_group(request.message()))
        claimed = await grader.claim((ROLLOUTS,), "job", count=100, wait_s=0)
        assert [entry.key for entry in claimed] == ["train:0"]
        assert client.xlen(ROLLOUTS.key("job")) == 1
        client.xadd(ROLLOUTS.key("job"), {b"key": b"\xff"})
        assert await grader.claim((ROLLOUTS,), "job", count=1, wait_s=0.1) == []
        client.xadd(ROLLOUTS.key("job"), {b"key": b"\xff"})
        client.xreadgroup("grader", "x", {ROLLOUTS.key("job"): ">"})
    await grader.heartbeat("grader")
    await grader.expire_worker("grader", "x", 0, (ROLLOUTS,), "job")
    assert await grader.reclaim(ROLLOUTS, "job", count=5, leases=claimed) == []
    assert await exchanges["gateway"].backlog(ROLLOUTS, "job") == backlog.__class__(1, 1)
    with server.client("grader") as client:
        client.xadd(GRADED.key("job"), {b"key": b"\xff"})
    assert await exchanges["learner"].adopt(GRADED, "job", count=5) == []
    assert await exchanges["learner"].claim([GRADED], "job", count=5, wait_s=0) == []


async def test_trials(server: Server, exchanges: dict[str, Exchange]) -> None:
    gateway = exchanges["gateway"]
    grader = exchanges["grader"]
    trial = Trial(id="t", reward=a_recipe().reward, task=a_task(), text="")
    with server.client() as client:
        client.rpush(streams.TRIALS, *GARBAGE)
        assert await gateway.ask_trial(trial, 50)
        trials = [await grader.take_trial(1) for _ in range(len(GARBAGE) + 1)]
        assert trials == [None] * len(GARBAGE) + [trial]
        client.rpush(streams.trial_key("t"), *GARBAGE)
        await grader.answer_trial(trial, TrialResult())
        results = [await gateway.trial_result("t", 1) for _ in range(len(GARBAGE) + 1)]
        assert results == [None] * len(GARBAGE) + [TrialResult()]


async def test_calls_and_their_answers(server: Server, exchanges: dict[str, Exchange]) -> None:
    gateway = exchanges["gateway"]
    rollout = exchanges["rollout"]
    call = a_call(gateway=gateway.me)
    with server.client() as client:
        client.rpush(streams.CALLS, *GARBAGE, '["a", 1, 2]', '[1, "a", 2]', '["a", "b", "c"]')
        for number, value in enumerate(GARBAGE):
            client.hset(streams.CALL_BODIES, f"bad-{number}", value)
            client.rpush(streams.CALLS, json.dumps([call.key, f"bad-{number}", 1]))
        assert await gateway.ask_call(call, limit=100)
        assert (await rollout.waiting_calls())[call.key] == len(GARBAGE) + 1
        assert await rollout.take_calls(call.key, 100) == [call]
        assert client.llen(streams.CALLS) == 0
        pieces = Pieces(rollout="rollout-1")
        client.rpush(streams.answers_key(gateway.me), *GARBAGE)
        await rollout.send_pieces(gateway.me, pieces)
        assert await gateway.pieces(1) == [pieces]
