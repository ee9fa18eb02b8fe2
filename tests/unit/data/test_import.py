"""``weir data import``: published rows become tasks, and a faulty row or option is named."""

import asyncio
import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from datasets import Dataset, DatasetDict

from services.data import __main__ as command
from services.data.__main__ import main
from services.data.importing import import_tasks
from services.data.mapping import RowSkipped, build_fields, find_columns
from services.data.presets import PRESETS, Preset
from tests.tables import table

Rows = list[dict[str, Any]]
# By preset: rows, some fields of their tasks, and the number of rows left out by reason.
PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())


def test_published_has_every_preset() -> None:
    assert set(PUBLISHED) == set(PRESETS)


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_dataset_becomes_tasks_by_its_preset(preset: str) -> None:
    published = PUBLISHED[preset]
    result = asyncio.run(import_tasks(published["rows"], PRESETS[preset], None))
    for draft, expected in zip(result.drafts, published["tasks"], strict=True):
        assert draft.fields.items() >= expected.items()
    left_out = {reason: len(rows) for reason, rows in result.left_out.items()}
    assert left_out == published["left_out"]


def map_row(row: dict[str, Any], **columns: Any) -> dict[str, Any]:
    preset = Preset(**columns)
    return build_fields(find_columns(preset, set(row)), row)


@table(
    """
    value          | answer
    " 7 "          | 7
    0.5            | 0.5
    ["a", None, 5] | a, 5
""",
    (10**30, f"1{30 * '0'}"),
)
def test_an_answer_of_any_plain_type_is_its_text(value: object, answer: str) -> None:
    assert map_row({"problem": "1?", "answer": value})["answer"] == answer


@pytest.mark.parametrize("value", [None, [], " "])
def test_an_answer_that_is_none_makes_no_task(value: object) -> None:
    with pytest.raises(RowSkipped, match="no answer in 'answer'"):
        map_row({"problem": "1?", "answer": value})


def test_of_several_solutions_the_first_counts() -> None:
    row = {"problem": "1?", "answer": "1", "proof": ["So.", "Or so."]}
    assert map_row(row, solution=("proof",))["solution"] == "So."
    assert "solution" not in map_row(row | {"proof": [None]}, solution=("proof",))


