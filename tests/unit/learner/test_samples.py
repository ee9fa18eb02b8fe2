"""What becomes of a graded group: samples, and the facts that are reported about it."""

import numpy as np
import pytest
from protocol.messages import Grade, Graded, GradedGroup, Ungradable, VersionSpan
from protocol.recipe import Purpose

from services.learner.algorithms.advantages import grpo, papo
from services.learner.samples import samples_of
from tests.builders import a_group, a_request

RIGHT, WRONG = Graded(value=1), Graded(value=0, reason="wrong")


def graded(grades: list[Grade], version: int = 0, number: int = 0) -> GradedGroup:
    request = a_request(number=number, group_size=len(grades))
    group = a_group(request, [3] * len(grades), version=version)
    return GradedGroup(purpose=Purpose.TRAIN, number=number, group=group, grades=tuple(grades))


def test_each_response_becomes_a_sample_with_its_advantage() -> None:
    group = graded([Grade(outcome=RIGHT), Grade(outcome=WRONG)])
    samples, facts = samples_of([group], grpo, attempt=1, version=0)
    assert [s.advantage for s in samples] == pytest.approx([0.707106, -0.707106], abs=1e-6)
    assert group.group is not None
    assert np.array_equal(samples[1].token_ids, group.group.token_ids[3:6])
    assert (facts.responses, facts.correct, facts.tokens) == (2, 1, 6)
    assert facts.groups_with_signal == 1


def test_a_response_that_cannot_be_graded_is_dropped_and_counted() -> None:
    lost = Grade(outcome=Ungradable(reason="gold_not_parsable"))
    samples, facts = samples_of(
        [graded([Grade(outcome=RIGHT), lost, Grade(outcome=WRONG)])], grpo, attempt=1, version=0
    )
    assert len(samples) == 2
    assert sum(s.advantage for s in samples) == pytest.approx(0, abs=1e-9)
    assert facts.dropped_responses == {"gold_not_parsable": 1}


def test_a_missing_process_score_is_no_zero() -> None:
    grades = [
        Grade(outcome=RIGHT, process=Graded(value=1.0)),
        Grade(outcome=RIGHT, process=Graded(value=0.5)),
        Grade(outcome=RIGHT, process=Ungradable(reason="timeout")),
    ]
    samples, facts = samples_of([graded(grades)], papo, attempt=1, version=0)
    assert [s.advantage for s in samples] == pytest.approx([0.707105, -0.707105, 0], abs=1e-5)
    assert facts.process == [1.0, 0.5]
    assert facts.ungradable_process == 1


def test_only_tokens_of_the_learners_own_version_count_for_parity() -> None:
    group = graded([Grade(outcome=RIGHT)], version=4)
    (same,), facts = samples_of([group], grpo, attempt=1, version=4)
    assert same.on_version.all()
    assert facts.staleness_max == 0
    for attempt, version in ((1, 5), (2, 4)):
        (other,), _ = samples_of([group], grpo, attempt=attempt, version=version)
        assert not other.on_version.any()


def test_after_a_sync_that_kept_the_cache_only_whole_responses_count_for_parity() -> None:
    group = graded([Grade(outcome=RIGHT), Grade(outcome=WRONG)], version=4)
    assert group.group is not None
    interrupted = group.group.responses[0].model_copy(
        update={
            "spans": (
                VersionSpan(attempt=1, version=3, start=0, end=1),
                VersionSpan(attempt=1, version=4, start=1, end=3),
            )
        }
    )
    responses = (interrupted, group.group.responses[1])
    mixed = group.model_copy(
        update={"group": group.group.model_copy(update={"responses": responses})}
    )
    for kept_kv, expected in ((False, [0, 1, 1]), (True, [0, 0, 0])):
        (first, second), _ = samples_of([mixed], grpo, attempt=1, version=4, kept_kv=kept_kv)
        assert first.on_version.tolist() == expected
        assert second.on_version.tolist() == [1, 1, 1]


def test_staleness_is_counted_in_versions() -> None:
    _, facts = samples_of([graded([Grade(outcome=RIGHT)], version=3)], grpo, attempt=1, version=5)
    assert facts.staleness_max == 2
    assert facts.means(1)["staleness"] == 2
