"""Samples that clients wait for: calls with responses that are retrieved later.

They are only in memory: if a gateway ends, its clients get 410 and repeat their requests.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import Response
from protocol.calls import Call, Served

from services.gateway.api.calls.requests import GenerateRequest
from services.gateway.api.tinker import bodies
from services.gateway.api.tinker.futures import (
    PROTOBUF,
    failure,
    random_timeout_s,
    try_again,
    unknown_future,
)
from services.gateway.api.tinker.training_runs import (
    SAMPLERS,
    Checkpoint,
    get_client_job,
    operation_log,
)
from services.gateway.api.tinker.wire import encode_samples
from services.gateway.core.calls.model_resolution import resolve_model, resolve_sampler
from services.gateway.core.calls.pending import PendingCall, PendingCalls
from services.gateway.core.jobs.service import JobService
from services.gateway.errors import Problem, internal_problem, wrong

log = logging.getLogger(__name__)
FORGET_AFTER_S = 300.0  # after the last request for the samples
MAX_CALLS = 800  # submitted at once, of all clients; the others wait here
POLL_S = 0.05
RETRY_PAUSE_S = 1.0
_BASE = "base:"


def parse_sampler_id(base_model: str, model_path: str) -> str:
    """Return the id of a sampler, with all that is to know about it."""
    if model_path:
        checkpoint = Checkpoint.parse(model_path, "model_path")
        if checkpoint.kind != SAMPLERS:
            reason = "is a state's; sample from what save_weights_for_sampler has saved"
            raise wrong("model_path", reason)
        return f"{checkpoint.job_id}@{checkpoint.name}"
    if not base_model:
        raise wrong("base_model", "required, or a sampling_session_id or a model_path")
    return _BASE + base_model


async def resolve_sampler_id(sampler_id: str, jobs: JobService) -> Served:
    """Find the weights of a sampler; 404 if there are none."""
    job_id, separator, name = sampler_id.partition("@")
    if not separator:
        return await resolve_model(sampler_id.removeprefix(_BASE), jobs)
    served = await resolve_sampler(job_id, name, jobs)
    await asyncio.to_thread(operation_log(jobs, job_id).touch)
    return served


async def sampler_object(sampler_id: str, jobs: JobService) -> dict[str, Any]:
    """Describe a sampler; the SDK loads a tokenizer by the name of the base model."""
    job_id, separator, name = sampler_id.partition("@")
    if not separator:
        return {"sampler_id": sampler_id, "base_model": sampler_id.removeprefix(_BASE)}
    record = await get_client_job(jobs, job_id, "sampler_id")
    return {
        "sampler_id": sampler_id,
        "base_model": record.request["base_model"],
        "model_path": Checkpoint(job_id, SAMPLERS, name).path,
    }


@dataclass(eq=False)
class _Future:
    sampler_id: str
    body: bodies.SampleRequest
    id: str = field(default_factory=lambda: f"sample-{secrets.token_hex(12)}")
    activity: str = ""  # of the rollouts, while the samples wait for them
    retrieved_at: float = field(default_factory=time.monotonic)
    task: asyncio.Task[Response] | None = None

    @property
    def is_forgotten(self) -> bool:
        return time.monotonic() - self.retrieved_at > FORGET_AFTER_S


@dataclass
class SampleFutures:
    jobs: JobService
    pending_calls: PendingCalls
    _futures: dict[str, _Future] = field(default_factory=dict)
    _num_calls: int = 0

    async def begin(self, body: bodies.SampleRequest) -> dict[str, Any]:
        """Begin to sample, and return the future; 400 if no sampler can do it."""
        sampler_id = body.sampling_session_id or parse_sampler_id(body.base_model, body.model_path)
        future = _Future(sampler_id, body)
        self._build_calls(future, future.id, await resolve_sampler_id(sampler_id, self.jobs))
        self._futures = {
            sample_id: earlier
            for sample_id, earlier in self._futures.items()
            if not earlier.is_forgotten
        }
        self._futures[future.id] = future
        future.task = asyncio.create_task(self._sample(future))
        sequences = [f"{future.id}-{index}" for index in range(body.num_samples)]
        return {"request_id": future.id, "sample_sequence_ids": sequences}

    async def retrieve(self, sample_id: str) -> Response:
        """Respond with the samples, 408 if they are not there, 410 if they are unknown."""
        future = self._futures.get(sample_id)
        if future is None or future.task is None:
            raise unknown_future(sample_id)
        future.retrieved_at = time.monotonic()
        await asyncio.wait([future.task], timeout=random_timeout_s())
        future.retrieved_at = time.monotonic()
        if not future.task.done():
            return try_again(sample_id, "active", future.activity or None)
        return future.task.result()

    def cancel(self, sample_id: str) -> None:
        future = self._futures.pop(sample_id, None)
        if future is not None and future.task is not None:
            future.task.cancel()

    async def _sample(self, future: _Future) -> Response:
        """Sample until there is a result, a final refusal, or no client that waits."""
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._reserve_calls(future.body.num_samples):
                    samples = await self._attempt(future, f"{future.id}-{attempt}")
                return Response(samples, media_type=PROTOBUF)
            except Problem as problem:
                if self.jobs.service.stopping.is_set():  # the next gateway answers 410
                    return try_again(future.id, "active")
                if problem.status_code != 503 or future.is_forgotten:
                    return failure(problem.detail, is_users=problem.status_code < 500)
                future.activity = problem.detail
            except Exception as error:
                log.exception("samples of a client failed")
                return failure(internal_problem(error).detail, is_users=False)
            await asyncio.sleep(RETRY_PAUSE_S)

    @asynccontextmanager
    async def _reserve_calls(self, count: int) -> AsyncIterator[None]:
        while self._num_calls and self._num_calls + count > MAX_CALLS:
            await asyncio.sleep(POLL_S)
        self._num_calls += count
        try:
            yield
        finally:
            self._num_calls -= count

    async def _attempt(self, future: _Future, attempt_id: str) -> bytes:
        resolve = partial(resolve_sampler_id, future.sampler_id, self.jobs)
        calls = self._build_calls(future, attempt_id, await resolve())
        changed = asyncio.Event()
        pending = [PendingCall(call, resolve, changed) for call in calls]
        async with aclosing(self.pending_calls.follow(pending)) as changes:
            async for _ in changes:
                future.activity = pending[0].activity
                if future.is_forgotten:
                    raise unknown_future(future.id)
        last_n = future.body.prompt_logprobs_last_n
        return await asyncio.to_thread(encode_samples, pending, last_n)

    def _build_calls(self, future: _Future, attempt_id: str, served: Served) -> list[Call]:
        """Return one call for each sample; the first one returns the log-probs of the prompt."""
        body = future.body
        request = bodies.parse(GenerateRequest, body.to_generate_request(future.sampler_id))
        (call,) = request.build_calls(attempt_id, self.jobs.exchange.me, served)
        calls: list[Call] = []
        for index in range(body.num_samples):
            sampling = request.sampling.build_sampling(index)
            if body.prompt_logprobs and index == 0:
                sampling = sampling.model_copy(update={"prompt_logprobs": True})
            changes = {"id": f"{attempt_id}-{index}", "sampling": sampling}
            calls.append(call.model_copy(update=changes))
        return calls
