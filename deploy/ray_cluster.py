"""The stack on a Ray cluster: ``weir up --ray ADDRESS``. Only this file imports ray.

Ray only places processes: an actor per process runs the command line of `weir up`, and restarts it
when it ends; Ray restarts the actor elsewhere when its node dies. Twice a second this driver polls
the actors, which then check their processes. Redis (WEIR_REDIS_URL) and a shared folder
(WEIR_DATA_DIR) must exist. Logs and readiness are in Ray's dashboard. The stack ends with this
driver: by Ctrl-C, ``weir down``, or the end of the job of ``ray job submit``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import ray
from protocol.placement import Placement, PlacementError, choose_for_cluster, visible_gpus
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.metrics import Gauge
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deploy.launches import (
    Launch,
    add_secrets,
    cluster_variables,
    judge_launch,
    learner_command,
    python_path,
    ray_resources,
    stack_launches,
    stack_secrets,
)
from deploy.processes import Home, Process, StackError, free_ports, say, stop, stop_timeout_s
from services.chassis.deployment import read_variable
from services.chassis.secret_variables import hide_secrets

PLACING_TIMEOUT_S = 60.0
START_TIMEOUT_S = 300.0
_POLL_S = 0.5
# The other launchers of a broken team have nothing to save.
_TEAM_STOP_TIMEOUT_S = 3.0
_CALL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Status:
    address: str
    port: int
    running: bool
    has_started: bool


class Host:
    """An actor with a process of the stack, on a node that Ray chooses.

    A process of a team waits for `start`, and is not restarted alone.
    """

    def __init__(self, launch: Launch, *, in_team: bool) -> None:
        self._launch = launch
        self._in_team = in_team
        self._ports = free_ports()
        self._process: Process | None = None
        self._ready = Gauge(
            "weir_process_ready", "1 while the process runs and has started", tag_keys=("process",)
        )
        # All processes are children of one thread, since they get SIGTERM when it ends.
        self._thread = ThreadPoolExecutor(1)
        if not in_team:
            self.start(launch.command)

    def start(self, command: Sequence[str]) -> None:
        self._thread.submit(self._start, tuple(command)).result()

    def stop(self, timeout_s: float) -> None:
        self._thread.submit(self._stop, timeout_s).result()

    def status(self) -> Status:
        """Restart the process if it has ended, and return its status."""
        return self._thread.submit(self._check).result()

    def master_address(self) -> tuple[str, int]:
        """Return this node's address and a free port, where launchers of other nodes connect."""
        return ray.util.get_node_ip_address(), next(self._ports)

    def has_file(self, path: str) -> bool:
        return Path(path).is_file()

    def _start(self, command: tuple[str, ...]) -> None:
        self._stop(0.0)
        launch = replace(self._launch, command=command, environment=_node_variables(self._launch))
        self._process = Process(launch, launch.port or next(self._ports))
        self._process.start()

    def _stop(self, timeout_s: float) -> None:
        process = self._process
        self._process = None
        if process is not None:
            stop([process], lambda: timeout_s)

    def _check(self) -> Status:
        process = self._process
        if process is not None and self._in_team and process.has_ended:
            self._stop(0.0)
            process = None
        address = ray.util.get_node_ip_address()
        status = Status(address, port=0, running=False, has_started=False)
        if process is not None:
            if not self._in_team:
                process.restart_if_ended()
            is_running = process.running is not None
            status = Status(address, process.port, is_running, process.check_started())
        is_ready = status.running and status.has_started
        self._ready.set(float(is_ready), {"process": self._launch.name})
        return status


def _node_variables(launch: Launch) -> dict[str, str]:
    """Return the variables on this node; Ray sets CUDA_VISIBLE_DEVICES of the actor."""
    has_gpus = launch.bundle and launch.bundle.gpus and visible_gpus({}, os.listdir("/dev"))
    accelerator = "cuda" if has_gpus else "cpu"
    path = python_path(os.environ)
    return {"DS_ACCELERATOR": accelerator, **launch.environment, "PYTHONPATH": path}


