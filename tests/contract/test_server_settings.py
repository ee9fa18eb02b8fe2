"""What a server could lose is said at the start; on one that deletes work nothing starts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from protocol.exchange import Exchange, connect
from protocol.exchange import server as server_settings
from protocol.exchange.server import server_problems

from services.chassis.deployment import DeploymentError
from services.chassis.service import check_server
from tests.contract.valkey_server import Server


@pytest.fixture
async def own_exchange(own_server: Server) -> AsyncIterator[Exchange]:
    async with connect(own_server.url, me="gateway-1", patience_s=5) as exchange:
        yield exchange


def configure(server: Server, **settings: str) -> None:
    with server.client() as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({}, None),
        ({"maxmemory_policy": "volatile-lru"}, None),  # nothing that expires is work
        ({"appendfsync": "everysec"}, "appendfsync"),
        ({"appendonly": "no"}, "appendonly"),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy"),
    ],
)
async def test_a_setting_that_can_cost_work_is_named_with_its_remedy(
    own_server: Server, own_exchange: Exchange, settings: dict[str, str], setting: str | None
) -> None:
    configure(own_server, **settings)
    problems = await server_problems(own_exchange)
    assert [problem.setting for problem in problems] == [setting] * (setting is not None)
    assert all(f"set {problem.setting}" in problem.text for problem in problems)


@pytest.mark.parametrize(
    ("forbidden", "unknown"),
    [
        ("config", {"appendfsync"}),
        ("info", {"maxmemory-policy", "appendonly"}),
        ("time", {"clock"}),
    ],
)
async def test_a_server_that_refuses_to_tell_is_not_taken_for_safe(
    own_server: Server, forbidden: str, unknown: set[str]
) -> None:
    with own_server.client() as client:
        commands = ["+@all", f"-{forbidden}"]
        client.acl_setuser(
            "weir",
            enabled=True,
            passwords=["+w"],
            keys=["*"],
            commands=commands,
        )
    url = f"redis://weir:w@127.0.0.1:{own_server.port}/0"
    async with connect(url, me="gateway-1", patience_s=5) as exchange:
        problems = await server_problems(exchange)
    assert {problem.setting for problem in problems} == unknown
    assert all("cannot be checked" in problem.text for problem in problems)
    assert not any(problem.deletes_work for problem in problems)


@pytest.mark.parametrize("off_s", [-60.0, 60.0])
async def test_a_clock_that_is_wrong_is_noticed_and_shown_as_a_metric(
    own_exchange: Exchange, monkeypatch: pytest.MonkeyPatch, off_s: float
) -> None:
    own = SimpleNamespace(time=lambda: time.time() - off_s)
    monkeypatch.setattr(server_settings, "time", own)
    (problem,) = await server_problems(own_exchange)
    assert problem.setting == "clock"
    await check_server(own_exchange)
    assert REGISTRY.get_sample_value("weir_server_unsafe", {"setting": "clock"}) == 1.0


async def test_nothing_starts_on_a_server_that_deletes_work(
    own_server: Server, own_exchange: Exchange
) -> None:
    configure(own_server, maxmemory_policy="allkeys-lru")
    with pytest.raises(DeploymentError, match="allkeys-lru"):
        await check_server(own_exchange)
