"""Jobs as a learner would leave them: a record, the events of their steps, and samples."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from answers.steps.derivation import derive
from protocol.messages import Episode, Grade, Graded, JobEvent, Task, Turn, Ungradable
from protocol.recipe import Purpose
from protocol.samples import TOKENIZER, USED
from tokenizers import Tokenizer

from services.grader.verifiers.equation_steps import score
from services.learner.durable.sample_rows import Row, build_rows
from services.learner.training.scoring import ScoredGroup
from tests import builders, sample_stores

BASE_MODEL = Path(__file__).parents[3] / "examples/arithmetic/base-model"
EPISODES = 21  # the number of the group that an environment has played
GROUP_SIZE = 8
_BEGAN = 1_763_800_000.0
_CODER = Tokenizer.from_file(str(BASE_MODEL / TOKENIZER))


def step_events(job_id: str, steps: range, *, seed: int = 1) -> Iterator[JobEvent]:
    """The metrics of training steps: a policy that gets better, with noise."""
    chance = np.random.default_rng(seed)
    for step in steps:
        noise = chance.normal(0, 0.03)
        learned = 1 - math.exp(-step / (60 + 20 * seed))
        accuracy = min(1.0, 0.3 + 0.62 * learned + noise)
        data = {
            "kind": "step",
            "step": step,
            "accuracy": accuracy,
            "reward": accuracy,
            "entropy": 0.9 * math.exp(-step / 150) + abs(noise),
            "staleness": 0.9 + noise,
            "response_length": 21 + 3 * learned + 10 * noise,
            "clip_fraction": abs(noise) / 20,
            "parity_max": 10 ** (-5 + 10 * noise),
            "mismatch_kl": 10 ** (-4 + 7 * noise),
            "tokens_per_second": 7200 + 30_000 * noise,
            "seconds": 0.6 + abs(noise),
            "groups": {
                "asked": 16 * step + 12,
                "trained": 16 * step - step // 10,
                "dropped": {"stale": step // 10},
                "under_way": 12,
            },
            "phase_seconds": {"wait_for_groups": 0.2 + abs(noise), "train": 0.32, "publish": 0.05},
        }
        yield an_event(job_id, f"step:{step}", f"step {step}", at=step, data=data)


def evaluation_event(job_id: str, step: int, accuracy: float) -> JobEvent:
    """An evaluation of 40 tasks that are right as often as ``accuracy`` says, on average."""
    chance = np.random.default_rng(step)
    counts = (
        (4 * accuracy + chance.normal(size=40))
        .round()
        .clip(
            0,
            4,
        )
    )
    mean = float(counts.mean() / 4)
    result = {
        "step": step,
        "asked": 40,
        "failed": 0,
        "tasks": 40,
        "samples": 160,
        "accuracy": mean,
        "accuracy_low": mean - 0.06,
        "accuracy_high": mean + 0.05,
        "pass@1": mean,
        "pass@4": min(1.0, mean + 0.15),
        "process": 0.7 + mean / 4,
        "response_length": 21.4,
        "truncated": 0.01,
        "ungradable": 0,
        "per_task": {
            f"arithmetic-{number:03d}": [count, 4] for number, count in enumerate(counts.tolist())
        },
    }
    data = {"kind": "evaluation", "step": step, "evaluation": result}
    message = f"evaluation at step {step}"
    return an_event(job_id, f"evaluation:{step}", message, at=step, data=data)


def an_event(job_id: str, name: str, message: str, *, at: float = 0, **values: Any) -> JobEvent:
    created_at = _BEGAN + 0.6 * at
    return builders.an_event(
        name,
        job_id=job_id,
        created_at=created_at,
        message=message,
        **values,
    )


def write_samples(folder: Path, job_id: str, numbers: range, *, purpose: str = "train") -> None:
    """Fill a job's sample store with groups of three-step sums, 16 to a step."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKENIZER).write_bytes((BASE_MODEL / TOKENIZER).read_bytes())
    chance = np.random.default_rng(7)
    samples = [_sample(job_id, number, Purpose(purpose), chance) for number in numbers]
    sample_stores.write_samples(folder, *samples)


