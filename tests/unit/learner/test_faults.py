"""Whose fault an error was: the job's own, or the machine's, with its remedy."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from protocol.exchange import Disconnected, Fenced
from protocol.frames import FrameError
from protocol.messages import Fault
from protocol.tasks import TaskFileError
from protocol.weights import WeightsGone
from safetensors import SafetensorError
from safetensors.torch import save_file

from deploy.placement import PlacementError
from services.learner.algorithms import UnknownName
from services.learner.attempt import EnginesFault, JobFault, MachineFault
from services.learner.faults import cause_of, fault_of, words_of
from services.learner.model_source import ModelNotFound, NotOnHub
from services.learner.training.model_check import UnsupportedModel
from services.learner.training.ranks import BatchTooLarge, Order, Rank, TeamBroken
from tests.unit.learner.test_log import no_file_beyond

DATA = "/data"


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (OSError(errno.ENOSPC, "full"), ["[Errno 28]", DATA, "free space"]),
        (OSError(errno.ENOENT, "gone", "/x/a.jsonl"), ["[Errno 2]", "/x/a.jsonl", "mount"]),
        (OSError(errno.EACCES, "denied", "/x"), ["[Errno 13]", "/x", "user"]),
        (OSError(errno.EIO, "broken", "/x"), ["[Errno 5]", "/x", "mend"]),
        (TimeoutError(), ["TimeoutError", "mend"]),
        (MemoryError(), ["memory"]),
        (MachineFault("mend it"), ["mend it"]),
        (ModelNotFound("mount it"), ["mount it"]),
        (PlacementError("write WEIR_GPUS"), ["write WEIR_GPUS"]),
        (FrameError("move it away"), ["move it away"]),
        (WeightsGone("/memory/1.0: gone"), ["/memory/1.0: gone"]),
    ],
)
def test_what_is_wrong_with_the_machine_is_said_with_the_remedy(
    error: Exception, parts: list[str]
) -> None:
    assert fault_of(error) is Fault.MACHINE
    problem = words_of(error, DATA)
    assert [part for part in parts if part not in problem] == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        *((Fault.NOBODY, error()) for error in (*Disconnected, Fenced, TeamBroken)),
        *((Fault.JOB, error("why")) for error in (JobFault, NotOnHub, UnknownName)),
        *((Fault.JOB, error) for error in (TaskFileError(["why"]), UnsupportedModel("why"))),
        (Fault.MEMORY, BatchTooLarge("CUDA out of memory")),
        (Fault.ENGINES, EnginesFault("why")),
        *((Fault.UNKNOWN, error("why")) for error in (ValueError, RuntimeError, AssertionError)),
    ],
)
def test_what_ended_an_attempt_has_one_who_pays_for_it(fault: Fault, error: Exception) -> None:
    assert fault_of(error) is fault
    assert str(error) in words_of(error)


def test_the_same_cause_is_the_same_whichever_attempt_meets_it() -> None:
    one, other = (OSError(errno.ENOSPC, "full", f"/log/{n}.segment") for n in (1, 2))
    assert cause_of(one) == cause_of(other) == "ENOSPC"
    assert cause_of(MachineFault("a")) != cause_of(MachineFault("b"))


def save_tensors(folder: Path) -> None:
    torch.save({"weight": torch.zeros(100_000)}, folder / "weight.pt")


def export_tensors(folder: Path) -> None:
    save_file({"weight": torch.zeros(100_000)}, folder / "weight.safetensors")


def export_beyond_the_disk(folder: Path) -> None:
    problem = "Error while serializing: I/O error: No space left on device (os error 28)"
    raise SafetensorError(f"{problem} in {folder}")


def allocate(_: Path) -> None:
    torch.empty(10**15)


def break_otherwise(_: Path) -> None:
    raise RuntimeError("shapes differ")


@pytest.mark.parametrize(
    ("save", "raised", "cause"),
    [
        (save_tensors, OSError, "EIO"),
        (export_tensors, OSError, "EFBIG"),
        (export_beyond_the_disk, OSError, "ENOSPC"),
        (allocate, MemoryError, None),
        (break_otherwise, RuntimeError, None),
    ],
)
def test_the_machines_errors_are_known_whichever_library_meets_them(
    tmp_path: Path, save: Any, raised: type[Exception], cause: str | None
) -> None:
    rank: Any = Rank()
    rank.trainer = SimpleNamespace(models=SimpleNamespace(save=save))
    with no_file_beyond(100_000), pytest.raises(raised) as caught:
        rank.carry_out(Order(do="save", folder=str(tmp_path)))
    assert caught.type is raised
    assert (fault_of(caught.value) is Fault.UNKNOWN) == (raised is RuntimeError)
    if cause is not None:
        assert cause_of(caught.value) == cause
        assert str(tmp_path) in str(caught.value)
