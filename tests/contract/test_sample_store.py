"""The sample store of a job: nothing that a step used or dropped is missing, whoever dies."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.messages import JobState
from protocol.recipe import Purpose
from protocol.samples import USED

from tests.contract.attempts import Learner, answering
from tests.contract.valkey_server import Server
from tests.kept_samples import all_samples, counted, fates

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def ledger_of(learner: Learner, name: str = "groups") -> dict[str, int]:
    record = await learner.record()
    assert record.state is JobState.SUCCEEDED, record.error
    account: Any = record.result[name]
    return {USED: account["trained"], **account["dropped"]}


async def test_steps_that_a_checkpoint_holds_are_in_the_store_and_not_written_again(
    learner: Learner, server: Server
) -> None:
    await learner.submit()
    async with answering(server.url):
        await learner.killed_at(step=5)
        await learner.attempt()
    attempts: dict[int, list[int]] = {}
    for rows in all_samples(learner.job_dir / "samples"):
        attempts.setdefault(rows[0]["step"], []).append(rows[0]["attempt"])
    assert [attempts[step] for step in range(4)] == [[1, 1]] * 4
    assert attempts[5] == [2, 2]
    assert sorted(attempts) == list(range(6))


async def test_evaluations_and_the_critics_own_steps_are_in_the_store(
    learner: Learner, server: Server
) -> None:
    critic = {"algorithm": {"advantage": "gae"}, "critic": {"pretrain_steps": 2}}
    evaluation = {"evaluation": {"samples": 2, "every": 2}}
    await learner.submit(tables=critic | evaluation, steps=2)
    async with answering(server.url, "pretrain:2", "eval:7"):
        await learner.attempt()
    samples = learner.job_dir / "samples"
    names = {
        Purpose.PRETRAIN: "pretraining_groups",
        Purpose.TRAIN: "groups",
        Purpose.EVAL: "evaluation_groups",
    }
    for purpose, name in names.items():
        assert counted(fates(samples, purpose)) == await ledger_of(learner, name)
    kept = {rows[0]["key"]: rows for rows in all_samples(samples)}
    assert [kept[f"pretrain:{number}"][0]["step"] for number in range(4)] == [0, 0, 1, 1]
    assert [kept[f"eval:{number}"][0]["step"] for number in (0, 4, 5, 9)] == [0, 0, 2, 2]
    assert [row["reward"] for row in kept["eval:0"]] == [None, None]
    assert [row["reward"] for row in kept["pretrain:0"]] == [0.0, 1.0]
    assert [(row["fate"], row["index"]) for row in kept["eval:7"]] == [("failures", None)]
