"""The routes that the SDK of Tinker calls, below ``/api/v1``."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from protocol.messages import JobRecord
from protocol.operations import Operation

from services.gateway.api.places import PASSES, WAITING
from services.gateway.api.tinker import archive, bodies, clients, wire
from services.gateway.api.tinker.bodies import Json, Sent
from services.gateway.api.tinker.futures import PROTOBUF, result_of, while_asked
from services.gateway.api.tinker.samples import Samples, sampler_name, sampler_object, served_by
from services.gateway.core.calls.pending import PendingCalls
from services.gateway.core.jobs.service import Jobs, JobService
from services.gateway.core.models.folders import all_models, find_folder
from services.gateway.errors import Problem, wrong

Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0)]
# What the SDK can do otherwise, and how this gateway wants it.
_CONFIG = {
    "pjwt_auth_enabled": False,
    "parallel_fwdbwd_chunks": True,
    "proto_write_fwdbwd": True,  # SDKs before 0.25 send JSON otherwise
    "fwd_via_fwdbwd": True,
    "proto_compress_fwdbwd": False,
    "fwdbwd_max_chunk_len": 1024,
    "fwdbwd_max_chunk_bytes_count": 50_000_000,
    "sample_max_concurrent_requests": 256,
    "sample_enable_stuck_detection": False,
    "sample_use_retrieve_futures": False,
    "custom_loss_server_side": False,
    "sample_join_sampling_session": False,
}
_DYNAMIC = {"sample_cancel_enabled": True, "refresh_interval_sec": 300}
_BINARY = {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_RESULT: dict[int | str, Json] = {
    200: {"description": "What it came to, or why it failed", "content": _OBJECT | _BINARY},
    408: {"description": "It is not done; ask again", "content": _OBJECT},
}
_tinker = APIRouter(prefix="/api/v1", tags=["tinker"])


def install(app: FastAPI, jobs: JobService, desk: PendingCalls) -> None:
    app.state.samples = Samples(jobs, desk)
    app.include_router(_tinker)


def _text(body: Sent, name: str) -> str:
    if not isinstance(value := body.get(name) or "", str):
        raise wrong(name, "must be a text")
    return value


def _owner(request: Request) -> str:
    return request.scope["key"].name


# ---------------------------------------------------------------------- the server


@_tinker.get("/healthz")
async def tell_health() -> Json:
    """That the gateway answers."""
    return {"status": "ok"}


@_tinker.post("/client/config")
async def tell_config(body: Sent) -> Json:
    """How the SDK is to behave."""
    return _CONFIG


@_tinker.post("/client/dynamic_config")
async def tell_dynamic_config(body: Sent) -> Json:
    """The part of it that the SDK asks for again and again."""
    return _DYNAMIC


@_tinker.post("/telemetry")
async def drop_telemetry(body: Sent) -> Json:
    """Accept what the SDK tells about itself, and keep nothing of it."""
    return {"status": "accepted"}


@_tinker.get("/get_server_capabilities")
def tell_capabilities(jobs: Jobs) -> Json:
    """The base models that there are."""
    deployment = jobs.service.deployment
    told, can = [], {"trainable": True, "sampleable": True}
    for model in all_models(deployment):
        folder = find_folder(model["id"], deployment) if model["owned_by"] == "system" else None
        with suppress(Problem):  # what is damaged is not offered
            if folder is not None:
                context = clients.model_at(str(folder), jobs.defaults).max_context
                told.append({"model_name": model["id"], "max_context_length": context, **can})
    return {"supported_models": told}


# ---------------------------------------------------------------------- sessions and models


@_tinker.post("/create_session")
async def create_session(body: Sent) -> Json:
    """Begin a session, which leaves no trace before it has a model."""
    return {"session_id": secrets.token_hex(12), "type": "create_session"}


@_tinker.post("/session_heartbeat")
def keep_session(body: Sent, jobs: Jobs) -> Json:
    """Say that the client of a session is there."""
    for job_id in clients.jobs_of(jobs, _text(body, "session_id")):
        clients.log_of(jobs, job_id).touch()
    return {"type": "session_heartbeat"}


@_tinker.post("/sessions/{session_id}/finish")
async def finish_session(session_id: str, jobs: Jobs) -> Json:
    """Have the jobs of a session end when they have done what they were asked."""
    for record in await archive.runs(jobs, session_id):
        await clients.end(jobs, record)
    return {}


@_tinker.post("/create_model")
async def create_model(body: Sent, jobs: Jobs, request: Request) -> Json:
    """Queue a job for a new model of a session."""
    return await clients.create(jobs, bodies.read(bodies.NewModel, body), _owner(request))


@_tinker.post("/unload_model")
async def unload_model(body: Sent, jobs: Jobs) -> Json:
    """Have the job of a model end when it has done what it was asked."""
    record = await clients.client_job(jobs, _text(body, "model_id"))
    return clients.future(record.id, await clients.end(jobs, record))


@_tinker.post("/get_info")
async def get_info(body: Sent, jobs: Jobs) -> Json:
    """What a model is; its tokenizer has the name by which the client named the base model."""
    record = await clients.client_job(jobs, _text(body, "model_id"))
    base, lora = record.request["base_model"], record.recipe.model.lora
    return {
        "type": "get_info",
        "model_id": record.id,
        "model_name": base,
        "model_data": {"model_name": base, "tokenizer_id": base},
        "is_lora": lora is not None,
        "lora_rank": lora and lora.rank,
    }


# ---------------------------------------------------------------------- operations


@_tinker.post(
    "/forward_backward",
    openapi_extra={"requestBody": {"content": _BINARY}},
    dependencies=[PASSES],
)
async def forward_backward(request: Request, jobs: Jobs) -> Json:
    """Add the gradients of a loss to those that wait for the next step, or only compute it."""
    sent = await asyncio.to_thread(wire.read_request, await request.body())
    number = bodies.number_of({"seq_id": sent.seq_id})

    def make(record: JobRecord) -> Operation:
        return wire.operation_of(sent, clients.bounds_of(record))

    return await clients.take(jobs, sent.model_id, number, make)


async def _take(
    jobs: JobService, body: Json, kind: type[bodies.B], make: Callable[[bodies.B], Json]
) -> Json:
    """Take an operation, whose values are made of a body of a kind."""
    number, job_id = bodies.number_of(body), str(body.get("model_id"))
    own = {name: value for name, value in body.items() if name not in {"model_id", "seq_id"}}
    return await clients.take(
        jobs, job_id, number, lambda _: Operation(number=number, **make(bodies.read(kind, own)))
    )


@_tinker.post("/optim_step")
async def optim_step(body: Sent, jobs: Jobs) -> Json:
    """Change the weights by the gradients that have been added up."""
    return await _take(
        jobs, body, bodies.OptimStep, lambda sent: {"do": "optim_step", "adam": sent.adam_params}
    )


@_tinker.post("/save_weights")
async def save_weights(body: Sent, jobs: Jobs) -> Json:
    """Save weights and optimizer, to go on from."""

    def make(sent: bodies.Save) -> Json:
        name = sent.path or f"state-{body['seq_id']:06d}"
        return {"do": "save_state", "name": name, "overwrite": sent.overwrite}

    return await _take(jobs, body, bodies.Save, make)


@_tinker.post("/save_weights_for_sampler")
async def save_weights_for_sampler(body: Sent, jobs: Jobs) -> Json:
    """Save weights to sample from, under a name or for this session alone."""
    return await _take(
        jobs, body, bodies.Save, lambda sent: {"do": "save_sampler", "name": sent.sampler_name}
    )


@_tinker.post("/load_weights")
async def load_weights(body: Sent, jobs: Jobs, request: Request) -> Json:
    """Load a saved state into a model, or into a new one."""
    if body.get("session_id") is not None:
        return await clients.create(jobs, bodies.read(bodies.NewModel, body), _owner(request))

    def make(sent: bodies.Load) -> Json:
        source = clients.state_at(jobs, sent.path, of_job=body["model_id"])
        return {"do": "load_state", "source": source, "with_optimizer": sent.optimizer}

    return await _take(jobs, body, bodies.Load, make)


# ---------------------------------------------------------------------- samples and futures


@_tinker.post("/create_sampling_session")
async def create_sampling_session(body: Sent, jobs: Jobs) -> Json:
    """Name a sampler of saved weights, or of a base model."""
    path, base = _text(body, "model_path"), _text(body, "base_model")
    name = sampler_name(base, path)
    await served_by(name, jobs)
    return {"sampling_session_id": name, "type": "create_sampling_session"}


@_tinker.get("/samplers/{sampler_id:path}")
async def get_sampler(sampler_id: str, jobs: Jobs) -> Json:
    """What a sampler samples from."""
    return await sampler_object(sampler_id, jobs)


@_tinker.post("/asample")
async def sample(body: Sent, request: Request) -> Json:
    """Begin to sample responses to a prompt."""
    return await request.app.state.samples.ask(bodies.read(bodies.Sample, body))


@_tinker.post("/cancel_future")
async def cancel_future(body: Sent, request: Request) -> Json:
    """Stop to sample what nobody waits for any more."""
    request.app.state.samples.cancel(_text(body, "request_id"))
    return {}


@_tinker.post(
    "/retrieve_future",
    response_model=None,
    responses=_RESULT,
    dependencies=[Depends(WAITING)],
)
async def retrieve_future(body: Sent, jobs: Jobs, request: Request) -> Response:
    """What became of an operation or of samples: wait for it, 15 seconds at most."""
    request_id = _text(body, "request_id")
    state = request.app.state
    if ":" in request_id:
        return await while_asked(request, result_of(request_id, jobs, state.watchdog.places))
    return await while_asked(request, state.samples.result_of(request_id))


# ---------------------------------------------------------------------- what there is


@_tinker.get("/training_runs")
async def list_runs(
    jobs: Jobs, limit: Limit = 20, offset: Offset = 0, access_scope: str = "", project_id: str = ""
) -> Json:
    """The models of clients, newest first."""
    some, cursor = archive.page(await archive.runs(jobs), limit, offset)
    told = [await archive.run_object(jobs, record) for record in some]
    return {"training_runs": told, "cursor": cursor}


@_tinker.get("/training_runs/{run_id}")
async def get_run(run_id: str, jobs: Jobs, access_scope: str = "") -> Json:
    """One model of a client."""
    return await archive.run_object(jobs, await clients.client_job(jobs, run_id, "id"))


@_tinker.get("/training_runs/{run_id}/checkpoints")
async def list_run_checkpoints(run_id: str, jobs: Jobs) -> Json:
    """What a client has saved of a model, newest first."""
    record = await clients.client_job(jobs, run_id, "id")
    return {"checkpoints": await asyncio.to_thread(archive.checkpoints, jobs, record)}


@_tinker.delete("/training_runs/{run_id}/checkpoints/{checkpoint_id:path}", status_code=204)
async def delete_run_checkpoint(run_id: str, checkpoint_id: str, jobs: Jobs) -> None:
    """Delete one of them."""
    await archive.delete_checkpoint(jobs, run_id, checkpoint_id)


@_tinker.get("/checkpoints")
async def list_checkpoints(jobs: Jobs, limit: Limit = 100, offset: Offset = 0) -> Json:
    """What clients have saved, newest first."""
    records = await archive.runs(jobs)
    found = await asyncio.to_thread(archive.all_checkpoints, jobs, records)
    some, cursor = archive.page(found, limit, offset)
    return {"checkpoints": some, "cursor": cursor}


@_tinker.get("/sessions")
async def list_sessions(
    jobs: Jobs, limit: Limit = 20, offset: Offset = 0, access_scope: str = ""
) -> Json:
    """The sessions that have models, newest first."""
    found = dict.fromkeys(record.request["session_id"] for record in await archive.runs(jobs))
    some, _ = archive.page([*found], limit, offset)
    return {"sessions": some}


@_tinker.get("/sessions/{session_id}")
async def get_session(session_id: str, jobs: Jobs, access_scope: str = "") -> Json:
    """The models of a session."""
    records = await archive.runs(jobs, session_id)
    return {"training_run_ids": [record.id for record in reversed(records)], "sampler_ids": []}


@_tinker.post("/weights_info")
async def get_weights_info(body: Sent, jobs: Jobs) -> Json:
    """What saved weights are of."""
    kept = clients.kept_at(_text(body, "tinker_path"), "tinker_path")
    return archive.weights_object(await clients.client_job(jobs, kept.job_id, "tinker_path"))


@_tinker.api_route(
    "/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
)
async def refuse(path: str) -> None:
    """404 for whatever else the SDK may call."""
    why = f"/api/v1/{path} is not here; docs/how-to/tinker.md lists what is"
    raise Problem(404, why, code="not_supported")
