"""Small datasets in the shape that their cards document, as they lie in a copy of the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value

Row = dict[str, Any]

CARD = "---\nconfigs:\n{configs}---\n# A dataset\n"
CONFIG = "- config_name: {name}\n  data_files:\n  - split: {split}\n    path: {place}/{split}-*\n"


def publish(
    folder: Path,
    rows: Mapping[str, Sequence[Row]],
    *,
    split: str = "train",
    features: Features | None = None,
    has_card: bool = True,
) -> Path:
    """Write one parquet file per part (``config``) and the card that names them."""
    for config, several in rows.items():
        place = folder / ("data" if config == "default" else config)
        place.mkdir(parents=True)
        dataset = Dataset.from_list(list(several), features=features)
        dataset.to_parquet(place / f"{split}-00000-of-00001.parquet")
    if has_card:
        places = {name: "data" if name == "default" else name for name in rows}
        configs = [CONFIG.format(name=n, split=split, place=place) for n, place in places.items()]
        (folder / "README.md").write_text(CARD.format(configs="".join(configs)))
    return folder


def gsm8k(folder: Path) -> Path:
    worked = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 24"
    rows = [
        {"question": "Natalia sold 48 clips in April. How many in May?", "answer": worked},
        {"question": "How far is it?", "answer": "It is 2*617=<<2*617=1234>>1,234.\n#### 1,234"},
        {"question": "Who knows?", "answer": "Nobody."},
    ]
    return publish(folder, {"main": rows, "socratic": rows[:1]})


def math(folder: Path) -> Path:
    """One folder per subject, as the parquet files lie there, without the card."""

    def row(problem: str, solution: str, subject: str) -> Row:
        return {"problem": problem, "level": "Level 4", "type": subject, "solution": solution}

    half = row("What is $1/2$ of $1$?", r"It is $\boxed{\frac{1}{2}}$.", "Algebra")
    sum_of_two = row("What is $1+1$?", r"So \boxed{3}? No: $\boxed{2}$.", "Algebra")
    easy = sum_of_two | {"level": "Level 1"}
    bare = row("Prove it.", "Clearly.", "Geometry")
    return publish(folder, {"algebra": [half, easy], "geometry": [bare]}, has_card=False)


def numina_math(folder: Path) -> Path:
    sound = {
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
    changes = [
        {},
        {"problem": "Prove that.", "answer": "proof"},
        {"problem": "Prove this.", "question_type": "proof"},
        {"problem": "Find the", "problem_is_valid": "Incomplete"},
        {"problem": "Which is it?", "answer": r"\frac{"},
    ]
    return publish(folder, {"default": [sound | change for change in changes]})


def dapo_math_17k(folder: Path) -> Path:
    """Ten copies of each problem, and a problem with two answers."""

    def row(problem: str, answer: str, index: str) -> Row:
        text = (
            "Solve the following math problem step by step. The last line of your response should "
            "be of the form Answer: $Answer (without quotes) where $Answer is the answer to the "
            f"problem.\n\n{problem}\n\nRemember to put your answer on its own line after "
            '"Answer:".'
        )
        return {
            "data_source": "math_dapo",
            "prompt": [{"content": text, "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": index},
        }

    rows = [row("How many?", "34", "9a9b6eb4"), row("How much?", "-7", "b426d104")] * 10
    return publish(folder, {"default": [*rows, row("Which?", "1", "c"), row("Which?", "2", "c")]})


def olympiadbench(folder: Path) -> Path:
    text = Value("string")
    features = Features(
        {
            "id": Value("int64"),
            "question": text,
            "solution": List(text),
            "final_answer": List(text),
            "context": text,
            "image_1": text,
            "subfield": text,
            "is_multiple_answer": Value("bool"),
            "unit": text,
            "answer_type": text,
            "error": text,
        }
    )
    row = {
        "id": 1606,
        "question": "Determine $T$.",
        "solution": ["First.", "Another way."],
        "final_answer": ["2,5"],
        "context": None,
        "image_1": None,
        "subfield": "Algebra",
        "is_multiple_answer": True,
        "unit": None,
        "answer_type": "Numerical",
        "error": None,
    }
    rows = [
        row,
        row | {"id": 1607, "question": "How long is it?", "final_answer": ["7"], "unit": "cm"},
        row | {"id": 1608, "question": "And its angle?", "final_answer": ["90"], "unit": r"^\circ"},
        row | {"id": 1609, "question": "Find $x$.", "context": "Let $x=1$.", "final_answer": ["1"]},
        row | {"id": 1610, "question": "Look!", "image_1": "picture.png"},
        row | {"id": 1611, "question": "Prove it.", "final_answer": []},
    ]
    return publish(folder, {"OE_TO_maths_en_COMP": rows}, features=features)


def aime_2024(folder: Path) -> Path:
    row = {"ID": "2024-I-1", "Problem": "Aya walks.", "Solution": "So.", "Answer": 204}
    folder.mkdir()
    (folder / "aime_2024_problems.jsonl").write_text(f"{json.dumps(row)}\n")
    return folder


def aime_2025(folder: Path) -> Path:
    folder.mkdir()
    for number, part in enumerate(("I", "II")):
        row = {"question": f"Part {part}?", "answer": str(70 + number)}
        (folder / f"aime2025-{part}.jsonl").write_text(f"{json.dumps(row)}\n")
    configs = [
        f"- config_name: AIME2025-{part}\n  data_files:\n"
        f"  - split: test\n    path: aime2025-{part}.jsonl\n"
        for part in ("I", "II")
    ]
    (folder / "README.md").write_text(CARD.format(configs="".join(configs)))
    return folder
