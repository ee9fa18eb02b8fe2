"""Do steps continue during evaluations and checkpoints? ``python -m benchmarks.beside``.

Loop, exchange and choice of versions are real; sampling, update and checkpoint only take time. The
table has the median step, and the longest one during an evaluation and during a checkpoint.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from protocol.exchange import connect
from protocol.messages import ActiveJob, GradedGroup, JobEvent, JobState, RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS

from services.chassis.consumer import Consumer, limit_in_flight, work_forever
from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.learner.training.samples import Measured, Sample
from services.rollout.policy_sync import PolicyFollower
from tests.builders import a_graded_group, a_group, a_task
from tests.contract.attempts import Learner
from tests.contract.fake_team import FakeTeam
from tests.contract.valkey_server import Server
from tests.unit.rollout.test_policy_sync import write_folder

UPDATE_S = 0.75
CHECKPOINT_S = 6.0
TRAINING_GROUP_S = 0.6
EVALUATION_GROUP_S = 1.8
PLACES = 4  # groups that a rollout samples at once
GROUPS = 3  # groups of a step per rollout: three quarters of a rollout's capacity
STEPS = 40
EVALUATE_EVERY = 15
SAVE_EVERY = 10


class Paced(FakeTeam):
    """Ranks that only take time."""

    async def train(self, samples: Sequence[Sample]) -> Measured:
        await asyncio.sleep(UPDATE_S)
        return await super().train(samples)

    async def written(self, folder: Path) -> None:
        await asyncio.sleep(CHECKPOINT_S)
        await super().written(folder)

    async def export(self, folder: Path) -> None:
        write_folder(folder)


class PacedEngine:
    """An engine that loads at once."""

    has_died = False

    async def load(self, folder: Path, label: str, *, keep_kv: bool) -> dict[str, float]:
        return {"load": 0.0}

    def shut_down(self) -> None:
        pass


async def roll_out(service: Service) -> None:
    """Run a rollout that waits instead of sampling."""

    async def start_engine(*_: object) -> Any:
        return PacedEngine()

    follower = PolicyFollower(service, start_engine)

    async def answer(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
        async with follower.acquire_engine(request):
            assert follower.serving is not None
            version = follower.serving.policy.number
            is_evaluation = request.purpose is Purpose.EVAL
            await asyncio.sleep(EVALUATION_GROUP_S if is_evaluation else TRAINING_GROUP_S)
            group = a_group(request, [2] * request.group_size, version=version)
            return a_graded_group(group, [1.0, *[0.0] * (request.group_size - 1)])

    stage = Consumer(
        inputs=(EVAL_REQUESTS, REQUESTS),
        output=GRADED,
        failures=GRADED,
        handle=answer,
        free_slots=limit_in_flight(PLACES),
        is_open=follower.serves,
        excluded_inputs=follower.demand.excluded_streams,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.follow_policy_forever())
        tasks.create_task(work_forever(service, stage))


async def measure(server: Server, folder: Path, rollouts: int, num_tasks: int) -> list[JobEvent]:
    """Return the events of one job with ``num_tasks`` held-out tasks for each rollout."""
    async with AsyncExitStack() as stack:
        exchange = await stack.enter_async_context(connect(server.url, me="learner-1.1"))
        learner = Learner(exchange, folder, make_team=Paced)
        evaluation = {"evaluation": {"samples": 2, "every": EVALUATE_EVERY}}
        training = {"checkpoint_every": SAVE_EVERY, "max_staleness": 1}
        training |= {"steps": STEPS, "groups_per_step": rollouts * GROUPS}
        await learner.submit("job", evaluation, **training)
        tasks = (a_task(id=f"task-{number}") for number in range(num_tasks * rollouts))
        lines = (task.model_dump_json(exclude_none=True) for task in tasks)
        (folder / "files" / "train.jsonl").write_text("\n".join(lines))
        for number in range(rollouts):
            environment = {
                "WEIR_DATA_DIR": str(folder),
                "WEIR_HEARTBEAT_S": "0.1",
                "WEIR_REDIS_URL": server.url,
                "WEIR_PORT": "0",
            }
            name = f"rollout-machine-{number}.1"
            connection = await stack.enter_async_context(connect(server.url, me=name))
            service = Service("rollout", Deployment.from_environment(environment), connection)
            task = asyncio.create_task(roll_out(service))
            stack.callback(task.cancel)
        async with asyncio.timeout(600):
            await learner.start()
        record = await learner.record()
        assert record.state is JobState.SUCCEEDED, record.error
        return await learner.events()


def row(events: Sequence[JobEvent]) -> str:
    """Return the median step and the longest ones as cells of the table."""
    times = {event.id: event.created_at for event in events}
    steps = [times[f"step:{number}"] for number in range(1, STEPS + 1)]
    evaluations = [
        (steps[number - 1], times[f"evaluation:{number}"])
        for number in range(EVALUATE_EVERY, STEPS, EVALUATE_EVERY)
    ]
    checkpoints = [
        (steps[number - 1], steps[number - 1] + CHECKPOINT_S)
        for number in range(SAVE_EVERY, STEPS, SAVE_EVERY)
    ]
    during_evaluation: list[float] = []
    during_checkpoint: list[float] = []
    undisturbed: list[float] = []
    for before, after in pairwise(steps):
        if _overlaps(evaluations, before, after):
            during_evaluation.append(after - before)
        elif _overlaps(checkpoints, before, after):
            during_checkpoint.append(after - before)
        else:
            undisturbed.append(after - before)
    median = statistics.median(undisturbed)
    cells = [median]
    for seconds in (max(during_evaluation), max(during_checkpoint)):
        cells += [seconds, seconds / median]
    return " | ".join(f"{value:.2f}" for value in cells)


def _overlaps(spans: Sequence[tuple[float, float]], start: float, end: float) -> bool:
    return any(first < end and start < last for first, last in spans)


def main() -> None:
    """Print the table."""
    print("| rollouts | tasks each | median step (s) | evaluation | ratio | checkpoint | ratio |")
    print("|---|---|---|---|---|---|---|")
    for rollouts, num_tasks in ((1, 4), (1, 16), (2, 4), (4, 4), (8, 4)):
        with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
            data = Path(folder) / "data"
            events = asyncio.run(measure(server, data, rollouts, num_tasks))
            print(f"| {rollouts} | {num_tasks} | {row(events)} |", flush=True)


if __name__ == "__main__":
    main()
