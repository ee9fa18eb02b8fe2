"""Tasks whose answers or solutions graders cannot read: a real learner asks a real grader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from protocol.exchange import Exchange, connect
from protocol.messages import (
    Graded,
    GradedGroup,
    JobState,
    RolloutRequest,
    Task,
    TrialResult,
    Ungradable,
)

from services.chassis.service import Service
from services.grader.worker import answer_trials_forever
from services.learner.attempt import Attempt, JobFault
from services.learner.job import assembly
from services.learner.job.references import readable_tasks
from services.learner.supply.evaluator import HeldOut
from tests.builders import a_job_record, a_recipe, a_task
from tests.contract import attempts
from tests.contract.attempts import Learner, an_answer, write_tasks
from tests.contract.exchange_steps import record_of, running
from tests.contract.valkey_server import Server
from tests.unit.grader.pools import inline_tools

ANSWERS = ("2", "???", r"\frac{1}{2}", "g(2)", "Paris")
SUMS = {"prompt": "3 boxes of 12 eggs, 4 broken?", "answer": "32"}
BY_NUMBERS = "3 * 12 = 36. 36 - 4 = 32."
BY_LETTERS = "We have $x + y = z$, so $x = z - y$."
BOTH_MEAN = [
    {"verifier": "equation_steps", "if_ungradable": "leave_out"},
    "model_judge",
]


@asynccontextmanager
async def grading(server: Server) -> AsyncIterator[None]:
    """A grader answers trials beside the body, as its own user of the server."""
    async with connect(server.url_of("grader"), me="grader-1") as exchange:
        service = cast(Service, SimpleNamespace(exchange=exchange))
        async with running(answer_trials_forever(service, inline_tools())):
            yield


@pytest.fixture
async def grader(server: Server) -> AsyncIterator[None]:
    async with grading(server):
        yield


def a_file(*answers: str) -> tuple[Task, ...]:
    return tuple(a_task(id=f"task-{n}", answer=answer) for n, answer in enumerate(answers))


def solved(*solutions: str | None) -> tuple[Task, ...]:
    return tuple(
        a_task(
            id=str(n),
            solution=text,
            **SUMS,
        )
        for n, text in enumerate(solutions)
    )


@dataclass
class Job:
    """The tasks that a job's first attempt samples."""

    exchange: Exchange
    folder: Path

    async def check(
        self, tasks: tuple[Task, ...], held_out: tuple[Task, ...] = (), **reward: Any
    ) -> tuple[tuple[Task, ...], HeldOut]:
        paths = {"train": "train", "held_out": "held_out"}
        recipe = a_recipe(tasks=paths, reward=reward, evaluation={"every": 1})
        await self.exchange.submit(a_job_record(recipe=recipe))
        await self.exchange.renew_lease()
        number = await self.exchange.begin_attempt("job")
        write_tasks(self.folder, tasks)
        write_tasks(self.folder, held_out, "held_out")
        attempt = Attempt(self.exchange, "job", number, recipe, self.folder / f"job-{number}")
        files = {"": tasks}, {"": held_out} if held_out else {}
        readable, others = await readable_tasks(attempt, self.folder, files, timeout_s=5)
        return readable[""], others


@pytest.fixture
def job(exchange: Exchange, tmp_path: Path) -> Job:
    return Job(exchange, tmp_path)


