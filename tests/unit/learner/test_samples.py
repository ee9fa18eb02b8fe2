"""What becomes of a graded group: samples, facts about it, and what the sample store says of it."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from protocol.messages import (
    FinishReason,
    Grade,
    Graded,
    GradedGroup,
    Response,
    Ungradable,
    VersionSpan,
)
from protocol.names import CRITIC_ADVANTAGES
from protocol.recipe import Purpose
from protocol.samples import USED

from services.learner.durable.sample_rows import Row, build_rows
from services.learner.training import samples
from services.learner.training.batching import collate, count_totals
from services.learner.training.samples import GroupFacts, Sample
from services.learner.training.scoring import ScoredGroup, Scoring
from tests.builders import (
    a_failed_group,
    a_graded_group,
    a_group,
    a_recipe,
    a_request,
    a_span,
    an_episodes_group,
)

RIGHT, WRONG = Graded(value=1), Graded(value=0, reason="wrong")
RIGHT_AND_WRONG = [Grade(outcome=RIGHT), Grade(outcome=WRONG)]
LOST = Ungradable(reason="gold_not_parsable")


def scoring(advantage: str, weight: float = 1.0, **reward: Any) -> Scoring:
    critic = {} if advantage in CRITIC_ADVANTAGES else None
    algorithm = {"advantage": advantage}
    if "papo" in advantage:
        algorithm |= {"lambda_process": weight}
    return Scoring.of(a_recipe(algorithm=algorithm, reward=reward, critic=critic))


grpo, papo = scoring("grpo"), scoring("papo")


def a_grade(outcome: float | None, process: float | None = None) -> Grade:
    return Grade(
        outcome=LOST if outcome is None else Graded(value=outcome),
        process=None if process is None else Graded(value=process),
    )


def graded(
    grades: Sequence[Grade],
    *,
    lengths: Sequence[int] | None = None,
    truncated: tuple[int, ...] = (),
    version: int = 0,
    **of_request: Any,
) -> GradedGroup:
    request = a_request(group_size=len(grades), **of_request)
    group = a_group(request, lengths or [3] * len(grades), version=version)
    cut = {"finish_reason": FinishReason.LENGTH}
    responses = tuple(
        response.model_copy(update=cut if index in truncated else {})
        for index, response in enumerate(group.responses)
    )
    return a_graded_group(group.model_copy(update={"responses": responses}), grades=grades)


def build_samples(
    groups: Sequence[GradedGroup], scoring: Scoring, *, attempt: int = 1, **of_step: Any
) -> tuple[list[Sample], GroupFacts]:
    scored = [ScoredGroup(group, scoring) for group in groups]
    return samples.build_samples(scored, attempt=attempt, **{"version": 0, **of_step})


def has_signal(scoring: Scoring, group: GradedGroup) -> bool:
    return ScoredGroup(group, scoring).has_signal


def test_each_response_becomes_a_sample_with_its_advantage() -> None:
    group = graded(RIGHT_AND_WRONG)
    samples, facts = build_samples([group], grpo)
    assert [s.advantage for s in samples] == pytest.approx([0.707106, -0.707106], abs=1e-6)
    assert group.group is not None
    assert np.array_equal(samples[1].token_ids, group.group.token_ids[3:6])
    assert (facts.responses, facts.correct, facts.tokens) == (2, 1, 6)
    assert facts.groups_with_signal == 1


def test_a_step_scales_the_advantages_of_all_its_groups_at_once() -> None:
    groups = [
        graded([a_grade(1.0), a_grade(0.0)]),
        graded([a_grade(1.0), a_grade(None), a_grade(1.0)], number=1),
        graded([a_grade(1.0), *[a_grade(0.0)] * 3], number=2),
    ]
    of_batch = scoring("grpo_batch")
    std = statistics.stdev([1, 0, 1, 1, 1, 0, 0, 0]) + 1e-4
    samples, facts = build_samples(groups, of_batch)
    expected = [0.5 / std, -0.5 / std, 0, 0, 0.75 / std, *[-0.25 / std] * 3]
    assert [s.advantage for s in samples] == pytest.approx(expected)
    assert facts.groups_with_signal == 2
    assert [has_signal(of_batch, group) for group in groups] == [True, False, True]
    assert [s.advantage for s in build_samples(groups[1:2], of_batch)[0]] == [0, 0]
    assert build_samples([], of_batch)[0] == []
    alone, _ = build_samples([graded([a_grade(1.0), a_grade(None)])], of_batch)
    assert [s.advantage for s in alone] == [0]


def test_gdpo_compares_each_check_by_itself_and_normalizes_the_step() -> None:
    outcome = [{"verifier": "math_answer", "weight": 2.0}, {"verifier": "string_check"}]
    reward = {"outcome": outcome, "overlong_buffer": 4, "overlong_factor": 0.5}
    right = Graded(value=0.5, breakdown={"math_answer": 1, "string_check": 0})
    wrong = Graded(value=0.25, breakdown={"string_check": 1})  # the other check was left out
    groups = [
        graded([Grade(outcome=right, process=Graded(value=0.75)), Grade(outcome=wrong)]),
        graded([Grade(outcome=each) for each in (right, wrong, wrong)], lengths=[3, 8, 3]),
    ]
    of_checks, of_formula = (
        scoring("gdpo", **reward),
        scoring(
            "gdpo", outcome=["math_answer", "string_check"], formula="math_answer * string_check"
        ),
    )
    found = ScoredGroup(groups[0], of_checks).scores
    assert [weight for _, weight in found.checks] == [2, 1, 1]
    expected = [[1, math.nan], [0, 1], [0.75, math.nan]]
    for (values, _), of_check in zip(found.checks, expected, strict=True):
        assert values.tolist() == pytest.approx(of_check, nan_ok=True)
    assert found.penalty_weight == 0.5
    (values, _), _ = ScoredGroup(groups[0], of_formula).scores.checks
    assert values.tolist() == [0.5, 0.25]
    samples, _ = build_samples(groups, of_checks)
    advantages = [sample.advantage for sample in samples]
    assert statistics.mean(advantages) == pytest.approx(0)
    assert statistics.stdev(advantages) == pytest.approx(1, abs=1e-3)


def test_a_response_that_cannot_be_graded_is_dropped_and_counted() -> None:
    samples, facts = build_samples([graded([a_grade(1.0), a_grade(None), a_grade(0.0)])], grpo)
    assert [s.advantage for s in samples] == pytest.approx([0.707106, -0.707106], abs=1e-6)
    assert facts.dropped_responses == {"gold_not_parsable": 1}


def test_a_missing_process_score_is_no_zero() -> None:
    lost = Grade(outcome=RIGHT, process=Ungradable(reason="timeout"))
    samples, facts = build_samples([graded([a_grade(1.0, 1.0), a_grade(1.0, 0.5), lost])], papo)
    assert [s.advantage for s in samples] == pytest.approx([0.707105, -0.707105, 0], abs=1e-5)
    assert (facts.process, facts.ungradable_process) == ([1.0, 0.5], 1)


def test_only_tokens_of_the_learners_own_version_count_for_parity() -> None:
    group = graded([Grade(outcome=RIGHT)], version=4)
    (same,), facts = build_samples([group], grpo, version=4)
    assert same.on_version.all()
    assert facts.staleness_max == 0
    for attempt, version in ((1, 6), (2, 4)):
        (other,), facts = build_samples([group], grpo, attempt=attempt, version=version)
        assert not other.on_version.any()
        assert facts.staleness_max == facts.means(1)["staleness"] == version - 4


def test_after_a_sync_that_kept_the_cache_only_whole_responses_count_for_parity() -> None:
    interrupted = (
        VersionSpan(attempt=1, version=3, start=0, end=1),
        VersionSpan(attempt=1, version=4, start=1, end=3),
    )
    responses = [
        Response(text="", finish_reason=FinishReason.STOP, spans=spans)
        for spans in (interrupted, (a_span(3, 4),))
    ]
    group = a_graded_group(a_group(lengths=[3, 3], responses=responses), grades=RIGHT_AND_WRONG)
    for kept_kv, expected in ((False, [0, 1, 1]), (True, [0, 0, 0])):
        (first, second), _ = build_samples([group], grpo, version=4, kept_kv=kept_kv)
        assert first.on_version.tolist() == expected
        assert second.on_version.tolist() == [1, 1, 1]


def test_a_truncated_response_can_be_left_out_of_the_loss_but_not_of_the_statistics() -> None:
    group = graded(RIGHT_AND_WRONG, truncated=(1,))
    (sample,), facts = build_samples(
        [group], scoring("grpo", overlong_filter=True), attempt=1, version=0
    )
    assert sample.advantage == pytest.approx(0.707106, abs=1e-6)
    assert (facts.responses, facts.truncated, facts.filtered) == (2, 1, 1)
    assert facts.means(1)["filtered"] == 0.5
    samples, facts = build_samples([group], grpo)
    assert (len(samples), facts.filtered) == (2, 0)
    both = graded(RIGHT_AND_WRONG, truncated=(0, 1))
    samples, facts = build_samples([both], scoring("grpo", overlong_filter=True))
    assert (samples, facts.filtered, facts.tokens) == ([], 2, 6)
    compared = scoring("grpo", overlong_filter=True).comparison_only
    samples, _ = build_samples([both], compared)
    assert [sample.advantage for sample in samples] == [0, 0]


def test_an_overlong_response_pays_but_its_group_gains_no_signal() -> None:
    shaped = scoring("grpo", overlong_buffer=4, overlong_factor=0.5)  # max_tokens is 8
    both_wrong = graded([Grade(outcome=WRONG)] * 2, lengths=[4, 8])
    samples, facts = build_samples([both_wrong], shaped)
    assert [sample.reward for sample in samples] == pytest.approx([0, -0.5])
    assert samples[0].advantage > 0 > samples[1].advantage
    assert facts.groups_with_signal == 0
    assert not has_signal(shaped, both_wrong)
    assert has_signal(shaped, graded(RIGHT_AND_WRONG, lengths=[8, 4]))


def test_weights_that_add_up_to_1_but_for_rounding_make_a_right_response() -> None:
    group = graded([a_grade(0.7 + 0.2 + 0.1, 1), a_grade(1, 0), a_grade(1 - 1e-8)])
    found, facts = build_samples([group], papo)
    assert papo.scores(group.grades, [1] * 3).correct.tolist() == [True, True, False]
    assert [sample.correct for sample in found] == [True, True, False]
    assert (facts.correct, facts.process) == (2, [1, 0])


def test_a_shaped_reward_does_not_decide_what_is_correct() -> None:
    shaped = scoring("papo", overlong_buffer=8, values=(-1.0, 1.0))
    samples, facts = build_samples([graded(RIGHT_AND_WRONG, lengths=[8, 1])], shaped)
    assert [(s.correct, s.reward) for s in samples] == [(True, 0.0), (False, -1.125)]
    assert facts.correct == 1


OWN = np.array([1, 1, 0, 0, 1, 0, 0, 1, 1, 0])


def in_turns(own: np.ndarray = OWN, **of_request: Any) -> GradedGroup:
    """Responses of 6 and 4 tokens, of which 3 and 2 are the policy's own; two versions each."""
    request = a_request(group_size=2, **of_request)
    responses = [
        Response(text="", finish_reason=FinishReason.STOP, spans=spans)
        for spans in (
            (a_span(4, 3), VersionSpan(attempt=1, version=4, start=4, end=6)),
            (a_span(4, 4),),
        )
    ]
    return a_graded_group(
        a_group(request, [6, 4], responses=responses, own=own), grades=RIGHT_AND_WRONG
    )


