"""Jobs as a learner would leave them: a record, the events of their steps, and samples."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from protocol.messages import (
    Episode,
    Grade,
    Graded,
    JobEvent,
    Mark,
    Task,
    Turn,
    Ungradable,
)
from protocol.recipe import Purpose
from protocol.samples import TOKENIZER, USED
from tokenizers import Tokenizer

from services.learner.durable.sample_rows import Row, build_rows
from services.learner.training.scoring import ScoredGroup
from tests import sample_stores
from tests.builders import a_graded_group, a_group, a_request

BASE_MODEL = Path(__file__).parents[3] / "examples/arithmetic/base-model"
EPISODES = 21  # the number of the group that an environment has played
_BEGAN = 1_763_800_000.0
_CODER = Tokenizer.from_file(str(BASE_MODEL / TOKENIZER))


def step_events(job_id: str, steps: range, *, seed: int = 1) -> Iterator[JobEvent]:
    """The metrics of training steps: a policy that gets better, with noise."""
    chance = random.Random(seed)
    for step in steps:
        noise, learned = chance.gauss(0, 0.03), 1 - math.exp(-step / (60 + 20 * seed))
        accuracy = min(1.0, max(0.0, 0.3 + 0.62 * learned + noise))
        dropped = {"stale": step // 10} if step >= 10 else {}
        data = {
            **{"kind": "step", "step": step, "accuracy": accuracy, "reward": accuracy},
            **{"entropy": 0.9 * math.exp(-step / 150) + abs(noise), "staleness": 0.9 + noise},
            **{"response_length": 21 + 3 * learned + 10 * noise, "clip_fraction": abs(noise) / 20},
            **{"parity_max": 10 ** (-5 + 10 * noise), "mismatch_kl": 10 ** (-4 + 7 * noise)},
            **{"tokens_per_second": 7200 + 30_000 * noise, "seconds": 0.6 + abs(noise)},
            "groups": {
                **{"asked": 16 * step + 12, "trained": 16 * step - step // 10},
                **{"dropped": dropped, "under_way": 12},
            },
            "phase_seconds": {"wait_for_groups": 0.2 + abs(noise), "train": 0.32, "publish": 0.05},
        }
        yield an_event(job_id, f"step:{step}", f"step {step}", at=step, data=data)


def evaluation_event(job_id: str, step: int, accuracy: float, *, tasks: int = 40) -> JobEvent:
    """An evaluation of tasks that are right as often as ``accuracy`` says, on average."""
    chance = random.Random(step)
    per_task = {
        f"arithmetic-{number:03d}": [min(4.0, max(0.0, round(4 * accuracy + chance.gauss()))), 4]
        for number in range(tasks)
    }
    mean = sum(right for right, _ in per_task.values()) / (4 * tasks)
    result = {
        **{"step": step, "asked": tasks, "failed": 0, "tasks": tasks, "samples": 4 * tasks},
        **{"accuracy": mean, "accuracy_low": mean - 0.06, "accuracy_high": mean + 0.05},
        **{"pass@1": mean, "pass@4": min(1.0, mean + 0.15), "process": 0.7 + mean / 4},
        **{"response_length": 21.4, "truncated": 0.01, "ungradable": 0, "per_task": per_task},
    }
    message, key = f"evaluation at step {step}", f"evaluation:{step}"
    data = {"kind": "evaluation", "step": step, "evaluation": result}
    return an_event(job_id, key, message, at=step, data=data)


def an_event(job_id: str, name: str, message: str, *, at: float = 0, **values: Any) -> JobEvent:
    values |= {"id": name, "job_id": job_id, "created_at": _BEGAN + 0.6 * at, "message": message}
    return JobEvent.model_validate(values)


def write_samples(folder: Path, job_id: str, numbers: range, *, purpose: str = "train") -> None:
    """Fill a job's sample store with groups of three-step sums, 16 to a step."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKENIZER).write_bytes((BASE_MODEL / TOKENIZER).read_bytes())
    chance = random.Random(7)
    samples = [_sample(job_id, number, Purpose(purpose), chance) for number in numbers]
    sample_stores.write_samples(folder, *samples)


