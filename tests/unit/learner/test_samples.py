"""What becomes of a graded group: samples, and the facts that are reported about it."""

from typing import Any

import numpy as np
import pytest
from protocol.messages import FinishReason, Grade, Graded, GradedGroup, Ungradable, VersionSpan
from protocol.names import CRITIC_ADVANTAGES
from protocol.recipe import Purpose

from services.learner.training.samples import samples_of
from services.learner.training.scoring import Scoring
from tests.builders import a_group, a_recipe, a_request

RIGHT, WRONG = Graded(value=1), Graded(value=0, reason="wrong")
RIGHT_AND_WRONG = [Grade(outcome=RIGHT), Grade(outcome=WRONG)]


def scoring(advantage: str, **reward: Any) -> Scoring:
    critic = {} if advantage in CRITIC_ADVANTAGES else None
    recipe = a_recipe(algorithm={"advantage": advantage}, reward=reward, critic=critic)
    return Scoring.of(recipe)


grpo, papo = scoring("grpo"), scoring("papo")


def graded(
    grades: list[Grade],
    version: int = 0,
    number: int = 0,
    lengths: list[int] | None = None,
    truncated: tuple[int, ...] = (),
) -> GradedGroup:
    request = a_request(number=number, group_size=len(grades))
    group = a_group(request, lengths or [3] * len(grades), version=version)
    cut = {"finish_reason": FinishReason.LENGTH}
    responses = tuple(
        response.model_copy(update=cut if index in truncated else {})
        for index, response in enumerate(group.responses)
    )
    group = group.model_copy(update={"responses": responses})
    return GradedGroup(purpose=Purpose.TRAIN, number=number, group=group, grades=tuple(grades))


def test_each_response_becomes_a_sample_with_its_advantage() -> None:
    group = graded(RIGHT_AND_WRONG)
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
    for attempt, version in ((1, 6), (2, 4)):
        (other,), facts = samples_of([group], grpo, attempt=attempt, version=version)
        assert not other.on_version.any()
        assert facts.staleness_max == facts.means(1)["staleness"] == version - 4


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


def test_a_truncated_response_can_be_left_out_of_the_loss_but_not_of_the_statistics() -> None:
    group = graded(RIGHT_AND_WRONG, truncated=(1,))
    (sample,), facts = samples_of(
        [group], scoring("grpo", overlong_filter=True), attempt=1, version=0
    )
    assert sample.advantage == pytest.approx(0.707106, abs=1e-6)
    assert (facts.responses, facts.truncated, facts.filtered) == (2, 1, 1)
    assert facts.means(1)["filtered"] == 0.5
    samples, facts = samples_of([group], grpo, attempt=1, version=0)
    assert (len(samples), facts.filtered) == (2, 0)
    both = graded(RIGHT_AND_WRONG, truncated=(0, 1))
    samples, facts = samples_of([both], scoring("grpo", overlong_filter=True), attempt=1, version=0)
    assert (samples, facts.filtered, facts.tokens) == ([], 2, 6)
    compared = scoring("grpo", overlong_filter=True).without_advantage
    samples, _ = samples_of([both], compared, attempt=1, version=0)
    assert [sample.advantage for sample in samples] == [0, 0]


def test_an_overlong_response_pays_but_its_group_gains_no_signal() -> None:
    shaped = scoring("grpo", overlong_buffer=4, overlong_factor=0.5)  # max_tokens is 8
    both_wrong = graded([Grade(outcome=WRONG)] * 2, lengths=[4, 8])
    samples, facts = samples_of([both_wrong], shaped, attempt=1, version=0)
    assert [sample.reward for sample in samples] == pytest.approx([0, -0.5])
    assert samples[0].advantage > 0 > samples[1].advantage
    assert facts.groups_with_signal == 0
    assert not shaped.has_signal(both_wrong)
    assert shaped.has_signal(graded(RIGHT_AND_WRONG, lengths=[8, 4]))


def test_a_shaped_reward_does_not_decide_what_is_correct() -> None:
    shaped = scoring("papo", overlong_buffer=8, values=(-1.0, 1.0))
    group = graded(RIGHT_AND_WRONG, lengths=[8, 1])
    samples, facts = samples_of([group], shaped, attempt=1, version=0)
    assert [sample.correct for sample in samples] == [True, False]
    assert [sample.reward for sample in samples] == pytest.approx([0.0, -1.125])
    assert facts.correct == 1


@pytest.mark.parametrize("name", CRITIC_ADVANTAGES)
def test_where_a_critic_estimates_advantages_a_sample_has_its_reward_only(name: str) -> None:
    group = graded(RIGHT_AND_WRONG)
    with_critic = scoring(name, values=(-1.0, 1.0))
    samples, _ = samples_of([group], with_critic, attempt=1, version=0)
    assert [sample.advantage for sample in samples] == [0, 0]
    assert [sample.reward for sample in samples] == [1, -1]
    assert with_critic.has_signal(group)
    assert not with_critic.has_signal(graded([Grade(outcome=RIGHT)] * 2))


def test_a_group_that_lost_all_but_one_response_has_no_signal_but_a_lone_response_has() -> None:
    lost = Grade(outcome=Ungradable(reason="gold_not_parsable"))
    for of_recipe in (grpo, scoring("grpo_verl"), scoring("gae")):
        assert not of_recipe.has_signal(graded([lost, lost]))
        assert not of_recipe.has_signal(graded([Grade(outcome=RIGHT), lost, lost]))
    assert scoring("gae").has_signal(graded([Grade(outcome=WRONG)]))


def test_accuracy_is_a_signal_to_a_critic_and_only_by_its_advantage_to_a_group() -> None:
    same_process = [Grade(outcome=g, process=Graded(value=0.5)) for g in (RIGHT, WRONG)]
    assert scoring("gae").has_signal(graded(same_process))
    assert papo.has_signal(graded(same_process))
    assert not scoring("process_only", process_for="all").has_signal(graded(same_process))
