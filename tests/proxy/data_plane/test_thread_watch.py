"""Threads of the data plane that hang are found, reported once, and forgotten when they answer."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import trio
from structlog.testing import capture_logs

from headrace.proxy.admin.metrics_page import MetricsPage
from headrace.proxy.counters import AdminCounters
from headrace.proxy.data_plane.native import NativeDataPlane
from headrace.proxy.data_plane.thread_watch import LONGEST_PAUSE_S, SILENT_S, ThreadWatch
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.data_plane.wire import DEADLINE_S, Account, Wire, needs_engine, new_engine
from tests.proxy.playbook import open_book, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

ANSWER_S = 0.1
"""Seconds in which a thread that runs usually answers; the tests do not depend on that."""


def test_a_silent_thread_is_reported_once() -> None:
    watch = ThreadWatch(2)
    with capture_logs() as logs:
        for second in range(13):
            assert watch.problem == "" or second > SILENT_S
            watch.check([second, 7], float(second))
        assert watch.problem == "data plane thread 1 has not answered for 12 s"
        assert watch.silent_s == 12.0
        watch.check([13, 8], 13.0)
        assert (watch.problem, watch.silent_s) == ("", 0.0)
    assert [(each["log_level"], each["event"], each["thread"]) for each in logs] == [
        ("error", "data plane thread does not answer", 1),
        ("warning", "data plane thread answers again", 1),
    ]


def test_a_thread_that_was_not_asked_is_not_silent() -> None:
    watch = ThreadWatch(1)
    for second in range(0, 40, 2):
        watch.check([None if second % 4 else 7], float(second))
        assert watch.silent_s == 0.0


def test_a_process_that_was_stopped_does_not_blame_its_threads() -> None:
    watch = ThreadWatch(1)
    watch.check([7], 0.0)
    watch.check([7], 3600.0)
    assert (watch.problem, watch.silent_s) == ("", LONGEST_PAUSE_S)


class Blocked:
    """A meter that no thread can charge while `Blocked` is entered."""

    def __init__(self, engine: Any, meter: int) -> None:
        self._begun, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=engine.settle, args=(meter, self._wait))

    def _wait(self, _charges: list[tuple[int, int]]) -> int:
        self._begun.set()
        self._may_end.wait()
        return 2**40

    def __enter__(self) -> None:
        self._thread.start()
        assert self._begun.wait(DEADLINE_S)

    def __exit__(self, *_: object) -> None:
        self._may_end.set()
        self._thread.join()


def answers(engine: Any) -> Iterator[list[int | None]]:
    """Ask the threads, and wait for the answers of all for `ANSWER_S` each time."""
    before = engine.beats()
    while True:
        for _ in range(int(ANSWER_S * 100)):
            time.sleep(0.01)
            now = engine.beats()
            if all(one != other for one, other in zip(before, now, strict=True)):
                break
        before = now
        yield now


@needs_engine
def test_a_blocked_thread_is_found_and_recovers() -> None:
    engine = new_engine(2)
    try:
        blocked, free = Account(engine), Account(engine)
        with Wire(engine, produced=blocked.number) as one, Wire(engine, produced=free.number) as other:
            watch, now_s = ThreadWatch(2), 0.0
            asked = answers(engine)
            with Blocked(engine, blocked.number):
                asks = request(ApiKey.PRODUCE, 10, 1, acks=1, padding=100)
                one.client.send(asks)
                while not watch.problem:
                    assert now_s < 1000
                    watch.check(next(asked), now_s)
                    now_s += 1.0
                assert watch.problem.startswith("data plane thread 0 ")
            while watch.problem:
                assert now_s < 2000
                watch.check(next(asked), now_s)
                now_s += 1.0
            one.until(lambda: len(one.received["broker"]) >= len(asks))
            other.send_read("client", asks)
    finally:
        engine.stop()


@needs_engine
def test_threads_without_connections_are_not_woken() -> None:
    engine = new_engine(2)
    try:
        assert engine.beats() == [None, None]
        with Wire(engine):
            assert [each is None for each in engine.beats()] == [False, True]
    finally:
        engine.stop()


class StubEngine:
    """Two threads, of which the second can be made silent."""

    def __init__(self, wake: socket.socket) -> None:
        self._wake = wake
        self._beats = [0, 0]
        self.is_silent = True

    def fileno(self) -> int:
        return self._wake.fileno()

    def beats(self) -> list[int | None]:
        self._beats[0] += 1
        self._beats[1] += not self.is_silent
        return list(self._beats)

    def nothing(self) -> list[Any]:
        return []

    charged = completed = returned = requests = collect = nothing

    def held(self) -> int:
        return 0

    def stop(self) -> None:
        """Do nothing: there are no threads."""


@needs_engine
async def test_the_data_plane_asks_while_it_has_connections(autojump_clock: MockClock) -> None:
    one, other = socket.socketpair()
    with one, other:
        async with open_book() as book:
            shared = book.shared
            data_plane: Any = NativeDataPlane(
                shared.hooks, shared.enforcement, shared.counters, limits=lambda: 0, threads=2, now_ms=lambda: 0
            )
            data_plane.engine.stop()
            engine = data_plane.engine = data_plane.meters._engine = StubEngine(one)
            data_plane._counted = []
            shared.data_plane = data_plane

            class Connection:
                id = 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(data_plane.run)
                await trio.sleep(100)
                assert engine.beats() == [1, 0], "it is not asked without connections"
                data_plane.add(Connection(), Connection())
                await trio.sleep(SILENT_S - 1)
                assert data_plane.watch.problem == ""
                await trio.sleep(3.5)
                assert data_plane.watch.problem == "data plane thread 1 has not answered for 12 s"
                page = await MetricsPage(shared, [], AdminCounters()).render()
                assert b"\nheadrace_native_silence_seconds 0.0" not in page
                assert b"\nheadrace_native_silence_seconds " in page
                engine.is_silent = False
                await trio.sleep(1.5)
                assert data_plane.watch.problem == ""
                nursery.cancel_scope.cancel()


def test_nothing_is_silent_without_connections() -> None:
    watch = ThreadWatch(1)
    for second in range(13):
        watch.check([7], float(second))
    assert watch.problem
    watch.end()
    assert (watch.problem, watch.silent_s) == ("", 0.0)
