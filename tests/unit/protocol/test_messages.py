"""Messages: frozen, complete, and impossible to make wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import protocol
import pytest
from protocol.messages import GradedGroup
from pydantic import ValidationError

from tests.builders import a_graded_group, a_group, a_request, a_span


def test_a_message_cannot_be_changed() -> None:
    group = a_group()
    with pytest.raises(ValidationError, match="frozen"):
        group.sampling_seconds = 1.0
    with pytest.raises(ValueError, match="read-only"):
        group.token_ids[0] = 1


def test_bounds_say_where_each_response_lies() -> None:
    group = a_group(lengths=[3, 0, 2])
    assert group.bounds() == [(0, 3), (3, 3), (3, 5)]


def test_a_key_is_the_same_at_every_stage() -> None:
    request = a_request(number=17)
    group = a_group(request)
    assert request.key == group.key == a_graded_group(group).key == "train:17"


def test_a_group_holds_as_many_responses_as_were_asked_for() -> None:
    with pytest.raises(ValidationError, match="3 responses"):
        a_group(a_request(group_size=3), lengths=[1, 1])


@pytest.mark.parametrize("value", [None, [None], "text", [2**40], np.zeros((2, 2))])
def test_arrays_hold_numbers_that_fit(value: object) -> None:
    with pytest.raises(ValidationError, match="token_ids"):
        a_group(token_ids=value)


@pytest.mark.parametrize("edges", [[], [(0, 1)], [(0, 1), (2, 2)], [(1, 2)], [(0, 3)]])
def test_version_spans_cover_a_response_without_a_gap(edges: list[tuple[int, int]]) -> None:
    response = a_group(lengths=[2]).responses[0]
    spans = tuple(a_span(end).model_copy(update={"start": start}) for start, end in edges)
    with pytest.raises(ValidationError, match=r"responses\[0\]\.spans"):
        a_group(lengths=[2], responses=[response.model_copy(update={"spans": spans})])


def test_a_graded_group_is_either_graded_or_failed() -> None:
    with pytest.raises(ValidationError, match="failure"):
        GradedGroup.model_validate({"purpose": "train", "number": 0})
    with pytest.raises(ValidationError, match="failure"):
        a_graded_group(failure="and yet")
    with pytest.raises(ValidationError, match="1 grades"):
        a_graded_group(a_group(lengths=[1, 1]), outcomes=[1.0])


def test_nothing_is_ever_unpickled() -> None:
    for path in Path(protocol.__path__[0]).rglob("*.py"):
        source = path.read_text()
        assert not re.search(r"import (c?pickle|marshal|shelve|dill)|allow_pickle", source), path
