"""Mutated requests to the pages of the admin server: each gets a status that a client's mistake explains, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio
import trio.testing

from headrace.config.tables.admin import Admin
from headrace.proxy.admin.access import Access
from headrace.proxy.admin.connections import AdminConnections
from headrace.proxy.admin.operations import Operations
from headrace.proxy.admin.server import AdminServer
from headrace.proxy.counters import AdminCounters

if TYPE_CHECKING:
    import random

ROUNDS: Final = 300
EXPECTED: Final = {200, 400, 403, 404, 405, 411, 413, 415, 431, 501, 503, 505}
GET: Final = (
    b"GET /decisions?user=a%20b&client_id=%C3%A9&newest=10 HTTP/1.1\r\nHost: localhost:9190\r\nAccept: */*\r\n\r\n"
)
HEAD: Final = b"HEAD /readyz HTTP/1.1\r\nHost: [::1]\r\nOrigin: http://[::1]\r\nSec-Fetch-Site: same-origin\r\n\r\n"
PUT: Final = b"PUT /enforcement HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY: Final = b'{"enabled":false}'
CHUNKED: Final = b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n" + BODY + b"\r\n0\r\nX: y\r\n\r\n"
SEEDS: Final = (GET, HEAD, PUT + b"Content-Length: 17\r\n\r\n" + BODY, PUT + CHUNKED + GET)
TOKENS: Final = (
    *(b"\r\n", b"\n", b"\0", b"\xff", b"%", b"%00", b"%ff", b"%ed%a0%80", b"[" * 5000, b'{"a":' * 2000, b"9" * 5000),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: evil\r\n", b"Connection: upgrade\r\n"),
    *(b"Upgrade: h2c\r\n", b"CONNECT a:1 HTTP/1.1\r\n", b"*", b"//", b"?", b"&" * 100, b" ", b":", b"-1", b"\\ud800"),
)


class Nothing(Operations):
    """Operations of a proxy without clients."""

    enforcement_enabled = True
    hanging = ""

    def __init__(self) -> None: ...

    async def not_ready(self) -> list[str]:
        return ["no bootstrap server answers"]

    async def metrics(self) -> bytes:
        return b""

    def enforce(self, enabled: bool, by: str) -> None:
        self.enforcement_enabled = enabled

    def decisions(self, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
        return {"waiting": [], "decisions": [{"user": user, "client_id": client_id}][:newest]}


def mutated(rng: random.Random) -> bytes:
    request = bytearray(rng.choice(SEEDS))
    for _ in range(rng.randint(1, 4)):
        begin = rng.randrange(len(request) + 1)
        end = min(len(request), begin + rng.choice((0, 0, 1, 1, 5, 40)))
        request[begin:end] = rng.choice(TOKENS) if rng.random() < 0.7 else rng.randbytes(rng.randint(0, 3))
    return bytes(request)


async def test_mutated_requests(rng: random.Random, autojump_clock: trio.testing.MockClock) -> None:
    settings, counters = Admin.model_validate({"listen": "unix:/run/admin.sock"}), AdminCounters()
    server = AdminServer(Nothing(), Access(lambda: settings, None, counters))
    connections = AdminConnections(lambda: settings, counters)
    seen: set[int] = set()
    for request in (*SEEDS, *(mutated(rng) for _ in range(ROUNDS))):
        reply = bytearray()
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connections.serve_one, theirs, "127.0.0.1", server.answer)
            await ours.send_all(request)
            await ours.send_stream.aclose()  # type: ignore[union-attr]
            async for piece in ours:
                reply += piece
        found = {int(line[9:12]) for line in reply.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")} - {100}
        assert found <= EXPECTED, (request, reply)
        seen |= found
    assert {200, 400} <= seen
    assert counters.connections == 0
