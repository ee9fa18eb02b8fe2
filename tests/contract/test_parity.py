"""A rollout that does not compute what the learner computes: the job pauses, in words that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from tests.contract.attempts import Learner, until
from tests.contract.fake_team import FakeTeam

NOISE = np.random.default_rng(0).normal(0.0, 1e-6, 62)
REPORT: dict[str, Any] = {
    "job_id": "job",
    "attempt": 1,
    "rollout": "rollout-1",
    "same_prompts": True,
}


@dataclass
class Moving(FakeTeam):
    """Its log-probs move with each step; those of sampled tokens are ``off`` by so much."""

    off: float = 0.0

    async def score(
        self, samples: Sequence[Sample], temperature: float, *, use_snapshot: bool = False
    ) -> Measured:
        num = sum(len(sample.token_ids) for sample in samples)
        if not any(sample.on_version.any() for sample in samples):
            return Measured({}, {"logprobs": logprobs_at(self.steps)[:num]})
        metrics = {"parity_mean": self.off, "parity_max": 2 * self.off, "parity_tokens": num}
        return Measured(metrics)


def logprobs_at(version: int) -> np.ndarray:
    return np.linspace(
        -3.0,
        -0.5,
        200,
    ) + 0.01 * version * np.sin(np.arange(200))


async def probed(learner: Learner, version: int) -> tuple[int, Probes]:
    """The number and the probes of a version, or of a newer one, when it is announced."""

    async def look() -> PolicyVersion | None:
        newest = await learner.exchange.newest_policy("job")
        return newest if newest is not None and newest.number >= version else None

    await until(look)
    policy = await look()
    assert policy is not None
    assert policy.probes is not None
    return policy.number, policy.probes


async def report(
    learner: Learner, version: int, probes: Probes, logprobs: np.ndarray, **changes: Any
) -> None:
    numbers = {**compare_logprobs(logprobs.tolist(), probes), "most": probes.most}
    before = [old for s in (await learner.exchange.statuses()).values() for old in s.parity]
    fields: dict[str, Any] = {**REPORT, "version": version, **numbers, **changes}
    new = ParityReport(**fields)
    # None is missed between beats.
    await learner.exchange.show_status(a_status("rollout", parity=[*before, new]))


@pytest.fixture
def moving(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> Moving:
    for module in (parity, training):
        monkeypatch.setattr(module, "MIN_COMPARED_TOKENS", 1)
    team = Moving()
    learner.make_team = lambda: team
    return team


@pytest.mark.usefixtures("moving")
async def test_what_agrees_sets_the_limit_and_is_told_with_each_step(learner: Learner) -> None:
    async def is_limit_lowered() -> bool:
        _, probes = await probed(learner, 0)
        return probes.most == 1e-5

    await learner.submit(steps=100_000)
    async with learner.attempting():
        for _ in range(3):
            number, probes = await probed(learner, 0)
            assert (len(probes.token_ids), len(probes.logprobs)) == (63, 62)
            await report(learner, number, probes, np.array(probes.logprobs) + NOISE)
            await learner.reach(number + 2)
            assert probes.most == 1e-3
        await until(is_limit_lowered)
    assert (await learner.record()).state is JobState.RUNNING
    events: list[Any] = [as_dict(event) for event in await learner.events("step:")]
    rows = [row for event in events for row in event.get("parity", [])]
    assert {row["rollout"] for row in rows} == {"rollout-1", None}
    assert all(row["agrees"] for row in rows)


@pytest.mark.usefixtures("moving")
@pytest.mark.parametrize(
    ("version", "offset", "changes", "words"),
    [
        (0, 0.0, {}, "answers as version 0; the learner is at"),
        (None, 0.0, {"holds": 1}, "answers as version 1"),
        (None, -0.5, {}, "answers as no version"),
        (None, 0.0, {"same_prompts": False}, "tokenizer or chat template"),
    ],
)
async def test_the_job_pauses_and_says_what_the_rollout_holds(
    learner: Learner, version: int | None, offset: float, changes: dict[str, Any], words: str
) -> None:
    await learner.submit(steps=100_000)
    async with learner.attempting() as attempt:
        number, probes = await probed(learner, 5)
        logprobs = logprobs_at(number if version is None else version) + offset
        await report(
            learner,
            number,
            probes,
            logprobs[: len(probes.logprobs)],
            **changes,
        )
        await attempt
    record = await learner.record()
    assert (record.state, record.requested) == (JobState.PAUSED, Requested.PAUSE)
    assert words in str(record.error)
    (event,) = [e for e in await learner.events("parity:") if e.level == "warn"]
    assert event.id == f"parity:1:rollout-1:{number}"


def test_an_adapter_that_no_engine_loaded_is_named(tmp_path: Path) -> None:
    attempt = Attempt(
        cast(Any, None),
        "job",
        1,
        a_recipe(model={"lora": {}}),
        tmp_path,
    )
    parity = Parity(attempt, Progress(), cast(Any, None))
    report = ParityReport(
        **REPORT
        | {
            "version": 17,
            "mean": 0.1,
            "max": 0.2,
            "most": 1e-3,
            "holds": 0,
        }
    )
    words = "rollout-1 answers as version 0; the learner is at 17; the adapter is not loaded"
    assert parity._explain(report) == words


async def test_sampled_tokens_with_other_logprobs_are_not_trained_and_the_job_can_go_on(
    learner: Learner, moving: Moving
) -> None:
    await learner.submit()
    moving.off = 0.3
    for _ in range(2):  # resumed while it is as it was
        await learner.exchange.request_state("job", Requested.RUN)
        record = await learner.attempt()
        assert (record.state, record.step, moving.steps) == (JobState.PAUSED, 0, 0)
        assert "computes this model differently" in str(record.error)
        (event,) = await learner.events(f"parity:{record.attempt}:tokens")
        row: Any
        (row,) = as_dict(event)["parity"]
        assert (row["max"], row["agrees"]) == (0.6, False)
    moving.off = 0.0
    await learner.exchange.request_state("job", Requested.RUN)
    assert (await learner.attempt()).state is JobState.SUCCEEDED
