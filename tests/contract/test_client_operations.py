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
from protocol.recipe import parse_recipe

from services.learner.attempt import RepeatNeeded
from services.learner.training.samples import Measured
from tests.builders import a_job_record
from tests.contract.attempts import PATIENCE_S, Learner, until
from tests.contract.fake_team import FakeTeam

pytestmark = [*(pytest.mark.anyio, pytest.mark.redis, pytest.mark.engine)]
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
        recipe = parse_recipe(
            {
                "name": "session",
                "client": {},
                "model": {"path": "base-model", "max_context": 64, "prompt_template": "{prompt}"},
                "training": {"steps": 10**6, "checkpoint_every": checkpoint_every},
            }
        )
        await self.learner.exchange.submit(a_job_record(recipe=recipe))
        self.log.add(Operation(number=0, do="create"))

    def ask_steps(self, count: int) -> int:
        for _ in range(count):
            self.log.add(Operation(number=self.log.last + 1, do="forward_backward", data=DATA))
            self.log.add(Operation(number=self.log.last + 1, do="optim_step", adam=ADAM))
        return self.log.last

    async def has_result(self, number: int) -> None:
        async def look() -> bool:
            return self.log.result(number) is not None

        await until(look)

    async def has_saved(self, *steps: int) -> None:
        """The checkpoints of these steps are there, and nothing else is written."""
        names = [f"step-{step:06d}" for step in steps]

        async def look() -> bool:
            folder = self.learner.job_dir / "checkpoints"
            return sorted(path.name for path in folder.iterdir()) == names

        await until(look)

    @asynccontextmanager
    async def saving(
        self, checkpoint_every: int, *saved: int
    ) -> AsyncIterator[tuple[int, asyncio.Task[FakeTeam]]]:
        """The last operation of four steps, and the attempt that has done them and saved some."""
        await self.submit(checkpoint_every)
        last = self.ask_steps(4)
        async with self.learner.attempting() as attempt:
            await self.has_result(last)
            await self.has_saved(*saved)
            yield last, attempt

    async def digests(self, steps: int) -> list[object]:
        """What another job's results are if nothing happens to it."""
        team = ClientTeam()
        results: list[object] = []
        for number in range(1, 2 * steps + 1):
            do = "forward_backward" if number % 2 else "optim_step"
            measured = await team.operate(Operation(number=number, do=do))
            name, key = ("loss", "loss:sum") if number % 2 else ("grad_norm", "grad_norm")
            results.append({key: measured.metrics[name]})
        return results

    def results(self, last: int) -> list[Result]:
        results = [self.log.result(number) for number in range(last + 1)]
        return [result for result in results if result is not None]

    def path(self, number: int, kind: str = "result") -> Path:
        return self.log.folder / f"{number:09d}.{kind}"


@pytest.fixture
def client(learner: Learner) -> Client:
    return Client(learner)


async def ends_to_repeat(attempt: asyncio.Task[FakeTeam]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RepeatNeeded, match=r"\.result is lost or damaged"):
            await attempt


def same(results: list[Result], later_operations: list[Result]) -> bool:
    return [str(each) for each in results] == [str(each) for each in later_operations]


@pytest.mark.parametrize(
    ("checkpoint_every", "saved", "number"),
    [(100, [], 1), (2, [2, 4], 6), (2, [2, 4], 7), (3, [3], 2)],
)
async def test_a_result_that_was_damaged_is_made_again_to_the_same_bits(
    client: Client, checkpoint_every: int, saved: list[int], number: int
) -> None:
    async with client.saving(checkpoint_every, *saved) as (last, attempt):
        results = client.results(last)
        client.path(number).write_bytes(b"")
        assert client.log.result_unless_damaged(number) is None  # as the gateway does
        await ends_to_repeat(attempt)
    assert client.path(number).name in await client.learner.warning()
    async with client.learner.attempting():
        await client.has_result(number)
        assert same(client.results(last), results)
        later = client.ask_steps(1)
        await client.has_result(later)


async def test_a_result_that_no_checkpoint_leads_to_is_an_error_that_names_it(
    client: Client,
) -> None:
    async with client.saving(2, 2, 4):
        assert not client.log.knows(3)
        client.path(3).unlink()
        client.log.add(Operation(number=3, do="forward_backward", data=DATA))  # sent again
        await client.has_result(3)
        result = client.log.result(3)
        assert result is not None
        assert result.error.startswith("jobs/job/operations/000000003.result is lost or damaged")
        await client.has_result(client.ask_steps(1))


async def test_a_result_that_a_kill_has_prevented_is_made_by_the_next_attempt(
    client: Client,
) -> None:
    """The checkpoint of an operation may be there before its result is."""
    async with client.saving(2, 2, 4) as (last, _):
        pass
    results = client.results(last)
    client.path(last).unlink()
    async with client.learner.attempting():
        await client.has_result(last)
    assert same(client.results(last), results)


async def test_a_damaged_result_is_made_again_while_operations_are_repeated(
    client: Client,
) -> None:
    await client.submit(checkpoint_every=100)
    last = client.ask_steps(2)
    async with client.learner.attempting():
        await client.has_result(last)
    results = client.results(last)
    client.path(1).write_bytes(client.path(1).read_bytes()[:-1])
    client.path(2).unlink()
    client.path(2).mkdir()
    client.ask_steps(1)
    async with client.learner.attempting():
        await client.has_result(client.log.last)
    assert same(client.results(last), results)


async def test_a_damaged_operation_pauses_the_job_by_name_until_it_is_mended(
    client: Client,
) -> None:
    await client.submit(checkpoint_every=100)
    client.ask_steps(1)
    whole = client.path(1, "operation").read_bytes()
    client.path(1, "operation").write_bytes(b"")
    await client.learner.attempt()
    record = await client.learner.record()
    assert (record.state, record.fault) == (JobState.PAUSED, Fault.MACHINE)
    assert str(record.error).startswith("jobs/job/operations/000000001.operation cannot be read")
    assert str(record.error) in await client.learner.warning()
    client.path(1, "operation").write_bytes(whole)
    async with client.learner.attempting():
        await client.has_result(2)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("after", [0, 3, 6])
async def test_a_disk_that_takes_no_result_pauses_the_job_by_name_and_nothing_is_lost(
    client: Client, monkeypatch: pytest.MonkeyPatch, number: int, after: int
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
        await client.has_result(0)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        for _ in range(2):
            await client.learner.attempt()
            record = await client.learner.record()
            assert (record.state, record.fault) == (JobState.PAUSED, Fault.MACHINE)
            assert os.strerror(number) in str(record.error)
            assert "free space" in str(record.error) or "mount the folder" in str(record.error)
    async with client.learner.attempting():
        await client.has_result(last)
        results = client.results(last)
    assert len(results) == last + 1
    assert not any(result.error for result in results)
    assert not list(client.log.folder.glob(".0*"))
    digests = [result.metrics for result in results if result.metrics]
    assert len({str(each) for each in digests}) == len(digests) == 10
    assert digests == await client.digests(5)
