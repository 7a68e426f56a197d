"""The turns of the admin server: requests wait for each other, probes for no other request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import trio
import trio.testing

from headrace.config import Admin
from headrace.proxy.admin.access import Access
from headrace.proxy.admin.http import HttpConnection, HttpRequest, HttpResponse
from headrace.proxy.admin.server import AdminServer
from headrace.proxy.admin.turns import (
    CONNECTIONS_PER_S,
    HANDSHAKE_PAUSE_FACTOR,
    PAUSE_FACTOR,
    REQUESTS_PER_S,
    AdminTurns,
)
from headrace.proxy.counters import AdminCounters
from headrace.proxy.network.tls.handshake_turns import LONGEST_PAUSE_S
from tests.fuzzing.targets.admin import FixedOperations

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.proxy.admin.http import Answer

WINDOW_S: Final = 11
MOST_AT_ONCE: Final = 10 * REQUESTS_PER_S


async def test_one_at_a_time_in_order_and_for_a_tenth_of_the_time(autojump_clock: MockClock) -> None:
    turns = AdminTurns().requests
    began: list[tuple[int, float]] = []

    async def work(number: int) -> None:
        async with turns:
            began.append((number, trio.current_time()))
            await trio.sleep(0.01)

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(work, number)
            await trio.testing.wait_all_tasks_blocked()
    assert [number for number, _ in began] == [*range(10)]
    for at, (_, began_s) in enumerate(began):
        assert began_s - start_s == pytest.approx(at * 0.01 * (1 + PAUSE_FACTOR))


async def test_a_request_that_waits_for_long_delays_the_next_by_a_limit(autojump_clock: MockClock) -> None:
    turns = AdminTurns().requests
    async with turns:
        await trio.sleep(10)
    ended_s = trio.current_time()
    async with turns:
        assert trio.current_time() - ended_s == pytest.approx(LONGEST_PAUSE_S)


async def test_a_turn_that_was_cancelled_or_failed_goes_to_the_next(autojump_clock: MockClock) -> None:
    turns = AdminTurns().requests

    async def fail() -> None:
        async with turns:
            await trio.sleep(1)
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    with trio.move_on_after(LONGEST_PAUSE_S / 2) as scope:
        async with turns:
            pytest.fail("within the pause")
    assert scope.cancelled_caught
    with trio.fail_after(1):
        async with turns:
            pass


async def test_an_address_has_a_rate_and_delays_no_other(autojump_clock: MockClock) -> None:
    turns = AdminTurns().requests
    start_s = trio.current_time()
    for _ in range(MOST_AT_ONCE):
        await turns.wait_for_rate("192.0.2.1")
    assert trio.current_time() == start_s
    for _ in range(20 * REQUESTS_PER_S):
        await turns.wait_for_rate("192.0.2.1")
    # Kafka's rate may exceed its limit by one sample of the window.
    assert trio.current_time() - start_s >= 20 - WINDOW_S / 10
    now_s = trio.current_time()
    await turns.wait_for_rate("192.0.2.2")
    assert trio.current_time() == now_s


async def test_handshakes_go_round_the_addresses(autojump_clock: MockClock) -> None:
    """One address with many delays another by one turn, in a quarter of the time, for each other address."""
    turns, began = AdminTurns().handshakes, list[str]()

    async def work(client: str) -> None:
        async with turns.turn(client):
            began.append(client)
            await trio.sleep(0.01)

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for client in (*["192.0.2.1"] * 5, *["192.0.2.2"] * 3, "192.0.2.3"):
            nursery.start_soon(work, client)
            await trio.testing.wait_all_tasks_blocked()
    assert [each[-1] for each in began] == [*"1123", *"12", *"12", "1"]
    assert trio.current_time() - start_s == pytest.approx(8 * 0.01 * (1 + HANDSHAKE_PAUSE_FACTOR) + 0.01)


async def test_a_turn_of_an_address_that_was_cancelled_or_failed_goes_to_the_next(autojump_clock: MockClock) -> None:
    turns = AdminTurns().handshakes

    async def fail() -> None:
        async with turns.turn("192.0.2.1"):
            await trio.sleep(1)
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    with trio.move_on_after(LONGEST_PAUSE_S / 2) as in_pause:  # cancelled with the turn
        async with turns.turn("192.0.2.1"):
            pytest.fail("within the pause")
    assert in_pause.cancelled_caught
    async with turns.turn("192.0.2.1"):
        with trio.move_on_after(1) as waiting:  # cancelled without it
            async with turns.turn("192.0.2.1"):
                pytest.fail("while the turn is taken")
        assert waiting.cancelled_caught
    with trio.fail_after(LONGEST_PAUSE_S * 2):
        async with turns.turn("192.0.2.2"):
            pass


def admitted(turns: AdminTurns, clients: list[str]) -> int:
    return sum(turns.admits(client) for client in clients)


async def test_connections_have_a_rate_and_a_network_counts_as_one(autojump_clock: MockClock) -> None:
    turns = AdminTurns()
    assert admitted(turns, ["192.0.2.1"] * 5000) == pytest.approx(10 * CONNECTIONS_PER_S, rel=0.2)
    assert admitted(turns, [f"2001:db8::{number:x}" for number in range(5000)]) < 12 * CONNECTIONS_PER_S
    assert turns.admits("192.0.2.2")
    await trio.sleep(WINDOW_S + 1)
    assert turns.admits("192.0.2.1")


async def get(turns: AdminTurns, target: str, answer: Answer) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    await HttpConnection(theirs, "192.0.2.1", timeout_s=5.0, counters=AdminCounters(), turns=turns).serve(answer)


async def test_a_probe_waits_for_no_other_request(autojump_clock: MockClock) -> None:
    turns, paths = AdminTurns(), list[str]()

    async def answer(request: HttpRequest) -> HttpResponse:
        paths.append(request.path)
        return HttpResponse(body=b"")

    async with turns.requests, trio.open_nursery() as nursery:
        nursery.start_soon(get, turns, "/metrics", answer)
        await trio.testing.wait_all_tasks_blocked()
        for target in ("/livez", "/readyz", "/livez?verbose"):
            await get(turns, target, answer)
        for target in ("/livezz", "/livez/more"):
            nursery.start_soon(get, turns, target, answer)
        await trio.testing.wait_all_tasks_blocked()
        assert paths == ["/livez", "/readyz", "/livez"]
        nursery.cancel_scope.cancel()


class SlowPages(FixedOperations):
    """A proxy whose metrics take until ``release``."""

    def __init__(self) -> None:
        self.release = trio.Event()
        self.asked = 0

    async def metrics(self) -> bytes:
        self.asked += 1
        await self.release.wait()
        return await super().metrics()


async def test_a_slow_page_is_made_once_at_a_time_and_delays_no_other(autojump_clock: MockClock) -> None:
    settings, counters, operations = Admin.model_validate({"listen": "127.0.0.1:0"}), AdminCounters(), SlowPages()
    server = AdminServer(operations, Access(lambda: settings, None, counters))
    turns = AdminTurns()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(get, turns, "/metrics", server.answer)
        await trio.sleep(1)
        assert operations.asked == 1
        for path in ("/livez", "/decisions", "/enforcement"):
            with trio.fail_after(2):
                await get(turns, path, server.answer)
        operations.release.set()
    assert operations.asked == 5
