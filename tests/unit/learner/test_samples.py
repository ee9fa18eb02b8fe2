"""A graded group becomes samples, facts of the step, and rows of the sample store."""

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

RIGHT = Graded(value=1)
WRONG = Graded(value=0, reason="wrong")
RIGHT_AND_WRONG = [Grade(outcome=RIGHT), Grade(outcome=WRONG)]
LOST = Ungradable(reason="gold_not_parsable")
HALF = 0.707106  # the advantage of the right one of two


def scoring(advantage: str, weight: float = 1.0, **reward: Any) -> Scoring:
    critic = {} if advantage in CRITIC_ADVANTAGES else None
    algorithm = {"advantage": advantage}
    if "papo" in advantage:
        algorithm |= {"lambda_process": weight}
    return Scoring.of(a_recipe(algorithm=algorithm, reward=reward, critic=critic))


grpo = scoring("grpo")
papo = scoring("papo")


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
    **request_fields: Any,
) -> GradedGroup:
    request = a_request(group_size=len(grades), **request_fields)
    group = a_group(request, lengths or [3] * len(grades), version=version)
    cut = {"finish_reason": FinishReason.LENGTH}
    responses = tuple(
        response.model_copy(update=cut if index in truncated else {})
        for index, response in enumerate(group.responses)
    )
    return a_graded_group(group.model_copy(update={"responses": responses}), grades=grades)


def build_samples(
    groups: Sequence[GradedGroup], scoring: Scoring, *, attempt: int = 1, **step_fields: Any
) -> tuple[list[Sample], GroupFacts]:
    scored = [ScoredGroup(group, scoring) for group in groups]
    return samples.build_samples(scored, attempt=attempt, **{"version": 0, **step_fields})


def has_signal(scoring: Scoring, group: GradedGroup) -> bool:
    return ScoredGroup(group, scoring).has_signal


def advantages(samples: Sequence[Sample]) -> list[float]:
    return [sample.advantage for sample in samples]


def test_each_graded_response_becomes_a_sample_with_its_advantage() -> None:
    group = graded([a_grade(1.0), a_grade(None), a_grade(0.0)])
    samples, facts = build_samples([group], grpo)
    assert advantages(samples) == pytest.approx([HALF, -HALF], abs=1e-6)
    assert group.group is not None
    assert np.array_equal(samples[1].token_ids, group.group.token_ids[6:9])
    assert (facts.responses, facts.correct, facts.tokens) == (2, 1, 6)
    assert facts.groups_with_signal == 1
    assert facts.dropped_responses == {"gold_not_parsable": 1}


def test_a_step_scales_the_advantages_of_all_its_groups_at_once() -> None:
    groups = [
        graded([a_grade(1.0), a_grade(0.0)]),
        graded([a_grade(1.0), a_grade(None), a_grade(1.0)], number=1),
        graded([a_grade(1.0), *[a_grade(0.0)] * 3], number=2),
    ]
    batch = scoring("grpo_batch")
    std = statistics.stdev([1, 0, 1, 1, 1, 0, 0, 0]) + 1e-4
    samples, facts = build_samples(groups, batch)
    expected = [0.5 / std, -0.5 / std, 0, 0, 0.75 / std, *[-0.25 / std] * 3]
    assert advantages(samples) == pytest.approx(expected)
    assert facts.groups_with_signal == 2
    assert build_samples([], batch)[0] == []
    samples, _ = build_samples([graded([a_grade(1.0), a_grade(None)])], batch)
    assert advantages(samples) == [0]


def test_gdpo_compares_each_check_by_itself_and_normalizes_the_step() -> None:
    outcome = [{"verifier": "math_answer", "weight": 2.0}, {"verifier": "string_check"}]
    reward = {"outcome": outcome, "overlong_buffer": 4, "overlong_factor": 0.5}
    right = Graded(value=0.5, breakdown={"math_answer": 1, "string_check": 0})
    wrong = Graded(value=0.25, breakdown={"string_check": 1})  # the other check was left out
    groups = [
        graded([Grade(outcome=right, process=Graded(value=0.75)), Grade(outcome=wrong)]),
        graded([Grade(outcome=outcome) for outcome in (right, wrong, wrong)], lengths=[3, 8, 3]),
    ]
    by_check = scoring("gdpo", **reward)
    scores = ScoredGroup(groups[0], by_check).scores
    assert [weight for _, weight in scores.checks] == [2, 1, 1]
    expected = [[1, math.nan], [0, 1], [0.75, math.nan]]
    for (values, _), check_values in zip(scores.checks, expected, strict=True):
        assert values.tolist() == pytest.approx(check_values, nan_ok=True)
    assert scores.penalty_weight == 0.5
    outcome = ["math_answer", "string_check"]
    by_formula = scoring("gdpo", outcome=outcome, formula="math_answer * string_check")
    (values, _), _ = ScoredGroup(groups[0], by_formula).scores.checks
    assert values.tolist() == [0.5, 0.25]
    step = advantages(build_samples(groups, by_check)[0])
    assert statistics.mean(step) == pytest.approx(0)
    assert statistics.stdev(step) == pytest.approx(1, abs=1e-3)


