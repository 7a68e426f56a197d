"""HTTP/1.1 for the admin server: sequential requests on each connection.

This module connects `h11`, which implements the protocol, with trio. A web framework would need nine MiB of resident
memory to serve five pages. Called by `headrace.proxy.admin.connections`; must not depend on the pages, except that it
knows which are probes.

Any client that can connect can send requests, so little work is done until the checks have accepted a request: a head
is parsed only when it is complete, has few enough lines, and its turn has come (`headrace.proxy.admin.turns`). A body
is read only if the page needs it, and after the checks of the head; otherwise the connection is closed after the
answer.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import IntEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qsl, unquote

import h11
import structlog
import trio

from headrace.proxy.repeated_lines import RepeatedLines, place_of
from headrace.proxy.wire.other_protocols import NEEDED_BYTES, TLS, other_protocol
from headrace.quota_callbacks.client_addresses import counted_address
from headrace.quota_callbacks.escaping import json_text

if TYPE_CHECKING:
    from headrace.proxy.admin.turns import AdminTurns
    from headrace.proxy.counters import AdminCounters

log = structlog.get_logger("headrace.admin")
_repeated = RepeatedLines()

MAX_HEAD_BYTES: Final = 16 * 1024
"""Limit for a request line and its headers."""
MAX_HEADERS: Final = 100
"""Limit for the number of headers. Browsers and scrapers send about twenty."""
MAX_PARAMETERS: Final = 20
"""Limit for the number of query parameters."""
MAX_BODY_BYTES: Final = 1024
"""Limit for a request's body. The longest valid one, ``{"enabled": false}``, has less than a fortieth of this."""
MAX_DISCARDED_BYTES: Final = 128 * 1024
"""Limit for what is received and discarded after a refusal, so that the client proceeds to read the answer."""
DISCARD_TIMEOUT_S: Final = 1.0
IDLE_TIMEOUT_S: Final = 120.0
"""Time for which a connection stays open between two requests; longer than the usual interval of scrapers."""
SEND_TIMEOUT_S: Final = 30.0
"""Time limit to send an answer."""
READ_BYTES: Final = 16 * 1024
PROBES: Final = ("/livez", "/readyz")
"""The pages that orchestrators and load balancers ask for."""

_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
_PROBE: Final = re.compile(rb"(GET|HEAD) (%s)[ ?]" % "|".join(PROBES).encode())

