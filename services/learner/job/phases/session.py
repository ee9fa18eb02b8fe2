"""A session: a client sends steps as operations of a log; each is done once, in order.

After a kill the next attempt restores the last checkpoint, which holds the weights after some
operation, and repeats the later operations. Results that the client may have seen stay.
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

from services.learner.attempt import MachineFault, RepeatNeeded, to_json
from services.learner.durable.checkpoint import MODEL, write_whole
from services.learner.durable.sample_rows import Row
from services.learner.durable.trained_rows import MAX_SEQUENCES, build_data_rows, datum_rows
from services.learner.job.learning import Learning
from services.learner.training.samples import Measured

PROBED = (Task(id="probe", prompt="Add 17 and 25, step by step. Then count from 1 to 12."),)
_POLL_S = 0.01  # it delays an operation of a client that waits for each result
_LOST_POLL_S = 1.0  # between looks for lost results, which read the folder of the log
_MAX_UNNAMED_SAMPLERS = 16  # each is a copy of the model
_CHANGING = {"forward_backward", "optim_step", "load_state", "end"}  # repeated after a restore


class OperationFault(Exception):
    """An operation cannot be done; the text tells the client what to change."""


@dataclass
class Session:
    """A client's operations, from the one after the checkpoint to the client's end."""

    learning: Learning
    _next: int = -1
    _gradient: Counter[str] = field(default_factory=Counter)  # the size of its data so far
    _rows: list[Row] = field(default_factory=list)  # of the gradient's data
    _loss: float = 0.0
    _has_ended: bool = False
    _next_look_at: float = 0.0  # for lost results

    def __post_init__(self) -> None:
        self.log = OperationLog(self.learning.attempt.folder)
        self._next = self.learning.progress.operation + 1
        self.do: dict[str, Callable[[Operation], Awaitable[Result]]] = {
            "create": self._do_nothing,
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
        control = self.learning.control
        number = self._next
        with control.during(Doing.WAITS_FOR_CLIENT, timed="wait_for_client"):
            operation = await control.wait_interruptibly(self._next_operation(number))
        stored = await asyncio.to_thread(self.log.result_unless_damaged, number)
        if stored is None or operation.do in _CHANGING:
            try:
                result = await self.do[operation.do](operation)
            except OperationFault as fault:
                result = Result(number=number, error=str(fault), is_users=True)
            await asyncio.to_thread(self.log.finish, result)
        self._next += 1

    async def _next_operation(self, number: int) -> Operation:
        """Return the operation once the log has it; pause the job if the client is silent."""
        client = self.learning.recipe.client
        assert client is not None
        touched = self.log.touched
        since = time.monotonic()
        await self._handle_lost_results()
        while (operation := await asyncio.to_thread(self.log.operation, number)) is None:
            await self._handle_lost_results()
            await asyncio.sleep(_POLL_S)
            if self.log.touched != touched:
                touched = self.log.touched
                since = time.monotonic()
            elif time.monotonic() > since + client.silent_s:
                await self.learning.control.pause(
                    f"its client has been silent for {client.silent_s:g} s; its next call "
                    "resumes it",
                    ErrorKind.SILENT_CLIENT,
                )
                since = math.inf
        return operation

    async def _handle_lost_results(self) -> None:
        """Look for finished operations without a result, and repeat them or answer with an error.

        Raises:
            RepeatNeeded: if an earlier checkpoint leads to the result.
        """
        now = time.monotonic()
        if now < self._next_look_at:
            return
        is_first_look = not self._next_look_at
        self._next_look_at = now + _LOST_POLL_S
        attempt = self.learning.attempt
        checkpoints = self.learning.versions.checkpoints
        for number in await asyncio.to_thread(self.log.unanswered, self._next):
            lost = f"{self.log.result_name(number)} is lost or damaged"
            # If such a checkpoint existed before the first look, the attempt began with it.
            if not is_first_look and await asyncio.to_thread(checkpoints.can_repeat, number):
                message = f"{lost}; it is made again from an earlier checkpoint"
                await attempt.warn(f"lost:{number}:{attempt.number}", message)
                raise RepeatNeeded(message)
            error = f"{lost}, and every checkpoint is newer; the weights include the operation"
            await asyncio.to_thread(self.log.finish, Result(number=number, error=error))

    async def _do_nothing(self, operation: Operation) -> Result:
        return Result(number=operation.number, version=self.learning.progress.step)

    async def _refuse(self, operation: Operation) -> Result:
        raise OperationFault(operation.why)

    async def _end(self, operation: Operation) -> Result:
        self._has_ended = True
        return await self._do_nothing(operation)

    async def _compute(self, operation: Operation) -> Result:
        data = operation.data
        assert data is not None
        num_ids = self.learning.team.num_ids
        largest = max(data.input_ids.max(), data.targets.max())
        if num_ids is not None and largest >= num_ids:
            raise OperationFault(f"data: token {largest} is not below the model's {num_ids} ids")
        measured = await self._operate(operation)
        loss = measured.metrics["loss"]
        logprobs = measured.tokens["logprobs"]
        if operation.do == "forward_backward":
            self._loss += loss
            self._gradient.update(sequences=len(data.lengths), positions=len(logprobs), parts=1)
            room = MAX_SEQUENCES - len(self._rows)
            self._rows += islice(datum_rows(operation, logprobs), room)
        if not math.isfinite(loss) or not np.isfinite(logprobs).all():
            raise OperationFault(f"the loss is {loss}; lower the learning rate or the advantages")
        return Result(
            number=operation.number,
            version=self.learning.progress.step,
            metrics={"loss:sum": loss},
            lengths=data.lengths,
            logprobs=logprobs,
        )

    async def _step(self, operation: Operation) -> Result:
        assert operation.adam is not None
        measured = await self._operate(operation)
        metrics = {"grad_norm": measured.metrics["grad_norm"]}
        event = {
            "loss": self._loss,
            **self._gradient,
            "learning_rate": operation.adam.learning_rate,
            **metrics,
        }
        rows = self._rows
        self._rows = []
        self._loss = 0.0
        self._gradient = Counter()
        if not math.isfinite(metrics["grad_norm"]):
            raise OperationFault(
                "the gradient is not finite; it is discarded, and the weights are unchanged"
            )
        if rows:
            await self._store_rows(rows)
        await self._finish_step(operation, event)
        version = self.learning.progress.step
        return Result(number=operation.number, version=version, metrics=metrics)

    async def _store_rows(self, rows: list[Row]) -> None:
        learning = self.learning
        with learning.control.during(Doing.KEEPS_SAMPLES, timed="keep_samples"):
            ids = ([row["prompt_ids"].tolist(), row["token_ids"].tolist()] for row in rows)
            texts = await asyncio.gather(*map(learning.prompts.decode, ids))
            whole_rows = partial(build_data_rows, rows, texts)
            await learning.versions.store.append(Purpose.TRAIN, learning.progress.step, whole_rows)

    async def _operate(self, operation: Operation) -> Measured:
        with self.learning.control.during(Doing.OPERATES, operation.number, timed="train"):
            return await self.learning.team.operate(operation)

    async def _finish_step(self, operation: Operation, event: dict[str, Any]) -> None:
        """Count a change of the weights, report it, and save a checkpoint if one is due."""
        learning = self.learning
        progress = learning.progress
        versions = learning.versions
        progress.operation = operation.number
        progress.step += 1
        step = progress.step
        seconds = learning.lap()
        progress.note_work(seconds, event.get("sequences", 0), event.get("positions", 0))
        progress.totals["updates"] += 1
        data = {
            **event,
            **progress.note_phases(learning.phase_seconds()),
            **learning.parity.take_results(),
            "bill": await learning.make_bill(),
            "step": step,
            "seconds": seconds,
        }
        step_metrics = StepMetrics(**to_json(data))
        await learning.attempt.report(f"step:{step}", f"step {step}", data=step_metrics)
        if step > progress.steps_reported:
            await learning.attempt.update(step=step, attempts_since_checkpoint=0, failures=0)
        # The client may delete the source of a load_state once it has the result.
        is_load = operation.do == "load_state"
        if is_load or step % learning.recipe.training.checkpoint_every == 0:
            first_needed = versions.checkpoints.first_operation_needed()
            await asyncio.to_thread(self.log.forget_before, first_needed)
            await (versions.save() if is_load else versions.begin_save())

    async def _load_state(self, operation: Operation) -> Result:
        """Load the weights of a saved state, and its optimizer if that is requested."""
        if self._gradient:
            raise OperationFault("load_state would discard a gradient; do an optim_step before it")
        source = Path(operation.source)
        stored = self.log.result(operation.number)
        # Do not load a state now that was missing then.
        if stored is not None and stored.error:
            return stored
        try:
            name = await asyncio.to_thread(self._check_state, source, operation)
        except OperationFault as fault:
            if stored is None:
                raise
            name = str(fault)
        if stored is not None and name != stored.name:
            raise MachineFault(
                f"{source}: {stored.name} must be loaded again, but the folder now holds: {name}; "
                "restore it from a backup, or cancel the job"
            )
        await self.learning.team.load(source, with_optimizer=operation.with_optimizer)
        await self._finish_step(operation, {})
        return (await self._do_nothing(operation)).model_copy(update={"name": name})

    def _check_state(self, source: Path, operation: Operation) -> str:
        """Return which state a folder holds."""
        try:
            weights.verify(source)
            state = State.read(source)
        except (OSError, ValueError, weights.WeightsError) as error:
            raise OperationFault(f"path: there is no state in {source.name}: {error}") from error
        current = self._current_state(operation)
        if not state.fits(current):
            raise OperationFault(
                f"path: the state is of {state.words}, this model is {current.words}"
            )
        return f"the state of operation {state.operation}"

    def _current_state(self, operation: Operation) -> State:
        model = self.learning.recipe.model
        return State(
            base=model.path,
            dtype=model.dtype,
            lora=model.lora,
            version=self.learning.progress.step,
            operation=operation.number,
        )

    async def _save_state(self, operation: Operation) -> Result:
        if self._gradient:
            raise OperationFault("save_state would lose a gradient; do an optim_step before it")
        team = self.learning.team

        async def fill(target: Path) -> None:
            await team.save(target)
            await team.export(target / MODEL)
            await team.written(target)

        folder = self.learning.attempt.folder / "states" / operation.name
        return await self._save(operation, folder, fill)

    async def _save_sampler(self, operation: Operation) -> Result:
        learning = self.learning
        version = learning.progress.step
        folder = learning.attempt.folder / "samplers"
        name = operation.name or sampler_name(version)

        async def fill(target: Path) -> None:
            await learning.team.export(target)
            probes = learning.parity.find_probes(version)
            if probes is not None:
                (target / PROBES).write_text(probes.model_dump_json(), encoding="utf-8")

        # Nothing has changed since this version was saved.
        if not operation.name and (folder / name).is_dir():
            return Result(number=operation.number, version=version, name=name)
        with learning.control.during(Doing.MEASURES_PARITY, timed="probe"):
            await learning.parity.score(learning.team, version)
        result = await self._save(operation, folder / name, fill)
        await asyncio.to_thread(_remove_oldest_samplers, folder)
        return result

    async def _save(
        self, operation: Operation, target: Path, fill: Callable[[Path], Awaitable[None]]
    ) -> Result:
        state = self._current_state(operation)

        async def fill_and_seal(folder: Path) -> None:
            await fill(folder)
            state.write(folder)
            await asyncio.to_thread(weights.seal, folder)

        if not _is_saved(target, operation):
            if operation.name and target.is_dir() and not operation.overwrite:
                raise OperationFault(f"{operation.name} exists; set overwrite, or rename it")
            with self.learning.control.during(Doing.SAVES, timed="publish"):
                await write_whole(target, fill_and_seal, attempt=self.learning.attempt.number)
        return Result(number=operation.number, version=state.version, name=target.name)


def _is_saved(target: Path, operation: Operation) -> bool:
    """Whether a killed attempt has saved it, or a later operation after it."""
    try:
        return State.read(target).operation >= operation.number
    except FileNotFoundError:
        return False
    except DamagedFile:
        if operation.overwrite or not operation.name:
            return False
        raise


def _remove_oldest_samplers(folder: Path) -> None:
    """Remove the samplers without a name, except those that were used last."""
    unnamed = sorted(folder.glob(sampler_name(None)), key=lambda path: path.stat().st_mtime)
    for path in unnamed[:-_MAX_UNNAMED_SAMPLERS]:
        shutil.rmtree(path)
