"""The same stack on a Ray cluster: ``weir up --ray ADDRESS``. The only file that imports ray.

Ray places processes, and nothing else: an actor per process runs the command line that `weir up`
runs, starts it again when it ends, and is itself started again elsewhere when its node dies. This
driver asks each actor twice a second how its process fares, which is when it looks. Redis
(WEIR_REDIS_URL) and a folder that every node sees (WEIR_DATA_DIR) are given. Logs and readiness are
in Ray's dashboard. The stack lives as long as this driver: Ctrl-C, ``weir down``, or the end of the
job of ``ray job submit``.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from protocol.placement import Placement, PlacementError, choose_on, visible_gpus
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.metrics import Gauge
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deploy.launches import (
    Launch,
    cluster_variables,
    judge_launch,
    launches,
    learner_command,
    python_path,
    resources_of,
    stack_secrets,
    with_secrets,
)
from deploy.processes import Home, Process, StackError, free_ports, say, stop, stop_timeout_s
from services.chassis.deployment import read_variable
from services.chassis.secret_variables import hide_secrets

PLACING_TIMEOUT_S = 60.0
START_TIMEOUT_S = 300.0
_LOOK_S = 0.5
_TEAM_STOP_S = 3.0  # the others of a broken team have nothing left to save
_CALL_TIMEOUT_S = 5.0
_STRATEGIES = {"learner": "PACK"}  # the others: SPREAD


@dataclass(frozen=True)
class Status:
    address: str
    port: int
    running: bool
    has_started: bool


class Host:
    """An actor: one process of the stack, on the node where Ray has put it.

    A process of a ``team`` waits for `begin`, and is not started again alone.
    """

    def __init__(self, launch: Launch, *, team: bool) -> None:
        self._launch = launch
        self._team = team
        self._ports = free_ports()
        self._process: Process | None = None
        self._ready = Gauge("weir_process_ready", "It has started, and runs", tag_keys=("process",))
        # One thread starts all: what it started is told to leave when it ends.
        self._thread = ThreadPoolExecutor(1)
        if not team:
            self.begin(launch.command)

    def begin(self, command: Sequence[str]) -> None:
        self._thread.submit(self._start, tuple(command)).result()

    def end(self, timeout_s: float) -> None:
        self._thread.submit(self._stop, timeout_s).result()

    def status(self) -> Status:
        """Look after the process, and tell how it fares."""
        return self._thread.submit(self._look_after).result()

    def meeting_place(self) -> tuple[str, int]:
        """The address and a port where launchers on other nodes can meet with the one here."""
        return ray.util.get_node_ip_address(), next(self._ports)

    def sees(self, path: str) -> bool:
        return Path(path).is_file()

    def _start(self, command: tuple[str, ...]) -> None:
        self._stop(0.0)
        launch = replace(self._launch, command=command, environment=_on_node(self._launch))
        self._process = Process(launch, launch.port or next(self._ports))
        self._process.start()

    def _stop(self, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is not None:
            stop([process], lambda: timeout_s)

    def _look_after(self) -> Status:
        if self._process is not None and not self._team:
            self._process.revive()
        elif self._process is not None and self._process.has_ended:
            self._stop(0.0)
        process = self._process
        runs = process is not None and process.running is not None
        has_started = process is not None and process.look()
        self._ready.set(float(runs and has_started), {"process": self._launch.name})
        port = process.port if process else 0
        return Status(ray.util.get_node_ip_address(), port, runs, has_started)


def _on_node(launch: Launch) -> dict[str, str]:
    """The variables of a launch on this node; Ray has set CUDA_VISIBLE_DEVICES for the actor."""
    has_gpus = launch.bundle and launch.bundle.gpus and visible_gpus({}, os.listdir("/dev"))
    by_default = {"DS_ACCELERATOR": "cuda" if has_gpus else "cpu"}
    return {**by_default, **launch.environment, "PYTHONPATH": python_path(os.environ)}


@dataclass
class Actor:
    """A host as the driver sees it."""

    launch: Launch
    handle: Any
    status: Status | None = None  # None: it cannot be reached now

    @property
    def has_started(self) -> bool:
        return self.status is not None and self.status.has_started

    def ask(self, method: str, *arguments: Any, timeout_s: float = _CALL_TIMEOUT_S) -> Any:
        """The answer of the actor; None if it cannot be reached, as while its node is down."""
        try:
            return ray.get(getattr(self.handle, method).remote(*arguments), timeout=timeout_s)
        except RayTaskError as error:  # it was reached, and could not do it
            say(f"{self.launch.name}: {error.cause}")
        except (GetTimeoutError, RayError):
            pass
        return None


def look_at(actors: Sequence[Actor]) -> None:
    """Ask all at once how their processes fare. Who is only slow to answer fares as before."""
    asked = {actor.handle.status.remote(): actor for actor in actors}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_CALL_TIMEOUT_S)
    for reference in answered:
        try:
            asked[reference].status = ray.get(reference)
        except RayError:
            asked[reference].status = None


@dataclass
class Team:
    """The learner's launchers on several nodes, which start and end together."""

    members: list[Actor]

    def look_after(self) -> None:
        """If one has ended or is gone, end the others, and start all anew once all are back."""
        if all(member.status and member.status.running for member in self.members):
            return
        reached = [member for member in self.members if member.status is not None]
        missing = [m.launch.name for m in self.members if not (m.status and m.status.running)]
        say(f"{', '.join(missing)} must begin; the learner's other launchers end")
        for member in reached:
            member.ask("end", _TEAM_STOP_S, timeout_s=_TEAM_STOP_S + _CALL_TIMEOUT_S)
        place = self.members[0].ask("meeting_place")
        if place is None or len(reached) < len(self.members):
            return
        say(f"the learner's ranks meet at {place[0]}:{place[1]}")
        for node, member in enumerate(self.members):
            assert member.launch.bundle is not None
            ranks, nodes = member.launch.bundle.ranks, len(self.members)
            member.ask("begin", learner_command(ranks, node, nodes, place))


