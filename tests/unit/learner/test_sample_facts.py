"""What the sample store says of a group: its responses, what they were worth, and each token."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from protocol.messages import FinishReason, Grade, Graded, GradedGroup, Ungradable
from protocol.recipe import Purpose
from protocol.samples import USED, SampledGroup

from services.learner.durable.sample_facts import facts_of, sampled_groups
from services.learner.training.samples import samples_of
from services.learner.training.scoring import Scoring
from tests.builders import a_graded_group, a_group, a_recipe, a_request, a_span

LOST = Ungradable(reason="gold_not_parsable")


def scoring(advantage: str, **reward: Any) -> Scoring:
    critic = {"critic": {}} if advantage == "gae" else {}
    weight = {"lambda_process": 0.25} if "papo" in advantage else {}
    algorithm = {"advantage": advantage, **weight}
    return Scoring.of(a_recipe(algorithm=algorithm, reward=reward, **critic))


def a_grade(outcome: float | None, process: float | None = None) -> Grade:
    return Grade(
        outcome=LOST if outcome is None else Graded(value=outcome),
        process=None if process is None else Graded(value=process),
    )


def graded(
    grades: Sequence[Grade],
    *,
    lengths: Sequence[int] | None = None,
    truncated: int = -1,
    **changes: Any,
) -> GradedGroup:
    group = a_group(a_request(group_size=len(grades), **changes), lengths)
    own = [(a_span(length, version=7, attempt=2),) for length in group.lengths.tolist()]
    responses = [
        response.model_copy(update={"spans": spans})
        for response, spans in zip(group.responses, own, strict=True)
    ]
    if truncated >= 0:
        cut = {"finish_reason": FinishReason.LENGTH}
        responses[truncated] = responses[truncated].model_copy(update=cut)
    return a_graded_group(group.model_copy(update={"responses": tuple(responses)}), grades=grades)


def sampled(
    group: GradedGroup, scoring: Scoring, fate: str = USED, **tokens: Sequence[float]
) -> SampledGroup:
    arrays = {name: np.array(values, dtype=np.float32) for name, values in tokens.items()}
    (found,) = sampled_groups([group], [fate], scoring, arrays, attempt=2, step=7)
    return found


def test_a_groups_facts_are_those_of_its_responses() -> None:
    group = graded([a_grade(1.0, 0.5), a_grade(0.0)], lengths=[1, 3], truncated=1, number=4)
    found = sampled(group, scoring("grpo"), logprobs=[-2.0, -1.5, -0.5, -0.75])
    facts = facts_of(found, created_at=12.5)
    assert (facts.key, facts.attempt, facts.step) == ("train:4", 2, 7)
    assert (facts.fate, facts.task_id, facts.created_at) == (USED, "sum-1", 12.5)
    one, other = facts.responses
    assert (one.accuracy, one.process, one.reward) == (1.0, 0.5, 1.0)
    assert (other.accuracy, other.process, other.reward) == (0.0, None, 0.0)
    assert (one.length, one.truncated) == (1, False)
    assert (other.length, other.truncated) == (3, True)
    assert one.advantage == pytest.approx(0.707106, abs=1e-6)
    assert other.advantage == pytest.approx(-0.707106, abs=1e-6)
    # The sampler's log-probs are -2, -1.5, -1 and -0.5.
    assert (one.surprise, other.surprise) == (2.0, 1.0)
    assert np.isnan(found.outcome_advantages).all()  # which has no terms
    silent = facts_of(sampled(graded([a_grade(None)] * 2, lengths=[0, 1]), scoring("papo")), 0.0)
    worth = silent.responses[0]
    assert (worth.surprise, worth.reward, worth.advantage) == (0.0, None, None)
    assert (one.parity_gap, other.parity_gap) == (0.0, 0.5)


@pytest.mark.parametrize(
    ("advantage", "process"), [("papo", [1, -1, 0, 0]), ("papo_full_norm", [1, 0, -1, -1])]
)
def test_papo_tells_its_two_terms_before_the_weight(advantage: str, process: list[int]) -> None:
    group = graded([a_grade(1.0, 1.0), a_grade(1.0, 0.5), a_grade(0.0), a_grade(0.0)])
    found = sampled(group, scoring(advantage))
    assert np.sign(found.outcome_advantages).tolist() == [1, 1, -1, -1]
    terms = np.round(found.process_advantages / np.abs(found.process_advantages).max(), 1)
    assert np.sign(np.where(np.abs(terms) > 0.2, terms, 0)).tolist() == process
    total = found.outcome_advantages + 0.25 * found.process_advantages
    assert found.advantages == pytest.approx(total, abs=1e-6)


def test_advantages_are_those_that_the_step_trains_with() -> None:
    group = graded([a_grade(1.0, 1.0), a_grade(None), a_grade(1.0, 0.3), a_grade(0.0)])
    samples, _ = samples_of([group], scoring("papo"), attempt=1, version=0)
    found = sampled(group, scoring("papo"))
    trained = [np.float32(sample.advantage) for sample in samples]
    assert found.advantages[[0, 2, 3]].tolist() == trained
    assert math.isnan(found.advantages[1])
    assert found.rewards[[0, 2, 3]].tolist() == [sample.reward for sample in samples]
    assert math.isnan(found.rewards[1])


def test_each_token_finds_its_response_though_some_take_no_part() -> None:
    filtering = scoring("grpo", overlong_filter=True)
    first = graded([a_grade(None), a_grade(1.0), a_grade(0.0)], lengths=[2, 1, 2])
    second = graded([a_grade(1.0), a_grade(0.0)], lengths=[2, 1], truncated=0, number=1)
    third = graded([a_grade(1.0), a_grade(0.0)], lengths=[1, 1], number=2)
    tokens = np.arange(3 + 1 + 2, dtype=np.float32)
    found = list(
        sampled_groups(
            [first, second, third],
            [USED, USED, USED],
            filtering,
            {"logprobs": tokens, "entropies": -tokens},
            attempt=1,
            step=0,
        )
    )
    missing = math.nan
    expected = [[missing, missing, 0, 1, 2], [missing, missing, 3], [4, 5]]
    for group, values in zip(found, expected, strict=True):
        assert group.logprobs.tolist() == pytest.approx(values, nan_ok=True)
        assert (-group.entropies).tolist() == pytest.approx(values, nan_ok=True)
        assert group.token_advantages.size == 0
    samples, _ = samples_of([first, second, third], filtering, attempt=1, version=0)
    assert sum(len(sample.token_ids) for sample in samples) == len(tokens)
    # A filtered response has a reward, which is in its group's mean, and no advantage.
    assert found[1].rewards.tolist() == [1.0, 0.0]
    assert math.isnan(found[1].advantages[0])
    assert found[1].advantages[1] < 0


def test_a_dropped_group_takes_no_tokens_from_the_others() -> None:
    groups = [graded([a_grade(1.0), a_grade(1.0)], lengths=[1, 1], number=n) for n in range(3)]
    arrays = {"logprobs": np.array([-1, -2, -3, -4], dtype=np.float32)}
    groups.append(GradedGroup(purpose=Purpose.TRAIN, number=3, failure="deaths: two workers"))
    fates = [USED, "no_signal", USED, "deaths"]
    found = list(sampled_groups(groups, fates, scoring("grpo"), arrays, attempt=1, step=0))
    facts = facts_of(found.pop(), 0.0)
    assert (facts.failure, facts.task_id, facts.responses) == ("deaths: two workers", "", ())
    assert [group.fate for group in found] == fates[:3]
    assert [group.logprobs.tolist() for group in found] == [[-1, -2], [], [-3, -4]]
    assert found[1].rewards.tolist() == [1, 1]
    assert facts_of(found[1], 0.0).responses[0].parity_gap is None


def test_of_a_critic_the_advantage_is_the_mean_over_tokens() -> None:
    group = graded([a_grade(1.0), a_grade(0.0)], lengths=[2, 1])
    found = sampled(group, scoring("gae"), token_advantages=[1.0, 2.0, -4.0])
    assert np.isnan(found.advantages).all()
    assert [r.advantage for r in facts_of(found, 0.0).responses] == [1.5, -4.0]


def test_an_evaluation_pays_nothing() -> None:
    grades = [a_grade(1.0), a_grade(None)]
    group = graded(grades, lengths=[1, 1], truncated=0, purpose=Purpose.EVAL)
    found = sampled(group, scoring("papo", overlong_filter=True), logprobs=[-2.5])
    assert np.isnan(found.rewards).all()
    assert np.isnan(found.advantages).all()
    one, other = facts_of(found, 0.0).responses
    assert (one.accuracy, one.reward, one.parity_gap) == (1.0, None, 0.5)
    assert (other.accuracy, other.parity_gap) == (None, None)
