"""Over how many GPUs the attention heads of a model let an engine be split. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.placement import Placement, split_problem

_GPUS_OF_A_BOX = 8


def splits(heads: int, key_value_heads: int) -> list[int]:
    """Numbers of GPUs of a box over which an engine can split such a model.

    >>> splits(28, 4)
    [1, 2, 4]
    """
    sizes = range(1, _GPUS_OF_A_BOX + 1)
    return [size for size in sizes if split_problem(size, heads, key_value_heads) is None]


def sequence_problem(size: int, heads: int, key_value_heads: int, num_ranks: int) -> str | None:
    """Why so many ranks cannot share each sample of such a model, with the remedy, if so."""
    possible = [
        each
        for each in range(1, num_ranks + 1)
        if num_ranks % each == 0 and split_problem(each, heads, key_value_heads) is None
    ]
    if size in possible:
        return None
    problem = split_problem(size, heads, key_value_heads)
    return (
        f"training.sequence_parallel = {size}: "
        + (problem or f"it does not divide the learner's {num_ranks} ranks")
        + f"; choose {' or '.join(map(str, possible))}, or give the learner other GPUs"
    )


def split_problems(placement: Placement, heads: int, key_value_heads: int) -> Iterator[str]:
    """Each engine of a placement that cannot hold such a model, with the reason and the remedy."""
    *fewer, most = map(str, splits(heads, key_value_heads))
    sizes = f"{', '.join(fewer)} or {most} GPUs" if fewer else "1 GPU"
    for engine in placement.rollouts:
        if problem := split_problem(max(1, len(engine.gpus)), heads, key_value_heads):
            yield f"{engine}: {problem}; in WEIR_GPUS write rollout= with {sizes}"
