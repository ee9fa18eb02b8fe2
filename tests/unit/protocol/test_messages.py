"""Messages: frozen, complete, and impossible to make wrong."""

from typing import Any

import numpy as np
import pytest
from protocol.messages import GradedGroup
from pydantic import ValidationError

from tests.builders import a_failed_group, a_graded_group, a_group, a_request, a_span
from tests.tables import table


def spans(*edges: tuple[int, int]) -> dict[str, Any]:
    """One response of two tokens, with spans from edge to edge."""
    (response,) = a_group(lengths=[2]).responses
    spans = tuple(a_span(end).model_copy(update={"start": start}) for start, end in edges)
    return {"lengths": [2], "responses": [response.model_copy(update={"spans": spans})]}


@table("""
    edges
    ()
    ((0, 1),)
    ((1, 2),)
    ((0, 3),)
    ((0, 1), (2, 2))
""")
def test_spans_that_do_not_cover_a_response_are_refused(edges: tuple[tuple[int, int]]) -> None:
    with pytest.raises(ValidationError, match=r"responses\[0\]\.spans"):
        a_group(**spans(*edges))


@table(
    r"""
    problem                     | values
    token_ids                   | {"token_ids": None}
    token_ids                   | {"token_ids": [None]}
    token_ids                   | {"token_ids": "text"}
    token_ids                   | {"token_ids": [1099511627776]}
    token_ids                   | {"token_ids": [[0, 0], [0, 0]]}
    own must                    | {"own": [1], "behavior_logprobs": [0, 0, 0, 0]}
    own must                    | {"own": [1, 2, 1, 2], "behavior_logprobs": [0, 0, 0, 0]}
    behavior_logprobs           | {"own": [1, 0, 1, 1], "behavior_logprobs": [-1, -1, -1, -1]}
    responses\[0\] has no token | {"own": [0, 0, 1, 1]}
    """,
    ("3 responses", {"request": a_request(group_size=3), "lengths": [1, 1]}),
    (r"responses\[0\]\.spans.*\[0, 1\)", {"own": [0, 1], **spans((0, 1), (1, 2))}),
)
def test_a_group_that_contradicts_itself_is_refused(problem: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=problem):
        a_group(**values)


def test_a_group_knows_its_key_its_bounds_and_the_tokens_of_the_policy() -> None:
    mask = [1, 0, 1, 0, 1]
    group = a_group(a_request(number=17, group_size=2), lengths=[3, 2], own=np.array(mask))
    assert group.key == a_graded_group(group).key == "train:17"
    assert group.policy_mask.tolist() == list(map(bool, mask))
    assert group.policy_lengths.tolist() == [2, 1]
    group = a_group(lengths=[3, 0, 2])
    assert group.bounds() == [(0, 3), (3, 3), (3, 5)]
    assert group.policy_lengths.tolist() == [3, 0, 2]


def test_a_graded_group_is_either_graded_or_failed() -> None:
    with pytest.raises(ValidationError, match="failure"):
        GradedGroup.model_validate({"purpose": "train", "number": 0})
    with pytest.raises(ValidationError, match="failure"):
        a_graded_group(failure=a_failed_group().failure)
    with pytest.raises(ValidationError, match="1 grades"):
        a_graded_group(a_group(lengths=[1, 1]), outcomes=[1.0])
