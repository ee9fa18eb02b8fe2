"""How much a group weighs on its way, against the same in pickled lists."""

from __future__ import annotations

import pytest

from benchmarks.exchange import compare

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def test_a_group_moves_a_third_of_the_bytes_that_pickled_lists_move() -> None:
    pickled, weir = await compare(length=500, count=3)
    assert weir.bytes < pickled.bytes / 3
