"""The admin server's HTTP connections, over memory streams with an autojump clock."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from headrace.proxy.admin.http import (
    IDLE_TIMEOUT_S,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    SEND_TIMEOUT_S,
    HttpConnection,
    HttpRequest,
    HttpResponse,
)
from headrace.proxy.admin.turns import AdminTurns
from headrace.proxy.counters import AdminCounters

CLOSE = b"Connection: close\r\n"
TIMEOUT_S = 5.0


def connection(stream: trio.abc.HalfCloseableStream) -> HttpConnection:
    return HttpConnection(stream, "client", timeout_s=TIMEOUT_S, counters=AdminCounters(), turns=AdminTurns())


async def echo(request: HttpRequest) -> HttpResponse:
    """Answer with the request as JSON."""
    if request.path == "/broken":
        raise KeyError("a mistake")
    body = await request.read_body()
    received = [request.method, request.path, dict(request.query), len(body), request.client]
    return HttpResponse(body=json.dumps(received).encode(), content_type="application/json")


async def answered(*pieces: bytes) -> bytes:
    """Send the pieces, and return all that is received until the connection is closed."""
    ours, theirs = trio.testing.memory_stream_pair()
    reply = bytearray()

    async def read() -> None:
        async for piece in ours:
            reply.extend(piece)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection(theirs).serve, echo)
        nursery.start_soon(read)
        for piece in pieces:
            await ours.send_all(piece)
    return bytes(reply)


def parsed(reply: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = reply.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def get(target: str, *headers: bytes, method: str = "GET") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: here\r\n".encode() + b"".join(headers) + b"\r\n"


async def test_a_request_byte_by_byte() -> None:
    request = get("/a%20b?x=1&y=%C3%A9&x=2&z=", CLOSE)
    status, headers, body = parsed(await answered(*(request[at : at + 1] for at in range(len(request)))))
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert int(headers["content-length"]) == len(body)
    assert headers["date"].endswith("gmt")
    assert json.loads(body) == ["GET", "/a b", {"x": "2", "y": "é", "z": ""}, 0, "client"]


async def test_one_after_the_other_on_a_connection() -> None:
    reply = await answered(get("/1") + get("/2"), get("/3", CLOSE))
    assert [reply.count(path) for path in (b'"/1"', b'"/2"', b'"/3"')] == [1, 1, 1]
    assert reply.index(b'"/1"') < reply.index(b'"/2"') < reply.index(b'"/3"')


async def test_a_head_alone() -> None:
    status, headers, body = parsed(await answered(get("/1", CLOSE, method="HEAD")))
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


async def test_a_client_that_waits_to_be_asked_for_its_body() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection(theirs).serve, echo)
        await ours.send_all(get("/", CLOSE, b"Content-Length: 3\r\nExpect: 100-continue\r\n", method="PUT"))
        assert (await ours.receive_some(1000)).startswith(b"HTTP/1.1 100 ")
        await ours.send_all(b"abc")
        assert json.loads(parsed(await ours.receive_some(1000))[2])[3] == 3


def put(length: int, *headers: bytes) -> bytes:
    return get("/", f"Content-Length: {length}\r\n".encode(), *headers, method="PUT")


@pytest.mark.parametrize("length", [0, 1, MAX_BODY_BYTES])
async def test_a_body_of_any_split_and_the_next_request(length: int) -> None:
    sent = put(length) + bytes(length) + get("/next", CLOSE)
    for size in (1, 7, 2000):
        reply = await answered(*(sent[at : at + size] for at in range(0, len(sent), size)))
        assert reply.count(b"HTTP/1.1 200 ") == 2
        assert json.loads(reply.split(b"\r\n\r\n")[1].partition(b"HTTP/")[0])[3] == length


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (put(MAX_BODY_BYTES + 1), 413),
        (put(10**5) + bytes(10**5), 413),
        (put(10**19), 413),
        (put(MAX_BODY_BYTES + 1, b"Expect: 100-continue\r\n"), 413),
        (get("/", b"Transfer-Encoding: chunked\r\n", method="PUT"), 411),
        (get("/", b"Transfer-Encoding: chunked\r\n", method="PUT") + b"1\r\nx\r\n" * 20_000, 411),
    ],
    ids=["long", "long and sent", "huge", "long and to be asked for", "chunked", "many chunks"],
)
async def test_a_body_that_is_refused_by_its_head(
    request_bytes: bytes, status: int, autojump_clock: trio.testing.MockClock
) -> None:
    pieces = [request_bytes[at : at + 10_000] for at in range(0, len(request_bytes), 10_000)]
    found, headers, _ = parsed(await answered(*pieces))
    assert (found, headers["connection"]) == (status, "close")


async def test_a_body_that_no_page_asks_for_is_not_read_and_ends_the_connection() -> None:
    async def refuse(_request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=403, body=b"{}")

    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection(theirs).serve, refuse)
        await ours.send_all(put(500))
        reply = b""
        async for piece in ours:
            reply += piece
        await ours.aclose()
    found, headers, _ = parsed(reply)
    assert (found, headers["connection"]) == (403, "close")


async def test_a_client_that_ends_within_its_body() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection(theirs).serve, echo)
        await ours.send_all(put(10) + b"five.")
        await ours.send_eof()
        assert parsed(await ours.receive_some(1000))[0] == 400


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (get("/", b"Content-Length: many\r\n"), 400),
        (get("/" + "x" * 2 * MAX_HEAD_BYTES), 431),
        (get("/", *[b"a: b\r\n"] * (MAX_HEADERS + 1)), 431),
        (get("/%ff"), 400),
        (get("/?%ff"), 400),
        (get("/?" + "a=b&" * 100), 400),
        (get("http://there/"), 400),
        (get("*", method="OPTIONS"), 400),
    ],
    ids=["no HTTP", "no host", "no length", "long", "many headers", "path", "query", "parameters", "URL", "no path"],
)
async def test_a_protocol_violation_is_answered_and_ends_the_connection(
    request_bytes: bytes, status: int, autojump_clock: trio.testing.MockClock
) -> None:
    reply = await answered(request_bytes)
    assert parsed(reply)[0] == status
    assert reply.count(b"HTTP/1.1 ") == 1


async def test_a_bug_is_answered_with_500_and_the_connection_continues() -> None:
    reply = await answered(get("/broken"), get("/1", CLOSE))
    assert parsed(reply)[0] == 500
    assert b"a mistake" not in reply
    assert b'"/1"' in reply


@pytest.mark.parametrize("sent", [b"", b"GET / HT", get("/", b"Content-Length: 3\r\n", method="PUT") + b"ab"])
async def test_a_client_that_stops_in_the_middle(sent: bytes, autojump_clock: trio.testing.MockClock) -> None:
    began_s = trio.current_time()
    assert await answered(sent) == b""
    assert trio.current_time() - began_s == pytest.approx(TIMEOUT_S)


@pytest.mark.parametrize(
    "request_bytes",
    [get("/" + "x" * 1000), get("/", b"Content-Length: 1000\r\n", method="PUT") + bytes(1000)],
    ids=["head", "body"],
)
async def test_a_byte_a_second_extends_no_deadline(
    request_bytes: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    began_s = trio.current_time()

    async def trickle() -> None:
        for at in range(len(request_bytes)):
            await trio.sleep(1)
            await ours.send_all(request_bytes[at : at + 1])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection(theirs).serve, echo)
        with pytest.raises(trio.BrokenResourceError):
            await trickle()
    assert trio.current_time() - began_s <= TIMEOUT_S + 1


async def test_a_connection_stays_open_between_two_requests(autojump_clock: trio.testing.MockClock) -> None:
    """As scrapers use it; the second request has its own deadline, and no third one comes."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection(theirs).serve, echo)
        for pause_s in (0, IDLE_TIMEOUT_S - 1):
            await trio.sleep(pause_s)
            await ours.send_all(get("/1")[:10])
            await trio.sleep(TIMEOUT_S - 1)
            await ours.send_all(get("/1")[10:])
            assert parsed(await ours.receive_some(1000))[0] == 200
        began_s = trio.current_time()
        assert await ours.receive_some(1000) == b""
        assert trio.current_time() - began_s == pytest.approx(IDLE_TIMEOUT_S)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", get("/")])
async def test_a_client_that_leaves(sent: bytes) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    with trio.fail_after(TIMEOUT_S / 2):  # it ends because the client has left, not because of a time-out
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection(theirs).serve, echo)
            if sent:
                await ours.send_all(sent)
            await ours.aclose()


async def test_a_client_that_does_not_read_its_answer(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection(theirs).serve, echo)
        await ours.send_all(get("/"))
    assert trio.current_time() - began_s == pytest.approx(SEND_TIMEOUT_S)
