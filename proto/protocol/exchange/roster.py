"""Who lives, as one observer has seen it by its own clock.

The wall clock of the server may jump, the server may hang or fail over, and the observer itself may
be stopped for a while: none of this is silence of a worker. So silence is counted here, from look
to look, and what passes between two looks counts for two heartbeats at the most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from protocol.exchange.queue import replica_of

_REPLICAS_KEPT = 4  # a replica is remembered for so many times the silence of a death


@dataclass
class Roster:
    """What an observer knows of the other workers. All times are in seconds.

    ``idle_s`` of silence is a death. ``heartbeat_s`` is how often everyone shows life.
    """

    idle_s: float
    heartbeat_s: float
    _looked_at: float | None = None
    _beats: dict[str, int] = field(default_factory=dict)
    _silence: dict[str, float] = field(default_factory=dict)
    _replicas: dict[str, float] = field(default_factory=dict)  # since one there would claim

    def look(self, lives: Mapping[str, int], now: float) -> None:
        """Take in the beats of all workers at a moment of the monotonic clock."""
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        passed = min(passed, 2 * self.heartbeat_s)
        self._looked_at = now
        self._silence = {
            life: self._silence.get(life, 0.0) + passed if self._beats.get(life) == beats else 0.0
            for life, beats in lives.items()
        }
        self._beats = dict(lives)
        self._replicas = {
            replica: silence + passed
            for replica, silence in self._replicas.items()
            if silence + passed < _REPLICAS_KEPT * self.idle_s
        }
        willing = (life for life, beats in lives.items() if beats > 0 and not self._silence[life])
        self._replicas |= dict.fromkeys(map(replica_of, willing), 0.0)

    def dead(self, me: str) -> Iterable[tuple[str, int]]:
        """The workers that have been silent for too long, with the beats last seen."""
        for life, silence in self._silence.items():
            if silence >= self.idle_s and life != me:
                yield life, self._beats[life]

    @property
    def silence(self) -> Mapping[str, float]:
        """For how long each worker has shown no life."""
        return self._silence

    @property
    def num_alive(self) -> int:
        """How many workers have shown life lately, whether or not they would claim."""
        return sum(silence < self.idle_s for silence in self._silence.values())

    @property
    def replicas(self) -> frozenset[str]:
        """Where somebody would claim, or would a moment ago: who restarts is soon back."""
        return frozenset(self._replicas)
