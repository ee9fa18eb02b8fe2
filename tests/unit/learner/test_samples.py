"""A graded group becomes samples, facts of the step, and rows of the sample store."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from protocol.messages import (
    FinishReason,
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
from services.learner.training.samples import GroupFacts, Sample
from services.learner.training.scoring import ScoredGroup, Scoring
from tests.builders import (
    a_failed_group,
    a_graded_group,
    a_group,
    a_recipe,
    a_span,
    an_episodes_group,
)
from tests.unit.learner.groups import BROKEN, graded, grades

RIGHT_AND_WRONG = grades([1, 0])
HALF = 0.707106  # the advantage of the right one of two


def scoring(advantage: str, weight: float = 1.0, **reward: Any) -> Scoring:
    critic = {} if advantage in CRITIC_ADVANTAGES else None
    algorithm = {"advantage": advantage}
    if "papo" in advantage:
        algorithm |= {"lambda_process": weight}
    return Scoring.of(
        a_recipe(
            algorithm=algorithm,
            reward=reward,
            critic=critic,
        )
    )


grpo = scoring("grpo")
papo = scoring("papo")


def responses_of(*spans: tuple[VersionSpan, ...]) -> list[Response]:
    return [
        Response(
            text="",
            finish_reason=FinishReason.STOP,
            spans=each,
        )
        for each in spans
    ]


def build_samples(
    groups: Sequence[GradedGroup], scoring: Scoring, *, attempt: int = 1, **step_fields: Any
) -> tuple[list[Sample], GroupFacts]:
    scored = [ScoredGroup(group, scoring) for group in groups]
    return samples.build_samples(
        scored,
        attempt=attempt,
        **{"version": 0, **step_fields},
    )


def advantages(samples: Sequence[Sample]) -> list[float]:
    return [sample.advantage for sample in samples]


def test_every_sampled_token_is_trained_or_dropped_for_a_reason() -> None:
    tables = {"reward": {"overlong_filter": True}}
    group = graded(1, 0, None, 1, lengths=[1, 2, 4, 8], truncated=[3])
    scored = ScoredGroup(group, Scoring.of(a_recipe(**tables)))
    assert scored.count_tokens() == {
        "sampled": 15,
        "judged": 11,
        "trained": 3,
        "dropped/ungradable": 4,
        "dropped/filtered": 8,
    }
    scored.fate = "no_signal"
    assert scored.count_tokens() == {"sampled": 15, "judged": 11, "dropped/no_signal": 15}


def test_each_graded_response_becomes_a_sample_with_its_advantage() -> None:
    group = graded(1, None, 0)
    samples, facts = build_samples([group], grpo)
    assert advantages(samples) == pytest.approx([HALF, -HALF], abs=1e-6)
    assert group.group is not None
    assert np.array_equal(samples[1].token_ids, group.group.token_ids[6:9])
    assert (facts.responses, facts.correct, facts.tokens) == (2, 1, 6)
    assert facts.groups_with_signal == 1
    assert facts.dropped_responses == {"gold_not_parsable": 1}


def test_a_step_scales_the_advantages_of_all_its_groups_at_once() -> None:
    groups = [
        graded(1, 0),
        graded(1, None, 1, number=1),
        graded(1, 0, 0, 0, number=2),
    ]
    batch = scoring("grpo_batch")
    std = statistics.stdev([1, 0, 1, 1, 1, 0, 0, 0]) + 1e-4
    samples, facts = build_samples(groups, batch)
    expected = [
        0.5 / std,
        -0.5 / std,
        0,
        0,
        0.75 / std,
        *[-0.25 / std] * 3,
    ]
    assert advantages(samples) == pytest.approx(expected)
    assert facts.groups_with_signal == 2
    assert build_samples([], batch)[0] == []
    assert advantages(build_samples([graded(1, None)], batch)[0]) == [0]


def test_gdpo_compares_each_check_by_itself_and_normalizes_the_step() -> None:
    outcome = [
        {"verifier": "math_answer", "weight": 2.0},
        {"verifier": "string_check"},
    ]
    right = Graded(
        value=0.5,
        breakdown={"math_answer": 1, "string_check": 0},
    )
    wrong = Graded(value=0.25, breakdown={"string_check": 1})  # the other check was left out
    group = graded(right, wrong, process=[0.75], lengths=[3, 8])
    by_check = scoring(
        "gdpo",
        outcome=outcome,
        overlong_buffer=4,
        overlong_factor=0.5,
    )
    scores = ScoredGroup(group, by_check).scores
    values, weights = zip(*scores.checks, strict=True)
    assert (weights, scores.penalty_weight) == ((2, 1, 1), 0.5)
    expected = [
        [1, math.nan],
        [0, 1],
        [0.75, math.nan],
    ]
    assert np.array_equal(np.array(values), expected, equal_nan=True)
    step = advantages(build_samples([group, group], by_check)[0])
    assert (statistics.mean(step), statistics.stdev(step)) == pytest.approx((0, 1), abs=1e-3)
    names = ["math_answer", "string_check"]
    by_formula = scoring(
        "gdpo",
        outcome=names,
        formula="math_answer * string_check",
    )
    (values, _), _ = ScoredGroup(group, by_formula).scores.checks
    assert values.tolist() == [0.5, 0.25]


def test_a_missing_process_score_is_no_zero() -> None:
    group = graded(
        1,
        1,
        1,
        process=[1, 0.5, Ungradable(reason="timeout")],
    )
    samples, facts = build_samples([group], papo)
    assert advantages(samples) == pytest.approx([HALF, -HALF, 0], abs=1e-5)
    assert (facts.process, facts.ungradable_process) == ([1.0, 0.5], 1)


@pytest.mark.parametrize(("attempt", "version"), [(1, 4), (1, 6), (2, 4)])
def test_only_tokens_of_the_learners_own_version_count_for_parity(
    attempt: int, version: int
) -> None:
    group = graded(1, version=4)
    (sample,), facts = build_samples(
        [group],
        grpo,
        attempt=attempt,
        version=version,
    )
    assert sample.on_version.tolist() == [(attempt, version) == (1, 4)] * 3
    assert facts.staleness_max == facts.means(1)["staleness"] == version - 4


def test_after_a_sync_that_kept_the_cache_only_whole_responses_count_for_parity() -> None:
    interrupted = (
        a_span(1, 3),
        VersionSpan(
            attempt=1,
            version=4,
            start=1,
            end=3,
        ),
    )
    responses = responses_of(interrupted, (a_span(3, 4),))
    group = a_graded_group(
        a_group(lengths=[3, 3], responses=responses),
        grades=RIGHT_AND_WRONG,
    )
    for kept_kv, expected in ((False, [0, 1, 1]), (True, [0, 0, 0])):
        (first, second), _ = build_samples(
            [group],
            grpo,
            version=4,
            kept_kv=kept_kv,
        )
        assert first.on_version.tolist() == expected
        assert second.on_version.tolist() == [1, 1, 1]


def test_a_truncated_response_can_be_left_out_of_the_loss_but_not_of_the_statistics() -> None:
    filtering = scoring("grpo", overlong_filter=True)
    (sample,), facts = build_samples([graded(1, 0, truncated=[1])], filtering)
    assert sample.advantage == pytest.approx(HALF, abs=1e-6)
    assert (facts.responses, facts.truncated, facts.filtered) == (2, 1, 1)
    assert facts.means(1)["filtered"] == 0.5
    truncated = graded(1, 0, truncated=[0, 1])
    samples, facts = build_samples([truncated], filtering)
    assert (samples, facts.filtered, facts.tokens) == ([], 2, 6)
    for plain in (grpo, filtering.comparison_only):
        samples, facts = build_samples([truncated], plain)
        assert (len(samples), facts.filtered) == (2, 0)
    assert advantages(samples) == [0, 0]


def test_a_shaped_reward_does_not_decide_what_is_correct() -> None:
    shaped = scoring(
        "papo",
        overlong_buffer=8,
        values=(-1.0, 1.0),
    )
    samples, facts = build_samples([graded(1, 0, lengths=[8, 1])], shaped)
    assert [(s.correct, s.reward) for s in samples] == [(True, 0.0), (False, -1.125)]
    assert facts.correct == 1


POLICY_MASK = np.array([1, 1, 0, 0, 1, 0, 0, 1, 1, 0])


def a_turns_group() -> GradedGroup:
    """Responses of 6 and 4 tokens, 3 and 2 of them by the policy, in two versions."""
    turns = (
        a_span(4, 3),
        VersionSpan(
            attempt=1,
            version=4,
            start=4,
            end=6,
        ),
    )
    responses = responses_of(turns, (a_span(4, 4),))
    group = a_group(
        lengths=[6, 4],
        responses=responses,
        own=POLICY_MASK,
    )
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
    episodes = an_episodes_group(1.0, None, 0.0)
    group = a_graded_group(episodes, grades=grades([1, BROKEN, 0]))
    samples, facts = build_samples([group], grpo)
    assert advantages(samples) == pytest.approx([HALF, -HALF], abs=1e-6)
    assert facts.dropped_responses == {"episode_failed": 1}
    assert (facts.responses, facts.tokens, facts.means(1)["response_length"]) == (2, 6, 3)
    episodes = an_episodes_group(None, None)
    only_broken = a_graded_group(
        episodes,
        grades=grades([BROKEN, BROKEN]),
    )
    samples, facts = build_samples([only_broken], grpo)
    assert (samples, facts.means(1)["ungradable"], facts.groups_with_signal) == ([], 1, 0)


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
    shaped = scoring(
        advantage,
        process_for="all",
        overlong_buffer=4,
        overlong_factor=0.5,
    )
    # max_tokens is 8
    group = graded(
        1,
        1,
        0,
        1,
        process=[1, 0.25, 0.75],
        lengths=[8, 1, 1, 1],
    )
    samples, facts = build_samples([group], shaped)
    assert [sample.reward for sample in samples] == pytest.approx(expected, nan_ok=True)
    stored = np.array(
        column(rows(group, shaped), "reward"),
        dtype=float,
    )
    assert stored.tolist() == pytest.approx(expected, nan_ok=True)
    assert facts.means(1)["reward"] == pytest.approx(np.nanmean(expected))


def test_a_judge_that_is_fooled_and_outcomes_that_are_exhausted_show_in_a_step() -> None:
    groups = [
        *[graded(1, 1, process=[1, 0.5], lengths=[2, 4])] * 2,
        graded(0, 0, process=[1, 0.5], lengths=[8, 8]),
        graded(1, 0, process=[0.75], lengths=[3, 8]),
    ]
    means = build_samples(groups, papo)[1].means(len(groups))
    expected = {
        "signal": 0.75,
        "outcome_exhausted": 0.75,
        "process": 0.75,
        "process_wrong": 0.75,
        "length_correct": 3,
        "length_wrong": 8,
    }
    assert means | expected == means
    wrong = build_samples([graded(0)], papo)[1].means(1)
    assert not {"process", "process_wrong", "length_correct"} & wrong.keys()


@pytest.mark.parametrize("name", CRITIC_ADVANTAGES)
def test_with_a_critic_a_sample_has_only_its_reward(name: str) -> None:
    samples, _ = build_samples(
        [graded(1, 0)],
        scoring(name, values=(-1.0, 1.0)),
    )
    assert advantages(samples) == [0, 0]
    assert [sample.reward for sample in samples] == [1, -1]


@pytest.mark.parametrize(
    ("advantage", "outcomes", "expected"),
    [
        ("grpo_verl", [1, None, None], False),
        ("grpo", [None, None], False),
        ("gae", [1, None, None], False),
        ("gae", [1, 1], False),
        ("gae", [0], True),
        ("papo", [1, 0], True),
        ("process_only", [1, 0], False),
    ],
)
def test_a_group_has_a_signal_if_its_advantages_differ_or_a_critic_can_learn(
    advantage: str, outcomes: list[float | None], *, expected: bool
) -> None:
    reward: dict[str, Any] = {}
    if advantage == "process_only":
        reward["process_for"] = "all"
    group = graded(*outcomes, process=[0.5] * len(outcomes))
    assert ScoredGroup(group, scoring(advantage, **reward)).has_signal is expected


# ---------------------------------------------------------------------- rows of the store

STEP: dict[str, Any] = {
    "attempt": 1,
    "step": 4,
    "created_at": 12.5,
}


def rows(group: GradedGroup, scoring: Scoring, **tokens: Sequence[float]) -> list[Row]:
    arrays = {name: np.array(values, dtype=np.float32) for name, values in tokens.items()}
    (group_rows,) = build_rows(
        [ScoredGroup(group, scoring)],
        arrays,
        **STEP,
    )
    return group_rows


def column(rows: Sequence[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_a_response_is_a_row() -> None:
    group = graded(
        1,
        0,
        process=[0.5],
        lengths=[1, 3],
        truncated=[1],
        number=7,
        version=4,
    )
    stored = rows(group, grpo, logprobs=[-2.0, -1.5, -0.5, -0.75])
    fields = STEP | {
        "key": "train:7",
        "fate": USED,
        "task_id": "sum-1",
    }
    assert all(fields.items() <= row.items() for row in stored)
    # The sampler's log-probs are -2, -1.5, -1 and -0.5.
    expected = {
        "accuracy": [1.0, 0.0],
        "process": [0.5, None],
        "reward": [1.0, 0.0],
        "length": [1, 3],
        "truncated": [False, True],
        "in_loss": [True, True],
        "surprise": [2.0, 1.0],
        "parity_gap": [0.0, 0.5],
        "outcome_advantage": [None, None],
    }
    assert {name: column(stored, name) for name in expected} == expected
    assert column(stored, "advantage") == pytest.approx([HALF, -HALF], abs=1e-6)
    silent = rows(graded(None, None, lengths=[0, 1]), papo)[0]
    unknown = [silent[name] for name in ("reward", "advantage", "parity_gap")]
    assert (silent["surprise"], silent["in_loss"], unknown) == (0.0, False, [None] * 3)


@pytest.mark.parametrize("advantage", ["papo", "papo_full_norm"])
def test_papo_stores_its_two_terms_before_the_weight(advantage: str) -> None:
    stored = rows(
        graded(1, 1, 0, 0, process=[1, 0.5]),
        scoring(advantage, weight=0.25),
    )
    outcome = np.array(column(stored, "outcome_advantage"))
    process = np.array(column(stored, "process_advantage"))
    assert np.sign(outcome).tolist() == [1, 1, -1, -1]
    assert process[0] > process[1]
    assert column(stored, "advantage") == pytest.approx(outcome + 0.25 * process, abs=1e-6)


def test_each_token_finds_its_response_though_some_take_no_part() -> None:
    filtering = scoring("grpo", overlong_filter=True)
    groups = [
        graded(None, 1, 0, lengths=[2, 1, 2]),
        graded(1, 1, lengths=[1, 1], number=1),
        graded(1, 0, lengths=[2, 1], truncated=[0], number=2),
        a_failed_group(3),
        graded(1, 0, lengths=[1, 1], number=4),
    ]
    scored = [ScoredGroup(group, filtering) for group in groups]
    scored[1].fate = "no_signal"
    tokens = {"logprobs": np.arange(6, dtype=np.float32)}
    first, dropped, second, failed, third = build_rows(scored, tokens, **STEP)
    expected = [[math.nan, math.nan, 0, 1, 2], [math.nan, math.nan, 3], [4, 5]]
    for group, values in zip((first, second, third), expected, strict=True):
        stored = np.concatenate(column(group, "logprobs"))
        assert stored.tolist() == pytest.approx(values, nan_ok=True)
    # A filtered response has a reward, which is in its group's mean, and no advantage.
    assert column(second, "reward") == [1.0, 0.0]
    assert second[0]["advantage"] is None
    assert second[1]["advantage"] < 0
    assert column(second + dropped, "in_loss") == [False, True, False, False]
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
    assert column(stored, "parity_gap") == pytest.approx([0.25, 0.25])


def test_the_advantage_from_a_critic_is_the_mean_over_tokens() -> None:
    group = graded(1, 0, lengths=[2, 1])
    stored = rows(
        group,
        scoring("gae"),
        token_advantages=[1.0, 2.0, -4.0],
    )
    assert column(stored, "advantage") == [None, None]
    assert column(stored, "token_advantage") == [1.5, -4.0]


def test_an_evaluation_pays_nothing() -> None:
    group = graded(
        1,
        None,
        lengths=[1, 1],
        truncated=[0],
        purpose=Purpose.EVAL,
        version=4,
    )
    untrained = scoring("papo", overlong_filter=True).comparison_only
    stored = rows(group, untrained, logprobs=[-2.5])
    expected = {
        "reward": [None, None],
        "advantage": [None, None],
        "accuracy": [1.0, None],
        "parity_gap": [0.5, None],
        "in_loss": [False, False],
    }
    assert {name: column(stored, name) for name in expected} == expected