def test_what_is_not_the_policys_own_is_learned_from_and_counted_nowhere() -> None:
    group = in_turns()
    assert group.group is not None
    (first, second), facts = build_samples([group], grpo, version=4)
    assert (len(first.token_ids), first.num_own) == (6, 3)
    logprobs = group.group.behavior_logprobs
    assert first.behavior_logprobs.tolist() == logprobs[[0, 1, 4]].tolist()
    assert (first.on_version.tolist(), second.on_version.tolist()) == ([0, 0, 1], [1, 1])
    assert (first.own_places.tolist(), second.own_places.tolist()) == ([0, 1, 4], [1, 2])
    means = facts.means(1)
    assert (facts.tokens, means["length_correct"], means["length_wrong"]) == (5, 3, 2)
    assert means["staleness"] == pytest.approx(2 / 5)
    assert facts.trained_lengths == [3 + 6, 3 + 4]  # all of it is read
    penalized = ScoredGroup(group, scoring("grpo", overlong_buffer=8))  # max_tokens is 8
    assert penalized.scores.penalty.tolist() == [-3 / 8, -2 / 8]


def test_a_broken_episode_takes_no_part_in_its_group() -> None:
    lost = Grade(outcome=Ungradable(reason="episode_failed"))
    whole = a_graded_group(an_episodes_group(1.0, 0.0), grades=RIGHT_AND_WRONG)
    grades = [RIGHT_AND_WRONG[0], lost, RIGHT_AND_WRONG[1]]
    with_broken = a_graded_group(an_episodes_group(1.0, None, 0.0), grades=grades)
    (found, facts), (wanted, _) = (build_samples([each], grpo) for each in (with_broken, whole))
    assert [each.advantage for each in found] == [each.advantage for each in wanted]
    assert facts.dropped_responses == {"episode_failed": 1}
    assert (facts.responses, facts.tokens, facts.means(1)["response_length"]) == (2, 6, 3)
    only_broken = a_graded_group(an_episodes_group(None, None), grades=[lost, lost])
    found, facts = build_samples([only_broken], grpo)
    assert (found, facts.means(1)["ungradable"], facts.groups_with_signal) == ([], 1, 0)


