"""Presets: the columns of known datasets, and how a task is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class AnswerPart(StrEnum):
    """The part of its column that an answer is: all, the last box, or the text after ####."""

    COLUMN = "column"
    BOX = "box"
    HASHES = "hashes"


@dataclass(frozen=True)
class Preset:
    """The columns of a dataset; of several names the first existing one counts.

    A name with dots leads into structs. A missing column is ignored unless it is ``required``, or
    that of the problem or the answer.

    Args:
        keep: columns that become metadata.
        context: the column of a text to put before the problem.
    choices: the column of a list of texts, which follow the problem as (A), (B), ….
        unit: the column of the answer's unit.
        only: values of columns that a row must have.
        never: values of columns that a row must not have.
        wrapping: the beginning and end of prompts around the problem.
        noise: a pattern to remove from solutions.
    """

    problem: tuple[str, ...] = ("problem",)
    answer: tuple[tuple[str, AnswerPart], ...] = (("answer", AnswerPart.COLUMN),)
    solution: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    hub: str = ""
    configs: tuple[str, ...] = ()
    split: str = "train"
    context: str = ""
    choices: str = ""
    unit: str = ""
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)
    never: Mapping[str, frozenset[str]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    wrapping: tuple[str, str] = ("", "")
    noise: str = r"(?!)"


_SUBJECTS = (
    "algebra counting_and_probability geometry intermediate_algebra number_theory prealgebra "
    "precalculus"
)
_AIME = Preset(
    problem=("problem", "Problem", "question"),
    answer=(("answer", AnswerPart.COLUMN), ("Answer", AnswerPart.COLUMN)),
    solution=("solution", "Solution"),
    id=("id", "ID", "problem_idx"),
    keep=("year", "url"),
    hub="HuggingFaceH4/aime_2024",
)
_VALID = frozenset({"Yes"})

PRESETS: Mapping[str, Preset] = {
    "gsm8k": Preset(
        problem=("question",),
        answer=(("answer", AnswerPart.HASHES),),
        solution=("answer",),
        hub="openai/gsm8k",
        configs=("main",),
        # Annotations of a calculator.
        noise=r"<<[^<>]*>>",
    ),
    "math": Preset(
        answer=(("solution", AnswerPart.BOX),),
        solution=("solution",),
        keep=("level", "type"),
        hub="EleutherAI/hendrycks_math",
        configs=tuple(_SUBJECTS.split()),
    ),
    "math-500": Preset(
        solution=("solution",),
        id=("unique_id",),
        keep=("subject", "level"),
        hub="HuggingFaceH4/MATH-500",
        split="test",
    ),
    "mmlu-pro": Preset(
        problem=("question",),
        id=("question_id",),
        keep=("category", "src"),
        hub="TIGER-Lab/MMLU-Pro",
        split="test",
        choices="options",
    ),
    # Version 1.5 has answers; NuminaMath-CoT has only boxes.
    "numina-math": Preset(
        answer=(("answer", AnswerPart.COLUMN), ("solution", AnswerPart.BOX)),
        solution=("solution",),
        keep=("source", "problem_type"),
        hub="AI-MO/NuminaMath-1.5",
        only={"problem_is_valid": _VALID, "solution_is_valid": _VALID},
        never={"question_type": frozenset({"proof"}), "answer": frozenset({"proof", "notfound"})},
    ),
    # It repeats each problem about a hundred times. The version of open-r1 does not, and has other
    # columns.
    "dapo-math-17k": Preset(
        problem=("prompt",),
        answer=(("reward_model.ground_truth", AnswerPart.COLUMN), ("solution", AnswerPart.COLUMN)),
        id=("extra_info.index",),
        keep=("data_source",),
        hub="BytedTsinghua-SIA/DAPO-Math-17k",
        wrapping=(
            "Solve the following math problem step by step. The last line of your response should "
            "be of the form Answer: $Answer (without quotes) where $Answer is the answer to the "
            "problem.",
            'Remember to put your answer on its own line after "Answer:".',
        ),
    ),
    "olympiadbench": Preset(
        problem=("question",),
        answer=(("final_answer", AnswerPart.COLUMN),),
        solution=("solution",),
        id=("id",),
        keep=("subfield", "answer_type", "is_multiple_answer", "error"),
        hub="Hothan/OlympiadBench",
        configs=("OE_TO_maths_en_COMP",),
        context="context",
        unit="unit",
        # Problems with images are left out.
        only={"image_1": frozenset({""})},
    ),
    "aime": _AIME,
    "aime-2025": Preset(
        problem=_AIME.problem,
        answer=_AIME.answer,
        id=_AIME.id,
        hub="opencompass/AIME2025",
        configs=("AIME2025-I", "AIME2025-II"),
        split="test",
    ),
}
