"""The forecast of held-out accuracy finds curves, and says how sure it is."""

import numpy as np
import pytest

from services.gateway.core.watch.forecast import MIN_EVALUATIONS, forecast

STEPS = range(0, 201, 20)


def curve(step: np.ndarray, start: float, end: float, middle: float, slope: float) -> np.ndarray:
    return start + (end - start) / (1 + (middle / np.maximum(step, 1e-9)) ** slope)


def test_a_known_curve_is_found_and_the_same_evaluations_give_the_same_forecast() -> None:
    shape = 0.3, 0.8, 60.0, 1.5
    accuracies = curve(np.array(STEPS), *shape).tolist()
    result = forecast(STEPS, accuracies, [10**5] * len(STEPS), 400)
    assert result is not None
    truth = curve(np.array([400]), *shape)[0]
    assert result.accuracy == pytest.approx(truth, abs=0.01)
    assert result.low < truth < result.high < result.low + 0.06
    assert result.curve[0][0] == STEPS[-1]
    assert tuple(result.curve[-1]) == (400, result.low, result.accuracy, result.high)
    assert forecast(STEPS, accuracies, [10**5] * len(STEPS), 400) == result


def test_the_interval_holds_about_as_often_as_it_says() -> None:
    chance = np.random.default_rng(5)
    hits = []
    for _ in range(120):
        start, end = np.sort(chance.uniform(0.1, 0.95, 2))
        shape = start, end, chance.uniform(20, 250), chance.uniform(0.7, 2.5)
        *first, last = chance.binomial(512, curve(np.array([*STEPS, 400]), *shape)) / 512
        result = forecast(STEPS, first, [512] * len(first), 400)
        if result is not None:
            hits.append(result.low <= last <= result.high)
    assert len(hits) > 100
    assert 0.85 <= np.mean(hits) <= 0.99


def test_too_little_is_no_forecast() -> None:
    few = MIN_EVALUATIONS - 1
    assert forecast(STEPS[:few], [0.5] * few, [10**5] * few, 400) is None
    many = len(STEPS)
    assert forecast(STEPS, [0.5] * many, [10**5] * many, STEPS[-1]) is None
    wide = np.linspace(0.2, 0.7, many).tolist()  # it still rises as it did at first
    assert forecast(STEPS, wide, [8] * many, 2000) is None
