"""Random bodies: one that is right, with some of its values made hostile. No answer may be a 5xx.

No job may be queued but by a POST that says so; afterwards every service must be able to read every
record and every file, and a client to list them. Every body derives from the seed and its number.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import openai
from protocol.exchange import Exchange
from protocol.frames import decode, encode
from protocol.messages import ActiveJob, GradedGroup, JobRecord
from protocol.tasks import read_tasks

from tests.builders import a_graded_group, a_group, a_request
from tests.contract.gateway.stack import (
    EXACT,
    GOOD_LINE,
    JOBS,
    KEY,
    RECIPE,
    Stack,
    changed,
    reinforcement,
    upload,
)

TRIALS = "/v1/fine_tuning/alpha/graders/run"  # which a grader must be there for
VALIDATE = "/v1/fine_tuning/alpha/graders/validate"
ROUTES = (JOBS, JOBS, VALIDATE, "/v1/files", "/v1/page/recipe")
_TEXTS: tuple[str, ...] = (
    *json.loads(r"""[
    "", "\u0000", "a\u0000b", "\ud800", "x\udc00", "\u202e", "../..", "%00", "auto", "nan",
    "a\r\nb", "{{sample.output_text}}", "{{item.\ud800}}", "{prompt}{0}", "my.oracle", "9**9**9",
    "a/0", "1e400*a", "tiny/../tiny"
    ]"""),
    *("\N{GRINNING FACE}" * 100, "é" * 200, "b" * 5000, "c" * 100_001, "a/" * 3000, "{{" * 50),
    "(" * 300 + "a" + ")" * 300,
)
_SHORT = """
NaN -Infinity 1e999 1e308 -0.0 -1 1e-400 1.5 2147483648
true null {} [""] {"":{}} [[[]]] {"a":1,"a":2}
"""
_LITERALS = (
    *_SHORT.split(),
    *("1" + "0" * 400, "[" * 65 + "]" * 65, '{"a":' * 205 + "1" + "}" * 205),
    "[" + "[]," * 100_000 + "1]",
)
_PYTHON = "def grade(sample, item):\n    return len(item['answer'])"
_MESSAGES = [{"role": "user", "content": [{"type": "input_text", "text": "good?"}]}]
_GRADERS: tuple[Any, ...] = (
    EXACT,
    {"type": "text_similarity", "input": "a", "reference": "b", "evaluation_metric": "bleu"},
    {"type": "score_model", "model": "judge", "range": [0, 1], "input": _MESSAGES},
    {"type": "multi", "graders": {"a": EXACT, "b": EXACT}, "calculate_output": "a / 2 + b / 2"},
    {"type": "python", "source": _PYTHON},
)


@dataclass
class Found:
    """What the gateway answered, and what it must not have."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    queued: set[str] = field(default_factory=set)


def try_bodies(stack: Stack, seed: int, numbers: range, routes: Sequence[str] = ROUTES) -> Found:
    """Post to these routes, and read all that there is."""
    found = Found(queued=stack.contents()[0])
    with stack.http() as http:
        file_id = upload(http).json()["id"]
    asyncio.run(_post_all(stack, found, seed, numbers, routes, file_id))
    if (left := stack.contents()[0]) != found.queued:
        found.faults.append(f"queued by a POST that did not say so: {left - found.queued}")
    _read_everything(stack)
    return found


async def _post_all(
    stack: Stack, found: Found, seed: int, numbers: range, routes: Sequence[str], file_id: str
) -> None:
    waiting = iter(numbers)

    async def post_some(http: httpx.AsyncClient) -> None:
        for number in waiting:
            draw = Random(f"{seed}:{number}")
            route = draw.choice(routes)
            body, kind = _request(route, draw, file_id)
            reply = await http.post(route, content=body, headers={"Content-Type": kind})
            if reply.status_code == 503:  # a busy machine's disk: it asks to repeat this
                reply = await http.post(route, content=body, headers={"Content-Type": kind})
            found.statuses[reply.status_code] += 1
            if reply.status_code >= 500 or "verifier_failed" in reply.text:
                found.faults.append(f"{number}: {route}: {reply.text}: {body[:300]!r}")
            elif route == JOBS and reply.status_code == 200:
                found.queued.add(reply.json()["id"])

    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as http:
        await asyncio.gather(*(post_some(http) for _ in range(8)))


