"""A session: the steps come from a client, as operations of a log, done in order and once.

After a kill the next attempt restores the last checkpoint, which holds the weights as an operation
has left them, and does those after it again. Results that the client may have seen stay.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from protocol import weights
from protocol.messages import Doing, ErrorKind, StepMetrics, Task
from protocol.operations import (
    PROBES,
    DamagedFile,
    Operation,
    OperationLog,
    Result,
    State,
    sampler_name,
)
from protocol.recipe import Purpose

from services.learner.attempt import MachineFault, RepeatNeeded, as_json
from services.learner.durable.checkpoint import MODEL, write_whole
from services.learner.durable.sample_rows import Row
from services.learner.durable.trained_rows import MOST_SEQUENCES, data_rows, rows_of_data
from services.learner.job.learning import Learning
from services.learner.training.samples import Measured

PROBED = (Task(id="probe", prompt="Add 17 and 25, step by step. Then count from 1 to 12."),)
_LOOK_S = 0.01
_LOOK_FOR_LOST_S = 1.0
_KEPT_SAMPLERS = 16  # without a name
_REPEATED = {"forward_backward", "optim_step", "load_state", "end"}  # that change this process


class OperationFault(Exception):
    """An operation that cannot be done; the text tells the client what to change."""


@dataclass
class Session:
    """A client's operations, from the one after the checkpoint to the client's end."""

    learning: Learning
    _next: int = -1
    _pending: Counter[str] = field(default_factory=Counter)  # what adds up until the optim_step
    _rows: list[Row] = field(default_factory=list)  # of data that add up
    _loss: float = 0.0
    _has_ended: bool = False
    _looks_again_at: float = 0.0  # for results that are lost

    def __post_init__(self) -> None:
        self.log = OperationLog(self.learning.attempt.folder)
        self._next = self.learning.progress.operation + 1
        self.do: dict[str, Callable[[Operation], Awaitable[Result]]] = {
            "create": self._nothing,
            "forward": self._compute,
            "forward_backward": self._compute,
            "optim_step": self._step,
            "load_state": self._load_state,
            "save_state": self._save_state,
            "save_sampler": self._save_sampler,
            "refuse": self._refuse,
            "end": self._end,
        }

    @property
    def is_due(self) -> bool:
        return not self._has_ended

    async def advance(self) -> None:
        """Consumes the next operation; produces its result."""
        control, number = self.learning.control, self._next
        with control.doing(Doing.WAITS_FOR_CLIENT, timed="wait_for_client"):
            operation = await control.unless_interrupted(self._arrival(number))
        is_kept = await asyncio.to_thread(self.log.result_unless_damaged, number) is not None
        if operation.do in _REPEATED or not is_kept:
            try:
                result = await self.do[operation.do](operation)
            except OperationFault as fault:
                result = Result(number=number, error=str(fault), is_users=True)
            await asyncio.to_thread(self.log.finish, result)
        self._next += 1

    async def _arrival(self, number: int) -> Operation:
        """The operation, once it is in the log; the job pauses where the client falls silent."""
        assert self.learning.recipe.client is not None
        silent_s = self.learning.recipe.client.silent_s
        touched, since = self.log.touched, time.monotonic()
        await self._answer_lost()
        while (operation := await asyncio.to_thread(self.log.operation, number)) is None:
            await self._answer_lost()
            await asyncio.sleep(_LOOK_S)
            if (now := self.log.touched) != touched:
                touched, since = now, time.monotonic()
            elif time.monotonic() > since + silent_s:
                message = f"its client has been silent for {silent_s:g} s; its next call resumes it"
                await self.learning.control.pause(message, ErrorKind.SILENT_CLIENT)
                since = math.inf
        return operation

    async def _answer_lost(self) -> None:
        """Look for operations that are done and have no result, as if it was damaged.

        Raises:
            RepeatNeeded: if an earlier checkpoint leads to the result.
        """
        if (now := time.monotonic()) < self._looks_again_at:
            return
        is_first, self._looks_again_at = not self._looks_again_at, now + _LOOK_FOR_LOST_S
        checkpoints = self.learning.versions.checkpoints
        for number in await asyncio.to_thread(self.log.unanswered, self._next):
            lost = f"{self.log.result_name(number)} is lost or damaged"
            # The first look comes after the attempt has begun where such a checkpoint is.
            if not is_first and await asyncio.to_thread(checkpoints.can_repeat, number):
                again = f"{lost}; it is made again from an earlier checkpoint"
                event_id = f"lost:{number}:{self.learning.attempt.number}"
                await self.learning.attempt.say(event_id, again, level="warn")
                raise RepeatNeeded(again)
            words = f"{lost}, and no checkpoint is older: the weights hold what the operation did"
            await asyncio.to_thread(self.log.finish, Result(number=number, error=words))

    async def _nothing(self, operation: Operation) -> Result:
        return Result(number=operation.number, version=self.learning.progress.step)

    async def _refuse(self, operation: Operation) -> Result:
        raise OperationFault(operation.why)

    async def _end(self, operation: Operation) -> Result:
        self._has_ended = True
        return await self._nothing(operation)

    async def _compute(self, operation: Operation) -> Result:
        assert operation.data is not None
        num_ids = self.learning.team.num_ids
        largest = max(operation.data.input_ids.max(), operation.data.targets.max())
        if num_ids is not None and largest >= num_ids:
            raise OperationFault(f"data: the model has no token {largest}, only {num_ids} of them")
        measured = await self._operate(operation)
        loss, logprobs = measured.metrics["loss"], measured.tokens["logprobs"]
        if operation.do == "forward_backward":
            self._loss += loss
            self._pending.update(
                sequences=len(operation.data.lengths), positions=len(logprobs), parts=1
            )
            room = MOST_SEQUENCES - len(self._rows)
            self._rows += islice(data_rows(operation, logprobs), room)
        if not math.isfinite(loss) or not np.isfinite(logprobs).all():
            raise OperationFault(f"the loss is {loss}; lower the learning rate or the advantages")
        return Result(
            number=operation.number,
            version=self.learning.progress.step,
            metrics={"loss:sum": loss},
            lengths=operation.data.lengths,
            logprobs=logprobs,
        )

    async def _step(self, operation: Operation) -> Result:
        learning, adam = self.learning, operation.adam
        assert adam is not None
        norm = (await self._operate(operation)).metrics["grad_norm"]
        told = {"loss": self._loss, **self._pending, "learning_rate": adam.learning_rate}
        rows, self._rows = self._rows, []
        self._loss, self._pending = 0.0, Counter()
        if not math.isfinite(norm):
            raise OperationFault(
                "the gradient is not finite: the weights stay as they were, and it is gone"
            )
        if rows:
            await self._keep(rows)
        await self._changed(operation, {**told, "grad_norm": norm})
        metrics = {"grad_norm": norm}
        return Result(number=operation.number, version=learning.progress.step, metrics=metrics)

    async def _keep(self, rows: list[Row]) -> None:
        learning, store = self.learning, self.learning.versions.store
        with learning.control.doing(Doing.KEEPS_SAMPLES, timed="keep_samples"):
            decode = learning.prompts.decode
            ids = ([row["prompt_ids"].tolist(), row["token_ids"].tolist()] for row in rows)
            texts = await asyncio.gather(*map(decode, ids))
            whole = partial(rows_of_data, rows, texts)
            await store.append(Purpose.TRAIN, learning.progress.step, whole)

    async def _operate(self, operation: Operation) -> Measured:
        with self.learning.control.doing(Doing.OPERATES, operation.number, timed="train"):
            return await self.learning.team.operate(operation)

    async def _changed(self, operation: Operation, told: dict[str, Any]) -> None:
        """The weights are others now: people hear of them, and at times they are saved."""
        learning, progress = self.learning, self.learning.progress
        progress.operation, progress.step = operation.number, progress.step + 1
        step, seconds = progress.step, learning.lap()
        progress.note_work(seconds, told.get("sequences", 0), told.get("positions", 0))
        progress.totals["updates"] += 1
        spent = progress.note_phases(learning.phase_seconds())
        data = {**told, **spent, **learning.parity.told(), "step": step, "seconds": seconds}
        await learning.attempt.say(
            f"step:{step}", f"step {step}", data=StepMetrics(**as_json(data))
        )
        if step > progress.made_before:
            await learning.attempt.update(step=step, attempts_since_checkpoint=0, failures=0)
        is_load = operation.do == "load_state"  # whose source may go once the client knows
        if is_load or step % learning.recipe.training.checkpoint_every == 0:
            needed = learning.versions.checkpoints.first_operation_needed()
            await asyncio.to_thread(self.log.forget_before, needed)
            await (learning.versions.save() if is_load else learning.versions.begin_save())

    async def _load_state(self, operation: Operation) -> Result:
        """Take the weights of a saved state, perhaps with its optimizer."""
        if self._pending:
            raise OperationFault("load_state would discard a gradient; do an optim_step before it")
        source, kept = Path(operation.source), self.log.result(operation.number)
        if kept is not None and kept.error:  # what was missing may be there by now
            return kept
        try:
            name = await asyncio.to_thread(self._loadable, source, operation)
        except OperationFault as fault:
            if kept is None:
                raise
            name = str(fault)
        if kept is not None and name != kept.name:
            words = f"{source}: {kept.name} is to be loaded again, but now there is: {name}"
            raise MachineFault(f"{words}; restore it from a backup, or cancel the job")
        await self.learning.team.load(source, with_optimizer=operation.with_optimizer)
        await self._changed(operation, {})
        return (await self._nothing(operation)).model_copy(update={"name": name})

    def _loadable(self, source: Path, operation: Operation) -> str:
        """Which state a folder holds."""
        try:
            weights.verify(source)
            state = State.of(source)
        except (OSError, ValueError, weights.WeightsError) as error:
            raise OperationFault(f"path: there is no state in {source.name}: {error}") from error
        if not state.fits(own := self._state(operation)):
            raise OperationFault(f"path: the state is of {state.words}, this model is {own.words}")
        return f"the state of operation {state.operation}"

    def _state(self, operation: Operation) -> State:
        model, version = self.learning.recipe.model, self.learning.progress.step
        made = {"version": version, "operation": operation.number}
        return State(base=model.path, dtype=model.dtype, lora=model.lora, **made)

    async def _save_state(self, operation: Operation) -> Result:
        team, folder = self.learning.team, self.learning.attempt.folder / "states"
        if self._pending:
            raise OperationFault("save_state would lose a gradient; do an optim_step before it")

        async def fill(target: Path) -> None:
            await team.save(target)
            await team.export(target / MODEL)
            await team.written(target)

        return await self._save(operation, folder / operation.name, fill)

    async def _save_sampler(self, operation: Operation) -> Result:
        learning, folder = self.learning, self.learning.attempt.folder / "samplers"
        version = learning.progress.step
        name = operation.name or sampler_name(version)

        async def fill(target: Path) -> None:
            await learning.team.export(target)
            if (probes := learning.parity.of(version)) is not None:
                (target / PROBES).write_text(probes.model_dump_json(), encoding="utf-8")

        if not operation.name and (folder / name).is_dir():  # nothing has changed since
            return Result(number=operation.number, version=version, name=name)
        with learning.control.doing(Doing.MEASURES_PARITY, timed="probe"):
            await learning.parity.score(learning.team, version)
        result = await self._save(operation, folder / name, fill)
        await asyncio.to_thread(_remove_oldest, folder)
        return result

    async def _save(
        self, operation: Operation, target: Path, fill: Callable[[Path], Awaitable[None]]
    ) -> Result:
        state = self._state(operation)

        async def fill_and_seal(folder: Path) -> None:
            await fill(folder)
            state.write(folder)
            await asyncio.to_thread(weights.seal, folder)

        if not _is_done(target, operation):
            if operation.name and target.is_dir() and not operation.overwrite:
                raise OperationFault(f"{operation.name} is there; set overwrite, or rename it")
            with self.learning.control.doing(Doing.SAVES, timed="publish"):
                await write_whole(target, fill_and_seal, attempt=self.learning.attempt.number)
        return Result(number=operation.number, version=state.version, name=target.name)


def _is_done(target: Path, operation: Operation) -> bool:
    """Whether an attempt that ended before it told so has saved it, and perhaps others since."""
    try:
        return State.of(target).operation >= operation.number
    except FileNotFoundError:
        return False
    except DamagedFile:
        if operation.overwrite or not operation.name:
            return False
        raise


def _remove_oldest(folder: Path) -> None:
    """Of the samplers without a name those stay that were asked last."""
    unnamed = folder.glob(sampler_name(None))
    for path in sorted(unnamed, key=lambda each: each.stat().st_mtime)[:-_KEPT_SAMPLERS]:
        shutil.rmtree(path)
