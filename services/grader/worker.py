"""The grader as a station of the line: a rollout group comes in, a graded group goes out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from protocol.messages import ActiveJob, Doing, GradedGroup, RolloutGroup
from protocol.streams import GRADED, ROLLOUTS

from services.chassis.deployment import import_extensions
from services.chassis.metrics import PHASES
from services.chassis.service import Service
from services.chassis.work import Station, up_to, work_forever
from services.grader import gate, grading, trials
from services.grader.answers.units import measure_of
from services.grader.judge.judge import Judge
from services.grader.judge.settings import deployed_judges
from services.grader.pool import Pool, client_code
from services.grader.pool.confinement import keep_memory_private
from services.grader.tools import Settings, Tools
from services.grader.verifiers import equation_steps, math_answer

log = logging.getLogger(__name__)


async def run(service: Service) -> None:
    """Consumes rollout groups, and trials of graders; produces graded groups, and results.

    Waits for: the pool to warm up, a judge that passes its self-test if there is one, then groups.
    Unblocked by: those, and the service stopping.
    """
    PHASES.name("grading", rest="idle")
    settings = Settings.from_environment()
    import_extensions("WEIR_GRADER_EXTENSIONS", settings.extensions)
    await asyncio.to_thread(measure_of, "cm")  # the table of units takes half a second to load
    judges = {name: Judge(each) for name, each in deployed_judges().items()}
    async with opened(settings, judges) as tools, asyncio.TaskGroup() as beside:
        service.activity.offers = gate.offers(tools)
        telling = beside.create_task(gate.tell_forever(service, tools))
        trying = beside.create_task(trials.try_forever(service, tools))
        await work_forever(service, station(tools, settings.groups_in_flight))
        telling.cancel()
        trying.cancel()


@asynccontextmanager
async def opened(settings: Settings, judges: Mapping[str, Judge]) -> AsyncIterator[Tools]:
    """All that this grader works with; each judge, the first one under "", watches over itself."""
    async with AsyncExitStack() as stack:
        warm_ups = [math_answer.WARM_UP, equation_steps.WARM_UP]
        pool = await stack.enter_async_context(Pool(settings.workers, warm_ups=warm_ups))
        sandbox = await stack.enter_async_context(_sandbox(settings)) if settings.python else None
        for judge in judges.values():
            await stack.enter_async_context(judge)
        others = {name: judge for name, judge in judges.items() if name}
        yield Tools(pool, judges.get(""), others, sandbox)


def _sandbox(settings: Settings) -> Pool:
    """The pool for clients' code."""
    keep_memory_private()
    return Pool(settings.workers, warm_ups=[client_code.WARM_UP], confined=True)


def station(tools: Tools, capacity: int) -> Station[RolloutGroup, GradedGroup]:
    """The place in the line where groups are graded, as many at once as ``capacity``."""
    entry = gate.Gate(tools)

    async def handle(job: ActiveJob, group: RolloutGroup) -> GradedGroup:
        entry.admit(job)
        return await grade_group(job, group, tools)

    return Station(
        inputs=(ROLLOUTS,),
        output=GRADED,
        failures=GRADED,
        handle=handle,
        room=up_to(capacity),
        is_open=entry.is_open,
        doing=Doing.GRADES,
    )


async def grade_group(job: ActiveJob, group: RolloutGroup, tools: Tools) -> GradedGroup:
    """Grade a group as the job's recipe says."""
    started = time.monotonic()
    with PHASES.during("grading"):
        grades = await grading.grade(job.recipe.reward, group, tools)
    return GradedGroup(
        purpose=group.request.purpose,
        number=group.request.number,
        group=group,
        grades=grades,
        grading_seconds=time.monotonic() - started,
    )
