"""The admin server's HTTP connections, over memory streams with an autojump clock; its limits over real sockets."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, suppress

import pytest
import trio
import trio.testing

from headrace.proxy.admin.http import (
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    TIMEOUT_S,
    HttpConnection,
    HttpRequest,
    HttpResponse,
    serve_http,
)

CLOSE = b"Connection: close\r\n"


async def echo(request: HttpRequest) -> HttpResponse:
    """Answer with the request as JSON."""
    if request.path == "/broken":
        raise KeyError("a mistake")
    received = [request.method, request.path, dict(request.query), len(request.body), request.client]
    return HttpResponse(body=json.dumps(received).encode(), content_type="application/json")


async def answered(*pieces: bytes) -> bytes:
    """Send the pieces, and return all that is received until the connection is closed."""
    ours, theirs = trio.testing.memory_stream_pair()
    reply = bytearray()

    async def read() -> None:
        async for piece in ours:
            reply.extend(piece)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(theirs, "client").serve, echo)
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
        nursery.start_soon(HttpConnection(theirs, "client").serve, echo)
        await ours.send_all(get("/", CLOSE, b"Content-Length: 3\r\nExpect: 100-continue\r\n", method="PUT"))
        assert (await ours.receive_some(1000)).startswith(b"HTTP/1.1 100 ")
        await ours.send_all(b"abc")
        assert json.loads(parsed(await ours.receive_some(1000))[2])[3] == 3


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(0, 0), (MAX_BODY_BYTES, MAX_BODY_BYTES), (MAX_BODY_BYTES + 1, MAX_BODY_BYTES + 1), (10**6, MAX_BODY_BYTES + 1)],
)
async def test_a_body_is_read_to_its_end_and_kept_to_its_cap(sent: int, kept: int) -> None:
    head = get("/", CLOSE, f"Content-Length: {sent}\r\n".encode(), method="PUT")
    assert json.loads(parsed(await answered(head, bytes(sent)))[2])[3] == kept


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (get("/", b"Content-Length: many\r\n"), 400),
        (get("/" + "x" * 2 * MAX_HEAD_BYTES), 431),
    ],
    ids=["no HTTP", "no host", "no length", "a long head"],
)
async def test_a_protocol_violation_is_answered_and_ends_the_connection(request_bytes: bytes, status: int) -> None:
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


@pytest.mark.parametrize("sent", [b"", b"GET / HT", get("/")])
async def test_a_client_that_leaves(sent: bytes) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(theirs, "client").serve, echo)
        if sent:
            await ours.send_all(sent)
        await ours.aclose()


async def test_a_client_that_does_not_read_its_answer(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(theirs, "client").serve, echo)
        await ours.send_all(get("/"))
    assert trio.current_time() - began_s == pytest.approx(TIMEOUT_S)


async def test_the_number_of_connections_is_limited(nursery: trio.Nursery) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(serve_http, listener, echo)
    async with AsyncExitStack() as stack:
        stack.enter_context(trio.fail_after(30))
        streams = [await stack.enter_async_context(await connected(listener)) for _ in range(MAX_CONNECTIONS)]
        for stream in streams:
            await stream.send_all(get("/"))
            assert parsed(await stream.receive_some(1000))[0] == 200
        async with await connected(listener) as one_more:
            assert await one_more.receive_some() == b""
        await streams[0].aclose()
        while not await served(listener):  # until the server has noticed that a connection was closed
            pass


async def served(listener: trio.SocketListener) -> bool:
    async with await connected(listener) as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(get("/", CLOSE))
            return await stream.receive_some(1000) != b""
        return False


async def connected(listener: trio.SocketListener) -> trio.SocketStream:
    stream = await trio.testing.open_stream_to_socket_listener(listener)
    assert isinstance(stream, trio.SocketStream)
    return stream
