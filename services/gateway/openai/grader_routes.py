"""The routes of graders."""

from __future__ import annotations

from fastapi import APIRouter

from services.gateway.openai.graders import GraderToValidate, checks_of
from services.gateway.paging import Json

graders = APIRouter(prefix="/v1/fine_tuning/alpha/graders", tags=["graders"])


@graders.post("/validate")
def validate_grader(body: GraderToValidate) -> Json:
    """Say what a job would say about this grader."""
    checks_of(body.grader, "grader")
    return body.model_dump(mode="json", exclude_unset=True)
