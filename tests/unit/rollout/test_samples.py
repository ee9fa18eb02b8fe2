"""Samples: version labels survive the engine, groups lie flat."""

from __future__ import annotations

import numpy as np
from protocol.messages import FinishReason, VersionSpan

from services.rollout.samples import Sample, group_of, span_of, version_label
from tests.builders import a_request


def a_sample(token_ids: list[int], logprob: float) -> Sample:
    return Sample(
        token_ids=np.array(token_ids, dtype=np.int32),
        behavior_logprobs=np.full(len(token_ids), logprob, dtype=np.float32),
        text=str(token_ids),
        finish_reason=FinishReason.STOP,
        spans=(VersionSpan(attempt=1, version=0, start=0, end=len(token_ids)),),
    )


def test_a_label_names_attempt_and_number_in_this_order() -> None:
    span = span_of(version_label(3, 17), 5, 9)
    assert span == VersionSpan(attempt=3, version=17, start=5, end=9)


def test_a_group_keeps_each_response_apart_and_in_order() -> None:
    request = a_request(group_size=3)
    samples = [a_sample([1, 2], -1.0), a_sample([3], -2.0), a_sample([4, 5, 6], -3.0)]
    group = group_of(request, [9, 8], samples, 0.5)
    assert group.request is request
    assert group.prompt_ids.tolist() == [9, 8]
    assert group.lengths.tolist() == [2, 1, 3]
    parts = [group.token_ids[start:end].tolist() for start, end in group.bounds()]
    assert parts == [[1, 2], [3], [4, 5, 6]]
    assert group.behavior_logprobs.tolist() == [-1, -1, -2, -3, -3, -3]
    assert [response.text for response in group.responses] == ["[1, 2]", "[3]", "[4, 5, 6]"]
