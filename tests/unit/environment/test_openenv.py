"""What is asked of an OpenEnv server."""

from __future__ import annotations

import pytest
from protocol.recipe import Environment

from services.environment import openenv

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "over_http", "over_socket"),
    [
        ("http://aws.example/", "http://aws.example", "ws://aws.example/ws"),
        ("wss://http.example", "https://http.example", "wss://http.example/ws"),
    ],
)
async def test_a_server_has_two_addresses(url: str, over_http: str, over_socket: str) -> None:
    async with openenv.opened(Environment(url=url)) as play:
        game = play.__self__  # type: ignore[attr-defined]
        assert str(game.http.base_url) == over_http
        assert game.address == over_socket


def test_a_reply_that_nests_too_deep_is_text() -> None:
    reply = "[" * 100_000
    assert openenv._action(reply, {"required": ["text"]}) == {"text": reply}
