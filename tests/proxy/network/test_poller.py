"""The poller with real sockets: steps, tasks that wait, and trio's own events."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from headrace.proxy.errors import ClientFault
from headrace.proxy.network.poller import EVENTS_A_TURN, REPEATS_A_TURN, Poller
from headrace.proxy.network.sockets import MOST_EXPECTED_BYTES, PlainSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 30.0


@contextmanager
def socket_and_peer(*, attached: bool = True) -> Iterator[tuple[PlainSocket, socket.socket]]:
    """Yield a socket that the poller watches, and its peer."""
    poller = Poller()
    listener = socket.create_server(("127.0.0.1", 0))
    peer = socket.create_connection(listener.getsockname())
    ours, _ = listener.accept()
    listener.close()
    if not attached:
        sock = PlainSocket(ours, ClientFault, poller)
        yield sock, peer
        sock.close()
        peer.close()
        return
    with poller.attach():
        assert poller.attached, "this trio keeps its I/O manager elsewhere: see Poller.attach"
        sock = PlainSocket(ours, ClientFault, poller)
        try:
            yield sock, peer
        finally:
            sock.close()
            peer.close()


class Reader:
    """A step that reads ``most`` bytes at a time until the stream ends."""

    def __init__(self, sock: PlainSocket, most: int = 100) -> None:
        self.sock = sock
        self.read = bytearray()
        self.steps = 0
        self._buffer = memoryview(bytearray(most))

    def step(self) -> bool:
        self.steps += 1
        count = self.sock.receive_into(self._buffer)
        if count is not None:
            self.read += self._buffer[:count]
        return count != 0


@pytest.mark.parametrize("attached", [True, False])
async def test_a_step_reads_until_the_stream_ends(*, attached: bool) -> None:
    with socket_and_peer(attached=attached) as (sock, peer):
        reader = Reader(sock)
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sock.steps, reader.step)
                await wait_all_tasks_blocked()
                peer.send(b"one")
                while reader.read != b"one":
                    await trio.lowlevel.checkpoint()
                peer.send(b"two")
                peer.shutdown(socket.SHUT_WR)
        assert reader.read == b"onetwo"


@pytest.mark.parametrize("attached", [True, False])
async def test_a_step_waits_for_the_bytes_that_it_expects(*, attached: bool) -> None:
    with socket_and_peer(attached=attached) as (sock, peer):
        reader = Reader(sock, most=2 * MOST_EXPECTED_BYTES)

        def step() -> bool:
            goes_on = reader.step()
            sock.expect(2 * MOST_EXPECTED_BYTES - len(reader.read))
            return goes_on

        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sock.steps, step)
                await wait_all_tasks_blocked()
                peer.send(b"1")
                while not reader.read:
                    await trio.lowlevel.checkpoint()
                steps = reader.steps
                peer.send(bytes(1000))
                await trio.sleep(0.05)
                assert reader.steps == steps, "more bytes are expected"
                sock.report_all()
                while len(reader.read) < 1001:
                    await trio.lowlevel.checkpoint()
                peer.send(bytes(MOST_EXPECTED_BYTES - 1))
                await trio.sleep(0.05)
                assert len(reader.read) == 1001
                peer.send(b"1")
                while len(reader.read) < 1001 + MOST_EXPECTED_BYTES:
                    await trio.lowlevel.checkpoint()
                peer.send(b"end")  # the end of the stream, too, is reported
                peer.close()
        assert len(reader.read) == 1004 + MOST_EXPECTED_BYTES


@pytest.mark.parametrize("attached", [True, False])
async def test_new_steps_expect_nothing(*, attached: bool) -> None:
    """A task that goes on between two series of steps need not know what the last one expected."""
    with socket_and_peer(attached=attached) as (sock, peer):
        sock.expect(1000)
        reader = Reader(sock)
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sock.steps, reader.step)
                await wait_all_tasks_blocked()
                peer.send(b"1")
                while reader.read != b"1":
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()


async def test_one_turn_a_round_whatever_comes_meanwhile() -> None:
    """The peer sends from within the step, so that there are edges while the socket is queued."""
    with socket_and_peer() as (sock, peer):
        rounds: list[int] = []
        reader = Reader(sock, most=1)

        def step() -> bool:
            if reader.steps < 500:
                peer.send(b"more")
            return reader.step()

        async def count_rounds() -> None:
            while reader.steps < 400:
                before = reader.steps
                await trio.lowlevel.checkpoint()
                rounds.append(reader.steps - before)

        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sock.steps, step)
                await wait_all_tasks_blocked()
                peer.send(b"begin")
                await count_rounds()
                nursery.cancel_scope.cancel()
        assert 0 < max(rounds) <= 2


async def test_what_a_step_leaves_is_read_without_another_edge() -> None:
    with socket_and_peer() as (sock, peer):
        reader = Reader(sock, most=1)
        peer.send(b"x" * 50)
        peer.shutdown(socket.SHUT_WR)
        with trio.fail_after(WAIT_S):
            await sock.steps(reader.step)
        assert reader.read == b"x" * 50


async def test_bytes_and_the_end_of_the_stream_in_one_edge() -> None:
    """Reading continues after a short read, since no further edge reports the end of the stream."""
    with socket_and_peer() as (sock, peer):
        peer.send(b"last words")
        peer.close()
        reader = Reader(sock)
        with trio.fail_after(WAIT_S):
            await sock.steps(reader.step)
        assert reader.read == b"last words"


async def test_what_a_step_raises_is_raised_in_its_task() -> None:
    def step() -> bool:
        raise ClientFault("broken")

    with socket_and_peer() as (sock, peer):
        peer.send(b"x")
        with trio.fail_after(WAIT_S), pytest.raises(ClientFault, match="broken"):
            await sock.steps(step)


async def test_a_step_may_cancel_the_task_that_left_it() -> None:
    scope = trio.CancelScope()
    calls = []

    def step() -> bool:
        calls.append(1)
        scope.cancel()
        return False

    with socket_and_peer() as (sock, peer):
        peer.send(b"x")
        with trio.fail_after(WAIT_S), scope:
            await sock.steps(step)
        assert scope.cancelled_caught
        peer.send(b"y")
        await wait_all_tasks_blocked()
        assert calls == [1], "no step is left to call"


async def test_tasks_and_deadlines_have_their_turn_while_sockets_are_busy() -> None:
    """Two sockets that answer each other without a pause, in steps only."""
    with socket_and_peer() as (sock, peer):
        assert sock._poller is not None
        other = PlainSocket(peer, ClientFault, sock._poller)
        buffer = memoryview(bytearray(10))
        echoed = trio.Event()

        def echo(end: PlainSocket) -> bool:
            if end.receive_into(buffer):
                echoed.set()
                end.send_now([b"x"])
            return True

        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sock.steps, lambda: echo(sock))
                nursery.start_soon(other.steps, lambda: echo(other))
                other.send_now([b"x"])
                await echoed.wait()
                assert await trio.to_thread.run_sync(lambda: 7) == 7
                with trio.move_on_after(0.01) as deadline:
                    await trio.sleep_forever()
                assert deadline.cancelled_caught
                echoed = trio.Event()
                await echoed.wait()
                nursery.cancel_scope.cancel()
        other.close()


async def test_a_writer_waits_until_there_is_room() -> None:
    with socket_and_peer() as (sock, peer):
        peer.setblocking(False)
        sent = 16 * 1024 * 1024
        read = 0
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sock.send, [bytes(sent)])
                while read < sent:
                    await trio.lowlevel.wait_readable(peer)
                    read += len(peer.recv(1 << 20))
        assert sock.bytes_sent == sent


async def test_closing_wakes_who_waits() -> None:
    with socket_and_peer() as (sock, _):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def read() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await sock.readable()

            await wait_all_tasks_blocked()
            sock.close()


async def test_a_clock_that_jumps_still_jumps(autojump_clock: MockClock) -> None:
    with socket_and_peer() as (sock, peer):
        async with trio.open_nursery() as nursery:
            reader = Reader(sock)
            nursery.start_soon(sock.steps, reader.step)
            begin_s = trio.current_time()
            await trio.sleep(3600)
            assert trio.current_time() - begin_s == 3600
            peer.send(b"x")
            while reader.read != b"x":  # a busy kernel delivers it a little later, and the clock would jump before
                await trio.lowlevel.checkpoint()
            begin_s = trio.current_time()
            await trio.sleep(3600)
            assert trio.current_time() - begin_s == 3600
            nursery.cancel_scope.cancel()


async def test_it_gives_back_what_it_took() -> None:
    runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    before = runner.io_manager
    with socket_and_peer():
        assert runner.io_manager is not before
    assert runner.io_manager is before
    await trio.lowlevel.checkpoint()


async def test_tasks_get_their_turn_although_all_sockets_always_have_more_to_do() -> None:
    poller = Poller()
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    peers = [socket.create_connection(listener.getsockname()) for _ in range(64)]
    steps = 0

    def step_of(sock: PlainSocket) -> Callable[[], bool]:
        def step() -> bool:
            nonlocal steps
            steps += 1
            sock.may_read = True
            return True

        return step

    with poller.attach(), trio.fail_after(WAIT_S):
        socks = [PlainSocket(listener.accept()[0], ClientFault, poller) for _ in peers]
        async with trio.open_nursery() as nursery:
            for sock in socks:
                nursery.start_soon(sock.steps, step_of(sock))
            await wait_all_tasks_blocked()
            for peer in peers:
                peer.send(b"more")
            most = 0
            for _ in range(200):
                before = steps
                await trio.lowlevel.checkpoint()
                most = max(most, steps - before)
            nursery.cancel_scope.cancel()
        for sock in socks:
            sock.close()
    for each in (listener, *peers):
        each.close()
    assert 0 < most <= EVENTS_A_TURN + REPEATS_A_TURN