def _read_everything(stack: Stack) -> None:
    """As the other services do, and as a client that lists it."""

    async def read_jobs(exchange: Exchange) -> None:
        records = await exchange.find_jobs(None, 10**6)
        # Other tests leave records that cannot be read.
        for record in (each for each in records or () if isinstance(each, JobRecord)):
            active = ActiveJob(job_id=record.id, attempt=1, recipe=record.recipe)
            ActiveJob.model_validate_json(active.model_dump_json())

    stack.exchange(read_jobs)
    for path in (stack.data_dir / "files").glob("*.jsonl"):
        for task in read_tasks(path):
            decode(GradedGroup, encode(a_graded_group(a_group(a_request(task=task)))))
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=KEY) as sdk:
        list(sdk.fine_tuning.jobs.list(limit=100))
        assert list(sdk.files.list(limit=1000))


def _request(route: str, draw: Random, file_id: str) -> tuple[bytes, str]:
    """A body for a route, and its type."""
    grader = draw.choice(_GRADERS)
    if route == "/v1/files":
        task = {**json.loads(GOOD_LINE), "metadata": {"level": [1, "x"]}}
        name = draw.choice(("t.jsonl", *_TEXTS)).replace("\r\n", "").encode(errors="replace")
        parts = (
            b'name="purpose"\r\n\r\n' + draw.choice((b"fine-tune",) * 3 + (b"\0", b"x" * 2**20)),
            b'name="file"; filename="%b"\r\n\r\n' % name + _written(task, draw),
        )
        form = b"".join(b"--z\r\nContent-Disposition: form-data; %b\r\n" % part for part in parts)
        return form + b"--z--\r\n", "multipart/form-data; boundary=z"
    body: dict[str, Any] = {"grader": grader}
    if route == JOBS:
        recipe = changed(RECIPE, "reward.outcome", [{"verifier": "my.oracle", "settings": {}}])
        body = {"model": "tiny", "training_file": file_id, "metadata": {"team": "a"}, "seed": 1}
        body |= {"recipe": draw.choice((RECIPE, recipe)), "validation_file": file_id}
        if draw.random() < 0.5:
            method = reinforcement(grader=grader, hyperparameters={"batch_size": 4, "n_epochs": 1})
            body |= {"recipe": RECIPE, "method": method}
    elif route == TRIALS:
        item = {"answer": r"\boxed{\frac{1}{2}}", "b": [1, {"c": "d"}]}
        body |= {"model_sample": draw.choice((*_TEXTS[:3], "1 + 1 = 2")), "item": item}
    elif route == "/v1/page/recipe":
        recipe = RECIPE | {"model": {"path": "tiny"}, "tasks": {"train": "x.jsonl"}}
        body = {"text": _written(recipe, draw).decode(errors="replace")}
    return _written(body, draw), "application/json"


def _written(body: Any, draw: Random) -> bytes:
    """As JSON, in which some values and keys are hostile."""
    body, hostile = json.loads(json.dumps(body)), dict[str, str]()

    def put(holder: Any, key: Any, what: str) -> None:
        name = f"<{len(hostile)}>"
        hostile[json.dumps(name)] = what
        holder[name if key is None else key] = name

    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        holder, key = draw.choice(list(_places(body)))
        act = draw.random()
        text = json.dumps(draw.choice(_TEXTS), ensure_ascii=draw.random() < 0.7)
        if act < 0.7:
            put(holder, key, text if act < 0.3 else draw.choice(_LITERALS))
        elif isinstance(holder, dict) and act < 0.85:
            put(holder, None, text)
        elif len(body) > 1:
            del holder[key]
    written = json.dumps(body)
    for name, what in hostile.items():
        written = written.replace(name, what)
    encoded = written.encode(errors="surrogatepass")
    cut = draw.randrange(len(encoded)) if draw.random() < 0.06 else len(encoded)
    return encoded[:cut] + b" " * (2**20 * (draw.random() < 0.02))


def _places(body: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in list(body.items() if isinstance(body, dict) else enumerate(body)):
        yield body, key
        if isinstance(value, dict | list):
            yield from _places(value)
