"""The SDK's protobuf messages: what of them is read and written, and its tensors as arrays.

The field numbers are those of the SDK. A map is written as its entries, an enum as a number, since
on the wire they are the same.
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
_TYPES = {"double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_FLOAT32, _INT64, _INT32 = 1, 2, 3
_DTYPES = {_FLOAT32: "<f4", _INT64: "<i8", _INT32: "<i4"}
_STOP, _LENGTH = 0, 1
# Each loss reads a weight for each position, and perhaps the log-probs of the sampler.
_WEIGHTS = {"cross_entropy": "weights"}
_TARGETS, _LOGPROBS = "target_tokens", "logprobs"
_CLIPS = frozenset({"clip_low_threshold", "clip_high_threshold"})
_SETTINGS = {"ppo": _CLIPS, "cispo": _CLIPS}


def _messages() -> dict[str, Any]:
    """The class of each message of the schema, by its name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="weir/tinker.proto", package=_PACKAGE, syntax="proto3"
    )
    for line in _SCHEMA.strip().splitlines():
        name, _, fields = line.partition(" = ")
        message = file.message_type.add(name=name)
        for number, field, kind in (each.split() for each in fields.split(", ")):
            one = kind.removesuffix("*")
            made = message.field.add(name=field, number=int(number), label=1 if one == kind else 3)
            made.type = _TYPES.get(one, 11)  # type: ignore[assignment]  (numbers of its own enum)
            if one not in _TYPES:
                made.type_name = f".{_PACKAGE}.{one}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}")
        )
        for message in file.message_type
    }


_MADE = _messages()
_MAX_FIELDS = 2**18
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _refuse_too_many_fields(body: bytes) -> None:
    """400 if the body has more fields than may be parsed, since each costs memory.

    Only messages that are parsed are looked into. A list of numbers counts as one for each byte.
    """
    count = 0
    parts = [(0, len(body), _MADE["Request"].DESCRIPTOR)]
    while parts:
        at, end, message = parts.pop()
        while at < end:
            count += 1
            tag, at = _varint(body, at)
            known, size = message.fields_by_number.get(tag >> 3), 0
            if tag & 7 == _VARINT:
                _, at = _varint(body, at)
            elif tag & 7 == _BYTES:
                size, at = _varint(body, at)
            else:
                size = {_FIXED64: 8, _FIXED32: 4}.get(tag & 7, 0)
            if known is not None and tag & 7 == _BYTES and known.message_type is not None:
                parts.append((at, at + size, known.message_type))
            elif known is not None and known.is_repeated:
                count += size
            at += size
            if count > _MAX_FIELDS:
                raise wrong("body", f"more than {_MAX_FIELDS:,} fields; send fewer data at a time")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next field begins."""
    value = shift = 0
    while (byte := body[at]) > 127 and shift < 63:
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
    return value | byte << shift, at + 1


class Bounds(NamedTuple):
    """What the model takes."""

    context: int  # most positions of a sequence
    vocabulary: int = 2**31


def read_request(body: bytes) -> Any:
    """A request for a pass; 400 if the body is none."""
    request = _MADE["Request"]()
    try:
        _refuse_too_many_fields(body)
        request.ParseFromString(body)
    except (DecodeError, IndexError) as error:
        why = "not the protobuf message of a forward or forward_backward request"
        raise wrong("body", why) from error
    return request


def operation_of(request: Any, bounds: Bounds) -> Operation:
    """The operation that a request asks for; 400 names what is wrong with it."""
    if request.loss_fn not in get_args(LossName):
        known = ", ".join(get_args(LossName))
        raise wrong("loss_fn", f"{request.loss_fn!r} is not here; there are {known}")
    return Operation(
        number=request.seq_id,
        do="forward" if request.forward_only else "forward_backward",
        loss=request.loss_fn,
        settings=_settings(request),
        data=_data(request, bounds),
    )


def _settings(request: Any) -> dict[str, float]:
    given = {each.key: each.value for each in request.loss_fn_config}
    for each in request.loss_fn_config_v2:
        given[each.key] = each.value.text or each.value.number
    known = _SETTINGS.get(request.loss_fn, frozenset())
    for name, value in given.items():
        if name not in known:
            has = f"has {' and '.join(sorted(known))}" if known else "has no settings"
            raise wrong(f"loss_fn_config.{name}", f"unknown; {request.loss_fn} {has}")
        if isinstance(value, str) or not math.isfinite(value):
            raise wrong(f"loss_fn_config.{name}", "must be a finite number")
    return given


def _data(request: Any, bounds: Bounds) -> Data:
    if not request.data:
        raise wrong("data", "is empty; give at least one datum")
    rows = [
        _row(datum, request.loss_fn, bounds, f"data.{place}")
        for place, datum in enumerate(request.data)
    ]
    ids, targets, weights, logprobs = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
    return Data(
        lengths=np.array([len(row[0]) for row in rows]),
        input_ids=ids,
        targets=targets,
        weights=weights,
        behavior_logprobs=logprobs,
    )


def _row(datum: Any, loss: str, bounds: Bounds, place: str) -> Sequence[np.ndarray]:
    """Input ids, targets, weights and the sampler's log-probs of one datum, each [position]."""
    ids = _input_ids(datum, f"{place}.model_input", bounds)
    place, weights = f"{place}.loss_fn_inputs", _WEIGHTS.get(loss, "advantages")
    names = (_TARGETS, weights) if loss in _WEIGHTS else (_TARGETS, weights, _LOGPROBS)
    given = {each.key: each.value for each in datum.loss_fn_inputs}
    for name in given.keys() - {*names}:
        raise wrong(f"{place}.{name}", f"{loss} reads {', '.join(names)}; remove it")
    if loss in _WEIGHTS and weights not in given:
        names = (_TARGETS,)
    read = {name: _input(given.get(name), name, len(ids), f"{place}.{name}") for name in names}
    _refuse_unknown(read[_TARGETS], bounds, f"{place}.{_TARGETS}")
    ones = np.ones(len(ids), np.float32)
    return ids, read[_TARGETS], read.get(weights, ones), read.get(_LOGPROBS, 0 * ones)


