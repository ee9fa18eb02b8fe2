"""Traces become groups: whose each token is, and under which weights."""

from __future__ import annotations

from protocol.messages import Episode, VersionSpan

from services.environment.door import Branch, RecordedCall, Trace
from services.environment.group import Played, group_of
from tests.builders import a_request


def test_weights_that_read_a_prompt_and_sampled_nothing_stay_in_the_spans() -> None:
    """With their key-values kept, the tokens behind it are of no version alone."""
    spans = [(1, 2, 2), (2, 2, 4), (2, 6, 6), (3, 6, 7)]
    branch = Branch(
        token_ids=[*range(7)],
        logprobs=[None, None, -0.1, -0.2, None, None, -0.3],
        own=[False, False, True, True, False, False, True],
        weight_versions=[VersionSpan(attempt=1, version=v, start=s, end=e) for v, s, e in spans],
        calls=["a", "b"],
    )
    calls = [RecordedCall(id=each, seconds=1, finish_reason="stop") for each in branch.calls]
    played = Played(Episode(reward=1), Trace(calls=calls, branches=[branch]))
    group = group_of(a_request(group_size=1), [played], 1.0)
    assert group.prompt_ids.tolist() == [0, 1]
    found = [(span.version, span.start, span.end) for span in group.responses[0].spans]
    assert found == [(1, 0, 0), (2, 0, 2), (2, 2, 2), (3, 2, 5)]
