"""Calls on a whole stack: by the policy while it trains, over a death of its rollout, and after."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.stack.conftest import Stack, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


def ask(
    stack: Stack,
    model: str,
    seed: int = 0,
) -> list[dict[str, int]]:
    """Which versions sampled which tokens, of an answer that is whole."""
    client = openai.OpenAI(
        base_url=f"{stack.facts['url']}/v1",
        api_key=stack.facts["api_key"],
        max_retries=0,
        timeout=300,
    )
    answer: Any = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "29-1-6+2=?"}],
        seed=seed,
        max_tokens=48,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    (choice,) = answer.choices
    (spans,) = answer.weir["weight_versions"]
    assert answer.weir["model"] in {model, f"ftckpt-{model.replace('@', '-')}"}
    assert choice.finish_reason in {"stop", "length"}
    starts = [span["start"] for span in spans]
    assert [0, *(span["end"] for span in spans)] == [*starts, len(choice.token_ids)]
    texts = [entry.token for entry in choice.logprobs.content]
    assert len(texts) == len(choice.token_ids)
    assert "".join(texts).startswith(choice.message.content)
    return spans


def test_the_policy_answers_while_it_trains_and_after_also_when_its_rollout_is_killed(
    stack: Stack,
) -> None:
    job_id = stack.submit(training={"steps": 20})
    stack.wait_for_step(job_id, 1)
    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(ask, stack, job_id, seed) for seed in range(50)]
        wait_for(lambda: any(answer.done() for answer in answers), 120, "an answer")
        stack.kill("rollout")
        for answer in answers:
            answer.result()
    assert stack.wait_for_end(job_id)["status"] == "succeeded"
    for model, version in ((job_id, 20), (f"{job_id}@16", 16)):
        assert [span["version"] for span in ask(stack, model)] == [version]
    ask(stack, "examples/arithmetic/base-model")