def test_a_missing_process_score_is_no_zero() -> None:
    lost = Grade(outcome=RIGHT, process=Ungradable(reason="timeout"))
    samples, facts = build_samples([graded([a_grade(1.0, 1.0), a_grade(1.0, 0.5), lost])], papo)
    assert advantages(samples) == pytest.approx([HALF, -HALF, 0], abs=1e-5)
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
    filtering = scoring("grpo", overlong_filter=True)
    (sample,), facts = build_samples([graded(RIGHT_AND_WRONG, truncated=(1,))], filtering)
    assert sample.advantage == pytest.approx(HALF, abs=1e-6)
    assert (facts.responses, facts.truncated, facts.filtered) == (2, 1, 1)
    assert facts.means(1)["filtered"] == 0.5
    truncated = graded(RIGHT_AND_WRONG, truncated=(0, 1))
    samples, facts = build_samples([truncated], filtering)
    assert (samples, facts.filtered, facts.tokens) == ([], 2, 6)
    for plain in (grpo, filtering.comparison_only):
        samples, facts = build_samples([truncated], plain)
        assert (len(samples), facts.filtered) == (2, 0)
    assert advantages(samples) == [0, 0]


def test_an_overlong_response_pays_but_its_group_gains_no_signal() -> None:
    shaped = scoring("grpo", overlong_buffer=4, overlong_factor=0.5)  # max_tokens is 8
    samples, facts = build_samples([graded([Grade(outcome=WRONG)] * 2, lengths=[4, 8])], shaped)
    assert [sample.reward for sample in samples] == pytest.approx([0, -0.5])
    assert samples[0].advantage > 0 > samples[1].advantage
    assert facts.groups_with_signal == 0
    assert has_signal(shaped, graded(RIGHT_AND_WRONG, lengths=[8, 4]))


def test_weights_that_add_up_to_1_but_for_rounding_make_a_right_response() -> None:
    group = graded([a_grade(0.7 + 0.2 + 0.1, 1), a_grade(1, 0), a_grade(1 - 1e-8)])
    samples, facts = build_samples([group], papo)
    assert [sample.correct for sample in samples] == [True, True, False]
    assert (facts.correct, facts.process) == (2, [1, 0])


def test_a_shaped_reward_does_not_decide_what_is_correct() -> None:
    shaped = scoring("papo", overlong_buffer=8, values=(-1.0, 1.0))
    samples, facts = build_samples([graded(RIGHT_AND_WRONG, lengths=[8, 1])], shaped)
    assert [(s.correct, s.reward) for s in samples] == [(True, 0.0), (False, -1.125)]
    assert facts.correct == 1


POLICY_MASK = np.array([1, 1, 0, 0, 1, 0, 0, 1, 1, 0])


def a_turns_group(policy_mask: np.ndarray = POLICY_MASK) -> GradedGroup:
    """Responses of 6 and 4 tokens, 3 and 2 of them by the policy, in two versions."""
    responses = [
        Response(text="", finish_reason=FinishReason.STOP, spans=spans)
        for spans in (
            (a_span(4, 3), VersionSpan(attempt=1, version=4, start=4, end=6)),
            (a_span(4, 4),),
        )
    ]
    group = a_group(lengths=[6, 4], responses=responses, own=policy_mask)
    return a_graded_group(group, grades=RIGHT_AND_WRONG)


def test_tokens_of_tools_are_neither_trained_nor_counted() -> None:
    group = a_turns_group()
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
    samples, facts = build_samples([with_broken], grpo)
    assert advantages(samples) == advantages(build_samples([whole], grpo)[0])
    assert facts.dropped_responses == {"episode_failed": 1}
    assert (facts.responses, facts.tokens, facts.means(1)["response_length"]) == (2, 6, 3)
    only_broken = a_graded_group(an_episodes_group(None, None), grades=[lost, lost])
    samples, facts = build_samples([only_broken], grpo)
    assert (samples, facts.means(1)["ungradable"], facts.groups_with_signal) == ([], 1, 0)


