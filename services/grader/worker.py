"""The grader as a station of the line: a rollout group comes in, a graded group goes out."""

from __future__ import annotations

import time

from protocol.messages import ActiveJob, GradedGroup, RolloutGroup
from protocol.streams import GRADED, ROLLOUTS

from services.chassis.service import Service
from services.chassis.work import Station, work_forever
from services.grader import grading
from services.grader.pool import Pool
from services.grader.settings import Settings
from services.grader.tools import Tools
from services.grader.verifiers import math_answer


async def run(service: Service) -> None:
    """Consumes rollout groups; produces graded groups.

    Waits for: the pool to warm up, then groups. Unblocked by: those, and the service stopping.
    """
    settings = Settings.from_environment()
    async with Pool(settings.workers, warm_ups=[math_answer.WARM_UP]) as pool:
        service.readiness.set(True)
        await work_forever(service, station(Tools(pool), settings.groups_in_flight))


def station(tools: Tools, capacity: int) -> Station[RolloutGroup, GradedGroup]:
    """The place in the line where groups are graded, as many at once as ``capacity``."""

    async def handle(job: ActiveJob, group: RolloutGroup) -> GradedGroup:
        return await grade_group(job, group, tools)

    return Station(
        inputs=(ROLLOUTS,), output=GRADED, failures=GRADED, handle=handle, capacity=capacity
    )


async def grade_group(job: ActiveJob, group: RolloutGroup, tools: Tools) -> GradedGroup:
    """Grade a group as the job's recipe says."""
    started = time.monotonic()
    grades = await grading.grade(job.recipe.reward, group, tools)
    return GradedGroup(
        purpose=group.request.purpose,
        number=group.request.number,
        group=group,
        grades=grades,
        grading_seconds=time.monotonic() - started,
    )
