"""A learner without a model: it does the operations of clients' jobs in order, and only counts."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np
from protocol.exchange import Exchange, connect
from protocol.messages import JobRecord, JobState
from protocol.operations import Operation, OperationLog, Result, State

from tests.contract.gateway.stack import Stack, a_model, beside

KINDS = {"save_sampler": "samplers", "save_state": "states"}


@dataclass
class FakeLearner:
    stack: Stack
    works: bool = True
    done: defaultdict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))

    async def run(self, stopping: Event) -> None:
        async with connect(self.stack.server.url, me="learner-1") as exchange:
            while not stopping.is_set():
                # Other tests leave records that cannot be read.
                for record in await exchange.records(await exchange.job_ids()):
                    if isinstance(record, JobRecord) and record.recipe.client and self.works:
                        await self._advance(exchange, record)
                await asyncio.sleep(0.02)

    async def _advance(self, exchange: Exchange, record: JobRecord) -> None:
        if record.state.is_final:
            return
        log = OperationLog(self.stack.job_folder(record.id))
        done = self.done[record.id]
        while (operation := log.operation(len(done))) is not None:
            if not done:
                attempt = await exchange.begin_attempt(record.id)
                await exchange.update_job(record.id, attempt, state=JobState.RUNNING)
            done.append(operation)
            log.finish(self._result(log, operation, done))

    def _result(self, log: OperationLog, operation: Operation, done: list[Operation]) -> Result:
        version = sum(each.do in {"optim_step", "load_state"} for each in done)
        values: Any = {"number": operation.number, "version": version}
        if operation.do == "refuse":
            return Result(**values, error=operation.why, is_users=True)
        if operation.data is not None:
            logprobs = -(operation.data.targets / np.float32(100))
            loss = {"loss:sum": float(-(logprobs * operation.data.weights).sum())}
            return Result(
                **values,
                lengths=operation.data.lengths,
                logprobs=logprobs,
                metrics=loss,
            )
        name = operation.name or f"version-{version:06d}"
        if kind := KINDS.get(operation.do):
            state = State(base="tiny", dtype="float32", lora=None, version=version)
            state.write(a_model(log.job_folder / kind / name))
        return Result(**values, name=name, metrics={"grad_norm": 1.5})


@contextmanager
def a_client_learner(stack: Stack) -> Iterator[FakeLearner]:
    learner = FakeLearner(stack)
    with beside(lambda stopping: asyncio.run(learner.run(stopping))):
        yield learner