@dataclass
class Cluster:
    home: Home
    placement: Placement
    environment: Mapping[str, str]
    stopping: bool = False
    actors: list[Actor] = field(default_factory=list)
    team: Team = field(default_factory=lambda: Team([]))

    def up(self) -> None:
        """Place everything and keep it running until told to stop."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._stop)
        try:
            self._place()
            deadline = time.monotonic() + START_TIMEOUT_S
            told = False
            while not self.stopping:
                look_at(self.actors)
                self.team.look_after()
                told = told or self._tell_when_started(deadline)
                time.sleep(_LOOK_S)
        finally:
            self._down()
            self.home.forget()

    def _place(self) -> None:
        environment = self.environment
        known = stack_secrets(environment, self.home.api_keys(environment)[0])
        shared = cluster_variables(environment, self.placement)
        shared["WEIR_MEMORY_DIR"] = str(self.home.memory(environment))  # of each node
        if self.placement.judge is not None:
            (judge,) = self._place_role("judge", [judge_launch(self.placement.judge, environment)])
            look_at([judge])
            if judge.status is not None:
                shared["WEIR_JUDGE_URL"] = f"http://{judge.status.address}:{judge.status.port}/v1"
        every = launches(self.placement, shared, environment)
        gateway, *others = (with_secrets(launch, known) for launch in every)
        (front,) = self._place_role("gateway", [gateway])
        if at := front.ask("status", timeout_s=PLACING_TIMEOUT_S):
            url = {"WEIR_GATEWAY_URL": f"http://{at.address}:{at.port}"}
            others = [replace(each, environment={**each.environment, **url}) for each in others]
        for role in ("grader", "environment", "rollout", "learner"):
            if of_role := [launch for launch in others if launch.role == role]:
                self._place_role(role, of_role)
        self._check_folder(Path(environment["WEIR_DATA_DIR"]))

    def _place_role(self, role: str, of_role: Sequence[Launch]) -> list[Actor]:
        """One placement group: its processes get their resources together."""
        bundles = [resources_of(launch) for launch in of_role]
        here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        group = placement_group(
            bundles,
            _STRATEGIES.get(role, "SPREAD"),
            name=f"weir-{role}",
            # Where this driver is: the stack ends with it, and its address stays.
            bundle_label_selector=[here] if role == "gateway" else [{} for _ in bundles],
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
        is_team = role == "learner" and len(of_role) > 1
        placed = [
            Actor(launch, _actor(launch, group, index, team=is_team))
            for index, launch in enumerate(of_role)
        ]
        self.actors += placed
        if is_team:
            self.team = Team(placed)
        return placed

    def _check_folder(self, folder: Path) -> None:
        """Every node must see the data that the others write."""
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / f".seen-{secrets.token_hex(4)}"
        mark.touch()
        try:
            for actor in self.actors:
                if actor.ask("sees", str(mark), timeout_s=PLACING_TIMEOUT_S) is False:
                    raise StackError(
                        f"WEIR_DATA_DIR={folder} is not shared: the node of {actor.launch.name} "
                        "does not see what this one writes there"
                    )
        finally:
            mark.unlink()

    def _tell_when_started(self, deadline: float) -> bool:
        mute = self.team.members[1:]  # only the first rank serves
        awaited = [a for a in self.actors if a.launch.is_awaited and a not in mute]
        late = [actor.launch.name for actor in awaited if not actor.has_started]
        if late and time.monotonic() > deadline:
            raise StackError(f"{', '.join(late)} did not start; see their logs in the dashboard")
        if late:
            return False
        where = {a.launch.name: a.status for a in self.actors if a.status and a.has_started}
        urls = {name: f"http://{at.address}:{at.port}" for name, at in where.items()}
        self.home.tell(
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
        leaving = [actor.handle.end.remote(timeout_s) for actor in self.actors]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=timeout_s)
        ray.shutdown()
        say("Weir is down")


def _actor(launch: Launch, group: PlacementGroup, index: int, *, team: bool) -> Any:
    bundle = resources_of(launch)
    options = {
        "name": f"weir-{launch.name}",
        "num_cpus": bundle["CPU"],
        "num_gpus": bundle.get("GPU", 0),
        "max_restarts": -1,
        "max_concurrency": 4,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, index),
    }
    return ray.remote(Host).options(**options).remote(launch, team=team)


def main(arguments: Sequence[str]) -> int:
    """Run a stack on the cluster at an address; returns the exit status."""
    if len(arguments) != 1 or not arguments[0]:
        say("usage: weir up --ray ADDRESS")
        return 2
    hide_secrets()
    home = Home.of(os.environ)
    try:
        required = ("WEIR_REDIS_URL", "WEIR_DATA_DIR")
        if missing := [name for name in required if not read_variable(os.environ, name)]:
            raise StackError(
                f"{' and '.join(missing)} must be set: a Redis, and a folder, that every node sees"
            )
        home.take()
        path = {"PYTHONPATH": python_path(os.environ)}
        ray.init(address=arguments[0], namespace="weir", runtime_env={"env_vars": path})
        placement = choose_on(ray.nodes(), os.environ)
        say(str(placement) if placement.uses_gpus else "the cluster shows no GPU")
        Cluster(home, placement, os.environ).up()
    except (StackError, PlacementError, ConnectionError, ValueError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
