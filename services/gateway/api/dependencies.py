"""The objects of the gateway that routes ask FastAPI for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from services.gateway.core.jobs.service import JobService


async def _job_service(request: Request) -> JobService:
    return request.app.state.jobs


Jobs = Annotated[JobService, Depends(_job_service)]