def _sample(job_id: str, number: int, purpose: Purpose, chance: np.random.Generator) -> list[Row]:
    step = number // 16
    task = _task(number % 24)
    is_episode = number == EPISODES
    answers = [
        _response(
            task,
            0.2 + min(0.6, step / 40),
            chance,
        )
        for _ in range(GROUP_SIZE)
    ]
    if is_episode:
        answers[-1] = ("", Grade(outcome=Ungradable(reason="episode_timeout")))
    texts = [text for text, _ in answers]
    ids = [_CODER.encode(text, add_special_tokens=False).ids for text in texts]
    lengths = [len(ids_of_response) for ids_of_response in ids]
    places = np.concatenate([np.arange(length) % 9 for length in lengths])
    own = places < (6 if is_episode else 9)
    logprobs = -abs(chance.normal(0, 0.4, len(own))) * own
    request = builders.a_request(
        job_id=job_id,
        number=number,
        purpose=purpose,
        step=step,
        task=task,
        group_size=GROUP_SIZE,
        prompt_template="{prompt}",
    )
    rollout = builders.a_group(
        request,
        lengths,
        texts=texts,
        episodes=[_episode(task, text) for text in texts] if is_episode else (),
        version=step,
        prompt_ids=_CODER.encode(task.prompt or "").ids,
        token_ids=np.concatenate(ids),
        behavior_logprobs=logprobs,
        own=own,
    )
    graded = builders.a_graded_group(rollout, grades=[grade for _, grade in answers])
    group = ScoredGroup(graded, sample_stores.SCORING, "stale" if number % 29 == 28 else USED)
    in_loss = np.repeat(group.has_loss, lengths) & own
    tokens = {
        "logprobs": (logprobs + 1e-5)[in_loss],
        "entropies": abs(chance.normal(0, 0.5, in_loss.sum())),
        "token_advantages": np.repeat(group.advantages, lengths)[in_loss],
    }
    (rows,) = build_rows(
        [group],
        tokens,
        attempt=1,
        step=step,
        created_at=_BEGAN + number,
    )
    return [row | {"surprise": float(chance.random())} for row in rows]


def _episode(task: Task, text: str) -> Episode:
    """One of two turns; one without text broke."""
    end: dict[str, Any] = {"problem": "episode_timeout", "words": "not over in 600 s"}
    result: dict[str, Any] = {"reward": 0.5} if text else end
    contents = {"user": task.prompt or "", "assistant": text, "tool": "no such number"}
    return Episode(
        **result,
        turns=2,
        seconds={"model": 3.0, "environment": 40.0},
        conversation=tuple(
            Turn(
                role=role,
                content=content,
            )
            for role, content in contents.items()
        ),
    )


def _task(number: int) -> Task:
    a, b, c, d = 30 + number, 3 + number % 7, 9 - number % 5, 12 + number % 9
    return Task(
        id=f"arithmetic-{number:03d}",
        prompt=f"{a}-{b}+{c}+{d}=?",
        answer=str(a - b + c + d),
        metadata={"steps": 3},
    )


def _response(task: Task, skill: float, chance: np.random.Generator) -> tuple[str, Grade]:
    """A chain of equations, some of them false, and how it is graded."""
    numbers = task.problem.removesuffix("=?").replace("-", "+-").split("+")
    value, *summands = map(int, numbers)
    text = ""
    for summand in summands:
        is_wrong = chance.random() > 0.55 + skill / 2
        result = value + summand + is_wrong * int(chance.choice((-10, -1, 1, 10)))
        text += f"{value}{summand:+d}={result};"
        value = result
    text += f"\\boxed{{{value}}}"
    if chance.random() < 0.03:
        return text, Grade(outcome=Ungradable(reason="the judge's reply did not fill in its form"))
    answer = task.answer or ""
    process = score(derive(text, task.problem, "", answer, 9))
    comments = {"style": "Each step follows from the one before; nothing is left out."}
    return text, Grade(
        outcome=Graded(value=float(str(value) == answer)),
        process=process.model_copy(update={"comments": comments}),
    )
