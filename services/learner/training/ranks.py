"""The learner's ranks: rank 0 gives orders, every rank carries them out, in the same order.

Only rank 0 touches Redis; torch broadcasts its orders. All collectives of a rank run in one thread.
While there is nothing to do rank 0 says so every few seconds, so that slow generation never trips
the process group's timeout.
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
from services.learner.training.samples import Measured, Sample, placed
from services.learner.training.trainer import Trainer

log = logging.getLogger(__name__)
_KEEP_ALIVE_S = 5.0
_LISTEN_S = 1.0
_POLL_S = 0.05
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
        "hold",
        "let_go",
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
    of_held: bool = False
    batch: Sequence[Sample] | None = None
    operation: Operation | None = None

    @property
    def computes(self) -> bool:
        """Whether its memory grows with what it is over, and GPUs are taken in turns for it."""
        return self.batch is not None or self.operation is not None


class Rank:
    """One rank: holds the models and carries out orders."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None
        self.written: Future[None] = Future()  # what was saved last
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
                torch.cuda.empty_cache()  # for the engine, whose turn it is next
            elif order.do not in {"idle", "leave"}:
                return self._with_models(order, folder)
        return Measured()

    def _with_models(self, order: Order, folder: Path) -> Measured:
        assert self.trainer is not None, "the first order must be 'open'"
        if order.batch is not None:
            return self._over_samples(self.trainer, order, placed(order.batch))
        if order.operation is not None:
            return operate(self.trainer.models, order.operation)
        models = self.trainer.models
        actions: dict[str, Callable[[], None]] = {
            "hold": lambda: models.held.hold(),
            "let_go": lambda: models.held.let_go(),
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
                return trainer.score(samples, order.temperature, of_held=order.of_held)
            case _:
                trainer.rehearse(samples)
                return Measured()

    def _write(self, aside: HostCopies, folder: Path) -> None:
        def write() -> None:
            with machine_errors(folder):
                aside.write()

        self.written = self._writer.submit(write)

    def follow(self) -> None:
        notes, rank = _notes(), torch.distributed.get_rank()
        Thread(target=_end_when_abandoned, daemon=True).start()
        while (order := _receive()).do != "leave":
            try:
                self.carry_out(order)
                if order.do == "save":
                    tell = partial(_tell_of_written, notes, _written_by(rank, order.folder))
                    self.written.add_done_callback(tell)
            except Exception as error:
                is_too_large = isinstance(error, MemoryError) and order.computes
                own = BatchTooLarge(str(error)) if is_too_large else error
                if not _tells_of_lost_rank(own):
                    notes.compare_set(_FAILURE, "", _as_note(own))  # which waits until it is there
                raise


@contextmanager
def machine_errors(folder: Path) -> Iterator[None]:
    """torch and safetensors have errors of their own where Python has OSError and MemoryError."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError) or _MEMORY_ERROR.search(str(error)):
            raise MemoryError(str(error)) from error
        if (of_disk := _DISK_ERROR.search(str(error))) is not None:
            number = int(of_disk[1] or errno.EIO)  # torch does not say which
            raise OSError(number, str(error), str(folder)) from error
        raise


class BatchTooLarge(MemoryError):
    """A rank ran out of memory over samples; smaller micro-batches may fit."""


class TeamBroken(RuntimeError):
    """A rank has gone, or the ranks no longer do the same thing; only a new start helps."""


_FAILURE = "weir/failure"  # of the first rank to end by an error; rank 0 may hear it later
_ABANDONED = "weir/abandoned"  # the order that is under way


class Team:
    """All ranks, as rank 0 sees them from its event loop: one order at a time."""

    def __init__(self, turns: Turns | None = None) -> None:
        self._turns = turns if turns and turns.is_shared else None
        self._turn: AsyncExitStack | None = None
        self._rank = Rank()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")
        self.num_ranks = torch.distributed.get_world_size()
        self.device_name = name_of_device()
        self.adapts: Path | None = None  # the model whose adapter is trained, and exported
        self.num_ids: int | None = None  # of tokens, which the model has rows for
        self._others = self.num_ranks > 1
        self._notes = _notes() if self._others else None
        self._order: Future[Measured] | None = None  # the last one
        self._is_sound = True  # False while an order is carried out, and for good if that failed

    async def open(self, folder: Path, recipe: Recipe, critic_folder: Path | None = None) -> None:
        """Load the models from their folders, on every rank; the critic starts as the policy."""
        self.adapts = folder if recipe.model.lora is not None else None
        critic, num_ids = str(critic_folder or folder), self.num_ids
        order = Order("open", str(folder), critic, recipe=recipe, num_ids=num_ids)
        await self._give(order)

    async def rehearse(self, samples: Sequence[Sample]) -> None:
        """Train on samples without learning from them: whether a step fits into the memory."""
        await self._give(Order(do="rehearse", batch=samples))

    async def train(self, samples: Sequence[Sample]) -> Measured:
        return await self._give(Order(do="train", batch=samples))

    async def pretrain(self, samples: Sequence[Sample]) -> Measured:
        return await self._give(Order(do="pretrain", batch=samples))

    async def score(
        self, samples: Sequence[Sample], temperature: float, *, of_held: bool = False
    ) -> Measured:
        """Compare log-probs of the policy, or of the one `hold` has kept, with the samples'."""
        order = Order(do="score", batch=samples, temperature=temperature, of_held=of_held)
        return await self._give(order)

    async def operate(self, operation: Operation) -> Measured:
        """Carry out a client's forward, forward_backward or optim_step."""
        return await self._give(Order(do="operate", operation=operation))

    async def hold(self) -> None:
        """Keep a copy of the policy's weights as they are now, for `score`."""
        await self._give(Order(do="hold"))

    async def let_go(self) -> None:
        await self._give(Order(do="let_go"))

    async def save(self, folder: Path) -> None:
        """Copy the models' state aside; it is below the folder once `written` returns."""
        await self._give(Order(do="save", folder=str(folder)))

    async def written(self, folder: Path) -> None:
        """Wait until every rank has written what it has saved below a folder.

        Raises:
            OSError: if one could not.
        """
        await asyncio.wrap_future(self._rank.written)
        if self._notes is None:
            return
        for rank in range(1, self.num_ranks):
            key = _written_by(rank, str(folder))
            while not self._notes.check([key]):
                await asyncio.sleep(_POLL_S)
            note = self._notes.get(key).decode()
            self._notes.delete_key(key)
            if note:
                raise _noted(note)

    async def load(self, folder: Path, *, with_optimizer: bool = True) -> None:
        await self._give(Order(do="load" if with_optimizer else "load_weights", folder=str(folder)))

    async def publish(self, folder: Path, slot: int) -> None:
        """Write the policy, or its adapter, into a slot: see `Models.publish`."""
        await self._give(Order(do="publish", folder=str(folder), slot=slot))

    async def export(self, folder: Path) -> None:
        await self._give(Order(do="export", folder=str(folder)))

    async def export_critic(self, folder: Path) -> None:
        await self._give(Order(do="export_critic", folder=str(folder)))

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have the GPUs that engines have in other turns; one turn within another is part of it.

        After an error the turn lasts as long as the process: a rank may still compute.
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
        """Let every rank go.

        Raises:
            TeamBroken: if others cannot be told, because an order has failed.
        """
        if self._others or self._is_sound:
            await self._give(Order(do="leave"))
        self._thread.shutdown(wait=True)

    @property
    def is_busy(self) -> bool:
        return self._order is not None and not self._order.done()

    def abandon(self) -> None:
        """Have the other ranks end, whatever they do; this one's thread goes on."""
        if self._notes is not None:
            self._notes.set(_ABANDONED, "")

    async def keep_alive_forever(self) -> None:
        """Consumes nothing; produces idle orders, unless an order is or has failed under way.

        Waits for: time. Unblocked by: time.
        """
        while True:
            await asyncio.sleep(_KEEP_ALIVE_S)
            if self._others and self._is_sound:
                with suppress(Exception):  # the next real order meets it too
                    await self._give(Order(do="idle"))

    async def _give(self, order: Order) -> Measured:
        """Have an order carried out.

        Raises:
            BatchTooLarge: if a rank ran out of memory over samples, of this order or one before.
            MemoryError: if one did without any.
            OSError: if one could not read or write.
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
                self._listen()  # rank 0 may wait for a rank that is lost
            return carried_out.result()
        finally:
            carried_out.cancel()

    def _lead(self, order: Order) -> Measured:
        if not self._is_sound:
            self._listen()
            # The others may wait in a collective, and would take the order for its next part.
            raise TeamBroken("an order failed on rank 0; its process has to end")
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
            if self._others and _tells_of_lost_rank(error):
                self._listen()
                raise TeamBroken(f"another rank has gone: {error}") from error
            raise
        self._is_sound = True
        return measured

    def _listen(self) -> None:
        if self._notes is None:
            return
        with suppress(torch.distributed.DistError):  # torchrun itself has gone, and all ends
            if self._notes.check([_FAILURE]):
                raise _noted(self._notes.get(_FAILURE).decode())


def _tells_of_lost_rank(error: Exception) -> bool:
    # gloo has no error type of its own.
    is_gloos = isinstance(error, RuntimeError) and "gloo" in str(error)
    return is_gloos or isinstance(error, torch.distributed.DistError)


def _end_when_abandoned() -> None:
    with suppress(torch.distributed.DistError):  # torchrun has gone, and the parent's end is ours
        _notes().wait([_ABANDONED], timedelta(days=1000))
    os._exit(1)


def _written_by(rank: int, folder: str) -> str:
    return f"weir/written/{rank}/{folder}"


def _tell_of_written(notes: Store, key: str, written: Future[None]) -> None:
    error = written.exception()
    notes.set(key, "" if error is None else _as_note(error))


def _as_note(error: BaseException) -> str:
    """An error of this rank, which `_noted` makes again, of the same type, for rank 0."""
    rank = f"rank {torch.distributed.get_rank()}: "
    if isinstance(error, OSError):
        words = rank + (error.strerror or f"{type(error).__name__}: {error}")
        return pickle.dumps(OSError(error.errno or errno.EIO, words, error.filename)).hex()
    with suppress(Exception):  # of an extension's type it may not be possible
        note = pickle.dumps(type(error)(f"{rank}{error}")).hex()
        if type(_noted(note)) is type(error):
            return note
    return pickle.dumps(RuntimeError(f"{rank}{type(error).__name__}: {error}")).hex()


def _noted(note: str) -> Exception:
    return pickle.loads(bytes.fromhex(note))


def _notes() -> Store:
    """What torchrun keeps of the ranks' words, which outlives each of them."""
    store, *_ = next(rendezvous("env://"))
    return store


def _send(order: Order) -> None:
    torch.distributed.broadcast_object_list([order], src=0, device=device_of_rank())


def _receive() -> Order:
    orders: list[Any] = [None]
    torch.distributed.broadcast_object_list(orders, src=0, device=device_of_rank())
    return orders[0]
