"""Operations of a session's client, and their log.

A session is a job with steps from a client. Each step is an operation with a number. The log is a
folder that gateway and learner share. Operations and results are written there before they are
acknowledged. The number is the identity: a repeated number is the same operation. The learner runs
operations once each, in the order of their numbers.
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
MAX_OLD_RESULTS = 1000  # older results are deleted even if no client fetched them
_MAX_SET_ASIDE = 2  # damaged copies of one file; more mean a bad disk or missing permissions
DAMAGE = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EIO}
_RESEND = "restore it from a backup, or move it away and have the client send it again"
_REMAKE = "restore it from a backup, or move it away and it is made again from its operation"
PROBES = "probes.json"  # in a sampler's folder
STATE = "session.json"  # a `State`, in a folder of saved weights


class DamagedFile(FrameError):
    """An unreadable file of an operation or a result; the text names file and remedy."""


class State(Message):
    """The model and the operation of saved weights; only the same model can load them."""

    base: str
    dtype: str
    lora: Lora | None
    version: int = 0
    operation: int = 0

    @classmethod
    def read(cls, folder: Path) -> State:
        """Read the state of a folder; raise FileNotFoundError or `DamagedFile`."""
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
    """The name of an unnamed sampler of a version, or the pattern of all such names."""
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
    """Concatenated sequences with a target at each position."""

    lengths: Int32Array  # [datum], in positions
    input_ids: Int32Array  # [position]
    targets: Int32Array  # [position], tokens
    weights: Float32Array  # [position], weights of log-probs in the loss, or advantages
    behavior_logprobs: Float32Array  # [position], nats, of the sampler; 0 without a loss

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
    name: str = ""  # of saved weights; empty: named after the version
    overwrite: bool = False
    source: str = ""  # the folder of the state to load
    with_optimizer: bool = False
    why: str = ""  # the reason of a refusal


class Result(Message):
    """The result of an operation, or its ``error``."""

    number: int = Field(ge=0)
    error: str = ""
    is_users: bool = False  # whether the client caused the error
    version: int = 0  # of the weights after it: the number of updates
    name: str = ""  # of the saved weights or the loaded state
    metrics: Mapping[str, FiniteFloat] = Field(default_factory=dict)
    lengths: Int32Array | None = None  # [datum]
    logprobs: Float32Array | None = None  # [position], nats


@dataclass(frozen=True)
class OperationLog:
    """The operations of a session and their results, in the job's folder."""

    job_folder: Path

    @property
    def folder(self) -> Path:
        return self.job_folder / "operations"

    def add(self, operation: Operation) -> bool:
        """Add an operation; return False if the log has its number already.

        A damaged operation without a result is replaced.
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
        """The largest number in the log, or -1."""
        return max((*self._numbers(".operation"), *self._numbers(".result")), default=-1)

    def operation(self, number: int) -> Operation | None:
        return self._read(Operation, self._path(number), number, _RESEND)

    def knows(self, number: int) -> bool:
        """Whether an operation is in the log; others get no result."""
        return self._path(number).exists()

    def knows_all(self, numbers: range) -> bool:
        """Whether all these operations are in the log, so that they can be repeated."""
        return self._numbers(".operation").keys() >= set(numbers)

    def unanswered(self, before: int) -> list[int]:
        """Return the operations below ``before`` without a result, in order."""
        missing = self._numbers(".operation").keys() - self._numbers(".result").keys()
        return sorted(number for number in missing if number < before)

    def finish(self, result: Result) -> None:
        """Store a result, unless there is one: a repeated operation has the same result."""
        self._write(self._path(result.number, ".result"), result)

    def result(self, number: int) -> Result | None:
        return self._read(Result, self._path(number, ".result"), number, _REMAKE)

    def result_unless_damaged(self, number: int) -> Result | None:
        """Return a result; set a damaged one aside, so that the operation runs again.

        Raises:
            DamagedFile: if earlier results were damaged as well.
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
        """The path of a result in the data folder."""
        return self._name(self._path(number, ".result"))

    def forget_before(self, number: int) -> None:
        """Remove the operations before ``number``, and much older results."""
        limits = {".operation": number, ".result": number - MAX_OLD_RESULTS}
        for suffix, limit in limits.items():
            for file_number, path in self._numbers(suffix).items():
                if file_number < limit:
                    with suppress(OSError):  # the next call tries again
                        path.unlink()

    def touch(self) -> None:
        """Record that the client is alive."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "alive").touch()

    @property
    def touched(self) -> int:
        """A number that changes with every `touch`."""
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
        """The path of a file in the data folder."""
        return str(path.relative_to(self.job_folder.parent.parent))

    def _set_aside_copies(self, path: Path) -> list[Path]:
        return list(path.parent.glob(f".damaged-{path.name}-*"))

    def _set_aside(self, path: Path) -> bool:
        """Rename a damaged file; return False if that happened too often."""
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
        except FileExistsError:  # another gateway or try wrote it
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
