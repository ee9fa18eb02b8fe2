"""Time is divided among phases without a gap, and counters are born at zero."""

import pytest
from prometheus_client import CollectorRegistry, Counter

from services.chassis import metrics
from services.chassis.metrics import Phases, born_at_zero


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def test_all_time_goes_to_one_phase_or_to_rest(clock: Clock) -> None:
    phases = Phases()
    phases.name("loading", "sampling", rest="idle")
    clock.now = 1
    with phases.during("sampling"):
        clock.now = 3
        with phases.during("sampling"):
            clock.now = 6
        with phases.during("loading"), phases.during("sampling"):
            clock.now = 10
            assert phases.seconds() == {"loading": 4, "sampling": 5, "idle": 1}
        clock.now = 12
    clock.now = 20
    assert phases.seconds() == {"sampling": 7, "loading": 4, "idle": 9}
    assert sum(phases.seconds().values()) == clock.now


def test_phases_are_exported_from_the_start_and_only_where_there_are_any(clock: Clock) -> None:
    phases, registry = Phases(), CollectorRegistry()
    registry.register(phases)
    assert registry.get_sample_value("weir_phase_seconds_total", {"phase": "idle"}) is None
    phases.name("grading", rest="idle")
    clock.now = 5
    assert registry.get_sample_value("weir_phase_seconds_total", {"phase": "grading"}) == 0
    assert registry.get_sample_value("weir_phase_seconds_total", {"phase": "idle"}) == 5


def test_a_counter_that_is_born_at_zero_has_all_its_series() -> None:
    registry = CollectorRegistry()
    born_at_zero(Counter("weir_x_total", "x", ["why"], registry=registry), "a", "b")
    for why in ("a", "b"):
        assert registry.get_sample_value("weir_x_total", {"why": why}) == 0