ROWS: Rows = [
    {"question": f"What is {n}+{n}?", "result": str(2 * n), "note": "easy", "steps": f"{2 * n}!"}
    for n in range(1, 41)
]
COLUMNS = ["--problem", "question", "--answer", "result"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


def read_written(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()]


def import_checked(source: Path | str, out: Path, *options: str) -> Rows:
    assert main(["import", "--force", str(source), str(out), *options]) == 0
    assert main(["check", str(out)]) == 0
    return read_written(out)


def a_file(folder: Path, kind: str, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"train.{kind}"
    if kind == "parquet":
        Dataset.from_list(list(rows)).to_parquet(path)
    elif kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_file_of_any_kind_becomes_the_same_tasks(kind: str, tmp_path: Path, out: Path) -> None:
    options = [*COLUMNS, "--solution", "steps", "--keep", "note", "--limit", "2"]
    first, second = import_checked(a_file(tmp_path, kind), out, *options)
    assert first.pop("id") != second.pop("id")
    expected = {"prompt": "What is 1+1?", "answer": "2", "solution": "2!"}
    assert first == expected | {"metadata": {"note": "easy"}}
    assert second["answer"] == "4"


def test_a_copy_of_a_dataset_has_its_parts_in_folders_or_on_its_card(
    tmp_path: Path, out: Path
) -> None:
    for folder, preset in (("math/algebra", "math"), ("math/geometry", "math"), ("g", "gsm8k")):
        a_file(tmp_path / folder, "jsonl", [PUBLISHED[preset]["rows"][0] | {"problem": folder}])
    parts = [("main", "train.jsonl"), ("socratic", "none.jsonl")]
    card = [f"- config_name: {name}\n  data_files: {file}\n" for name, file in parts]
    (tmp_path / "g/README.md").write_text("---\nconfigs:\n" + "".join(card) + "---\n")
    assert len(import_checked(tmp_path / "math", out, "--preset", "math")) == 2
    assert len(import_checked(tmp_path / "g", out, "--preset", "gsm8k")) == 1


def test_a_folder_that_the_library_has_saved_has_splits(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = DatasetDict(
        {"train": Dataset.from_list(ROWS[:2]), "test": Dataset.from_list(ROWS[2:3])}
    )
    saved.save_to_disk(tmp_path / "saved")
    assert len(import_checked(tmp_path / "saved", out, *COLUMNS)) == 2
    assert len(import_checked(tmp_path / "saved", out, *COLUMNS, "--split", "test")) == 1
    assert main(["import", "--force", str(tmp_path / "saved"), str(out), "--split", "dev"]) == 2
    assert "no split 'dev'; there are: train, test" in capsys.readouterr().err


@pytest.mark.parametrize("head", ["\ufeff", ","])
def test_a_csv_may_begin_with_a_mark_or_an_index(head: str, tmp_path: Path, out: Path) -> None:
    index = "0," if head == "," else ""
    (tmp_path / "rows.csv").write_text(f"{head}problem,answer\n{index}1+1?,2\n")
    (task,) = import_checked(tmp_path / "rows.csv", out)
    assert (task["prompt"], task["answer"]) == ("1+1?", "2")


def test_the_held_out_are_the_same_whatever_the_order_and_others_for_another_seed(
    tmp_path: Path, out: Path
) -> None:
    def chosen(rows: Rows, size: str, seed: str) -> set[str]:
        options = [*COLUMNS, "--held-out", size, "--seed", seed]
        train = import_checked(a_file(tmp_path, "jsonl", rows), out, *options)
        held_out = read_written(out.with_name("tasks-held-out.jsonl"))
        assert len({task["id"] for task in (*train, *held_out)}) == len(rows)
        return {task["id"] for task in held_out}

    first = chosen(ROWS, "8", "1")
    assert len(first) == 8
    assert chosen(ROWS[::-1], "0.2", "1") == first
    assert chosen(ROWS, "8", "2") != first


def test_ids_that_are_not_unique_are_made_from_the_problems(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = import_checked(a_file(tmp_path, "jsonl", ROWS[:3]), out, *COLUMNS, "--id", "note")
    assert len({task["id"] for task in tasks} - {"easy"}) == 3
    assert "own are not unique" in capsys.readouterr().err


def test_a_conversation_stays_one(tmp_path: Path, out: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    (task,) = import_checked(a_file(tmp_path, "jsonl", [{"problem": turns, "answer": 2}]), out)
    assert (task["messages"], task["answer"]) == (turns, "2")


ROW = '{"problem": "1?", "answer": "1"}\n'
CONTENTS = {"ROW": ROW, "ROWS": ROW + ROW.replace("1?", "2?")}


@table("""
    name         | content                         | options                | problem
    rows.txt | x |  | .parquet, .csv, .json, .jsonl
    rows.jsonl   | {                               |                        | rows.jsonl:
    rows.parquet | x                               |                        | rows.parquet:
    rows.jsonl   | {"problem": " ", "answer": "1"} |                        | of 1 rows
    rows.jsonl   | ROW                             | --split test           | --split
    rows.jsonl | ROW | --problem x | 'x' for the problem; there are: answer, problem
    rows.jsonl | ROW | --answer result | no column 'result' for the answer
    rows.jsonl | ROW | --solution proof | no column 'proof' for an option
    rows.jsonl   | ROW                             | --preset olympiadbench | no column 'question'
    rows.jsonl   | ROWS                            | --held-out 0           | cannot be held
    rows.jsonl   | ROWS                            | --held-out 2           | cannot be held
    rows.jsonl   | ROWS                            | --held-out 0.001       | cannot be held
    rows.jsonl   | ROWS                            | --held-out nan         | cannot be held
""")
def test_a_refused_import_leaves_the_old_file(
    name: str,
    content: str,
    options: str,
    problem: str,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(CONTENTS.get(content, content))
    out.write_text("old")
    assert main(["import", "--force", str(tmp_path / name), str(out), *options.split()]) == 2
    assert problem in capsys.readouterr().err
    assert out.read_text() == "old"


def test_a_disk_that_is_full_leaves_the_old_file(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out.write_text("old")
    source = a_file(tmp_path, "jsonl")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError("no space left")))
    assert main(["import", "--force", str(source), str(out), *COLUMNS]) == 2
    assert out.read_text() == "old"
    assert set(tmp_path.iterdir()) == {source, out}


def test_the_source_is_not_overwritten_and_a_folder_must_be_there(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(ROW)
    out.symlink_to(source)
    for target in (source, out):
        assert main(["import", str(source), str(target)]) == 2
        assert "is the file to read" in capsys.readouterr().err
    assert source.read_text() == ROW
    other = tmp_path / "other.jsonl"
    other.write_text("old")
    assert main(["import", str(source), str(other)]) == 2
    assert "--force" in capsys.readouterr().err
    assert other.read_text() == "old"
    assert main(["import", str(tmp_path / "rows.txt"), str(tmp_path / "no/such/out")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_preset_alone_is_looked_for_on_the_hub(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_rows(source: str, parts: object, split: str) -> Rows:
        return [{"question": f"{source} {split}?", "answer": "It is 2.\n#### 2"}]

    monkeypatch.setattr(command, "read_rows", read_rows)
    (task,) = import_checked("gsm8k", out)
    assert (task["prompt"], task["answer"]) == ("openai/gsm8k train?", "2")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["import", "--force", "gsm8k", str(out)]) == 2
    assert "weir[data]" in capsys.readouterr().err