def test_a_mask_of_only_policy_tokens_changes_nothing() -> None:
    masked = a_turns_group(np.ones(10))
    assert masked.group is not None
    plain = masked.model_copy(update={"group": masked.group.model_copy(update={"own": None})})
    (masked_samples, masked_facts), (plain_samples, plain_facts) = (
        build_samples([group], papo, version=4) for group in (masked, plain)
    )
    assert masked_facts == plain_facts
    plain_batch = vars(collate(plain_samples))
    for name, tensor in vars(collate(masked_samples)).items():
        assert np.array_equal(tensor, plain_batch[name]), name
    assert count_totals(masked_samples) == count_totals(plain_samples)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        ("grpo", [0.5, 1, 0, 1]),
        ("papo", [0.5, 1, 0, 1]),
        ("multiplicative", [0.5, 0.25, 0, math.nan]),
        ("process_only", [0.5, 0.25, 0.75, math.nan]),
    ],
)
def test_the_reward_is_what_the_advantage_compares(advantage: str, expected: list[float]) -> None:
    shaped = scoring(advantage, process_for="all", overlong_buffer=4, overlong_factor=0.5)
    grades = [a_grade(1.0, 1.0), a_grade(1.0, 0.25), a_grade(0.0, 0.75), a_grade(1.0)]
    group = graded(grades, lengths=[8, 1, 1, 1])  # max_tokens is 8
    samples, facts = build_samples([group], shaped)
    assert [sample.reward for sample in samples] == pytest.approx(expected, nan_ok=True)
    stored = np.array(column(rows(group, shaped), "reward"), dtype=float)
    assert stored.tolist() == pytest.approx(expected, nan_ok=True)
    assert facts.means(1)["reward"] == pytest.approx(np.nanmean(expected))


def test_a_judge_that_is_fooled_and_outcomes_that_are_exhausted_show_in_a_step() -> None:
    solved = [a_grade(1.0, 1.0), a_grade(1.0, 0.5)]
    groups = [
        *[graded(solved, lengths=[2, 4])] * 2,
        graded([a_grade(0.0, 1.0), a_grade(0.0, 0.5)], lengths=[8, 8]),
        graded([a_grade(1.0, 0.75), a_grade(0.0)], lengths=[3, 8]),
    ]
    means = build_samples(groups, papo)[1].means(len(groups))
    assert (means["signal"], means["outcome_exhausted"]) == (0.75, 0.75)
    assert (means["process"], means["process_wrong"]) == (0.75, 0.75)
    assert (means["length_correct"], means["length_wrong"]) == (3, 8)
    wrong = build_samples([graded([a_grade(0.0)])], papo)[1].means(1)
    assert not {"process", "process_wrong", "length_correct"} & wrong.keys()


@pytest.mark.parametrize("name", CRITIC_ADVANTAGES)
def test_with_a_critic_a_sample_has_only_its_reward(name: str) -> None:
    samples, _ = build_samples([graded(RIGHT_AND_WRONG)], scoring(name, values=(-1.0, 1.0)))
    assert advantages(samples) == [0, 0]
    assert [sample.reward for sample in samples] == [1, -1]


@pytest.mark.parametrize(
    ("advantage", "outcomes", "expected"),
    [
        ("grpo", [1.0, None, None], False),
        ("grpo_verl", [1.0, None, None], False),
        ("grpo", [None, None], False),
        ("gae", [1.0, None, None], False),
        ("gae", [1.0, 1.0], False),
        ("gae", [0.0], True),
        ("gae", [1.0, 0.0], True),
        ("papo", [1.0, 0.0], True),
        ("process_only", [1.0, 0.0], False),
    ],
)
def test_a_group_has_a_signal_if_its_advantages_differ_or_a_critic_can_learn(
    advantage: str, outcomes: list[float | None], *, expected: bool
) -> None:
    reward: dict[str, Any] = {}
    if advantage == "process_only":
        reward["process_for"] = "all"
    group = graded([a_grade(outcome, 0.5) for outcome in outcomes])
    assert has_signal(scoring(advantage, **reward), group) is expected


# ---------------------------------------------------------------------- rows of the store

NOW: dict[str, Any] = {"attempt": 2, "version": 7}
STEP_4: dict[str, Any] = {"attempt": 1, "step": 4, "created_at": 12.5}
STEP: dict[str, Any] = {"attempt": 2, "step": 7, "created_at": 12.5}


