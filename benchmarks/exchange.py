"""The exchange against pickled entries: ``python -m benchmarks.exchange``.

Groups of 8 responses travel one by one from a sampler over a grader to a learner. The pickled way
is PipelineRL's, without acknowledgement. Weir acknowledges each step, which costs most for small
groups. A second is one of processor time, of process and server together.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import redis
from protocol.exchange import Delivery, Exchange, connect
from protocol.messages import GradedGroup, RolloutGroup
from protocol.streams import GRADED, REQUESTS, ROLLOUTS, Stream
from pydantic import BaseModel

from tests.builders import a_graded_group, a_group, a_request
from tests.contract.exchange_steps import begin
from tests.contract.valkey_server import Server

GROUP_SIZE = 8
PROMPT = 100
VOCABULARY = 150_000
GROUPS = {40: 200, 500: 100, 2000: 40, 8000: 12}  # tokens of a response: number of groups
ROUNDS = 3
CHARACTERS_PER_TOKEN = 4
TEXT = Path(__file__).read_text()


class Pickled(BaseModel):
    """One response, as PipelineRL stores it."""

    text: str
    n_predicted: int
    reward: float
    logprobs: list[float]
    ref_logprobs: list[float]
    input_ids: list[int]
    labels: list[int]
    group_id: str
    finished: bool
    prompt_tokens: int
    output_tokens: int
    metadata: dict[str, int]


@dataclass(frozen=True)
class Cost:
    """Processor seconds, and bytes that the server received and sent."""

    seconds: float
    bytes: float

    @classmethod
    def total(cls, client: redis.Redis) -> Cost:
        info: dict[str, Any] = client.info()  # type: ignore[assignment]
        server_seconds = info["used_cpu_sys"] + info["used_cpu_user"]
        moved_bytes = info["total_net_input_bytes"] + info["total_net_output_bytes"]
        return cls(time.process_time() + server_seconds, moved_bytes)

    def per_group(self, before: Cost, count: int) -> Cost:
        return Cost((self.seconds - before.seconds) / count, (self.bytes - before.bytes) / count)


def main() -> None:
    """Print the table."""
    print(
        "| tokens of a group | pickled: groups a second | bytes a token"
        " | Weir: groups a second | bytes a token | groups a second |"
    )
    print("|---" * 6 + "|")
    for length, count in GROUPS.items():
        pickled, weir = asyncio.run(compare(length, count))
        cells = [f"{GROUP_SIZE} × {length:,}"]
        for cost in (pickled, weir):
            cells.append(f"{1 / cost.seconds:,.0f}")
            cells.append(f"{cost.bytes / GROUP_SIZE / length:,.0f}")
        cells.append(f"{pickled.seconds / weir.seconds:.1f} ×")
        print("|", " | ".join(cells), "|", flush=True)


async def compare(length: int, count: int) -> tuple[Cost, Cost]:
    """Return the cost of a group, pickled and through Weir: the minimum of several rounds."""
    pickled: list[Cost] = []
    weir: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        client = server.client()
        client.config_set("appendonly", "no")
        async with connect(server.url, me="worker") as exchange:
            for turn in range(ROUNDS):
                groups = [_group(f"job-{turn}", number, length) for number in range(count)]
                graded = [a_graded_group(group) for group in groups]
                attempt = await begin(exchange, f"job-{turn}")
                before = Cost.total(client)
                for group in graded:
                    await _send_through_weir(exchange, group, attempt)
                weir.append(Cost.total(client).per_group(before, count))
                responses = [_responses(group) for group in groups]
                batches = [_columns(group) for group in groups]
                before = Cost.total(client)
                _send_pickled(client, f"actor-{turn}", responses)
                _send_pickled(client, f"trainer-{turn}", batches)
                pickled.append(Cost.total(client).per_group(before, count))
        client.close()
    return _minimum(pickled), _minimum(weir)


def _minimum(rounds: Sequence[Cost]) -> Cost:
    return Cost(min(cost.seconds for cost in rounds), min(cost.bytes for cost in rounds))


def _group(job_id: str, number: int, length: int) -> RolloutGroup:
    random = np.random.default_rng(number)
    size = length * CHARACTERS_PER_TOKEN
    text = TEXT * (size // len(TEXT) + 1)
    request = a_request(job_id=job_id, number=number, group_size=GROUP_SIZE)
    return a_group(
        request,
        [length] * GROUP_SIZE,
        texts=[text[:size]] * GROUP_SIZE,
        prompt_ids=_ids(random, PROMPT),
        token_ids=_ids(random, GROUP_SIZE * length),
        behavior_logprobs=-random.exponential(0.5, GROUP_SIZE * length),
    )


def _ids(random: np.random.Generator, count: int) -> np.ndarray:
    """Low ids are frequent, as in byte-pair vocabularies."""
    return (VOCABULARY ** random.random(count)).astype(np.int32)


async def _send_through_weir(exchange: Exchange, graded: GradedGroup, attempt: int) -> None:
    group = graded.group
    assert group is not None
    await exchange.ask(group.request)
    request = await _claim(exchange, REQUESTS, group.request.job_id)
    await exchange.hand_off(request, ROLLOUTS, group)
    rollout = await _claim(exchange, ROLLOUTS, group.request.job_id)
    rollout.message()
    await exchange.hand_off(rollout, GRADED, graded)
    result = await _claim(exchange, GRADED, group.request.job_id)
    result.message()
    assert await exchange.ingest(result, attempt)


async def _claim(exchange: Exchange, stream: Stream, job_id: str) -> Delivery:
    (delivery,) = await exchange.claim([stream], job_id, count=1, wait_s=0)
    return delivery


def _send_pickled(client: redis.Redis, stream: str, messages: Sequence[Any]) -> None:
    """Write every message to a stream and read it back."""
    last = "0"
    for index, message in enumerate(messages):
        plain = message
        if isinstance(message, list):
            plain = [response.model_dump() for response in message]
        client.xadd(stream, {"index": index, "data": pickle.dumps(plain)}, maxlen=1_000_000)
        reply: Any = client.xread({stream: last}, count=1, block=100)
        ((_, ((last, entry),)),) = reply
        pickle.loads(entry[b"data"])
    client.delete(stream)


def _responses(group: RolloutGroup) -> list[Pickled]:
    prompt = group.prompt_ids.tolist()
    responses: list[Pickled] = []
    for (start, end), response in zip(group.bounds(), group.responses, strict=True):
        token_ids = group.token_ids[start:end].tolist()
        logprobs = group.behavior_logprobs[start:end].tolist()
        responses.append(
            Pickled(
                text=response.text,
                n_predicted=len(response.text),
                reward=1.0,
                logprobs=logprobs,
                ref_logprobs=[],
                input_ids=[*prompt, *token_ids],
                labels=[*[-100] * len(prompt), *token_ids],
                group_id=group.key,
                finished=True,
                prompt_tokens=len(prompt),
                output_tokens=len(token_ids),
                metadata={"model_version": 0, "rollout_index": 0, "step_index": 0},
            )
        )
    return responses


def _columns(group: RolloutGroup) -> dict[str, np.ndarray]:
    """Return the packed batch of a group: one value per token in each array."""
    num_tokens = len(group.token_ids) + GROUP_SIZE * len(group.prompt_ids)
    ids = ("input_ids", "labels", "attention_mask", "position_ids")
    numbers = ("rewards", "advantages", "ref_logprobs", "old_logprobs", "group_tokens")
    numbers += ("num_labels", "overflow")
    columns = {name: np.ones(num_tokens, dtype=np.int64) for name in ids}
    return columns | {name: np.ones(num_tokens, dtype=np.float32) for name in numbers}


if __name__ == "__main__":
    main()
