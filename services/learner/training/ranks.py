"""The learner's ranks: rank 0 gives orders, and every rank carries them out in the same order.

Only rank 0 uses Redis; torch broadcasts its orders. All collectives of a rank run in one thread. An
idle rank 0 sends an empty order every few seconds, so that slow generation does not exceed the
timeout of the process group.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import torch
from protocol.operations import Operation
from protocol.recipe import Recipe
from safetensors import SafetensorError
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from services.chassis.turns import Turns
from services.learner.training.engine import device_of_rank, name_of_device
from services.learner.training.host_copies import HostCopies
from services.learner.training.models import Models
from services.learner.training.operations import operate
from services.learner.training.samples import Measured, Sample, assign_places
from services.learner.training.trainer import Trainer

log = logging.getLogger(__name__)
_KEEP_ALIVE_S = 5.0  # between empty orders, far below the timeout of the process group
_LISTEN_S = 1.0  # between looks for the failure of another rank
_POLL_S = 0.05  # between looks for written files
_DISK_ERROR = re.compile(
    r"inline_container|PytorchStream(?:Reader|Writer)|os error (\d+)|file not fully covered"
)
_MEMORY_ERROR = re.compile(
    r"an't allocate memory|annot allocate memory|CUDA error: out of memory|ALLOC_FAILED"
    r"|Cuda failure \d* ?'out of memory'|Failed to CUDA \w*alloc"  # NCCL's own
)


@dataclass(frozen=True)
class Order:
    do: Literal[
        "idle",
        "open",
        "rehearse",
        "train",
        "pretrain",
        "score",
        "operate",
        "snapshot_weights",
        "drop_snapshot",
        "save",
        "load",
        "load_weights",
        "publish",
        "export",
        "export_critic",
        "free",
        "leave",
    ]
    folder: str = ""
    critic_folder: str = ""
    num_ids: int | None = None
    slot: int = 0
    recipe: Recipe | None = None
    temperature: float = 1.0
    use_snapshot: bool = False
    batch: Sequence[Sample] | None = None
    operation: Operation | None = None

    @property
    def computes(self) -> bool:
        """Whether its memory grows with its input, and it needs the learner's turn on GPUs."""
        return self.batch is not None or self.operation is not None


class Rank:
    """The models of a rank; it carries out orders."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None
        self.written: Future[None] = Future()  # the last state that was saved
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writing")

    def carry_out(self, order: Order) -> Measured:
        folder = Path(order.folder)
        with machine_errors(folder):
            if order.do == "open":
                assert order.recipe is not None
                critic = Path(order.critic_folder)
                models = Models(order.recipe, folder, critic, order.num_ids)
                self.trainer = Trainer(order.recipe, models)
            elif order.do == "free":
                torch.cuda.empty_cache()  # the engine's turn is next
            elif order.do not in {"idle", "leave"}:
                return self._use_models(order, folder)
        return Measured()

    def _use_models(self, order: Order, folder: Path) -> Measured:
        assert self.trainer is not None, "the first order must be 'open'"
        if order.batch is not None:
            return self._over_samples(self.trainer, order, assign_places(order.batch))
        if order.operation is not None:
            return operate(self.trainer.models, order.operation)
        models = self.trainer.models
        actions: dict[str, Callable[[], None]] = {
            "snapshot_weights": lambda: models.snapshot.take(),
            "drop_snapshot": lambda: models.snapshot.drop(),
            "save": lambda: self._write(models.save(folder), folder),
            "load": lambda: models.load(folder),
            "load_weights": lambda: models.load(folder, with_optimizer=False),
            "publish": lambda: models.publish(folder, order.slot),
            "export": lambda: models.export(folder),
            "export_critic": lambda: models.export_critic(folder),
        }
        actions[order.do]()
        return Measured()

    def _over_samples(self, trainer: Trainer, order: Order, samples: list[Sample]) -> Measured:
        match order.do:
            case "train":
                return trainer.train(samples)
            case "pretrain":
                return trainer.pretrain(samples)
            case "score":
                return trainer.score(samples, order.temperature, use_snapshot=order.use_snapshot)
            case _:
                trainer.rehearse(samples)
                return Measured()

    def _write(self, copies: HostCopies, folder: Path) -> None:
        def write() -> None:
            with machine_errors(folder):
                copies.write()

        self.written = self._writer.submit(write)

    def follow(self) -> None:
        notes = _notes()
        rank = torch.distributed.get_rank()
        Thread(target=_exit_when_abandoned, daemon=True).start()
        while (order := _receive()).do != "leave":
            try:
                self.carry_out(order)
                if order.do == "save":
                    key = _written_key(rank, order.folder)
                    self.written.add_done_callback(partial(_report_written, notes, key))
            except Exception as error:
                is_too_large = isinstance(error, MemoryError) and order.computes
                failure = BatchTooLarge(str(error)) if is_too_large else error
                if not _is_lost_rank(failure):
                    notes.compare_set(_FAILURE, "", _dump_error(failure))
                raise


@contextmanager
def machine_errors(folder: Path) -> Iterator[None]:
    """Convert errors of torch and safetensors to OSError and MemoryError."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError) or _MEMORY_ERROR.search(str(error)):
            raise MemoryError(str(error)) from error
        if (match := _DISK_ERROR.search(str(error))) is not None:
            number = int(match[1] or errno.EIO)  # torch states no number
            raise OSError(number, str(error), str(folder)) from error
        raise


