"""The admin HTTP server: health for orchestrators, metrics for Prometheus, recent decisions, and turning enforcement
on and off.

It runs on the event loop of the proxy. Who may request what is decided by `headrace.proxy.admin.access`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import trio

from headrace.proxy.admin.access import Access, Tokens
from headrace.proxy.admin.connections import AdminConnections
from headrace.proxy.admin.http import PROBES, HttpRequest, HttpResponse, refused
from headrace.proxy.admin.listening import bind_admin
from headrace.proxy.admin.operations import MOST_CHANGES
from headrace.proxy.admin.turns import Turns
from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.decisions import KEPT_DECISIONS
from headrace.quota_callbacks.entities import LONG_MAX, bounded_name
from headrace.quota_callbacks.escaping import json_text

if TYPE_CHECKING:
    from headrace.config.tables.admin import Admin, AdminAddress
    from headrace.config.tables.tls import AdminTls
    from headrace.proxy.admin.listening import AdminSocket
    from headrace.proxy.admin.operations import Operations
    from headrace.proxy.admin.tls import TlsHandshakes
    from headrace.proxy.counters import AdminCounters

PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
READY_CACHE_S: Final = 1.0
"""Seconds for which the result of ``/readyz`` is reused, so that frequent probes do not connect to brokers as often."""

_READ: Final = ("GET", "HEAD")

PageAnswer: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


class _Page(NamedTuple):
    methods: tuple[str, ...]
    answer: PageAnswer
    turns: Turns | None
    """The turns in which the page is made; ``None`` for a probe. Probes need no token either, since orchestrators and
    load balancers cannot keep one secret."""


class AdminServer:
    """The pages of the admin server, made from the answers of ``operations``."""

    def __init__(self, operations: Operations, access: Access) -> None:
        self._operations = operations
        self._access = access
        self._checked_s = float("-inf")
        self._reasons: list[str] = []
        self._checking = trio.Lock()
        probes = (self._livez, self._readyz)
        self._pages = {
            **{path: _Page(_READ, probe, None) for path, probe in zip(PROBES, probes, strict=True)},
            "/metrics": _Page(_READ, self._metrics_page, Turns()),
            "/enforcement": _Page((*_READ, "PUT"), self._enforcement, Turns()),
            "/decisions": _Page(_READ, self._decisions_page, Turns()),
            "/quotas/audit": _Page(_READ, self._quota_changes, Turns()),
        }

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Return the requested page, or the reason why it is refused."""
        page = self._pages.get(request.path)
        changes = page is not None and request.method in page.methods and request.method not in _READ
        refusal = await self._access.refusal(request, public=page is None or page.turns is None, changes=changes)
        if refusal is not None:
            return refusal
        if page is None:
            return refused("there is no such page", HTTPStatus.NOT_FOUND)
        if request.method not in page.methods:
            allowed = ", ".join(page.methods)
            return refused(f"expected {allowed}", HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", allowed))
        if changes and not _is_json(request):
            # A browser sends this type to another origin only after that has agreed, which this server never does.
            reason = "a request that changes the proxy needs the header Content-Type: application/json"
            return refused(reason, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        if page.turns is None:
            return await page.answer(request)
        async with page.turns:
            return await page.answer(request)

    async def _livez(self, _request: HttpRequest) -> HttpResponse:
        if hanging := self._operations.hanging:
            return _json({"status": "not alive", "reasons": [hanging]}, HTTPStatus.SERVICE_UNAVAILABLE)
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
            content = await request.read_body()
            try:
                body = json.loads(content)
            except (ValueError, RecursionError):
                body = None
            if not isinstance(body, dict) or body.keys() != {"enabled"} or not isinstance(body["enabled"], bool):
                return refused('expected {"enabled": true} or {"enabled": false}')
            self._operations.enforce(body["enabled"], _author(request))
        return _json({"enabled": self._operations.enforcement_enabled})

    async def _decisions_page(self, request: HttpRequest) -> HttpResponse:
        query = request.query
        if unknown := query.keys() - {"user", "client_id", "newest"}:
            return refused(f"unknown parameter {min(unknown)[:80]}; expected user, client_id or newest")
        newest = _whole(query.get("newest", "100"), KEPT_DECISIONS)
        if newest is None:
            return refused(_not_whole("newest", query["newest"], KEPT_DECISIONS))
        page = self._operations.decisions(query.get("user"), query.get("client_id"), newest)
        return _json({"enforcement": self._operations.enforcement_enabled, **page})

    async def _quota_changes(self, request: HttpRequest) -> HttpResponse:
        query = request.query
        if unknown := query.keys() - {"newest", "before"}:
            return refused(f"unknown parameter {min(unknown)[:80]}; expected newest or before")
        newest, before = _whole(query.get("newest", "100"), MOST_CHANGES), None
        if newest is None:
            return refused(_not_whole("newest", query["newest"], MOST_CHANGES))
        if "before" in query and (before := _whole(query["before"], LONG_MAX)) is None:
            return refused(_not_whole("before", query["before"], LONG_MAX))
        page = await self._operations.quota_changes(newest, before)
        return _json(page, HTTPStatus.OK if page["problem"] is None else HTTPStatus.SERVICE_UNAVAILABLE)


def _whole(text: str, largest: int) -> int | None:
    """Return a number from 1 to ``largest``, or ``None`` for anything else."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(largest))):
        return None
    number = int(text)
    return number if 1 <= number <= largest else None


def _not_whole(parameter: str, found: str, largest: int) -> str:
    return f"{parameter} is {found[:20]!r}; expected a whole number from 1 to {largest}"


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(status=status, body=json_text(value).encode())


def _author(request: HttpRequest) -> str:
    """Return who sends a request, for the log: the client's address, and the subject of its certificate."""
    return request.client if request.subject is None else f"{request.client}, {bounded_name(request.subject)}"


def _is_json(request: HttpRequest) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def open_admin(
    nursery: trio.Nursery, settings: Callable[[], Admin], operations: Operations
) -> AdminAddress | None:
    """Start the admin server, and return its address, or ``None`` if none is configured.

    ``settings`` returns the configuration that is in force. Raises `StartupError` if the tokens, the certificate or the
    address are not valid.
    """
    config = settings()
    if config.listen is None:
        return None
    try:
        has_tokens = config.token_file is not None or config.token is not None
        tokens = await trio.to_thread.run_sync(Tokens, config.token_file, config.token) if has_tokens else None
    except ValueError as error:
        raise StartupError(str(error)) from error
    counters = operations.admin_counters
    tls = _handshakes(config.tls, counters)
    server = AdminServer(operations, Access(settings, tokens, counters))
    bound = bind_admin(config.listen)
    nursery.start_soon(_serve, bound, AdminConnections(settings, counters, tls), server)
    if tls is not None:
        nursery.start_soon(tls.renew_regularly)
    return bound.address


def _handshakes(tls: AdminTls, counters: AdminCounters) -> TlsHandshakes | None:
    """Return the handshakes of the admin server, ``None`` without TLS, for which nothing is imported."""
    if tls.certificate_file is None:
        return None
    from headrace.proxy.admin.tls import TlsHandshakes, admin_context

    return TlsHandshakes(admin_context(tls), counters)


async def _serve(bound: AdminSocket, connections: AdminConnections, server: AdminServer) -> None:
    """Serve until cancelled, then close the socket."""
    try:
        await connections.serve(trio.SocketListener(trio.socket.from_stdlib_socket(bound.sock)), server.answer)
    finally:
        bound.remove_file()
