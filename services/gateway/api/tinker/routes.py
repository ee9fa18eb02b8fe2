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

from services.gateway.api.dependencies import Jobs
from services.gateway.api.places import PASSES, WAITING
from services.gateway.api.tinker import bodies, listings, training_runs, wire
from services.gateway.api.tinker.bodies import Json, JsonBody
from services.gateway.api.tinker.futures import PROTOBUF, await_while_connected
from services.gateway.api.tinker.futures import retrieve_future as retrieve_operation
from services.gateway.api.tinker.samples import (
    SampleFutures,
    parse_sampler_id,
    resolve_sampler_id,
    sampler_object,
)
from services.gateway.core.calls.pending import PendingCalls
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.folders import find_base_models
from services.gateway.errors import Problem, wrong

Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0)]
# The SDK's options, as this gateway needs them.
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
_DYNAMIC_CONFIG = {"sample_cancel_enabled": True, "refresh_interval_sec": 300}
_BINARY = {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_RESULT: dict[int | str, Json] = {
    200: {"description": "The result, or why it failed", "content": _OBJECT | _BINARY},
    408: {"description": "It is not done; ask again", "content": _OBJECT},
}
_tinker = APIRouter(prefix="/api/v1", tags=["tinker"])


def install(app: FastAPI, jobs: JobService, pending_calls: PendingCalls) -> None:
    app.state.samples = SampleFutures(jobs, pending_calls)
    app.include_router(_tinker)


def _text(body: Json, name: str) -> str:
    value = body.get(name) or ""
    if not isinstance(value, str):
        raise wrong(name, "must be a text")
    return value


# ---------------------------------------------------------------------- the server


@_tinker.get("/healthz")
async def get_health() -> Json:
    """Say that the gateway is up."""
    return {"status": "ok"}


@_tinker.post("/client/config")
async def get_config(body: JsonBody) -> Json:
    """Return the options of the SDK."""
    return _CONFIG


@_tinker.post("/client/dynamic_config")
async def get_dynamic_config(body: JsonBody) -> Json:
    """Return the options that the SDK refreshes."""
    return _DYNAMIC_CONFIG


@_tinker.post("/telemetry")
async def drop_telemetry(body: JsonBody) -> Json:
    """Accept the SDK's telemetry, and drop it."""
    return {"status": "accepted"}


@_tinker.get("/get_server_capabilities")
def get_server_capabilities(jobs: Jobs) -> Json:
    """List the base models."""
    deployment = jobs.service.deployment
    supported: list[Json] = []
    for name, folder in find_base_models(deployment).items():
        with suppress(Problem):  # a damaged model is not offered
            described = training_runs.describe_model(str(folder), jobs.defaults)
            entry = {
                "model_name": name,
                "max_context_length": described.max_context,
                "trainable": True,
                "sampleable": True,
            }
            supported.append(entry)
    return {"supported_models": supported}


# ---------------------------------------------------------------------- sessions and models


@_tinker.post("/create_session")
async def create_session(body: JsonBody) -> Json:
    """Begin a session, which is not stored before it has a model."""
    return {"session_id": secrets.token_hex(12), "type": "create_session"}


@_tinker.post("/session_heartbeat")
def keep_session(body: JsonBody, jobs: Jobs) -> Json:
    """Take the heartbeat of a session's client."""
    for job_id in training_runs.list_job_ids(jobs, _text(body, "session_id")):
        training_runs.operation_log(jobs, job_id).touch()
    return {"type": "session_heartbeat"}


@_tinker.post("/sessions/{session_id}/finish")
async def finish_session(session_id: str, jobs: Jobs) -> Json:
    """Let the jobs of a session end behind their operations."""
    for record in await listings.list_runs(jobs, session_id):
        await training_runs.enqueue_end(jobs, record)
    return {}


@_tinker.post("/create_model")
async def create_model(body: JsonBody, jobs: Jobs, request: Request) -> Json:
    """Queue a job for a new model of a session."""
    owner = request.scope["key"].name
    return await training_runs.create_model(jobs, bodies.parse(bodies.CreateModel, body), owner)


@_tinker.post("/unload_model")
async def unload_model(body: JsonBody, jobs: Jobs) -> Json:
    """Let the job of a model end behind its operations."""
    record = await training_runs.get_client_job(jobs, _text(body, "model_id"))
    return training_runs.build_future(record.id, await training_runs.enqueue_end(jobs, record))


@_tinker.post("/get_info")
async def get_info(body: JsonBody, jobs: Jobs) -> Json:
    """Describe a model; its tokenizer has the client's name of the base model."""
    record = await training_runs.get_client_job(jobs, _text(body, "model_id"))
    base = record.request["base_model"]
    lora = record.recipe.model.lora
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
    """Add the gradients of a loss to those of the next step, or only compute the loss."""
    message = await asyncio.to_thread(wire.parse_request, await request.body())
    number = bodies.parse_number({"seq_id": message.seq_id})

    def build(record: JobRecord) -> Operation:
        return wire.to_operation(message, training_runs.model_bounds(record))

    return await training_runs.enqueue_operation(jobs, message.model_id, number, build)


async def _enqueue(
    jobs: JobService, body: Json, kind: type[bodies.B], to_fields: Callable[[bodies.B], Json]
) -> Json:
    """Enqueue an operation with fields from a body of some kind."""
    number = bodies.parse_number(body)
    body_fields = {name: body[name] for name in body.keys() - {"model_id", "seq_id"}}

    def build(_: JobRecord) -> Operation:
        return Operation(number=number, **to_fields(bodies.parse(kind, body_fields)))

    return await training_runs.enqueue_operation(jobs, str(body.get("model_id")), number, build)


@_tinker.post("/optim_step")
async def optim_step(body: JsonBody, jobs: Jobs) -> Json:
    """Update the weights with the gradients that have been added up."""
    return await _enqueue(
        jobs, body, bodies.OptimStep, lambda step: {"do": "optim_step", "adam": step.adam_params}
    )


@_tinker.post("/save_weights")
async def save_weights(body: JsonBody, jobs: Jobs) -> Json:
    """Save weights and optimizer, to resume from them."""

    def to_fields(save: bodies.SaveWeights) -> Json:
        name = save.path or f"state-{body['seq_id']:06d}"
        return {"do": "save_state", "name": name, "overwrite": save.overwrite}

    return await _enqueue(jobs, body, bodies.SaveWeights, to_fields)


@_tinker.post("/save_weights_for_sampler")
async def save_weights_for_sampler(body: JsonBody, jobs: Jobs) -> Json:
    """Save weights to sample from, under a name or for this session alone."""
    return await _enqueue(
        jobs,
        body,
        bodies.SaveWeights,
        lambda save: {"do": "save_sampler", "name": save.sampler_name},
    )


@_tinker.post("/load_weights")
async def load_weights(body: JsonBody, jobs: Jobs, request: Request) -> Json:
    """Load a saved state into a model, or into a new one."""
    if body.get("session_id") is not None:
        return await create_model(body, jobs, request)

    def to_fields(load: bodies.LoadWeights) -> Json:
        source = training_runs.find_state(jobs, load.path, own_model=body["model_id"])
        return {"do": "load_state", "source": source, "with_optimizer": load.optimizer}

    return await _enqueue(jobs, body, bodies.LoadWeights, to_fields)


# ---------------------------------------------------------------------- samples and futures


@_tinker.post("/create_sampling_session")
async def create_sampling_session(body: JsonBody, jobs: Jobs) -> Json:
    """Return the id of a sampler of saved weights, or of a base model."""
    sampler_id = parse_sampler_id(_text(body, "base_model"), _text(body, "model_path"))
    await resolve_sampler_id(sampler_id, jobs)
    return {"sampling_session_id": sampler_id, "type": "create_sampling_session"}


@_tinker.get("/samplers/{sampler_id:path}")
async def get_sampler(sampler_id: str, jobs: Jobs) -> Json:
    """Describe a sampler."""
    return await sampler_object(sampler_id, jobs)


@_tinker.post("/asample")
async def sample(body: JsonBody, request: Request) -> Json:
    """Begin to sample responses to a prompt."""
    return await request.app.state.samples.begin(bodies.parse(bodies.SampleRequest, body))


@_tinker.post("/cancel_future")
async def cancel_future(body: JsonBody, request: Request) -> Json:
    """Stop sampling."""
    request.app.state.samples.cancel(_text(body, "request_id"))
    return {}


@_tinker.post(
    "/retrieve_future",
    response_model=None,
    responses=_RESULT,
    dependencies=[Depends(WAITING)],
)
async def retrieve_future(body: JsonBody, jobs: Jobs, request: Request) -> Response:
    """Wait for the result of an operation, or for samples, 15 seconds at most."""
    request_id = _text(body, "request_id")
    state = request.app.state
    if ":" not in request_id:
        return await await_while_connected(request, state.samples.retrieve(request_id))
    operation = retrieve_operation(request_id, jobs, state.watchdog.queue_places)
    return await await_while_connected(request, operation)


# ---------------------------------------------------------------------- listings


@_tinker.get("/training_runs")
async def list_runs(
    jobs: Jobs, limit: Limit = 20, offset: Offset = 0, access_scope: str = "", project_id: str = ""
) -> Json:
    """List the models of clients, newest first."""
    records, cursor = listings.paginate(await listings.list_runs(jobs), limit, offset)
    runs = [await listings.run_object(jobs, record) for record in records]
    return {"training_runs": runs, "cursor": cursor}


@_tinker.get("/training_runs/{run_id}")
async def get_run(run_id: str, jobs: Jobs, access_scope: str = "") -> Json:
    """Describe a model of a client."""
    return await listings.run_object(jobs, await training_runs.get_client_job(jobs, run_id, "id"))


@_tinker.get("/training_runs/{run_id}/checkpoints")
async def list_run_checkpoints(run_id: str, jobs: Jobs) -> Json:
    """List the checkpoints of a model, newest first."""
    record = await training_runs.get_client_job(jobs, run_id, "id")
    return {"checkpoints": await asyncio.to_thread(listings.list_checkpoints, jobs, [record])}


@_tinker.delete("/training_runs/{run_id}/checkpoints/{checkpoint_id:path}", status_code=204)
async def delete_run_checkpoint(run_id: str, checkpoint_id: str, jobs: Jobs) -> None:
    """Delete a checkpoint."""
    await listings.delete_checkpoint(jobs, run_id, checkpoint_id)


@_tinker.get("/checkpoints")
async def list_checkpoints(jobs: Jobs, limit: Limit = 100, offset: Offset = 0) -> Json:
    """List the checkpoints of all clients, newest first."""
    records = await listings.list_runs(jobs)
    checkpoints = await asyncio.to_thread(listings.list_checkpoints, jobs, records)
    page, cursor = listings.paginate(checkpoints, limit, offset)
    return {"checkpoints": page, "cursor": cursor}


@_tinker.get("/sessions")
async def list_sessions(
    jobs: Jobs, limit: Limit = 20, offset: Offset = 0, access_scope: str = ""
) -> Json:
    """List the sessions that have models, newest first."""
    records = await listings.list_runs(jobs)
    session_ids = dict.fromkeys(record.request["session_id"] for record in records)
    page, _ = listings.paginate([*session_ids], limit, offset)
    return {"sessions": page}


@_tinker.get("/sessions/{session_id}")
async def get_session(session_id: str, jobs: Jobs, access_scope: str = "") -> Json:
    """List the models of a session."""
    records = await listings.list_runs(jobs, session_id)
    return {"training_run_ids": [record.id for record in reversed(records)], "sampler_ids": []}


@_tinker.post("/weights_info")
async def get_weights_info(body: JsonBody, jobs: Jobs) -> Json:
    """Describe the model of saved weights."""
    param = "tinker_path"
    checkpoint = training_runs.Checkpoint.parse(_text(body, param), param)
    record = await training_runs.get_client_job(jobs, checkpoint.job_id, param)
    return listings.weights_object(record)


@_tinker.api_route(
    "/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
)
async def refuse_other_route(path: str) -> None:
    """Answer 404 to every other route of the SDK."""
    reason = f"/api/v1/{path} is not supported; docs/how-to/tinker.md lists the routes"
    raise Problem(404, reason, code="not_supported")
