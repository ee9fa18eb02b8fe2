"""The sample store: every group of a job as the learner leaves it, on disk below the job's folder.

The learner appends what became of each group to a segment, and the oldest segments go when the
store grows too large or too old. A record holds `SampleFacts`, small enough to filter by, and
behind them a compressed `SampledGroup` with everything else. Segments sort in writing order; where
a key comes twice, since a later attempt made the step again, the last one counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

from pydantic import Field

from protocol.frames import Fields, FrameError, decode, encode, pack, unpack_all, unpack_first
from protocol.messages import Float32Array, GradedGroup, Message
from protocol.recipe import Purpose

SUFFIX = ".samples"
RECIPE = "recipe.json"  # beside the segments: what the groups were graded and valued by
TOKENIZER = "tokenizer.json"  # beside the segments: a reader shows tokens without the model
USED = "used"  # the fate of a group that was trained on, or evaluated
_GROUP = b"group"
_LEVEL = 1  # log-probs hardly compress, and texts do at any level


class SampledGroup(Message):
    """A graded group and what the learner made of it.

    Arrays over responses are NaN where a response took no part, arrays over tokens where the
    learner computed nothing for a token; one over tokens is empty if it computed nothing at all.
    """

    graded: GradedGroup
    attempt: int
    step: int  # steps that were done when it was used or dropped, as in the events' ``step`` - 1
    fate: str  # `USED`, or why it was dropped
    rewards: Float32Array  # [group], shaped
    advantages: Float32Array  # [group], that of all tokens; NaN where a critic estimates it
    outcome_advantages: Float32Array  # [group], NaN unless the advantage has such a part
    process_advantages: Float32Array  # [group], likewise, before its weight
    logprobs: Float32Array  # [token], nats, of the learner before the step's first update
    entropies: Float32Array  # [token], nats
    token_advantages: Float32Array  # [token], those that were trained with


class ResponseFacts(Message):
    """What a list of samples shows of a response, and filters by."""

    accuracy: float | None  # None if it could not be graded
    process: float | None
    reward: float | None
    advantage: float | None  # the mean over its tokens where a critic estimates it
    length: int  # tokens
    truncated: bool
    surprise: float  # nats per token: the mean of -log p under the sampler
    parity_gap: float | None  # nats: the largest of |learner - sampler| over its tokens


class SampleFacts(Message):
    """What a list of samples shows of a group, and filters by."""

    purpose: Purpose
    number: int
    attempt: int
    step: int
    fate: str
    task_id: str  # "" if the group failed before anyone could tell
    failure: str | None = None
    created_at: float
    responses: tuple[ResponseFacts, ...] = Field(default=())

    @property
    def key(self) -> str:
        """The group's identity within the job."""
        return f"{self.purpose}:{self.number}"


def pack_sample(facts: SampleFacts, group: SampledGroup) -> bytes:
    """One record of a segment."""
    body = zlib.compress(pack(encode(group)), _LEVEL)
    return pack({**encode(facts), _GROUP: body})


def read_facts(segment: BinaryIO) -> Iterator[tuple[int, SampleFacts]]:
    """The facts of each record from where the segment stands, with the byte where it begins.

    After each, ``segment.tell()`` is where it ends. A torn end is left for a later look. The groups
    are not read, so damage in one is found by `read_group`.

    Raises:
        FrameError: if the bytes are damaged.
    """
    begin = segment.tell()
    for fields in unpack_first(segment):
        yield begin, decode(SampleFacts, fields)
        begin = segment.tell()


def read_group(segment: BinaryIO) -> SampledGroup:
    """The group of the record at which the segment stands.

    Raises:
        FrameError: if there is none, or the bytes are damaged.
    """
    fields = next(unpack_all(segment), None)
    if fields is None:
        raise FrameError("no sample begins here")
    return decode(SampledGroup, _unpacked(fields))


def _unpacked(fields: Fields) -> Fields:
    try:
        (inner,) = unpack_all(BytesIO(zlib.decompress(fields[_GROUP])))
    except (KeyError, ValueError, zlib.error) as error:
        raise FrameError(f"the sample cannot be unpacked: {error}") from error
    return inner
