"""The admin HTTP server: health for orchestrators, metrics for Prometheus, and the switch of enforcement.

Runs on the proxy's own loop, with a socket that the server bound. It has no authentication: it belongs on loopback or
on a network for operators.
"""

from __future__ import annotations

import json
import logging
import socket
from typing import TYPE_CHECKING, Final

import hypercorn.config
import hypercorn.trio
import trio
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.decisions import KEPT_DECISIONS
from proxy.errors import StartupError
from proxy.metrics_page import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from proxy.metrics_page import MetricsPage
    from quota_callbacks.requests import Address

MAX_BODY_BYTES: Final = 64 * 1024
READY_CACHE_S: Final = 1.0
"""A broker is asked at most this often, however often ``/readyz`` is."""


class AdminServer:
    """The pages. ``not_ready`` returns the reasons why the proxy should get no traffic."""

    def __init__(
        self,
        *,
        metrics: MetricsPage,
        not_ready: Callable[[], Awaitable[list[str]]],
        enforcement_enabled: Callable[[], bool],
        switch_enforcement: Callable[[bool, str], None],
        decisions: Callable[[str | None, str | None, int], dict[str, object]],
    ) -> None:
        self._metrics = metrics
        self._not_ready = not_ready
        self._enforcement_enabled = enforcement_enabled
        self._switch_enforcement = switch_enforcement
        self._decisions = decisions
        self._asked_s = float("-inf")
        self._reasons: list[str] = []
        self._asking = trio.Lock()
        self.app = Starlette(
            routes=[
                Route("/livez", self._livez),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics_page),
                Route("/enforcement", self._enforcement, methods=["GET", "PUT"]),
                Route("/decisions", self._decisions_page),
            ]
        )

    async def serve(self, descriptor: int, stop: Callable[[], Awaitable[None]]) -> None:
        """Serve on a bound socket, which becomes hypercorn's to close, until ``stop`` returns."""
        config = hypercorn.config.Config()
        config.bind = [f"fd://{descriptor}"]
        config.accesslog = None
        config.errorlog = logging.getLogger("headrace.admin")
        config.graceful_timeout = 1.0
        config.h11_max_incomplete_size = MAX_BODY_BYTES
        await hypercorn.trio.serve(self.app, config, shutdown_trigger=stop, mode="asgi")  # type: ignore[arg-type]

    async def _livez(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readyz(self, _request: Request) -> Response:
        async with self._asking:
            if trio.current_time() - self._asked_s > READY_CACHE_S:
                self._reasons = await self._not_ready()
                self._asked_s = trio.current_time()
        if self._reasons:
            return JSONResponse({"status": "not ready", "reasons": self._reasons}, status_code=503)
        return JSONResponse({"status": "ok"})

    async def _metrics_page(self, _request: Request) -> Response:
        return Response(await self._metrics.render(), media_type=CONTENT_TYPE)

    async def _enforcement(self, request: Request) -> Response:
        if request.method == "PUT":
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return JSONResponse({"error": f"a body of over {MAX_BODY_BYTES} bytes"}, status_code=413)
            try:
                wanted = json.loads(body)
            except ValueError:
                wanted = None
            if not isinstance(wanted, dict) or not isinstance(wanted.get("enabled"), bool):
                return JSONResponse({"error": 'expected {"enabled": true} or {"enabled": false}'}, status_code=400)
            client = request.client.host if request.client is not None else "unknown"
            self._switch_enforcement(wanted["enabled"], client)
        return JSONResponse({"enabled": self._enforcement_enabled()})

    async def _decisions_page(self, request: Request) -> Response:
        asked = request.query_params
        newest = asked.get("newest", "100")
        if unknown := asked.keys() - {"user", "client_id", "newest"}:
            return JSONResponse({"error": f"unknown: {min(unknown)}; known: user, client_id, newest"}, status_code=400)
        if not newest.isdecimal() or not 1 <= int(newest) <= KEPT_DECISIONS:
            return JSONResponse({"error": f"newest is a whole number from 1 to {KEPT_DECISIONS}"}, status_code=400)
        return JSONResponse(self._decisions(asked.get("user"), asked.get("client_id"), int(newest)))


def bind_admin(address: Address) -> socket.socket:
    """Bind the admin server's socket; `StartupError` names the address and why it cannot be had."""
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
        raise StartupError(f"cannot listen on {address} for the admin server: {reason}; change admin.listen") from error
    return sock
