"""One connection to a broker: connecting by TCP and TLS, the versions of APIs, authentication, requests and replies.

Only one request is under way at a time, which `headrace.proxy.kafka_client.cluster` ensures. A request that is
cancelled, or that fails, leaves the connection in the middle of a reply, so it is closed then.

A server may be hostile: a reply is limited in bytes and elements, memory is taken as bytes arrive, and every reply has
a deadline.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
from functools import partial
from importlib.metadata import version as distribution_version
from struct import Struct
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.kafka_client.connection.api_versions import PREFERRED_API_VERSIONS, offered_versions, usable_version
from headrace.proxy.kafka_client.connection.authentication import authenticate
from headrace.proxy.kafka_client.connection.long_replies import read_in_thread
from headrace.proxy.kafka_client.errors import (
    BadReplyError,
    ConnectionLostError,
    SettingsError,
    TlsError,
    UnreachableError,
    broker_error,
)
from headrace.proxy.wire.apis import APIS, back_off_from, response_header_version
from headrace.proxy.wire.errors import MalformedFrame, PeerFault, UnencodableValue
from headrace.proxy.wire.heads import LENGTH_BYTES, PLAIN_BODY_AT, request_frame, response_body_at
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.projection import project
from headrace.proxy.wire.messages.row_limit import check_rows
from headrace.proxy.wire.other_protocols import TLS, other_protocol
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.proxy.kafka_client.settings import ClientSettings
    from headrace.proxy.wire.messages.codec import Message
    from headrace.quota_callbacks.requests import Address

    OpenStream = Callable[[Address], Awaitable[trio.abc.Stream]]

MAX_HANDSHAKE_BYTES: Final = 1024 * 1024
"""Longest reply before the broker serves the client. ApiVersions of Kafka 4.4 has less than 1 KiB."""
_RECEIVE_BYTES: Final = 64 * 1024
_MOST_CORRELATION_IDS: Final = 1 << 31
_SESSION_SHARE: Final = 0.85
"""A connection is replaced when this part of its SASL session has passed. Java authenticates again after 85 to 95 %."""
_REPLY_HEAD: Final = Struct(">ii")
_UNSUPPORTED_VERSION_BODY: Final = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


async def open_tcp(address: Address) -> trio.abc.Stream:
    """Connect to a broker by TCP. Raises `OSError`."""
    return await trio.open_tcp_stream(address.host, address.port)


async def connect(address: Address, settings: ClientSettings, open_stream: OpenStream = open_tcp) -> BrokerConnection:
    """Return a connection to a broker that is ready for requests: its versions are known, the user is authenticated.

    Raises `UnreachableError`, `TlsError`, `AuthenticationError`, and what `BrokerConnection.request` raises. No
    connection stays open if the call is cancelled.
    """
    timeout_ms = settings.connection_setup_timeout_ms
    try:
        with trio.fail_after(timeout_ms / 1000):
            stream = await _open_stream(address, settings, open_stream)
    except trio.TooSlowError as error:
        raise UnreachableError(f"cannot connect to {address} within {timeout_ms} ms") from error
    connection = BrokerConnection(stream, address, settings)
    try:
        await connection.prepare()
    except BaseException:
        await connection.aclose()
        raise
    return connection


async def _open_stream(address: Address, settings: ClientSettings, open_stream: OpenStream) -> trio.abc.Stream:
    try:
        stream = await open_stream(address)
    except OSError as error:
        raise UnreachableError(f"cannot connect to {address}: {_reason(error)}") from error
    if settings.tls is None:
        return stream
    secured = trio.SSLStream(stream, settings.tls, server_hostname=address.host, https_compatible=True)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise _tls_fault(address, error) from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


def _reason(error: OSError) -> str:
    """Return why a connection could not be opened. The cause of trio's error has one for each address of the host."""
    causes = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else (error,)
    return ", ".join(dict.fromkeys(map(_reason_of_attempt, causes)))


def _reason_of_attempt(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror if isinstance(error, socket.gaierror) else None) or str(error)