_SECURITY: Final = (
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
)
"""Headers of every response: browsers keep no answer, and let no page of another origin embed one."""
_NO_CERTIFICATE: Final = (
    "the client speaks TLS, but the admin server has no certificate: set admin.tls.certificate_file"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """The head of a request, and a function that receives its body."""

    method: str
    path: str
    query: Mapping[str, str]
    """Query parameters by name; if a name is repeated, its last value."""
    headers: Mapping[str, str] = field(repr=False)
    """Headers by name in lower case; the values of a repeated name are joined by commas."""
    read_body: Callable[[], Awaitable[bytes]]
    """Receives the body. Raises `MalformedRequestError` if it has no stated length, or exceeds `MAX_BODY_BYTES`."""
    client: str
    """Address of the client's host; for a Unix socket the client's user id."""
    subject: str | None = None
    """Subject of the certificate that the client has shown, if any; it was verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A response with its complete body."""

    status: int = HTTPStatus.OK
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


Answer: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


class MalformedRequestError(Exception):
    """The request violates HTTP or a limit. ``str()`` is the reason that the client gets."""

    def __init__(self, reason: str, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(reason)
        self.status = status


class _SpeaksTlsError(MalformedRequestError):
    """The client speaks TLS to a server that has none."""

    def __init__(self) -> None:
        super().__init__("this port has no TLS: use http instead of https")


class RefusedConnection(Exception):  # noqa: N818 -- what was done, not a mistake of this side
    """A connection is closed because of what the client has sent before a request. ``str()`` is the reason to log.

    ``rule`` is the name of the rule, for the metric.
    """

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class Phase(IntEnum):
    """The state of a connection. At a limit, connections in the first state are closed first, and so on."""

    WAITING = 0
    """The connection waits for the TLS handshake, for a request, or for the rest of a request."""
    SENDING = 1
    """The connection waits until the client reads the answer."""
    ANSWERING = 2
    """The answer to a complete request is being computed."""


def refused(reason: str, status: int = HTTPStatus.BAD_REQUEST, *headers: tuple[str, str]) -> HttpResponse:
    """Return an error response with the reason."""
    return HttpResponse(status=status, body=json_text({"error": reason}).encode(), headers=headers)


class HttpConnection:
    """One client's connection."""

    def __init__(
        self,
        stream: trio.abc.HalfCloseableStream,
        client: str,
        *,
        timeout_s: float,
        counters: AdminCounters,
        turns: AdminTurns,
        handshake: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        """``handshake`` does the TLS handshake, and returns the subject of the client's certificate; it is ``None``
        without TLS."""
        self.client = client
        self.address = counted_address(client)
        """The address, or IPv6 network, for which the connection counts; see `counted_address`."""
        self.phase = Phase.WAITING
        self.since_s = trio.current_time()
        """Time at which the phase began."""
        self._stream = stream
        self._timeout_s = timeout_s
        self._counters = counters
        self._turns = turns
        self._handshake = handshake
        self._subject: str | None = None
        self._received = bytearray()
        """The bytes that were received after the last request, such as a part of the head or body of the next one."""
        self._answered = False
        self._asks_for_head = False
        """Whether the current request is a HEAD, also if it is malformed."""
        self._scope = trio.CancelScope()
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    def close(self) -> None:
        """End `serve` and close the connection, whatever it does."""
        self._scope.cancel()

    async def serve(self, answer: Answer) -> None:
        """Answer requests until the client closes, violates the protocol or exceeds a time-out; close the stream.

        An exception raised by ``answer`` is logged, and the response has the status 500. Raises `RefusedConnection`.
        """
        with self._scope:
            async with self._stream:
                with suppress(trio.BrokenResourceError):
                    try:
                        if self._handshake is not None:
                            self._subject = await self._handshake()
                        while await self._serve_one(answer):
                            self._protocol.start_next_cycle()
                            self._answered = True
                    except trio.TooSlowError:
                        self._counters.refuse("timeout")

    async def _serve_one(self, answer: Answer) -> bool:
        """Answer one request, and return whether another may follow."""
        self._asks_for_head, is_malformed, speaks_tls = False, False, False
        try:
            head = await self._head()
            if head is None:
                return False
            response = await self._response(head, answer)
        except (h11.RemoteProtocolError, MalformedRequestError) as error:
            if self._protocol.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
                return False
            is_malformed, speaks_tls = True, isinstance(error, _SpeaksTlsError)
            if not speaks_tls:
                self._counters.refuse("malformed")
            status = error.status if isinstance(error, MalformedRequestError) else error.error_status_hint
            text = str(error) if isinstance(error, MalformedRequestError) else str(error).partition(":")[0]
            response = refused(f"malformed request: {text[:200]}", status)
        self._enter(Phase.SENDING)
        with trio.fail_after(SEND_TIMEOUT_S):
            # A body that no page has asked for would have to be read before the next request.
            await self._send(response, closes=is_malformed or self._protocol.their_state is h11.SEND_BODY)
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            return True
        if self._protocol.their_state is not h11.MUST_CLOSE:
            await self._discard()
        if speaks_tls:
            raise RefusedConnection("tls", _NO_CERTIFICATE)
        return False

    def _enter(self, phase: Phase) -> None:
        self.phase, self.since_s = phase, trio.current_time()

    async def _head(self) -> bytes | None:
        """Receive the next head; return ``None`` when the client has closed the connection, or stays idle."""
        self._enter(Phase.WAITING)
        if self._answered and not self._received:
            with trio.move_on_after(IDLE_TIMEOUT_S) as idle:
                await self._receive()
            if idle.cancelled_caught:
                return None
        searched = 0
        with trio.fail_after(self._timeout_s):
            while (end := _END_OF_HEAD.search(self._received, max(0, searched - 2), MAX_HEAD_BYTES)) is None:
                if len(self._received) >= MAX_HEAD_BYTES:
                    raise _too_large(f"the head has more than {MAX_HEAD_BYTES} bytes")
                searched = len(self._received)
                if not await self._receive():
                    return None
                if not self._answered and searched < NEEDED_BYTES <= len(self._received):
                    self._refuse_tls()
        head = bytes(self._received[: end.end()])
        del self._received[: end.end()]
        return head

    async def _response(self, head: bytes, answer: Answer) -> HttpResponse:
        """Parse the head at its turn, and return the response."""
        turns = self._turns.requests
        if _PROBE.match(head):
            turns = self._turns.probes
            self._enter(Phase.ANSWERING)  # others that wait for their turn are closed first
        await turns.wait_for_rate(self.client)
        async with turns:
            request = self._request(head)
        self._enter(Phase.ANSWERING)
        return await _answer_or_500(answer, request)

    def _request(self, head: bytes) -> HttpRequest:
        """Parse a head. Raises `MalformedRequestError` or `h11.RemoteProtocolError` if it is malformed."""
        if (lines := head.count(b"\n") - 2) > MAX_HEADERS:
            raise _too_large(f"{lines} headers; the maximum is {MAX_HEADERS}")
        self._protocol.receive_data(head)
        event = self._protocol.next_event()
        if not isinstance(event, h11.Request):
            raise MalformedRequestError("the head is not that of a request")
        self._asks_for_head = event.method == b"HEAD"
        if _body_length(event) == 0:
            self._protocol.next_event()  # the end of the message
        return _checked(event, lambda: self._body(event), self.client, self._subject)

    async def _body(self, head: h11.Request) -> bytes:
        """Receive the body of a request."""
        length = _body_length(head)
        if length is None:
            raise MalformedRequestError("a body needs a Content-Length", HTTPStatus.LENGTH_REQUIRED)
        if length > MAX_BODY_BYTES:
            reason = f"the body has {length} bytes; the maximum is {MAX_BODY_BYTES}"
            raise MalformedRequestError(reason, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        with trio.fail_after(self._timeout_s):
            if self._protocol.they_are_waiting_for_100_continue and len(self._received) < length:
                await self._send_events(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
            while len(self._received) < length:
                if not await self._receive():
                    raise MalformedRequestError("the body is incomplete")
        body = bytes(self._received[:length])
        del self._received[:length]
        if body:
            self._protocol.receive_data(body)
            while not isinstance(self._protocol.next_event(), h11.EndOfMessage):
                pass
        return body

    async def _receive(self) -> bool:
        """Receive some bytes, and return whether there were any before the client's end of the stream."""
        piece = await self._stream.receive_some(READ_BYTES)
        self._received += piece
        return bool(piece)

    def _refuse_tls(self) -> None:
        """Raise an error if the first bytes of the connection are those of TLS, and the server has none."""
        if self._handshake is None and other_protocol(self._received, 0, NEEDED_BYTES) == TLS:
            raise _SpeaksTlsError

    async def _discard(self) -> None:
        self._enter(Phase.WAITING)
        await discard(self._stream)

    async def _send(self, response: HttpResponse, *, closes: bool) -> None:
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *_SECURITY,
            *response.headers,
        ]
        if closes:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        body = [h11.Data(data=response.body)] if not self._asks_for_head else []
        await self._send_events(head, *body, h11.EndOfMessage())

    async def _send_events(self, *events: h11.Event) -> None:
        await self._stream.send_all(b"".join(self._protocol.send(event) or b"" for event in events))


async def refuse_in_plaintext(stream: trio.abc.HalfCloseableStream, reason: str) -> None:
    """Send a 400 with ``reason`` in plain text to a client that speaks HTTP without TLS, whatever it sends."""
    body = f"{reason}\n"
    fields = (("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("Connection", "close"), *_SECURITY)
    head = "\r\n".join(["HTTP/1.1 400 Bad Request", *(f"{name}: {value}" for name, value in fields)])
    with trio.move_on_after(SEND_TIMEOUT_S), suppress(trio.BrokenResourceError):
        await stream.send_all(f"{head}\r\n\r\n{body}".encode())
    await discard(stream)


async def discard(stream: trio.abc.HalfCloseableStream) -> None:
    """End the stream, and receive and discard what the client still sends, within limits.

    Closing the socket with unread bytes would reset the connection, and the client might not get the answer. A client
    that closes or resets it is no error.
    """
    with trio.move_on_after(DISCARD_TIMEOUT_S), suppress(trio.BrokenResourceError):
        await stream.send_eof()
        discarded = 0
        while discarded < MAX_DISCARDED_BYTES and (piece := await stream.receive_some(READ_BYTES)):
            discarded += len(piece)


def _too_large(reason: str) -> MalformedRequestError:
    return MalformedRequestError(reason, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)


def _body_length(head: h11.Request) -> int | None:
    """Return the length of a request's body, or ``None`` if it is chunked. h11 has checked the headers."""
    headers = dict(head.headers)
    return None if b"transfer-encoding" in headers else int(headers.get(b"content-length", b"0"))


def _checked(
    head: h11.Request, read_body: Callable[[], Awaitable[bytes]], client: str, subject: str | None
) -> HttpRequest:
    """Return the request. Raises `MalformedRequestError` if its head is not one that the pages understand."""
    path, _, query = head.target.decode("ascii").partition("?")
    if not path.startswith("/"):
        raise MalformedRequestError('the request target must begin with "/"')
    try:
        path = unquote(path, errors="strict")
        parameters = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except UnicodeDecodeError:
        raise MalformedRequestError("the request target is not UTF-8") from None
    except ValueError:
        raise MalformedRequestError(f"more than {MAX_PARAMETERS} query parameters") from None
    headers: dict[str, str] = {}
    for name, value in head.headers:
        key, text = name.decode("ascii"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return HttpRequest(
        method=head.method.decode("ascii"),
        path=path,
        query=dict(parameters),
        headers=headers,
        read_body=read_body,
        client=client,
        subject=subject,
    )


async def _answer_or_500(answer: Answer, request: HttpRequest) -> HttpResponse:
    try:
        return await answer(request)
    except (MalformedRequestError, RefusedConnection, trio.TooSlowError, trio.BrokenResourceError):  # of its body
        raise
    except Exception as error:
        if _repeated.due("internal error", place_of(error)) is not None:
            log.exception("internal error in the admin server", path=request.path, exc_info=error)
        return refused("internal error; the log has the details", HTTPStatus.INTERNAL_SERVER_ERROR)
