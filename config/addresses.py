"""Addresses and node ids, as the configuration has them.

Values for the listeners, the upstream connections and the topology. Nothing here resolves a name or opens a socket.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PORT_MAX: Final = 65535

WILDCARD_HOSTS: Final = ("", "*", "0.0.0.0", "::")  # noqa: S104  names what is refused; nothing binds here
"""Hosts that mean every interface: one can listen there, but no client can connect to it."""

_LONGEST_HOST: Final = 253  # RFC 1035, without the root's dot
_LABEL: Final = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"  # RFC 1123, and the underscores of container networks
HOST_PATTERN: Final = rf"{_LABEL}(\.{_LABEL})*\.?"
HOST_PORT_PATTERN: Final = rf"({HOST_PATTERN}|\[[0-9A-Fa-f:.]+(%[^\]]+)?\]):[0-9]{{1,5}}"
NODE_IDS_PATTERN: Final = r" *[0-9]{1,10} *(- *[0-9]{1,10} *)?(, *[0-9]{1,10} *(- *[0-9]{1,10} *)?)*"

_HOST: Final = re.compile(HOST_PATTERN)
_NODE_RANGE: Final = re.compile(r" *([0-9]{1,10}) *(?:- *([0-9]{1,10}) *)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPort:
    """A host name or IP address, without brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether the host means every interface."""
        return is_wildcard_host(self.host)


def parse_host_port(text: str) -> HostPort:
    """Read ``host:port``, an IPv6 address in brackets. Raises `ValueError`, with what to do about it."""
    _refuse_scheme(text)
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port):
        raise ValueError("the port is missing or not a number")
    if int(port) > PORT_MAX:
        raise ValueError(f"a port is at most {PORT_MAX}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address stands in brackets, as in [::1]:9092")
    return HostPort(host=parse_host(host), port=int(port))


def parse_host(text: str) -> str:
    """Read a host name or an IP address, an IPv6 address with or without brackets; the answer has none.

    Raises `ValueError`, with what to do about it.
    """
    _refuse_scheme(text)
    bracketed = text.startswith("[") and text.endswith("]")
    host = text[1:-1] if bracketed else text
    if bracketed or ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("not an IPv6 address") from None
        return host
    if not host:
        raise ValueError("the host is missing")
    if len(host) > _LONGEST_HOST or not _HOST.fullmatch(host):
        raise ValueError("not a host name")
    if host.rstrip(".").rpartition(".")[2].isdigit():  # a top-level domain is never a number
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError("not an IPv4 address") from None
    return host


def _refuse_scheme(text: str) -> None:
    if "://" in text:  # as Kafka's own listeners have it
        raise ValueError(f"without {text.partition('://')[0]}://")


def is_wildcard_host(host: str) -> bool:
    """Whether ``host`` means every interface, however it is written (``[::]``, ``0:0:0:0:0:0:0:0``)."""
    bare = host.strip().removeprefix("[").removesuffix("]")
    if bare in WILDCARD_HOSTS:
        return True
    try:
        return ipaddress.ip_address(bare).is_unspecified
    except ValueError:
        return False


def is_loopback_host(host: str) -> bool:
    """Whether ``host`` is this machine by its own loopback address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIds:
    """The broker ids that have a port: ranges with both ends included, in order, none overlapping."""

    ranges: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)

    def __contains__(self, node_id: int) -> bool:
        return any(first <= node_id <= last for first, last in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    @property
    def highest(self) -> int:
        """The last id, which has the highest port."""
        return self.ranges[-1][1]


def parse_node_ids(text: str) -> NodeIds:
    """Read ``"0-2,1001-1010"``. Raises `ValueError`, with what to do about it."""
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        match = _NODE_RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f'"{part.strip()}" is neither an id nor a range')
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise ValueError(f"the range {first}-{last} runs backwards")
        ranges.append((first, last))
    ranges.sort()
    for (_, last), (first, _) in pairwise(ranges):
        if first <= last:
            raise ValueError(f"id {first} stands there twice; ranges must not overlap")
    return NodeIds(ranges=tuple(ranges))
