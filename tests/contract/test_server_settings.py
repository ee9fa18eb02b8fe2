"""What a server could lose is said at the start; on one that deletes work nothing starts."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from protocol.exchange import Exchange, connect
from protocol.exchange import server as server_settings
from protocol.exchange.server import server_problems

from tests.contract.gateway.stack import a_gateway, start_gateway
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@pytest.fixture
async def own_exchange(own_server: Server) -> AsyncIterator[Exchange]:
    async with connect(own_server.url, me="gateway-1", patience_s=5) as exchange:
        yield exchange


async def found(exchange: Exchange) -> dict[str, str]:
    return {problem.setting: problem.text for problem in await server_problems(exchange)}


def configure(server: Server, **settings: str) -> None:
    with server.client() as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


async def test_a_server_as_weir_starts_it_has_no_problem(own_exchange: Exchange) -> None:
    assert await found(own_exchange) == {}


@pytest.mark.parametrize(
    ("settings", "setting", "remedy"),
    [
        ({"appendfsync": "everysec"}, "appendfsync", "'everysec'.*set appendfsync always"),
        ({"appendonly": "no"}, "appendonly", "set appendonly yes"),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy", "set maxmemory-policy noevict"),
    ],
)
async def test_a_setting_that_can_cost_work_is_named_with_its_remedy(
    own_server: Server, own_exchange: Exchange, settings: dict[str, str], setting: str, remedy: str
) -> None:
    configure(own_server, **settings)
    problems = await found(own_exchange)
    assert list(problems) == [setting]
    assert re.search(remedy, problems[setting])


async def test_a_policy_that_deletes_only_what_expires_deletes_nothing_here(
    own_server: Server, own_exchange: Exchange
) -> None:
    configure(own_server, maxmemory_policy="volatile-lru")
    assert await found(own_exchange) == {}


async def test_a_server_that_refuses_to_tell_its_settings_is_not_taken_for_safe(
    own_server: Server,
) -> None:
    with own_server.client() as client:
        client.acl_setuser(
            "weir", enabled=True, passwords=["+w"], keys=["*"], commands=["+@all", "-config"]
        )
    url = f"redis://weir:w@127.0.0.1:{own_server.port}/0"
    async with connect(url, me="gateway-1", patience_s=5) as exchange:
        problems = await found(exchange)
    assert list(problems) == ["appendfsync"]
    assert "cannot be checked" in problems["appendfsync"]


@pytest.mark.parametrize("off_s", [-60.0, 60.0])
async def test_a_clock_that_is_wrong_is_noticed(
    own_exchange: Exchange, monkeypatch: pytest.MonkeyPatch, off_s: float
) -> None:
    own = SimpleNamespace(time=lambda: time.time() - off_s)
    monkeypatch.setattr(server_settings, "time", own)
    problems = await found(own_exchange)
    assert list(problems) == ["clock"]
    told = re.search(r"clock is ([+-]\d+) s off", problems["clock"])
    assert told
    assert float(told[1]) == pytest.approx(off_s, abs=5)


async def test_the_gateway_warns_in_its_log_and_shows_it_as_a_metric(
    own_server: Server, tmp_path: Path
) -> None:
    configure(own_server, appendfsync="everysec")
    with a_gateway(own_server, tmp_path) as stack:
        metrics = httpx.get(f"{stack.url}/metrics").text
    assert 'weir_server_unsafe{setting="appendfsync"} 1.0' in metrics


async def test_the_gateway_does_not_start_on_a_server_that_deletes_work(
    own_server: Server, tmp_path: Path
) -> None:
    configure(own_server, maxmemory_policy="allkeys-lru")
    gateway, _ = start_gateway(own_server, tmp_path, stderr=subprocess.PIPE)
    _, err = gateway.communicate(timeout=60)
    assert gateway.returncode == 1
    assert b"gateway: maxmemory-policy is 'allkeys-lru'" in err
