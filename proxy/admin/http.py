"""HTTP/1.1 for the admin server: sequential requests on each connection, with complete bodies in both directions.

This module connects `h11`, which implements the protocol, with trio. A web framework would need nine MiB of resident
memory to serve five pages. Called by `headrace.proxy.admin.connections`; must not depend on the pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from enum import IntEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qsl, unquote

import h11
import structlog
import trio

from headrace.proxy.admin.escaping import json_text

if TYPE_CHECKING:
    from headrace.proxy.counters import AdminCounters

log = structlog.get_logger("headrace.admin")

MAX_HEAD_BYTES: Final = 16 * 1024
"""Limit for a request line and its headers, and for the head of a chunk of the body."""
MAX_HEADERS: Final = 100
"""Limit for the number of headers. Browsers and scrapers send about twenty."""
MAX_PARAMETERS: Final = 20
"""Limit for the number of query parameters."""
MAX_BODY_BYTES: Final = 64 * 1024
"""Limit for a request's body. The rest is read and discarded, so that the client proceeds to read the answer."""
IDLE_TIMEOUT_S: Final = 120.0
"""Time for which a connection stays open between two requests; longer than the usual interval of scrapers."""
SEND_TIMEOUT_S: Final = 30.0
"""Time limit to send an answer."""
READ_BYTES: Final = 16 * 1024

_SECURITY: Final = (
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
)
"""Headers of every response: browsers keep no answer, and let no page of another origin embed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request with its complete body."""

    method: str
    path: str
    query: Mapping[str, str]
    """Query parameters by name; if a name is repeated, its last value."""
    headers: Mapping[str, str]
    """Headers by name in lower case; the values of a repeated name are joined by commas."""
    body: bytes
    """At most `MAX_BODY_BYTES` + 1 bytes; that length means that the body exceeds the limit."""
    client: str
    """Address of the client's host; for a Unix socket the client's user id."""


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


class Phase(IntEnum):
    """What a connection does. The order is that in which connections are closed at a limit."""

    WAITING = 0
    """It waits for a request, or for the rest of one."""
    SENDING = 1
    """It waits until the client reads the answer."""
    ANSWERING = 2
    """The answer to a complete request is made."""


def refused(reason: str, status: int = HTTPStatus.BAD_REQUEST, *headers: tuple[str, str]) -> HttpResponse:
    """Return an error response with the reason."""
    return HttpResponse(status=status, body=json_text({"error": reason}).encode(), headers=headers)


class HttpConnection:
    """One client's connection."""

    def __init__(self, stream: trio.abc.Stream, client: str, *, timeout_s: float, counters: AdminCounters) -> None:
        self.client = client
        self.phase = Phase.WAITING
        self.since_s = trio.current_time()
        """Time at which the phase began."""
        self._stream = stream
        self._timeout_s = timeout_s
        self._counters = counters
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

        An exception raised by ``answer`` is logged, and the response has the status 500.
        """
        with self._scope:
            async with self._stream:
                with suppress(trio.BrokenResourceError):
                    try:
                        while await self._serve_one(answer):
                            self._protocol.start_next_cycle()
                            self._answered = True
                    except trio.TooSlowError:
                        self._counters.refuse("timeout")

    async def _serve_one(self, answer: Answer) -> bool:
        """Answer one request, and return whether another may follow."""
        try:
            request = await self._request()
            if request is None:
                return False
            self._enter(Phase.ANSWERING)
            response = await _answer_or_500(answer, request)
        except (h11.RemoteProtocolError, MalformedRequestError) as error:
            if self._protocol.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
                return False
            self._counters.refuse("malformed")
            status = error.status if isinstance(error, MalformedRequestError) else error.error_status_hint
            text = str(error) if isinstance(error, MalformedRequestError) else str(error).partition(":")[0]
            response = refused(f"malformed request: {text[:200]}", status, ("Connection", "close"))
        self._enter(Phase.SENDING)
        with trio.fail_after(SEND_TIMEOUT_S):
            await self._send(response, with_body=not self._asks_for_head)
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE

    def _enter(self, phase: Phase) -> None:
        self.phase, self.since_s = phase, trio.current_time()

    async def _request(self) -> HttpRequest | None:
        """Receive the next request; return ``None`` when the client has closed the connection, or stays idle."""
        self._enter(Phase.WAITING)
        self._asks_for_head = False
        if self._answered and not self._protocol.trailing_data[0]:
            with trio.move_on_after(IDLE_TIMEOUT_S) as idle:
                await self._receive()
            if idle.cancelled_caught:
                return None
        with trio.fail_after(self._timeout_s):
            head = await self._event()
            if not isinstance(head, h11.Request):
                return None
            self._asks_for_head = head.method == b"HEAD"
            body = bytearray()
            while isinstance(event := await self._event(), h11.Data):
                body += event.data[: MAX_BODY_BYTES + 1 - len(body)]
        return _checked(head, bytes(body), self.client)

    async def _event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            if self._protocol.they_are_waiting_for_100_continue:
                await self._send_events(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
            await self._receive()
        return event

    async def _receive(self) -> None:
        self._protocol.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))

    async def _send(self, response: HttpResponse, *, with_body: bool) -> None:
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *_SECURITY,
            *response.headers,
        ]
        reason = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        body = [h11.Data(data=response.body)] if with_body else []
        await self._send_events(head, *body, h11.EndOfMessage())

    async def _send_events(self, *events: h11.Event) -> None:
        await self._stream.send_all(b"".join(self._protocol.send(event) or b"" for event in events))


def _checked(head: h11.Request, body: bytes, client: str) -> HttpRequest:
    """Return the request. Raises `MalformedRequestError` if its head is not one that the pages understand."""
    if len(head.headers) > MAX_HEADERS:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        raise MalformedRequestError(f"{len(head.headers)} headers; the maximum is {MAX_HEADERS}", status)
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
        body=body,
        client=client,
    )


async def _answer_or_500(answer: Answer, request: HttpRequest) -> HttpResponse:
    try:
        return await answer(request)
    except Exception as error:
        log.exception("a mistake of headrace in the admin server", path=request.path, exc_info=error)
        return refused("internal error; the log has the details", HTTPStatus.INTERNAL_SERVER_ERROR)
