"""A client's operations by the learner without its ranks, and the cost of a damaged file."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from protocol.messages import Fault, JobState
from protocol.operations import AdamW, Data, Operation, OperationLog, Result

from services.learner.attempt import RepeatNeeded
from services.learner.training.samples import Measured
from tests.builders import a_job_record, a_recipe
from tests.contract.attempts import Learner, until
from tests.contract.fake_team import FakeTeam

ADAM = AdamW(learning_rate=1e-3)
DATA = Data(
    lengths=np.array([2]),
    input_ids=np.array([1, 2]),
    targets=np.array([2, 3]),
    weights=np.ones(2),
    behavior_logprobs=np.zeros(2),
)


class ClientTeam(FakeTeam):
    """Its loss is a digest of all that it was asked to do."""

    async def operate(self, operation: Operation) -> Measured:
        text = f"{self.digest} {operation.do} {operation.number}"
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        value = int(self.digest[:6], 16) / 2**24
        tokens = {"logprobs": np.full(2, -value, np.float32)}
        return Measured({"loss": value, "grad_norm": value}, tokens)


class Client:
    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        learner.make_team = ClientTeam
        self.log = OperationLog(learner.job_dir)

    async def submit(self, checkpoint_every: int) -> None:
        recipe = a_recipe(
            client={},
            model={"path": "base-model", "prompt_template": "{prompt}"},
            training={"steps": 10**6, "checkpoint_every": checkpoint_every},
        )
        await self.learner.exchange.submit(a_job_record(recipe=recipe))
        self.log.add(Operation(number=0, do="create"))

    def ask_steps(self, count: int) -> int:
        for _ in range(count):
            self.log.add(
                Operation(
                    number=self.log.last + 1,
                    do="forward_backward",
                    data=DATA,
                )
            )
            self.log.add(
                Operation(
                    number=self.log.last + 1,
                    do="optim_step",
                    adam=ADAM,
                )
            )
        return self.log.last

    async def until_done(self, number: int) -> list[Result]:
        """The results up to this operation, when it has one."""
        await until(lambda: self.log.result(number))
        results = map(self.log.result, range(number + 1))
        return [result for result in results if result is not None]

    @asynccontextmanager
    async def saving(
        self, checkpoint_every: int, *saved: int
    ) -> AsyncIterator[tuple[list[Result], asyncio.Task[None]]]:
        """The results of four steps, and the attempt that has made them and saved some."""
        names = [f"step-{step:06d}" for step in saved]
        folder = self.learner.job_dir / "checkpoints"
        await self.submit(checkpoint_every)
        last = self.ask_steps(4)
        async with self.learner.attempting() as attempt:
            results = await self.until_done(last)
            await until(lambda: sorted(path.name for path in folder.iterdir()) == names)
            yield results, attempt

    async def paused(self) -> str:
        """Why an attempt has paused the job."""
        record = await self.learner.attempt()
        assert (record.state, record.fault) == (JobState.PAUSED, Fault.MACHINE)
        return str(record.error)

    def path(self, number: int, kind: str = "result") -> Path:
        return self.log.folder / f"{number:09d}.{kind}"


@pytest.fixture
def client(learner: Learner) -> Client:
    return Client(learner)


async def digests(steps: int) -> list[object]:
    """The results of another job if nothing happens to it."""
    team = ClientTeam()
    results: list[object] = []
    for number in range(1, 2 * steps + 1):
        do = "forward_backward" if number % 2 else "optim_step"
        measured = await team.operate(Operation(number=number, do=do))
        key = "loss:sum" if number % 2 else "grad_norm"
        results.append({key: measured.metrics["loss"]})
    return results


def same(results: list[Result], later_results: list[Result]) -> bool:
    return [str(result) for result in results] == [str(result) for result in later_results]


@pytest.mark.parametrize(
    ("checkpoint_every", "saved", "number"),
    [
        (100, [], 1),
        (2, [2, 4], 6),
        (2, [2, 4], 7),
        (3, [3], 2),
    ],
)
async def test_a_result_that_was_damaged_is_made_again_to_the_same_bits(
    client: Client, checkpoint_every: int, saved: list[int], number: int
) -> None:
    async with client.saving(checkpoint_every, *saved) as (results, attempt):
        client.path(number).write_bytes(b"")
        assert client.log.result_unless_damaged(number) is None  # as the gateway does
        with pytest.raises(RepeatNeeded, match=r"\.result is lost or damaged"):
            await attempt
    assert client.path(number).name in await client.learner.warning()
    async with client.learner.attempting():
        await client.until_done(number)
        assert same(await client.until_done(8), results)
        await client.until_done(client.ask_steps(1))


async def test_a_result_that_no_checkpoint_leads_to_is_an_error_that_names_it(
    client: Client,
) -> None:
    async with client.saving(2, 2, 4):
        assert not client.log.knows(3)
        client.path(3).unlink()
        client.log.add(Operation(number=3, do="forward_backward", data=DATA))  # sent again
        *_, result = await client.until_done(3)
        assert result.error.startswith("jobs/job/operations/000000003.result is lost or damaged")
        await client.until_done(client.ask_steps(1))


async def test_a_result_that_a_kill_has_prevented_is_made_by_the_next_attempt(
    client: Client,
) -> None:
    """The checkpoint of an operation may be there before its result is."""
    async with client.saving(2, 2, 4) as (results, _):
        pass
    client.path(8).unlink()
    async with client.learner.attempting():
        assert same(await client.until_done(8), results)


async def test_a_damaged_result_is_made_again_while_operations_are_repeated(
    client: Client,
) -> None:
    async with client.saving(100) as (results, _):
        pass
    client.path(1).write_bytes(client.path(1).read_bytes()[:-1])
    client.path(2).unlink()
    client.path(2).mkdir()
    last = client.ask_steps(1)
    async with client.learner.attempting():
        assert same((await client.until_done(last))[:9], results)


async def test_a_damaged_operation_pauses_the_job_by_name_until_it_is_mended(
    client: Client,
) -> None:
    await client.submit(checkpoint_every=100)
    client.ask_steps(1)
    operation = client.path(1, "operation")
    whole = operation.read_bytes()
    operation.write_bytes(b"")
    error = await client.paused()
    assert error.startswith("jobs/job/operations/000000001.operation cannot be read")
    assert error in await client.learner.warning()
    operation.write_bytes(whole)
    async with client.learner.attempting():
        await client.until_done(2)


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "free space"), (errno.EROFS, "mount the folder")]
)
@pytest.mark.parametrize("after", [0, 3, 6])
async def test_a_disk_that_takes_no_result_pauses_the_job_by_name_and_nothing_is_lost(
    client: Client, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str, after: int
) -> None:
    """Results, checkpoints and samples cannot be made durable, as on a disk that is full."""
    await client.submit(checkpoint_every=2)
    last = client.ask_steps(5)
    fsync = os.fsync
    broken_at = client.path(after)

    def fail(descriptor: int) -> None:
        if broken_at.exists():
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    async with client.learner.attempting():
        await client.until_done(0)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        for _ in range(2):
            error = await client.paused()
            assert os.strerror(number) in error
            assert remedy in error
    async with client.learner.attempting():
        results = await client.until_done(last)
    assert len(results) == last + 1
    assert not any(result.error for result in results)
    assert not list(client.log.folder.glob(".0*"))
    metrics = [result.metrics for result in results if result.metrics]
    assert len(metrics) == 10
    assert metrics == await digests(5)
