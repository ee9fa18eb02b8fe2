"""Frames: any message survives the trip; damaged bytes are refused with the reason."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.frames import (
    SCHEMA_VERSION,
    FrameError,
    decode,
    encode,
    pack,
    unpack_all,
)
from protocol.messages import GradedGroup, JobRef, Message, RolloutGroup

from tests.builders import a_graded_group, a_group, a_request, a_task, an_event

TEXT = st.text(max_size=20)
LOGPROBS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TOKENS = st.integers(-(2**31), 2**31 - 1)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
METADATA = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def groups(draw: st.DrawFn) -> RolloutGroup:
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    num_tokens = sum(lengths)
    metadata = draw(st.dictionaries(TEXT, METADATA, max_size=3))
    request = a_request(
        group_size=len(lengths),
        task=a_task(prompt=draw(st.text(min_size=1, max_size=20)), metadata=metadata),
    )
    return a_group(
        request,
        lengths,
        texts=[draw(TEXT) for _ in lengths],
        token_ids=draw(st.lists(TOKENS, min_size=num_tokens, max_size=num_tokens)),
        behavior_logprobs=draw(st.lists(LOGPROBS, min_size=num_tokens, max_size=num_tokens)),
        prompt_ids=draw(st.lists(TOKENS, max_size=5)),
    )


def same(left: Message, right: Message) -> bool:
    return encode(left) == encode(right)


def damaged(**changes: Any) -> dict[bytes, bytes]:
    """The fields of a group whose header says something else."""
    fields = encode(a_group())
    header = json.loads(fields[b"header"]) | changes
    return fields | {b"header": json.dumps(header).encode()}


def flipped(content: bytes, place: int) -> bytes:
    """The same bytes, but for one bit of one of them."""
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


@given(group=groups())
@settings(derandomize=True, deadline=None)
def test_any_group_survives_the_trip_through_redis_and_through_a_segment(
    group: RolloutGroup,
) -> None:
    graded = a_graded_group(group)
    (stored,) = unpack_all(BytesIO(pack(encode(graded))))
    received = decode(GradedGroup, stored)
    assert received.group is not None
    assert received.group.request == group.request
    assert received.group.responses == group.responses
    for name in ("prompt_ids", "token_ids", "behavior_logprobs", "lengths"):
        sent, got = getattr(group, name), getattr(received.group, name)
        assert (got.dtype, got.tobytes()) == (sent.dtype, sent.tobytes())
    assert received.grades == graded.grades
    assert same(received, graded)


def test_the_header_is_readable_json_and_the_arrays_are_little_endian() -> None:
    fields = encode(a_group(token_ids=[1, 2, 3, 258]))
    header = json.loads(fields[b"header"])
    assert (header["type"], header["version"]) == ("RolloutGroup", SCHEMA_VERSION)
    assert header["body"]["request"]["task"]["answer"] == "2"
    assert fields[b"token_ids"][-4:] == b"\x02\x01\x00\x00"


def without(name: bytes) -> dict[bytes, bytes]:
    return {key: value for key, value in encode(a_group()).items() if key != name}


def cut(name: bytes, num_bytes: int) -> dict[bytes, bytes]:
    """The fields of a group one of whose arrays has lost its last bytes."""
    fields = encode(a_group())
    return fields | {name: fields[name][:-num_bytes]}


HEADER = json.loads(encode(a_group())[b"header"])
NOT_FINITE = np.array([-1, np.nan, -1, -1], np.float32).tobytes()
DAMAGED = [
    (encode(JobRef(job_id="job")), "got JobRef"),
    (damaged(version=99), "version 99"),
    ({b"key": b"train:1"}, "no header"),
    (without(b"behavior_logprobs"), "behavior_logprobs: missing"),
    (damaged(arrays={}), "token_ids"),
    (damaged(body=HEADER["body"] | {"surprise": 1}), "surprise"),
    (encode(a_group()) | {b"behavior_logprobs": NOT_FINITE}, "behavior_logprobs"),
    *((damaged(arrays=HEADER["arrays"] | {"lengths": t}), "lengths") for t in ("<f8", "|O", "??")),
    *(
        (damaged(arrays={path: "<i4"}) | {path.encode(): b""}, "no place")
        for path in ("nowhere", "request.task.nowhere", "request.job_id.deeper", ".")
    ),
    *((cut(name.encode(), 1), f"array {name}") for name in ("prompt_ids", "lengths")),
    *((cut(name, 4), "lengths") for name in (b"token_ids", b"behavior_logprobs", b"lengths")),
]


@pytest.mark.parametrize(("fields", "problem"), DAMAGED, ids=range(len(DAMAGED)))
def test_what_is_no_frame_of_the_message_is_refused_by_name(
    fields: dict[bytes, bytes], problem: str
) -> None:
    with pytest.raises(FrameError, match=problem):
        decode(RolloutGroup, fields)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b'{"type":1,"version":1,"body":{},"arrays":{}}',
        b'{"type":"RolloutGroup","version":1,"body":[],"arrays":{}}',
        b'{"type":"RolloutGroup","version":1,"body":{},"arrays":{"lengths":["<i4"]}}',
        b"[" * 100_000,
    ],
)
def test_an_unreadable_header_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError, match="header"):
        decode(RolloutGroup, {b"header": header})


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
    with pytest.raises(ValueError, match="JSON"):
        encode(an_event(data={"loss": float("nan")}))


RECORDS = [encode(JobRef(job_id="first")), encode(a_group(lengths=[3])), {b"": b"", b"x": b"y"}]
SEGMENT = b"".join(pack(fields) for fields in RECORDS)
ENDS = np.cumsum([len(pack(fields)) for fields in RECORDS]).tolist()


def test_a_file_gives_back_its_records() -> None:
    assert list(unpack_all(BytesIO(SEGMENT))) == RECORDS
    assert list(unpack_all(BytesIO())) == []


def test_a_file_cut_or_damaged_at_any_byte_gives_the_records_before_it_and_says_where() -> None:
    for place in range(len(SEGMENT)):
        whole = sum(end <= place for end in ENDS)
        begin = ([0, *ENDS])[whole]
        contents = [flipped(SEGMENT, place)] + [SEGMENT[:place]] * (place != begin)
        for content in contents:
            records = unpack_all(BytesIO(content))
            assert [next(records) for _ in range(whole)] == RECORDS[:whole]
            with pytest.raises(FrameError, match=f"^byte {begin}: "):
                next(records)
