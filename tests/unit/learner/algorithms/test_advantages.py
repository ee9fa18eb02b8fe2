"""How each advantage behaves: under a permutation, a shift, a scale, and at its edges."""

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.learner.algorithms.advantages import (
    ADVANTAGES,
    EPS,
    TRL_EPS,
    GroupScores,
    centered,
    grpo,
    multiplicative,
    papo,
    papo_full_norm,
    process_only,
    standardized,
)
from tests.unit.learner.algorithms.groups import SCORES, groups, scores
from tests.unit.learner.algorithms.random_cases import double, scores_of
from tests.unit.learner.algorithms.reference import Group

ZERO_ALONE = ("grpo", "grpo_trl", "dr_grpo", "rloo", "papo", "papo_full_norm")
OF_THE_REWARD = ("grpo", "grpo_trl", "grpo_verl", "dr_grpo", "rloo", "papo", "papo_full_norm")
LINEAR = ("dr_grpo", "rloo")
ALONE_AS_VERL = 1 / (1 + 1e-6)

every_advantage = pytest.mark.parametrize("name", ADVANTAGES)


def process_part(group: Group) -> Tensor:
    found = scores_of(group)
    return papo(found) - papo(found, lambda_process=0.0)


def assert_same(one: Tensor, other: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(one, other, atol=atol, rtol=0)


def picked(group: Group, places: list[int]) -> Group:
    return Group(*([values[i] for i in places] for values in vars(group).values()))


@every_advantage
@given(groups(), st.randoms())
def test_a_permutation_of_the_group_permutes_its_advantages(
    name: str, group: Group, random
) -> None:
    order = list(range(len(group.outcome)))
    random.shuffle(order)
    permuted = ADVANTAGES[name](scores_of(picked(group, order)))
    assert_same(permuted, ADVANTAGES[name](scores_of(group))[order])


@pytest.mark.parametrize("name", OF_THE_REWARD)
@given(groups(min_size=2), st.floats(-2, 2))
def test_paying_everyone_more_changes_nothing(name: str, group: Group, extra: float) -> None:
    paid = scores_of(group)
    more = dataclasses.replace(paid, outcome=paid.outcome + extra)
    assert_same(ADVANTAGES[name](more), ADVANTAGES[name](paid), atol=1e-7)


@pytest.mark.parametrize("name", ["papo", "process_only"])
@given(groups(min_size=2, process=SCORES), st.floats(-2, 2))
def test_judging_everyone_better_changes_nothing(name: str, group: Group, extra: float) -> None:
    judged = scores_of(group)
    better = dataclasses.replace(judged, process=judged.process + extra)
    assert_same(ADVANTAGES[name](better), ADVANTAGES[name](judged), atol=1e-7)


@every_advantage
@given(groups(min_size=2), st.sampled_from([0.25, 3.0, 10.0]))
def test_a_scale_of_the_rewards_scales_only_what_is_not_standardized(
    name: str, group: Group, factor: float
) -> None:
    paid = scores_of(group)
    scaled = dataclasses.replace(
        paid,
        outcome=paid.outcome * factor,
        penalty=paid.penalty * factor,
        process=paid.process * (factor if name == "process_only" else 1),
    )
    expected = ADVANTAGES[name](paid) * (factor if name in LINEAR else 1)
    # Only the eps beside a std does not scale; no group here has a std below 0.003.
    eps = TRL_EPS if name == "grpo_trl" else EPS
    assert_same(ADVANTAGES[name](scaled), expected, atol=2000 * eps)


@given(groups(), st.sampled_from([0, 1]), st.sampled_from(["add", "max", "none"]))
def test_process_advantages_sum_to_zero_over_the_correct(
    group: Group, ddof: int, denominator: str
) -> None:
    found = scores_of(group)
    formula = partial(papo, ddof=ddof, denominator=denominator)
    part = formula(found) - formula(found, lambda_process=0.0)
    assert not part[~found.correct].any()
    assert abs(part.sum().item()) <= 1e-9


@given(groups(), st.data())
def test_a_wrong_answer_never_changes_the_process_advantages(
    group: Group, data: st.DataObject
) -> None:
    correct = [i for i, right in enumerate(group.correct) if right]
    anything = data.draw(groups(max_size=5))
    wrong = dataclasses.replace(
        anything, correct=[False] * len(anything.correct), outcome=[0.0] * len(anything.outcome)
    )
    joined = Group(
        *(a + b for a, b in zip(vars(group).values(), vars(wrong).values(), strict=True))
    )
    assert_same(process_part(joined)[: len(group.outcome)], process_part(group))
    assert_same(process_part(picked(group, correct)), process_part(group)[correct])


@given(groups(min_size=2))
def test_a_missing_process_score_leaves_only_the_process_statistics(group: Group) -> None:
    there = [i for i, score in enumerate(group.process) if score is not None]
    found = scores_of(group)
    missing = found.process.isnan()
    assert_same(process_part(group)[there], process_part(picked(group, there)))
    assert_same(papo(found)[missing], grpo(found)[missing])
    assert not process_only(found)[missing].any()
    if len(there) != 1:
        assert_same(process_only(found)[there], process_only(scores_of(picked(group, there))))


def test_one_that_is_left_alone_by_missing_scores_teaches_nothing() -> None:
    assert not process_only(scores([1, 1, 0], [None, 0.5, None])).any()
    assert not multiplicative(scores([1, 1, 1], [None, 0.5, None])).any()


@given(groups(process=SCORES))
def test_correct_means_raw_accuracy_whatever_the_reward(group: Group) -> None:
    unpunished = dataclasses.replace(group, penalty=[0.0] * len(group.penalty))
    assert_same(process_part(group), process_part(unpunished))


@given(groups(min_size=2, punished=False))
def test_full_norm_is_outcome_plus_the_multiplicative_ablation(group: Group) -> None:
    wrong_unjudged = [
        s if right else None for s, right in zip(group.process, group.correct, strict=True)
    ]
    found = scores_of(dataclasses.replace(group, process=wrong_unjudged))
    assert_same(papo_full_norm(found), grpo(found) + multiplicative(found), atol=1e-5)


def test_a_wrong_answer_is_judged_as_0_only_where_it_was_not_judged() -> None:
    judged = scores([1, 1, 0, 0], [1.0, 0.5, 0.8, None])
    as_zero = scores([1, 1, 0, 0], [1.0, 0.5, 0.8, 0.0])
    for advantage in (papo_full_norm, multiplicative):
        assert torch.equal(advantage(judged), advantage(as_zero))
    assert not torch.equal(
        papo_full_norm(judged), papo_full_norm(scores([1, 1, 0, 0], [1.0, 0.5, 0.0, 0.0]))
    )


def test_a_correct_answer_that_was_not_judged_is_left_out_of_the_ablations() -> None:
    group = scores([1, 1, 1, 0], [1.0, None, 0.5, None])
    assert multiplicative(group)[1] == 0
    assert papo_full_norm(group)[1] == grpo(group)[1]
    rest = scores([1, 1, 0], [1.0, 0.5, None])
    assert_same(multiplicative(group)[[0, 2, 3]], multiplicative(rest))


def test_the_punishment_counts_in_every_reward() -> None:
    penalty = [0.0, -0.5, 0.0, -1.0]
    for name, advantage in ADVANTAGES.items():
        free = advantage(scores([1, 1, 0, 0], [1.0, 0.5, 0.5, 0.0]))
        punished = advantage(scores([1, 1, 0, 0], [1.0, 0.5, 0.5, 0.0], penalty))
        assert punished[1] < free[1] + 1e-9, name
        assert punished[3] < free[3], name


@every_advantage
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 3, 7, 10, 64])
def test_equal_scores_teach_exactly_nothing(name: str, dtype: torch.dtype, size: int) -> None:
    for outcome, process in ((0.1, 0.3), (1.0, 0.7)):
        group = Group([outcome] * size, [True] * size, [process] * size, [-0.3] * size)
        assert not ADVANTAGES[name](scores_of(group, dtype)).any()


