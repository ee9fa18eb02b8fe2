"""Grade groups again: what `services.learner.replay` starts, ``python -m`` with this module.

Standard input: a packed ActiveJob with the recipe, and packed RolloutGroups. Standard output: a
packed GradedGroup for each, in their order. Exit status: 0, or 2 if they cannot be graded.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from io import BytesIO
from typing import BinaryIO

from protocol.frames import decode, encode, pack, unpack_all
from protocol.messages import ActiveJob, GradedGroup, RolloutGroup
from protocol.rewards import Reward

from services.chassis.deployment import DeploymentError, import_extensions
from services.grader.gate import what_is_in_the_way
from services.grader.judge.settings import JudgeSettings, other_judges
from services.grader.offline.at_once import results_of
from services.grader.offline.calibration import WARM_UPS, JudgeDown, judge_of
from services.grader.pool import NoWorkerError, Pool
from services.grader.settings import Settings
from services.grader.tools import Tools
from services.grader.worker import grade_group, sandbox_of


class CannotGrade(Exception):
    """The recipe asks for something that is not here; the text says what."""


def main() -> int:
    """Grade all of standard input; returns the exit status."""
    try:
        asyncio.run(_grade(BytesIO(sys.stdin.buffer.read()), sys.stdout.buffer))
    except (CannotGrade, DeploymentError, NoWorkerError, JudgeDown) as error:
        print(f"weir: {error}", file=sys.stderr)
        return 2
    return 0


async def _grade(asked: BinaryIO, answers: BinaryIO) -> None:
    settings = Settings.from_environment()
    import_extensions("WEIR_GRADER_EXTENSIONS", settings.extensions)
    records = unpack_all(asked)
    job = decode(ActiveJob, next(records))
    reward = job.recipe.reward

    async with AsyncExitStack() as stack:
        tools = await _tools(stack, reward, settings)
        if obstacle := what_is_in_the_way(reward, tools):
            raise CannotGrade(obstacle)

        async def work(group: RolloutGroup) -> GradedGroup:
            return await grade_group(job, group, tools)

        groups = [decode(RolloutGroup, fields) for fields in records]
        for group in await results_of(work, groups, at_once=settings.groups_in_flight):
            answers.write(pack(encode(group)))
    answers.flush()


async def _tools(stack: AsyncExitStack, reward: Reward, settings: Settings) -> Tools:
    """The pool, and the judges that the recipe asks."""
    known = other_judges()
    asked = {check.model for check in reward.checks_of_a_judge}
    judges = {"": JudgeSettings.from_environment()} if asked - known.keys() else {}
    judges |= {name: each for name, each in known.items() if name in asked}
    watched = {
        name: await stack.enter_async_context(judge_of(each)) for name, each in judges.items()
    }
    pool = await stack.enter_async_context(Pool(settings.workers, warm_ups=WARM_UPS))
    sandbox = await stack.enter_async_context(sandbox_of(settings))
    own = watched.pop("", None)
    return Tools(pool, own, {n: judge for n, judge in watched.items() if judge}, sandbox)


if __name__ == "__main__":
    sys.exit(main())
