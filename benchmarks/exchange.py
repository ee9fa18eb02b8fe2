"""What the exchange costs against pickled lists: ``python -m benchmarks.exchange``.

Groups of 8 responses travel one by one from a sampler over a grader to a learner. The pickled way
is PipelineRL's: Redis lists of pickled dicts, without acknowledgement. Weir acknowledges each step,
which is what small groups cost. A second is one of processor time, of process and server together.
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
GROUPS = {40: 200, 500: 100, 2000: 40, 8000: 12}  # how many, by tokens of a response
ROUNDS = 3
CHARACTERS_PER_TOKEN = 4
TEXT = Path(__file__).read_text()


class Pickled(BaseModel):
    """One response, as the pickled way has it."""

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
class Spent:
    """Processor time, and bytes that the server received and sent."""

    seconds: float
    bytes: float

    @classmethod
    def until_now(cls, client: redis.Redis) -> Spent:
        info: dict[str, Any] = client.info()  # type: ignore[assignment]
        of_server = info["used_cpu_sys"] + info["used_cpu_user"]
        moved = info["total_net_input_bytes"] + info["total_net_output_bytes"]
        return cls(time.process_time() + of_server, moved)

    def of_one(self, before: Spent, count: int) -> Spent:
        return Spent((self.seconds - before.seconds) / count, (self.bytes - before.bytes) / count)


def main() -> None:
    """Print the table."""
    heads = ["tokens of a group"]
    for way in ("pickled", "Weir"):
        heads += [f"{way}: groups a second", "MB a second", "bytes a token"]
    print("|", " | ".join([*heads, "groups a second", "bytes"]), "|\n" + "|---" * 9 + "|")
    for length, count in GROUPS.items():
        pickled, weir = asyncio.run(compare(length, count))
        cells = [f"{GROUP_SIZE} × {length:,}"]
        for way in (pickled, weir):
            cells += [f"{1 / way.seconds:,.0f}", f"{way.bytes / way.seconds / 1e6:,.0f}"]
            cells += [f"{way.bytes / GROUP_SIZE / length:,.0f}"]
        cells += [f"{pickled.seconds / weir.seconds:.1f} ×", f"{weir.bytes / pickled.bytes:.2f} ×"]
        print("|", " | ".join(cells), "|", flush=True)


async def compare(length: int, count: int) -> tuple[Spent, Spent]:
    """What one group costs either way, the least of several rounds."""
    pickled: list[Spent] = []
    weir: list[Spent] = []
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        client = server.client()
        client.config_set("appendonly", "no")
        async with connect(server.url, me="worker") as exchange:
            for turn in range(ROUNDS):
                groups = [_group(f"job-{turn}", number, length) for number in range(count)]
                graded = [a_graded_group(group) for group in groups]
                attempt = await begin(exchange, f"job-{turn}")
                before = Spent.until_now(client)
                for group in graded:
                    await _through_weir(exchange, group, attempt)
                weir.append(Spent.until_now(client).of_one(before, count))
                lists, batches = [_lists(g) for g in groups], [_columns(g) for g in groups]
                before = Spent.until_now(client)
                _pickled(client, f"actor-{turn}", lists)
                _pickled(client, f"trainer-{turn}", batches)
                pickled.append(Spent.until_now(client).of_one(before, count))
        client.close()
    return _least(pickled), _least(weir)


def _least(rounds: Sequence[Spent]) -> Spent:
    return Spent(min(r.seconds for r in rounds), min(r.bytes for r in rounds))


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
    """Low numbers are frequent ones, as in the vocabularies of byte pairs."""
    return (VOCABULARY ** random.random(count)).astype(np.int32)


async def _through_weir(exchange: Exchange, graded: GradedGroup, attempt: int) -> None:
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
    assert await exchange.take_in(result, attempt)


async def _claim(exchange: Exchange, stream: Stream, job_id: str) -> Delivery:
    (delivery,) = await exchange.claim([stream], job_id, count=1, wait_s=0)
    return delivery


def _pickled(client: redis.Redis, stream: str, messages: Sequence[Any]) -> None:
    """Every message goes into a stream and out of it."""
    last = "0"
    for index, message in enumerate(messages):
        plain = [each.model_dump() for each in message] if isinstance(message, list) else message
        client.xadd(stream, {"index": index, "data": pickle.dumps(plain)}, maxlen=1_000_000)
        reply: Any = client.xread({stream: last}, count=1, block=100)
        ((_, ((last, entry),)),) = reply
        pickle.loads(entry[b"data"])
    client.delete(stream)


def _lists(group: RolloutGroup) -> list[Pickled]:
    prompt = group.prompt_ids.tolist()
    texts: list[Pickled] = []
    for (begin_, end), response in zip(group.bounds(), group.responses, strict=True):
        token_ids = group.token_ids[begin_:end].tolist()
        logprobs = group.behavior_logprobs[begin_:end].tolist()
        texts.append(
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
    return texts


def _columns(group: RolloutGroup) -> dict[str, np.ndarray]:
    """The packed batch of a group: what each token is, in arrays of the types of a tensor."""
    num_tokens = len(group.token_ids) + GROUP_SIZE * len(group.prompt_ids)
    ids = ("input_ids", "labels", "attention_mask", "position_ids")
    numbers = ("rewards", "advantages", "ref_logprobs", "old_logprobs", "group_tokens")
    return {name: np.ones(num_tokens, dtype=np.int64) for name in ids} | {
        name: np.ones(num_tokens, dtype=np.float32) for name in (*numbers, "num_labels", "overflow")
    }


if __name__ == "__main__":
    main()
