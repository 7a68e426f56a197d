"""The limits of the admin server's connections, over memory streams: whose connection is closed for a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from headrace.config.tables.admin import Admin
from headrace.proxy.admin.connections import AdminConnections
from headrace.proxy.admin.http import HttpRequest, HttpResponse
from headrace.proxy.counters import AdminCounters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMITS = Admin(max_connections=5, max_connections_per_ip=3)


class Front:
    """Connections to answers that may take long: a request for ``/slow`` is answered at `release`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.counters = AdminCounters()
        self.release = trio.Event()
        self.limits = LIMITS
        self._connections = AdminConnections(lambda: self.limits, self.counters)
        self._nursery = nursery

    async def answer(self, request: HttpRequest) -> HttpResponse:
        if request.path == "/slow":
            await self.release.wait()
        return HttpResponse(body=request.path.encode())

    async def connect(self, client: str = "a", sent: bytes = b"") -> trio.abc.Stream:
        """A connection that has sent this much; it waits until the server has read it."""
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._connections.serve_one, theirs, client, self.answer)
        if sent:
            await ours.send_all(sent)
        await trio.sleep(0.1)  # until all other tasks are blocked, since the clock jumps only then
        return ours


@pytest.fixture
async def front(autojump_clock: MockClock) -> AsyncIterator[Front]:
    async with trio.open_nursery() as nursery:
        yield Front(nursery)
        nursery.cancel_scope.cancel()


async def is_open(stream: trio.abc.Stream) -> bool:
    """Whether the other side has not closed the connection."""
    with trio.move_on_after(0.01):
        return await stream.receive_some(10) != b""
    return True


async def is_answered(stream: trio.abc.Stream) -> bool:
    await stream.send_all(GET % b"probe")
    with trio.fail_after(5):
        return (await stream.receive_some(1000)).endswith(b"/probe")


async def test_a_new_connection_takes_the_place_of_the_longest_silent_one_of_its_address(
    autojump_clock: MockClock, front: Front
) -> None:
    silent = [await front.connect(sent=b"GET"[:number]) for number in range(3)]
    other = await front.connect("b")
    assert await is_answered(await front.connect())
    assert [await is_open(each) for each in silent] == [False, True, True]
    assert await is_open(other)
    assert front.counters.refused == {"max_connections_per_ip": 1}
    assert front.counters.connections == 4


async def test_in_all_the_longest_silent_one_of_the_address_with_most_is_closed(
    autojump_clock: MockClock, front: Front
) -> None:
    """So addresses with many connections take none from an address with one, such as that of a probe."""
    silent = [await front.connect(client) for client in "abbcc"]
    assert await is_answered(await front.connect("d"))
    assert [await is_open(each) for each in silent] == [True, False, True, True, True]
    assert front.counters.refused == {"max_connections": 1}


async def test_a_request_that_is_answered_is_kept_while_others_wait(autojump_clock: MockClock, front: Front) -> None:
    busy = [await front.connect(sent=GET % b"slow") for _ in range(2)]
    silent = await front.connect()
    assert await is_answered(await front.connect())
    assert not await is_open(silent)
    front.release.set()
    for each in busy:
        assert (await each.receive_some(1000)).endswith(b"/slow")


async def test_requests_that_all_take_long_do_not_lock_others_out(autojump_clock: MockClock, front: Front) -> None:
    """Such as those for /readyz while no broker answers."""
    busy = [await front.connect(sent=GET % b"slow") for _ in range(3)]
    assert await is_answered(await front.connect())
    assert [await is_open(each) for each in busy] == [False, True, True]


async def test_the_limits_in_force_are_those_of_a_reload(autojump_clock: MockClock, front: Front) -> None:
    first = await front.connect()
    front.limits = Admin(max_connections=1)
    second = await front.connect("b")
    assert not await is_open(first)
    assert await is_answered(second)


async def test_a_mistake_ends_one_connection_alone(
    autojump_clock: MockClock, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("a mistake")

    good = await front.connect()
    with monkeypatch.context() as patched:
        patched.setattr("headrace.proxy.admin.http._checked", fail)
        assert not await is_open(await front.connect(sent=GET % b"x"))
    assert await is_answered(good)
