"""How ranks write a model: each a share of it, side by side, into files in memory.

The files are mapped once and filled again with every version: memory that is there is written five
times as fast as memory that has to be found. They are safetensors, and a Hugging Face folder.
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
_FILE_BYTES = 256 * 2**20  # many files are read, and their checksums made, side by side
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
    """The files that this rank writes, by slot: a folder that one version after another lies in."""

    def __init__(self) -> None:
        self._mapped: dict[int, dict[str, Tensor]] = {}

    def of(self, slot: int, folder: Path, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
        """This rank's tensors of a slot, to be filled in place.

        Args:
            slot: a number that no other folder has.
            folder: where the slot lies now; its files are made when it is first used.
            shapes: of the whole model, on every rank in the same order.

        Raises:
            OSError: if there is no room for them.
        """
        if slot not in self._mapped:
            files = _split(shapes, num_writers := _num_writers())
            own = range(_rank(), len(files), num_writers) if _rank() < num_writers else ()
            tensors: dict[str, Tensor] = {}
            for index in own:
                named = {name: shapes[name] for name in files[index]}
                tensors |= _map(folder / _file_name(index, len(files)), named)
            if _rank() == 0 and len(files) > 1:
                _write_index(folder, files)
            self._mapped[slot] = tensors
        return self._mapped[slot]


def shape_of(weight: Tensor) -> Shape:
    """The shape of all of a weight, of which ZeRO-3 leaves a rank a part."""
    return Shape(weight.dtype, tuple(getattr(weight, "ds_shape", weight.shape)))


def size_of(weight: Tensor) -> int:
    """Numbers in all of a weight, of which ZeRO-3 leaves a rank a part."""
    return int(getattr(weight, "ds_numel", weight.numel()))


def buckets(named: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Weights by name, in parts that a rank has room to gather under ZeRO-3."""
    parts: list[dict[str, Tensor]] = [{}]
    elements = 0
    for name, weight in named.items():
        size = size_of(weight)
        if parts[-1] and elements + size > _GATHER_ELEMENTS:
            parts.append({})
            elements = 0
        parts[-1][name] = weight
        elements += size
    return parts


def _rank() -> int:
    return torch.distributed.get_rank()


def _num_writers() -> int:
    """The ranks on the node of rank 0: those of other nodes do not see its memory."""
    is_elsewhere = os.environ.get("GROUP_RANK", "0") != "0"
    return 0 if is_elsewhere else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _split(shapes: Mapping[str, Shape], num_writers: int) -> list[list[str]]:
    """The names of the tensors, file by file; a file for each writer at least, if it can be."""
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
    """Make a safetensors file; returns its tensors, which share its memory."""
    names = sorted(shapes, key=lambda name: -shapes[name].dtype.itemsize)  # keeps them aligned
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
        try:  # writing to mapped memory that there is no room for would kill the process
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
    """Let a GPU write to mapped memory itself, which is several times as fast."""
    cudart: Any = torch.cuda.cudart() if torch.cuda.is_available() else None
    if cudart is not None:
        error = cudart.cudaHostRegister(mapped.data_ptr(), mapped.numel(), 0)
        if int(error):
            log.warning("memory is not registered with CUDA", extra={"error": int(error)})
            with suppress(RuntimeError):  # the next launch of a kernel tells the error once more
                torch.zeros(1, device=torch.accelerator.current_accelerator())


def _write_index(folder: Path, files: Sequence[Sequence[str]]) -> None:
    places = {
        name: _file_name(index, len(files)) for index, names in enumerate(files) for name in names
    }
    content = json.dumps({"metadata": {}, "weight_map": places}, indent=1)
    (folder / "model.safetensors.index.json").write_text(content, encoding="utf-8")