class BatchTooLarge(MemoryError):
    """A rank ran out of memory over samples; smaller micro-batches may fit."""


class TeamBroken(RuntimeError):
    """A rank is lost, or the ranks are out of step; the learner must start again."""


_FAILURE = "weir/failure"  # the error of the first rank that failed
_ABANDONED = "weir/abandoned"  # set when the other ranks must exit


class Team:
    """All ranks, for the event loop of rank 0: one order at a time."""

    def __init__(self, turns: Turns | None = None) -> None:
        self._turns = turns if turns and turns.is_shared else None
        self._turn: AsyncExitStack | None = None
        self._rank = Rank()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")
        self.num_ranks = torch.distributed.get_world_size()
        self.device_name = name_of_device()
        self.adapts: Path | None = None  # the base model of a trained adapter
        self.num_ids: int | None = None  # token ids with a row in the model
        self._others = self.num_ranks > 1
        self._notes = _notes() if self._others else None
        self._order: Future[Measured] | None = None  # the last one
        self._is_sound = True  # False during an order, and forever after a failed one

    async def open(self, folder: Path, recipe: Recipe, critic_folder: Path | None = None) -> None:
        """Load the models on every rank; the default critic is the policy's folder."""
        self.adapts = folder if recipe.model.lora is not None else None
        critic = str(critic_folder or folder)
        order = Order("open", str(folder), critic, recipe=recipe, num_ids=self.num_ids)
        await self._give(order)

    async def rehearse(self, samples: Sequence[Sample]) -> None:
        """Train on samples without an update, to check that a step fits into the memory."""
        await self._give(Order(do="rehearse", batch=samples))

    async def train(self, samples: Sequence[Sample]) -> Measured:
        return await self._give(Order(do="train", batch=samples))

    async def pretrain(self, samples: Sequence[Sample]) -> Measured:
        return await self._give(Order(do="pretrain", batch=samples))

    async def score(
        self, samples: Sequence[Sample], temperature: float, *, use_snapshot: bool = False
    ) -> Measured:
        """Compare log-probs of the policy, or of its snapshot, with those of the samples."""
        order = Order(do="score", batch=samples, temperature=temperature, use_snapshot=use_snapshot)
        return await self._give(order)

    async def operate(self, operation: Operation) -> Measured:
        """Carry out a client's forward, forward_backward or optim_step."""
        return await self._give(Order(do="operate", operation=operation))

    async def snapshot_weights(self) -> None:
        """Copy the policy's current weights for `score`."""
        await self._give(Order(do="snapshot_weights"))

    async def drop_snapshot(self) -> None:
        await self._give(Order(do="drop_snapshot"))

    async def save(self, folder: Path) -> None:
        """Copy the models' state; it is in the folder when `written` returns."""
        await self._give(Order(do="save", folder=str(folder)))

    async def written(self, folder: Path) -> None:
        """Wait until every rank has written its saved state into a folder.

        Raises:
            OSError: if a rank failed to.
        """
        await asyncio.wrap_future(self._rank.written)
        if self._notes is None:
            return
        for rank in range(1, self.num_ranks):
            key = _written_key(rank, str(folder))
            while not self._notes.check([key]):
                await asyncio.sleep(_POLL_S)
            note = self._notes.get(key).decode()
            self._notes.delete_key(key)
            if note:
                raise _load_error(note)

    async def load(self, folder: Path, *, with_optimizer: bool = True) -> None:
        await self._give(Order(do="load" if with_optimizer else "load_weights", folder=str(folder)))

    async def publish(self, folder: Path, slot: int) -> None:
        """Write the policy, or its adapter, into a slot; see `Models.publish`."""
        await self._give(Order(do="publish", folder=str(folder), slot=slot))

    async def export(self, folder: Path) -> None:
        await self._give(Order(do="export", folder=str(folder)))

    async def export_critic(self, folder: Path) -> None:
        await self._give(Order(do="export_critic", folder=str(folder)))

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the GPUs that engines use in other turns; turns nest.

        After an error the turn lasts until the process ends: a rank may still compute.
        """
        if self._turns is None or self._turn is not None:
            yield
            return
        async with AsyncExitStack() as waiting:
            await waiting.enter_async_context(self._turns.learner_turn())
            self._turn = waiting.pop_all()
        yield
        await self._give_now(Order(do="free"))
        await self._turn.aclose()
        self._turn = None

    async def leave(self) -> None:
        """Let every rank exit.

        Raises:
            TeamBroken: if an order failed before, so other ranks cannot be reached.
        """
        if self._others or self._is_sound:
            await self._give(Order(do="leave"))
        self._thread.shutdown(wait=True)

    @property
    def is_busy(self) -> bool:
        return self._order is not None and not self._order.done()

    def abandon(self) -> None:
        """Make the other ranks exit immediately; this one's thread continues."""
        if self._notes is not None:
            self._notes.set(_ABANDONED, "")

    async def keep_alive_forever(self) -> None:
        """Consumes nothing; produces idle orders, except during an order or after a failed one.

        Waits for: time. Unblocked by: time.
        """
        while True:
            await asyncio.sleep(_KEEP_ALIVE_S)
            if self._others and self._is_sound:
                with suppress(Exception):  # the next order raises it too
                    await self._give(Order(do="idle"))

    async def _give(self, order: Order) -> Measured:
        """Carry out an order on all ranks.

        Raises:
            BatchTooLarge: if a rank ran out of memory on samples, in this order or an earlier one.
            MemoryError: if a rank ran out of memory otherwise.
            OSError: if a rank could not read or write.
        """
        if not order.computes:
            return await self._give_now(order)
        async with self.turn():
            return await self._give_now(order)

    async def _give_now(self, order: Order) -> Measured:
        self._order = self._thread.submit(self._lead, order)
        carried_out = asyncio.wrap_future(self._order)
        try:
            while not (await asyncio.wait({carried_out}, timeout=_LISTEN_S))[0]:
                self._listen()  # rank 0 may wait for a lost rank
            return carried_out.result()
        finally:
            carried_out.cancel()

    def _lead(self, order: Order) -> Measured:
        if not self._is_sound:
            self._listen()
            # Other ranks may wait in a collective, and would read the order as its next part.
            raise TeamBroken("an order failed on rank 0; restart the learner")
        self._is_sound = False
        try:
            if self._others:
                _send(order)
            measured = self._rank.carry_out(order)
        except MemoryError as error:
            if not order.computes:
                raise
            raise BatchTooLarge(str(error)) from error
        except RuntimeError as error:
            if self._others and _is_lost_rank(error):
                self._listen()
                raise TeamBroken(f"another rank is lost: {error}") from error
            raise
        self._is_sound = True
        return measured

    def _listen(self) -> None:
        if self._notes is None:
            return
        with suppress(torch.distributed.DistError):  # torchrun is gone, and all ranks with it
            if self._notes.check([_FAILURE]):
                raise _load_error(self._notes.get(_FAILURE).decode())


