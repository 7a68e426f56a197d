"""The admin HTTP server: health for orchestrators, metrics for Prometheus, recent decisions, and turning enforcement
on and off.

It runs on the event loop of the proxy's only process, or of the supervisor of several workers. It has no
authentication: bind it to loopback, or to a network that only operators can reach.
"""

from __future__ import annotations

import json
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.admin.http import MAX_BODY_BYTES, HttpRequest, HttpResponse, plain, serve_http
from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.decisions import KEPT_DECISIONS
from headrace.proxy.network.listeners import advice_for_bind

if TYPE_CHECKING:
    from headrace.proxy.admin.operations import Operations
    from headrace.quota_callbacks.requests import Address

PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
READY_CACHE_S: Final = 1.0
"""Seconds for which the result of ``/readyz`` is reused, so that frequent probes do not connect to brokers as often."""


_READ: Final = ("GET", "HEAD")


class AdminServer:
    """The pages of the admin server, made from the answers of ``operations``."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._checked_s = float("-inf")
        self._reasons: list[str] = []
        self._checking = trio.Lock()
        self._pages = {
            "/livez": (_READ, self._livez),
            "/readyz": (_READ, self._readyz),
            "/metrics": (_READ, self._metrics_page),
            "/enforcement": ((*_READ, "PUT"), self._enforcement),
            "/decisions": (_READ, self._decisions_page),
        }

    async def serve(self, sock: socket.socket) -> None:
        """Serve on a listening socket until cancelled, then close the socket."""
        await serve_http(trio.SocketListener(trio.socket.from_stdlib_socket(sock)), self.answer)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Return the requested page."""
        methods, page = self._pages.get(request.path, ((), None))
        if page is None:
            return plain(HTTPStatus.NOT_FOUND)
        if request.method not in methods:
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", ", ".join(methods)))
        return await page(request)

    async def _livez(self, _request: HttpRequest) -> HttpResponse:
        if reasons := await self._operations.not_live():
            return _json({"status": "not live", "reasons": reasons}, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json({"status": "ok"})

    async def _readyz(self, _request: HttpRequest) -> HttpResponse:
        async with self._checking:
            if trio.current_time() - self._checked_s > READY_CACHE_S:
                self._reasons = await self._operations.not_ready()
                self._checked_s = trio.current_time()
        if self._reasons:
            return _json({"status": "not ready", "reasons": self._reasons}, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json({"status": "ok"})

    async def _metrics_page(self, _request: HttpRequest) -> HttpResponse:
        return HttpResponse(body=await self._operations.metrics(), content_type=PROMETHEUS_TEXT)

    async def _enforcement(self, request: HttpRequest) -> HttpResponse:
        if request.method == "PUT":
            if len(request.body) > MAX_BODY_BYTES:
                return _refused(f"the body has more than {MAX_BODY_BYTES} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            try:
                body = json.loads(request.body)
            except ValueError:
                body = None
            if not isinstance(body, dict) or not isinstance(body.get("enabled"), bool):
                return _refused('expected {"enabled": true} or {"enabled": false}')
            await self._operations.enforce(body["enabled"], request.client)
        return _json({"enabled": self._operations.enforcement_enabled})

    async def _decisions_page(self, request: HttpRequest) -> HttpResponse:
        query = request.query
        newest = query.get("newest", "100")
        if unknown := query.keys() - {"user", "client_id", "newest"}:
            return _refused(f"unknown parameter {min(unknown)}; expected user, client_id or newest")
        if not newest.isdecimal() or not 1 <= int(newest) <= KEPT_DECISIONS:
            return _refused(f"newest is {newest!r}; expected a whole number from 1 to {KEPT_DECISIONS}")
        page = await self._operations.decisions(query.get("user"), query.get("client_id"), int(newest))
        return _json(page)


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return HttpResponse(status=status, body=text.encode(), content_type="application/json")


def _refused(reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> HttpResponse:
    return _json({"error": reason}, status)


def bind_admin(address: Address) -> socket.socket:
    """Bind the admin server's socket. Raises `StartupError` with the address and the reason if that fails."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"admin.listen: cannot resolve {address.host}: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(128)
    except OSError as error:
        sock.close()
        reason = (error.strerror or str(error)).lower()
        advice = advice_for_bind(error, address.port, "admin.listen") or "change admin.listen"
        raise StartupError(f"cannot listen on {address} for the admin server: {reason}; {advice}") from error
    return sock
