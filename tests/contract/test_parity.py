"""A rollout that does not compute what the learner computes: the job pauses, in words that fit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from protocol.messages import JobState, ParityReport, PolicyVersion, Probes, Requested

from services.chassis.parity import compare_logprobs
from services.learner.attempt import Attempt
from services.learner.durable.progress import Progress
from services.learner.job import parity
from services.learner.job.parity import Parity
from services.learner.job.phases import training
from services.learner.training.samples import Measured, Sample
from tests.builders import a_recipe, a_status, as_dict
from tests.contract.attempts import Learner, answering, until
from tests.contract.fake_team import FakeTeam
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
NOISE = np.random.default_rng(0).normal(0.0, 1e-6, 200)


class Moving(FakeTeam):
    """Its log-probs move with each step; those of sampled tokens are ``off`` by so much."""

    off = 0.0
    steps = 0

    async def train(self, samples: Sequence[Sample]) -> Measured:
        self.steps += 1
        return await super().train(samples)

    async def score(
        self, samples: Sequence[Sample], temperature: float, *, use_snapshot: bool = False
    ) -> Measured:
        num = sum(len(sample.token_ids) for sample in samples)
        if not any(sample.on_version.any() for sample in samples):
            return Measured({}, {"logprobs": logprobs_at(self.steps)[:num]})
        metrics = {"parity_mean": self.off, "parity_max": 2 * self.off, "parity_tokens": num}
        return Measured(metrics)


def logprobs_at(version: int) -> np.ndarray:
    return np.linspace(-3.0, -0.5, 200) + 0.01 * version * np.sin(np.arange(200))


async def probed(learner: Learner, version: int) -> tuple[PolicyVersion, Probes]:
    """The policy of a version, or a newer one, when it is announced."""
    async with asyncio.timeout(60):
        while True:
            policy = await learner.exchange.newest_policy("job")
            if policy is not None and policy.number >= version:
                assert policy.probes is not None
                return policy, policy.probes
            await asyncio.sleep(0.01)


async def report(learner: Learner, policy: PolicyVersion, given: np.ndarray, **told: Any) -> None:
    assert policy.probes is not None
    about = {"job_id": "job", "attempt": policy.attempt, "version": policy.number}
    numbers = {**compare_logprobs(given.tolist(), policy.probes), "most": policy.probes.most}
    told = {**about, **numbers, "same_prompts": True, **told}
    before = [each for s in (await learner.exchange.statuses()).values() for each in s.parity]
    reports = [*before, ParityReport(**told, rollout="rollout-1")]  # none is missed between beats
    await learner.exchange.show_status(a_status("rollout", parity=reports))


@pytest.fixture
def moving(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> Moving:
    for module in (parity, training):
        monkeypatch.setattr(module, "MIN_COMPARED_TOKENS", 1)
    team = Moving()
    learner.make_team = lambda: team
    return team


async def test_what_agrees_sets_the_limit_and_is_told_with_each_step(
    learner: Learner, moving: Moving, answers: None
) -> None:
    await learner.submit(steps=100_000)
    async with learner.attempting():
        for _ in range(3):
            policy, probes = await probed(learner, 0)
            assert (len(probes.token_ids), len(probes.logprobs)) == (63, 62)
            await report(learner, policy, np.array(probes.logprobs) + NOISE[:62])
            await until(learner.has_made(policy.number + 2))
            assert probes.most == 1e-3
        async with asyncio.timeout(60):
            while (await probed(learner, 0))[1].most != 1e-5:
                await asyncio.sleep(0.02)
    assert (await learner.record()).state is JobState.RUNNING
    steps = await learner.events(kind="step:")
    rows = [row for event in steps for row in as_dict(event).get("parity", [])]
    assert {row["rollout"] for row in rows} == {"rollout-1", None}  # type: ignore[index,call-overload]
    assert all(row["agrees"] for row in rows)  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("given", "told", "words"),
    [
        (lambda now: logprobs_at(0), {}, "answers as version 0; the learner is at"),
        (lambda now: logprobs_at(now), {"holds": 1}, "answers as version 1"),
        (lambda now: logprobs_at(now) - 0.5, {}, "answers as no version"),
        (lambda now: logprobs_at(now), {"same_prompts": False}, "tokenizer or chat template"),
    ],
)
async def test_the_job_pauses_and_says_what_the_rollout_holds(
    learner: Learner, moving: Moving, answers: None, given: Any, told: dict[str, Any], words: str
) -> None:
    await learner.submit(steps=100_000)
    async with learner.attempting() as attempt:
        policy, probes = await probed(learner, 5)
        await report(learner, policy, given(policy.number)[: len(probes.logprobs)], **told)
        await attempt
    record = await learner.record()
    assert (record.state, record.requested) == (JobState.PAUSED, Requested.PAUSE)
    assert words in str(record.error)
    (event,) = [e for e in await learner.events(kind="parity:") if e.level == "warn"]
    assert as_dict(event)["parity"][0]["rollout"] == "rollout-1"
    assert f"parity:1:rollout-1:{policy.number}" == event.id


def test_an_adapter_that_no_engine_loaded_is_named(tmp_path: Path) -> None:
    attempt = Attempt(cast(Any, None), "job", 1, a_recipe(model={"lora": {}}), tmp_path)
    parity = Parity(attempt, Progress(), cast(Any, None))
    report = ParityReport(
        **{"job_id": "job", "attempt": 1, "version": 17, "rollout": "rollout-1", "mean": 0.1},
        **{"max": 0.2, "most": 1e-3, "same_prompts": True, "holds": 0},
    )
    words = "rollout-1 answers as version 0; the learner is at 17; the adapter is not loaded"
    assert parity._explain(report) == words


async def test_sampled_tokens_with_other_logprobs_are_not_trained_and_the_job_can_go_on(
    learner: Learner, server: Server, moving: Moving
) -> None:
    moving.off = 0.3
    await learner.submit()
    async with answering(server.url):
        for _ in range(2):  # resumed while it is as it was
            await learner.exchange.request_state("job", Requested.RUN)
            await learner.attempt()
            record = await learner.record()
            assert (record.state, record.step, moving.steps) == (JobState.PAUSED, 0, 0)
            assert "computes this model differently" in str(record.error)
            (event,) = await learner.events(kind=f"parity:{record.attempt}:tokens")
            (row,) = as_dict(event)["parity"]
            assert (row["max"], row["agrees"]) == (0.6, False)
        moving.off = 0.0
        await learner.exchange.request_state("job", Requested.RUN)
        await learner.attempt()
    assert (await learner.record()).state is JobState.SUCCEEDED