def _sample(job_id: str, number: int, purpose: Purpose, chance: random.Random) -> list[Row]:
    step, task, size = number // 16, _task(number % 24), 8
    answers = [_response(task, 0.2 + min(0.6, step / 40), chance) for _ in range(size)]
    ids = [_CODER.encode(text, add_special_tokens=False).ids for text, _ in answers]
    if number == EPISODES:
        ids[-1], answers[-1] = [], ("", Grade(outcome=Ungradable(reason="episode_timeout")))
    lengths = [len(one) for one in ids]
    tokens = sum(lengths)
    own = np.concatenate(
        [np.arange(length) % 9 < (6 if number == EPISODES else 9) for length in lengths]
    )
    request = a_request(
        **{"job_id": job_id, "number": number, "step": step, "task": task, "group_size": size},
        purpose=purpose,
        prompt_template="{prompt}",
    )
    rollout = a_group(
        request,
        lengths,
        texts=[text for text, _ in answers],
        episodes=[_played(task, text) for text, _ in answers] if number == EPISODES else (),
        version=step,
        prompt_ids=_CODER.encode(task.prompt or "").ids,
        token_ids=[token for one in ids for token in one],
        behavior_logprobs=np.array([-abs(chance.gauss(0, 0.4)) for _ in range(tokens)]) * own,
        own=own,
    )
    graded = a_graded_group(rollout, grades=[grade for _, grade in answers])
    fate = "stale" if number % 29 == 28 else USED
    group = ScoredGroup(graded, sample_stores.SCORING, fate)
    surprises = [chance.random() for _ in range(size)]
    in_loss = np.repeat(group.has_loss, lengths) & own
    tokens = {
        "logprobs": (rollout.behavior_logprobs + 1e-5)[in_loss],
        "entropies": np.abs([chance.gauss(0, 0.5) for _ in in_loss])[in_loss],
        "token_advantages": np.repeat(group.advantages, lengths)[in_loss],
    }
    (rows,) = build_rows([group], tokens, attempt=1, step=step, created_at=_BEGAN + number)
    return [row | {"surprise": surprise} for row, surprise in zip(rows, surprises, strict=True)]


def _played(task: Task, text: str) -> Episode:
    """An episode of two turns; one without text broke."""
    said = {"user": task.prompt or "", "assistant": text, "tool": "no such number"}
    told: dict[str, Any] = {"reward": 0.5}
    if not text:
        told = {"problem": "episode_timeout", "words": "not over in 600 s"}
    return Episode(
        **told,
        turns=2,
        seconds={"model": 3.0, "environment": 40.0},
        conversation=tuple(Turn(role=role, content=content) for role, content in said.items()),
    )


def _task(number: int) -> Task:
    a, b, c, d = 30 + number, 3 + number % 7, 9 - number % 5, 12 + number % 9
    prompt, answer = f"{a}-{b}+{c}+{d}=?", str(a - b + c + d)
    return Task(id=f"arithmetic-{number:03d}", prompt=prompt, answer=answer, metadata={"steps": 3})


def _response(task: Task, skill: float, chance: random.Random) -> tuple[str, Grade]:
    """A chain of equations, some of them false, and how it is graded."""
    numbers = [int(part) for part in (task.prompt or "")[:-2].replace("-", "+-").split("+")]
    value, text, marks = numbers[0], "", list[Mark]()
    for number in numbers[1:]:
        is_right = chance.random() < 0.55 + skill / 2
        result = value + number + (0 if is_right else chance.choice((-10, -1, 1, 10)))
        equation, verdict = f"{value}{number:+d}={result}", "right" if is_right else "wrong"
        end = len(text) + len(equation)
        marks.append(Mark(start=len(text), end=end, verdict=verdict, note=equation))
        text, value = f"{text}{equation};", result
    text += f"\\boxed{{{value}}}"
    if chance.random() < 0.03:
        return text, Grade(outcome=Ungradable(reason="the judge's reply did not fill in its form"))
    right = sum(mark.verdict == "right" for mark in marks)
    comments = {"style": "Each step follows from the one before; nothing is left out."}
    process = Graded(value=right / len(marks), marks=tuple(marks), comments=comments)
    return text, Grade(outcome=Graded(value=float(str(value) == task.answer)), process=process)
