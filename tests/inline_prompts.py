"""A `PromptRenderer` without processes, for tests of what uses one."""

from __future__ import annotations

from typing import Any, Self

from services.chassis import tokenizer_worker
from services.chassis.pool import Failed, SetUp, SetUpError
from services.chassis.renderer import PromptRenderer
from tests.unit.grader.pools import InlinePool


class _InlinePool(InlinePool):
    set_up: SetUp | None = None

    def start(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        if self.set_up is not None:
            loaded = await self.run(self.set_up.function, *self.set_up.args, deadline_s=1)
            if isinstance(loaded, Failed):
                raise SetUpError(loaded)
        return self


class InlinePrompts(PromptRenderer):
    """Renders in this process, by the tokenizer given or opened last."""

    def __init__(self, tokenizer: Any = None) -> None:
        super().__init__()
        tokenizer_worker._tokenizer = tokenizer

    def _new_pool(self) -> Any:
        return _InlinePool()
