"""``weir data import``: rows as published become tasks, and what is wrong with them is told."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from protocol.tasks import read_tasks

from services.data import __main__ as command
from services.data.__main__ import main
from services.data.importing import import_tasks
from services.data.mapping import RowSkipped, build_fields, find_columns
from services.data.presets import PRESETS, Preset

Rows = list[dict[str, Any]]
_DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    '{}\n\nRemember to put your answer on its own line after "Answer:".'
)
_NUMINA = {
    "problem": "What is $2^{10}$?",
    "solution": "It is $1024$.",
    "answer": "1024",
    "problem_type": "Number Theory",
    "question_type": "math-word-problem",
    "problem_is_valid": "Yes",
    "solution_is_valid": "Yes",
    "source": "cn_contest",
    "synthetic": False,
}
_OLYMPIAD = {
    "id": 1606,
    "question": "Determine $T$.",
    "solution": ["First.", "Another way."],
    "final_answer": ["2,5"],
    "context": None,
    "image_1": None,
    "subfield": "Algebra",
    "is_multiple_answer": True,
    "unit": None,
}


def _math(problem: str, solution: str) -> dict[str, str]:
    return {"problem": problem, "level": "Level 4", "type": "Algebra", "solution": solution}


def _dapo(problem: str, answer: str, index: str) -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": _DAPO.format(problem), "role": "user"}],
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


# By preset: rows, what the tasks have at least, and how many rows are left out for which reason.
PUBLISHED: dict[str, tuple[Rows, Rows, dict[str, int]]] = {
    "gsm8k": (
        [
            {"question": "How far?", "answer": "It is 2*617=<<2*617=1234>>1,234.\n#### 1,234"},
            {"question": "Who knows?", "answer": "Nobody."},
        ],
        [{"prompt": "How far?", "answer": "1,234", "solution": "It is 2*617=1,234."}],
        {"no #### in 'answer'": 1},
    ),
    "math": (
        [
            _math("What is $1+1$?", r"So \boxed{3}? No: $\boxed{2}$."),
            _math("Prove it.", "Clearly."),
        ],
        [
            {
                "prompt": "What is $1+1$?",
                "answer": "2",
                "solution": r"So \boxed{3}? No: $\boxed{2}$.",
                "metadata": {"level": "Level 4", "type": "Algebra"},
            }
        ],
        {"no box in 'solution'": 1},
    ),
    "numina-math": (
        [
            _NUMINA,
            _NUMINA | {"problem": "Prove that.", "answer": "proof"},
            _NUMINA | {"problem": "Prove this.", "question_type": "proof"},
            _NUMINA | {"problem": "Find the", "problem_is_valid": "Incomplete"},
            _NUMINA | {"problem": "Which is it?", "answer": r"\frac{"},
        ],
        [
            {
                "prompt": "What is $2^{10}$?",
                "answer": "1024",
                "solution": "It is $1024$.",
                "metadata": {"source": "cn_contest", "problem_type": "Number Theory"},
            }
        ],
        {
            "answer is proof": 1,
            "question_type is proof": 1,
            "problem_is_valid is not Yes": 1,
            "answer: math-verify cannot read it; only the same text would count as right": 1,
        },
    ),
    "dapo-math-17k": (
        [
            *[_dapo("How many?", "34", "a")] * 10,
            _dapo("Which?", "1", "c"),
            _dapo("Which?", "2", "c"),
        ],
        [{"id": "a", "prompt": "How many?", "answer": "34"}],
        {"the same problem again": 10, "repeated with another answer": 1},
    ),
    "olympiadbench": (
        [
            _OLYMPIAD,
            _OLYMPIAD | {"id": 2, "question": "How long?", "final_answer": ["7"], "unit": "cm"},
            _OLYMPIAD | {"id": 3, "question": "And?", "final_answer": ["90"], "unit": r"^\circ"},
            _OLYMPIAD | {"id": 4, "question": "Find $x$.", "context": "Let $x=1$."},
            _OLYMPIAD | {"id": 5, "question": "Look!", "image_1": "picture.png"},
            _OLYMPIAD | {"id": 6, "question": "Prove it.", "final_answer": []},
        ],
        [
            {"id": "1606", "prompt": "Determine $T$.", "answer": "2,5", "solution": "First."},
            {"answer": r"7\text{ cm}"},
            {"answer": r"90^\circ"},
            {"prompt": "Let $x=1$.\n\nFind $x$."},
        ],
        {"image_1 is not empty": 1, "no answer in 'final_answer'": 1},
    ),
    "aime": (
        [{"ID": "2024-I-1", "Problem": "Aya walks.", "Solution": "So.", "Answer": 204}],
        [{"id": "2024-I-1", "prompt": "Aya walks.", "answer": "204", "solution": "So."}],
        {},
    ),
    "aime-2025": (
        [{"question": "Part I?", "answer": "70"}],
        [{"prompt": "Part I?", "answer": "70"}],
        {},
    ),
}


def test_every_preset_is_tried() -> None:
    assert set(PUBLISHED) == set(PRESETS)


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_dataset_becomes_tasks_by_its_preset(preset: str) -> None:
    rows, tasks, left_out = PUBLISHED[preset]
    imported = asyncio.run(import_tasks(rows, PRESETS[preset], None))
    for draft, expected in zip(imported.drafts, tasks, strict=True):
        assert {key: draft.fields[key] for key in expected} == expected
    assert {reason: len(rows) for reason, rows in imported.left_out.items()} == left_out


def map_row(row: dict[str, Any], **columns: Any) -> dict[str, Any]:
    preset = Preset(**columns)
    return build_fields(find_columns(preset, set(row)), row)


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (" 7 ", "7"),
        (10**30, f"1{30 * '0'}"),
        (0.5, "0.5"),
        (["a", None, 5], "a, 5"),
    ],
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


def written(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()]


def imported(source: Path | str, out: Path, *options: str) -> Rows:
    assert main(["import", str(source), str(out), *options]) == 0
    assert main(["check", str(out)]) == 0
    return written(out)


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
    tasks = imported(a_file(tmp_path, kind), out, *options)
    assert [{**task, "id": ""} for task in tasks] == [
        {
            "id": "",
            "prompt": f"What is {n}+{n}?",
            "answer": str(2 * n),
            "solution": f"{2 * n}!",
            "metadata": {"note": "easy"},
        }
        for n in (1, 2)
    ]
    assert [task.id for task in read_tasks(out)] == [task["id"] for task in tasks]


def test_a_copy_of_a_dataset_has_its_parts_in_folders_or_on_its_card(
    tmp_path: Path, out: Path
) -> None:
    for folder, preset in (("math/algebra", "math"), ("math/geometry", "math"), ("g", "gsm8k")):
        a_file(tmp_path / folder, "jsonl", [{**PUBLISHED[preset][0][0], "problem": folder}])
    parts = [("main", "train.jsonl"), ("socratic", "none.jsonl")]
    card = [f"- config_name: {name}\n  data_files: {file}\n" for name, file in parts]
    (tmp_path / "g/README.md").write_text("---\nconfigs:\n" + "".join(card) + "---\n")
    assert len(imported(tmp_path / "math", out, "--preset", "math")) == 2
    assert len(imported(tmp_path / "g", out, "--preset", "gsm8k")) == 1


def test_a_folder_that_the_library_has_saved_has_splits(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = DatasetDict(
        {"train": Dataset.from_list(ROWS[:2]), "test": Dataset.from_list(ROWS[2:3])}
    )
    saved.save_to_disk(tmp_path / "saved")
    assert len(imported(tmp_path / "saved", out, *COLUMNS)) == 2
    assert len(imported(tmp_path / "saved", out, *COLUMNS, "--split", "test")) == 1
    assert main(["import", str(tmp_path / "saved"), str(out), "--split", "dev"]) == 2
    assert "no split 'dev'; there are: train, test" in capsys.readouterr().err


@pytest.mark.parametrize("answers", [["007", "1.50"], ["7", "None", ""]])
def test_an_answer_of_a_csv_stays_as_it_is_written(
    answers: list[str], tmp_path: Path, out: Path
) -> None:
    rows = [{"problem": f"{answer}?", "answer": answer} for answer in answers]
    tasks = imported(a_file(tmp_path, "csv", rows), out)
    assert [task["answer"] for task in tasks] == list(filter(None, answers))


@pytest.mark.parametrize("head", ["\ufeff", ","])
def test_a_csv_may_begin_with_a_mark_or_an_index(head: str, tmp_path: Path, out: Path) -> None:
    index = "0," if head == "," else ""
    (tmp_path / "rows.csv").write_text(f"{head}problem,answer\n{index}1+1?,2\n")
    (task,) = imported(tmp_path / "rows.csv", out)
    assert (task["prompt"], task["answer"]) == ("1+1?", "2")


def test_the_held_out_are_the_same_whatever_the_order_and_others_for_another_seed(
    tmp_path: Path,
) -> None:
    def chosen(name: str, rows: Rows, size: str, seed: str) -> tuple[set[str], set[str]]:
        options = [*COLUMNS, "--held-out", size, "--seed", seed]
        source = a_file(tmp_path / name, "jsonl", rows)
        train = imported(source, tmp_path / name / "out.jsonl", *options)
        held_out = written(tmp_path / name / "out-held-out.jsonl")
        ids = {task["id"] for task in train}, {task["id"] for task in held_out}
        assert len(ids[0]) + len(ids[1]) == len(ids[0] | ids[1]) == len(rows)
        return ids

    first = chosen("first", ROWS, "8", "1")
    assert len(first[1]) == 8
    assert chosen("reversed", ROWS[::-1], "0.2", "1") == first
    assert chosen("other", ROWS, "8", "2") != first


def test_ids_that_are_not_unique_are_made_from_the_problems(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = imported(a_file(tmp_path, "jsonl", ROWS[:3]), out, *COLUMNS, "--id", "note")
    assert len({task["id"] for task in tasks} - {"easy"}) == 3
    assert "own are not unique" in capsys.readouterr().err


def test_a_conversation_stays_one(tmp_path: Path, out: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    (task,) = imported(a_file(tmp_path, "jsonl", [{"problem": turns, "answer": 2}]), out)
    assert (task["messages"], task["answer"]) == (turns, "2")


ONE = '{"problem": "1?", "answer": "1"}\n'


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("rows.txt", "x", [], ".parquet, .csv, .json, .jsonl"),
        ("rows.jsonl", "{", [], "rows.jsonl: "),
        ("rows.parquet", "x", [], "rows.parquet: "),
        ("rows.jsonl", '{"problem": " ", "answer": "1"}\n', [], "of 1 rows"),
        ("rows.jsonl", ONE, ["--split", "test"], "--split"),
        ("rows.jsonl", ONE, ["--problem", "x"], "'x' for the problem; there are: answer, problem"),
        ("rows.jsonl", ONE, ["--answer", "result"], "no column 'result' for the answer"),
        ("rows.jsonl", ONE, ["--solution", "proof"], "no column 'proof' for an option"),
        ("rows.jsonl", ONE, ["--preset", "olympiadbench"], "no column 'question'"),
        *[
            ("rows.jsonl", ONE + ONE.replace("1?", "2?"), ["--held-out", size], "cannot be held")
            for size in ("0", "2", "0.001", "nan")
        ],
    ],
)
def test_what_is_refused_leaves_the_old_file(
    name: str,
    content: str,
    options: list[str],
    words: str,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(content)
    out.write_text("old")
    assert main(["import", str(tmp_path / name), str(out), *options]) == 2
    assert words in capsys.readouterr().err
    assert out.read_text() == "old"


def test_a_disk_that_is_full_leaves_the_old_file(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError("no space left")

    out.write_text("old")
    source = a_file(tmp_path, "jsonl")
    monkeypatch.setattr(os, "fsync", full)
    assert main(["import", str(source), str(out), *COLUMNS]) == 2
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path != source} == {
        out.name: "old"
    }


def test_the_file_that_is_read_is_not_overwritten_and_a_folder_must_be_there(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(ONE)
    out.symlink_to(source)
    for target in (source, out):
        assert main(["import", str(source), str(target)]) == 2
        assert "is the file to read" in capsys.readouterr().err
    assert source.read_text() == ONE
    assert main(["import", str(tmp_path / "rows.txt"), str(tmp_path / "no/such/out")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_preset_alone_is_looked_for_on_the_hub(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_rows(source: str, parts: object, split: str) -> Rows:
        return [{"question": f"{source} {split}?", "answer": "It is 2.\n#### 2"}]

    monkeypatch.setattr(command, "read_rows", read_rows)
    (task,) = imported("gsm8k", out)
    assert (task["prompt"], task["answer"]) == ("openai/gsm8k train?", "2")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["import", "gsm8k", str(out)]) == 2
    assert "weir[data]" in capsys.readouterr().err
