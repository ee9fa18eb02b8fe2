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


def split_problems(placement: Placement, heads: int, key_value_heads: int) -> Iterator[str]:
    """Each engine of a placement that cannot hold such a model, with the reason and the remedy."""
    *fewer, most = map(str, splits(heads, key_value_heads))
    sizes = f"{', '.join(fewer)} or {most} GPUs" if fewer else "1 GPU"
    for engine in placement.rollouts:
        if problem := split_problem(max(1, len(engine.gpus)), heads, key_value_heads):
            yield f"{engine}: {problem}; in WEIR_GPUS write rollout= with {sizes}"
