"""Jobs: submit them, look them up, and ask them to pause, resume or end."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from protocol.bill import make_bill
from protocol.exchange import Exchange, JobQuery, UnreadableRecord
from protocol.messages import JobRecord, JobState, Requested
from protocol.model_folder import is_adapter
from protocol.recipe import Model, Recipe

from services.chassis.service import Service
from services.gateway.core.files.check import MESSAGES
from services.gateway.core.files.store import LOST, FileStore, StoredFile
from services.gateway.core.jobs.folders import copy_models, holds_work
from services.gateway.core.jobs.refusals import (
    check_columns,
    check_free_memory,
    check_graders,
    check_memory_need,
    check_recipe,
)
from services.gateway.core.jobs.submission import Submission
from services.gateway.core.models.checkpoints import parse_checkpoint_id
from services.gateway.core.models.folders import (
    JOB_ID,
    find_folder,
    move_aside,
    read_facts,
    remove_model,
    resolve_model,
)
from services.gateway.errors import Problem, await_exchange, conflict, not_found, wrong

T = TypeVar("T")
AnyJob: TypeAlias = JobRecord | UnreadableRecord
MAX_JOBS_PER_REQUEST = 100
SHARED_READ_S = 1.0
RETRY_WINDOW_S = 3600.0  # the OpenAI SDK gives each of its three tries ten minutes
TURN_TIMEOUT_S = 20.0  # clients wait 30 s for a response
# A job of a list may have ended, gone or begun since it was listed.
_STATUS_OF_CHANGED_JOBS = {400, 404, 409}
_FIELDS = {"tasks.train": "training_file", "tasks.held_out": "validation_file"}
_VERBS = {
    Requested.RUN: "resumed; `weir fork` starts a job from its last checkpoint",
    Requested.PAUSE: "paused",
    Requested.CANCEL: "cancelled",
}


@dataclass(frozen=True)
class Repeat:
    """How a submission can be recognized as a retry of an earlier one."""

    key: str | None = None  # the Idempotency-Key
    caller: str = ""  # who sent the key
    retry_count: int = 0  # x-stainless-retry-count: the OpenAI SDK sends no key with its retries

    @property
    def job_id(self) -> str:
        """The same id for the same key of a caller; without a key a new one."""
        if self.key is None:
            return f"ftjob-{secrets.token_hex(12)}"
        digest = hashlib.sha256(f"{self.caller}\0{self.key}".encode()).hexdigest()
        return f"ftjob-{digest[:24]}"


@dataclass
class JobService:
    service: Service
    files: FileStore
    defaults: Mapping[str, Any] = field(default_factory=dict)  # tables of a recipe
    waiting: Counter[str] = field(default_factory=Counter)  # requests for results, by job
    recent: dict[Any, asyncio.Task[Any]] = field(default_factory=dict)  # shared reads
    one_result: asyncio.Lock = field(default_factory=asyncio.Lock)  # one result file at a time
    # Submissions and deletions take turns: a retry finds the job of the first try, and no file is
    # deleted between its check and the moment when its job is queued.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def exchange(self) -> Exchange:
        return self.service.exchange

    async def shared(self, read: Callable[..., Coroutine[Any, Any, T]], *args: str) -> T:
        """Return ``read(self, *args)``; all calls within a second share one read."""
        key = (read, *args)
        if key not in self.recent:
            self.recent[key] = asyncio.create_task(read(self, *args))
            asyncio.get_running_loop().call_later(SHARED_READ_S, self.recent.pop, key)
        return await asyncio.shield(self.recent[key])

    async def submit(self, submission: Submission, repeat: Repeat) -> JobRecord:
        """Queue a job, or return the job of the submission that this one repeats.

        Raises:
            Problem: 400 naming the wrong field, 422 if the key was sent with another request, 409
                if its job is forgotten and has left its work.
        """
        await await_exchange(self.exchange.ping())  # a silent Redis must not delay whoever waits
        async with self._take_turn():
            record = await self._find_repeated(submission, repeat)
            return record or await self._queue(await self._draw_up(submission, repeat.job_id))

    async def open(self, record: JobRecord) -> JobRecord:
        """Queue the job of a client's model, or return the job that an earlier try queued.

        Raises:
            Problem: 422 if the earlier try asked for another model, 507 if Redis is nearly full.
        """
        await await_exchange(self.exchange.ping())
        async with self._take_turn():
            stored = await self._read(record.id)
            if stored is None:
                check_free_memory(await await_exchange(self.exchange.memory()))
                return await self._queue(record)
        earlier = _readable(stored)
        if earlier.request != record.request:
            message = f"its place in the session was given to another model, {record.id}"
            raise Problem(422, message, param="model_seq_id", code="key_reused")
        return earlier

    async def find(self, job_id: str) -> AnyJob:
        """Return a job, even if its record cannot be read; 404 if there is none."""
        record = await self._read(job_id)
        if record is None:
            raise not_found("job", job_id)
        return record

    async def is_forgotten(self, job_id: str) -> bool:
        """Whether only a job's folder is left. Redis forgets the oldest jobs to gain memory."""
        if JOB_ID.fullmatch(job_id) is None or not self._folder(job_id).is_dir():
            return False
        return await self._read(job_id) is None

    async def get(self, job_id: str) -> JobRecord:
        """Return a job; 404 if there is none, 409 if its record cannot be read."""
        return _readable(await self.find(job_id))

    async def page(
        self, after: str | None, limit: int, filters: JobQuery
    ) -> tuple[list[AnyJob], bool]:
        """Return up to ``limit`` jobs after ``after``, newest first, and whether more follow."""
        jobs = await await_exchange(self.exchange.find_jobs(after, limit + 1, filters))
        if jobs is None:
            raise wrong("after", f"there is no job {after!r}")
        return jobs[:limit], len(jobs) > limit

    async def ask(self, job_id: str, requested: Requested, budget: float | None = None) -> AnyJob:
        """Ask a job to run, pause or end; a failed job runs again from its last checkpoint.

        A job with an unreadable record can only end. A ``budget`` in GPU-hours replaces the job's.

        Raises:
            Problem: 400 or 409 if the job can no longer do it.
        """
        job = await self.find(job_id)
        if isinstance(job, JobRecord) or requested is not Requested.CANCEL:
            record = _readable(job)
            is_cancelled = (
                record.requested is Requested.CANCEL or record.state is JobState.CANCELLED
            )
            if is_cancelled and requested is Requested.CANCEL:
                return record
            has_failed = record.state is JobState.FAILED and not is_cancelled
            if requested is Requested.RUN:
                await self._check_budget(record, budget or record.budget)
            if has_failed and requested is Requested.RUN:
                await await_exchange(self.exchange.request_state(job_id, requested, budget))
                await self._revive(record)
                return await self.get(job_id)
            if is_cancelled or record.state.is_final:
                status = record.state if record.state.is_final else "cancelling"
                message = f"job {job_id} is {status} and cannot be {_VERBS[requested]}"
                raise Problem(400, message, param="id", code="job_ended")
        await await_exchange(self.exchange.request_state(job_id, requested, budget))
        return await self.find(job_id)

    async def _check_budget(self, record: JobRecord, budget: float | None) -> None:
        """Refuse a budget that is spent: the job would pause at once."""
        cost = await await_exchange(self.exchange.cost(record.id))
        spent = make_bill(cost, record.recipe.machine)["gpu_hours"]
        if budget is not None and spent >= budget:
            message = (
                f"the job has used {spent:.4g} GPU-hours of {budget:.4g}; give it a larger one"
            )
            raise conflict(message, param="budget_gpu_hours")

    async def for_each(
        self, filters: JobQuery | None, work: Callable[[str], Awaitable[T]]
    ) -> tuple[list[T], bool]:
        """Return the results of ``work`` on the newest 100 jobs, and whether more jobs remain."""
        if filters is None:
            return [], False
        jobs, has_more = await self.page(None, MAX_JOBS_PER_REQUEST, filters)
        results = []
        for job in jobs:
            try:
                results.append(await work(job.id))
            except Problem as problem:
                if problem.status_code not in _STATUS_OF_CHANGED_JOBS:
                    raise
        return results, has_more

    async def delete_file(self, file_id: str) -> None:
        """Delete a file; 409 if a job that has not ended reads it."""
        async with self._take_turn():
            await asyncio.to_thread(self.files.get, file_id)
            for job in await await_exchange(self.exchange.find_mentions(f'"{file_id}"')):
                # A job with an unreadable record may read the file.
                if isinstance(job, UnreadableRecord) or file_id in job.recipe.task_fields.values():
                    message = f"{file_id} is used by job {job.id}; cancel the job first"
                    raise conflict(message, param="file_id")
            await asyncio.to_thread(self.files.delete, file_id)

    async def expire_files(self) -> None:
        """Delete the expired files that no job needs."""
        expired = await asyncio.to_thread(self.files.expired)
        async with self._take_turn():
            for file_id in expired:
                if not await await_exchange(self.exchange.find_mentions(f'"{file_id}"')):
                    await asyncio.to_thread(self.files.delete_expired, file_id)

    async def delete_model(self, job_id: str) -> None:
        """Delete the model that a job has trained; 404 if there is none, 409 before its end."""
        async with self._take_turn():
            record = await self._read(job_id)
            if record is not None and not record.state.is_final:
                message = f"job {job_id} has not ended; cancel the job first"
                raise conflict(message, param="id")
            await asyncio.to_thread(remove_model, self._folder(job_id))

    async def delete(self, job_id: str) -> Path:
        """Forget a job, and return its folder, which the caller removes.

        Raises:
            Problem: 404, or 409 if it has not ended.
        """
        async with self._take_turn():
            if not await self.is_forgotten(job_id):
                await self.find(job_id)
            # Redis decides by the stored state: an unreadable record does not tell it.
            if not await await_exchange(self.exchange.forget_job(job_id)):
                raise conflict(f"job {job_id} has not ended; cancel it first", param="id")
            folder = self._folder(job_id)
            with suppress(FileNotFoundError):
                return await asyncio.to_thread(move_aside, folder)
            return folder

    def _folder(self, job_id: str) -> Path:
        return self.service.deployment.job_dir(job_id)

    @asynccontextmanager
    async def _take_turn(self) -> AsyncIterator[None]:
        """Hold the lock, or give up with 503: its holder may be copying a model."""
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await self._turn.acquire()
        except TimeoutError as error:
            message = "another submission or deletion is still running; retry the request"
            raise Problem(503, message, code="busy", headers={"Retry-After": "2"}) from error
        try:
            yield
        finally:
            self._turn.release()

    async def _revive(self, record: JobRecord) -> None:
        async with self._take_turn():
            if record.recipe.client is None:
                await self._check_files(record.recipe)
            await await_exchange(self.exchange.revive(record.id))

    async def _check_files(self, recipe: Recipe) -> None:
        for field_name, file_id in recipe.task_fields.items():
            await self._file(file_id, _FIELDS.get(field_name, f"recipe.{field_name}"))

    async def _count_other_tasks(self, recipe: Recipe) -> dict[str, int]:
        """Return the tasks in each further held-out file, by the evaluation's name."""
        counts = {}
        for name, file_id in recipe.held_out_files.items():
            if name:
                stored = await self._file(file_id, f"recipe.evaluation.others.{name}.held_out")
                counts[name] = stored.tasks
        return counts

    async def _find_repeated(self, submission: Submission, repeat: Repeat) -> JobRecord | None:
        if repeat.key is None:
            if repeat.retry_count == 0:
                return None
            since = time.time() - RETRY_WINDOW_S
            first = await await_exchange(self.exchange.submitted_since(since, submission.request))
            job = await self._read(first) if first else None
            return job if isinstance(job, JobRecord) else None
        job_id = repeat.job_id
        job = await self._read(job_id)
        if job is None:
            if await asyncio.to_thread(holds_work, self._folder(job_id)):
                message = (
                    f"the key was used for job {job_id}, which Redis has forgotten, but its "
                    "samples, checkpoints or model remain; use a new key, or DELETE that job first"
                )
                raise conflict(message, param="Idempotency-Key")
            return None
        record = _readable(job)
        if record.request != submission.request:
            message = f"the key was used with another body, for job {record.id}; use a new key"
            raise Problem(422, message, param="Idempotency-Key", code="key_reused")
        return record

    async def _queue(self, record: JobRecord) -> JobRecord:
        deployment = self.service.deployment
        recipe = await asyncio.to_thread(copy_models, record.recipe, deployment, record.id)
        record = record.model_copy(update={"recipe": recipe})
        try:
            await await_exchange(self.exchange.submit(record))
        except Problem as problem:
            message = (
                f"Redis did not confirm that job {record.id} is queued: send the request again "
                "with the same Idempotency-Key (a retry by the OpenAI SDK itself finds the job as "
                f"well), or check whether GET /v1/fine_tuning/jobs/{record.id} shows it"
            )
            headers = dict(problem.headers or {})
            raise Problem(503, message, code=problem.code, headers=headers) from problem
        return record

    async def _draw_up(self, submission: Submission, job_id: str) -> JobRecord:
        training = submission.training_files
        files = {name: await self._file(file_id, name) for name, file_id in training.items()}
        num_tasks = sum(stored.tasks for stored in files.values())
        num_held_out = 0
        if submission.validation_file:
            validation = await self._file(submission.validation_file, "validation_file")
            files["validation_file"] = validation
            num_held_out = validation.tasks
        adapter = await self._find_adapter(submission.model)
        recipe = await asyncio.to_thread(self._build_recipe, submission, files, num_tasks, adapter)
        await check_graders(self.exchange, recipe.reward, submission.outcome_field)
        memory = await await_exchange(self.exchange.memory())
        check_free_memory(memory)
        held_out = {"": num_held_out, **await self._count_other_tasks(recipe)}
        check_memory_need(recipe, held_out, memory)
        return JobRecord(
            id=job_id,
            created_at=time.time(),
            recipe=recipe,
            num_tasks=num_tasks,
            request=submission.request,
        )

    async def _find_adapter(self, model: str) -> Model | None:
        """Return the base model and the adapter of a job's model; None for a whole model."""
        deployment = self.service.deployment
        folder = await asyncio.to_thread(find_folder, model, deployment)
        if folder is None or not is_adapter(folder):
            return None
        checkpoint = parse_checkpoint_id(model, deployment.jobs_dir)
        job = await self._read(checkpoint.job_id if checkpoint else model)
        if not isinstance(job, JobRecord) or job.recipe.model.lora is None:
            return None
        lora = job.recipe.model.lora.model_copy(update={"adapter": str(folder)})
        return job.recipe.model.model_copy(update={"lora": lora})

    def _build_recipe(
        self,
        submission: Submission,
        files: Mapping[str, StoredFile],
        num_tasks: int,
        adapter: Model | None,
    ) -> Recipe:
        deployment = self.service.deployment
        path = submission.model if adapter is None else adapter.path
        model = resolve_model(path, deployment)
        facts = read_facts(model)
        recipe = submission.build_recipe(model, num_tasks, facts)
        if recipe.only_evaluates:
            lora = None if adapter is None else adapter.lora
            measured = recipe.model.model_copy(update={"lora": lora})
            recipe = recipe.model_copy(update={"model": measured})
        elif adapter is not None:
            resolve_model(submission.model, deployment)  # says that no job can start from it
        if recipe.critic is not None and recipe.critic.path is not None:
            path = resolve_model(recipe.critic.path, deployment, "recipe.critic.path")
            critic = recipe.critic.model_copy(update={"path": path})
            recipe = recipe.model_copy(update={"critic": critic})
        for field_name, stored in files.items():
            check_columns(recipe, stored, field_name)
        message_fields = [
            name for name, stored in files.items() if (stored.columns or {}).get(MESSAGES)
        ]
        has_extensions = bool(deployment.extensions)
        check_recipe(recipe, facts, has_extensions=has_extensions, message_fields=message_fields)
        return recipe

    async def _file(self, file_id: str, field_name: str) -> StoredFile:
        stored = await asyncio.to_thread(self.files.find, file_id)
        if stored is None:
            reason = f"there is no file {file_id!r}; upload it with POST /v1/files"
            raise wrong(field_name, reason, code="file_not_found")
        if not await asyncio.to_thread(self.files.is_whole, stored):
            reason = f"the content of {file_id} {LOST}; upload it again"
            raise wrong(field_name, reason, code="content_lost")
        return stored

    async def _read(self, job_id: str) -> AnyJob | None:
        try:
            return await await_exchange(self.exchange.job(job_id))
        except UnreadableRecord as record:
            return record


def _readable(job: AnyJob) -> JobRecord:
    if isinstance(job, UnreadableRecord):
        raise conflict(str(job), param="id")
    return job
