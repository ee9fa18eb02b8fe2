"""A learner without a model: it does the operations of clients' jobs in order, and only counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import numpy as np
from protocol.exchange import Exchange, connect
from protocol.messages import JobRecord, JobState
from protocol.operations import Operation, OperationLog, Result, State

from tests.contract.gateway.stack import Stack, a_model

_EVERY_S = 0.02


@dataclass
class FakeLearner:
    stack: Stack
    works: bool = True
    done: dict[str, list[Operation]] = field(default_factory=dict)
    stopping: Event = field(default_factory=Event)

    async def run(self) -> None:
        async with connect(self.stack.server.url, me="learner-1") as exchange:
            while not self.stopping.is_set():
                # Other tests leave records that cannot be read.
                for record in await exchange.records(await exchange.job_ids()):
                    if isinstance(record, JobRecord) and record.recipe.client and self.works:
                        await self._advance(exchange, record)
                await asyncio.sleep(_EVERY_S)

    async def _advance(self, exchange: Exchange, record: JobRecord) -> None:
        if record.state.is_final:
            return
        log = OperationLog(self.stack.job_folder(record.id))
        done = self.done.setdefault(record.id, [])
        while (operation := log.operation(len(done))) is not None:
            if not done:
                attempt = await exchange.begin_attempt(record.id)
                await exchange.update_job(record.id, attempt, state=JobState.RUNNING)
            log.finish(self._result(log, operation, done))
            done.append(operation)

    def _result(self, log: OperationLog, operation: Operation, done: list[Operation]) -> Result:
        version = sum(
            previous.do in {"optim_step", "load_state"} for previous in [*done, operation]
        )
        values: Any = {"number": operation.number, "version": version}
        if operation.do == "refuse":
            return Result(**values, error=operation.why, is_users=True)
        if operation.data is not None:
            logprobs = -(operation.data.targets / np.float32(100))
            loss = {"loss:sum": float(-(logprobs * operation.data.weights).sum())}
            return Result(**values, lengths=operation.data.lengths, logprobs=logprobs, metrics=loss)
        name = operation.name or f"version-{version:06d}"
        if operation.do in {"save_sampler", "save_state"}:
            kind = {"save_sampler": "samplers", "save_state": "states"}[operation.do]
            state = State(base="tiny", dtype="float32", lora=None, version=version)
            state.write(a_model(log.job_folder / kind / name))
        return Result(**values, name=name, metrics={"grad_norm": 1.5})


@contextmanager
def a_client_learner(stack: Stack) -> Iterator[FakeLearner]:
    learner = FakeLearner(stack)
    thread = Thread(target=lambda: asyncio.run(learner.run()))
    thread.start()
    try:
        yield learner
    finally:
        learner.stopping.set()
        thread.join()
