"""Addresses, broker ids, durations and sizes: parsing, formatting, and annotations for keys with such values.

Used by `schema`, `quotas` and `rules`, and for addresses by the proxy. Resolves no names and opens no sockets.
Arithmetic with units is exact (fractions), so that formatting and parsing a value returns the same value.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from headrace.quota_callbacks.options import Parsed
from headrace.quota_callbacks.requests import Address
from headrace.quota_callbacks.value_texts import toml_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NumberT = TypeVar("NumberT", int, float)
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


DURATION_UNITS: Final = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
"""Seconds in each unit."""

SIZE_UNITS: Final = {
    "B": 1,
    "kB": 10**3,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
    "GB": 10**9,
    "GiB": 2**30,
}
"""Bytes in each unit."""

# 19 digits suffice for every 64-bit number, and 30 decimals for every double of at least a nanosecond.
_NUMBER: Final = r"[0-9]{1,19}(\.[0-9]{1,30})?"
DURATION_PATTERN: Final = rf"{_NUMBER} ?({'|'.join(DURATION_UNITS)})"
SIZE_PATTERN: Final = rf"{_NUMBER} ?({'|'.join(SIZE_UNITS)})"

_DURATION: Final = re.compile(DURATION_PATTERN)
_SIZE: Final = re.compile(SIZE_PATTERN)


def parse_duration_s(raw: object) -> float:
    """Return the seconds of a duration such as ``"1.5m"`` or a number of seconds, 0 or more.

    Raises `ValueError` for anything else.
    """
    if isinstance(raw, str):
        if match := _DURATION.fullmatch(raw):
            unit = match[2]
            return float(Fraction(raw.removesuffix(unit).rstrip()) * DURATION_UNITS[unit])
    elif isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw) and raw >= 0:
        return float(raw)
    raise ValueError(f"{raw!r} is not a duration")


def parse_size_bytes(raw: object) -> int:
    """Return the bytes of a size such as ``"64MiB"`` or a whole number of bytes.

    Raises `ValueError` for anything else, and for fractions of a byte.
    """
    if isinstance(raw, str):
        if match := _SIZE.fullmatch(raw):
            unit = match[2]
            size = Fraction(raw.removesuffix(unit).rstrip()) * SIZE_UNITS[unit]
            if size.denominator == 1:
                return size.numerator
    elif isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    raise ValueError(f"{raw!r} is not a size")


def format_duration(duration_s: float) -> str:
    """Return a finite duration, 0 or more, in the largest unit that divides it: ``"10m"``, ``"1500ms"``."""
    exact = Fraction(repr(float(duration_s)))
    for unit, seconds in reversed(DURATION_UNITS.items()):
        if exact and exact % seconds == 0:
            return f"{exact / seconds}{unit}"
    return f"{Decimal(repr(duration_s)):f}s" if exact else "0s"


def format_size(size_bytes: int) -> str:
    """Return a size in the largest unit that divides it, preferring powers of two: ``"100MiB"``, ``"500kB"``."""
    for unit in ("GiB", "MiB", "KiB", "GB", "MB", "kB"):
        if size_bytes and size_bytes % SIZE_UNITS[unit] == 0:
            return f"{size_bytes // SIZE_UNITS[unit]}{unit}"
    return f"{size_bytes}B"


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


def duration(lowest: str, highest: str) -> Parsed:
    """Return the annotation for a duration in seconds between two bounds, both included."""
    described = f'a duration such as "10s" ({", ".join(DURATION_UNITS)}) or a number of seconds'
    number = {"type": "number", "minimum": parse_duration_s(lowest), "maximum": parse_duration_s(highest)}
    return _with_unit(described, lowest, highest, parse_duration_s, DURATION_PATTERN, number, format_duration)


def size(lowest: str, highest: str) -> Parsed:
    """Return the annotation for a size in bytes between two bounds, both included."""
    described = f'a size such as "64MiB" ({", ".join(SIZE_UNITS)}) or a number of bytes'
    number = {"type": "integer", "minimum": parse_size_bytes(lowest), "maximum": parse_size_bytes(highest)}
    return _with_unit(described, lowest, highest, parse_size_bytes, SIZE_PATTERN, number, format_size)


def _with_unit(
    described: str,
    lowest: str,
    highest: str,
    parse: Callable[[object], NumberT],
    pattern: str,
    number: dict[str, Any],
    text_of: Callable[[NumberT], str],
) -> Parsed:
    def parse_bounded(raw: object) -> NumberT:
        with _without_reason():
            value = parse(raw)
            if number["minimum"] <= value <= number["maximum"]:
                return value
        raise ValueError

    schema = {"oneOf": [{"type": "string", "pattern": f"^{pattern}$"}, number]}
    return Parsed(f"{described}, from {lowest} to {highest}", parse_bounded, schema, text_of)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError  # noqa: TRY004  reported like every invalid value
    return raw


def _without_reason() -> suppress:
    """Discard the reason, since the description of valid values is more precise."""
    return suppress(ValueError, OverflowError)
