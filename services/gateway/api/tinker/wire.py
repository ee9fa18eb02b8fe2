"""The SDK's protobuf messages, with their tensors as arrays.

The field numbers are those of the SDK. A map is written as its entries and an enum as a number,
which are the same on the wire.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from protocol.operations import Data, LossName, Operation, Result

from services.gateway.core.calls.pending import PendingCall
from services.gateway.errors import wrong

MAX_FIELDS = 2**18  # of a body, since each costs memory
_PACKAGE = "weir.tinker"
_SCHEMA = """
Text = 1 tokens bytes
Chunk = 1 encoded_text Text
Tensor = 1 dense bytes, 2 sparse_csr Text, 3 dtype int32, 4 shape int64*
Input = 1 key string, 2 value Tensor
Datum = 1 model_input Chunk*, 2 loss_fn_inputs Input*
Number = 1 key string, 2 value double
Setting = 1 number double, 2 text string
NamedSetting = 1 key string, 2 value Setting
Request = 1 model_id string, 2 seq_id int32, 3 data Datum*, 4 loss_fn string,\
 5 loss_fn_config Number*, 6 forward_only bool, 7 loss_fn_config_v2 NamedSetting*
Batch = 1 data bytes, 2 offsets bytes, 3 dtype int32
NamedBatch = 1 key string, 2 value Batch
Record = 2 fields NamedBatch*, 3 num_datums int64
Output = 1 loss_fn_output_type string, 2 loss_fn_outputs Record*, 3 metrics Number*
Likely = 1 token_ids bytes, 2 logprobs bytes, 3 k int32, 4 length int32
Sequence = 1 stop_reason int32, 2 tokens bytes, 3 logprobs bytes, 4 topk_sampled_logprobs Likely
Samples = 1 sequences Sequence*, 2 prompt_logprobs bytes
"""
_SCALARS = {"double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_MESSAGE = 11
_OPTIONAL = 1
_REPEATED = 3
# Wire types.
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
# Values of the SDK's enums.
_FLOAT32 = 1
_DTYPES = {_FLOAT32: "<f4", 2: "<i8", 3: "<i4"}
_STOP = 0
_LENGTH = 1
# Each loss reads a weight for each position, and perhaps the log-probs of the sampler.
_WEIGHTS = {"cross_entropy": "weights"}
_TARGETS = "target_tokens"
_LOGPROBS = "logprobs"
_CLIPS = frozenset({"clip_low_threshold", "clip_high_threshold"})
_SETTINGS = {"ppo": _CLIPS, "cispo": _CLIPS}


def _build_messages() -> dict[str, Any]:
    """Return the class of each message of the schema, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="weir/tinker.proto", package=_PACKAGE, syntax="proto3"
    )
    for line in _SCHEMA.strip().splitlines():
        name, _, fields = line.partition(" = ")
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            number, field_name, field_type = text.split()
            kind = field_type.removesuffix("*")
            label = _OPTIONAL if kind == field_type else _REPEATED
            field = message.field.add(name=field_name, number=int(number), label=label)
            field.type = _SCALARS.get(kind, _MESSAGE)  # type: ignore[assignment]  (its own enum)
            if kind not in _SCALARS:
                field.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}")
        )
        for message in file.message_type
    }


_MESSAGES = _build_messages()


def _refuse_too_many_fields(body: bytes) -> None:
    """Raise 400 for a body with more than ``MAX_FIELDS`` fields, before it is parsed.

    A list of numbers counts as one field for each byte. Unknown messages are not parsed.
    """
    count = 0
    parts = [(0, len(body), _MESSAGES["Request"].DESCRIPTOR)]
    while parts:
        position, end, message = parts.pop()
        while position < end:
            count += 1
            tag, position = _read_varint(body, position)
            field = message.fields_by_number.get(tag >> 3)
            wire_type = tag & 7
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type, 0)
            if wire_type in {_VARINT, _BYTES}:
                value, position = _read_varint(body, position)
                size = value if wire_type == _BYTES else 0
            if field is not None and wire_type == _BYTES and field.message_type is not None:
                parts.append((position, position + size, field.message_type))
            elif field is not None and field.is_repeated:
                count += size
            position += size
            if count > MAX_FIELDS:
                raise wrong("body", f"more than {MAX_FIELDS:,} fields; send fewer data at a time")


