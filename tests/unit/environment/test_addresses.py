"""The addresses that clients' environments may connect to."""

import asyncio
import socket
from contextlib import nullcontext
from typing import Any

import pytest

from services.environment.addresses import Addresses, AddressRefused
from tests.tables import table

pytestmark = pytest.mark.anyio


PRIVATE = """
127.0.0.1 localhost 127.1 0.0.0.0 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1
224.0.0.1 255.255.255.255 2130706433 [::1] :: fe80::1%lo fc00::1 ff02::1 ::ffff:127.0.0.1
::ffff:a9fe:a9fe 64:ff9b::7f00:1 2002:7f00:1:: LOCALHOST. 168.63.129.16 ::10.0.0.1
"""


@pytest.mark.parametrize("host", PRIVATE.split())
async def test_by_default_only_public_addresses_are_reached(host: str) -> None:
    with pytest.raises(AddressRefused, match="WEIR_ENVIRONMENT_HOSTS="):
        await Addresses(()).connect(host, 80)


@pytest.mark.parametrize("host", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
async def test_public_addresses_are_allowed(host: str) -> None:
    assert await Addresses(()).resolve(host, 443) == host


@table("""
    pattern          | host      | port | is_allowed
    127.0.0.1:8790   | 127.0.0.1 | 8790 | True
    127.0.0.1:8790   | 127.0.0.1 | 8791 | False
    127.0.0.1        | 127.0.0.1 | 1    | True
    [[]::1]:80       | [::1]     | 80   | True
    games            | 8.8.8.8   | 80   | False
    *.games.internal | 8.8.8.8   | 80   | False
""")
async def test_only_the_operators_list_is_allowed(
    pattern: str, host: str, port: int, is_allowed: bool
) -> None:
    with nullcontext() if is_allowed else pytest.raises(AddressRefused):
        assert await Addresses((pattern,)).resolve(host, port) == host.strip("[]")


async def test_a_name_is_resolved_once_and_its_private_addresses_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[str]()

    async def resolve(name: str, port: int, **_: Any) -> list[Any]:
        calls.append(name)
        rows = ("10.0.0.1", "93.184.216.34") if len(calls) == 1 else ("127.0.0.1",)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (row, port)) for row in rows]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await Addresses(()).resolve("rebinds.example", 80) == "93.184.216.34"
    with pytest.raises(AddressRefused):
        await Addresses(()).resolve("rebinds.example", 80)
