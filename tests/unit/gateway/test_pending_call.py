"""A call in several tries gets no token twice, and misses none."""

import asyncio
from typing import Any, cast

import pytest
from protocol.calls import Call, CallSampling, Piece, Refusal, Served, Token
from protocol.messages import FinishReason, VersionSpan
from protocol.recipe import Model

from services.gateway.core.calls.pending import PendingCall, PendingCalls

pytestmark = pytest.mark.anyio
SERVED = Served(name="it", job_id="job", model=Model(path="/it"))


async def weights() -> Served:
    return SERVED


def a_piece(tries: int, first: int, end: int, version: int = 1, **values: object) -> Piece:
    """Tokens [first, end) of a try."""
    tokens = tuple(Token(id=n, text=str(n), logprob=-1) for n in range(first, end))
    spans = (VersionSpan(attempt=1, version=version, start=0, end=end),)
    text = "".join(token.text for token in tokens)
    return Piece.model_validate(
        {"call_id": "a", "tries": tries, "tokens": tokens, "text": text, "spans": spans, **values}
    )


@pytest.fixture
def answer() -> PendingCall:
    return PendingCall(
        Call(id="a", gateway="g", served=SERVED, text="a", sampling=CallSampling()), weights
    )


async def test_a_second_try_goes_on_behind_the_first_whose_late_pieces_are_ignored(
    answer: PendingCall,
) -> None:
    logprobs = (None, -1.0, float("-inf"))
    answer.receive(a_piece(0, 0, 2, prompt_logprobs=logprobs), "one")
    answer.begin_try(SERVED)
    assert answer.call.tries == 1
    assert answer.call.so_far == (0, 1)
    answer.receive(a_piece(0, 2, 4), "one")
    answer.receive(a_piece(1, 0, 1, version=2), "two")
    answer.receive(a_piece(1, 1, 2, version=2, finish_reason=FinishReason.STOP), "two")
    assert await answer.end_of_try() is None
    assert [token.id for token in answer.tokens] == [0, 1, 0, 1]
    assert answer.text == "0101"
    assert [(s.version, s.start, s.end) for s in answer.spans] == [(1, 0, 2), (2, 2, 4)]
    assert answer.rollouts == ("one", "two")
    assert answer.prompt_logprobs == (None, -1.0, None)


async def test_a_piece_that_is_missing_ends_the_try(answer: PendingCall) -> None:
    answer.receive(a_piece(0, 0, 2), "one")
    answer.receive(a_piece(0, 3, 4), "one")
    refusal = await answer.end_of_try()
    assert isinstance(refusal, Refusal)
    assert refusal.again
    assert len(answer.tokens) == 2


async def test_an_answer_is_over_though_its_task_was_cancelled_before_it_began(
    answer: PendingCall,
) -> None:
    task = PendingCalls(cast(Any, None), 15.0, list)._start(answer, None)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert answer.is_done
    assert answer.changed.is_set()