def rows(group: GradedGroup, scoring: Scoring, **tokens: Sequence[float]) -> list[Row]:
    arrays = {name: np.array(values, dtype=np.float32) for name, values in tokens.items()}
    (group_rows,) = build_rows([ScoredGroup(group, scoring)], arrays, **STEP)
    return group_rows


def column(rows: Sequence[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_a_response_is_a_row() -> None:
    group = graded(
        [a_grade(1.0, 0.5), a_grade(0.0)], lengths=[1, 3], truncated=(1,), number=4, **NOW
    )
    stored = rows(group, scoring("grpo"), logprobs=[-2.0, -1.5, -0.5, -0.75])
    fields = {"key": "train:4", "attempt": 2, "step": 7, "fate": USED, "created_at": 12.5}
    assert all((fields | {"task_id": "sum-1"}).items() <= row.items() for row in stored)
    # The sampler's log-probs are -2, -1.5, -1 and -0.5.
    numbers = {"accuracy": [1.0, 0.0], "process": [0.5, None], "reward": [1.0, 0.0]}
    numbers |= {"length": [1, 3], "truncated": [False, True], "in_loss": [True, True]}
    numbers |= {"surprise": [2.0, 1.0], "parity_gap": [0.0, 0.5], "outcome_advantage": [None, None]}
    assert {name: column(stored, name) for name in numbers} == numbers
    assert column(stored, "advantage") == pytest.approx([HALF, -HALF], abs=1e-6)
    silent = rows(graded([a_grade(None)] * 2, lengths=[0, 1]), papo)[0]
    unknown = [silent[name] for name in ("reward", "advantage", "parity_gap")]
    assert (silent["surprise"], silent["in_loss"], unknown) == (0.0, False, [None] * 3)


@pytest.mark.parametrize("advantage", ["papo", "papo_full_norm"])
def test_papo_stores_its_two_terms_before_the_weight(advantage: str) -> None:
    group = graded([a_grade(1.0, 1.0), a_grade(1.0, 0.5), a_grade(0.0), a_grade(0.0)])
    stored = rows(group, scoring(advantage, weight=0.25))
    outcome = np.array(column(stored, "outcome_advantage"))
    process = np.array(column(stored, "process_advantage"))
    assert np.sign(outcome).tolist() == [1, 1, -1, -1]
    assert process[0] > process[1]
    assert column(stored, "advantage") == pytest.approx(outcome + 0.25 * process, abs=1e-6)


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
        scored, {"logprobs": tokens, "entropies": -tokens}, **STEP
    )
    expected = [[math.nan, math.nan, 0, 1, 2], [math.nan, math.nan, 3], [4, 5]]
    for group, values in zip((first, second, third), expected, strict=True):
        for name, sign in (("logprobs", 1), ("entropies", -1)):
            stored = np.concatenate(column(group, name)) * sign
            assert stored.tolist() == pytest.approx(values, nan_ok=True)
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
    group = a_turns_group()
    assert group.group is not None
    behavior = group.group.behavior_logprobs[POLICY_MASK == 1]
    stored = rows(group, grpo, logprobs=(behavior - 0.25).tolist())
    assert column(stored, "length") == [3, 2]
    surprise = [-behavior[:3].mean(), -behavior[3:].mean()]
    assert column(stored, "surprise") == pytest.approx(surprise)
    for name in ("logprobs", "behavior_logprobs"):
        assert (np.isfinite(np.concatenate(column(stored, name))) == POLICY_MASK).all()
    on_version = build_rows([ScoredGroup(group, grpo)], {"logprobs": behavior - 0.25}, **STEP_4)
    assert column(next(on_version), "parity_gap") == pytest.approx([0.25, 0.25])


def test_the_advantage_from_a_critic_is_the_mean_over_tokens() -> None:
    group = graded([a_grade(1.0), a_grade(0.0)], lengths=[2, 1])
    stored = rows(group, scoring("gae"), token_advantages=[1.0, 2.0, -4.0])
    assert column(stored, "advantage") == [None, None]
    assert column(stored, "token_advantage") == [1.5, -4.0]


def test_an_evaluation_pays_nothing() -> None:
    grades = [a_grade(1.0), a_grade(None)]
    group = graded(grades, lengths=[1, 1], truncated=(0,), purpose=Purpose.EVAL, **NOW)
    untrained = scoring("papo", overlong_filter=True).comparison_only
    stored = rows(group, untrained, logprobs=[-2.5])
    expected = {"reward": [None, None], "advantage": [None, None], "accuracy": [1.0, None]}
    expected |= {"parity_gap": [0.5, None], "in_loss": [False, False]}
    assert {name: column(stored, name) for name in expected} == expected
