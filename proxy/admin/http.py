"""HTTP/1.1 for the admin server: on each connection one request after the other, whole bodies in and out.

`h11` knows the protocol; here it meets trio. A web framework would do it, too, at nine MiB of resident memory for five
pages. Called by `headrace.proxy.admin.server`; knows no page.
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
"""Of a request line and its headers."""
MAX_BODY_BYTES: Final = 64 * 1024
"""Kept of a request's body. More is read, so that the client comes to read the answer, and forgotten."""
MAX_CONNECTIONS: Final = 100
"""Open at a time; one more is closed at once. Operators and their tools are few."""
PATIENCE_S: Final = 30.0
"""For the next request to come whole, and for its answer to be taken: longer than scrapers usually pause."""
READ_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request whose body has come."""

    method: str
    path: str
    query: Mapping[str, str]
    """By name; of a name that is given twice, the last."""
    body: bytes
    """At most `MAX_BODY_BYTES` + 1: one more than may be, where more came."""
    client: str
    """The client's host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """An answer."""

    status: int = HTTPStatus.OK
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


Answer: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


def plain(status: HTTPStatus, *headers: tuple[str, str]) -> HttpResponse:
    """The status in words, for people."""
    return HttpResponse(status=status, body=status.phrase.encode(), content_type="text/plain", headers=headers)


async def serve_http(listener: trio.SocketListener, answer: Answer) -> None:
    """Accept and answer until cancelled, and close the listener then. What ``answer`` raises is logged, and told as
    500."""
    free = trio.Semaphore(MAX_CONNECTIONS)

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(trio.WouldBlock, OSError):  # none is free; reset between accept and getpeername
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
        """Answer what comes, until the client leaves, breaks the protocol, or takes longer than `PATIENCE_S`; then
        close the stream."""
        async with self._stream:
            with suppress(trio.BrokenResourceError, trio.TooSlowError):
                while await self._serve_one(answer):
                    self._protocol.start_next_cycle()

    async def _serve_one(self, answer: Answer) -> bool:
        """One request; whether another may follow."""
        try:
            with trio.fail_after(PATIENCE_S):
                request = await self._request()
            if request is None:
                return False
            response = await _answered(answer, request)
        except h11.RemoteProtocolError as error:
            if self._protocol.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
                return False
            request, response = None, plain(HTTPStatus(error.error_status_hint))
        with trio.fail_after(PATIENCE_S):
            await self._send(response, with_body=request is None or request.method != "HEAD")
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE

    async def _request(self) -> HttpRequest | None:
        """The next one; ``None`` when the client has closed."""
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
                await self._pass(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
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
        await self._pass(head, *body, h11.EndOfMessage())

    async def _pass(self, *events: h11.Event) -> None:
        await self._stream.send_all(b"".join(self._protocol.send(event) or b"" for event in events))


async def _answered(answer: Answer, request: HttpRequest) -> HttpResponse:
    try:
        return await answer(request)
    except Exception as error:
        log.exception("a mistake of headrace in the admin server", path=request.path, exc_info=error)
        return plain(HTTPStatus.INTERNAL_SERVER_ERROR)
