"""What a refusal of the gateway names."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from services.gateway.errors import Problem


@contextmanager
def refused(
    status: int, code: str | None = None, *, param: str | None = None, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Problem]]:
    with pytest.raises(Problem, match=match) as caught:
        yield caught
    assert caught.value.status_code == status
    assert code in (None, caught.value.code)
    assert param in (None, caught.value.param)
