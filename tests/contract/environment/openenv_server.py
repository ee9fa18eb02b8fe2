"""The wire of an OpenEnv server, as openenv 0.10 speaks it: a game that ends as its task says.

``python openenv_server.py PORT PLACES`` serves so many sessions at a time.
"""

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

SCHEMA = json.dumps({"action": {"required": ["text"]}})
playing = 0


def schema(connection: ServerConnection, request: Request) -> Response | None:
    return connection.respond(HTTPStatus.OK, SCHEMA) if request.path == "/schema" else None


def answer(message: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    data = message["data"]
    if message["type"] == "reset":
        task.update(data)
        return _seen(f"seed {data['seed']}, level {data['level']}", None, False)
    if task["ends"] == "broken":
        return {"type": "error", "data": {"message": "kaputt", "code": "EXECUTION_ERROR"}}
    if task["ends"] == "invalid" or "text" not in data:
        return {"type": "error", "data": {"message": "no such move", "code": "VALIDATION_ERROR"}}
    paid = None if task["ends"] == "unpaid" else 0.25
    return _seen("go on", paid, task["ends"] in ("soon", "unpaid"))


def _seen(text: str, reward: float | None, done: bool) -> dict[str, Any]:
    observation = {"text": text, "metadata": {}}
    return {
        "type": "observation",
        "data": {"observation": observation, "reward": reward, "done": done},
    }


async def play(socket: ServerConnection) -> None:
    global playing
    if playing >= int(sys.argv[2]):
        full = {"message": "no place", "code": "CAPACITY_REACHED"}
        await socket.send(json.dumps({"type": "error", "data": full}))
        return
    playing += 1
    task: dict[str, Any] = {}
    try:
        async for message in socket:
            if task.get("ends") == "gone":
                return socket.transport.abort()
            await socket.send(json.dumps(answer(json.loads(message), task)))
    finally:
        playing -= 1


async def main() -> None:
    async with serve(play, "127.0.0.1", int(sys.argv[1]), process_request=schema):
        await asyncio.Event().wait()


asyncio.run(main())
