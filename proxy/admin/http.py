"""HTTP/1.1 for the admin server: sequential requests on each connection, with complete bodies in both directions.

This module connects `h11`, which implements the protocol, with trio. A web framework would need nine MiB of resident
memory to serve five pages. Called by `headrace.proxy.admin.server`; must not depend on the pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, unquote

import h11
import structlog
import trio

log = structlog.get_logger("headrace.admin")

MAX_HEAD_BYTES: Final = 64 * 1024
"""Limit for a request line and its headers."""
MAX_BODY_BYTES: Final = 64 * 1024
"""Limit for a request's body. The rest is read and discarded, so that the client proceeds to read the answer."""
MAX_CONNECTIONS: Final = 100
"""Number of connections open at a time; further ones are closed at once. Operators and their tools are few."""
TIMEOUT_S: Final = 30.0
"""Time limit to receive a complete request, and to send its answer; longer than the usual interval of scrapers."""
READ_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request with its complete body."""

    method: str
    path: str
    query: Mapping[str, str]
    """Query parameters by name; if a name is repeated, its last value."""
    body: bytes
    """At most `MAX_BODY_BYTES` + 1 bytes; that length means that the body exceeds the limit."""
    client: str
    """Address of the client's host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A response with its complete body."""

    status: int = HTTPStatus.OK
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


Answer: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


def plain(status: HTTPStatus, *headers: tuple[str, str]) -> HttpResponse:
    """Return a text response with the status phrase as its body."""
    return HttpResponse(status=status, body=status.phrase.encode(), content_type="text/plain", headers=headers)


async def serve_http(listener: trio.SocketListener, answer: Answer) -> None:
    """Accept connections and answer requests until cancelled, then close the listener.

    An exception raised by ``answer`` is logged, and the response has the status 500.
    """
    free = trio.Semaphore(MAX_CONNECTIONS)

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(trio.WouldBlock, OSError):  # the limit is reached; reset between accept and getpeername
            client = stream.socket.getpeername()[0]
            free.acquire_nowait()
            try:
                await HttpConnection(stream, client).serve(answer)
            finally:
                free.release()

    await trio.serve_listeners(handle, [listener])


class HttpConnection:
    """One client's connection."""

    def __init__(self, stream: trio.abc.Stream, client: str) -> None:
        self._stream = stream
        self._client = client
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def serve(self, answer: Answer) -> None:
        """Answer requests until the client closes, violates the protocol or exceeds `TIMEOUT_S`; close the stream."""
        async with self._stream:
            with suppress(trio.BrokenResourceError, trio.TooSlowError):
                while await self._serve_one(answer):
                    self._protocol.start_next_cycle()

    async def _serve_one(self, answer: Answer) -> bool:
        """Answer one request, and return whether another may follow."""
        try:
            with trio.fail_after(TIMEOUT_S):
                request = await self._request()
            if request is None:
                return False
            response = await _answer_or_500(answer, request)
        except h11.RemoteProtocolError as error:
            if self._protocol.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
                return False
            request, response = None, plain(HTTPStatus(error.error_status_hint))
        with trio.fail_after(TIMEOUT_S):
            await self._send(response, with_body=request is None or request.method != "HEAD")
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE

    async def _request(self) -> HttpRequest | None:
        """Receive the next request; return ``None`` when the client has closed the connection."""
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data[: MAX_BODY_BYTES + 1 - len(body)]
        path, _, query = head.target.decode("ascii").partition("?")
        return HttpRequest(
            method=head.method.decode("ascii"),
            path=unquote(path),
            query=dict(parse_qsl(query, keep_blank_values=True)),
            body=bytes(body),
            client=self._client,
        )

    async def _event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            if self._protocol.they_are_waiting_for_100_continue:
                await self._send_events(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
            self._protocol.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))
        return event

    async def _send(self, response: HttpResponse, *, with_body: bool) -> None:
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *response.headers,
        ]
        reason = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        body = [h11.Data(data=response.body)] if with_body else []
        await self._send_events(head, *body, h11.EndOfMessage())

    async def _send_events(self, *events: h11.Event) -> None:
        await self._stream.send_all(b"".join(self._protocol.send(event) or b"" for event in events))


async def _answer_or_500(answer: Answer, request: HttpRequest) -> HttpResponse:
    try:
        return await answer(request)
    except Exception as error:
        log.exception("a mistake of headrace in the admin server", path=request.path, exc_info=error)
        return plain(HTTPStatus.INTERNAL_SERVER_ERROR)