def _read_varint(body: bytes, position: int) -> tuple[int, int]:
    """Return a number, and the position behind it."""
    value = 0
    shift = 0
    while (byte := body[position]) > 127 and shift < 63:
        value |= (byte & 127) << shift
        shift += 7
        position += 1
    return value | byte << shift, position + 1


class Bounds(NamedTuple):
    """The limits of a model."""

    context: int  # positions of a sequence
    vocabulary: int = 2**31


def parse_request(body: bytes) -> Any:
    """Parse a request for a forward or backward pass; 400 if the body is none."""
    request = _MESSAGES["Request"]()
    try:
        _refuse_too_many_fields(body)
        request.ParseFromString(body)
    except (DecodeError, IndexError) as error:
        reason = "not the protobuf message of a forward or forward_backward request"
        raise wrong("body", reason) from error
    return request


def to_operation(request: Any, bounds: Bounds) -> Operation:
    """Return the operation that a request asks for; 400 names the field that is wrong."""
    losses = get_args(LossName)
    if request.loss_fn not in losses:
        raise wrong("loss_fn", f"{request.loss_fn!r} is not supported; use {', '.join(losses)}")
    return Operation(
        number=request.seq_id,
        do="forward" if request.forward_only else "forward_backward",
        loss=request.loss_fn,
        settings=_parse_settings(request),
        data=_parse_data(request, bounds),
    )


def _parse_settings(request: Any) -> dict[str, float]:
    settings = {entry.key: entry.value for entry in request.loss_fn_config}
    for entry in request.loss_fn_config_v2:
        settings[entry.key] = entry.value.text or entry.value.number
    names = _SETTINGS.get(request.loss_fn, frozenset())
    for name, value in settings.items():
        param = f"loss_fn_config.{name}"
        if name not in names:
            choices = " and ".join(sorted(names)) or "no settings"
            raise wrong(param, f"unknown; {request.loss_fn} has {choices}")
        if isinstance(value, str) or not math.isfinite(value):
            raise wrong(param, "must be a finite number")
    return settings


def _parse_data(request: Any, bounds: Bounds) -> Data:
    if not request.data:
        raise wrong("data", "is empty; give at least one datum")
    rows = [
        _parse_datum(datum, request.loss_fn, bounds, f"data.{index}")
        for index, datum in enumerate(request.data)
    ]
    ids, targets, weights, logprobs = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
    return Data(
        lengths=np.array([len(row[0]) for row in rows]),
        input_ids=ids,
        targets=targets,
        weights=weights,
        behavior_logprobs=logprobs,
    )


def _parse_datum(datum: Any, loss: str, bounds: Bounds, param: str) -> Sequence[np.ndarray]:
    """Return input ids, targets, weights and the sampler's log-probs, each [position]."""
    ids = _parse_input_ids(datum, f"{param}.model_input", bounds)
    param = f"{param}.loss_fn_inputs"
    weights = _WEIGHTS.get(loss, "advantages")
    names = [_TARGETS, weights] if loss in _WEIGHTS else [_TARGETS, weights, _LOGPROBS]
    tensors = {entry.key: entry.value for entry in datum.loss_fn_inputs}
    for name in tensors.keys() - {*names}:
        raise wrong(f"{param}.{name}", f"{loss} reads {', '.join(names)}; remove it")
    if loss in _WEIGHTS and weights not in tensors:
        names = [_TARGETS]
    arrays = {
        name: _parse_input(tensors.get(name), name, len(ids), f"{param}.{name}") for name in names
    }
    _refuse_unknown_tokens(arrays[_TARGETS], bounds, f"{param}.{_TARGETS}")
    ones = np.ones(len(ids), np.float32)
    return ids, arrays[_TARGETS], arrays.get(weights, ones), arrays.get(_LOGPROBS, 0 * ones)


def _parse_input(tensor: Any, name: str, num_positions: int, param: str) -> np.ndarray:
    if tensor is None:
        raise wrong(param, "required, but missing")
    array = _parse_tensor(tensor, param)
    if len(array) != num_positions:
        raise wrong(param, f"has {len(array)} values for {num_positions} tokens of model_input")
    dtype = "int64" if name == _TARGETS else "float32"
    if array.dtype.kind != dtype[0]:
        raise wrong(param, f"must be {dtype}, not {array.dtype}")
    if not np.isfinite(array).all():
        raise wrong(param, "has values that are not finite")
    return array