def test_a_group_that_says_all_tokens_are_its_own_is_trained_like_one_that_says_nothing() -> None:
    every = np.ones(10)
    one, other = (
        samples.build_samples([ScoredGroup(each, papo)], attempt=1, version=4)
        for each in (in_turns(every), without_own(in_turns(every)))
    )
    assert one[1] == other[1]
    for name, tensor in vars(collate(one[0])).items():
        assert np.array_equal(tensor, getattr(collate(other[0]), name)), name
    assert count_totals(one[0]) == count_totals(other[0])


def without_own(graded: GradedGroup) -> GradedGroup:
    assert graded.group is not None
    return graded.model_copy(update={"group": graded.group.model_copy(update={"own": None})})


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        ("grpo", [0.5, 1, 0, 1]),
        ("papo", [0.5, 1, 0, 1]),
        ("multiplicative", [0.5, 0.25, 0, math.nan]),
        ("process_only", [0.5, 0.25, 0.75, math.nan]),
    ],
)
def test_the_reward_that_is_told_is_what_the_advantage_compares(
    advantage: str, expected: list[float]
) -> None:
    of_recipe = scoring(advantage, process_for="all", overlong_buffer=4, overlong_factor=0.5)
    grades = [a_grade(1.0, 1.0), a_grade(1.0, 0.25), a_grade(0.0, 0.75), a_grade(1.0)]
    group = graded(grades, lengths=[8, 1, 1, 1])  # max_tokens is 8
    samples, facts = build_samples([group], of_recipe)
    assert [sample.reward for sample in samples] == pytest.approx(expected, nan_ok=True)
    told = [math.nan if r["reward"] is None else r["reward"] for r in rows(group, of_recipe)]
    assert told == pytest.approx(expected, nan_ok=True)
    assert facts.means(1)["reward"] == pytest.approx(np.nanmean(expected))


