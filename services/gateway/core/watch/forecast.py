"""The forecast of held-out accuracy, by a saturating curve over training steps. Pure.

R(C) = R0 + (A - R0) / (1 + (Cmid / C)^B), eq. 1 of ScaleRL (arXiv:2510.13786). The compute C is the
number of training steps, each of which costs about the same. `benchmarks.forecast` measures how
often the interval holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

MIN_EVALUATIONS = 5
MAX_HALF_WIDTH = 0.15  # a wider interval says too little to be shown
_QUANTILES = (0.05, 0.5, 0.95)
_DRAWS = 4000
_NUM_POINTS = 24  # of the curve that is returned
# Pairs of Cmid, as a share of the step that is forecast, and B, [cell, 2]. All Cmid are equally
# likely; if small ones are more likely, more curves of the benchmark rise above the interval.
_CELLS = np.array(list(product(np.geomspace(0.03, 2, 40), np.geomspace(1, 6, 14))))
_PRIOR = 4.0  # the evaluations that the assumed noise is worth
_PRIOR_MEAN = 0.5  # of R0 and A
_PRIOR_STD = 0.5


@dataclass(frozen=True)
class Forecast:
    """The accuracy of an evaluation at ``step``, with its 90 % interval, and a curve up to it."""

    step: int
    accuracy: float
    low: float
    high: float
    curve: Sequence[Sequence[float]]  # of step, low, accuracy and high


def forecast(
    steps: Sequence[int], accuracies: Sequence[float], samples: Sequence[int], step: int
) -> Forecast | None:
    """Return the forecast at a step, by evaluations at earlier steps in their order.

    For every (Cmid, B) of a grid the curve is linear in R0 and A, so their posterior is exact. The
    noise of an evaluation is that of its ``samples`` responses, times a factor that is estimated
    as well, since training is no smooth curve. Equal arguments give equal forecasts.

    Returns:
        None with fewer than `MIN_EVALUATIONS`, or with an interval that says too little.
    """
    if len(steps) < MIN_EVALUATIONS or step <= steps[-1]:
        return None
    y = np.array(accuracies)
    trials = np.array(samples)
    shares = (y * trials + 1) / (trials + 2)
    errors = np.sqrt(shares * (1 - shares) / trials)
    ends, cells, scale = _draw(np.array(steps) / step, y / errors, errors)
    places = np.linspace(steps[-1], step, _NUM_POINTS)
    reached = _progress(places / step, *cells.T[..., None])  # [draw, place]
    curves = ends[:, :1] * (1 - reached) + ends[:, 1:] * reached
    noise = np.random.default_rng(1).standard_normal(_DRAWS)
    curves += (scale * errors[-1] * noise)[:, None]
    low, middle, high = np.quantile(curves.clip(0, 1), _QUANTILES, axis=0)
    if high[-1] - low[-1] > 2 * MAX_HALF_WIDTH:
        return None
    curve = np.stack([places, low, middle, high], axis=1)
    return Forecast(step, float(middle[-1]), float(low[-1]), float(high[-1]), curve.tolist())


def _draw(
    compute: np.ndarray, scores: np.ndarray, errors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw curves from their posterior.

    Args:
        compute: of each evaluation, as a share of that of the forecast.
        scores: the accuracies over their errors.
        errors: the standard errors of the accuracies by their responses alone.

    Returns:
        (R0, A) and (Cmid, B) of each draw, [draw, 2], and the factor of its errors, [draw].
    """
    progress = np.stack([_progress(compute, *cell) for cell in _CELLS])
    x = np.stack([1 - progress, progress], axis=-1) / errors[:, None]  # [cell, evaluation, 2]
    ridge = 1 / _PRIOR_STD**2
    precision = np.einsum("kni,knj->kij", x, x) + ridge * np.eye(2)
    moment = np.einsum("kni,n->ki", x, scores) + ridge * _PRIOR_MEAN
    covariance = np.linalg.inv(precision)
    mean = _bound(np.einsum("kij,kj->ki", covariance, moment), covariance)
    misfit = np.square(np.einsum("kni,ki->kn", x, mean) - scores).sum(1)
    misfit += ridge * np.square(mean - _PRIOR_MEAN).sum(1)
    freedom = _PRIOR + len(scores)
    weights = np.log(_CELLS[:, 0]) - np.linalg.slogdet(precision)[1] / 2
    weights -= freedom / 2 * np.log(_PRIOR + misfit)
    weights = np.exp(weights - weights.max())

    rng = np.random.default_rng(0)
    drawn = rng.choice(len(_CELLS), _DRAWS, p=weights / weights.sum())
    scale = np.sqrt((_PRIOR + misfit[drawn]) / rng.chisquare(freedom, _DRAWS))
    root = np.linalg.cholesky(covariance)[drawn]
    noise = np.einsum("dij,dj->di", root, rng.standard_normal((_DRAWS, 2)))
    ends = _bound(mean[drawn] + scale[:, None] * noise, covariance[drawn])
    return ends, _CELLS[drawn], scale


def _bound(ends: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return (R0, A) with A moved into [0, 1], and R0 to its best value for that A."""
    shift = ends[:, 1].clip(0, 1) - ends[:, 1]
    return ends + shift[:, None] * covariance[:, :, 1] / covariance[:, 1, 1, None]


def _progress(compute: np.ndarray, middle: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + (Cmid / C)^B), which is 0 at C = 0."""
    power = np.power(compute / middle, slope)
    return power / (1 + power)
