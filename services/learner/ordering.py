"""Ordering: what in a recipe can rank a correct response below a wrong one?"""

from __future__ import annotations

from protocol.recipe import Recipe

from services.learner.algorithms.order_safety import order_safe_lambda


def order_warnings(recipe: Recipe) -> list[str]:
    """What in a recipe can rank a correct response below a wrong one of its group.

    Of the advantages that weigh the process, ``papo_full_norm`` cannot: a wrong response counts
    there with a process score of 0, the lowest. ``process_only`` means to.
    """
    algorithm, size = recipe.algorithm, recipe.rollout.group_size
    safe = order_safe_lambda(size, ddof=algorithm.ddof)
    if algorithm.advantage == "papo" and algorithm.lambda_process > safe:
        return [
            f"algorithm.lambda_process = {algorithm.lambda_process} can rank a correct response "
            f"below a wrong one; up to {safe:.3f} it cannot, in groups of {size}"
        ]
    if algorithm.advantage == "multiplicative" and recipe.reward.values[0] > 0:
        return [
            f"reward.values pays {recipe.reward.values[0]} for a wrong answer, and algorithm."
            "advantage = 'multiplicative' less for a correct one with a low process score; let a "
            "wrong answer pay 0 or less"
        ]
    return []
