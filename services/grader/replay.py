"""Grade groups again: ``python -m services.grader.replay``, which `services.learner.replay` starts.

Standard input: a packed ActiveJob with the recipe, and packed RolloutGroups. Standard output: a
packed GradedGroup for each, in their order. Exit status: 0, or 2 if they cannot be graded.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from io import BytesIO
from typing import BinaryIO

from protocol.frames import decode, encode, pack, unpack_all
from protocol.messages import ActiveJob, GradedGroup, RolloutGroup

from services.chassis.deployment import DeploymentError, import_extensions
from services.grader.gate import what_is_in_the_way
from services.grader.judge.settings import JudgeSettings
from services.grader.nursery import NurseryError
from services.grader.offline.calibration import WARM_UPS, JudgeDown, judge_of
from services.grader.offline.in_order import in_order
from services.grader.pool import Pool
from services.grader.settings import Settings
from services.grader.tools import Tools
from services.grader.worker import grade_group


class CannotGrade(Exception):
    """The recipe asks for something that is not here; the text says what."""


def main() -> int:
    """Grade all of standard input; returns the exit status."""
    try:
        asyncio.run(_grade(BytesIO(sys.stdin.buffer.read()), sys.stdout.buffer))
    except (CannotGrade, DeploymentError, NurseryError, JudgeDown) as error:
        print(f"weir: {error}", file=sys.stderr)
        return 2
    return 0


async def _grade(asked: BinaryIO, answers: BinaryIO) -> None:
    settings = Settings.from_environment()
    import_extensions("WEIR_GRADER_EXTENSIONS", settings.extensions)
    records = unpack_all(asked)
    job = decode(ActiveJob, next(records))
    reward = job.recipe.reward
    judge_settings = JudgeSettings.from_environment() if reward.checks_of_a_judge else None

    async def groups() -> AsyncIterator[RolloutGroup]:
        for fields in records:
            yield decode(RolloutGroup, fields)

    async with judge_of(judge_settings) as judge:
        if obstacle := what_is_in_the_way(reward, judge):
            raise CannotGrade(obstacle)
        async with Pool(settings.workers, warm_ups=WARM_UPS) as pool:
            tools = Tools(pool, judge)

            async def work(group: RolloutGroup) -> GradedGroup:
                return await grade_group(job, group, tools)

            graded = in_order(groups(), work, at_once=settings.groups_in_flight)
            async with aclosing(graded) as answered:
                async for group in answered:
                    answers.write(pack(encode(group)))
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
