"""The routes of graders."""

from __future__ import annotations

from fastapi import APIRouter
from protocol.rewards import Reward

from services.gateway.jobs.service import Jobs
from services.gateway.openai.graders import GraderToValidate, outcome_of, refuse_what_graders_lack
from services.gateway.openai.trials import GraderToRun, run_object, run_trial
from services.gateway.paging import Json

router = APIRouter(prefix="/v1/fine_tuning/alpha/graders", tags=["graders"])


@router.post("/validate")
async def validate_grader(body: GraderToValidate, jobs: Jobs) -> Json:
    """Say what a job would say about this grader."""
    reward = Reward.model_validate(outcome_of(body.grader, "grader"))
    await refuse_what_graders_lack(jobs.exchange, reward, "grader")
    return body.model_dump(mode="json", exclude_unset=True)


@router.post("/run")
async def run_grader(body: GraderToRun, jobs: Jobs) -> Json:
    """Grade one response with this grader, as a job would."""
    return run_object(body.grader, await run_trial(jobs.exchange, body.trial()))
