"""Threads of the data plane that hang are found, reported once, and forgotten when they answer.

A thread that hangs is a stub here; one of a real proxy is stopped in `tests/faults/native/test_silent_thread.py`.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import trio
from structlog.testing import capture_logs

from headrace.proxy.admin.metrics_page import MetricsPage
from headrace.proxy.counters import AdminCounters
from headrace.proxy.data_plane.native import NativeDataPlane
from headrace.proxy.data_plane.thread_watch import LONGEST_PAUSE_S, SILENT_S, ThreadWatch
from tests.proxy.data_plane.wire import Wire, needs_engine, new_engine
from tests.proxy.playbook import open_book

if TYPE_CHECKING:
    from trio.testing import MockClock


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