@every_advantage
def test_a_lone_response_has_no_group_to_differ_from(name: str) -> None:
    alone = ADVANTAGES[name](scores([1], [0.5])).tolist()
    process = 0.5 * ALONE_AS_VERL
    as_verl = {
        "grpo_verl": [ALONE_AS_VERL],
        "multiplicative": [process],
        "process_only": [process],
    }
    assert alone == pytest.approx([0.0] if name in ZERO_ALONE else as_verl[name], abs=1e-12)


@every_advantage
@pytest.mark.filterwarnings("error")
def test_an_empty_group_has_no_advantages(name: str) -> None:
    assert ADVANTAGES[name](scores([])).shape == (0,)


@every_advantage
@pytest.mark.filterwarnings("error")
def test_a_group_without_any_process_score_is_plain(name: str) -> None:
    group = scores([1, 1, 0])
    expected = {"process_only": torch.zeros(3, dtype=torch.float64)}
    plain = expected.get(name, grpo(group))
    if name in ("papo", "papo_full_norm", "process_only"):
        assert torch.equal(ADVANTAGES[name](group), plain)
    assert ADVANTAGES[name](group).isfinite().all()


@every_advantage
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_precision_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    group = Group([1.0, 1, 1, 0, 0], [True] * 3 + [False] * 2, [1.0, 0.5, None, 0.25, 0], [0.0] * 5)
    half = ADVANTAGES[name](scores_of(group, dtype))
    assert half.dtype == torch.float32
    assert_same(half, ADVANTAGES[name](scores_of(group, torch.float32)), atol=1e-6)


