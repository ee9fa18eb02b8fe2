"""Ordering: what in a recipe can rank a correct response below a wrong one?"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.recipe import Recipe

from services.learner.algorithms.advantages import order_safe_lambda, order_safe_lambda_full_norm


def order_warnings(recipe: Recipe) -> list[str]:
    """What in a recipe can rank a correct response below a wrong one, or worse reasoning higher.

    This is about verifiers that grade an outcome 0 or 1, and about advantages without an overlong
    punishment, which can put a response below any other. ``process_only`` ranks by the process as
    it is meant to; advantages of extensions and critics are not judged.
    """
    if recipe.algorithm.advantage == "multiplicative":
        return list(_of_a_product(recipe))
    return list(_of_a_weight(recipe))


def _of_a_weight(recipe: Recipe) -> Iterator[str]:
    weight, safe = recipe.algorithm.lambda_process, _safe_weight(recipe)
    if weight > safe:
        size = recipe.rollout.group_size
        yield (
            f"algorithm.lambda_process = {weight} can rank a correct response below a wrong one; "
            f"up to {safe:.3f} it cannot, in groups of {size}"
        )


def _safe_weight(recipe: Recipe) -> float:
    """The largest weight of the process that keeps correct responses above wrong ones.

    Where only correct ones are judged, ``papo_full_norm`` keeps the order with any: a wrong
    response counts there with a process score of 0, the lowest.
    """
    algorithm, size = recipe.algorithm, recipe.rollout.group_size
    if algorithm.advantage == "papo":
        return order_safe_lambda(size, ddof=algorithm.ddof)
    if algorithm.advantage == "papo_full_norm" and recipe.reward.process_for == "all":
        return order_safe_lambda_full_norm(size)
    return float("inf")


def _of_a_product(recipe: Recipe) -> Iterator[str]:
    """A response pays its outcome's value times its process score; a wrong one not judged, 0."""
    wrong, right = recipe.reward.values
    judges_all = recipe.reward.process_for == "all"
    if right < 0:
        yield (
            f"reward.values pays {right} for a right answer: with algorithm.advantage = "
            "'multiplicative' the better its process, the less, and less than a wrong one can get; "
            "let a right answer pay more than 0"
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
            "'multiplicative' the better its process, the less; let a wrong answer pay 0, or judge "
            "only correct ones: reward.process_for = 'correct'"
        )