def test_a_judge_that_is_fooled_and_outcomes_that_are_exhausted_show_in_a_step() -> None:
    solved = [a_grade(1.0, 1.0), a_grade(1.0, 0.5)]
    groups = [
        *[graded(solved, lengths=[2, 4])] * 2,
        graded([a_grade(0.0, 1.0), a_grade(0.0, 0.5)], lengths=[8, 8]),
        graded([a_grade(1.0, 0.75), a_grade(0.0)], lengths=[3, 8]),
    ]
    told = build_samples(groups, papo)[1].means(len(groups))
    assert (told["signal"], told["outcome_exhausted"]) == (0.75, 0.75)
    assert (told["process"], told["process_wrong"]) == (0.75, 0.75)
    assert (told["length_correct"], told["length_wrong"]) == (3, 8)
    wrong = build_samples([graded([a_grade(0.0)])], papo)[1].means(1)
    assert not {"process", "process_wrong", "length_correct"} & wrong.keys()


@pytest.mark.parametrize("name", CRITIC_ADVANTAGES)
def test_where_a_critic_estimates_advantages_a_sample_has_its_reward_only(name: str) -> None:
    group = graded(RIGHT_AND_WRONG)
    with_critic = scoring(name, values=(-1.0, 1.0))
    samples, _ = build_samples([group], with_critic)
    assert [sample.advantage for sample in samples] == [0, 0]
    assert [sample.reward for sample in samples] == [1, -1]
    assert has_signal(with_critic, group)
    assert not has_signal(with_critic, graded([a_grade(1.0)] * 2))


