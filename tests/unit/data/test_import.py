"""``weir data import``: datasets as they are published, and what is wrong with others."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from protocol.tasks import read_tasks

from services.data import __main__ as command
from services.data.__main__ import main
from services.data.presets import PRESETS
from tests.unit.data import datasets_as_published as published

Rows = list[dict[str, Any]]


def written(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()]


def imported(source: Path | str, out: Path, *options: str) -> Rows:
    assert main(["import", str(source), str(out), *options]) == 0
    assert main(["check", str(out)]) == 0
    return written(out)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


ALGEBRA = {"type": "Algebra"}
SEEN: dict[str, tuple[str, Rows, Counter[str]]] = {
    "gsm8k": (
        "gsm8k",
        [
            {"answer": "24", "solution": "Natalia sold 48/2 = 24 clips in May."},
            {"prompt": "How far is it?", "answer": "1,234", "solution": "It is 2*617=1,234."},
        ],
        Counter({"no #### in 'answer'": 1}),
    ),
    "math": (
        "math",
        [
            {"answer": r"\frac{1}{2}", "metadata": {"level": "Level 4", **ALGEBRA}},
            {
                "prompt": "What is $1+1$?",
                "answer": "2",
                "solution": r"So \boxed{3}? No: $\boxed{2}$.",
                "metadata": {"level": "Level 1", **ALGEBRA},
            },
        ],
        Counter({"no box in 'solution'": 1}),
    ),
    "numina_math": (
        "numina-math",
        [
            {
                "prompt": "What is $2^{10}$?",
                "answer": "1024",
                "solution": "It is $1024$.",
                "metadata": {"source": "cn_contest", "problem_type": "Number Theory"},
            }
        ],
        Counter(
            {
                "answer is proof": 1,
                "question_type is proof": 1,
                "problem_is_valid is not Yes": 1,
                "answer: math-verify cannot read it": 1,
            }
        ),
    ),
    "dapo_math_17k": (
        "dapo-math-17k",
        [
            {"id": "9a9b6eb4", "prompt": "How many?", "answer": "34"},
            {"id": "b426d104", "prompt": "How much?", "answer": "-7"},
        ],
        Counter({"the same problem again": 19, "repeated with another answer": 1}),
    ),
    "olympiadbench": (
        "olympiadbench",
        [
            {"id": "1606", "prompt": "Determine $T$.", "answer": "2,5"},
            {"id": "1607", "prompt": "How long is it?", "answer": r"7\text{ cm}"},
            {"id": "1608", "prompt": "And its angle?", "answer": r"90^\circ"},
            {"id": "1609", "prompt": "Let $x=1$.\n\nFind $x$.", "answer": "1"},
        ],
        Counter({"image_1 is not empty": 1, "no answer in 'final_answer'": 1}),
    ),
    "aime_2024": (
        "aime",
        [{"id": "2024-I-1", "prompt": "Aya walks.", "answer": "204", "solution": "So."}],
        Counter(),
    ),
    "aime_2025": (
        "aime-2025",
        [{"prompt": "Part I?", "answer": "70"}, {"prompt": "Part II?", "answer": "71"}],
        Counter(),
    ),
}


def test_every_preset_is_tried() -> None:
    assert {preset for preset, *_ in SEEN.values()} == set(PRESETS)


@pytest.mark.parametrize("name", SEEN)
def test_a_dataset_becomes_tasks_by_its_preset(
    name: str, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset, tasks, left_out = SEEN[name]
    made = imported(getattr(published, name)(tmp_path / "copy"), out, "--preset", preset)
    for task, wanted in zip(made, tasks, strict=True):
        assert {key: task[key] for key in wanted} == wanted
    assert reasons(capsys.readouterr().err) == left_out
    assert [task.id for task in read_tasks(out)] == [task["id"] for task in made]


def reasons(report: str) -> Counter[str]:
    """What was left out, by reason."""
    found: Counter[str] = Counter()
    for line in report.splitlines():
        if line.startswith("left out: "):
            count, _, reason = line.removeprefix("left out: ").partition(", ")
            found[reason.split(" (first in row")[0]] = int(count)
    return found


ROWS = [
    {"question": f"What is {n}+{n}?", "result": str(2 * n), "note": "easy", "steps": f"{2 * n}!"}
    for n in range(1, 41)
]
COLUMNS = ["--problem", "question", "--answer", "result"]


def a_file(folder: Path, kind: str, rows: Rows = ROWS) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        Dataset.from_list(rows).to_parquet(path)
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
    made = imported(a_file(tmp_path, kind), out, *options)
    assert [{**task, "id": ""} for task in made] == [
        {
            "id": "",
            "prompt": f"What is {n}+{n}?",
            "answer": str(2 * n),
            "solution": f"{2 * n}!",
            "metadata": {"note": "easy"},
        }
        for n in (1, 2)
    ]


def test_a_folder_that_the_library_has_saved_has_splits(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = DatasetDict(
        {"train": Dataset.from_list(ROWS[:2]), "test": Dataset.from_list(ROWS[2:3])}
    )
    dataset.save_to_disk(tmp_path / "saved")
    assert len(imported(tmp_path / "saved", out, *COLUMNS)) == 2
    assert len(imported(tmp_path / "saved", out, *COLUMNS, "--split", "test")) == 1
    assert main(["import", str(tmp_path / "saved"), str(out), "--split", "dev"]) == 2
    assert "no split 'dev'; there are: train, test" in capsys.readouterr().err


@pytest.mark.parametrize("answers", [["007", "1.50"], ["7", "None", ""]])
def test_an_answer_of_a_csv_stays_as_it_is_written(
    answers: list[str], tmp_path: Path, out: Path
) -> None:
    rows = [{"problem": f"{answer}?", "answer": answer} for answer in answers]
    made = imported(a_file(tmp_path, "csv", rows), out)
    assert [task["answer"] for task in made] == list(filter(None, answers))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--answer", "result"], "no column 'problem' for the problem"),
        (["--problem", "question"], "no column 'answer' for the answer"),
        ([*COLUMNS, "--solution", "proof"], "no column 'proof' for what was asked for"),
        (["--preset", "aime"], "no column 'answer' or 'Answer' for the answer"),
    ],
)
def test_a_wrong_column_names_itself_and_those_that_are_there(
    options: list[str], words: str, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out.write_text("old")
    assert main(["import", str(a_file(tmp_path, "jsonl")), str(out), *options]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "there are: note, question, result, steps" in told
    assert out.read_text() == "old"


def test_the_held_out_are_the_same_whatever_the_order_and_others_for_another_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def chosen(name: str, rows: Rows, size: str, seed: str) -> tuple[set[str], set[str]]:
        folder = tmp_path / name
        folder.mkdir()
        options = [*COLUMNS, "--held-out", size, "--seed", seed]
        train = imported(a_file(folder, "jsonl", rows), folder / "out.jsonl", *options)
        held_out = written(folder / "out-held-out.jsonl")
        ids = {task["id"] for task in train}, {task["id"] for task in held_out}
        assert len(ids[0]) + len(ids[1]) == len(ids[0] | ids[1]) == len(rows)
        return ids

    first = chosen("first", ROWS, "8", "1")
    assert len(first[1]) == 8
    assert "40 rows: 32 tasks in" in capsys.readouterr().out
    assert chosen("reversed", ROWS[::-1], "0.2", "1") == first
    assert chosen("other", ROWS, "8", "2") != first


@pytest.mark.parametrize("size", ["0", "40", "0.001", "nan"])
def test_what_cannot_be_held_out_writes_nothing(
    size: str, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*COLUMNS, "--held-out", size]
    assert main(["import", str(a_file(tmp_path, "jsonl")), str(out), *options]) == 2
    assert "of 40 tasks cannot be held out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_ids_that_are_not_unique_are_made_from_the_problems(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = imported(a_file(tmp_path, "jsonl", ROWS[:3]), out, *COLUMNS, "--id", "note")
    assert len({task["id"] for task in made} - {"easy"}) == 3
    assert "own are not unique" in capsys.readouterr().err


def test_a_conversation_stays_one(tmp_path: Path, out: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    path = a_file(tmp_path, "jsonl", [{"problem": turns, "answer": 2}])
    (task,) = imported(path, out)
    assert task["messages"] == turns
    assert task["answer"] == "2"


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("rows.txt", "x", [], ".parquet, .csv, .json, .jsonl"),
        ("rows.jsonl", "{", [], "rows.jsonl: "),
        ("rows.parquet", "x", [], "rows.parquet: "),
        ("rows.jsonl", '{"problem": " ", "answer": "1"}\n', [], "of 1 rows"),
        ("rows.jsonl", '{"problem": "1?", "answer": "1"}\n', ["--split", "test"], "--split"),
    ],
)
def test_what_cannot_be_read_writes_nothing(
    name: str,
    content: str,
    options: list[str],
    words: str,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(content)
    assert main(["import", str(tmp_path / name), str(out), *options]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_a_preset_alone_is_looked_for_on_the_hub(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows_of(source: str, parts: object, split: str) -> Rows:
        return [{"question": f"{source} {split}?", "answer": "It is 2.\n#### 2"}]

    monkeypatch.setattr(command, "rows_of", rows_of)
    (task,) = imported("gsm8k", out)
    assert (task["prompt"], task["answer"]) == ("openai/gsm8k train?", "2")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["import", "gsm8k", str(out)]) == 2
    assert "weir[data]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ["\ufeffproblem,answer\n1+1?,2\n", ",problem,answer\n0,1+1?,2\n"]
)
def test_a_csv_may_begin_with_a_mark_or_an_index(content: str, tmp_path: Path, out: Path) -> None:
    (tmp_path / "rows.csv").write_text(content)
    (task,) = imported(tmp_path / "rows.csv", out)
    assert (task["prompt"], task["answer"]) == ("1+1?", "2")


def test_the_file_that_is_read_is_not_overwritten(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = out.with_name("rows.jsonl")
    source.write_text(row := '{"problem": "1+1", "answer": "2"}\n')
    out.symlink_to(source)
    for target in (source, out):
        assert main(["import", str(source), str(target)]) == 2
        assert "is the file to read" in capsys.readouterr().err
    assert source.read_text() == row


@pytest.mark.parametrize("folder", ["no/such", "/proc/self"])
def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "broken.jsonl"
    source.write_text("{")
    assert main(["import", str(source), str(tmp_path / folder / "out.jsonl")]) == 2
    assert "cannot be written" in capsys.readouterr().err
