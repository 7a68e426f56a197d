"""The addresses of clients, as limits count them."""

from __future__ import annotations

import ipaddress
from typing import Final

_IPV6_MAPPED: Final = "::ffff:"
_IPV6_PREFIX: Final = 64
"""The smallest network that a site is assigned (RFC 6177): its owner has all of its addresses."""


def counted_address(host: str) -> str:
    """Return the address or network for which an address is counted: an IPv4 address for itself, also in IPv6 notation
    (``::ffff:192.0.2.1``), and an IPv6 address for its /64."""
    if host.startswith(_IPV6_MAPPED) and "." in host:
        host = host.removeprefix(_IPV6_MAPPED)
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host.partition("%")[0], _IPV6_PREFIX), strict=False))
