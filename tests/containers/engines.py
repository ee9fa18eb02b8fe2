"""What builds and runs containers: a docker engine, or podman as prepare.sh makes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


class Engine:
    """Runs the commands of docker; podman understands the same ones."""

    program = "docker"
    compose: tuple[str, ...] = ("docker", "compose")
    # Services of the compose file that cannot run here, and why.
    cannot_make: Mapping[str, str] = MappingProxyType({"judge": "it needs a GPU"})
    override = ""  # a compose file on top

    def __init__(self) -> None:
        self.environment = dict(os.environ)

    def run(self, *command: str, check: bool = True) -> str:
        """What a command prints; its errors are part of the exception."""
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}: {done.stderr[-4000:]}")
        return done.stdout + ("" if check else done.stderr)

    def __call__(self, *arguments: str, check: bool = True) -> str:
        return self.run(self.program, *arguments, check=check)

    def prepare(self, kind: str, image: str) -> None:
        """Have an image that is not built here; docker pulls it when it is needed."""

    def build(self, service: str, *arguments: str) -> None:
        build_argument = ("--build-arg", f"SERVICE={service}")
        self("build", "--file", "deploy/Dockerfile", *build_argument, *arguments, ".")

    def tidy(self) -> None:
        """Take away what a build leaves mounted; docker leaves nothing."""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While the body runs, compose can reach the engine."""
        yield

    def is_healthy(self, container: str) -> bool:
        text = self("inspect", "--format", "{{.State.Health.Status}}", container)
        return text.strip() == "healthy"


class Podman(Engine):
    """Podman in a folder of its own, with a docker-compose that speaks to its socket."""

    program = "podman"
    cannot_make = MappingProxyType(
        {"judge": "it needs a GPU", "grafana": "Debian has no package of it"}
    )
    # Podman sets all limits of a container that has one, and here not even root may raise a limit.
    override = "services: {rollout: {ulimits: !reset null}, learner: {ulimits: !reset null}}"

    def __init__(self, home: Path) -> None:
        super().__init__()
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.compose = (str(home / "docker-compose"),)
        self.environment |= {
            "WEIR_CONTAINERS_HOME": str(home),
            "CONTAINERS_CONF": str(home / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(home / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(home / "registries.conf"),
            "DOCKER_HOST": f"unix://{home}/podman.sock",
        }
        self.run(str(HERE / "prepare.sh"), "engine")

    def prepare(self, kind: str, image: str) -> None:
        self.run(str(HERE / "prepare.sh"), "image", kind, image)

    def build(self, service: str, *arguments: str) -> None:
        self.run(str(HERE / "build.sh"), service, *arguments)

    def tidy(self) -> None:
        """Remove the containers that buildah worked in; its layers stay."""
        self.run("buildah", "rm", "--all")

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Podman's socket, and what systemd would do: ask Redis for its health."""
        command = ["podman", "system", "service", "--time=0", self.environment["DOCKER_HOST"]]
        stopping = threading.Event()
        asking = threading.Thread(target=self._ask_redis, args=[stopping])
        with (self.home / "service.log").open("w") as log:
            service = subprocess.Popen(
                command,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        try:
            while not (self.home / "podman.sock").exists():
                assert service.poll() is None, (self.home / "service.log").read_text()
                time.sleep(0.1)
            asking.start()
            yield
        finally:
            stopping.set()
            service.terminate()
            service.wait(30)
            asking.join()

    def _ask_redis(self, stopping: threading.Event) -> None:
        while not stopping.wait(2):
            for container in self(
                "ps",
                "--quiet",
                "--filter",
                "name=redis-1",
                check=False,
            ).split():
                self("healthcheck", "run", container, check=False)

    def is_healthy(self, container: str) -> bool:
        """Ask now; nothing here asks by itself."""
        return not self("healthcheck", "run", container, check=False).strip()


def engine() -> Engine:
    if (
        shutil.which("docker")
        and not subprocess.run(["docker", "info"], capture_output=True).returncode
    ):
        return Engine()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Podman(Path(os.environ.get("WEIR_CONTAINERS_HOME", cache / "weir-containers")))
