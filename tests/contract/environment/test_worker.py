"""Environment workers on a real server: episodes end, break, hang, and are never lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from protocol.exchange import Exchange
from protocol.messages import ActiveJob, Episode, RolloutGroup, Turn
from protocol.streams import ROLLOUTS

from tests.builders import a_recipe, a_request
from tests.contract.environment.conftest import StartWorker
from tests.contract.environment.fake_door import FakeDoor, an_agent
from tests.contract.exchange_steps import begin

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def ask(
    exchange: Exchange, *, groups: int = 1, group_size: int = 2, **environment: Any
) -> None:
    attempt = await begin(exchange)
    size = {"group_size": group_size, "sampling": {"max_tokens": 8}}
    recipe = a_recipe(environment=environment, rollout=size)
    await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=recipe))
    for number in range(groups):
        asked = {"number": number, "attempt": attempt, "group_size": group_size}
        await exchange.ask(a_request(**asked, in_environment=True, min_version=3))


async def groups(exchange: Exchange, count: int = 1) -> list[RolloutGroup]:
    found = list[RolloutGroup]()
    async with asyncio.timeout(60):
        while len(found) < count:
            for delivery in await exchange.claim([ROLLOUTS], "job", count=16, wait_s=0.1):
                found.append(delivery.message())
    return found


def episodes_of(group: RolloutGroup) -> list[Episode]:
    return [response.episode for response in group.responses if response.episode is not None]


async def test_an_agent_asks_twice_and_says_the_reward(
    exchange: Exchange, door: FakeDoor, start_worker: StartWorker
) -> None:
    start_worker()
    agent = an_agent("ask('a')", "ask('b')", "print(said)", "print(0.5)")
    await ask(exchange, command=agent)
    (group,) = await groups(exchange)
    assert [episode.words for episode in episodes_of(group)] == ["", ""]
    first = "<user>a<assistant>"
    tail = "0;<user>b<assistant>1;"
    assert "".join(map(chr, group.prompt_ids)) == first
    assert "".join(map(chr, group.token_ids)) == 2 * tail
    own = [1, 1, *[0] * len("<user>b<assistant>"), 1, 1]
    assert group.own is not None
    assert group.own.tolist() == 2 * own
    assert group.behavior_logprobs.tolist() == [-0.5 * each for each in 2 * own]
    for response, episode in zip(group.responses, episodes_of(group), strict=True):
        assert [(s.version, s.start, s.end) for s in response.spans] == [(1, 0, 2), (3, 2, 22)]
        assert response.text == "0\n\n1"
        assert (episode.reward, episode.turns, episode.problem) == (0.5, 2, "")
        said = [("user", "a"), ("assistant", "0"), ("user", "b"), ("assistant", "1")]
        assert episode.conversation == tuple(Turn(role=r, content=c) for r, c in said)
        assert set(episode.seconds) == {"model", "environment"}
    terms = list(door.terms.values())
    assert {(t.job_id, t.purpose, t.min_version, t.sampling.max_tokens) for t in terms} == {
        ("job", "train", 3, 8)
    }
    assert len({t.seed for t in terms}) == 2