@dataclass
class Actor:
    """The driver's handle of a host; its status is None while it cannot be reached."""

    launch: Launch
    handle: Any
    status: Status | None = None

    @property
    def has_started(self) -> bool:
        return self.status is not None and self.status.has_started

    @property
    def is_running(self) -> bool:
        return self.status is not None and self.status.running

    def call(self, method: str, *arguments: Any, timeout_s: float = _CALL_TIMEOUT_S) -> Any:
        """Call a method of the actor; None if it fails, or the actor cannot be reached."""
        try:
            return ray.get(getattr(self.handle, method).remote(*arguments), timeout=timeout_s)
        except RayTaskError as error:
            say(f"{self.launch.name}: {error.cause}")
        except (GetTimeoutError, RayError):
            pass
        return None


def poll(actors: Sequence[Actor]) -> None:
    """Update the status of all actors at once; a slow one keeps its status."""
    calls = {actor.handle.status.remote(): actor for actor in actors}
    finished, _ = ray.wait(list(calls), num_returns=len(calls), timeout=_CALL_TIMEOUT_S)
    for reference in finished:
        try:
            calls[reference].status = ray.get(reference)
        except RayError:
            calls[reference].status = None


@dataclass
class Team:
    """The learner's launchers on several nodes, which start and stop together."""

    members: list[Actor]

    def restart_if_broken(self) -> None:
        """If a member does not run, stop the others; start all when all can be reached."""
        missing = [member.launch.name for member in self.members if not member.is_running]
        if not missing:
            return
        say(f"{', '.join(missing)} must start; the learner's other launchers stop")
        reachable = [member for member in self.members if member.status is not None]
        for member in reachable:
            member.call(
                "stop", _TEAM_STOP_TIMEOUT_S, timeout_s=_TEAM_STOP_TIMEOUT_S + _CALL_TIMEOUT_S
            )
        master = self.members[0].call("master_address")
        if master is None or len(reachable) < len(self.members):
            return
        say(f"the learner's ranks meet at {master[0]}:{master[1]}")
        for node, member in enumerate(self.members):
            assert member.launch.bundle is not None
            ranks = member.launch.bundle.ranks
            member.call("start", learner_command(ranks, node, len(self.members), master))


