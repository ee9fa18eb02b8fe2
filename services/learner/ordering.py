"""Ordering: which settings can rank a correct response below a wrong one?"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.recipe import Recipe

from services.learner.algorithms.order_safety import order_safe_lambda, order_safe_lambda_full_norm


def order_warnings(recipe: Recipe) -> list[str]:
    """Return the settings that can rank a correct response below a wrong one, as warnings.

    They assume verifiers that grade an outcome 0 or 1, and advantages without an overlong
    punishment, which can put a response below any other. ``process_only`` ranks by the process on
    purpose; advantages of extensions and critics are not judged.
    """
    if recipe.algorithm.advantage == "multiplicative":
        return list(_product_warnings(recipe))
    return list(_weight_warnings(recipe))


def _weight_warnings(recipe: Recipe) -> Iterator[str]:
    weight = recipe.algorithm.lambda_process
    safe_weight = _safe_weight(recipe)
    if weight > safe_weight:
        yield (
            f"algorithm.lambda_process = {weight} can rank a correct response below a wrong one; "
            f"in groups of {recipe.rollout.group_size} use at most {safe_weight:.3f}"
        )


def _safe_weight(recipe: Recipe) -> float:
    """Return the largest weight of the process that keeps correct responses above wrong ones.

    If only correct responses are judged, ``papo_full_norm`` keeps the order with any weight: a
    wrong response then has a process score of 0, the lowest.
    """
    algorithm = recipe.algorithm
    group_size = recipe.rollout.group_size
    if algorithm.advantage == "papo":
        return order_safe_lambda(group_size, ddof=algorithm.ddof)
    if algorithm.advantage == "papo_full_norm" and recipe.reward.process_for == "all":
        return order_safe_lambda_full_norm(group_size)
    return float("inf")


def _product_warnings(recipe: Recipe) -> Iterator[str]:
    """Warn about a reward that is the outcome's value times the process score.

    A wrong response that is not judged has the reward 0.
    """
    wrong, right = recipe.reward.values
    judges_all = recipe.reward.process_for == "all"
    if right < 0:
        yield (
            f"reward.values pays {right} for a right answer: with algorithm.advantage = "
            "'multiplicative' a better process lowers the reward, even below that of a wrong "
            "answer; let a right answer pay more than 0"
        )
    elif judges_all and wrong > 0:
        yield (
            f"reward.values pays {wrong} for a wrong answer, and algorithm.advantage = "
            "'multiplicative' less for a correct one with a low process score; let a wrong answer "
            "pay 0"
        )
    elif judges_all and wrong < 0:
        yield (
            f"reward.values pays {wrong} for a wrong answer: with algorithm.advantage = "
            "'multiplicative' a better process lowers its reward; let a wrong answer pay 0, or "
            "judge only correct ones: reward.process_for = 'correct'"
        )
