"""Grade groups again: what `services.learner.replay` starts, ``python -m`` with this module.

Standard input: a packed ActiveJob with the recipe, and packed RolloutGroups. Standard output: a
packed GradedGroup for each, in their order. Exit status: 0, or 2 if they cannot be graded.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from io import BytesIO
from typing import BinaryIO

from protocol.frames import decode, encode, pack, unpack_all
from protocol.messages import ActiveJob, RolloutGroup
from protocol.rewards import Reward

from services.chassis.deployment import DeploymentError, import_extensions
from services.chassis.faults import WorkerFault
from services.grader.judge.judge import Judge
from services.grader.judge.settings import deployed_judges
from services.grader.tools import Settings
from services.grader.worker import grade_group, opened, what_is_missing


def main() -> int:
    try:
        asyncio.run(_grade(BytesIO(sys.stdin.buffer.read()), sys.stdout.buffer))
    except (DeploymentError, WorkerFault) as error:
        print(f"weir: {error}", file=sys.stderr)
        return 2
    return 0


async def _grade(asked: BinaryIO, answers: BinaryIO) -> None:
    settings = Settings.from_environment()
    import_extensions("WEIR_GRADER_EXTENSIONS", settings.extensions)
    records = unpack_all(asked)
    job = decode(ActiveJob, next(records, {}))  # whose error names the missing header
    reward = job.recipe.reward
    async with opened(settings, _judges_for(reward)) as tools:
        if missing := what_is_missing(reward, tools):
            raise DeploymentError(missing)
        places = asyncio.Semaphore(settings.groups_in_flight)

        async def graded(group: RolloutGroup) -> bytes:
            async with places:
                return pack(encode(await grade_group(job, group, tools)))

        groups = [decode(RolloutGroup, fields) for fields in records]
        answers.writelines(await asyncio.gather(*map(graded, groups)))
    answers.flush()


def _judges_for(reward: Reward) -> dict[str, Judge]:
    """Those that the recipe asks; none waits for one that is down: here somebody is told."""
    known = deployed_judges()
    asked = {check.model for check in reward.checks_of_a_judge}
    if asked - known.keys():  # by the first one's other names
        asked.add("")
    return {
        name: Judge(replace(each, patient=False)) for name, each in known.items() if name in asked
    }


if __name__ == "__main__":
    sys.exit(main())
