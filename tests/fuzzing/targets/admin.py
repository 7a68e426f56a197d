"""Target: the admin server's HTTP, over streams in memory."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import trio
import trio.testing

from headrace.config import Admin
from headrace.proxy.admin.access import Access
from headrace.proxy.admin.http import HttpConnection, RefusedConnection
from headrace.proxy.admin.operations import Operations
from headrace.proxy.admin.server import AdminServer
from headrace.proxy.admin.turns import AdminTurns
from headrace.proxy.counters import AdminCounters
from tests.fuzzing.choices import Choices, pieces

if TYPE_CHECKING:
    from headrace.proxy.admin.http import HttpRequest, HttpResponse

SETTINGS: Final = Admin.model_validate({"listen": "unix:/run/headrace/admin.sock"})
"""At a Unix socket, changes need no token, so that inputs reach the switch."""
METHODS: Final = (b"GET", b"HEAD", b"PUT", b"POST", b"CONNECT", b"OPTIONS", b"get")
PATHS: Final = (
    b"/livez", b"/readyz", b"/metrics", b"/enforcement", b"/decisions", b"/decisions?newest=",
    b"/decisions?user=%ff&client_id=",
    b"/", b"*", b"http://h/livez", b"/%2e%2e/livez", b"/enforcement?x",
)  # fmt: skip
LINES: Final = (
    b"Content-Length: 5", b"Content-Length: 18", b"Content-Length: -1", b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Expect: 100-continue", b"Upgrade: websocket", b"Host: elsewhere", b"Origin: http://elsewhere",
    b"Authorization: Bearer x",
    b"Content-Type: application/json", b"A" * 300 + b": b", b"Connection: upgrade, keep-alive",
    b"Content-Length: " + b"9" * 30,
)  # fmt: skip
BODIES: Final = (
    b"", b'{"enabled": true}', b'{"enabled":false}', b"5\r\nhello\r\n0\r\n\r\n", b"[" * 3000, b"9" * 5000,
    b"\xff\xfe", b"0\r\n\r\n",
    b'{"enabled": 1}',
)  # fmt: skip


class FixedOperations(Operations):
    """Operations with fixed answers."""

    enforcement_enabled = True
    hanging = ""

    def __init__(self) -> None: ...

    async def not_ready(self) -> list[str]:
        return ["a reason"]

    async def metrics(self) -> bytes:
        return b"metric 1\n"

    def enforce(self, enabled: bool, by: str) -> None:
        assert isinstance(enabled, bool)

    def decisions(self, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
        return {"waiting": [], "decisions": [{"user": user, "client_id": client_id, "newest": newest}]}


def _requests(choices: Choices) -> bytes:
    if choices.flag():
        return choices.rest()
    found = b""
    for _ in range(1 + choices.byte() % 3):
        target = choices.pick(PATHS) + (choices.take(choices.byte() % 12) if choices.byte() >= 200 else b"")
        lines = [choices.pick(METHODS) + b" " + target + b" HTTP/1." + choices.pick((b"1", b"0", b"9"))]
        lines += [b"Host: 127.0.0.1"] if choices.byte() < 220 else []
        lines += [choices.pick(LINES) for _ in range(choices.byte() % 4)]
        found += b"\r\n".join([*lines, b"", choices.pick(BODIES)])
    return found


def admin_http(data: bytes) -> None:
    """Answer requests: never with 500, and any split has the same answers."""
    choices = Choices(data)
    cuts = choices.cuts()
    stream = _requests(choices)
    whole = _answers([stream])
    assert _answers(pieces(stream, cuts)) == whole


def _answers(chunks: list[bytes]) -> list[bytes]:
    """Return the status lines and bodies of the answers."""
    reply = bytearray()

    async def run() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        counters = AdminCounters()
        server = AdminServer(FixedOperations(), Access(lambda: SETTINGS, None, counters))

        async def answer(request: HttpRequest) -> HttpResponse:
            response = await server.answer(request)
            if response.content_type == "application/json":
                json.loads(response.body)
            return response

        async def read() -> None:
            async for piece in ours:
                reply.extend(piece)

        async def serve() -> None:
            connection = HttpConnection(theirs, "client", timeout_s=5.0, counters=counters, turns=AdminTurns())
            with contextlib.suppress(RefusedConnection):  # the input begins as TLS does
                await connection.serve(answer)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(serve)
            try:
                for chunk in chunks:
                    await ours.send_all(chunk)
                    await trio.testing.wait_all_tasks_blocked()
                await ours.send_eof()
            except trio.BrokenResourceError:
                return

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    lines = [line for line in bytes(reply).split(b"\r\n") if not line.startswith(b"Date: ")]
    assert not any(line.startswith(b"HTTP/1.1 500") for line in lines), lines
    return lines
