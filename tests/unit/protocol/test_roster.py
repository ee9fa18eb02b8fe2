"""Who is dead, as an observer with a clock of its own sees it."""

from protocol.exchange import WorkerRegistry

IDLE_S = 15.0
HEARTBEAT_S = 1.0


def a_roster(*looks: tuple[float, dict[str, int]]) -> WorkerRegistry:
    roster = WorkerRegistry(IDLE_S, HEARTBEAT_S)
    for now, lives in looks:
        roster.look(lives, now)
    return roster


def test_a_worker_whose_heartbeat_stands_still_is_dead_after_the_idle_time() -> None:
    looks = [
        (float(second), {"me": 1, "slow": 1 + second // 14, "other": 7}) for second in range(16)
    ]
    assert list(a_roster(*looks[:15]).dead("me")) == []
    assert list(a_roster(*looks).dead("me")) == [("other", 7)]


def test_whatever_happens_between_two_looks_counts_for_two_heartbeats_only() -> None:
    """A server that hung, a partition, an observer that was stopped."""
    looks = [(100.0 * look, {"other": 7}) for look in range(8)]
    assert list(a_roster(*looks).dead("me")) == []
    looks += [(800.0, {"other": 7})]
    assert list(a_roster(*looks).dead("me")) == [("other", 7)]


def test_a_heartbeat_that_falls_back_is_a_sign_of_life() -> None:
    """A server that came back without its last half second."""
    still = [(float(second), {"other": 7}) for second in range(15)]
    roster = a_roster(*still, (15.0, {"other": 5}))
    assert list(roster.dead("me")) == []


def test_a_replica_counts_while_somebody_there_would_claim_and_for_a_restart_longer() -> None:
    roster = a_roster((0.0, {"a-host-1.10-x": 1, "b-host-2.11-y": -1}))
    assert roster.replicas == {"a-host-1"}
    for second in range(1, 61):
        assert roster.replicas == {"a-host-1"}, second
        roster.look({}, float(second))
    assert roster.replicas == frozenset()
