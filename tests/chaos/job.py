"""The job of a run, and the answers of its workers, which depend only on the request.

Everything around these answers is the product. So the weights depend only on the recipe, unless a
fault of a machine has lost, repeated, changed or swapped something.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
from protocol.messages import Grade, Graded, GradedGroup, RolloutGroup, RolloutRequest
from protocol.recipe import Purpose, Recipe

from tests.builders import a_group, a_recipe

JOB = "job"
BASE_MODEL = Path(__file__).parents[2] / "examples" / "arithmetic" / "base-model"


def a_chaos_recipe(
    *,
    steps: int,
    with_critic: bool = False,
    checkpoint_every: int = 3,
    evaluate_every: int = 10,
) -> Recipe:
    """Dynamic sampling, sources, a curriculum, evaluation and checkpoints.

    With a critic also value pretraining.
    """
    pretraining = {"pretrain_steps": 12, "pretrain_until": 0.6}
    critic = {"critic": pretraining, "algorithm": {"advantage": "gae"}}
    return a_recipe(
        model={"path": BASE_MODEL.name},
        tasks={
            "train": "",
            "sources": [
                {"name": "most", "train": "train", "weight": 2.5},
                {"name": "few", "train": "held_out", "when_exhausted": "stop"},
            ],
            "curriculum": {"retire_above": 0.5, "return_after": 4, "hard": 0.2},
            "held_out": "held_out",
        },
        rollout={"group_size": 4, "sampling": {"max_tokens": 12}},
        training={
            "steps": steps,
            "groups_per_step": 4,
            "dynamic_sampling": True,
            "max_oversampling": 4,
            "max_staleness": 3,
            "checkpoint_every": checkpoint_every,
        },
        evaluation={"samples": 2, "tasks": 5, "every": evaluate_every},
        **(critic if with_critic else {}),
    )


def write_tasks(files: Path) -> None:
    """The task files of the recipe."""
    files.mkdir(parents=True)
    for name, count in (("train", 50), ("held_out", 5)):
        tasks = [
            {
                "id": f"{name}-{n}",
                "prompt": f"{n}+1=",
                "answer": "1",
            }
            for n in range(count)
        ]
        (files / f"{name}.jsonl").write_text("\n".join(map(json.dumps, tasks)))


def sampled(request: RolloutRequest) -> RolloutGroup:
    """The answer to a request; its seed decides all of it.

    The spans name the step that the request was asked for, whichever version is loaded: a group
    that came late would be dropped as surplus, and then the rest would depend on the time.
    """
    chance = random.Random(request.seed)
    lengths = [chance.randint(1, 12) for _ in range(request.group_size)]
    return a_group(
        request,
        lengths,
        version=request.step,
        texts=[f"{request.key} {chance.randrange(1000)}" for _ in lengths],
        prompt_ids=np.array([chance.randrange(1000) for _ in range(3)]),
        token_ids=np.array([chance.randrange(1000) for _ in range(sum(lengths))]),
        behavior_logprobs=np.array([-chance.random() for _ in range(sum(lengths))]),
    )


def graded(group: RolloutGroup) -> GradedGroup:
    """The grades of a group; two in seven training groups have nothing to teach."""
    request = group.request
    chance = random.Random(-request.seed)
    outcomes = [float(index % 2) for index in range(request.group_size)]
    chance.shuffle(outcomes)
    if request.purpose is Purpose.TRAIN and request.number % 7 in {2, 5}:
        outcomes = [0.0] * request.group_size
    grades = tuple(
        Grade(
            outcome=Graded(value=outcome),
            process=Graded(value=round(chance.random(), 3)) if outcome else None,
        )
        for outcome in outcomes
    )
    return GradedGroup(
        purpose=request.purpose,
        number=request.number,
        group=group,
        grades=grades,
    )
