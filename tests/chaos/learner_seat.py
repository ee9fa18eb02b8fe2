"""The learner's process: the product's own, around a team that stands in for the models."""

from __future__ import annotations

from services.chassis.service import Service
from services.learner.job.work import work_on_one_job
from tests.chaos.broken_disk import break_disk
from tests.chaos.hash_team import HashTeam
from tests.chaos.seat_process import run
from tests.chaos.seats import Place


def live(place: Place) -> None:
    """Work on one job, on a disk that may fail."""
    break_disk(place.switches, below=place.data)
    run(place, _learn)


async def _learn(service: Service, place: Place) -> None:
    team = HashTeam(place.switches)
    await work_on_one_job(service, team)
    await team.leave()
