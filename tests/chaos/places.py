"""Places of the processes of a stack, and the switches that enable faults there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.chassis.deployment import Deployment
from tests.chaos.job import BASE_MODEL

HEARTBEAT_S = 0.15
CLAIM_IDLE_S = 0.6


@dataclass(frozen=True)
class Replica:
    """A place of one process, whichever life sits there; its port tells it from the others."""

    role: str
    port: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.port}"


LEARNER = Replica("learner", 7001)
ROLLOUTS = tuple(Replica("rollout", port) for port in (7101, 7102, 7103))
WORKERS = (*ROLLOUTS, *(Replica("grader", port) for port in (7201, 7202)))
REPLICAS = (LEARNER, *WORKERS)


@dataclass(frozen=True)
class Switches:
    """Files in a folder, which a test throws and its processes see."""

    folder: Path

    @contextmanager
    def on(
        self,
        name: str,
        value: str = "",
    ) -> Iterator[None]:
        """Throw a switch while the body runs."""
        self.throw(name, value)
        try:
            yield
        finally:
            self.release(name)

    def throw(self, name: str, value: str = "") -> None:
        temporary = self.folder / f".{name}"
        temporary.write_text(value)
        temporary.rename(self.folder / name)

    def release(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def value(self, name: str) -> str | None:
        """Return the value of a switch, None if it is off."""
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return None

    def is_enabled(self, name: str) -> bool:
        return (self.folder / name).exists()


@dataclass(frozen=True)
class Place:
    """A replica of one run: on which machine it is, and where it finds the server and its files."""

    replica: Replica
    machine: int
    url: str
    folder: Path

    @property
    def switches(self) -> Switches:
        return Switches(self.folder / "switches")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def is_switched(self, name: str) -> bool:
        """Whether something is wrong with whoever sits here."""
        return self.switches.is_enabled(f"{name} {self.replica.name}")

    def new_life(self) -> str:
        """The name of one life of this process here."""
        replica = f"{self.replica.role}-machine{self.machine}-{self.replica.port}"
        return f"{replica}.{os.getpid()}-{secrets.token_hex(3)}"

    def deployment(self) -> Deployment:
        return Deployment.from_environment(
            {
                "WEIR_REDIS_URL": self.url,
                "WEIR_DATA_DIR": str(self.data),
                "WEIR_MEMORY_DIR": str(self.folder / f"memory-{self.machine}"),
                "WEIR_WEIGHTS": "delta",
                "WEIR_MODEL_ROOTS": str(BASE_MODEL.parent),
                "WEIR_PORT": str(self.replica.port),
                "WEIR_HEARTBEAT_S": str(HEARTBEAT_S),
                "WEIR_CLAIM_IDLE_S": str(CLAIM_IDLE_S),
                "WEIR_DRAIN_S": "0.3",
            }
        )
