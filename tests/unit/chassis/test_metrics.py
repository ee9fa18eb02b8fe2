"""Time is divided among phases without a gap."""

import pytest
from prometheus_client import CollectorRegistry

from services.chassis import metrics
from services.chassis.metrics import Phases


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
    registry = CollectorRegistry()
    registry.register(phases)
    phases.name("loading", "sampling", idle="idle")
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
    assert registry.get_sample_value("weir_phase_seconds_total", {"phase": "sampling"}) == 7
