"""Cells of a dataset: the text that their author wrote, or a refusal that names the place."""

import gzip
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset, load_dataset
from pyarrow import parquet

from services.data.__main__ import main
from services.data.rows import read_rows

Answers = list[Any]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def import_rows(source: Path, out: Path, *options: str) -> list[dict[str, Any]]:
    assert main(["import", "--force", str(source), str(out), *options]) == 0
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


NUMBERS = ["3", "0.5", "0.50", "1e5", "1E+400", "0.1000000000000000055", "9007199254740993.0"]
NUMBERS += ["1" * 30, "12345678901234567890.5", "3.0", "1e22", "-Infinity"]
DATES = ['"1969-07-20"', '"2024-01-01T00:00:00Z"', '"12:30"']


@pytest.mark.parametrize("form", ["lines", "array", "pretty", "marked", "columns"])
@pytest.mark.parametrize("answers", [NUMBERS, DATES])
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
def test_a_csv_file_or_a_folder_of_them_is_text(kind: str, tmp_path: Path, out: Path) -> None:
    (tmp_path / "copy").mkdir()
    text = "problem,answer\n1?,007\n2?,1.50\n3?,NA\n4?,1e5\n5?,None\n6?,\n"
    file = tmp_path / f"copy/train.{kind}"
    file.write_text(text if kind == "csv" else text.replace(",", "\t"))
    for source in (file.parent, file)[: 1 + (kind == "csv")]:
        answers = [task["answer"] for task in import_rows(source, out)]
        assert answers == ["007", "1.50", "NA", "1e5", "None"]


def test_a_cell_of_a_csv_may_be_long_and_have_lines(tmp_path: Path) -> None:
    cell = "a\r\nb,c" * 40_000
    (tmp_path / "rows.csv").write_text(f'problem,answer\n1?,"{cell}"\n', newline="")
    assert read_answers(tmp_path / "rows.csv") == [cell]


NESTED = pa.struct({"x": pa.list_(pa.struct({"y": pa.float32()}))})
BYTES = ["6·7".encode(), None]
TEXTS = ["6·7", None]
# Values, their type in the file, and the answers that are read.
TYPED: list[tuple[list[Any], Any, Answers]] = [
    (BYTES, "large_binary", TEXTS),
    (TEXTS, "large_string", TEXTS),
    ([b"abc"], pa.binary(3), ["abc"]),
    (TEXTS, pa.dictionary(pa.int32(), pa.string()), TEXTS),
    ([b"6"], pa.dictionary(pa.int32(), pa.binary()), ["6"]),
    ([0.1, 3, 1e-7, float("nan"), None], "float32", ["0.1", "3.0", "1e-07", None, None]),
    ([0.1, 2047], "float16", ["0.1", "2047.0"]),
    ([0.1, 72, None], "float64", ["0.1", "72.0", None]),
    ([Decimal("1.50"), None], None, ["1.50", None]),
    ([Decimal("0.00000001")], None, ["0.00000001"]),
    ([Decimal(10) ** 40], pa.decimal256(50, 0), [f"1{40 * '0'}"]),
    ([2**64 - 1], "uint64", [str(2**64 - 1)]),
    ([True], "bool", ["True"]),
    ([date(1969, 7, 20)], "date32", ["1969-07-20"]),
    ([[0.1], None, []], pa.list_(pa.float32()), [[0.1], None, []]),
    ([{"x": [{"y": 0.1}]}], NESTED, [{"x": [{"y": 0.1}]}]),
]


@pytest.mark.parametrize("write", [write_parquet, write_folder, save_dataset])
@pytest.mark.parametrize(("values", "kind", "answers"), TYPED)
def test_a_typed_cell_is_its_text(
    write: Callable[[pa.Table, Path], Path],
    values: list[Any],
    kind: Any,
    answers: Answers,
    tmp_path: Path,
) -> None:
    cells = pa.array(values, kind)
    if write is save_dataset and pa.types.is_fixed_size_binary(cells.type):
        pytest.skip("the library has no such type")
    cells_read = read_answers(write(pa.table({"answer": cells}), tmp_path))
    plain = [cell if isinstance(cell, list | dict | None) else str(cell) for cell in cells_read]
    assert plain == answers


MOMENT = datetime(1969, 7, 20, tzinfo=UTC)
# The type of a column, and a cell in its second row whose text is not known.
UNKNOWN: list[tuple[Any, object]] = [
    ("binary", b"\xff"),
    (pa.list_(pa.binary()), [b"\xff"]),
    (pa.struct({"a": pa.binary()}), {"a": b"\xff"}),
    ("float64", 1e22),
    ("float64", float("inf")),
    ("float32", 16777218.0),
    (pa.timestamp("us", "Europe/Paris"), MOMENT),
    ("timestamp[ns]", 1),
    ("time64[us]", time(12, 30)),
    ("duration[us]", timedelta(1)),
    ("date32", 10**7),
]


@pytest.mark.parametrize(("kind", "cell"), UNKNOWN, ids=str)
@pytest.mark.parametrize("column", ["problem", "answer", "solution", "note"])
def test_a_cell_of_unknown_text_refuses_the_import_by_column_and_row(
    column: str,
    kind: Any,
    cell: object,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns: dict[str, Any] = {"problem": ["1?", "2?"], "answer": ["1", "2"]}
    columns[column] = pa.array([None, cell], kind)
    source = write_parquet(pa.table(columns), tmp_path)
    options = {"solution": ["--solution", "solution"], "note": ["--keep", "note"]}.get(column, [])
    assert main(["import", str(source), str(out), *options]) == 2
    assert f"row 2, column '{column}': " in capsys.readouterr().err
    assert not out.exists()
    if options:
        # A column that no option names may hold anything.
        assert len(import_rows(source, out)) == 2


@pytest.mark.parametrize(
    ("name", "content", "problem"),
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
    problem: str,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["import", str(tmp_path / name), str(out)]) == 2
    assert problem in capsys.readouterr().err


def test_mixed_json_that_the_library_has_saved_is_read_as_json(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(as_lines(["3", '"x"', '{"a": 1}']))
    loaded = load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), split="train")
    loaded.save_to_disk(tmp_path / "saved")
    assert read_answers(tmp_path / "saved") == [3, "x", {"a": 1}]