def test_a_group_that_lost_all_but_one_response_has_no_signal_but_a_lone_response_has() -> None:
    for of_recipe in (grpo, scoring("grpo_verl"), scoring("gae")):
        for first in (None, 1.0):
            assert not has_signal(of_recipe, graded([a_grade(first), *[a_grade(None)] * 2]))
    assert has_signal(scoring("gae"), graded([a_grade(0.0)]))


def test_accuracy_is_a_signal_to_a_critic_and_only_by_its_advantage_to_a_group() -> None:
    same_process = [Grade(outcome=g, process=Graded(value=0.5)) for g in (RIGHT, WRONG)]
    assert has_signal(scoring("gae"), graded(same_process))
    assert has_signal(papo, graded(same_process))
    assert not has_signal(scoring("process_only", process_for="all"), graded(same_process))


# ---------------------------------------------------------------------- what the store says

NOW: dict[str, Any] = {"attempt": 2, "version": 7}
AT_4: dict[str, Any] = {"attempt": 1, "step": 4, "created_at": 12.5}
OF_STEP: dict[str, Any] = {"attempt": 2, "step": 7, "created_at": 12.5}


def rows(group: GradedGroup, scoring: Scoring, **tokens: Sequence[float]) -> list[Row]:
    arrays = {name: np.array(values, dtype=np.float32) for name, values in tokens.items()}
    (found,) = build_rows([ScoredGroup(group, scoring)], arrays, **OF_STEP)
    return found


