"""Read the rows of a dataset, with cells as their author wrote them.

The library ``datasets`` finds the files. It guesses types for columns of text, so this module reads
CSV and JSON itself; other formats have types and come from Arrow.
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

# Errors of libraries that read wrong data.
_READ_ERRORS = (OSError, RuntimeError, TypeError, ValueError)
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
# One of these files is in each folder that the library has saved.
_SAVED_FILES = ("dataset_dict.json", "state.json")
_BATCH_ROWS = 1000
_MAX_CELL_CHARS = 2**31 - 1
# Keeps wrong bytes, so that their cell is refused.
_ON_WRONG_BYTES = "surrogateescape"


def read_rows(source: str, configs: Sequence[str], split: str) -> Iterator[Row]:
    """Yield the rows of all parts (``configs``) of a dataset, without copying it to disk.

    Raises:
        RefusedError: if there is no such dataset, part or split, or it cannot be read.
    """
    library = _import_library()
    try:
        yield from chain.from_iterable(_parts(library, source, configs, split))
    except RefusedError:
        raise
    except (*_READ_ERRORS, csv.Error, library.exceptions.DatasetsError) as error:
        raise RefusedError(f"{source}: {error}") from error


def _import_library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise RefusedError(
            "`weir data import` needs the library datasets; run `pip install 'weir[data]'`"
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _parts(
    library: Any, source: str, configs: Sequence[str], split: str
) -> Iterator[Iterator[Row]]:
    path = Path(source)
    if path.is_file():
        file_format = _FORMATS.get(path.suffix)
        if file_format is None:
            raise RefusedError(f"{path}: its name must end in one of {', '.join(_FORMATS)}")
        yield _read_part(library.load_dataset_builder(file_format, data_files=str(path)), "train")
    elif any((path / name).exists() for name in _SAVED_FILES):
        yield _read_arrow(_load_saved(library, path, split))
    else:
        for name, config in _find_parts(library, path, source, configs):
            yield _read_part(library.load_dataset_builder(name, config), split)


def _read_part(builder: Any, split: str) -> Iterator[Row]:
    read = _READERS.get(builder.name)
    files = builder.config.data_files
    if read is None or split not in files:
        yield from _read_arrow(builder.as_streaming_dataset(split))
        return
    import fsspec

    for name in files[split]:
        with fsspec.open(name, "rb", compression="infer") as file:
            yield from read(file, builder.config)


def _load_saved(library: Any, path: Path, split: str) -> Any:
    dataset = library.load_from_disk(str(path))
    if not isinstance(dataset, dict):
        return dataset
    if split not in dataset:
        raise RefusedError(f"{path}: no split {split!r}; there are: {', '.join(dataset)}")
    return dataset[split]


def _find_parts(
    library: Any, path: Path, source: str, configs: Sequence[str]
) -> Sequence[tuple[str, str | None]]:
    """Return the name and config of each part: a config of the dataset, or a subfolder."""
    names = library.get_dataset_config_names(source) if path.is_dir() else configs
    parts: list[tuple[str, str | None]] = []
    for config in configs:
        if config in names:
            parts.append((source, config))
        elif (path / config).is_dir():
            parts.append((str(path / config), None))
    return parts or [(source, None)]


def _read_csv(file: Any, config: Any) -> Iterator[Row]:
    csv.field_size_limit(_MAX_CELL_CHARS)
    text = TextIOWrapper(file, config.encoding or "utf-8-sig", _ON_WRONG_BYTES, newline="")
    reader = csv.DictReader(text, config.names, delimiter=config.sep, strict=True)
    for number, row in enumerate(reader, start=1):
        if None in row:
            raise RefusedError(
                f"row {number} has more cells than there are columns; put quotes around a cell "
                f"with {config.sep!r}"
            )
        yield row


def _read_json(file: Any, config: Any) -> Iterator[Row]:
    text = TextIOWrapper(file, "utf-8-sig", _ON_WRONG_BYTES)
    for number, line in enumerate(text, start=1):
        if line.isspace():
            continue
        try:
            rows = _JSON.decode(line)
        except ValueError:
            # Either a value of several lines, or an error, which then names its line.
            rows = _to_records(_JSON.decode("\n" * (number - 1) + line + text.read()))
        for row in rows if isinstance(rows, list) else [rows]:
            if not isinstance(row, dict):
                raise RefusedError(f"line {number}: a row must be a JSON object: {{...}}")
            yield row


def _to_records(value: Any) -> Any:
    """Convert an object of columns to rows."""
    if not isinstance(value, dict):
        return value
    import pandas

    return pandas.DataFrame(value, dtype=object).to_dict("records")


def _to_number(text: str) -> float | str:
    """Return the number if Python writes it like this, else the text."""
    number = float(text)
    return number if str(number) == text else text


_JSON = json.JSONDecoder(
    strict=False,
    parse_float=_to_number,
    parse_constant=lambda text: None if text == "NaN" else text,
)


def _read_arrow(dataset: Any) -> Iterator[Row]:
    for table in dataset.with_format("arrow").iter(_BATCH_ROWS):
        yield from map(_to_json, table.to_struct_array())


def _to_json(scalar: Any) -> Any:
    """Convert a value of Arrow to JSON; return the scalar itself if its text is unknown."""
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _to_json(part) for name, part in scalar.items()}
    if isinstance(scalar, pa.ListScalar):
        return [_to_json(part) for part in scalar.values]
    if isinstance(scalar, pa.JsonScalar):
        return _JSON.decode(scalar.as_py())
    with suppress(ArithmeticError, ValueError):
        return _to_plain(scalar.as_py(), scalar)
    return scalar


def _to_plain(value: Any, scalar: Any) -> Any:
    match value:
        case bytes():
            return value.decode()
        case float() if math.isnan(value):
            return None
        case float():
            # The text depends on the width in the file.
            number = scalar.type.to_pandas_dtype()(value)
            is_exact = abs(number) < 2 ** (np.finfo(number).nmant + 1)
            return float(str(number)) if is_exact else scalar
        case Decimal():
            return f"{value:f}"
        case date() if type(value) is date:
            return value.isoformat()
        case int() | str():
            return value
    return scalar


_READERS = {"csv": _read_csv, "json": _read_json}
