"""Cells of a dataset: the text that their author wrote, or a refusal that names the place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset, Image, load_dataset
from pyarrow import parquet

from services.data.__main__ import main
from services.data.rows import read_rows

Answers = list[Any]
INT = pa.int64()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def import_rows(source: Path, out: Path, *options: str) -> list[dict[str, Any]]:
    assert main(["import", str(source), str(out), *options]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def read_answers(source: Path) -> Answers:
    return [row["answer"] for row in read_rows(str(source), (), "train")]


def as_lines(answers: list[str]) -> str:
    return "".join(f'{{"problem": "{n}?", "answer": {text}}}\n' for n, text in enumerate(answers))


def write_parquet(table: pa.Table, folder: Path) -> Path:
    parquet.write_table(table, folder / "rows.parquet")
    return folder / "rows.parquet"


def write_folder(table: pa.Table, folder: Path) -> Path:
    (folder / "copy/data").mkdir(parents=True)
    parquet.write_table(table, folder / "copy/data/train-0.parquet")
    return folder / "copy"


def save_dataset(table: pa.Table, folder: Path) -> Path:
    Dataset(table).save_to_disk(folder / "saved")
    return folder / "saved"


WRITTEN = ["3", "0.5", "0.50", "1e5", "1E+400", "0.1000000000000000055", "9007199254740993.0"]
WRITTEN += ["1" * 30, "12345678901234567890.5", "3.0", "1e22", "-Infinity"]
DATES = ['"1969-07-20"', '"2024-01-01T00:00:00Z"', '"12:30"']


@pytest.mark.parametrize("form", ["lines", "array", "pretty", "marked", "columns"])
@pytest.mark.parametrize("answers", [WRITTEN, DATES])
def test_json_keeps_digits_and_dates(answers: list[str], form: str, tmp_path: Path) -> None:
    lines = as_lines(answers)
    array = f"[{','.join(lines.splitlines())}]"
    columns = f'{{"problem": {[0] * len(answers)},\n"answer": [{", ".join(answers)}]}}'
    texts = {
        "lines": lines.replace("\n", "\n\n"),
        "array": array,
        "pretty": array.replace("{", "{\n"),
        "marked": f"\ufeff{lines}",
        "columns": columns,
    }
    (tmp_path / "rows.json").write_text(texts[form])
    answers_read = map(str, read_answers(tmp_path / "rows.json"))
    assert list(answers_read) == [text.strip('"') for text in answers]


def test_numbers_of_json_stay_numbers_where_that_changes_nothing(tmp_path: Path, out: Path) -> None:
    row = '{"problem": "1?", "answer": [1.50, 2], "n": 3, "x": 0.5, "y": 0.50, "z": NaN}'
    (tmp_path / "rows.jsonl").write_text(row)
    options = [part for name in "nxyz" for part in ("--keep", name)]
    (task,) = import_rows(tmp_path / "rows.jsonl", out, *options)
    assert task["metadata"] == {"n": 3, "x": 0.5, "y": "0.50"}
    assert task["answer"] == "1.50, 2"


@pytest.mark.parametrize("name", ["rows.jsonl", "copy/train.jsonl.gz"])
def test_a_column_may_be_missing_in_the_first_row(name: str, tmp_path: Path, out: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    text = b'{"problem": "0?"}\n{"problem": "1?", "of": {"answer": 1.0}}\n'
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    source = path.parent if path.parent.name == "copy" else path
    (task,) = import_rows(source, out, "--answer", "of.answer")
    assert (task["prompt"], task["answer"]) == ("1?", "1.0")


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_folder_of_csv_files_is_text_too(kind: str, tmp_path: Path, out: Path) -> None:
    (tmp_path / "copy").mkdir()
    rows = [["problem", "answer"], ["1?", "007"], ["2?", "1.50"], ["3?", "NA"], ["4?", "1e5"]]
    mark = {"csv": ",", "tsv": "\t"}[kind]
    (tmp_path / f"copy/train.{kind}").write_text("\n".join(map(mark.join, rows)))
    tasks = import_rows(tmp_path / "copy", out)
    assert [task["answer"] for task in tasks] == ["007", "1.50", "NA", "1e5"]


def test_a_cell_of_a_csv_may_be_long_and_have_lines(tmp_path: Path) -> None:
    cell = "a\r\nb,c" * 40_000
    (tmp_path / "rows.csv").write_text(f'problem,answer\n1?,"{cell}"\n', newline="")
    assert read_answers(tmp_path / "rows.csv") == [cell]


NESTED = pa.struct({"x": pa.list_(pa.struct({"y": pa.float32()}))})
NAN = float("nan")
STRINGS = "6·7", None
KEPT: list[tuple[pa.Array, Answers]] = [
    (pa.array(["6·7".encode(), None], pa.binary()), [*STRINGS]),
    (pa.array(["6·7".encode(), None], pa.large_binary()), [*STRINGS]),
    (pa.array([b"abc"], pa.binary(3)), ["abc"]),
    (pa.array(STRINGS, pa.large_string()), [*STRINGS]),
    (pa.array(STRINGS).dictionary_encode(), [*STRINGS]),
    (pa.array([b"6"]).dictionary_encode(), ["6"]),
    (pa.array([0.1, 3, 1e-7, NAN, None], pa.float32()), ["0.1", "3.0", "1e-07", None, None]),
    (pa.array([0.1, 2047], pa.float16()), ["0.1", "2047.0"]),
    (pa.array([0.1, 72, None]), ["0.1", "72.0", None]),
    (pa.array([Decimal("1.50"), None]), ["1.50", None]),
    (pa.array([Decimal("0.00000001")]), ["0.00000001"]),
    (pa.array([Decimal(10) ** 40], pa.decimal256(50, 0)), [f"1{40 * '0'}"]),
    (pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)]),
    (pa.array([True]), ["True"]),
    (pa.nulls(1), [None]),
    (pa.array([date(1969, 7, 20)]), ["1969-07-20"]),
    (pa.array([[0.1], None, []], pa.list_(pa.float32())), [[0.1], None, []]),
    (pa.array([[b"a"]], pa.large_list(pa.binary())), [["a"]]),
    (pa.array([{"x": [{"y": 0.1}]}], NESTED), [{"x": [{"y": 0.1}]}]),
]


@pytest.mark.parametrize(
    "write", [write_parquet, write_folder, save_dataset], ids=lambda way: way.__name__
)
@pytest.mark.parametrize(
    ("cells", "answers"), KEPT, ids=lambda part: str(getattr(part, "type", ""))
)
def test_a_typed_cell_is_its_text(
    write: Callable[[pa.Table, Path], Path], cells: pa.Array, answers: Answers, tmp_path: Path
) -> None:
    if write is save_dataset and pa.types.is_fixed_size_binary(cells.type):
        pytest.skip("the library has no such type")
    cells_read = read_answers(write(pa.table({"answer": cells}), tmp_path))
    plain = [
        cell if cell is None or isinstance(cell, list | dict) else str(cell) for cell in cells_read
    ]
    assert plain == answers


MOMENT = datetime(1969, 7, 20, tzinfo=UTC)
UNKNOWN: list[pa.Array] = [
    pa.array([b"a", b"\xff"]),
    pa.array([b"a", b"\xff"]).dictionary_encode(),
    pa.array([[b"a"], [b"\xff"]]),
    pa.array([{"a": b"a"}, {"a": b"\xff"}]),
    pa.array([0.5, 1e22]),
    pa.array([0.5, float("inf")]),
    pa.array([0.5, 16777218.0], pa.float32()),
    pa.array([0.5, 2050.0], pa.float16()),
    pa.array([None, MOMENT], pa.timestamp("s")),
    pa.array([None, MOMENT], pa.timestamp("us", "Europe/Paris")),
    pa.array([None, 1], pa.timestamp("ns")),
    pa.array([None, time(12, 30)]),
    pa.array([None, timedelta(1)]),
    pa.array([None, 10**7], pa.date32()),
]


@pytest.mark.parametrize("cells", UNKNOWN, ids=lambda cells: str(cells.type))
@pytest.mark.parametrize("column", ["problem", "answer", "solution", "note"])
def test_a_cell_whose_text_is_not_known_refuses_the_import_by_column_and_row(
    column: str, cells: pa.Array, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns: dict[str, Any] = {"problem": ["1?", "2?"], "answer": ["1", "2"]}
    source = write_parquet(pa.table(columns | {column: cells}), tmp_path)
    if column in columns and not cells[0].is_valid:
        columns[column] = cells
    options = {"solution": ["--solution", "solution"], "note": ["--keep", "note"]}.get(column, [])
    assert main(["import", str(source), str(out), *options]) == 2
    assert f"row 2, column '{column}': " in capsys.readouterr().err
    assert not out.exists()
    if options:  # what is not asked for may be anything
        assert len(import_rows(source, out)) == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.csv", b"problem,answer\n1?,1\n2?,caf\xe9\n", "row 2, column 'answer': "),
        ("rows.csv", b"problem,answer\n1?,1\n2?,1,000\n", "row 2 has more cells than there"),
        ("rows.csv", b'problem,answer\n1?,1\n2?,"1\n', "unexpected end of data"),
        ("rows.jsonl", b'{"problem": "1?", "answer": "caf\xe9"}', "row 1, column 'answer': "),
        ("rows.jsonl", as_lines(["1", r'"\ud800"']).encode(), "row 2, column 'answer': "),
        ("rows.jsonl", as_lines(["1"]).encode() + b"{\n", "line "),
        ("rows.jsonl", as_lines(["1"]).encode() + b"7\n", "line 2: a row must be a JSON object"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_its_place(
    name: str,
    content: bytes,
    words: str,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["import", str(tmp_path / name), str(out)]) == 2
    assert words in capsys.readouterr().err


def test_mixed_json_that_the_library_has_saved_is_read_as_json(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(as_lines(["3", '"x"', '{"a": 1}']))
    loaded = load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), split="train")
    loaded.save_to_disk(tmp_path / "saved")
    assert read_answers(tmp_path / "saved") == [3, "x", {"a": 1}]


def test_a_picture_is_no_text_but_may_decide_about_its_row(tmp_path: Path, out: Path) -> None:
    pictures = [{"bytes": b"\x89PNG", "path": None}, None]
    rows = {"problem": ["1?", "2?"], "answer": ["1", "2"], "image": pictures}
    Dataset.from_dict(rows).cast_column("image", Image()).save_to_disk(tmp_path / "saved")
    (task,) = import_rows(tmp_path / "saved", out, "--where", "image=")
    assert task["prompt"] == "2?"
