"""Requests of the Tinker SDK, read and refused, by the messages of the SDK itself."""

from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from protocol.calls import Call, CallSampling, Served
from protocol.operations import Operation, Result
from protocol.recipe import Model
from tinker.proto import tinker_public_pb2 as sdk
from tinker.proto.response_conv import deserialize_forward_backward_output

from services.gateway.api.tinker import wire
from services.gateway.api.tinker.futures import to_response
from services.gateway.core.calls.pending import PendingCall
from services.gateway.errors import Problem
from tests.tables import table
from tests.unit.gateway.refusing import refused

BOUNDS = wire.Bounds(context=6, vocabulary=10)
IDS = np.array([1, 2, 3], np.int32)
INPUTS = "data.1.loss_fn_inputs"


def integers(*values: int, **changes: Any) -> sdk.Tensor:
    return a_tensor(np.array(values, np.int64), sdk.DTYPE_INT64, changes)


def floats(*values: float, **changes: Any) -> sdk.Tensor:
    return a_tensor(np.array(values, np.float32), sdk.DTYPE_FLOAT32, changes)


def a_tensor(values: Any, dtype: Any, changes: dict[str, Any]) -> sdk.Tensor:
    fields = {"dense": values.tobytes(), "dtype": dtype, "shape": values.shape}
    return sdk.Tensor(**fields | changes)


def a_request(
    loss: str = "cross_entropy", **inputs: sdk.Tensor | None
) -> sdk.ForwardBackwardRequest:
    """Two datums, of which the second has other inputs where they are given."""
    request = sdk.ForwardBackwardRequest(model_id="m", seq_id=3, loss_fn=loss)
    names = ["weights"] if loss == "cross_entropy" else ["advantages", "logprobs"]
    fields = {"target_tokens": integers(2, 3, 4)}
    fields |= {name: floats(0.5, 1, 2) for name in names}
    for tensors in (fields, fields | inputs):
        datum = request.data.add()
        datum.model_input.add().encoded_text.tokens = IDS[:1].tobytes()
        datum.model_input.add().encoded_text.tokens = IDS[1:].tobytes()
        for name, tensor in tensors.items():
            if tensor is not None:
                datum.loss_fn_inputs[name].CopyFrom(tensor)
    return request


def read(request: sdk.ForwardBackwardRequest) -> Operation:
    return wire.to_operation(wire.parse_request(request.SerializeToString()), BOUNDS)


def check_refused(request: sdk.ForwardBackwardRequest, param: str) -> None:
    with refused(400, param=param):
        read(request)


def test_sequences_are_read_with_what_their_loss_needs() -> None:
    request = a_request("ppo")
    request.loss_fn_config_v2["clip_low_threshold"].number = 0.9
    operation = read(request)
    assert (operation.number, operation.do) == (3, "forward_backward")
    assert (operation.loss, operation.settings) == ("ppo", {"clip_low_threshold": 0.9})
    assert (data := operation.data) is not None
    assert data.lengths.tolist() == [3, 3]
    assert data.input_ids.tolist() == [1, 2, 3] * 2
    assert data.targets.tolist() == [2, 3, 4] * 2
    assert data.weights.tolist() == data.behavior_logprobs.tolist() == [0.5, 1, 2] * 2


