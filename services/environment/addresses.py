"""Where clients' environments may connect to: the operator's list, else public addresses alone."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from fnmatch import fnmatchcase

_CONNECT_S = 10.0
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")
# The servers of a cloud's virtual machines; the relays of 6to4, and what it and Teredo lead to.
_SPECIAL_TEXTS = ("168.63.129.16/32", "192.88.99.0/24", "2002::/16", "2001::/32")
_SPECIAL = tuple(map(ipaddress.ip_network, _SPECIAL_TEXTS))


class AddressRefused(OSError):
    """The operator does not allow this address; the text says how to allow it."""


@dataclass(frozen=True)
class Addresses:
    """What may be connected to.

    Args:
        patterns: of ``HOST`` or ``HOST:PORT``, with ``*`` for any characters; without any, every
            public address is allowed, and no private, local or reserved one.
    """

    patterns: tuple[str, ...]

    async def resolve(self, host: str, port: int) -> str:
        """An address of a host, of those that are allowed; connect to it, not to the name again.

        Raises:
            AddressRefused: if none is allowed.
            OSError: if the host is not known.
        """
        name = host.strip("[]").rstrip(".").lower()
        whole = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        is_listed = any(fnmatchcase(each, p) for p in self.patterns for each in (name, whole))
        if self.patterns and not is_listed:
            raise AddressRefused(f"{whole} is not one of WEIR_ENVIRONMENT_HOSTS")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_S):
            rows = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        addresses = [str(row[4][0]).partition("%")[0] for row in rows]
        allowed = [each for each in addresses if is_listed or _is_public(each)]
        if not allowed:
            raise AddressRefused(
                f"{whole} is no public address; WEIR_ENVIRONMENT_HOSTS={whole} of the environment "
                "workers allows it"
            )
        return allowed[0]

    async def connect(self, host: str, port: int) -> socket.socket:
        """A connection to a host; see `resolve` for what it raises."""
        address = await self.resolve(host, port)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().sock_connect(connection, (address, port))
        except BaseException:
            connection.close()
            raise
        return connection


def _is_public(text: str) -> bool:
    """Of ways through other addresses, as of 6to4, only IPv4's own and NAT64 are looked behind."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        behind = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
        address = address.ipv4_mapped or behind or address
    if address.version == 6 and address not in _UNICAST:
        return False
    is_special = any(address in network for network in _SPECIAL)
    return address.is_global and not address.is_multicast and not is_special
