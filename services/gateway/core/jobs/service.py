"""Jobs: how one is submitted, shown, and asked to pause, resume or end."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from protocol.exchange import Exchange, UnreadableRecord
from protocol.messages import JobRecord, JobState, Requested
from protocol.recipe import Recipe

from services.chassis.service import Service
from services.gateway.api.openai.graders import refuse_what_graders_lack
from services.gateway.api.openai.job_object import AnyJob, JobFilter, status_of
from services.gateway.api.openai.submission import GRADER, JobRequest, build_recipe
from services.gateway.core.files.check import MESSAGES
from services.gateway.core.files.store import LOST, FileStore, StoredFile
from services.gateway.core.jobs.folders import holds_work, put_aside, with_own_models
from services.gateway.core.jobs.refusals import (
    check,
    check_memory,
    check_room,
    refuse_missing_columns,
)
from services.gateway.core.models.folders import (
    JOB_ID,
    facts_of,
    model_id,
    remove_model,
    resolve_model,
)
from services.gateway.errors import Problem, conflict, in_time, not_found, wrong

T = TypeVar("T")
_AT_ONCE = 100
_SHARED_S = 1.0
_MEANWHILE = {400, 404, 409}  # of a job that has ended, gone or begun since it was found
# The OpenAI SDK gives each of its three tries ten minutes.
_REPEAT_WINDOW_S = 3600.0
_LONGEST_TURN_S = 20.0  # clients wait 30 s for an answer
_ASKED = {
    Requested.RUN: "resumed; `weir fork` starts a job from its last checkpoint",
    Requested.PAUSE: "paused",
    Requested.CANCEL: "cancelled",
}


@dataclass(frozen=True)
class Repeat:
    """What a submission says about being a repeat of an earlier one."""

    key: str | None = None  # the Idempotency-Key
    caller: str = ""  # whose key it is
    retry_count: int = 0  # x-stainless-retry-count: the OpenAI SDK sends no key with its retries

    @property
    def job_id(self) -> str:
        """The same id for the same key, else a new one."""
        if self.key is None:
            return f"ftjob-{secrets.token_hex(12)}"
        digest = hashlib.sha256(f"{self.caller}\0{self.key}".encode()).hexdigest()
        return f"ftjob-{digest[:24]}"


@dataclass
class JobService:
    service: Service
    files: FileStore
    defaults: Mapping[str, Any] = field(default_factory=dict)  # tables of a recipe
    waiting: Counter[str] = field(default_factory=Counter)  # requests for results, by the job
    recent: dict[Any, asyncio.Task[Any]] = field(default_factory=dict)  # reads that are shared
    one_result: asyncio.Lock = field(default_factory=asyncio.Lock)  # for one result file at a time
    # Submitting and deleting take turns: a retry finds the job of the first try, and no file goes
    # between the look at it and the moment when its job is queued.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def exchange(self) -> Exchange:
        return self.service.exchange

    async def shared(self, read: Callable[..., Coroutine[Any, Any, T]], *given: str) -> T:
        """What ``read`` returns; all who ask within a second after the first one get the same."""
        key = (read, *given)
        if key not in self.recent:
            self.recent[key] = asyncio.create_task(read(self, *given))
            asyncio.get_running_loop().call_later(_SHARED_S, self.recent.pop, key)
        return await asyncio.shield(self.recent[key])

    async def submit(self, request: JobRequest, repeat: Repeat) -> JobRecord:
        """Queue a job, or return the one that an earlier try of this submission queued.

        Raises:
            Problem: 400 naming the wrong field, 422 if the key came with another body before, 409
                if its job is forgotten and has left its work.
        """
        model = await asyncio.to_thread(model_id, request.model, self.service.deployment)
        request = request.model_copy(update={"model": model})
        await in_time(self.exchange.ping())  # or each would wait its time while it has the turn
        async with self._holding():
            known = await self._known(request, repeat)
            return known or await self._queue(await self._draw_up(request, repeat.job_id))

    async def open(self, record: JobRecord) -> JobRecord:
        """Queue the job of a client's model, or return that which an earlier try has queued.

        Raises:
            Problem: 422 if the earlier try asked for another model, 507 while Redis is nearly full.
        """
        await in_time(self.exchange.ping())
        async with self._holding():
            found = await self._read(record.id)
            if found is None:
                check_room(await in_time(self.exchange.memory()))
                return await self._queue(record)
        if (known := _readable(found)).request != record.request:
            message = f"its place in the session was given to another model, {record.id}"
            raise Problem(422, message, param="model_seq_id", code="key_reused")
        return known

    async def find(self, job_id: str) -> AnyJob:
        """One job, whether its record can be read or not; 404 if there is none."""
        record = await self._read(job_id)
        if record is None:
            raise not_found("job", job_id)
        return record

    async def is_forgotten(self, job_id: str) -> bool:
        """Whether only its folder is left of a job, as of the oldest when memory is short."""
        is_left = JOB_ID.fullmatch(job_id) and self.service.deployment.job_dir(job_id).is_dir()
        return bool(is_left) and await self._read(job_id) is None

    async def get(self, job_id: str) -> JobRecord:
        """One job; 404 if there is none, 409 if its record cannot be read."""
        return _readable(await self.find(job_id))

    async def page(
        self, after: str | None, limit: int, sought: JobFilter
    ) -> tuple[list[AnyJob], bool]:
        """Up to ``limit`` jobs after ``after``, newest first, and whether there are more."""
        found = await in_time(self.exchange.find_jobs(after, limit + 1, sought))
        if found is None:
            raise wrong("after", f"there is no job {after!r}")
        return found[:limit], len(found) > limit

    async def ask(self, job_id: str, requested: Requested) -> AnyJob:
        """Ask a job to run, pause or end; one that has failed runs again from its last checkpoint.

        One whose record cannot be read can only end. What it cannot do any more is a 400 or 409.
        """
        job = await self.find(job_id)
        if isinstance(job, JobRecord) or requested is not Requested.CANCEL:
            record = _readable(job)
            cancelled = record.requested is Requested.CANCEL or record.state is JobState.CANCELLED
            if cancelled and requested is Requested.CANCEL:
                return record
            if record.state is JobState.FAILED and requested is Requested.RUN and not cancelled:
                await self._revive(record)
                return await self.get(job_id)
            if cancelled or record.state.is_final:
                message = f"job {job_id} is {status_of(record)} and cannot be {_ASKED[requested]}"
                raise Problem(400, message, param="id", code="job_ended")
        await in_time(self.exchange.request_state(job_id, requested))
        return await self.find(job_id)

    async def for_each(
        self, sought: JobFilter | None, work: Callable[[str], Awaitable[T]]
    ) -> tuple[list[T], bool]:
        """What work on the newest 100 that are sought returns, and whether more are left."""
        if sought is None:
            return [], False
        found, has_more = await self.page(None, _AT_ONCE, sought)
        done = []
        for job in found:
            try:
                done.append(await work(job.id))
            except Problem as problem:
                if problem.status_code not in _MEANWHILE:
                    raise
        return done, has_more

    async def delete_file(self, file_id: str) -> None:
        """Delete a file; 409 if a job that has not ended reads it."""
        async with self._holding():
            await asyncio.to_thread(self.files.get, file_id)
            for job in await in_time(self.exchange.jobs_that_name(f'"{file_id}"')):
                # A record that cannot be read may mean that its job reads the file.
                if isinstance(job, UnreadableRecord) or file_id in job.recipe.task_files:
                    message = f"{file_id} is used by job {job.id}; cancel the job first"
                    raise conflict(message, param="file_id")
            await asyncio.to_thread(self.files.delete, file_id)

    async def expire_files(self) -> None:
        """Delete the files whose time is over and that no job needs any more."""
        expired = await asyncio.to_thread(self.files.expired)
        async with self._holding():
            for file_id in expired:
                if not await in_time(self.exchange.jobs_that_name(f'"{file_id}"')):
                    await asyncio.to_thread(self.files.delete_expired, file_id)

    async def delete_model(self, job_id: str) -> None:
        """Delete the model that a job has trained; 404 if there is none, 409 before its end."""
        async with self._holding():
            record = await self._read(job_id)
            if record is not None and not record.state.is_final:
                message = f"job {job_id} has not ended; cancel the job first"
                raise conflict(message, param="id")
            await asyncio.to_thread(remove_model, self.service.deployment.job_dir(job_id))

    async def delete(self, job_id: str) -> Path:
        """Forget a job; returns the folder that is left of it, to be removed.

        Raises:
            Problem: 404, or 409 if it has not ended.
        """
        async with self._holding():
            if not await self.is_forgotten(job_id):
                await self.find(job_id)
            # The stored state decides, since an unreadable record says nothing about it.
            if not await in_time(self.exchange.forget_job(job_id)):
                raise conflict(f"job {job_id} has not ended; cancel it first", param="id")
            return await asyncio.to_thread(put_aside, self.service.deployment.job_dir(job_id))

    @asynccontextmanager
    async def _holding(self) -> AsyncIterator[None]:
        """Hold the turn, or give up with 503: its holder may be copying a model."""
        try:
            async with asyncio.timeout(_LONGEST_TURN_S):
                await self._turn.acquire()
        except TimeoutError as error:
            message = "another submission or deletion is under way; send this again"
            raise Problem(503, message, code="busy", headers={"Retry-After": "2"}) from error
        try:
            yield
        finally:
            self._turn.release()

    async def _revive(self, record: JobRecord) -> None:
        async with self._holding():
            if record.recipe.client is None:
                await self._refuse_lost_files(record.recipe)
            await in_time(self.exchange.revive(record.id))

    async def _refuse_lost_files(self, recipe: Recipe) -> None:
        await self._file(recipe.tasks.train, "training_file")
        if recipe.tasks.held_out is not None:
            await self._file(recipe.tasks.held_out, "validation_file")
        await self._other_tasks(recipe)

    async def _other_tasks(self, recipe: Recipe) -> dict[str, int]:
        """How many tasks are in each further held-out file, by the evaluation's name."""
        param = "recipe.evaluation.others.{}.held_out"
        return {
            name: (await self._file(file_id, param.format(name))).tasks
            for name, file_id in recipe.held_out_files.items()
            if name
        }

    async def _known(self, request: JobRequest, repeat: Repeat) -> JobRecord | None:
        body, job_id = request.as_sent(), repeat.job_id
        if repeat.key is None:
            if repeat.retry_count == 0:
                return None
            since = time.time() - _REPEAT_WINDOW_S
            first = await in_time(self.exchange.submitted_since(since, body))
            found = await self._read(first) if first else None
            return found if isinstance(found, JobRecord) else None
        found = await self._read(job_id)
        if found is None:
            if await asyncio.to_thread(holds_work, self.service.deployment.job_dir(job_id)):
                message = (
                    f"the key was used for job {job_id}, which is forgotten, but whose samples, "
                    "checkpoints or model are left; use a new key, or DELETE that job first"
                )
                raise conflict(message, param="Idempotency-Key")
            return None
        record = _readable(found)
        if record.request != body:
            message = f"the key was used with another body, for job {record.id}; use a new key"
            raise Problem(422, message, param="Idempotency-Key", code="key_reused")
        return record

    async def _queue(self, record: JobRecord) -> JobRecord:
        deployment = self.service.deployment
        recipe = await asyncio.to_thread(with_own_models, record.recipe, deployment, record.id)
        record = record.model_copy(update={"recipe": recipe})
        try:
            await in_time(self.exchange.submit(record))
        except Problem as silent:
            message = (
                f"Redis fell silent before it said whether job {record.id} is queued: send this "
                "again with the same Idempotency-Key (a retry by the OpenAI SDK itself finds the "
                f"job as well), or see whether GET /v1/fine_tuning/jobs/{record.id} shows it"
            )
            headers = dict(silent.headers or {})
            raise Problem(503, message, code=silent.code, headers=headers) from silent
        return record

    async def _draw_up(self, request: JobRequest, job_id: str) -> JobRecord:
        train = await self._file(request.training_file, "training_file")
        held_out = request.validation_file
        validation = await self._file(held_out, "validation_file") if held_out else None
        recipe = await asyncio.to_thread(self._recipe, request, train, validation)
        has_grader = request.method and request.method.reinforcement.grader
        place = GRADER if has_grader else None
        await refuse_what_graders_lack(self.exchange, recipe.reward, place)
        memory = await in_time(self.exchange.memory())
        check_room(memory)
        tasks = {"": validation.tasks if validation else 0, **await self._other_tasks(recipe)}
        check_memory(recipe, tasks, memory)
        return JobRecord(
            id=job_id,
            created_at=time.time(),
            recipe=recipe,
            num_tasks=train.tasks,
            request=request.as_sent(),
        )

    def _recipe(
        self, request: JobRequest, train: StoredFile, validation: StoredFile | None
    ) -> Recipe:
        deployment = self.service.deployment
        model = resolve_model(request.model, deployment)
        facts = facts_of(model)
        recipe = build_recipe(request, model, train.tasks, facts=facts, defaults=self.defaults)
        if recipe.critic is not None and recipe.critic.path is not None:
            path = resolve_model(recipe.critic.path, deployment, "recipe.critic.path")
            critic = recipe.critic.model_copy(update={"path": path})
            recipe = recipe.model_copy(update={"critic": critic})
        files = {"training_file": train} | ({"validation_file": validation} if validation else {})
        for param, stored in files.items():
            refuse_missing_columns(recipe, stored, param)
        with_messages = [param for param, s in files.items() if (s.columns or {}).get(MESSAGES)]
        has_formulas = bool(deployment.extensions)
        check(recipe, facts, has_formulas=has_formulas, with_messages=with_messages)
        return recipe

    async def _file(self, file_id: str, param: str) -> StoredFile:
        stored = await asyncio.to_thread(self.files.find, file_id)
        if stored is None:
            why = f"there is no file {file_id!r}; upload it with POST /v1/files"
            raise wrong(param, why, code="file_not_found")
        if not await asyncio.to_thread(self.files.is_whole, stored):
            why = f"the content of {file_id} {LOST}; upload it again"
            raise wrong(param, why, code="content_lost")
        return stored

    async def _read(self, job_id: str) -> AnyJob | None:
        try:
            return await in_time(self.exchange.job(job_id))
        except UnreadableRecord as unreadable:
            return unreadable


def _readable(job: AnyJob) -> JobRecord:
    if isinstance(job, UnreadableRecord):
        raise conflict(str(job), param="id")
    return job


async def _jobs(request: Request) -> JobService:
    return request.app.state.jobs


Jobs = Annotated[JobService, Depends(_jobs)]
