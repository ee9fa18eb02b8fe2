"""Samples that clients wait for: calls of the model door, whose answers are fetched later.

They are kept here alone: after the end of a gateway the SDK hears 410, and asks for them anew.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import Response
from protocol.calls import Call, Served

from services.gateway.api.calls.requests import GenerateRequest
from services.gateway.api.tinker import bodies
from services.gateway.api.tinker.clients import SAMPLERS, Kept, client_job, kept_at, log_of
from services.gateway.api.tinker.futures import PROTOBUF, failed, gone, try_again, wait_s
from services.gateway.api.tinker.wire import samples_of
from services.gateway.core.calls.model_resolution import resolve_model, resolve_sampler
from services.gateway.core.calls.pending import PendingCall, PendingCalls
from services.gateway.core.jobs.service import JobService
from services.gateway.errors import Problem, own_fault, wrong

log = logging.getLogger(__name__)
_FORGOTTEN_S = 300.0  # after nobody has asked for them
_MOST_CALLS = 800  # at the desk at once, of all clients; the others wait here
_LOOK_S = 0.05
_PAUSE_S = 1.0  # before what could not be answered now is asked again
_BASE = "base:"


def sampler_name(base_model: str | None, model_path: str | None) -> str:
    """The id of a sampler; it says all there is to know about it."""
    if model_path:
        kept = kept_at(model_path, "model_path")
        if kept.kind != SAMPLERS:
            why = "is a state's; sample from what save_weights_for_sampler has saved"
            raise wrong("model_path", why)
        return f"{kept.job_id}@{kept.name}"
    if not base_model:
        raise wrong("base_model", "required, or a sampling_session_id or a model_path")
    return _BASE + base_model


async def served_by(sampler: str, jobs: JobService) -> Served:
    """The weights of a sampler; 404 if there are none."""
    job_id, at, name = sampler.partition("@")
    if at:
        return await resolve_sampler(job_id, name, jobs)
    return await resolve_model(sampler.removeprefix(_BASE), jobs)


async def sampler_object(name: str, jobs: JobService) -> dict[str, Any]:
    """What the SDK reads of a sampler; a tokenizer is loaded by the name of the base model."""
    told: dict[str, Any] = {"sampler_id": name, "base_model": name.removeprefix(_BASE)}
    job_id, at, kept = name.partition("@")
    if at:
        record = await client_job(jobs, job_id, "sampler_id")
        told["base_model"] = record.request["base_model"]
        told["model_path"] = Kept(job_id, SAMPLERS, kept).path
    return told


@dataclass(eq=False)
class _Sample:
    sampler: str
    doing: str = ""  # what it waits for
    asked_at: float = field(default_factory=time.monotonic)  # by its client, the last time
    task: asyncio.Task[Response] | None = None

    @property
    def is_forgotten(self) -> bool:
        return time.monotonic() - self.asked_at > _FORGOTTEN_S


@dataclass
class Samples:
    jobs: JobService
    desk: PendingCalls
    _kept: dict[str, _Sample] = field(default_factory=dict)
    _at_desk: int = 0

    async def ask(self, body: bodies.Sample) -> dict[str, Any]:
        """Begin to sample; returns the future of it. 400 if no sampler could answer that."""
        sampler = body.sampling_session_id or sampler_name(body.base_model, body.model_path)
        sample_id = f"sample-{secrets.token_hex(12)}"
        sample = _Sample(sampler)
        self._calls(body, sampler, sample_id, await self._served(sampler))
        self._kept = {each: kept for each, kept in self._kept.items() if not kept.is_forgotten}
        self._kept[sample_id] = sample
        sample.task = asyncio.create_task(self._sampled(sample, body, sample_id))
        sequences = [f"{sample_id}-{index}" for index in range(body.num_samples)]
        return {"request_id": sample_id, "sample_sequence_ids": sequences}

    async def result_of(self, sample_id: str) -> Response:
        """The samples, 408 while they are not there, 410 of those that are not known."""
        if (sample := self._kept.get(sample_id)) is None or sample.task is None:
            raise gone(sample_id)
        sample.asked_at = time.monotonic()
        await asyncio.wait([sample.task], timeout=wait_s())
        sample.asked_at = time.monotonic()
        if not sample.task.done():
            return try_again(sample_id, "active", sample.doing or None)
        return sample.task.result()

    def cancel(self, sample_id: str) -> None:
        if (sample := self._kept.pop(sample_id, None)) is not None and sample.task is not None:
            sample.task.cancel()

    async def _sampled(self, sample: _Sample, body: bodies.Sample, sample_id: str) -> Response:
        """Ask until there is an answer, or a refusal for good, or nobody who wants one."""
        tries, num_calls = 0, body.num_samples
        while True:
            while self._at_desk and self._at_desk + num_calls > _MOST_CALLS:
                await asyncio.sleep(_LOOK_S)
            tries, self._at_desk = tries + 1, self._at_desk + num_calls
            try:
                told = await self._try(sample, body, f"{sample_id}-{tries}")
                return Response(told, media_type=PROTOBUF)
            except Problem as problem:
                if self.jobs.service.stopping.is_set():  # the next gateway says 410
                    return try_again(sample_id, "active")
                if problem.status_code != 503 or sample.is_forgotten:
                    return failed(problem.detail, is_users=problem.status_code < 500)
                sample.doing = problem.detail
            except Exception as error:
                log.exception("samples of a client failed")
                return failed(own_fault(error).detail, is_users=False)
            finally:
                self._at_desk -= num_calls
            await asyncio.sleep(_PAUSE_S)

    async def _try(self, sample: _Sample, body: bodies.Sample, try_id: str) -> bytes:
        news, resolve = asyncio.Event(), partial(self._served, sample.sampler)
        calls = self._calls(body, sample.sampler, try_id, await resolve())
        answers = [PendingCall(call, resolve, news) for call in calls]
        async with aclosing(self.desk.follow(answers)) as looks:
            async for _ in looks:
                sample.doing = answers[0].activity
                if sample.is_forgotten:
                    raise gone(try_id)
        return await asyncio.to_thread(samples_of, answers, body.prompt_logprobs_last_n)

    async def _served(self, sampler: str) -> Served:
        job_id, at, _ = sampler.partition("@")
        served = await served_by(sampler, self.jobs)
        if at:
            await asyncio.to_thread(log_of(self.jobs, job_id).touch)
        return served

    def _calls(self, body: bodies.Sample, sampler: str, try_id: str, served: Served) -> list[Call]:
        """One for each sample; the first tells the log-probs of the prompt."""
        own = {"model": sampler}
        asked = bodies.read(GenerateRequest, own | body.as_asked_at_the_door)
        (call,) = asked.build_calls(try_id, self.jobs.exchange.me, served)
        calls = list[Call]()
        for index in range(body.num_samples):
            changes: dict[str, Any] = {"seed": asked.sampling.build_sampling(index).seed}
            changes["prompt_logprobs"] = body.prompt_logprobs and index == 0
            sampling = call.sampling.model_copy(update=changes)
            calls.append(call.model_copy(update={"id": f"{try_id}-{index}", "sampling": sampling}))
        return calls
