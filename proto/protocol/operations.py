"""Operations: what a client has the learner of its session do, and the log of them.

A session is a job whose steps come from a client, each an operation with a number. Its log is a
folder that gateway and learner share: an operation is a file there before anybody hears that it was
taken, and so is its result. The number is its identity: the same one again is the same operation,
and they are done in the order of their numbers, each once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from protocol.frames import M, decode, encode, pack, unpack_all
from protocol.messages import Float32Array, Int32Array, Message
from protocol.recipe import Lora
from protocol.weights import sync_folder

LossName = Literal["cross_entropy", "importance_sampling", "ppo", "cispo"]
MOST_BEHIND = 1000  # results that are kept, fetched or not
SILENT = "its client has been silent"  # how the reason of a pause begins that it ends itself
PROBES = "probes.json"  # beside the weights of a sampler
STATE = "session.json"  # what `State` says of them


class State(Message):
    """What was saved in a folder, by which operation: only the same model can go on from it."""

    base: str
    dtype: str
    lora: Lora | None
    version: int = 0
    operation: int = 0

    @classmethod
    def of(cls, folder: Path) -> State:
        """Raises OSError or ValueError if there is none in the folder."""
        return cls.model_validate_json((folder / STATE).read_bytes())

    def write(self, folder: Path) -> None:
        (folder / STATE).write_text(self.model_dump_json(), encoding="utf-8")

    def fits(self, other: State) -> bool:
        return (self.base, self.dtype, self.lora) == (other.base, other.dtype, other.lora)

    @property
    def words(self) -> str:
        lora = f"an adapter of rank {self.lora.rank} for " if self.lora is not None else ""
        return f"{lora}{self.base} in {self.dtype}"


def sampler_name(version: int | None) -> str:
    """The name of a version's sampler that the client has given none; None: of any."""
    return "version-*" if version is None else f"version-{version:06d}"


class AdamW(Message):
    """The settings of one optimizer step."""

    learning_rate: float = Field(ge=0, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    max_grad_norm: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # 0: gradients stay


class Data(Message):
    """Sequences with a target at each position, one after another."""

    lengths: Int32Array  # [datum], positions of each
    input_ids: Int32Array  # [position]
    targets: Int32Array  # [position], whose log-prob is taken at the position
    weights: Float32Array  # [position], of the log-prob in the loss, or the advantage
    behavior_logprobs: Float32Array  # [position], nats, of the sampler; 0 where the loss has none

    @model_validator(mode="after")
    def _arrays_agree(self) -> Self:
        positions = int(self.lengths.sum())
        arrays = (self.input_ids, self.targets, self.weights, self.behavior_logprobs)
        if any(len(array) != positions for array in arrays) or (self.lengths < 1).any():
            raise ValueError(f"each array must have one value for each of {positions} positions")
        return self


class Operation(Message):
    number: int = Field(ge=0)
    do: Literal[
        "create",
        "forward",
        "forward_backward",
        "optim_step",
        "save_state",
        "load_state",
        "save_sampler",
        "refuse",
        "end",
    ]
    loss: LossName = "cross_entropy"
    settings: Mapping[str, FiniteFloat] = Field(default_factory=dict)  # of the loss
    data: Data | None = None
    adam: AdamW | None = None
    name: str = ""  # of what is saved; a sampler without one has that of its version
    overwrite: bool = False
    source: str = ""  # the folder that a state is loaded from
    with_optimizer: bool = False
    why: str = ""  # nothing is done, as the client was told


class Result(Message):
    """What became of an operation; ``error`` says why nothing did."""

    number: int = Field(ge=0)
    error: str = ""
    is_users: bool = False  # the error is the client's own
    version: int = 0  # of the weights after it: how often they have changed
    name: str = ""  # of what was saved, or which state was loaded
    metrics: Mapping[str, FiniteFloat] = Field(default_factory=dict)
    lengths: Int32Array | None = None  # [datum]
    logprobs: Float32Array | None = None  # [position], nats


@dataclass(frozen=True)
class OperationLog:
    """The operations of a session and their results, below its job's folder."""

    job_folder: Path

    @property
    def folder(self) -> Path:
        return self.job_folder / "operations"

    def add(self, operation: Operation) -> bool:
        """Put an operation into the log; False if one with its number is there already."""
        return self._write(self._path(operation.number), operation)

    @property
    def last(self) -> int:
        """The largest number in the log, -1 of an empty one."""
        names = (path.stem for path in self.folder.glob("[0-9]*.*"))
        return max(map(int, names), default=-1)

    def operation(self, number: int) -> Operation | None:
        return _read(Operation, self._path(number))

    def knows(self, number: int) -> bool:
        """Whether an operation is in the log; one that is not will have no result any more."""
        return self._path(number).exists()

    def finish(self, result: Result) -> None:
        """Keep a result, unless there is one: an operation that is repeated has the same."""
        self._write(self._path(result.number, ".result"), result)

    def result(self, number: int) -> Result | None:
        return _read(Result, self._path(number, ".result"))

    def forget_before(self, number: int) -> None:
        """Remove operations before ``number``, which nobody needs, and results long before."""
        for path in self.folder.glob("*.operation"):
            if int(path.stem) < number:
                path.unlink()
        for path in self.folder.glob("*.result"):
            if int(path.stem) < number - MOST_BEHIND:
                path.unlink()

    def touch(self) -> None:
        """Say that the client is there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "alive").touch()

    @property
    def touched(self) -> int:
        """Another number than before if the client was there in between."""
        try:
            return (self.folder / "alive").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _path(self, number: int, suffix: str = ".operation") -> Path:
        return self.folder / f"{number:09d}{suffix}"

    def _write(self, path: Path, message: Message) -> bool:
        if path.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            with temporary.open("wb") as file:
                file.write(pack(encode(message)))
                file.flush()
                os.fsync(file.fileno())
            path.hardlink_to(temporary)
        except FileExistsError:  # of another gateway, or of a try that goes on
            return False
        finally:
            temporary.unlink(missing_ok=True)
            sync_folder(path.parent)
        return True


def _read(expected: type[M], path: Path) -> M | None:
    try:
        with path.open("rb") as file:
            return decode(expected, next(unpack_all(file)))
    except FileNotFoundError:
        return None
