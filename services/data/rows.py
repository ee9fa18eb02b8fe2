"""The rows of a dataset, their cells as the author wrote them.

The library ``datasets`` finds the files of a dataset. It would guess a type for each column of
text, so that is read here; what has types comes from Arrow.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from services.data.mapping import RefusedError, Row

_UNREADABLE = OSError, RuntimeError, TypeError, ValueError  # what libraries raise of data
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
_SAVED = ("dataset_dict.json", "state.json")  # in folders that the library has written
_BATCH = 1000  # rows
_LONGEST_CELL = 2**31 - 1
_KEEPS_BYTES = "surrogateescape"  # for the refusal of a cell


def rows_of(source: str, configs: Sequence[str], split: str) -> Iterator[Row]:
    """The rows of all parts (``configs``) of a dataset, in order, without a copy of it on disk.

    Raises:
        RefusedError: if there is no such dataset, part or split, or it cannot be read.
    """
    library = _library()
    try:
        yield from chain.from_iterable(_parts(library, source, configs, split))
    except RefusedError:
        raise
    except (*_UNREADABLE, csv.Error, library.exceptions.DatasetsError) as error:
        raise RefusedError(f"{source}: {error}") from error


def _library() -> Any:
    try:
        import datasets  # slow to load, and an extra
    except ImportError as error:
        remedy = "install Weir's extra `data`: pip install 'weir[data]'"
        raise RefusedError(f"`weir data import` needs the library datasets; {remedy}") from error
    datasets.disable_progress_bars()
    return datasets


def _parts(
    library: Any, source: str, configs: Sequence[str], split: str
) -> Iterator[Iterator[Row]]:
    path = Path(source)
    if path.is_file():
        kind = _FORMATS.get(path.suffix)
        if kind is None:
            raise RefusedError(f"{path}: its name must end in one of {', '.join(_FORMATS)}")
        yield _built(library.load_dataset_builder(kind, data_files=str(path)), "train")
    elif any((path / name).exists() for name in _SAVED):
        yield _arrow_rows(_saved(library, path, split))
    else:
        for place, config in _places(library, path, source, configs):
            yield _built(library.load_dataset_builder(place, config), split)


def _built(builder: Any, split: str) -> Iterator[Row]:
    read, files = _READERS.get(builder.name), builder.config.data_files
    if read is None or split not in files:
        yield from _arrow_rows(builder.as_streaming_dataset(split))
        return
    import fsspec

    for name in files[split]:
        with fsspec.open(name, "rb", compression="infer") as file:
            yield from read(file, builder.config)


def _saved(library: Any, path: Path, split: str) -> Any:
    saved = library.load_from_disk(str(path))
    if not isinstance(saved, dict):
        return saved
    if split not in saved:
        raise RefusedError(f"{path}: no split {split!r}; there are: {', '.join(saved)}")
    return saved[split]


def _places(
    library: Any, path: Path, source: str, configs: Sequence[str]
) -> Sequence[tuple[str, str | None]]:
    """What to load for each part: the dataset by the part's name, else a subfolder of that name."""
    named = library.get_dataset_config_names(source) if path.is_dir() else configs
    places = [
        (source, config) if config in named else (str(path / config), None)
        for config in configs
        if config in named or (path / config).is_dir()
    ]
    return places or [(source, None)]


def _csv_rows(file: Any, config: Any) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_CELL)
    text = TextIOWrapper(file, config.encoding or "utf-8-sig", _KEEPS_BYTES, newline="")
    reader = csv.DictReader(text, config.names, delimiter=config.sep, strict=True)
    for number, row in enumerate(reader, start=1):
        if None in row:
            remedy = f"put quotes around a cell that holds {config.sep!r}"
            raise RefusedError(f"row {number} has more cells than there are columns; {remedy}")
        yield row


def _json_rows(file: Any, config: Any) -> Iterator[Row]:
    text = TextIOWrapper(file, "utf-8-sig", _KEEPS_BYTES)
    for number, line in enumerate(text, start=1):
        if line.isspace():
            continue
        try:
            found = _JSON.decode(line)
        except ValueError:  # one value of many lines, or an error, whose line it tells
            found = _records(_JSON.decode("\n" * (number - 1) + line + text.read()))
        for row in found if isinstance(found, list) else [found]:
            if not isinstance(row, dict):
                raise RefusedError(f"line {number}: a row must be a JSON object: {{...}}")
            yield row


def _records(whole: Any) -> Any:
    """The rows of a file that is one value, which may be an object of columns."""
    import pandas

    return (
        pandas.DataFrame(whole, dtype=object).to_dict("records")
        if isinstance(whole, dict)
        else whole
    )


def _number(text: str) -> float | str:
    """The number, if Python writes it like this, else the text."""
    number = float(text)
    return number if str(number) == text else text


_JSON = json.JSONDecoder(
    strict=False,
    parse_float=_number,
    parse_constant=lambda text: None if text == "NaN" else text,
)


def _arrow_rows(dataset: Any) -> Iterator[Row]:
    for table in dataset.with_format("arrow").iter(_BATCH):
        yield from map(_value, table.to_struct_array())


def _value(scalar: Any) -> Any:
    """A value of Arrow as one of JSON; the scalar itself if its text is not known."""
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(part) for name, part in scalar.items()}
    if isinstance(scalar, pa.ListScalar):
        return [_value(part) for part in scalar.values]
    if isinstance(scalar, pa.JsonScalar):
        return _JSON.decode(scalar.as_py())
    with suppress(ArithmeticError, ValueError):
        return _plain(scalar.as_py(), scalar)
    return scalar


def _plain(value: Any, scalar: Any) -> Any:
    match value:
        case bytes():
            return value.decode()
        case float() if math.isnan(value):
            return None
        case float():
            number = scalar.type.to_pandas_dtype()(value)  # as wide as it is in the file
            is_exact = abs(number) < 2 ** (np.finfo(number).nmant + 1)
            return float(str(number)) if is_exact else scalar
        case Decimal():
            return f"{value:f}"
        case date() if type(value) is date:
            return value.isoformat()
        case int() | str():  # and bool
            return value
    return scalar


_READERS = {"csv": _csv_rows, "json": _json_rows}