def test_weights_of_cross_entropy_are_one_where_none_are_given() -> None:
    request = a_request(weights=None)
    request.forward_only = True
    operation = read(request)
    assert operation.do == "forward"
    assert operation.data is not None
    assert operation.data.weights.tolist() == [0.5, 1, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        (
            "target_tokens",
            [
                None,
                *(integers(2, 3, *last) for last in ((), (10,), (-1,), (2**40,))),
                floats(2, 3, 4),
                integers(2, 3, 4, shape=[3, 1]),
                integers(2, 3, 4, dtype=4),
            ],
        ),
        (
            "weights",
            [
                *(floats(1, *others) for others in ((1,), (1, np.nan), (1, np.inf))),
                integers(1, 1, 1),
                floats(1, 1, 1, dense=b"12345"),
                sdk.Tensor(sparse_csr=sdk.SparseCsr(), dtype=sdk.DTYPE_FLOAT32),
            ],
        ),
        ("mask", [floats(1, 1, 1)]),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(
    name: str, tensors: list[sdk.Tensor | None]
) -> None:
    for tensor in tensors:
        check_refused(a_request("cross_entropy", **{name: tensor}), f"{INPUTS}.{name}")


def test_damaged_and_empty_requests_are_refused() -> None:
    with refused(400, param="body"):
        wire.parse_request(b"\xff\xff\xff")
    check_refused(a_request("dro"), "loss_fn")
    check_refused(sdk.ForwardBackwardRequest(loss_fn="ppo"), "data")
    request = a_request()
    request.loss_fn_config["clip_low_threshold"] = 0.9
    check_refused(request, "loss_fn_config.clip_low_threshold")
    check_refused(a_request("importance_sampling", logprobs=None), f"{INPUTS}.logprobs")


@pytest.mark.parametrize(
    "tokens", [b"", b"123", np.arange(7, dtype=np.int32).tobytes(), b"\xff" * 12]
)
def test_tokens_that_do_not_fit_and_pictures_are_refused(tokens: bytes) -> None:
    request = a_request()
    second = request.data[1].model_input
    del second[1]
    second[0].encoded_text.tokens = tokens
    with refused(400, match=r"data\.1\.model_input"):
        read(request)
    request = a_request()
    request.data[1].model_input.add().image.data = b"image"
    check_refused(request, "data.1.model_input")


@table("""
    last_n | is_hidden
    5      | [True, False, False]
    2      | [True, False, False]
    1      | [True, True, False]
""")
def test_no_more_log_probs_of_a_prompt_are_hidden_than_were_left_out(
    last_n: int, is_hidden: list[bool]
) -> None:
    served = Served(name="it", model=Model(path="/it"))
    call = Call(id="a", gateway="g", served=served, sampling=CallSampling(), token_ids=(1, 2, 3))
    answer = PendingCall(call, AsyncMock(), prompt_logprobs=(None, -1.0, -2.0))
    response = sdk.SampleResponse.FromString(wire.encode_samples([answer], last_n))
    logprobs = np.frombuffer(response.prompt_logprobs, np.float32)
    assert np.isnan(logprobs).tolist() == is_hidden


def test_an_id_that_names_another_kind_of_operation_breaks_nothing() -> None:
    assert to_response("job", "forward", Result(number=1)).status_code == 200


def test_the_sdk_reads_the_log_probs_of_each_datum() -> None:
    result = Result(
        number=3,
        lengths=np.array([1, 2]),
        logprobs=np.array([-1, -2, -3]),
        metrics={"loss:sum": 6.0},
    )
    output = deserialize_forward_backward_output(wire.encode_output(result))
    assert [datum["logprobs"].data for datum in output.loss_fn_outputs] == [[-1], [-2, -3]]
    assert output.metrics == {"loss:sum": 6.0}


def test_a_body_of_many_fields_is_refused_before_it_is_parsed() -> None:
    few = 10_000
    many = wire.MAX_FIELDS
    request = a_request()
    for _ in range(few):
        request.data.add().CopyFrom(request.data[0])
    assert len(wire.parse_request(request.SerializeToString()).data) == few + 2
    a_datum = b"\x1a\x00"
    shape = request.data[0]
    shape.loss_fn_inputs["weights"].shape.extend([1] * many)
    nested = b"".join(
        b"\x1a" + _varint(2 * count) + b"\x0a\x00" * count for count in [many // 4] * 4
    )
    for body in (a_datum * (many + 1), request.SerializeToString(), nested, b"\xff" * 20 * many):
        with pytest.raises(Problem, match=f"more than {many:,} fields"):
            wire.parse_request(body)


@pytest.mark.parametrize("body", [b"\x1a", b"\x1a\x05", b"\x1a" + b"\xff" * 9 + b"\x01", b"\x80"])
def test_a_body_that_is_cut_is_no_message(body: bytes) -> None:
    with pytest.raises(Problem, match="not the protobuf message"):
        wire.parse_request(body)


def _varint(number: int) -> bytes:
    low = bytes([number & 127 | (128 if number > 127 else 0)])
    return low + _varint(number >> 7) if number > 127 else low
