"""Addresses, broker ids and numbers of threads: parsing, formatting, and annotations for keys with such values.

Used by `schema`, `quotas` and `rules`, and for addresses by the proxy. Resolves no names and opens no sockets.
"""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.quota_callbacks.options import Parsed
from headrace.quota_callbacks.requests import Address
from headrace.quota_callbacks.value_texts import toml_text

if TYPE_CHECKING:
    from collections.abc import Iterator

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

PORT_MAX: Final = 65535

WILDCARD_HOSTS: Final = ("", "*", "0.0.0.0", "::")  # noqa: S104  only compared, never bound
"""Hosts that stand for all interfaces, which a server can listen on but no client can connect to."""

_LONGEST_HOST: Final = 253  # RFC 1035, without the root's dot
_LABEL: Final = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"  # RFC 1123, and underscores as in container networks
HOST_PATTERN: Final = rf"{_LABEL}(\.{_LABEL})*\.?"
HOST_PORT_PATTERN: Final = rf"({HOST_PATTERN}|\[[0-9A-Fa-f:.]+(%[^\]]+)?\]):[0-9]{{1,5}}"
NODE_IDS_PATTERN: Final = r" *[0-9]{1,10} *(- *[0-9]{1,10} *)?(, *[0-9]{1,10} *(- *[0-9]{1,10} *)?)*"

_HOST: Final = re.compile(HOST_PATTERN)
_NODE_RANGE: Final = re.compile(r" *([0-9]{1,10}) *(?:- *([0-9]{1,10}) *)?")


def parse_host_port(text: str) -> Address:
    """Return the address in ``host:port``, with an IPv6 address in brackets. Raises `ValueError` with the reason."""
    _refuse_scheme(text)
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port):
        raise ValueError("the port is missing or not a number")
    if int(port) > PORT_MAX:
        raise ValueError(f"a port is at most {PORT_MAX}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address must be in brackets, as in [::1]:9092")
    return Address(host=parse_host(host), port=int(port))


def parse_host(text: str) -> str:
    """Return a host name or IP address, without the brackets of an IPv6 address.

    Raises `ValueError` with the reason.
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
    if "://" in text:  # as in Kafka's own setting ``listeners``
        raise ValueError(f"omit {text.partition('://')[0]}://")


def is_wildcard_host(host: str) -> bool:
    """Return whether ``host`` stands for all interfaces, in any notation (``[::]``, ``0:0:0:0:0:0:0:0``)."""
    bare = host.strip().removeprefix("[").removesuffix("]")
    if bare in WILDCARD_HOSTS:
        return True
    try:
        return ipaddress.ip_address(bare).is_unspecified
    except ValueError:
        return False


def is_loopback_host(host: str) -> bool:
    """Return whether ``host`` is a loopback address or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIds:
    """The broker ids that have a port: sorted ranges without overlaps, both ends included."""

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
        """The highest id, which has the highest port."""
        return self.ranges[-1][1]


def parse_node_ids(text: str) -> NodeIds:
    """Return the ids in a text such as ``"0-2,1001-1010"``. Raises `ValueError` with the reason."""
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        match = _NODE_RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{toml_text(part.strip())} is neither an id nor a range")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise ValueError(f"the range {first}-{last} is descending")
        ranges.append((first, last))
    ranges.sort()
    for (_, last), (first, _) in pairwise(ranges):
        if first <= last:
            raise ValueError(f"id {first} is listed twice; ranges must not overlap")
    return NodeIds(ranges=tuple(ranges))


# --- annotations for keys ---------------------------------------------------------------------------------------------

AUTO: Final = 0
"""The number of threads that stands for one per core that the process may use (`count_threads`)."""

MOST_THREADS: Final = 64
"""Maximum number of threads of the native data plane; more than one per core have no benefit."""


def count_threads(configured: int) -> int:
    """Return the number of threads of the native data plane."""
    if configured != AUTO:
        return configured
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_THREADS)


def shown_threads(configured: int) -> str:
    """Return a number of threads as it is written in the file."""
    return '"auto"' if configured == AUTO else str(configured)


def thread_count() -> Parsed:
    """Return the annotation for a number of threads, or ``"auto"``."""

    def parse(raw: object) -> int:
        if raw == "auto":
            return AUTO
        if not isinstance(raw, int) or isinstance(raw, bool) or not 1 <= raw <= MOST_THREADS:
            raise ValueError
        return raw

    return Parsed(
        f'a whole number from 1 to {MOST_THREADS}, or "auto" for one for each core',
        parse,
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_THREADS}, {"const": "auto"}]},
        lambda value: "auto" if value == AUTO else value,
    )


def host_port(*, wildcard: bool) -> Parsed:
    """Return the annotation for a ``host:port`` to listen on or to connect to.

    ``wildcard`` permits hosts that stand for all interfaces.
    """
    host = "0.0.0.0" if wildcard else "kafka-1"  # noqa: S104  an example in a message

    def parse(raw: object) -> Address:
        found = parse_host_port(_text(raw))
        if found.port < 1:
            raise ValueError
        if is_wildcard_host(found.host) and not wildcard:
            raise ValueError("a wildcard address cannot be connected to")
        return found

    return Parsed(
        f'host:port, such as "{host}:9192", "127.0.0.1:9192" or "[::1]:9192", port 1-65535',
        parse,
        {"type": "string", "pattern": f"^{HOST_PORT_PATTERN}$"},
        str,
    )


def reachable_host() -> Parsed:
    """Return the annotation for a host to advertise to clients; brackets of an IPv6 address are removed."""

    def parse(raw: object) -> str:
        host = _text(raw)
        if is_wildcard_host(host):
            raise ValueError("clients cannot connect to a wildcard address")
        if re.fullmatch(r"[^:]+:[0-9]+|\[.*\]:[0-9]+", host):
            raise ValueError("omit the port, which is that of listen.advertised_port or listen.address")
        return parse_host(host)

    pattern = rf"^({HOST_PATTERN}|\[?[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[^\]]+)?\]?)$"
    return Parsed(
        'a host name or IP address that clients can reach, such as "kafka.example.com"',
        parse,
        {"type": "string", "pattern": pattern, "not": {"enum": ["0.0.0.0", "::", "[::]"]}},  # noqa: S104
    )


def network() -> Parsed:
    """Return the annotation for a network of IPv4 or IPv6 addresses, or a single address."""

    def parse(raw: object) -> Network:
        with _without_reason():
            return ipaddress.ip_network(_text(raw))
        raise ValueError

    return Parsed(
        'an IP address, or a network without host bits, such as "192.0.2.1", "10.0.0.0/24" or "2001:db8::/48"',
        parse,
        {"type": "string", "pattern": "^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$"},
        str,
    )


def id_ranges() -> Parsed:
    """Return the annotation for broker ids as ranges."""
    return Parsed(
        'broker ids as ranges and commas, such as "0-2,1001-1010"',
        lambda raw: parse_node_ids(_text(raw)),
        {"type": "string", "pattern": f"^{NODE_IDS_PATTERN}$"},
        str,
    )


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError  # noqa: TRY004  reported like every invalid value
    return raw


def _without_reason() -> suppress:
    """Discard the reason, since the description of valid values is more precise."""
    return suppress(ValueError, OverflowError)
