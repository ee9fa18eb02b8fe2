"""Calls on a whole stack: by the policy while it trains, over a death of its rollout, and after."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.stack.conftest import Stack, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
SUM: Any = [{"role": "user", "content": "29-1-6+2=?"}]


def chats(stack: Stack, model: str) -> Callable[[int], Any]:
    client = openai.OpenAI(
        base_url=f"{stack.facts['url']}/v1",
        api_key=stack.facts["api_key"],
        max_retries=0,
        timeout=300,
    )

    def chat(number: int) -> Any:
        return client.chat.completions.create(
            model=model,
            messages=SUM,
            seed=number,
            max_tokens=48,
            logprobs=True,
            extra_body={"return_token_ids": True},
        )

    return chat


def spans_of(answer: Any) -> list[dict[str, int]]:
    """Which versions sampled which tokens, of an answer that is whole."""
    (choice,) = answer.choices
    (spans,) = answer.weir["weight_versions"]
    assert choice.finish_reason in {"stop", "length"}
    assert [0, *(span["end"] for span in spans)] == [
        *(span["start"] for span in spans),
        len(choice.token_ids),
    ]
    texts = [entry.token for entry in choice.logprobs.content]
    assert len(texts) == len(choice.token_ids)
    assert "".join(texts).startswith(choice.message.content)
    return spans


def test_the_policy_answers_while_it_trains_and_after_also_when_its_rollout_is_killed(
    stack: Stack,
) -> None:
    job_id = stack.submit(training={"steps": 40})
    stack.wait_for_step(job_id, 1)
    chat = chats(stack, job_id)
    spans_of(chat(0))
    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(chat, number) for number in range(50)]
        wait_for(lambda: any(answer.done() for answer in answers), 120, "an answer")
        stack.kill("rollout")
        for answer in answers:
            spans_of(answer.result())
    assert stack.wait_for_end(job_id)["status"] == "succeeded"
    after = chat(0)
    assert [span["version"] for span in spans_of(after)] == [40]
    kept = chats(stack, f"{job_id}@36")(0)
    assert [span["version"] for span in spans_of(kept)] == [36]
    base = chats(stack, "examples/arithmetic/base-model")(0)
    assert base.weir["model"] == "examples/arithmetic/base-model"
