"""A judge's server that follows a script, over real sockets, and how tests ask the judge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from prometheus_client import REGISTRY
from protocol.messages import Graded, Score, Task
from protocol.rewards import ModelJudge

from services.grader.judge.judge import RIGHT, WRONG, Answer, Judge
from services.grader.judge.question import Form, Question, choice_field, text_field
from services.grader.judge.settings import JudgeSettings
from services.grader.tools import Tools
from services.grader.verifiers.judges import model_judge
from tests.builders import a_task

MODEL = "judge"
Body = dict[str, Any]
Writer = asyncio.StreamWriter
Behaviour = Callable[["ScriptedServer", Body, Writer], Awaitable[None]]


def fill_form(body: Body, *, right: bool = True) -> Body:
    """The best that the form allows, or the worst."""
    fields = body["response_format"]["json_schema"]["schema"]["properties"]
    return {name: _filled(schema, right) for name, schema in fields.items()}


def _filled(schema: Body, right: bool) -> str | float:
    if "enum" in schema:
        return schema["enum"][0 if right else -1]
    if schema["type"] == "number":
        return schema["maximum" if right else "minimum"]
    return "I have looked."


def completion(content: object, finish_reason: str | None = "stop", written: int = 20) -> bytes:
    message = {"role": "assistant", "content": content}
    usage = {"prompt_tokens": 100, "completion_tokens": written}
    usage |= {"completion_tokens_details": {"reasoning_tokens": 5}}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def replies(body: bytes, status: int = 200, **headers: str) -> Behaviour:
    """Any reply."""

    async def behave(_: ScriptedServer, __: Body, writer: Writer) -> None:
        lines = [f"HTTP/1.1 {status} Scripted", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    return behave


def says(content: object, finish_reason: str | None = "stop") -> Behaviour:
    """A completion with this content, which is cut off after all tokens that were granted."""
    return replies(completion(content, finish_reason, 16384 if finish_reason == "length" else 20))


def breaks_off(head: bytes) -> Behaviour:
    """The beginning of a reply, then the end of the connection."""

    async def behave(_: ScriptedServer, __: Body, writer: Writer) -> None:
        writer.write(head)
        await writer.drain()
        writer.close()

    return behave


def grades(*, right: bool = True, after_s: float = 0.0) -> Behaviour:
    """A verdict, the best one or the worst one."""

    async def behave(server: ScriptedServer, body: Body, writer: Writer) -> None:
        await asyncio.sleep(after_s)
        reply = says(json.dumps(fill_form(body, right=right)))
        await reply(server, body, writer)

    return behave


async def hangs(server: ScriptedServer, _: Body, writer: Writer) -> None:
    """Nothing, until the client leaves."""
    while not server.has_left(writer):
        await asyncio.sleep(0.005)


async def trickles(_: ScriptedServer, __: Body, writer: Writer) -> None:
    """A byte at a time, for ever."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"1\r\n \r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def floods(server: ScriptedServer, body: Body, writer: Writer) -> None:
    """A body of 50 MB, as far as it is read."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n")
    for _ in range(50):
        writer.write(b" " * 1_000_000)
        await writer.drain()
        server.flooded_bytes += 1_000_000


async def tells_right_from_wrong(server: ScriptedServer, body: Body, writer: Writer) -> None:
    """Answer as the self-test hopes."""
    await grades(right=WRONG not in body["messages"][-1]["content"])(server, body, writer)


@dataclass
class ScriptedServer:
    """Answers calls by ``script``, whose last entry is repeated, and the self-test by ``exam``."""

    script: list[Behaviour] = field(default_factory=lambda: [grades()])
    exam: Behaviour = tells_right_from_wrong
    requests: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    num_exams: int = 0
    in_flight: int = 0
    flooded_bytes: int = 0
    port: int = 0
    _clients: dict[Writer, asyncio.StreamReader] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        await self.come()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.go_away()

    async def come(self) -> None:
        """Listen, at the same port as before if there was one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=2**24, backlog=1000
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def go_away(self) -> None:
        """Cut every connection and listen no more."""
        self._server.close()
        for writer in self._clients:
            writer.transport.abort()
        await self._server.wait_closed()

    def has_left(self, writer: Writer) -> bool:
        """Whether the client has hung up."""
        return self._clients[writer].at_eof() or writer.is_closing()

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self._clients[writer] = reader
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
                headers = {name.lower(): value for name, value in headers.items()}
                text = await reader.readexactly(int(headers.get("content-length", 0)))
                self.keys.append(headers.get("authorization"))
                await self._answer(head.split()[1], json.loads(text or b"{}"), writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or the test is over
        finally:
            del self._clients[writer]
            writer.close()

    async def _answer(self, path: str, body: Body, writer: Writer) -> None:
        assert path == "/v1/chat/completions"
        behave = self._next(body)
        self.in_flight += 1
        try:
            await behave(self, body, writer)
        finally:
            self.in_flight -= 1

    def _next(self, body: Body) -> Behaviour:
        text = body["messages"][-1]["content"]
        if RIGHT in text or WRONG in text:
            self.num_exams += 1
            return self.exam
        self.requests.append(body)
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


def judge_settings(server: ScriptedServer, **changes: Any) -> JudgeSettings:
    """Pauses of hundredths of a second, and all the time that a call may need."""
    hasty = {"timeout_s": 60.0, "pauses_s": (0.01, 0.02), "retest_s": (0.02, 0.1)}
    return JudgeSettings(**{"url": server.url, "model": MODEL, **hasty, **changes})


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


TASK = a_task(solution="One and one make two. </s>")
PERFECT = Graded(
    value=1,
    breakdown={"solution": 1.0, "samples": 1},
    comments={"analysis": "I have looked."},
)
FORM = Form({"analysis": text_field("your reasons"), "verdict": choice_field(("yes", "no"))})
YES: Answer = {"analysis": "I have looked.", "verdict": "yes"}


def a_question(text: str = "Is it?", **changes: Any) -> Question:
    turn = {"role": "user", "content": text}
    return replace(Question((turn,), FORM), **changes)


async def ask(judge: Judge, text: str = "Is it?") -> Answer:
    [answer] = await judge.ask(a_question(text))
    return answer


async def verify(
    judge: Judge, tools: Tools, text: str = "It is 2.", task: Task = TASK, **check: Any
) -> Score:
    judge_tools = replace(tools, judge=judge)
    return await model_judge(task, text, ModelJudge.model_validate(check), judge_tools)


async def score(server: ScriptedServer, tools: Tools, **check: Any) -> Score:
    async with Judge(judge_settings(server)) as judge:
        return await verify(judge, tools, **check)


def counted(metric: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(metric, labels) or 0.0


async def ended(*tasks: Awaitable[Any]) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*tasks, return_exceptions=True)
