"""Grades groups again, for `services.learner.replay`, which runs this module.

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
from services.grader.worker import find_missing, grade_group, open_tools


def main() -> int:
    try:
        asyncio.run(_grade(BytesIO(sys.stdin.buffer.read()), sys.stdout.buffer))
    except (DeploymentError, WorkerFault) as error:
        print(f"weir: {error}", file=sys.stderr)
        return 2
    return 0


async def _grade(requests: BinaryIO, results: BinaryIO) -> None:
    settings = Settings.from_environment()
    import_extensions("WEIR_GRADER_EXTENSIONS", settings.extensions)
    records = unpack_all(requests)
    job = decode(ActiveJob, next(records, {}))  # an empty input raises an error
    reward = job.recipe.reward
    async with open_tools(settings, _open_judges(reward)) as tools:
        missing = find_missing(reward, tools)
        if missing:
            raise DeploymentError(missing)
        slots = asyncio.Semaphore(settings.groups_in_flight)

        async def grade(group: RolloutGroup) -> bytes:
            async with slots:
                return pack(encode(await grade_group(job, group, tools)))

        groups = [decode(RolloutGroup, fields) for fields in records]
        results.writelines(await asyncio.gather(*map(grade, groups)))
    results.flush()


def _open_judges(reward: Reward) -> dict[str, Judge]:
    """Return the judges of a reward, which do not wait while they are down."""
    deployed = deployed_judges()
    names = {check.model for check in reward.judge_checks}
    if names - deployed.keys():  # the judge of WEIR_JUDGE_URL has other names
        names.add("")
    judges: dict[str, Judge] = {}
    for name, settings in deployed.items():
        if name in names:
            judges[name] = Judge(replace(settings, patient=False))
    return judges


if __name__ == "__main__":
    sys.exit(main())
