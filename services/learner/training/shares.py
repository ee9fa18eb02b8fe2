"""Files in memory into which each rank writes a share of the model, in parallel.

The files are mapped once and filled with every version: writing to allocated memory is five times
as fast. They are safetensors, in a Hugging Face folder.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
_GATHER_ELEMENTS = 500_000_000
_FILE_BYTES = 256 * 2**20  # several files are read and hashed in parallel
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Shape:
    dtype: torch.dtype
    dimensions: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.dimensions) * self.dtype.itemsize


class Shares:
    """The files that this rank writes, by slot: a folder that versions reuse."""

    def __init__(self) -> None:
        self._mapped: dict[int, dict[str, Tensor]] = {}

    def map_slot(self, slot: int, folder: Path, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
        """Return this rank's tensors of a slot, to be filled in place.

        Args:
            slot: a number of this folder only.
            folder: of the slot; its files are created at the first use.
            shapes: of the whole model, in the same order on every rank.

        Raises:
            OSError: if there is no room for the files.
        """
        if slot not in self._mapped:
            num_writers = _num_writers()
            files = _split(shapes, num_writers)
            indexes = range(_rank(), len(files), num_writers) if _rank() < num_writers else ()
            tensors: dict[str, Tensor] = {}
            for index in indexes:
                file_shapes = {name: shapes[name] for name in files[index]}
                tensors |= _map(folder / _file_name(index, len(files)), file_shapes)
            if _rank() == 0 and len(files) > 1:
                _write_index(folder, files)
            self._mapped[slot] = tensors
        return self._mapped[slot]


def tensor_shape(weight: Tensor) -> Shape:
    """Return the shape of a whole weight, also if ZeRO-3 shards it."""
    return Shape(weight.dtype, tuple(getattr(weight, "ds_shape", weight.shape)))


def num_elements(weight: Tensor) -> int:
    """Count the values of a whole weight, also if ZeRO-3 shards it."""
    return int(getattr(weight, "ds_numel", weight.numel()))


def buckets(named: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Split weights into buckets that a rank can gather under ZeRO-3."""
    parts: list[dict[str, Tensor]] = [{}]
    elements = 0
    for name, weight in named.items():
        size = num_elements(weight)
        if parts[-1] and elements + size > _GATHER_ELEMENTS:
            parts.append({})
            elements = 0
        parts[-1][name] = weight
        elements += size
    return parts


def _rank() -> int:
    return torch.distributed.get_rank()


def _num_writers() -> int:
    """Count the ranks on the node of rank 0; ranks of other nodes cannot write its memory."""
    is_elsewhere = os.environ.get("GROUP_RANK", "0") != "0"
    return 0 if is_elsewhere else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _split(shapes: Mapping[str, Shape], num_writers: int) -> list[list[str]]:
    """Split tensors into files, if possible one for each writer or more."""
    total = sum(shape.num_bytes for shape in shapes.values())
    limit = min(_FILE_BYTES, -(-total // max(1, num_writers)))
    files: list[list[str]] = []
    room = 0
    for name, shape in shapes.items():
        if not files or shape.num_bytes > room:
            files.append([])
            room = limit
        files[-1].append(name)
        room -= shape.num_bytes
    return files


def _file_name(index: int, number: int) -> str:
    return (
        "model.safetensors" if number == 1 else f"model-{index + 1:05}-of-{number:05}.safetensors"
    )


def _map(path: Path, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Create a safetensors file; return its tensors, which share its memory."""
    names = sorted(shapes, key=lambda name: -shapes[name].dtype.itemsize)  # for alignment
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ends = {}
    end = 0
    for name in names:
        start, end = end, end + shapes[name].num_bytes
        ends[name] = (start, end)
        entries[name] = {
            "dtype": _NAMES[shapes[name].dtype],
            "shape": shapes[name].dimensions,
            "data_offsets": (start, end),
        }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    begin = 8 + len(header)
    with path.open("w+b") as file:
        try:  # without room, a write to mapped memory would kill the process
            os.posix_fallocate(file.fileno(), 0, begin + end)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        file.write(len(header).to_bytes(8, "little") + header)
    mapped = torch.from_file(str(path), shared=True, size=begin + end, dtype=torch.uint8)
    _register(mapped)
    data = mapped[begin:]
    return {
        name: data[start:end].view(shapes[name].dtype).view(shapes[name].dimensions)
        for name, (start, end) in ends.items()
    }


def _register(mapped: Tensor) -> None:
    """Let a GPU write to mapped memory directly, which is several times as fast."""
    cudart: Any = torch.cuda.cudart() if torch.cuda.is_available() else None
    if cudart is not None:
        error = cudart.cudaHostRegister(mapped.data_ptr(), mapped.numel(), 0)
        if int(error):
            log.warning("memory is not registered with CUDA", extra={"error": int(error)})
            with suppress(RuntimeError):  # the next kernel launch raises the error again
                torch.zeros(1, device=torch.accelerator.current_accelerator())


def _write_index(folder: Path, files: Sequence[Sequence[str]]) -> None:
    places = {
        name: _file_name(index, len(files)) for index, names in enumerate(files) for name in names
    }
    content = json.dumps({"metadata": {}, "weight_map": places}, indent=1)
    (folder / "model.safetensors.index.json").write_text(content, encoding="utf-8")
