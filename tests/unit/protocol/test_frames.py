"""Frames: a message survives the trip; damaged bytes are refused with the reason."""

import json
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol import STORED_VERSION
from protocol.frames import FrameError, decode, encode, pack, unpack_all
from protocol.messages import GradedGroup, JobRef, RolloutGroup

from tests.builders import a_graded_group, a_group, a_request, a_task, an_event

ARRAYS = ("prompt_ids", "token_ids", "behavior_logprobs", "lengths")


def damaged(**changes: Any) -> dict[bytes, bytes]:
    """The fields of a group whose header says something else."""
    return encode(a_group()) | {b"header": json.dumps(HEADER | changes).encode()}


def cut(name: bytes, num_bytes: int) -> dict[bytes, bytes]:
    """The fields of a group one of whose arrays has lost its last bytes."""
    fields = encode(a_group())
    return fields | {name: fields[name][:-num_bytes]}


@pytest.mark.parametrize("lengths", [[0], [3], [2, 0, 5]])
def test_a_group_survives_the_trip_through_redis_and_through_a_segment(lengths: list[int]) -> None:
    task = a_task(prompt="\u2028é", metadata={"": [None, 2**62, {"x": 0.1}]})
    num_tokens = sum(lengths)
    group = a_group(
        a_request(group_size=len(lengths), task=task),
        lengths,
        token_ids=[(-2) ** (number + 5) for number in range(num_tokens)],
        behavior_logprobs=[-number / 3 for number in range(num_tokens)],
        prompt_ids=[2**31 - 1, -(2**31)],
    )
    graded = a_graded_group(group)
    (stored,) = unpack_all(BytesIO(pack(encode(graded))))
    received = decode(GradedGroup, stored)
    assert received.group is not None
    assert received.group.request == group.request
    assert received.grades == graded.grades
    for name in ARRAYS:
        array, sent = getattr(received.group, name), getattr(group, name)
        assert (array.dtype, array.tobytes()) == (sent.dtype, sent.tobytes())
    assert encode(received) == encode(graded)


def test_the_owners_of_tokens_take_no_space_where_all_are_the_policy_s() -> None:
    assert b"own" not in encode(a_group())
    assert encode(a_group(own=np.array([1, 0, 1, 1])))[b"own"] == b"\1\0\1\1"


def test_the_header_is_readable_json_and_the_arrays_are_little_endian() -> None:
    fields = encode(a_group(token_ids=[1, 2, 3, 258]))
    header = json.loads(fields[b"header"])
    assert (header["type"], header["version"]) == ("RolloutGroup", STORED_VERSION)
    assert header["body"]["request"]["task"]["answer"] == "2"
    assert fields[b"token_ids"][-4:] == b"\x02\x01\x00\x00"


HEADER = json.loads(encode(a_group())[b"header"])
NOT_FINITE = np.array([-1, np.nan, -1, -1], np.float32).tobytes()
NO_PLACE = ("nowhere", "request.task.nowhere", "request.job_id.deeper", ".")
DAMAGED = [
    (encode(JobRef(job_id="job")), "got JobRef"),
    (damaged(version=99), "version 99"),
    ({b"key": b"train:1"}, "no header"),
    *(({b"header": header}, "header") for header in (b"\xff\xfe", b"null", b"[" * 100_000)),
    ({b"header": encode(a_group())[b"header"]}, "prompt_ids: missing"),
    (damaged(arrays={}), "token_ids"),
    (damaged(body=HEADER["body"] | {"surprise": 1}), "surprise"),
    (encode(a_group()) | {b"behavior_logprobs": NOT_FINITE}, "behavior_logprobs"),
    *((damaged(arrays=HEADER["arrays"] | {"lengths": t}), "lengths") for t in ("<f8", "|O", "??")),
    *((damaged(arrays={path: "<i4"}) | {path.encode(): b""}, "no place") for path in NO_PLACE),
    *((cut(name.encode(), 1), f"array {name}") for name in ARRAYS),
    *((cut(name.encode(), 4), "lengths") for name in ARRAYS[1:]),
]


@pytest.mark.parametrize(("fields", "problem"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_frame_is_refused_by_name(fields: dict[bytes, bytes], problem: str) -> None:
    with pytest.raises(FrameError, match=problem):
        decode(RolloutGroup, fields)


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_damage_anywhere_is_a_frame_error_or_still_a_group(data: st.DataObject) -> None:
    fields = encode(a_group())
    name = data.draw(st.sampled_from(sorted(fields)))
    value = bytearray(fields[name])
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode(RolloutGroup, fields | {name: bytes(value)})
    except FrameError as error:
        assert str(error)  # noqa: PT017


def test_numbers_that_json_cannot_hold_are_refused_where_they_enter() -> None:
    with pytest.raises(ValueError, match="finite"):
        an_event(data={"kind": "step", "step": 1, "loss": float("nan")})


RECORDS = [encode(JobRef(job_id="first")), encode(a_group(lengths=[3])), {b"": b"", b"x": b"y"}]


def test_a_file_cut_or_damaged_at_any_byte_gives_the_records_before_it_and_says_where() -> None:
    segment = b"".join(map(pack, RECORDS))
    assert list(unpack_all(BytesIO(segment))) == RECORDS
    ends = np.cumsum([0, *(len(pack(fields)) for fields in RECORDS)]).tolist()
    for place in range(len(segment)):
        whole = sum(end <= place for end in ends) - 1
        flipped = segment[:place] + bytes([segment[place] ^ 0x10]) + segment[place + 1 :]
        for content in [flipped] + [segment[:place]] * (place != ends[whole]):
            records = unpack_all(BytesIO(content))
            assert [next(records) for _ in range(whole)] == RECORDS[:whole]
            with pytest.raises(FrameError, match=f"^byte {ends[whole]}: "):
                next(records)
