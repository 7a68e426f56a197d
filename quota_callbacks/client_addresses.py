"""The addresses of clients, as limits count them."""

from __future__ import annotations

import socket
from typing import Final

from headrace.quota_callbacks.entities import ANONYMOUS

_IPV6_MAPPED: Final = "::ffff:"
_IPV6_PREFIX_BYTES: Final = 8
"""A /64, the smallest network that a site is assigned (RFC 6177): its owner has all of its addresses."""


def counted_address(host: str) -> str:
    """Return the address or network for which an address is counted: an IPv4 address for itself, also in IPv6 notation
    (``::ffff:192.0.2.1``), and an IPv6 address for its /64."""
    if host.startswith(_IPV6_MAPPED) and "." in host:
        host = host.removeprefix(_IPV6_MAPPED)
    if ":" not in host:
        return host
    # With `ipaddress`, this took 25 times as long, and it is called for each connection.
    prefix = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:_IPV6_PREFIX_BYTES]
    return socket.inet_ntop(socket.AF_INET6, prefix.ljust(16, b"\0")) + "/64"


def counted_owner(user: str, host: str) -> str:
    """Return the owner of a connection, for its memory and its long steps: the user, or without one the address."""
    return counted_address(host) if user == ANONYMOUS else f"User:{user}"
