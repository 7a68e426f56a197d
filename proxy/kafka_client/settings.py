"""The settings of a client: which brokers, how to authenticate, which deadlines and limits.

`headrace.proxy.kafka_client.properties` reads them from a file. Times have the names and defaults of Java's admin
client (``AdminClientConfig``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headrace.proxy.kafka_client.errors import SettingsError
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    import ssl

_ADDRESS: Final = re.compile(r"\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]:(?P<port6>\d+)|(?P<host>[^\s:\[\]/]+):(?P<port>\d+)")
_HIGHEST_PORT: Final = 65_535

DEFAULT_CLIENT_ID: Final = "headrace-admin"
MAX_REPLY_BYTES: Final = 100 * 1024 * 1024
"""A description of 1,000,000 quota entities with names of 40 bytes and two values each has this size. Java has no
limit."""
MAX_REPLY_ROWS: Final = 2_000_000
"""Elements of arrays in one reply; 100,000 entities of two parts and four quotas have 700,000. Each takes some hundred
bytes of memory."""


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Return the addresses in a list such as ``one:9092, [::1]:9092``. Raises `SettingsError` for anything else."""
    addresses = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        found = _ADDRESS.fullmatch(each)
        port = int(found["port"] or found["port6"]) if found else 0
        if found is None or not 0 < port <= _HIGHEST_PORT:
            raise SettingsError(f"bootstrap.servers: {each!r} is not an address; expected host:port")
        addresses.append(Address(host=found["host"] or found["ipv6"], port=port))
    if not addresses:
        raise SettingsError("bootstrap.servers has no address; expected host:port, or several of them with commas")
    return tuple(addresses)


class Mechanism(StrEnum):
    """The SASL mechanisms that the client has."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user's name and password for a SASL mechanism. The password is not part of ``repr``."""

    mechanism: Mechanism
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of one client. Raises `SettingsError` for a time or limit below 0."""

    bootstrap_servers: tuple[Address, ...]
    """Brokers with which the client begins; any of them can name the others."""
    client_id: str = DEFAULT_CLIENT_ID
    tls: ssl.SSLContext | None = None
    """The TLS context for connections; ``None`` for plaintext."""
    credentials: Credentials | None = None
    """The mechanism, the user and the password for SASL; ``None`` for connections without SASL."""
    request_timeout_ms: int = 30_000
    """The longest time for one reply. Then the connection is closed, and the request is sent again."""
    default_api_timeout_ms: int = 60_000
    """The longest time for one call, with all its attempts."""
    connection_setup_timeout_ms: int = 10_000
    """The longest time for connecting by TCP and TLS."""
    connections_max_idle_ms: int = 300_000
    """A connection that was idle for so long is not used again, since the broker may be about to close it."""
    metadata_max_age_ms: int = 300_000
    """The list of brokers and the controller are requested again after this time."""
    retry_backoff_ms: int = 100
    """The wait before the second attempt. It doubles with each attempt, and varies at random by a fifth."""
    retry_backoff_max_ms: int = 1000
    max_reply_bytes: int = MAX_REPLY_BYTES
    max_reply_rows: int = MAX_REPLY_ROWS

    def __post_init__(self) -> None:
        if not self.bootstrap_servers:
            raise SettingsError("bootstrap_servers has no address")
        for name in (
            *("request_timeout_ms", "default_api_timeout_ms", "connection_setup_timeout_ms"),
            *("connections_max_idle_ms", "metadata_max_age_ms", "retry_backoff_ms", "retry_backoff_max_ms"),
            *("max_reply_bytes", "max_reply_rows"),
        ):
            value = getattr(self, name)
            if value < 0:
                raise SettingsError(f"{name} = {value}: must be 0 or more")