def column(rows: Sequence[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_a_response_is_a_row() -> None:
    group = graded(
        [a_grade(1.0, 0.5), a_grade(0.0)], lengths=[1, 3], truncated=(1,), number=4, **NOW
    )
    found = rows(group, scoring("grpo"), logprobs=[-2.0, -1.5, -0.5, -0.75])
    of_group = {"key": "train:4", "attempt": 2, "step": 7, "fate": USED, "created_at": 12.5}
    assert all((of_group | {"task_id": "sum-1"}).items() <= row.items() for row in found)
    # The sampler's log-probs are -2, -1.5, -1 and -0.5.
    numbers = {"accuracy": [1.0, 0.0], "process": [0.5, None], "reward": [1.0, 0.0]}
    numbers |= {"length": [1, 3], "truncated": [False, True], "in_loss": [True, True]}
    numbers |= {"surprise": [2.0, 1.0], "parity_gap": [0.0, 0.5], "outcome_advantage": [None, None]}
    assert {name: column(found, name) for name in numbers} == numbers
    assert column(found, "advantage") == pytest.approx([0.707106, -0.707106], abs=1e-6)
    silent = rows(graded([a_grade(None)] * 2, lengths=[0, 1]), papo)[0]
    unknown = [silent[name] for name in ("reward", "advantage", "parity_gap")]
    assert (silent["surprise"], silent["in_loss"], unknown) == (0.0, False, [None] * 3)


@pytest.mark.parametrize("advantage", ["papo", "papo_full_norm"])
def test_papo_stores_its_two_terms_before_the_weight(advantage: str) -> None:
    group = graded([a_grade(1.0, 1.0), a_grade(1.0, 0.5), a_grade(0.0), a_grade(0.0)])
    found = rows(group, scoring(advantage, weight=0.25))
    of_outcome, of_process = (
        np.array(column(found, f"{name}_advantage")) for name in ("outcome", "process")
    )
    assert np.sign(of_outcome).tolist() == [1, 1, -1, -1]
    assert of_process[0] > of_process[1]
    assert column(found, "advantage") == pytest.approx(of_outcome + 0.25 * of_process, abs=1e-6)


def test_each_token_finds_its_response_though_some_take_no_part() -> None:
    filtering = scoring("grpo", overlong_filter=True)
    groups = [
        graded([a_grade(None), a_grade(1.0), a_grade(0.0)], lengths=[2, 1, 2]),
        graded([a_grade(1.0)] * 2, lengths=[1, 1], number=1),
        graded([a_grade(1.0), a_grade(0.0)], lengths=[2, 1], truncated=(0,), number=2),
        a_failed_group(3),
        graded([a_grade(1.0), a_grade(0.0)], lengths=[1, 1], number=4),
    ]
    scored = [ScoredGroup(group, filtering) for group in groups]
    scored[1].fate = "no_signal"
    tokens = np.arange(6, dtype=np.float32)
    first, dropped, second, failed, third = build_rows(
        scored, {"logprobs": tokens, "entropies": -tokens}, **OF_STEP
    )
    missing = math.nan
    expected = [[missing, missing, 0, 1, 2], [missing, missing, 3], [4, 5]]
    for group, values in zip((first, second, third), expected, strict=True):
        for name, sign in (("logprobs", 1), ("entropies", -1)):
            found = np.concatenate(column(group, name)) * sign
            assert found.tolist() == pytest.approx(values, nan_ok=True)
    # A filtered response has a reward, which is in its group's mean, and no advantage.
    assert column(second, "reward") == [1.0, 0.0]
    assert second[0]["advantage"] is None
    assert second[1]["advantage"] < 0
    assert [row["in_loss"] for row in second + dropped] == [False, True, False, False]
    assert column(dropped, "fate") == ["no_signal"] * 2
    assert (column(dropped, "reward"), "logprobs" in dropped[0]) == ([1, 1], False)
    assert failed[0].items() >= {"failure": "deaths: 3 workers died", "fate": "deaths"}.items()
    assert "index" not in failed[0]


def test_a_token_that_is_not_the_policys_own_has_no_numbers() -> None:
    group = in_turns()
    assert group.group is not None
    own = group.group.behavior_logprobs[OWN == 1]
    found = rows(group, grpo, logprobs=(own - 0.25).tolist())
    assert column(found, "length") == [3, 2]
    assert column(found, "surprise") == pytest.approx([-own[:3].mean(), -own[3:].mean()])
    for name in ("logprobs", "behavior_logprobs"):
        assert (np.isfinite(np.concatenate(column(found, name))) == OWN).all()
    of_version = build_rows([ScoredGroup(group, grpo)], {"logprobs": own - 0.25}, **AT_4)
    assert column(next(of_version), "parity_gap") == pytest.approx([0.25, 0.25])


def test_of_a_critic_the_advantage_is_the_mean_over_tokens() -> None:
    group = graded([a_grade(1.0), a_grade(0.0)], lengths=[2, 1])
    found = rows(group, scoring("gae"), token_advantages=[1.0, 2.0, -4.0])
    assert column(found, "advantage") == [None, None]
    assert column(found, "token_advantage") == [1.5, -4.0]


def test_an_evaluation_pays_nothing() -> None:
    grades = [a_grade(1.0), a_grade(None)]
    group = graded(grades, lengths=[1, 1], truncated=(0,), purpose=Purpose.EVAL, **NOW)
    untrained = scoring("papo", overlong_filter=True).comparison_only
    found = rows(group, untrained, logprobs=[-2.5])
    for name in ("reward", "advantage"):
        assert column(found, name) == [None, None]
    assert column(found, "accuracy") == [1.0, None]
    assert column(found, "parity_gap") == [0.5, None]
    assert column(found, "in_loss") == [False, False]
