"""Builders of sample stores on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from protocol.messages import Grade, Graded, GradedGroup, Ungradable
from protocol.recipe import Purpose
from protocol.samples import (
    USED,
    ResponseFacts,
    SampledGroup,
    SampleFacts,
    pack_sample,
)

from tests.builders import a_graded_group, a_group, a_request, a_task


def response_facts(**changes: Any) -> ResponseFacts:
    values: dict[str, Any] = {
        "accuracy": 1.0,
        "process": None,
        "reward": 1.0,
        "advantage": 0.5,
        "length": 2,
        "truncated": False,
        "surprise": 0.1,
        "parity_gap": 0.01,
    }
    return ResponseFacts.model_validate({**values, **changes})


def sample_facts(number: int = 0, *responses: ResponseFacts, **changes: Any) -> SampleFacts:
    """The facts of a group, of two correct responses unless others are given."""
    values: dict[str, Any] = {
        "purpose": Purpose.TRAIN,
        "number": number,
        "attempt": 1,
        "step": number,
        "fate": USED,
        "task_id": f"task-{number}",
        "created_at": 1_800_000_000.0 + number,
        "responses": responses or (response_facts(), response_facts()),
    }
    return SampleFacts.model_validate({**values, **changes})


def failed_facts(number: int, failure: str = "four deaths") -> SampleFacts:
    changes = {"fate": "failed", "task_id": "", "failure": failure, "responses": ()}
    return sample_facts(number, **changes)


def sampled_group(
    facts: SampleFacts, texts: Sequence[str] | None = None, **changes: Any
) -> SampledGroup:
    """The group that facts are of; what the learner computed for each token counts from 0."""
    graded = changes.pop("graded", None) or _graded(facts, texts)
    tokens = len(graded.group.token_ids) if graded.group is not None else 0

    def of_group(name: str) -> list[float]:
        values = (getattr(response, name) for response in facts.responses)
        return [np.nan if value is None else value for value in values]

    values: dict[str, Any] = {
        "graded": graded,
        "attempt": facts.attempt,
        "step": facts.step,
        "fate": facts.fate,
        "rewards": of_group("reward"),
        "advantages": of_group("advantage"),
        "outcome_advantages": [np.nan] * len(facts.responses),
        "process_advantages": [np.nan] * len(facts.responses),
        "logprobs": -np.arange(tokens),
        "entropies": np.arange(tokens) / 10,
        "token_advantages": [],
    }
    return SampledGroup.model_validate({**values, **changes})


def record(facts: SampleFacts, texts: Sequence[str] | None = None, **changes: Any) -> bytes:
    return pack_sample(facts, sampled_group(facts, texts, **changes))


def write_segment(folder: Path, name: str, *records: bytes) -> Path:
    """Append records to a segment, which need not be there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.samples"
    with path.open("ab") as segment:
        segment.write(b"".join(records))
    return path


def _graded(facts: SampleFacts, texts: Sequence[str] | None) -> GradedGroup:
    if facts.failure is not None:
        return GradedGroup(purpose=facts.purpose, number=facts.number, failure=facts.failure)
    lengths = [response.length for response in facts.responses]
    request = a_request(
        number=facts.number,
        purpose=facts.purpose,
        group_size=len(lengths),
        task=a_task(id=facts.task_id),
    )
    group = a_group(request, lengths, texts=texts)
    return a_graded_group(group, grades=[_grade(response) for response in facts.responses])


def _grade(response: ResponseFacts) -> Grade:
    if response.accuracy is None:
        return Grade(outcome=Ungradable(reason="the gold answer cannot be read"))
    process = None if response.process is None else Graded(value=response.process)
    return Grade(outcome=Graded(value=response.accuracy), process=process)
