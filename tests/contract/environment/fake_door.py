"""The model door without a model: its policy says what a test scripts, a character a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from protocol.calls import Terms
from protocol.messages import VersionSpan

from deploy.processes import free_ports
from services.gateway.calls.sessions import Recorded, branches_of

Json = dict[str, Any]


def counting(messages: list[Json]) -> str:
    """How many turns the policy has had."""
    return str(sum(turn["role"] == "assistant" for turn in messages))


@dataclass
class FakeDoor:
    says: Callable[[list[Json]], str | int] = counting  # a number is the status of a failure
    terms: dict[str, Terms] = field(default_factory=dict)
    calls: dict[str, list[Json]] = field(default_factory=dict)  # of the sessions that are open
    url: str = ""

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.put("/rollout/{session}")
        async def put(session: str, request: Request) -> Json:
            self.terms[session] = Terms.model_validate(await request.json())
            self.calls[session] = []
            return {"id": session}

        @app.post("/rollout/{session}/v1/chat/completions")
        async def chat(session: str, request: Request) -> JSONResponse:
            said = (await request.json())["messages"]
            call = self._answer(said)
            self.calls[session].append(call)
            if error := call["error"]:
                return JSONResponse({"error": error}, error["status"])
            choice = {"index": 0, "finish_reason": "stop"}
            message = {"role": "assistant", "content": call["text"]}
            told = {"id": call["id"], "object": "chat.completion", "created": 0, "model": "m"}
            return JSONResponse({**told, "choices": [{**choice, "message": message}]})

        @app.delete("/rollout/{session}")
        async def delete(session: str) -> Json:
            calls = self.calls.pop(session)
            recorded = [Recorded(**{n: c[n] for n in Recorded.model_fields}) for c in calls]
            branches = branches_of(call for call in recorded if call.error is None)
            return {"calls": calls, "branches": [vars(each) for each in branches], "deleted": True}

        return app

    def _answer(self, messages: list[Json]) -> Json:
        said, version = self.says(messages), len(messages)
        text = said if isinstance(said, str) else ""
        prompt = "".join(map(_rendered, messages))
        ids = [ord(character) for character in f"{text};"]
        spans = [VersionSpan(attempt=1, version=version, start=0, end=len(ids))]
        failed = {"code": "engine_error", "message": "the engine fails", "status": said}
        return {
            **{"id": f"call-{time.monotonic_ns()}", "created_at": 0.0, "seconds": 0.0},
            **{"model": "m", "finish_reason": "stop", "messages": messages, "text": text},
            "error": None if isinstance(said, str) else failed,
            "prompt_ids": [ord(character) for character in f"{prompt}<assistant>"],
            **{"token_ids": ids, "logprobs": [-0.5] * len(ids), "spans": spans},
        }


def _rendered(turn: Json) -> str:
    end = ";" if turn["role"] == "assistant" else ""
    return f"<{turn['role']}>{turn['content']}{end}"


@contextmanager
def a_door(**behaviour: Any) -> Iterator[FakeDoor]:
    door, port = FakeDoor(**behaviour), next(free_ports())
    door.url = f"http://127.0.0.1:{port}"
    server = uvicorn.Server(uvicorn.Config(door.app(), port=port, log_level="error"))
    thread = Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield door
    finally:
        server.should_exit = True
        thread.join()


_AGENT = """
import json, os, sys, time
from urllib.request import Request, urlopen
task, told, said = json.loads(os.environ["WEIR_TASK"]), [], []
def ask(text):
    told.append({"role": "user", "content": text})
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": told}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    headers["Content-Type"] = "application/json"
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    reply = json.load(urlopen(Request(url, body, headers), timeout=60))
    told.append(reply["choices"][0]["message"])
    said.append(told[-1]["content"])
"""


def an_agent(*lines: str) -> tuple[str, ...]:
    """A program of these lines, which may ``ask`` a text and find in ``said`` what was replied."""
    return ("python3", "-c", _AGENT + "\n".join(lines))
