"""Calls of the model door on a real server: taken once, by weights, and dropped when unwanted."""

from __future__ import annotations

import asyncio

import pytest
from protocol.calls import Call, Piece, Pieces, Served
from protocol.exchange import Exchange

from services.gateway.core.calls import pending
from services.gateway.core.calls.pending import PendingCall, PendingCalls
from services.gateway.errors import Problem
from tests.contract.call_client import JOB, a_call
from tests.contract.conftest import OpenExchange


def numbered(number: int, folder: str = "") -> Call:
    return a_call(f"call-{number}", served=JOB.model_copy(update={"folder": folder}))


async def ask(gateway: Exchange, *calls: Call) -> None:
    for call in calls:
        assert await gateway.ask_call(call, limit=10)
    await gateway.keep_calls({call.id: call.tries for call in calls})


async def test_each_call_is_taken_once_by_who_has_its_weights(open_exchange: OpenExchange) -> None:
    async with open_exchange("gateway-1") as gateway, open_exchange("rollout-1") as rollout:
        await ask(gateway, *(numbered(n, "/a" if n % 2 else "/b") for n in range(10)))
        assert not await gateway.ask_call(numbered(10), limit=10)
        assert await gateway.ask_call(numbered(9, "/a"), limit=10)  # it waits already
        batches = await asyncio.gather(
            *(
                rollout.take_calls(
                    "folder:/a",
                    2,
                    60,
                )
                for _ in range(4)
            )
        )
        assert sorted(call.id for calls in batches for call in calls) == [
            f"call-{n}" for n in range(1, 10, 2)
        ]
        assert next(iter(await rollout.waiting_calls())) == "folder:/b"
        assert await rollout.take_calls("folder:/a", 1, 60) == []
        await gateway.withdraw_call("call-0")
        assert [call.id for call in await rollout.take_calls(None, 2)] == ["call-2", "call-4"]
        assert await gateway.keep_calls({f"call-{n}": 0 for n in range(10)}) == {"call-6", "call-8"}


async def test_calls_for_the_weights_at_hand_do_not_pass_an_older_one_for_ever(
    open_exchange: OpenExchange,
) -> None:
    async with open_exchange("gateway-1") as gateway:
        await ask(gateway, numbered(0, "/b"), numbered(1, "/a"))
        assert await gateway.take_calls("folder:/a", 1, patience_s=0) == []
        assert len(await gateway.take_calls("folder:/a", 1, patience_s=60)) == 1


async def test_a_gateway_hears_in_order_and_what_it_forgets_is_no_longer_wanted(
    open_exchange: OpenExchange,
) -> None:
    async with open_exchange("gateway-1") as gateway, open_exchange("rollout-1") as rollout:
        await ask(gateway, numbered(0), numbered(1), numbered(2))
        calls = await rollout.take_calls("job:job", 3)
        await gateway.keep_calls({"call-0": 0, "call-1": 1})
        assert await rollout.wanted_calls("gateway-1", calls) == {"call-0"}
        for number in range(3):
            piece = Piece(call_id="call-0", tries=0, text=str(number))
            sent = Pieces(rollout="rollout-1", held=("call-0",), pieces=(piece,))
            await rollout.send_pieces("gateway-1", sent)
        heard = await gateway.pieces(1) + await gateway.pieces(0.01)
        assert [sent.pieces[0].text for sent in heard] == ["0", "1", "2"]


async def test_a_call_is_not_asked_where_no_rollout_shows_life(
    open_exchange: OpenExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def weights() -> Served:
        return JOB

    monkeypatch.setattr(pending, "STARTUP_GRACE_S", 0.0)
    async with open_exchange("gateway-1") as gateway:
        looks = PendingCalls(gateway, dead_after_s=15.0, living_rollouts=list).follow(
            [PendingCall(numbered(0), weights)]
        )
        with pytest.raises(Problem) as raised:
            [None async for _ in looks]
        assert not await gateway.waiting_calls()
    assert (raised.value.status_code, raised.value.code) == (503, "no_rollout")
