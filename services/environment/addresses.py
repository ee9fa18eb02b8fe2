"""The addresses that clients' environments may connect to: the operator's list, or public ones."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from fnmatch import fnmatchcase

_CONNECT_TIMEOUT_S = 10.0
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")
# Azure's host services, the relays of 6to4, and the targets of 6to4 and Teredo.
_SPECIAL_TEXTS = ("168.63.129.16/32", "192.88.99.0/24", "2002::/16", "2001::/32")
_SPECIAL = tuple(map(ipaddress.ip_network, _SPECIAL_TEXTS))


class AddressRefused(OSError):
    """The operator does not allow this address; the text says how to allow it."""


@dataclass(frozen=True)
class Addresses:
    """The addresses that are allowed.

    Args:
        patterns: ``HOST`` or ``HOST:PORT``, with ``*`` for any characters. Without patterns every
            public address is allowed, and no private, local or reserved one.
    """

    patterns: tuple[str, ...]

    async def resolve(self, host: str, port: int) -> str:
        """Return an allowed address of a host. Connect to it; the name may resolve differently.

        Raises:
            AddressRefused: if none is allowed.
            OSError: if the host is unknown.
        """
        name = host.strip("[]").rstrip(".").lower()
        address_text = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        is_listed = any(
            fnmatchcase(name, pattern) or fnmatchcase(address_text, pattern)
            for pattern in self.patterns
        )
        if self.patterns and not is_listed:
            raise AddressRefused(f"{address_text} is not one of WEIR_ENVIRONMENT_HOSTS")
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            loop = asyncio.get_running_loop()
            rows = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        for row in rows:
            address = str(row[4][0]).partition("%")[0]
            if is_listed or _is_public(address):
                return address
        raise AddressRefused(
            f"{address_text} is no public address; WEIR_ENVIRONMENT_HOSTS={address_text} of the "
            "environment workers allows it"
        )

    async def connect(self, host: str, port: int) -> socket.socket:
        """Connect to a host; raises as `resolve` does."""
        address = await self.resolve(host, port)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(connection, (address, port))
        except BaseException:
            connection.close()
            raise
        return connection


def _is_public(text: str) -> bool:
    """Whether an address is public; IPv4 addresses within IPv6 and NAT64 count as IPv4."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        else:
            address = address.ipv4_mapped or address
    if address.version == 6 and address not in _UNICAST:
        return False
    is_special = any(address in network for network in _SPECIAL)
    return address.is_global and not address.is_multicast and not is_special