@pytest.mark.parametrize(
    ("denominator", "expected"),
    [("add", [0.0, 0.0]), ("max", [-0.5, 0.5]), ("none", [-0.05, 0.05])],
)
def test_a_std_at_the_gate_is_no_difference_only_where_eps_is_added(
    denominator: str, expected: list[float]
) -> None:
    found = standardized(double([0.0, 0.1]), ddof=0, denominator=denominator, std_eps=0.1)
    assert_same(found, double(expected))
    at_gate = standardized(double([0.0, 1.0]), ddof=0, denominator="add", std_eps=0.5)
    assert not at_gate.any()


def test_an_unknown_denominator_is_refused() -> None:
    with pytest.raises(KeyError, match="sum"):
        standardized(double([0.0, 1.0]), denominator="sum")


def test_centered_values_are_exact_where_the_mean_is_not() -> None:
    assert not centered(torch.full((10,), 0.1)).any()
    assert centered(double([1.0, 3.0])).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("setting", "value"), [("ddof", 0), ("denominator", "none"), ("std_eps", 0.2)]
)
@pytest.mark.parametrize("advantage", [papo, papo_full_norm])
def test_a_setting_holds_for_the_outcome_and_for_the_process(
    advantage: Callable[..., Tensor], setting: str, value: object
) -> None:
    group: GroupScores = scores([1, 1, 1, 0], [1.0, 0.5, 0.0, 0.0])
    formula = partial(advantage, **{setting: value})
    outcome = formula(group, lambda_process=0.0)
    assert torch.equal(outcome, grpo(group, **{setting: value}))  # type: ignore[arg-type]
    process = formula(group) - outcome
    judged = group.process[:3] if advantage is papo else group.process
    expected = standardized(judged, **{setting: value})  # type: ignore[arg-type]
    assert_same(process[: len(judged)], expected)
    assert_same(formula(group, lambda_process=3.0), outcome + 3 * process)