@dataclass
class Cluster:
    home: Home
    placement: Placement
    environment: Mapping[str, str]
    stopping: bool = False
    actors: list[Actor] = field(default_factory=list)
    team: Team = field(default_factory=lambda: Team([]))

    def up(self) -> None:
        """Place all processes, and keep them running until a signal to stop."""
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)
        try:
            self._place()
            deadline = time.monotonic() + START_TIMEOUT_S
            is_published = False
            while not self.stopping:
                poll(self.actors)
                self.team.restart_if_broken()
                is_published = is_published or self._publish_if_started(deadline)
                time.sleep(_POLL_S)
        finally:
            self._down()
            self.home.withdraw()

    def _place(self) -> None:
        environment = self.environment
        keys, _ = self.home.api_keys(environment)
        secrets = stack_secrets(environment, keys)
        shared = cluster_variables(environment, self.placement)
        shared["WEIR_MEMORY_DIR"] = str(self.home.memory_dir(environment))
        if self.placement.judge is not None:
            (judge,) = self._place_role("judge", [judge_launch(self.placement.judge, environment)])
            poll([judge])
            if judge.status is not None:
                shared["WEIR_JUDGE_URL"] = f"http://{judge.status.address}:{judge.status.port}/v1"
        gateway, *launches = stack_launches(self.placement, shared, environment)
        (front,) = self._place_role("gateway", [add_secrets(gateway, secrets)])
        status = front.call("status", timeout_s=PLACING_TIMEOUT_S)
        url = {"WEIR_GATEWAY_URL": f"http://{status.address}:{status.port}"} if status else {}
        by_role: dict[str, list[Launch]] = {}
        for launch in launches:
            launch = replace(launch, environment={**launch.environment, **url})
            by_role.setdefault(launch.role, []).append(add_secrets(launch, secrets))
        for role, role_launches in by_role.items():
            self._place_role(role, role_launches)
        self._check_folder(Path(environment["WEIR_DATA_DIR"]))

    def _place_role(self, role: str, launches: Sequence[Launch]) -> list[Actor]:
        """Place processes in a placement group, which get their resources together."""
        bundles = [ray_resources(launch) for launch in launches]
        labels: list[dict[str, str]] = [{} for _ in bundles]
        if role == "gateway":
            # On this driver's node, so that its address stays as long as the stack.
            labels = [{"ray.io/node-id": ray.get_runtime_context().get_node_id()}]
        group = placement_group(
            bundles,
            "PACK" if role == "learner" else "SPREAD",
            name=f"weir-{role}",
            bundle_label_selector=labels,
        )
        deadline = time.monotonic() + PLACING_TIMEOUT_S
        while not group.wait(timeout_seconds=1):
            if self.stopping:
                raise StackError("stopped while it was placed")
            if time.monotonic() > deadline:
                free = ray.available_resources()
                raise StackError(
                    f"the cluster has no place for the {role}: it needs {bundles}, and "
                    f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free"
                )
        is_team = role == "learner" and len(launches) > 1
        actors = [
            Actor(launch, _start_actor(launch, group, index, in_team=is_team))
            for index, launch in enumerate(launches)
        ]
        self.actors += actors
        if is_team:
            self.team = Team(actors)
        return actors

    def _check_folder(self, folder: Path) -> None:
        """Raise a `StackError` unless all nodes share the folder of the data."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f".seen-{token_hex(4)}"
        file.touch()
        try:
            for actor in self.actors:
                if actor.call("has_file", str(file), timeout_s=PLACING_TIMEOUT_S) is False:
                    raise StackError(
                        f"WEIR_DATA_DIR={folder} is not shared: the node of {actor.launch.name} "
                        "does not have a file that this node writes there"
                    )
        finally:
            file.unlink()

    def _publish_if_started(self, deadline: float) -> bool:
        # Only the first rank serves HTTP.
        silent = self.team.members[1:]
        late = [
            actor.launch.name
            for actor in self.actors
            if actor.launch.is_awaited and actor not in silent and not actor.has_started
        ]
        if late:
            if time.monotonic() > deadline:
                names = ", ".join(late)
                raise StackError(f"{names} did not start; see their logs in the dashboard")
            return False
        urls: dict[str, str] = {}
        for actor in self.actors:
            status = actor.status
            if status is not None and status.has_started:
                urls[actor.launch.name] = f"http://{status.address}:{status.port}"
        self.home.publish(
            {
                "url": urls["gateway"],
                "api_key": self.home.api_keys(self.environment)[1],
                "metrics": {name: f"{url}/metrics" for name, url in urls.items()},
            }
        )
        return True

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _down(self) -> None:
        timeout_s = stop_timeout_s(Path(self.environment["WEIR_DATA_DIR"]))
        calls = [actor.handle.stop.remote(timeout_s) for actor in self.actors]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        ray.shutdown()
        say("Weir is down")


def _start_actor(launch: Launch, group: PlacementGroup, index: int, *, in_team: bool) -> Any:
    resources = ray_resources(launch)
    options = {
        "name": f"weir-{launch.name}",
        "num_cpus": resources["CPU"],
        "num_gpus": resources.get("GPU", 0),
        "max_restarts": -1,
        "max_concurrency": 4,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, index),
    }
    return ray.remote(Host).options(**options).remote(launch, in_team=in_team)


def main(arguments: Sequence[str]) -> int:
    """Run a stack on the cluster at an address, and return the exit status."""
    if len(arguments) != 1 or not arguments[0]:
        say("usage: weir up --ray ADDRESS")
        return 2
    hide_secrets()
    home = Home.from_environment(os.environ)
    required = ("WEIR_REDIS_URL", "WEIR_DATA_DIR")
    try:
        missing = [name for name in required if not read_variable(os.environ, name)]
        if missing:
            raise StackError(
                f"{' and '.join(missing)} must be set: a Redis and a folder for all nodes"
            )
        home.acquire()
        path = {"PYTHONPATH": python_path(os.environ)}
        ray.init(address=arguments[0], namespace="weir", runtime_env={"env_vars": path})
        placement = choose_for_cluster(ray.nodes(), os.environ)
        say(str(placement) if placement.uses_gpus else "the cluster shows no GPU")
        Cluster(home, placement, os.environ).up()
    except (StackError, PlacementError, ConnectionError, ValueError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
