"""From tasks with solutions to samples, as if a model had sampled each solution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from protocol.messages import Task
from protocol.recipe import Model
from protocol.tasks import TaskFileError

from services.chassis.prompts import PromptError, rendered
from services.learner.training.samples import Sample

_MAX_PROBLEMS = 20


def samples_of(tasks: Sequence[Task], model: Model, tokenizer: Any) -> list[Sample]:
    """A sample of each task: its prompt as a rollout reads it, its solution and the end token.

    Raises:
        TaskFileError: naming up to 20 tasks that have no solution or do not fit the model.
    """
    samples: list[Sample] = []
    problems: list[str] = []
    for task in tasks:
        try:
            samples.append(_sample_of(task, model, tokenizer))
        except PromptError as error:
            problems.append(str(error))
            if len(problems) == _MAX_PROBLEMS:
                break
    if problems:
        raise TaskFileError(problems)
    return samples


def batches(
    samples: Sequence[Sample], batch_size: int, order: tuple[int, int]
) -> Iterator[list[Sample]]:
    """All samples once; the last batch may be smaller.

    Args:
        order: the seed and the epoch, which decide the order.
    """
    shuffled = np.random.default_rng(order).permutation(len(samples))
    for start in range(0, len(samples), batch_size):
        yield [samples[i] for i in shuffled[start : start + batch_size]]


def _sample_of(task: Task, model: Model, tokenizer: Any) -> Sample:
    if not task.solution:
        raise PromptError(
            f"task {task.id!r}: no 'solution' to learn from: give it one, or drop the task"
        )
    if tokenizer.eos_token_id is None:
        raise PromptError("the model's tokenizer has no eos_token, so that no response would end")
    prompt = rendered(task, model.prompt_template, tokenizer, model.chat_template_options)
    solution = tokenizer(task.solution, add_special_tokens=False).input_ids
    response = np.array([*solution, tokenizer.eos_token_id], dtype=np.int32)
    length = len(prompt) + len(response)
    if length > model.max_context:
        raise PromptError(
            f"task {task.id!r}: prompt and solution have {length} tokens, over model.max_context "
            f"{model.max_context}: raise it, or drop the task"
        )
    return Sample(
        prompt_ids=np.array(prompt, dtype=np.int32),
        token_ids=response,
        behavior_logprobs=np.zeros(len(response), dtype=np.float32),
        on_version=np.zeros(len(response), dtype=np.int32),
        advantage=0.0,
        reward=0.0,
        correct=True,
        group=0,
    )
