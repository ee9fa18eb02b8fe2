"""Order safety: the largest lambda for which PAPO never ranks a wrong response above a right one.

For outcomes of two values and rewards without a punishment. A group that lost responses, or process
scores, has no lower bound than a whole one.
"""

from __future__ import annotations


def order_safe_bounds(group_size: int, *, ddof: int = 1) -> dict[int, float]:
    """For each number n of correct responses, the largest lambda that keeps them above the wrong.

    With n of G responses correct, a wrong one lies ``1 / std_out`` below the correct ones in A_out.
    A_proc is lowest for one outlier among n scores (Samuelson's inequality): ``-(n - 1) / sqrt(n)``
    with the sample std, ``-sqrt(n - 1)`` with the population's. The bound is the ratio of the two.
    """
    size = group_size
    bounds: dict[int, float] = {}
    for n in range(2, size):
        std_out = (n * (size - n) / (size * (size - ddof))) ** 0.5
        lowest = (n - 1) * ((n - ddof) / (n * (n - 1))) ** 0.5
        bounds[n] = 1 / (std_out * lowest)
    return bounds


def order_safe_lambda(group_size: int, *, ddof: int = 1) -> float:
    """The largest lambda for which PAPO never ranks a correct response below a wrong one.

    >>> [round(order_safe_lambda(size), 3) for size in (4, 8, 16, 64)]
    [1.732, 1.058, 0.693, 0.33]
    """
    return min(order_safe_bounds(group_size, ddof=ddof).values(), default=float("inf"))


def order_safe_lambda_full_norm(group_size: int) -> float:
    """The same for PAPO normalized over the whole group, where wrong responses are judged too.

    With n of G responses correct, a wrong one lies ``1 / std_out`` below the correct ones in A_out.
    In A_proc it is above one by at most the range of the scores over their std, which is largest
    when all others lie halfway between the two: ``sqrt(2 (G - ddof))``. The ratio of the two,
    ``sqrt(G / (2 n (G - n)))``, has no ddof, and is least where half of the group is correct.

    >>> [round(order_safe_lambda_full_norm(size), 3) for size in (4, 8, 16, 64)]
    [0.707, 0.5, 0.354, 0.177]
    """
    if group_size < 2:
        return float("inf")
    correct = group_size // 2
    return (group_size / (2 * correct * (group_size - correct))) ** 0.5
