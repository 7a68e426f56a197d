"""The client that sends the measured requests: one connection, one request at a time; records the size of each.

Called by the workloads of `benchmarks.request_costs`. Sizes are those of `headrace.quota_callbacks.requests.Request`:
header and body, without the length.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from headrace.proxy.wire.apis import APIS, request_header_version, response_header_version
from headrace.proxy.wire.messages.codec import Message, decode, encode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from headrace.quota_callbacks.api_keys import ApiKey

CLIENT_ID = "headrace-request-costs"
ANSWER_TIMEOUT_S = 60.0
_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A request that was answered without an error."""

    work: str
    api_key: ApiKey
    correlation_id: int
    kib: float
    """Size of request and reply together."""


class RefusedError(Exception):
    """The broker answered with an error code that the workload did not expect."""


class MeasuredClient:
    """A context manager. `ask` raises OSError, EOFError or RefusedError."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = itertools.count(1)
        self.work = ""
        self.samples: list[Sample] = []

    def ask(
        self,
        api_key: ApiKey,
        version: int,
        message: Message | None = None,
        *,
        expect: Collection[int] = (),
        accept: Collection[int] = (),
        sampled: bool = True,
    ) -> Message:
        """Send a request and return the reply's body.

        A request is sampled if its reply has no error code or one in `accept`; a request that is not `sampled`, or
        whose reply has an error code in `expect`, is not.
        """
        correlation_id = next(self._numbers)
        request = _request(api_key, version, correlation_id, message or {})
        self._socket.sendall(_LENGTH.pack(len(request)) + request)
        reply = self._receive(_LENGTH.unpack(self._receive(_LENGTH.size))[0])
        body = reply[5 if response_header_version(api_key, version) else 4 :]
        answer = decode(f"{APIS[api_key].name}Response", version, body)
        codes = {code for code in _error_codes(answer) if code} - set(accept)
        if codes - set(expect):
            raise RefusedError(f"{self.work}: {APIS[api_key].name} v{version} was answered with {answer}")
        if sampled and not codes:
            kib = (len(request) + len(reply)) / 1024
            self.samples.append(Sample(work=self.work, api_key=api_key, correlation_id=correlation_id, kib=kib))
        return answer

    def take_samples(self) -> list[Sample]:
        """Return the samples since the last call."""
        samples, self.samples = self.samples, []
        return samples

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            data = self._socket.recv(size - len(received))
            if not data:
                raise EOFError(f"{self.work}: the connection ended after {len(received)} of {size} bytes")
            received += data
        return bytes(received)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Requests to be measured, of one API or of several that depend on each other."""

    name: str
    run: Run
    """Called repeatedly, with a number that is never repeated."""
    share: float = 1.0
    """Fraction of the usual number of calls; less than 1 for slow workloads and those that fill the disk."""


Run: TypeAlias = Callable[[MeasuredClient, int], None]


def asking(api_key: ApiKey, version: int, message: Message | None = None, *, accept: Collection[int] = ()) -> Run:
    """Return a run that sends the same request at every call."""

    def run(client: MeasuredClient, _: int) -> None:
        client.ask(api_key, version, message, accept=accept)

    return run


def _request(api_key: ApiKey, version: int, correlation_id: int, message: Message) -> bytes:
    header: Message = {
        "request_api_key": api_key,
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": CLIENT_ID,
    }
    name = f"{APIS[api_key].name}Request"
    return encode("RequestHeader", request_header_version(api_key, version), header) + encode(name, version, message)


def _error_codes(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for row in value:
            yield from _error_codes(row)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name.endswith("error_code"):
                yield inner
            else:
                yield from _error_codes(inner)