async def test_unreadable_tasks_are_never_sampled_and_every_attempt_has_the_same_order(
    learner: Learner, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: dict[str, set[str]] = {}

    def record_and_answer(request: RolloutRequest, version: int) -> GradedGroup:
        sampled.setdefault(request.key, set()).add(request.task.id)
        return an_answer(request, version)

    monkeypatch.setattr(attempts, "an_answer", record_and_answer)
    await learner.submit()
    write_tasks(learner.data_dir / "files", a_file(*ANSWERS))
    async with grading(server):
        await learner.killed_at(3)
    record = await learner.attempt()  # it asks no grader
    assert (record.state, record.unreadable_answers) == (JobState.SUCCEEDED, 2)
    assert {len(tasks) for tasks in sampled.values()} == {1}
    assert set().union(*sampled.values()) == {"task-0", "task-2", "task-4"}
    (event,) = await learner.events("unreadable:training_file")
    assert event.level == "warn"
    assert "2 of 5 answers: line 3 ('???'), line 5" in event.message


async def test_a_job_waits_for_a_grader_and_goes_on_when_there_is_one(
    learner: Learner, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await learner.submit()
    write_tasks(learner.data_dir / "files", a_file(*ANSWERS))
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "readable_tasks", partial(readable_tasks, timeout_s=0.05))
        record = await learner.attempt()
    assert (record.state, record.failures) == (JobState.PAUSED, 0)
    assert "check that a grader of this release runs" in str(record.error)
    assert await learner.exchange.take_trial(0.05) is None
    async with grading(server):
        record = await learner.attempt()
    assert (record.state, record.unreadable_answers) == (JobState.SUCCEEDED, 2)


async def test_an_answer_that_a_grader_had_no_time_to_read_is_tried_again(
    job: Job, server: Server
) -> None:
    async def answer_at_the_second_try() -> None:
        async with connect(server.url_of("grader"), me="grader-1") as grader:
            for outcome in (Ungradable(reason="starved"), Graded(value=1)):
                trial = await grader.take_trial(5)
                assert trial is not None
                await grader.answer_trial(trial, TrialResult(outcome=outcome))

    tasks = a_file("Paris")
    (readable, _), _ = await asyncio.gather(job.check(tasks), answer_at_the_second_try())
    assert readable == tasks


@pytest.mark.usefixtures("grader")
async def test_held_out_files_lose_theirs(job: Job) -> None:
    _, held_out = await job.check(a_file("2"), a_file(*ANSWERS))
    assert {task.id for task in held_out[""]} == {"task-0", "task-2", "task-4"}


async def test_answers_that_nothing_compares_with_are_not_asked_for(job: Job) -> None:
    tasks = a_file(*ANSWERS)
    readable, _ = await job.check(tasks, outcome="string_check")
    assert readable == tasks


@pytest.mark.usefixtures("grader")
@pytest.mark.parametrize(
    ("solutions", "process", "share"),
    [
        ([BY_NUMBERS, BY_NUMBERS, BY_LETTERS, None], "equation_steps", 2 / 3),
        ([BY_NUMBERS, BY_LETTERS, BY_LETTERS], BOTH_MEAN, 1 / 3),
        ([None, None], "equation_steps", None),
    ],
)
async def test_the_share_of_solutions_that_equation_steps_can_judge_is_told(
    job: Job, solutions: list[str | None], process: Any, share: float | None
) -> None:
    tasks = solved(*solutions)
    readable, _ = await job.check(tasks, process=process)
    assert readable == tasks
    assert (await record_of(job.exchange)).readable_solutions == share
    (_, event), *_ = await job.exchange.events("job")
    assert "equation_steps can judge" in event.message


@pytest.mark.usefixtures("grader")
@pytest.mark.parametrize(
    ("tasks", "held_out", "reward", "words"),
    [
        (
            a_file("???", r"\frac{1}{"),
            (),
            {},
            "^training_file: graders cannot read 2 of 2 answers.*verifier than math_answer",
        ),
        (a_file("2"), a_file("???"), {}, "^validation_file: graders cannot read 1 of 1 answers"),
        (
            solved(BY_NUMBERS, BY_LETTERS, BY_LETTERS),
            (),
            {"process": "equation_steps"},
            r"^recipe.reward.process: equation_steps can judge 1 of 3 .* use model_judge",
        ),
    ],
)
async def test_a_file_that_leaves_too_little_is_refused_with_the_remedy(
    job: Job, tasks: Any, held_out: Any, reward: dict[str, Any], words: str
) -> None:
    with pytest.raises(JobFault, match=words):
        await job.check(tasks, held_out, **reward)
