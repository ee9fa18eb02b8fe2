"""Operations: what a client has the learner of its session do, and the log of them.

A session is a job whose steps come from a client, each an operation with a number. Its log is a
folder that gateway and learner share: an operation is a file there before anybody hears that it was
taken, and so is its result. The number is its identity: the same one again is the same operation,
and they are done in the order of their numbers, each once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from protocol.frames import FrameError, M, decode, encode, pack, unpack_one
from protocol.messages import Float32Array, Int32Array, Message
from protocol.recipe import Lora
from protocol.weights import sync_folder

LossName = Literal["cross_entropy", "importance_sampling", "ppo", "cispo"]
MOST_BEHIND = 1000  # results that are kept, fetched or not
_MAX_SET_ASIDE = 2  # copies of one result: where more are damaged, the disk or a right is at fault
DAMAGE = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EIO}
_RESEND = "restore it from a backup, or move it away and have the client send it again"
_REMAKE = "restore it from a backup, or move it away and it is made again from its operation"
PROBES = "probes.json"  # beside the weights of a sampler
STATE = "session.json"  # what `State` says of them


class DamagedFile(FrameError):
    """An operation or a result is there but unreadable; the text names the file and the remedy."""


class State(Message):
    """What was saved in a folder, by which operation: only the same model can go on from it."""

    base: str
    dtype: str
    lora: Lora | None
    version: int = 0
    operation: int = 0

    @classmethod
    def of(cls, folder: Path) -> State:
        """Read it; FileNotFoundError if there is none in the folder, `DamagedFile` if it is bad."""
        path = folder / STATE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            name = "/".join(path.parts[-5:])
            why = "cannot be read; restore it from a backup, or remove its folder and save it again"
            raise DamagedFile(f"{name} {why}") from error

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
        """Put an operation into the log; False if one with its number is there already.

        One that is damaged, and was not done yet, is replaced.
        """
        path = self._path(operation.number)
        if self._write(path, operation):
            return True
        try:
            self.operation(operation.number)
        except DamagedFile:
            if self._path(operation.number, ".result").exists() or not self._set_aside(path):
                raise
            return self._write(path, operation)
        return False

    @property
    def last(self) -> int:
        """The largest number in the log, -1 of an empty one."""
        return max((*self._numbers(".operation"), *self._numbers(".result")), default=-1)

    def operation(self, number: int) -> Operation | None:
        return self._read(Operation, self._path(number), number, _RESEND)

    def knows(self, number: int) -> bool:
        """Whether an operation is in the log; one that is not will have no result any more."""
        return self._path(number).exists()

    def knows_all(self, numbers: range) -> bool:
        """Whether these operations are all in the log, so that they can be done again."""
        return self._numbers(".operation").keys() >= set(numbers)

    def unanswered(self, before: int) -> list[int]:
        """The numbers below ``before`` of operations without a result, in order."""
        missing = self._numbers(".operation").keys() - self._numbers(".result").keys()
        return sorted(number for number in missing if number < before)

    def finish(self, result: Result) -> None:
        """Keep a result, unless there is one: an operation that is repeated has the same."""
        self._write(self._path(result.number, ".result"), result)

    def result(self, number: int) -> Result | None:
        return self._read(Result, self._path(number, ".result"), number, _REMAKE)

    def result_unless_damaged(self, number: int) -> Result | None:
        """A result; a damaged one is set aside, so that it is made again.

        Raises:
            DamagedFile: if that did not help before.
        """
        try:
            return self.result(number)
        except DamagedFile:
            if not self._set_aside(self._path(number, ".result")):
                raise
            return None

    def was_damaged(self, number: int) -> bool:
        """Whether a result was set aside."""
        return bool(self._set_aside_copies(self._path(number, ".result")))

    def result_name(self, number: int) -> str:
        """The name of a result's file, below the data folder."""
        return self._name(self._path(number, ".result"))

    def forget_before(self, number: int) -> None:
        """Remove operations before ``number``, which nobody needs, and results long before."""
        oldest = {".operation": number, ".result": number - MOST_BEHIND}
        for suffix, first in oldest.items():
            for each, path in self._numbers(suffix).items():
                if each < first:
                    with suppress(OSError):  # nobody needs it; the next call tries again
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

    def _numbers(self, suffix: str) -> dict[int, Path]:
        files = self.folder.glob(f"[0-9]*{suffix}")
        return {int(path.stem): path for path in files if path.stem.isdecimal()}

    def _name(self, path: Path) -> str:
        """The name of a file as people find it, below the data folder."""
        return str(path.relative_to(self.job_folder.parent.parent))

    def _set_aside_copies(self, path: Path) -> list[Path]:
        return list(path.parent.glob(f".damaged-{path.name}-*"))

    def _set_aside(self, path: Path) -> bool:
        """Give a damaged file another name; False if that has happened too often."""
        if len(self._set_aside_copies(path)) >= _MAX_SET_ASIDE:
            return False
        with suppress(FileNotFoundError):  # another process was first
            path.rename(path.with_name(f".damaged-{path.name}-{os.urandom(4).hex()}"))
        return True

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

    def _read(self, expected: type[M], path: Path, number: int, remedy: str) -> M | None:
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise FrameError("no regular file")
            with path.open("rb") as file:
                message = decode(expected, unpack_one(file))
            if getattr(message, "number", None) != number:
                raise FrameError("it belongs to another number")
        except FileNotFoundError:
            return None
        except (FrameError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in DAMAGE:
                raise
            why = error.strerror if isinstance(error, OSError) else error
            raise DamagedFile(f"{self._name(path)} cannot be read: {why}; {remedy}") from error
        return message