def _is_lost_rank(error: Exception) -> bool:
    # gloo has no error type of its own.
    is_gloo_error = isinstance(error, RuntimeError) and "gloo" in str(error)
    return is_gloo_error or isinstance(error, torch.distributed.DistError)


def _exit_when_abandoned() -> None:
    with suppress(torch.distributed.DistError):  # torchrun is gone, and the ranks with it
        _notes().wait([_ABANDONED], timedelta(days=1000))
    os._exit(1)


def _written_key(rank: int, folder: str) -> str:
    return f"weir/written/{rank}/{folder}"


def _report_written(notes: Store, key: str, written: Future[None]) -> None:
    error = written.exception()
    notes.set(key, "" if error is None else _dump_error(error))


def _dump_error(error: BaseException) -> str:
    """Serialize an error of this rank for `_load_error` on rank 0, with its type if possible."""
    rank = f"rank {torch.distributed.get_rank()}: "
    if isinstance(error, OSError):
        words = rank + (error.strerror or f"{type(error).__name__}: {error}")
        return pickle.dumps(OSError(error.errno or errno.EIO, words, error.filename)).hex()
    with suppress(Exception):  # an extension's type may not allow it
        note = pickle.dumps(type(error)(f"{rank}{error}")).hex()
        if type(_load_error(note)) is type(error):
            return note
    return pickle.dumps(RuntimeError(f"{rank}{type(error).__name__}: {error}")).hex()


def _load_error(note: str) -> Exception:
    return pickle.loads(bytes.fromhex(note))


def _notes() -> Store:
    """Return torchrun's store, which outlives each rank."""
    store, *_ = next(rendezvous("env://"))
    return store


def _send(order: Order) -> None:
    torch.distributed.broadcast_object_list([order], src=0, device=device_of_rank())


def _receive() -> Order:
    orders: list[Any] = [None]
    torch.distributed.broadcast_object_list(orders, src=0, device=device_of_rank())
    return orders[0]