def _input(tensor: Any, name: str, positions: int, place: str) -> np.ndarray:
    if tensor is None:
        raise wrong(place, "required, but missing")
    if len(array := _tensor(tensor, place)) != positions:
        raise wrong(place, f"has {len(array)} values for {positions} tokens of model_input")
    needed = "int64" if name == _TARGETS else "float32"
    if array.dtype.kind != needed[0]:
        raise wrong(place, f"must be {needed}, not {array.dtype}")
    if not np.isfinite(array).all():
        raise wrong(place, "has values that are not finite")
    return array


def _input_ids(datum: Any, place: str, bounds: Bounds) -> np.ndarray:
    chunks = [np.zeros(0, np.int32)]
    for chunk in datum.model_input:
        if not chunk.HasField("encoded_text"):
            raise wrong(place, "only chunks of tokens are read, no images and no audio")
        chunks.append(_array(chunk.encoded_text.tokens, "<i4", place))
    ids = np.concatenate(chunks)
    if not 1 <= len(ids) <= bounds.context:
        raise wrong(place, f"has {len(ids):,} tokens; give 1 to {bounds.context:,}")
    _refuse_unknown(ids, bounds, place)
    return ids


def _refuse_unknown(tokens: Any, bounds: Bounds, place: str) -> None:
    if tokens.min() < 0 or tokens.max() >= bounds.vocabulary:
        raise wrong(place, f"tokens must be from 0 to {bounds.vocabulary - 1:,}")


def _tensor(tensor: Any, place: str) -> np.ndarray:
    if tensor.HasField("sparse_csr"):
        raise wrong(place, "sparse tensors are not read; send a dense one")
    if tensor.dtype not in _DTYPES:
        raise wrong(place, f"dtype {tensor.dtype} is not read; send float32, int64 or int32")
    array = _array(tensor.dense, _DTYPES[tensor.dtype], place)
    if tensor.shape and list(tensor.shape) != [len(array)]:
        shape = list(tensor.shape)
        raise wrong(place, f"has {len(array)} values in shape {shape}; one dimension is read")
    return array


def _array(content: bytes, dtype: str, place: str) -> np.ndarray:
    if len(content) % np.dtype(dtype).itemsize:
        raise wrong(place, f"has {len(content)} bytes, which are no array of {dtype}")
    return np.frombuffer(content, dtype)


# ---------------------------------------------------------------------- answers


def output_of(result: Result) -> bytes:
    """What a forward pass told: the log-prob of each target, and metrics."""
    assert result.lengths is not None
    assert result.logprobs is not None
    batch = _MADE["Batch"](
        data=result.logprobs.astype("<f4").tobytes(),
        offsets=np.concatenate([[0], np.cumsum(result.lengths, dtype="<i8") * 4])
        .astype("<i8")
        .tobytes(),
        dtype=_FLOAT32,
    )
    fields = [_MADE["NamedBatch"](key=_LOGPROBS, value=batch)]
    record = _MADE["Record"](fields=fields, num_datums=len(result.lengths))
    metrics = [_MADE["Number"](key=name, value=value) for name, value in result.metrics.items()]
    output = _MADE["Output"](loss_fn_output_type="ArrayRecord", metrics=metrics)
    output.loss_fn_outputs.append(record)
    return output.SerializeToString()


def samples_of(answers: Sequence[PendingCall], last_n: int | None) -> bytes:
    """Responses to one prompt, and the log-probs of its last tokens if they were asked for."""
    of_prompt = np.array(answers[0].prompt_logprobs, dtype="<f4")  # nan: there is none
    if last_n is not None:
        of_prompt[:-last_n] = np.nan
    samples = _MADE["Samples"](prompt_logprobs=of_prompt.tobytes())
    samples.sequences.extend(map(_sequence, answers))
    return samples.SerializeToString()


def _sequence(answer: PendingCall) -> Any:
    sequence = _MADE["Sequence"](
        stop_reason=_STOP if answer.finish_reason == "stop" else _LENGTH,
        tokens=np.array([token.id for token in answer.tokens], "<i4").tobytes(),
        logprobs=np.array([token.logprob for token in answer.tokens], "<f4").tobytes(),
    )
    if most := answer.call.sampling.top_logprobs:
        tops = [[*token.top, *[(0, "", -math.inf)] * most][:most] for token in answer.tokens]
        likely = sequence.topk_sampled_logprobs
        likely.token_ids = np.array([[e[0] for e in top] for top in tops], "<i4").tobytes()
        likely.logprobs = np.array([[e[2] for e in top] for top in tops], "<f4").tobytes()
        likely.k, likely.length = most, len(tops)
    return sequence