def _tls_fault(address: Address, error: trio.BrokenResourceError) -> TlsError | UnreachableError:
    """Return the error for a handshake that failed. That of a closed connection may be tried again."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        return TlsError(f"the TLS handshake with {address} failed: {cause}")
    return UnreachableError(
        f"{address} closed the connection in the TLS handshake; if its listener has no TLS, set security.protocol to"
        " PLAINTEXT or SASL_PLAINTEXT"
    )


class BrokerConnection:
    """A connection to one broker. Created by `connect`."""

    __slots__ = (
        "_buffer", "_client_version", "_correlation_id", "_settings", "_stream", "_versions",
        "address", "closed", "expires_at", "throttled_until", "used_at",
    )  # fmt: skip

    def __init__(self, stream: trio.abc.Stream, address: Address, settings: ClientSettings) -> None:
        self._stream = stream
        self._settings = settings
        self._buffer = bytearray()
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {ApiKey.API_VERSIONS: (0, PREFERRED_API_VERSIONS)}
        self.address = address
        self.closed = False
        self.used_at = trio.current_time()
        """When the last reply arrived, on trio's clock."""
        self.expires_at = math.inf
        """When the SASL session is about to end, on trio's clock."""
        self.throttled_until = -math.inf
        """The time before which the broker wants no further request (KIP-219), on trio's clock."""

    @property
    def usable(self) -> bool:
        """Whether a further request may be sent: the connection is open, not idle for long, its session lasts."""
        now = trio.current_time()
        idle_s = self._settings.connections_max_idle_ms / 1000
        return not self.closed and now < self.expires_at and now - self.used_at < idle_s

    def version(self, api_key: ApiKey) -> int:
        """Return the highest version that both sides have. Raises `UnsupportedVersionError`, which names the API."""
        return usable_version(api_key, self._versions, str(self.address))

    async def prepare(self) -> None:
        """Learn the versions of the broker's APIs, and authenticate. Called once, by `connect`."""
        offered = await self._ask_versions()
        if offered["error_code"] == ErrorCode.UNSUPPORTED_VERSION:
            # The reply of version 0 names the versions since Kafka 2.4 (KIP-511); before, none: version 0.
            highest = offered_versions(offered).get(ApiKey.API_VERSIONS, (0, 0))[1]
            self._versions[ApiKey.API_VERSIONS] = (0, max(0, min(highest, PREFERRED_API_VERSIONS - 1)))
            offered = await self._ask_versions()
        if offered["error_code"]:
            error = broker_error(offered["error_code"], None)
            raise BadReplyError(f"{self.address} does not say which APIs it has: {error}")
        self._versions = offered_versions(offered)
        if self._settings.credentials is not None:
            began = trio.current_time()
            lifetime_ms = await authenticate(self._ask_in_handshake, self._settings.credentials)
            if lifetime_ms > 0:
                self.expires_at = began + lifetime_ms / 1000 * _SESSION_SHARE

    async def request(
        self,
        api_key: ApiKey,
        version: int,
        message: Message,
        *,
        timeout_s: float,
        max_bytes: int | None = None,
        wanted: frozenset[str] | None = None,
    ) -> Message:
        """Send a request, and return the decoded reply. Not to be called while another request is under way.

        ``wanted`` has the fields of the reply that are read, if not all are.

        Raises `ConnectionLostError` if the connection ends or the reply is not complete within ``timeout_s``, and
        `BadReplyError` for a reply that is malformed or above a limit. The connection is closed after an error, and if
        the call is cancelled; the broker may have done what was requested.
        """
        name = APIS[api_key].name
        self._correlation_id = (self._correlation_id + 1) % _MOST_CORRELATION_IDS
        try:
            body = encode(f"{name}Request", version, message)
        except UnencodableValue as error:
            raise SettingsError(f"the arguments do not fit the request: {error}") from error
        frame = request_frame(api_key, version, self._correlation_id, self._settings.client_id, body)
        try:
            with trio.fail_after(timeout_s):
                reply = await self._exchange(frame, max_bytes or self._settings.max_reply_bytes)
            decoded = await read_in_thread(
                partial(self._decoded, api_key, version, reply, wanted), size_bytes=len(reply)
            )
        except trio.TooSlowError as error:
            await self.aclose()
            raise ConnectionLostError(
                f"{self.address} did not answer {name} within {timeout_s * 1000:.0f} ms"
            ) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            await self.aclose()
            raise self._lost(name, error) from error
        except BaseException:
            await self.aclose()
            raise
        self.used_at = trio.current_time()
        throttle_ms: int = decoded.get("throttle_time_ms", 0)
        if throttle_ms > 0 and version >= back_off_from(api_key):
            self.throttled_until = max(self.throttled_until, self.used_at + throttle_ms / 1000)
        return decoded

    async def aclose(self) -> None:
        """Close the connection at once, without waiting for the peer. May be called again."""
        self.closed = True
        self._buffer.clear()
        await trio.aclose_forcefully(self._stream)

    async def _ask_versions(self) -> Message:
        version = self._versions[ApiKey.API_VERSIONS][1]
        message = {} if version < 3 else _SOFTWARE
        return await self._ask_in_handshake(ApiKey.API_VERSIONS, message, version)

    async def _ask_in_handshake(self, api_key: ApiKey, message: Message, version: int | None = None) -> Message:
        timeout_s = self._settings.request_timeout_ms / 1000
        version = self.version(api_key) if version is None else version
        return await self.request(api_key, version, message, timeout_s=timeout_s, max_bytes=MAX_HANDSHAKE_BYTES)

    async def _exchange(self, frame: bytes, max_bytes: int) -> bytes:
        """Send a frame, and return the next frame that arrives, with its length field."""
        await self._stream.send_all(frame)
        await self._receive(LENGTH_BYTES)
        size = int.from_bytes(self._buffer[:LENGTH_BYTES], "big", signed=True)
        if not LENGTH_BYTES <= size <= max_bytes:
            raise self._bad_size(size, max_bytes)
        await self._receive(LENGTH_BYTES + size)
        reply = bytes(self._buffer[: LENGTH_BYTES + size])
        del self._buffer[: LENGTH_BYTES + size]
        return reply

    async def _receive(self, count: int) -> None:
        """Wait until the buffer has ``count`` bytes, which takes memory for those that have arrived."""
        while len(self._buffer) < count:
            some = await self._stream.receive_some(_RECEIVE_BYTES)
            if not some:
                raise trio.BrokenResourceError("the broker closed the connection")
            self._buffer += some

    def _decoded(self, api_key: ApiKey, version: int, frame: bytes, wanted: frozenset[str] | None) -> Message:
        """Return the body of a reply. Raises `BadReplyError`."""
        name = f"{APIS[api_key].name}Response"
        size, correlation_id = _REPLY_HEAD.unpack_from(frame)
        if correlation_id != self._correlation_id:
            raise BadReplyError(f"{self.address} answered request {correlation_id} instead of {self._correlation_id}")
        try:
            view = memoryview(frame)
            body_at = PLAIN_BODY_AT
            if response_header_version(api_key, version):
                body_at = response_body_at(view, 0, len(frame), size, api_key, version) or PLAIN_BODY_AT
            body = view[body_at:]
            if api_key is ApiKey.API_VERSIONS and body[:2] == _UNSUPPORTED_VERSION_BODY:
                version = 0  # KIP-511
            if wanted is not None:
                return project(name, version, body, wanted, max_rows=self._settings.max_reply_rows)
            check_rows(name, version, body, self._settings.max_reply_rows)
            return decode(name, version, body)
        except MalformedFrame as error:
            rule = f"max_reply_rows = {self._settings.max_reply_rows}"
            raise BadReplyError(f"the {name} of {self.address} is malformed, or has more rows than {rule}") from error
        except PeerFault as error:
            raise BadReplyError(f"the reply of {self.address} is malformed: {error}") from error

    def _bad_size(self, size: int, max_bytes: int) -> BadReplyError:
        protocol = other_protocol(self._buffer, 0, len(self._buffer))
        if protocol == TLS:
            return BadReplyError(f"{self.address} speaks TLS; set security.protocol to SSL or SASL_SSL")
        if protocol is not None:
            return BadReplyError(f"{self.address} speaks {protocol} instead of Kafka's protocol")
        if size > max_bytes:
            return BadReplyError(f"{self.address} sent a reply of {size} bytes; the limit is {max_bytes}")
        return BadReplyError(f"{self.address} sent a reply of {size} bytes, which is shorter than its header")

    def _lost(self, name: str, error: Exception) -> ConnectionLostError | TlsError:
        cause = error.__cause__
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return TlsError(f"the TLS connection to {self.address} failed: {cause}")
        return ConnectionLostError(f"the connection to {self.address} ended before the reply to {name}: {error}")


_SOFTWARE: Final[dict[str, str]] = {
    "client_software_name": "headrace",
    "client_software_version": distribution_version("headrace"),
}