def _parse_input_ids(datum: Any, param: str, bounds: Bounds) -> np.ndarray:
    chunks = [np.zeros(0, np.int32)]
    for chunk in datum.model_input:
        if not chunk.HasField("encoded_text"):
            raise wrong(param, "only chunks of tokens are read, no images and no audio")
        chunks.append(_to_array(chunk.encoded_text.tokens, "<i4", param))
    ids = np.concatenate(chunks)
    if not 1 <= len(ids) <= bounds.context:
        raise wrong(param, f"has {len(ids):,} tokens; give 1 to {bounds.context:,}")
    _refuse_unknown_tokens(ids, bounds, param)
    return ids


def _refuse_unknown_tokens(tokens: np.ndarray, bounds: Bounds, param: str) -> None:
    if tokens.min() < 0 or tokens.max() >= bounds.vocabulary:
        raise wrong(param, f"tokens must be from 0 to {bounds.vocabulary - 1:,}")


def _parse_tensor(tensor: Any, param: str) -> np.ndarray:
    if tensor.HasField("sparse_csr"):
        raise wrong(param, "sparse tensors are not read; send a dense one")
    if tensor.dtype not in _DTYPES:
        raise wrong(param, f"dtype {tensor.dtype} is not read; send float32, int64 or int32")
    array = _to_array(tensor.dense, _DTYPES[tensor.dtype], param)
    shape = list(tensor.shape)
    if shape and shape != [len(array)]:
        raise wrong(param, f"has {len(array)} values in shape {shape}; send one dimension")
    return array


def _to_array(content: bytes, dtype: str, param: str) -> np.ndarray:
    if len(content) % np.dtype(dtype).itemsize:
        raise wrong(param, f"has {len(content)} bytes, which are no array of {dtype}")
    return np.frombuffer(content, dtype)


# ---------------------------------------------------------------------- responses


def encode_output(result: Result) -> bytes:
    """Encode the result of a pass: the log-prob of each target, and metrics."""
    assert result.lengths is not None
    assert result.logprobs is not None
    offsets = np.concatenate([[0], np.cumsum(result.lengths) * 4])  # in bytes
    batch = _MESSAGES["Batch"](
        data=_to_bytes(result.logprobs, "<f4"), offsets=_to_bytes(offsets, "<i8"), dtype=_FLOAT32
    )
    fields = [_MESSAGES["NamedBatch"](key=_LOGPROBS, value=batch)]
    record = _MESSAGES["Record"](fields=fields, num_datums=len(result.lengths))
    metrics = [_MESSAGES["Number"](key=name, value=value) for name, value in result.metrics.items()]
    output = _MESSAGES["Output"](
        loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record], metrics=metrics
    )
    return output.SerializeToString()


def encode_samples(calls: Sequence[PendingCall], last_n: int | None) -> bytes:
    """Encode responses to one prompt, with the log-probs of its last ``last_n`` tokens."""
    prompt_logprobs = np.array(calls[0].prompt_logprobs, dtype="<f4")  # NaN: there is none
    if last_n is not None:
        prompt_logprobs[:-last_n] = np.nan
    sequences = [_to_sequence(call) for call in calls]
    samples = _MESSAGES["Samples"](sequences=sequences, prompt_logprobs=prompt_logprobs.tobytes())
    return samples.SerializeToString()


def _to_sequence(pending: PendingCall) -> Any:
    tokens = pending.tokens
    sequence = _MESSAGES["Sequence"](
        stop_reason=_STOP if pending.finish_reason == "stop" else _LENGTH,
        tokens=_to_bytes([token.id for token in tokens], "<i4"),
        logprobs=_to_bytes([token.logprob for token in tokens], "<f4"),
    )
    num_top = pending.call.sampling.top_logprobs
    if num_top:
        padding = [(0, "", -math.inf)] * num_top
        tops = [[*token.top, *padding][:num_top] for token in tokens]
        likely = sequence.topk_sampled_logprobs
        likely.token_ids = _to_bytes([[token_id for token_id, _, _ in top] for top in tops], "<i4")
        likely.logprobs = _to_bytes([[logprob for _, _, logprob in top] for top in tops], "<f4")
        likely.k = num_top
        likely.length = len(tops)
    return sequence


def _to_bytes(values: Any, dtype: str) -> bytes:
    return np.asarray(values, dtype).tobytes()
