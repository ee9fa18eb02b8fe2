"""The formulas agree with a second implementation, one number at a time, on random cases.

``WEIR_FORMULA_CASES`` sets how many groups and responses each test draws.
"""

import math
import os
from collections.abc import Callable, Sequence
from random import Random

import pytest
from torch import Tensor

from services.learner.algorithms import pick
from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.loss import AGGREGATIONS, CORRECTIONS, OBJECTIVES, Totals
from tests.unit.learner.algorithms import reference
from tests.unit.learner.algorithms.random_cases import (
    double,
    flat,
    random_episodes,
    random_group,
    random_responses,
    scores_of,
)

CASES = int(os.environ.get("WEIR_FORMULA_CASES", "500"))
AT_ONCE = 25  # responses of one micro-batch
ATOL = 1e-6


def assert_close(actual: Tensor, expected: Sequence[float]) -> None:
    assert actual.shape == (len(expected),)
    wrong = (actual.detach() - double(list(expected))).abs() > ATOL
    assert not (wrong | actual.isnan()).any(), (actual, expected)


def batches(seed: int) -> list[Random]:
    """A random source for each micro-batch of responses."""
    return [Random(f"{seed} {index}") for index in range(-(-CASES // AT_ONCE))]


def test_advantages() -> None:
    random = Random(1)
    for _ in range(CASES):
        group = random_group(random)
        normalizing = {
            "ddof": random.choice((0, 1)),
            "denominator": random.choice(("add", "max", "none")),
            "std_eps": random.choice((1e-6, 1e-6, 0.2137)),
        }
        with_process = {
            "lambda_process": random.uniform(0, 2),
            **normalizing,
        }
        settings = {
            "grpo": normalizing,
            "papo": with_process,
            "papo_full_norm": with_process,
        }
        scores = scores_of(group)
        for name in ADVANTAGES:
            own = settings.get(name, {})
            expected = getattr(reference, name)(group, **own)
            assert_close(
                pick(ADVANTAGES, name, own)(scores),
                expected,
            )


def test_gae_and_targets() -> None:
    for random in batches(2):
        case = random_episodes(random, AT_ONCE)
        gamma, actor, critic = (random.choice((1.0, random.random())) for _ in range(3))
        alpha = random.uniform(0.02, 2)
        settings = {
            "gamma": gamma,
            "lambda_actor": actor,
            "lambda_critic": critic,
        }
        estimates = [
            pick(
                CRITIC_ADVANTAGES,
                name,
                settings | {"length_alpha": alpha},
            )(case.episodes)
            for name in ("gae", "decoupled_gae", "length_adaptive_gae")
        ]
        for row, (rewards, values) in enumerate(zip(case.rewards, case.values, strict=True)):
            adaptive = reference.length_lambda(len(values), alpha) if values else 0.0
            lambdas = [
                (actor, actor),
                (actor, critic),
                (adaptive, critic),
            ]
            mask = case.episodes.mask[row]
            for (advantages, targets), (policy, value) in zip(estimates, lambdas, strict=True):
                assert_close(
                    advantages[row][mask],
                    reference.gae(rewards, values, gamma, policy),
                )
                expected = reference.gae(rewards, values, gamma, value)
                returns = [a + v for a, v in zip(expected, values, strict=True)]
                assert_close(targets[row][mask], returns)
                assert not advantages[row][~mask].any()
                assert not targets[row][~mask].any()


Losses = list[tuple[float, int]]  # of tokens, with the bound that held each
# (log-prob, old log-prob, advantage, ratio, settings) of a token
OF_TOKENS: dict[str, Callable[..., tuple[float, int]]] = {
    "clip": lambda lp, old, a, r, s: reference.clipped(r, a, s["clip_low"], s["clip_high"]),
    "dual_clip": lambda lp, old, a, r, s: reference.dual_clipped(
        r, a, s["clip_low"], s["clip_high"], s["dual_clip"]
    ),
    "cispo": lambda lp, old, a, r, s: reference.cispo(lp, r, a, s["clip_low"], s["clip_high"]),
    "dppo": lambda lp, old, a, r, s: reference.dppo(lp, old, a, s["clip_low"], s["clip_high"]),
    "ipo": lambda lp, old, a, r, s: reference.ipo(lp, old, a, s["clip_low"], s["clip_high"]),
    "sapo": lambda lp, old, a, r, s: reference.sapo(r, a, s["tau_positive"], s["tau_negative"]),
}


def expected_losses(
    objective: str,
    response: tuple[list[float], list[float], list[float]],
    settings: dict[str, float],
) -> Losses:
    low, high = settings["clip_low"], settings["clip_high"]
    if objective == "gmpo":
        return reference.gmpo(*response, low, high)
    if objective == "gspo":
        ratio = reference.sequence_ratio(*response[:2])
        return [reference.clipped(ratio, a, low, high) for a in response[2]]
    of_token = OF_TOKENS[objective]
    return [
        of_token(
            lp,
            old,
            a,
            math.exp(lp) / math.exp(old),
            settings,
        )
        for lp, old, a in zip(*response, strict=True)
    ]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objectives(objective: str) -> None:
    for random in batches(4):
        responses = random_responses(random, AT_ONCE)
        settings = {name: random.uniform(0.05, 0.9) for name in ("clip_low", "clip_high")}
        settings["dual_clip"] = random.uniform(1.01, 4)
        settings |= {name: random.uniform(0.5, 3) for name in ("tau_positive", "tau_negative")}
        losses, bound = pick(OBJECTIVES, objective, settings)(responses.batch())
        expected: Losses = []
        for response in zip(
            responses.logprobs,
            responses.old,
            responses.advantages,
            strict=True,
        ):
            expected += expected_losses(objective, response, settings)
        assert_close(losses, [loss for loss, _ in expected])
        assert bound.tolist() == [held for _, held in expected]


def test_aggregations() -> None:
    for random in batches(5):
        responses = random_responses(random, AT_ONCE)
        losses, longest = responses.advantages, random.randint(40, 99)
        tokens = responses.batch()
        totals = Totals(
            len(tokens.logprobs),
            AT_ONCE,
            positive_tokens=0,
        )
        expected = {
            "token_mean": reference.token_mean(losses),
            "sequence_mean": reference.sequence_mean(losses),
            "fixed_length": reference.fixed_length(losses, longest),
        }
        for name in AGGREGATIONS:
            weights = pick(AGGREGATIONS, name, {"max_tokens": longest})(
                tokens.lengths,
                totals,
            )
            assert_close(
                (weights * flat(losses)).sum().unsqueeze(0),
                [expected[name]],
            )


def test_corrections() -> None:
    for random in batches(7):
        responses = random_responses(random, AT_ONCE)
        old, sampled, cap = responses.old, responses.other, random.uniform(0.5, 5)
        floor = random.choice((0.0, random.uniform(0, cap)))
        expected: dict[str, list[float]] = {name: [] for name in CORRECTIONS}
        for trained, behavior in zip(old, sampled, strict=True):
            whole = reference.importance(trained, behavior, cap)
            whole_in_band = reference.importance_in_band(trained, behavior, floor, cap)
            for a, b in zip(trained, behavior, strict=True):
                expected["none"].append(1.0)
                expected["token_tis"].append(reference.importance([a], [b], cap))
                expected["sequence_tis"].append(whole)
                in_band = reference.importance_in_band([a], [b], floor, cap)
                expected["token_mis"].append(in_band)
                expected["sequence_mis"].append(whole_in_band)
        for name in CORRECTIONS:
            settings = {"correction_cap": cap, "correction_floor": floor}
            correction = pick(CORRECTIONS, name, settings)
            assert_close(
                correction(
                    flat(old),
                    flat(sampled),
                    responses.rows,
                ),
                expected[name],
            )
