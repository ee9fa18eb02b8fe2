"""Measure a model on this task: accuracy, form, process score, mixed groups.

`python -m examples.arithmetic.measure MODEL_DIR` prints the numbers in the README.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationMixin,
    PreTrainedTokenizerBase,
)

from examples.arithmetic.tasks import STEPS_PER_TASK, ArithmeticTask, distinct_tasks

NUM_PROMPTS = 1_000
GROUP_SIZE = 8
MAX_NEW_TOKENS = 48
PROMPTS_PER_BATCH = 100
SAMPLING_SEED = 7

EQUATION = re.compile(r"(\d+(?:[+-]\d+)+)=(\d+);")
RESPONSE = re.compile(rf"(?:{EQUATION.pattern})+\\boxed{{(\d+)}}")
SIGNED_NUMBER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class Score:
    """The score of one response."""

    well_formed: bool
    correct: bool
    process: float  # right equations / max(equations written, 3): a merged step costs a third


def score_response(task: ArithmeticTask, text: str) -> Score:
    """Score a response; another form than the expected one counts as wrong."""
    response = RESPONSE.fullmatch(text)
    equations = EQUATION.findall(text)
    right = sum(sum(map(int, SIGNED_NUMBER.findall(terms))) == int(z) for terms, z in equations)
    return Score(
        well_formed=response is not None,
        correct=response is not None and response[response.lastindex or 0] == task.answer,
        process=right / max(len(equations), STEPS_PER_TASK),
    )


@torch.inference_mode()
def respond(
    model: GenerationMixin,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    **generation: object,
) -> list[str]:
    """Return texts, [prompt * responses per prompt]. All prompts have the same length."""
    texts: list[str] = []
    for start in range(0, len(prompts), PROMPTS_PER_BATCH):
        batch = list(prompts[start : start + PROMPTS_PER_BATCH])
        inputs = tokenizer(batch, return_tensors="pt")
        output = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
            **inputs, max_new_tokens=MAX_NEW_TOKENS, **generation
        )
        responses = output[:, inputs["input_ids"].shape[1] :]
        texts += tokenizer.batch_decode(responses, skip_special_tokens=True)
    return texts


def score_groups(
    model: GenerationMixin,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[ArithmeticTask],
    group_size: int,
    **generation: object,
) -> list[list[Score]]:
    """Return a group of scored responses for every task."""
    prompts = [task.prompt for task in tasks]
    texts = iter(respond(model, tokenizer, prompts, num_return_sequences=group_size, **generation))
    return [[score_response(task, next(texts)) for _ in range(group_size)] for task in tasks]


def is_mixed(group: Sequence[Score]) -> bool:
    """Whether a group has right and wrong answers, so that an outcome reward has a signal."""
    return len({score.correct for score in group}) == 2


def differs_in_process(group: Sequence[Score]) -> bool:
    """Whether the right answers differ in process score."""
    return len({score.process for score in group if score.correct}) > 1


def summarize(sampled: Sequence[Sequence[Score]], greedy: Sequence[Score]) -> dict[str, float]:
    """Return the numbers of the README, each a share or a mean."""
    scores = list(chain.from_iterable(sampled))
    correct = [score for score in scores if score.correct]
    return {
        "sampled accuracy": len(correct) / len(scores),
        "greedy accuracy": fmean(score.correct for score in greedy),
        "well-formed": fmean(score.well_formed for score in scores),
        "process score among correct": fmean(score.process for score in correct),
        "every equation right among correct": fmean(score.process == 1 for score in correct),
        "mixed groups": fmean(map(is_mixed, sampled)),
        "groups whose correct answers differ in process": fmean(map(differs_in_process, sampled)),
    }


def measure(folder: Path) -> dict[str, float]:
    """Answer 1,000 held-out prompts, once greedily and eight times by sampling."""
    torch.manual_seed(SAMPLING_SEED)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tasks = distinct_tasks(NUM_PROMPTS, held_out=True)
    greedy = score_groups(model, tokenizer, tasks, 1, do_sample=False)
    # transformers samples among the 50 likeliest tokens unless top_k is 0.
    sampled = score_groups(
        model, tokenizer, tasks, GROUP_SIZE, do_sample=True, temperature=1.0, top_k=0
    )
    return summarize(sampled, list(chain.from_iterable(greedy)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, value in measure(Path(sys.argv[1])).items():
        print(f"{name}: {value:.3f}")
