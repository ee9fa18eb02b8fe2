"""The sample store: every group of a job as the learner leaves it, on disk below the job's folder.

The learner appends what became of each group to a segment, and the oldest segments go when the
store grows too large or too old. A record holds `SampleFacts`, small enough to filter by, and
behind them a compressed `SampledGroup` with everything else. Segments sort in writing order; where
a key comes twice, since a later attempt made the step again, the last one counts.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

from pydantic import Field

from protocol.frames import (
    Fields,
    FrameError,
    decode,
    encode,
    next_record,
    pack,
    unpack_all,
    unpack_first,
)
from protocol.messages import Float32Array, GradedGroup, Message
from protocol.recipe import Purpose

SUFFIX = ".samples"
RECIPE = "recipe.json"  # beside the segments: what the groups were graded and valued by
TOKENIZER = "tokenizer.json"  # beside the segments: a reader shows tokens without the model
USED = "used"  # the fate of a group that was trained on, or evaluated
_GROUP = b"group"
log = logging.getLogger(__name__)
_LEVEL = 1  # log-probs hardly compress, and texts do at any level


class SampledGroup(Message):
    """A graded group and what the learner made of it.

    Arrays over responses are NaN where there is nothing to tell: of an evaluation's responses, of
    those that could not be graded, and, but for the reward, of those that a filter left out of the
    loss. Those of a group that was dropped say what the recipe makes of its grades. Arrays over
    tokens are NaN where the learner computed nothing for a token, and empty if for none.
    """

    graded: GradedGroup
    attempt: int
    step: int  # that were done when it was used or dropped; of a pretrain group, the critic's own
    fate: str  # `USED`, or why it was dropped
    rewards: Float32Array  # [group], which the advantage compares; NaN too where it leaves one out
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
    parity_gap: float | None  # nats: the largest of |learner - sampler| at the same weights


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

    After each, ``segment.tell()`` is where it ends. Damaged records are left out, and a torn end is
    left for a later look.
    """
    begin, is_second_try = segment.tell(), False
    while True:
        segment.seek(begin)
        try:
            for fields in unpack_first(segment):
                facts, end = decode(SampleFacts, fields), segment.tell()
                yield begin, facts
                begin, is_second_try = end, False
            return
        except FrameError as error:
            # The first time it may have been in the writing while the end was looked at.
            following = next_record(segment, begin) if is_second_try else begin
            if following is None:
                return
            if is_second_try:
                log.warning(
                    "sample left out",
                    extra={"segment": segment.name, "byte": begin, "why": str(error)},
                )
            begin, is_second_try = following, not is_second_try


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
