"""An engine and the learner compute the same; neither rounding nor the clock makes a difference."""

from itertools import count
from typing import Any

import numpy as np
import pytest
from protocol.messages import Probes

from services.chassis.parity import compare_logprobs, digest_prompts
from tests.builders import a_task
from tests.tables import table

EXPECTED = np.linspace(-3.0, -0.5, 96)


class Tokenizer:
    """Reads a template that prints the time, of which none is like another."""

    def __init__(self, chat_template: str) -> None:
        self.all_special_tokens: list[str] = []
        self.added_tokens_decoder: dict[int, Any] = {}
        self.chat_template = chat_template
        self._times = count()

    def __call__(self, text: str, **options: Any) -> Any:
        raise AssertionError("no plain template is given")

    def decode(self, token_ids: list[int], **options: Any) -> Any:
        raise AssertionError("no chat goes on")

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> list[int]:
        return [next(self._times)]


def test_prompts_that_print_the_time_are_compared_by_their_template() -> None:
    def digest(directive: str, **options: Any) -> str:
        tokenizer = Tokenizer(f"{{{{ strftime_now('{directive}') }}}}")
        digests = {digest_prompts([a_task()], None, tokenizer, options) for _ in range(2)}
        (value,) = digests
        return value

    assert digest("%d") == digest("%d")
    assert len({digest("%d"), digest("%m"), digest("%d", enable_thinking=False)}) == 3


@table("""
    moved | stuck
    1e-2  | True
    1e-3  | False
    1e-6  | False
""")
def test_an_engine_that_stands_still_is_stuck_if_the_learner_moved_beyond_rounding(
    moved: float, stuck: bool
) -> None:
    engine_values = EXPECTED + 2.4e-3  # by other kernels
    prefix = {"logprobs": (EXPECTED - moved).tolist(), "earlier": {3: EXPECTED.tolist()}}
    probes = Probes(tasks=(), rendered="", token_ids=(), most=1.0, **prefix)
    assert compare_logprobs(engine_values.tolist(), probes)["holds"] == (3 if stuck else None)


@pytest.mark.parametrize(
    ("gaps", "mean"), [((), 1e-3), ((2e-2, 4e-2), 3e-2), ((np.nan, 0.0), np.nan)]
)
def test_what_an_engine_decodes_counts_as_what_it_reads(
    gaps: tuple[float, ...], mean: float
) -> None:
    expected = EXPECTED / np.abs(EXPECTED).mean()
    prefix = {"logprobs": expected.tolist(), "earlier": {}}
    probes = Probes(tasks=(), rendered="", token_ids=(), most=1.0, **prefix)
    report = compare_logprobs([*(expected + 1e-3), *gaps], probes)["mean"]
    assert report == pytest.approx(mean, nan_ok=True)
